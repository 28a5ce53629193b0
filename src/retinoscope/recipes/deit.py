"""DeiT (Touvron et al., 2021, arXiv:2012.12877), also used for Context Broadcasting.

    torchrun --nproc-per-node 8 -m retinoscope train deit --out runs/deit

AdamW with a learning rate of 5e-4 per 512 images, 300 epochs including 5 of warm-up, weight decay
only on matrices. Here the warm-up is counted separately (5 + 295), and erased boxes are filled with
the mean colour instead of noise. There is no repeated augmentation, as for the small networks of
Hyeon-Woo et al. (2023, arXiv:2210.08457). With a teacher: ``deit:distillation=hard,teacher=NAME``.
We have not run it.
"""

from dataclasses import replace

from retinoscope.recipes import imagenet_strong

RECIPE = replace(
    imagenet_strong.RECIPE,
    model="deit_tiny_patch16_224",
    epochs=295,
    batch=1024,
    lr=1e-3,
    lr_end=1e-5,
    decayed="matrices",
    augmentation=replace(
        imagenet_strong.RECIPE.augmentation, randaugment="rand-m9-n2-mstd0.5-inc1"
    ),
)
