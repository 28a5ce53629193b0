"""How a model expects its images: size, crop and normalisation, as plain data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from numbers import Integral
from typing import Any, Literal, get_args

from retinoscope.core.errors import WrongInput

Interpolation = Literal["nearest", "bilinear", "bicubic"]
CropMode = Literal["center", "squash", "border"]
Size = int | tuple[int, int]
"""An image size in pixels: one number for a square, or height and width."""


def image_size(size: Any) -> tuple[int, int]:
    """Height and width of an image size; a single number means a square.

    Example:
        >>> image_size(32), image_size((224, 160))
        ((32, 32), (224, 160))
    """
    sides = size if isinstance(size, Sequence) else (size, size)
    whole = all(isinstance(side, Integral) and not isinstance(side, bool) for side in sides)
    if isinstance(size, str) or len(sides) != 2 or not whole or min(sides) < 1:
        raise WrongInput(
            f"{size!r} is not an image size. Height and width are integers of at least 1 pixel: "
            "--size 224 or --size 224x160 (in Python size=224 or size=(224, 160))."
        )
    return int(sides[0]), int(sides[1])


@dataclass(frozen=True)
class Preprocessing:
    """Maps a photo of any size to the model's input; pixels stay in [0, 1] until normalised."""

    size: tuple[int, int] = (224, 224)
    """Height and width."""
    crop_pct: float = 1.0
    """The fraction of the shorter side that the crop keeps."""
    crop_mode: CropMode = "center"
    """Crop the centre, squash the whole image, or keep all of it and pad the border."""
    interpolation: Interpolation = "bicubic"
    mean: tuple[float, ...] = (0.485, 0.456, 0.406)
    std: tuple[float, ...] = (0.229, 0.224, 0.225)

    def __post_init__(self) -> None:
        for name, kinds in (("crop_mode", CropMode), ("interpolation", Interpolation)):
            if getattr(self, name) not in get_args(kinds):
                raise WrongInput(
                    f"{name} must be one of {', '.join(get_args(kinds))}; got "
                    f"{getattr(self, name)!r}."
                )
        object.__setattr__(self, "size", image_size(self.size))
        if not 0 < self.crop_pct <= 1:
            raise WrongInput(
                "--crop-pct (in Python crop_pct=…) is a fraction of the shorter side and must be "
                f"above 0 and at most 1; got {self.crop_pct}."
            )

    def to_plain(self) -> dict[str, Any]:
        """As plain values, for keys and protocols."""
        return {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self).items()}
