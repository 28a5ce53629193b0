"""Strong augmentation on CIFAR-100: the default of Park & Kim (2022, arXiv:2202.06709).

    retinoscope train cifar_strong --model resnet50_cifar --out runs/r50

The same for CNNs and transformers: AdamW, 5 epochs of warm-up, a cosine schedule over 300 epochs,
Mixup, CutMix, RandAugment, random erasing, label smoothing, stochastic depth. The published code
swaps the two alphas, does not erase, and does not pass on the rate of stochastic depth: that
variant is ``.original``. The paper's networks took hours on one GPU; we have not run it to
completion.
"""

from dataclasses import replace

from retinoscope.data.augment import Augmentation
from retinoscope.train.recipe import Recipe

RECIPE = Recipe(
    model="resnet50_cifar",
    data="cifar100",
    epochs=300,
    warmup=5,
    batch=96,
    optimiser="adamw",
    lr=1.25e-4,
    weight_decay=0.05,
    schedule="cosine",
    clip=5.0,
    drop_path=0.1,
    augmentation=Augmentation(
        crop=0.125,
        flip=True,
        randaugment="rand-m9-n2-mstd1.0",
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
        augmentation=replace(RECIPE.augmentation, mixup=1.0, cutmix=0.8, erasing=0.0),
    )
}
