"""Trains a network of 0.1 million parameters in minutes on one core.

    retinoscope train micro --model micro_vit --data cues --out runs/micro_vit

10,000 images, one epoch of warm-up and 12 more epochs, with crop and flip. Tables of the outcome
are in ``results/``. On ``cues``, some transformers stay at or near chance (``micro_swin`` predicts
one class, ``micro_vit_gap`` reaches 24 %). Use ``micro.slow`` for these: half the learning rate,
30,000 images, one epoch of warm-up and 9 more epochs, without augmentation.
"""

from dataclasses import replace

from retinoscope.data.augment import Augmentation
from retinoscope.train.recipe import Recipe

RECIPE = Recipe(
    model="micro_resnet",
    data="cues",
    epochs=12,
    warmup=1,
    batch=64,
    optimiser="adamw",
    lr=2e-3,
    weight_decay=0.05,
    schedule="cosine",
    advance="step",
    clip=5.0,
    drop_path=0.0,
    fraction=0.2,
    scored=2000,
    augmentation=Augmentation(crop=0.125, flip=True),
)
VARIANTS = {
    "slow": replace(
        RECIPE, lr=1e-3, epochs=9, fraction=0.6, augmentation=Augmentation(crop=0.0, flip=False)
    )
}
