"""SGD with a step schedule on CIFAR-100, also used by the spatial-smoothing paper.

    retinoscope train cifar_sgd --model resnet18_cifar --out runs/r18-sgd

One epoch of warm-up, then 200 epochs with the learning rate divided by five after 60, 120 and 160
(Park & Kim, "Blurs Behave Like Ensembles", ICML 2022, arXiv:2105.12639). We have not run it to
completion.
"""

from dataclasses import replace

from retinoscope.data.augment import Augmentation
from retinoscope.train.recipe import Recipe

RECIPE = Recipe(
    model="resnet18_cifar",
    data="cifar100",
    epochs=200,
    warmup=1,
    batch=128,
    optimiser="momentum",
    lr=0.1,
    momentum=0.9,
    weight_decay=5e-4,
    schedule="steps",
    milestones=(60, 120, 160),
    factor=0.2,
    augmentation=Augmentation(crop=0.125, flip=True),
)
VARIANTS = {"original": replace(RECIPE, idle_start=True)}
