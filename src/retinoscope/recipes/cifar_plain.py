"""Only crop and flip on CIFAR-100: the baseline for strong augmentation.

    retinoscope train cifar_plain --model resnet50_cifar --out runs/r50-plain

Optimiser and schedule are those of ``cifar_strong`` (Park & Kim, 2022, arXiv:2202.06709), without
its clipping, smoothing and mixing. We have not run it to completion.
"""

from dataclasses import replace

from retinoscope.data.augment import Augmentation
from retinoscope.recipes import cifar_strong

RECIPE = replace(cifar_strong.RECIPE, clip=0.0, augmentation=Augmentation(crop=0.125, flip=True))
VARIANTS = {"original": replace(RECIPE, drop_path=0.0, idle_start=True)}
