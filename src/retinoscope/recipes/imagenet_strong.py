"""Strong augmentation on ImageNet, as Park & Kim (2022, arXiv:2202.06709) train there.

    torchrun --nproc-per-node 4 -m retinoscope train imagenet_strong --model resnet50 --out runs/r50

Four GPUs in the paper. ``.original`` has the alphas of Mixup and CutMix as the published
configuration has them, and no stochastic depth. It was not trained here.
"""

from dataclasses import replace

from retinoscope.data.augment import Augmentation
from retinoscope.train.recipe import Recipe

RECIPE = Recipe(
    model="resnet50",
    data="imagenet",
    epochs=300,
    warmup=5,
    batch=128,
    optimiser="adamw",
    lr=1.25e-4,
    weight_decay=0.05,
    schedule="cosine",
    drop_path=0.1,
    augmentation=Augmentation(
        resized=(0.08, 1.0),
        flip=True,
        randaugment="rand-m9-n2-mstd0.5",
        erasing=0.25,
        mixup=0.8,
        cutmix=1.0,
        smoothing=0.1,
    ),
)
VARIANTS = {
    "original": replace(
        RECIPE,
        drop_path=0.0,
        idle_start=True,
        augmentation=replace(RECIPE.augmentation, mixup=1.0, cutmix=0.8),
    )
}
