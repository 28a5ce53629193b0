"""A network of 0.1 million parameters in minutes on one core.

    retinoscope train micro --model micro_vit --data cues --out runs/micro_vit

10,000 images, 12 epochs behind one of warm-up, crop and flip. Tables of what came out are in
``results/``. On ``cues`` it leaves some transformers at chance (``micro_swin`` predicts one class,
``micro_vit_gap`` reaches 24 %): ``micro.slow`` is for them, half the rate, 30,000 images, 9 epochs
behind one of warm-up, as they are.
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
