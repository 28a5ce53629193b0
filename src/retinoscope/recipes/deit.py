"""DeiT (Touvron et al., 2021, arXiv:2012.12877), which Context Broadcasting was trained with.

    torchrun --nproc-per-node 8 -m retinoscope train deit --out runs/deit

AdamW at 5e-4 per 512 images, 300 epochs of which 5 are warm-up, weight decay on matrices alone.
Here the warm-up is counted apart, so it is 5 + 295, and erased boxes get the mean colour, not
noise. There is no repeated augmentation, as for the small networks of Hyeon-Woo et al. (2023,
arXiv:2210.08457). With a teacher:
``deit:distillation=hard,teacher=NAME``. It was not trained here.
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
