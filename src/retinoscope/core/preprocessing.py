"""How a model wants its images: size, cut and normalisation, as plain data."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from retinoscope.core.errors import WrongInput

Interpolation = Literal["nearest", "bilinear", "bicubic"]
CropMode = Literal["center", "squash", "border"]


@dataclass(frozen=True)
class Preprocessing:
    """From a photo of any size to the model's input; images stay in [0, 1] until normalised."""

    size: tuple[int, int] = (224, 224)
    """Height and width."""
    crop_pct: float = 1.0
    """Which share of the shorter side the cut keeps."""
    crop_mode: CropMode = "center"
    """Cut out the centre, squash the whole image, or keep all of it and pad the border."""
    interpolation: Interpolation = "bicubic"
    mean: tuple[float, ...] = (0.485, 0.456, 0.406)
    std: tuple[float, ...] = (0.229, 0.224, 0.225)

    def __post_init__(self) -> None:
        for name, kinds in (("crop_mode", CropMode), ("interpolation", Interpolation)):
            if getattr(self, name) not in get_args(kinds):
                raise WrongInput(
                    f"{name} is one of {', '.join(get_args(kinds))}; got {getattr(self, name)!r}."
                )
        if not 0 < self.crop_pct <= 1 or min(self.size) < 1:
            raise WrongInput(
                "crop_pct is a share of the shorter side, above 0 and up to 1, and a size has "
                f"positive sides; got {self.crop_pct} and {self.size}."
            )

    def to_plain(self) -> dict[str, Any]:
        """As plain values, for keys and protocols."""
        return {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self).items()}
