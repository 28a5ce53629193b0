"""SGD with a step schedule on ImageNet: 90 epochs, learning rate / 10 after 30, 60 and 80.

    torchrun --nproc-per-node 4 -m retinoscope train imagenet_sgd --out runs/r50-sgd

After Park & Kim, "Blurs Behave Like Ensembles" (ICML 2022, arXiv:2105.12639). We have not run it.
"""

from dataclasses import replace

from retinoscope.data.augment import Augmentation
from retinoscope.recipes import cifar_sgd

RECIPE = replace(
    cifar_sgd.RECIPE,
    model="resnet50",
    data="imagenet",
    epochs=90,
    batch=256,
    weight_decay=1e-4,
    milestones=(30, 60, 80),
    factor=0.1,
    augmentation=Augmentation(resized=(0.08, 1.0), flip=True),
)
VARIANTS = {"original": replace(RECIPE, idle_start=True)}
