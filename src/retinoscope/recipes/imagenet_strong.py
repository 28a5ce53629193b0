"""Strong augmentation on ImageNet, as Park & Kim (2022, arXiv:2202.06709) train there.

    torchrun --nproc-per-node 4 -m retinoscope train imagenet_strong --model resnet50 --out runs/r50

Four GPUs in the paper. ``.original`` has the alphas of Mixup and CutMix as the published
configuration has them, and no stochastic depth. It was not trained here.
"""

from dataclasses import replace

from retinoscope.recipes import cifar_strong

RECIPE = replace(
    cifar_strong.RECIPE,
    model="resnet50",
    data="imagenet",
    batch=128,
    clip=0.0,
    augmentation=replace(
        cifar_strong.RECIPE.augmentation, resized=(0.08, 1.0), randaugment="rand-m9-n2-mstd0.5"
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
