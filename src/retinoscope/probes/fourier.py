"""How each unit changes high frequencies (Park & Kim, 2022, arXiv:2202.06709, figs 2a, 8).

The log amplitude of a unit's maps at each frequency, minus that at frequency 0, averaged over
channels and images. A unit that lowers it at high frequencies is a low-pass filter; the paper finds
that attention is one, and that convolutions and MLPs are the opposite.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from retinoscope.core.anatomy import Anatomy
from retinoscope.core.coverage import Claim, covered, measured_in
from retinoscope.core.probe import Needs, Partial
from retinoscope.core.result import Result, answer, axes
from retinoscope.core.settings import check, setting
from retinoscope.core.sight import Group, Sight
from retinoscope.core.unit import Unit

if TYPE_CHECKING:
    from torch import Tensor


@answer
class FourierResult(Result):
    """``log_amplitude[u, k]``: unit u at ``frequency[u, k]``, minus its value at frequency 0.

    Each unit has as many frequencies as its maps allow; the rest of a row is NaN. A step is a
    unit's curve minus that of its input, at the same frequency in radians per pixel of each map
    (NaN if the input has no such frequency); ``high_step`` compares the highest frequencies of
    both. If it is below 0, the unit is a low-pass filter. Errors are standard errors over images.
    Bins that are their own mirror image are corrected unless ``mirror`` is ``paper``.

    ``spectra`` are the two-dimensional log amplitudes of ``pictured`` units, averaged over channels
    and the first images of the split, and ``maps`` the feature map of the first image that varies
    most over positions, scaled to the range from 0 to 1.
    """

    probe: ClassVar[str] = "fourier"
    schema: ClassVar[int] = 2

    images: int
    frequency: np.ndarray = axes("unit", "frequency", unit="π rad/px", figure=False)
    log_amplitude: np.ndarray = axes(
        "unit", "frequency", unit="Δ log amplitude", x="frequency", error="log_amplitude_error",
        title="Relative log amplitude of each unit's maps, by frequency",
    )  # fmt: skip
    log_amplitude_error: np.ndarray = axes("unit", "frequency", unit="standard error", figure=False)
    high: np.ndarray = axes(
        "unit", unit="Δ log amplitude", error="high_error",
        title="Relative log amplitude at the highest frequency, by depth",
    )  # fmt: skip
    high_error: np.ndarray = axes("unit", unit="standard error", figure=False)
    high_step: np.ndarray = axes(
        "unit", unit="Δ log amplitude, output − input", error="high_step_error",
        title="Change of the highest frequency by each unit: below 0 it is a low-pass filter",
        changes="the highest frequency",
        claim=Claim("Park & Kim (2022)", lowers=("attention",), raises=("conv", "mlp")),
    )  # fmt: skip
    high_step_error: np.ndarray = axes("unit", unit="standard error", figure=False)
    step: np.ndarray = axes(
        "unit", "frequency", unit="Δ log amplitude, output − input", x="frequency",
        error="step_error", title="Change of each frequency by each unit", figure=False,
    )  # fmt: skip
    step_error: np.ndarray = axes("unit", "frequency", unit="standard error", figure=False)
    pictured: tuple[str, ...]
    """The stem and the last unit of each stage."""
    spectra: np.ndarray = axes(
        "picture", "vertical frequency", "horizontal frequency", unit="Δ log amplitude",
        draw="images", rows="pictured",
        title="Two-dimensional spectra: frequency 0 in the middle, π at the edges",
    )  # fmt: skip
    maps: np.ndarray = axes(
        "picture", "row", "column", unit="value (lowest 0, highest 1)", draw="images",
        rows="pictured", title="The feature map of the first image that varies most",
    )  # fmt: skip


@dataclass(frozen=True)
class Fourier:
    """Relative log amplitude of feature maps after every unit."""

    result: ClassVar[type[Result]] = FourierResult
    schema: ClassVar[int] = 3
    question: ClassVar[str] = "Which units amplify high frequencies, and which suppress them?"
    reading: ClassVar[str] = (
        "A steeply falling curve means smooth feature maps. If a unit's point is lower than the "
        "previous one, the unit has removed high frequencies: it is a low-pass filter. Park & Kim "
        "(2022) find that attention lowers the curve and that convolutions and MLPs raise it. "
        "White noise is flat above frequency 0 on maps of any size. The paper's curves "
        "(mirror=paper) are ½ ln 2 lower at π on even maps and the same elsewhere."
    )

    direction: Literal["diagonal", "radial"] = setting(
        "diagonal", "Along the diagonal of the spectrum, or averaged over rings."
    )
    bands: int | None = setting(
        None,
        "Interpolate all units to this many common frequencies from 0 to π. Default: each unit "
        "has the frequencies of its own map.",
        at_least=2,
    )
    axis: Literal["true", "paper"] = setting(
        "true",
        "True frequencies 2πk/H up to π; or as in the paper's code, which omits the highest "
        "frequency of even maps and labels the next one π.",
    )

    mirror: Literal["corrected", "paper"] = setting(
        "corrected",
        "Correct the bins that are their own mirror image (π on even maps), whose mean log "
        "amplitude is ½ ln 2 lower than that of others of equal power; or keep the paper's values.",
    )

    pictures: int = setting(
        4, "Number of images over which two-dimensional spectra are averaged; 0 for none.",
        at_least=0,
    )  # fmt: skip

    def __post_init__(self) -> None:
        check(self, "fourier")

    @property
    def needs(self) -> Needs:
        """Images, with or without labels."""
        return Needs()

    def watch(self, sight: Sight) -> dict[str, Tensor]:
        """Each image's curve (N, K), minus its value at frequency 0; pictures of the first."""
        from retinoscope.numerics.pictures import liveliest, spectra

        few = [place for place, index in enumerate(sight.indices) if index < self.pictures]
        kept = {"curve": self._curve(sight)}
        if self.pictures:
            kept |= {"spectrum": spectra(sight.maps[few]), "map": liveliest(sight.maps[few])}
        return kept

    def _curve(self, sight: Sight) -> Tensor:
        from retinoscope.numerics.fourier import log_amplitudes, mirror_correction

        log = log_amplitudes(sight.maps, self.direction)
        if self.mirror == "corrected":
            height, width = sight.maps.shape[-2:]
            log += log.new_tensor(mirror_correction(height, width, self.direction))
        return log - log[:, :1]

    def gather(self, group: Group) -> Partial:
        """The means of each unit's curve and step over the images of a group."""
        from retinoscope.numerics.running import Mean

        partial: dict[str, Any] = {}
        before: tuple[np.ndarray, np.ndarray] | None = None
        for unit in group.anatomy:
            if unit.name not in group.rows or min(_resolution(unit)) < 2:
                before = None
                continue
            frequency, curves = self._curves(unit, group.rows[unit.name]["curve"])
            step = curves - (_interpolated(frequency, *before) if before else float("nan"))
            high = _highest(curves) - (_highest(before[1]) if before else float("nan"))
            partial |= Mean.of(curves).to_arrays(f"{unit.name}/level")
            partial |= Mean.of(step).to_arrays(f"{unit.name}/step")
            partial |= Mean.of(high).to_arrays(f"{unit.name}/high")
            before = frequency, curves
        if any(index < self.pictures for index in group.indices):
            partial |= _pictures(group)
        return partial

    def combine(self, anatomy: Anatomy, partials: Sequence[Partial]) -> FourierResult:
        """Means over all images, on the true frequency axis of each unit."""
        from retinoscope.numerics.ragged import padded
        from retinoscope.numerics.running import Mean

        measured = measured_in(anatomy, partials)
        level, step, high = (
            [Mean.merge_arrays(partials, f"{unit.name}/{what}") for unit in measured]
            for what in ("level", "step", "high")
        )
        tops = [_top(mean.value) for mean in level]
        pictured, spectra, maps = _pictured(anatomy, partials)
        return FourierResult(
            coverage=covered(anatomy, {unit.name for unit in measured}),
            images=max((mean.count for mean in level), default=0),
            frequency=padded(self._frequencies(unit) / np.pi for unit in measured),
            log_amplitude=padded(mean.value for mean in level),
            log_amplitude_error=padded(mean.error for mean in level),
            high=np.array([mean.value[top] for mean, top in zip(level, tops, strict=True)]),
            high_error=np.array([mean.error[top] for mean, top in zip(level, tops, strict=True)]),
            high_step=np.array([mean.value for mean in high]),
            high_step_error=np.array([mean.error for mean in high]),
            step=padded(mean.value for mean in step),
            step_error=padded(mean.error for mean in step),
            pictured=pictured,
            spectra=spectra,
            maps=maps,
        )

    def _frequencies(self, unit: Unit) -> np.ndarray:
        """The frequencies of a unit's curve, in radians per pixel."""
        from retinoscope.numerics.fourier import frequencies

        own = self._own(unit)
        if self.bands is None:
            return own
        common = np.linspace(0, np.pi, self.bands)
        return np.where(common <= frequencies(*_resolution(unit))[-1] + 1e-9, common, np.nan)

    def _own(self, unit: Unit) -> np.ndarray:
        from retinoscope.numerics.fourier import frequencies

        own = frequencies(*_resolution(unit))
        if self.axis == "true":
            return own
        kept = (min(_resolution(unit)) + 1) // 2
        return np.linspace(0, np.pi, kept) if kept > 1 else np.zeros(1)

    def _curves(self, unit: Unit, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The frequencies, and each image's curve at them."""
        own = self._own(unit)
        rows = rows[:, : len(own)]
        if self.bands is None:
            return own, rows
        frequency = self._frequencies(unit)
        return frequency, _interpolated(frequency, own, rows)


def _pictures(group: Group) -> dict[str, np.ndarray]:
    """The mean spectrum and the first map of the stem and of the last unit of each stage."""
    chosen = {unit.stage: unit.name for unit in group.anatomy if unit.name in group.rows}
    rows = {name: group.rows[name] for name in chosen.values()}
    return {f"{name}/spectrum": row["spectrum"].mean(0) for name, row in rows.items()} | {
        f"{name}/map": row["map"][0] for name, row in rows.items()
    }


def _pictured(
    anatomy: Anatomy, partials: Sequence[Partial]
) -> tuple[tuple[str, ...], np.ndarray, np.ndarray]:
    """The names of the pictured units, their spectra and their maps, at one size."""
    from retinoscope.numerics.pictures import at_one_size

    found = {key: array for partial in partials for key, array in partial.items()}
    names = tuple(unit.name for unit in anatomy if f"{unit.name}/spectrum" in found)
    if not names:
        return (), np.empty((0, 0, 0)), np.empty((0, 0, 0))
    spectra, maps = (
        at_one_size([found[f"{name}/{what}"] for name in names]).astype(np.float32)
        for what in ("spectrum", "map")
    )
    return names, spectra, maps


def _resolution(unit: Unit) -> tuple[int, int]:
    assert unit.grid is not None  # only units with a grid are watched
    return unit.grid.resolution


def _interpolated(at: np.ndarray, frequency: np.ndarray, curves: np.ndarray) -> np.ndarray:
    """Curves (N, K) at other frequencies; NaN beyond the highest."""
    known = np.isfinite(frequency)
    frequency, curves = frequency[known], curves[:, known]
    if len(frequency) < 2:
        return np.where(at == 0, curves[:, :1], np.nan) if len(frequency) else curves
    place = np.clip(np.searchsorted(frequency, at, side="right") - 1, 0, len(frequency) - 2)
    share = (at - frequency[place]) / (frequency[place + 1] - frequency[place])
    values = curves[:, place] * (1 - share) + curves[:, place + 1] * share
    return np.where(at <= frequency[-1] + 1e-9, values, np.nan)


def _highest(curves: np.ndarray) -> np.ndarray:
    """The value of each image's curve at its highest known frequency."""
    return curves[:, _top(curves)]


def _top(curves: np.ndarray) -> int:
    """The last index at which any of the curves (…, K) is not NaN."""
    known = np.flatnonzero(np.isfinite(np.atleast_2d(curves)).any(0))
    return int(known[-1]) if known.size else 0
