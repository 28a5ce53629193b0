"""Augmentation of training images, reproducible from seed, epoch and index.

Probes use it for one image at a time, the training loop also for mixing whole batches. torch is
imported inside functions, so that the settings can be listed quickly.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from retinoscope.core.settings import check, refuse, setting

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from retinoscope.core.preprocessing import Preprocessing

_PARTNER = 1
"""Random stream that chooses and augments the image that another one is mixed with."""
_BATCH = 2
"""Random stream for mixing a batch."""
_NUMBERS = 2**63

_POLICY = re.compile(
    r"rand(-(m\d+|n[1-9]|p(0(\.\d+)?|1(\.0+)?)|mstd\d+(\.\d+)?|mmax[1-9]\d*|inc[01]"
    r"|t(weights|3aw?)))*"
)
"""A RandAugment policy as timm parses it. timm ignores some unknown sections; we refuse them."""


@dataclass(frozen=True)
class Augmentation:
    """The augmentation of training images; random draws depend only on seed, epoch and index.

    Mixup is by Zhang et al. (2018, arXiv:1710.09412), CutMix by Yun et al. (2019,
    arXiv:1905.04899), RandAugment by Cubuk et al. (2020, arXiv:1909.13719), erasing by Zhong et
    al. (2020, arXiv:1708.04896), all as implemented in timm.
    """

    crop: float = setting(
        0.125, "Share of each side that is padded with black before a random crop of the old size.",
        at_least=0, at_most=0.5,
    )  # fmt: skip
    """Padding of the random crop; not used if ``resized`` is set."""
    resized: tuple[float, ...] | None = setting(
        None, "Instead of crop: range of the area that is cut out, such as (0.08, 1.0).",
        above=0, at_most=1,
    )  # fmt: skip
    """Areas as shares of the whole image; the aspect ratio of the crop is between 3/4 and 4/3."""
    flip: bool = setting(True, "Mirror every second image.")
    """Horizontal flip with probability 1/2."""
    randaugment: str = setting("", "timm's policy, such as rand-m9-n2-mstd1.0.")
    """Empty for none."""
    erasing: float = setting(
        0.0, "Probability that a box of an image is erased.", at_least=0, at_most=1
    )
    """The box is filled with the model's mean colour."""
    mixup: float = setting(0.0, "α of Mixup; 0 for none.", at_least=0)
    """Parameter of the Beta distribution of the two images' shares."""
    cutmix: float = setting(0.0, "α of CutMix; 0 for none.", at_least=0)
    """Parameter of the Beta distribution of the box's area."""
    mixing: float = setting(1.0, "Probability that a batch is mixed.", at_least=0, at_most=1)
    """For probes: the probability that an image is mixed."""
    switch: float = setting(
        0.5, "Probability of CutMix where Mixup is on too.", at_least=0, at_most=1
    )
    """Otherwise Mixup is used."""
    smoothing: float = setting(
        0.0, "Share of the target that is spread over all classes.", at_least=0, below=1
    )
    """Applies to mixed targets too."""

    def __post_init__(self) -> None:
        check(self, "augmentation")
        area = self.resized
        refuse(
            "augmentation",
            (f"resized is two areas such as (0.08, 1.0) that rise, or None; got {area}",
             area is None or (len(area) == 2 and area[0] <= area[1])),
            ("randaugment is empty or such as rand-m9-n2-mstd1.0 (sections: m, n up to 9, p, mstd, "
             f"mmax, inc, tweights); got {self.randaugment!r}",
             not self.randaugment or bool(_POLICY.fullmatch(self.randaugment))),
        )  # fmt: skip

    @property
    def mixes(self) -> bool:
        """Whether images are mixed with others."""
        return self.mixing > 0 and (self.mixup > 0 or self.cutmix > 0)

    @property
    def soft(self) -> bool:
        """Whether targets are no longer plain labels."""
        return self.mixes or self.smoothing > 0

    def to_plain(self) -> dict[str, Any]:
        """The settings as plain values, for keys and protocols."""
        return {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self).items()}

    def view(
        self,
        image: np.ndarray,
        preprocessing: Preprocessing,
        *,
        seed: int,
        index: int,
        epoch: int = 0,
        stream: int = 0,
        channels: int = 3,
    ) -> Tensor:
        """One augmented image, float32 (C, H, W) in [0, 1].

        Args:
            image: The stored image, uint8 (H, W, 3).
            preprocessing: The preprocessing that the model expects.
            seed: Random seed, below 2³² like ``index`` and ``epoch``.
            index: Index of the image; the order in which images are read has no influence.
            epoch: Each epoch gives another view.
            stream: Distinguishes several views of one image in the same epoch.
            channels: 3, or 1 for grey.
        """
        from retinoscope.data import augmenting

        random = augmenting.generator(seed, index, stream, epoch)
        height, width = preprocessing.size
        crop = 0.0 if self.resized else self.crop
        rows, columns = round(crop * height), round(crop * width)
        down = int(random.integers(2 * rows + 1)) - rows
        right = int(random.integers(2 * columns + 1)) - columns
        mirrored = self.flip and random.random() < 0.5
        if not (self.resized or self.randaugment or self.erasing):
            pixels = augmenting.prepared(image, preprocessing, channels)
            return augmenting.floats(augmenting.moved(pixels, down, right, mirrored))
        with augmenting.reseeded(int(random.integers(_NUMBERS))):
            if self.resized:
                pixels = augmenting.randomly_resized(image, preprocessing, self.resized, channels)
            else:
                pixels = augmenting.prepared(image, preprocessing, channels)
            pixels = augmenting.moved(pixels, down, right, mirrored)
            if self.randaugment:
                pixels = augmenting.randomly_augmented(pixels, preprocessing, self.randaugment)
            seen = augmenting.floats(pixels)
            return (
                augmenting.randomly_erased(seen, preprocessing, self.erasing)
                if self.erasing
                else seen
            )

    def mix(
        self,
        images: Tensor,
        labels: Tensor,
        classes: int,
        *,
        seed: int,
        step: int,
        rank: int = 0,
    ) -> tuple[Tensor, Tensor]:
        """A batch (N, C, H, W) mixed with its own reverse, and its soft targets (N, K).

        The whole batch is mixed by the same method with the same share. In a batch of odd size,
        the first image is mixed with the second. The inputs are not modified. Without mixing and
        smoothing both are returned as they are; with smoothing alone, the images are.

        Args:
            images: Augmented images, as floats.
            labels: Labels of the images, int64 (N,).
            classes: Number of classes K.
            seed: Random seed, below 2³² like ``step`` and ``rank``.
            step: Number of the step; each step mixes differently.
            rank: Rank of the process, if several share a batch.
        """
        if not self.soft:
            return images, labels
        from torch.nn.functional import one_hot

        if not self.mixes:
            return images, self._smoothed(one_hot(labels, classes).float())
        from timm.data.mixup import Mixup

        from retinoscope.data.augmenting import generator, mixed_with_itself, reseeded

        mixer = Mixup(
            mixup_alpha=self.mixup,
            cutmix_alpha=self.cutmix,
            prob=self.mixing,
            switch_prob=self.switch,
            label_smoothing=self.smoothing,
            num_classes=classes,
        )
        with reseeded(int(generator(seed, step, _BATCH, rank).integers(_NUMBERS))):
            return mixed_with_itself(images, labels, mixer)

    def mixed(
        self,
        read: Callable[[int], np.ndarray],
        preprocessing: Preprocessing,
        *,
        seed: int,
        index: int,
        total: int,
        channels: int = 3,
    ) -> tuple[Tensor, int, float]:
        """An augmented and mixed image, the index of its partner, and the image's own share.

        The partner is drawn from the whole split, so that it does not depend on a batch.

        Args:
            read: Returns the stored image at an index, uint8 (H, W, 3).
            preprocessing: The preprocessing that the model expects.
            seed: Random seed, below 2³².
            index: Index of the image.
            total: Number of images.
            channels: 3, or 1 for grey.
        """
        from retinoscope.data.augmenting import generator, reseeded

        seen = self.view(read(index), preprocessing, seed=seed, index=index, channels=channels)
        random = generator(seed, index, _PARTNER)
        if not self.mixes or (self.mixing < 1 and random.random() >= self.mixing):
            return seen, index, 1.0
        cut = self.cutmix > 0 and (not self.mixup or random.random() < self.switch)
        alpha = self.cutmix if cut else self.mixup
        share = float(random.beta(alpha, alpha))
        partner = int(random.integers(total))
        other = self.view(
            read(partner), preprocessing, seed=seed, index=partner, stream=_PARTNER,
            channels=channels,
        )  # fmt: skip
        if not cut:
            return share * seen + (1 - share) * other, partner, share
        from timm.data.mixup import cutmix_bbox_and_lam

        with reseeded(int(random.integers(_NUMBERS))):
            (top, bottom, left, right), share = cutmix_bbox_and_lam(seen.shape, share)
        seen[:, top:bottom, left:right] = other[:, top:bottom, left:right]
        return seen, partner, float(share)

    def target(self, labels: tuple[int, int], share: float, outputs: int) -> Tensor:
        """The soft target (K,) of an image and its partner."""
        import torch
        from torch.nn.functional import one_hot

        own, others = one_hot(torch.tensor(labels), outputs).float()
        return self._smoothed(share * own + (1 - share) * others)

    def _smoothed(self, targets: Tensor) -> Tensor:
        return (1 - self.smoothing) * targets + self.smoothing / targets.shape[-1]
