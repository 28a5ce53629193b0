"""Eigenvalues of the Hessian as in figures 1 and 4 of Park & Kim (2022, arXiv:2202.06709)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matplotlib.axes import Axes
from matplotlib.figure import Figure

if TYPE_CHECKING:
    from retinoscope.probes.hessian import HessianResult

_NEGATIVE, _POSITIVE = "#c2571a", "#1f4e79"


def plot(result: HessianResult, ax: Axes | None = None) -> Axes:
    """The density of the eigenvalues found, in one colour below 0 and in another above."""
    ax = ax or Figure(figsize=(4, 3), layout="constrained").add_subplot()
    for side, colour in (("negative", _NEGATIVE), ("positive", _POSITIVE)):
        places, density = getattr(result, f"{side}_at"), getattr(result, side)
        if density.size:
            ax.fill_between(places, density, alpha=0.25, color=colour, linewidth=0)
            ax.plot(places, density, color=colour, label=side)
    ax.axvline(0, color="#666666", linewidth=0.8)
    ax.set(xlabel="eigenvalue (λ)", ylabel="density")
    ax.set_ylim(bottom=0)
    if ax.get_legend_handles_labels()[0]:
        ax.legend(frameon=False)
    return ax


def plot_spectrum(result: HessianResult, ax: Axes | None = None) -> Axes:
    """The density of all eigenvalues, by Lanczos quadrature."""
    ax = ax or Figure(figsize=(4, 3), layout="constrained").add_subplot()
    ax.plot(result.spectrum_at, result.spectrum, color=_POSITIVE)
    ax.axvline(0, color="#666666", linewidth=0.8)
    ax.set(xlabel="eigenvalue (λ)", ylabel="log₁₀ density")
    return ax


def plot_blocks(result: HessianResult, ax: Axes | None = None) -> Axes:
    """How sharp each part of the network is, in the order given; two standard errors around."""
    if ax is None:
        size = (4, max(2.0, 0.8 + 0.2 * len(result.blocks)))
        ax = Figure(figsize=size, layout="constrained").add_subplot()
    places = range(len(result.blocks))
    ax.barh(
        places, result.block_sharpness, xerr=2 * result.block_sharpness_error, color="#7fa3c7",
        error_kw={"linewidth": 0.8},
    )  # fmt: skip
    ax.set_yticks(places, labels=result.blocks)
    ax.invert_yaxis()
    ax.set(xlabel="largest |λ|, mean over mini-batches")
    return ax
