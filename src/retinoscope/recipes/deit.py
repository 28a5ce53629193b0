"""DeiT (Touvron et al., 2021, arXiv:2012.12877), which Context Broadcasting was trained with.

    torchrun --nproc-per-node 8 -m retinoscope train deit --out runs/deit

AdamW at 5e-4 per 512 images, 300 epochs of which 5 are warm-up, weight decay on matrices alone.
Here the warm-up is counted apart, so it is 5 + 295, and erased boxes get the mean colour, not
noise. There is no repeated augmentation, as for the small networks of Hyeon-Woo et al. (2023,
arXiv:2210.08457). With a teacher:
``deit:distillation=hard,teacher=NAME``. It was not trained here.
"""

from retinoscope.data.augment import Augmentation
from retinoscope.train.recipe import Recipe

RECIPE = Recipe(
    model="deit_tiny_patch16_224",
    data="imagenet",
    epochs=295,
    warmup=5,
    batch=1024,
    optimiser="adamw",
    lr=1e-3,
    weight_decay=0.05,
    decayed="matrices",
    schedule="cosine",
    lr_end=1e-5,
    drop_path=0.1,
    augmentation=Augmentation(
        resized=(0.08, 1.0),
        flip=True,
        randaugment="rand-m9-n2-mstd0.5-inc1",
        erasing=0.25,
        mixup=0.8,
        cutmix=1.0,
        smoothing=0.1,
    ),
)
