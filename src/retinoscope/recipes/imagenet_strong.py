"""Strong augmentation on ImageNet, as used by Park & Kim (2022, arXiv:2202.06709).

    torchrun --nproc-per-node 4 -m retinoscope train imagenet_strong --model resnet50 --out runs/r50

The paper used four GPUs. ``.original`` has the Mixup and CutMix alphas of the published
configuration, and no stochastic depth. We have not run it.
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
