"""The curvature of the loss on mini-batches (Park & Kim, 2022, arXiv:2202.06709, figs 1c, 4).

Algorithm 1 of the paper: for each mini-batch of training images, augmented as in training, compute
the eigenvalues of largest magnitude of the Hessian of negative log-likelihood plus weight decay.
Over all mini-batches, the proportion of negative ones (NEP) measures how far the loss is from
convex, and the mean of the positive ones (APE) how sharp it is. The paper uses power iteration like
PyHessian (Yao et al., 2020, arXiv:1912.07145); here each eigenvalue comes with its residual, which
also is the stopping criterion.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from retinoscope.core import wording
from retinoscope.core.anatomy import Anatomy
from retinoscope.core.context import Context
from retinoscope.core.coverage import covered
from retinoscope.core.errors import NotApplicable, RetinoscopeError
from retinoscope.core.probe import IMAGES, Images, Needs, Partial, Piece, labelled_images
from retinoscope.core.result import Result, answer, axes
from retinoscope.core.settings import MAX_SEED, check, refuse, setting

if TYPE_CHECKING:
    from retinoscope.core.subject import Batch, Subject
    from retinoscope.core.unit import Unit
    from retinoscope.geometry.curvature import Curvature
    from retinoscope.numerics.krylov import Lanczos

_TYPICAL = 20
"""The number of products that a mini-batch usually takes, for time estimates."""


@answer
class HessianResult(Result):
    """``eigenvalues[b, i]``: the i-th of mini-batch b, of the loss with its weight decay.

    ``residuals`` are ‖Hv − λv‖. NEP and APE refer to the k eigenvalues of largest magnitude of all
    mini-batches together; with only one end of the spectrum these are unknown, and both are None.
    The densities below and above 0 are those of all values in ``eigenvalues``, and integrate to
    their fractions. ``spectrum`` is the density of *all* eigenvalues of the Hessian, by Lanczos
    quadrature from ``nodes`` and their ``node_weights``. Blocks are the submatrices of the Hessian
    for the parameters of a single unit, stage or kind. Traces exclude weight decay, which adds
    its value to each eigenvalue. Rows are padded with NaN. Intervals contain 95 % of bootstrap
    samples over mini-batches. To reproduce a row by hand, read the images ``image_index[b]`` of
    ``subject.split(probe.needs)``; these rows are padded with −1.
    """

    probe: ClassVar[str] = "hessian"
    schema: ClassVar[int] = 2

    images: int
    parameters: int
    left_out: tuple[str, ...]
    """Parameters without a gradient."""
    image_names: tuple[tuple[str, ...], ...]
    """The names of the images of each mini-batch: files, or rows of a table."""
    weight_decay: float
    nll: float
    """Mean over the images of all mini-batches, without weight decay."""
    products: int
    """Total number of Hessian-vector products."""
    unfinished: int
    """Eigenvalues that had not converged when the maximum number of products was reached."""
    nep: float | None
    """Proportion of negative eigenvalues; None if only one end of the spectrum was requested."""
    nep_interval: tuple[float, float] | None
    ape: float | None
    """Mean of the positive eigenvalues; None if there are none, or in the same case as ``nep``."""
    ape_interval: tuple[float, float] | None
    trace: float
    trace_error: float | None
    blocks: tuple[str, ...]
    block_parameters: tuple[int, ...]
    image_index: np.ndarray = axes("mini-batch", "image", unit="index in the split", figure=False)
    batch_nll: np.ndarray = axes("mini-batch", unit="NLL (nats)", figure=False)
    eigenvalues: np.ndarray = axes("mini-batch", "index", unit="λ", figure=False)
    residuals: np.ndarray = axes("mini-batch", "index", unit="‖Hv − λv‖", figure=False)
    negative_at: np.ndarray = axes("eigenvalue", unit="λ", figure=False)
    negative: np.ndarray = axes(
        "eigenvalue", unit="density", x="negative_at",
        title="Negative eigenvalues of mini-batches: the larger the area, the further from convex",
    )  # fmt: skip
    positive_at: np.ndarray = axes("eigenvalue", unit="λ", figure=False)
    positive: np.ndarray = axes(
        "eigenvalue", unit="density", x="positive_at",
        title="Positive eigenvalues of mini-batches: the further right, the sharper",
    )  # fmt: skip
    spectrum_at: np.ndarray = axes("eigenvalue", unit="λ", figure=False)
    spectrum: np.ndarray = axes(
        "eigenvalue", unit="log₁₀ density", x="spectrum_at",
        title="Density of the whole spectrum, by Lanczos quadrature",
    )  # fmt: skip
    nodes: np.ndarray = axes("mini-batch", "node", unit="λ", figure=False)
    node_weights: np.ndarray = axes("mini-batch", "node", unit="share", figure=False)
    unit_trace: np.ndarray = axes(
        "unit", unit="trace of the unit's block", error="unit_trace_error",
        title="Curvature of the NLL with respect to each unit's own parameters, by depth",
    )  # fmt: skip
    unit_trace_error: np.ndarray = axes("unit", unit="standard error", figure=False)
    block_eigenvalues: np.ndarray = axes("block", "mini-batch", "index", unit="λ", figure=False)
    block_sharpness: np.ndarray = axes(
        "block", unit="largest |λ|, mean over mini-batches", rows="blocks",
        error="block_sharpness_error", title="Which part of the network is sharp",
    )  # fmt: skip
    block_sharpness_error: np.ndarray = axes("block", unit="standard error", figure=False)
    block_nep: np.ndarray = axes(
        "block", unit="proportion of negative eigenvalues", rows="blocks",
        title="Which part of the network is not convex",
    )  # fmt: skip

    def findings(self) -> list[str]:
        """Signs and sizes of the eigenvalues, the trace, and omitted parameters."""
        found = wording.count(int(np.isfinite(self.eigenvalues).sum()), "eigenvalue")
        batches = wording.count(len(self.eigenvalues), "mini-batch", "es")
        least, most = np.nanmin(self.eigenvalues), np.nanmax(self.eigenvalues)
        error = ""
        if self.trace_error is not None:
            error = f" ± {wording.number(self.trace_error)} (standard error)"
        said = [
            *self._signs(),
            f"found: {found} of {batches}, from {wording.number(least)} to "
            f"{wording.number(most)}, with "
            f"{wording.count(self.products, 'Hessian-vector product')}, at "
            f"{wording.nll_words(self.nll)}",
            f"the trace of the NLL's Hessian is {wording.number(self.trace)}{error}, at "
            f"{wording.nll_words(self.nll)}",
            wording.weight_decay_words(self.weight_decay),
        ]
        if self.left_out:
            said.append(
                f"{wording.count(len(self.left_out), 'tensor')} without a gradient omitted: "
                f"{wording.listed(self.left_out)}"
            )
        if self.unfinished:
            said.append(
                f"{self.unfinished} of the eigenvalues did not converge within the maximum number "
                "of products: increase it with products=…"
            )
        return said

    def _signs(self) -> list[str]:
        if self.nep is None:
            return ["only one end of the spectrum was computed, so NEP and APE are not defined"]
        return [
            f"{wording.percent(self.nep)} of the eigenvalues of largest magnitude are negative (NEP"
            f"{wording.interval(self.nep_interval, wording.percent)}), at "
            f"{wording.nll_words(self.nll)}",
            "none of them is positive, so their mean (APE) is not defined"
            if self.ape is None
            else f"the positive ones are {wording.number(self.ape)} on average (APE"
            f"{wording.interval(self.ape_interval)}), at {wording.nll_words(self.nll)}",
        ]


@dataclass(frozen=True)
class Hessian:
    """Eigenvalues of the Hessian on mini-batches, for the whole network and for blocks of it."""

    result: ClassVar[type[Result]] = HessianResult
    schema: ClassVar[int] = 2
    question: ClassVar[str] = (
        "Is the loss flat or sharp, convex or not, and which part makes it so?"
    )
    reading: ClassVar[str] = (
        "For each mini-batch, the eigenvalues of largest magnitude of its Hessian are computed. "
        "The more of them are negative, the further the loss is from convex; the larger the "
        "positive ones, the sharper it is. Park & Kim (2022) find that ViTs are flat but not "
        "convex early in training and that convolutions are sharp; they say that both can harm "
        "training. The density of the whole spectrum shows the remaining eigenvalues: most are "
        "near 0. The trace of a unit's block shows which part of the network contributes to the "
        "curvature."
    )

    k: int = setting(
        5, "Eigenvalues per mini-batch; with which=both, this many at each end.", at_least=1
    )
    batch: int = setting(16, "Images per mini-batch.", at_least=2)
    batches: int = setting(16, "Maximum number of mini-batches; 0 uses all images.", at_least=0)
    images: Images = setting("augmented", IMAGES)
    which: Literal["magnitude", "positive", "negative", "both"] = setting(
        "magnitude",
        "Eigenvalues of largest magnitude, at one end of the spectrum, or at both ends.",
    )
    blocks: Literal["none", "kind", "stage", "unit"] = setting(
        "none", "Also compute the eigenvalues of the block of each kind, stage or unit."
    )
    weight_decay: float | None = setting(
        None,
        "Weight decay, which is added to every eigenvalue. Default: that of the model's training.",
        at_least=0,
    )
    tolerance: float = setting(
        1e-3, "Relative residual at which an eigenvalue is considered converged.", above=0, below=1
    )
    products: int = setting(
        200, "Maximum number of Hessian-vector products per mini-batch and block.", at_least=1
    )
    steps: int = setting(
        0,
        "Minimum number of Lanczos steps; more steps give a finer density of the whole spectrum.",
        at_least=0,
    )
    again: bool = setting(
        False, 
            "Search again for eigenvalues that the first search missed; needs about a third more "
            "products."
    )  # fmt: skip
    seed: int = setting(
        0,
        "Random seed for mini-batch selection and the Lanczos start vector.",
        at_least=0,
        at_most=MAX_SEED,
    )

    def __post_init__(self) -> None:
        check(self, "hessian")
        refuse(
            "hessian",
            (
                f"products must be larger than k; got {self.products}. Use at least {self.k + 1}",
                self.products > self.k,
            ),
            (
                f"steps must be at most products; got {self.steps}. Use up to {self.products}",
                self.steps <= self.products,
            ),
        )

    @property
    def needs(self) -> Needs:
        """Labelled images, by default from the training split."""
        return labelled_images(self.images)

    def pieces(self, subject: Subject) -> Sequence[Piece]:
        """One piece per mini-batch."""
        there = len(subject.split(self.needs))
        whole = there // self.batch
        if not whole:
            raise NotApplicable(
                f"needs {self.batch} images for a mini-batch; there are {there}. Use more images "
                "with --images, or smaller mini-batches with --probe "
                f"hessian:batch={max(there, 2)}"
            )
        count = min(self.batches or whole, whole)
        return [Piece(f"{number:05d}", {"number": number}) for number in range(count)]

    def seconds(self, subject: Subject, context: Context) -> float:
        """The estimate from one product on the first mini-batch."""
        from retinoscope.geometry.blocks import owners
        from retinoscope.geometry.curvature import Curvature

        start = time.monotonic()
        batch = self._batch(subject, 0)
        curvature = Curvature(subject.backbone, subject.batch_loss, batch, context.say)
        built = time.monotonic()
        curvature.product(curvature.like)
        product = time.monotonic() - built
        searches = 1 + len(self._groups(owners(subject, curvature.learned)))
        return built - start + searches * _TYPICAL * product

    def measure(self, subject: Subject, piece: Piece, context: Context) -> Partial:
        """Eigenvalues, quadrature and traces of one mini-batch."""
        from retinoscope.geometry.blocks import owners, traces
        from retinoscope.geometry.curvature import Curvature
        from retinoscope.geometry.sample import seed_of

        number = piece.what["number"]
        if number == 0:
            for text in subject.assumptions(self.needs):
                context.say(f"assumed: {text}")
        batch = self._batch(subject, number)
        curvature = Curvature(subject.backbone, subject.batch_loss, batch, context.say)
        if self.k > curvature.learned.size:
            raise NotApplicable(
                f"needs more parameters than eigenvalues; {subject.name} has "
                f"{curvature.learned.size} parameters with a gradient, and k is {self.k}"
            )
        search = self._search(subject)
        found = search(curvature.product, curvature.like, seed_of(self.seed, number, 0))
        units = owners(subject, curvature.learned)
        shares = traces(found, curvature.learned, units)
        nodes, weights = found.spectrum()
        return {
            "number": np.array(number),
            "values": self._padded(found.values),
            "residuals": self._padded(found.residuals),
            "unfinished": np.array(int((~found.converged).sum())),
            "products": np.array(found.products),
            "decay": np.array(search.shift),
            "nll": np.array(curvature.loss),
            "images": np.array(curvature.images),
            "indices": np.array(batch.indices),
            "names": np.array(subject.split(self.needs).names(batch.indices), dtype=np.str_),
            "parameters": np.array(curvature.learned.size),
            "left_out": np.array(curvature.learned.left_out, dtype=np.str_),
            "nodes": nodes,
            "weights": weights,
            "units": np.array(list(shares), dtype=np.str_),
            "traces": np.array(list(shares.values())),
            **self._blocks(subject, curvature, units, number),
        }

    def _batch(self, subject: Subject, number: int) -> Batch:
        """A mini-batch of randomly selected images."""
        from retinoscope.geometry.sample import shuffled

        split = subject.split(self.needs)
        order = shuffled(len(split), self.seed)
        indices = order[number * self.batch : (number + 1) * self.batch]
        (batch,) = split.batches(indices, self.batch, subject.workers)
        if len(batch.images) < 2:
            raise RetinoscopeError(
                f"Mini-batch {number} has only {len(batch.images)} readable images; the first "
                f"error: {batch.set_aside[0].reason}"
            )
        return batch

    def _search(self, subject: Subject, limit: int | None = None) -> Lanczos:
        from retinoscope.numerics.krylov import Lanczos

        return Lanczos(
            k=min(self.k, limit or self.k), which=self.which, tolerance=self.tolerance,
            products=self.products, steps=self.steps, shift=self._decay(subject.weight_decay),
            again=self.again,
        )  # fmt: skip

    def _decay(self, of_training: float) -> float:
        return of_training if self.weight_decay is None else self.weight_decay

    def _padded(self, values: np.ndarray) -> np.ndarray:
        """Pad a row to the common length."""
        row = np.full(self.k * (2 if self.which == "both" else 1), np.nan)
        row[: len(values)] = values
        return row

    def _groups(self, units: Sequence[Unit]) -> dict[str, list[int]]:
        """The indices of the parameters of each requested block."""
        from retinoscope.geometry.blocks import blocks

        return {} if self.blocks == "none" else blocks(units, self.blocks)

    def _blocks(
        self, subject: Subject, curvature: Curvature, units: Sequence[Unit], number: int
    ) -> dict[str, Any]:
        """The eigenvalues of the diagonal blocks of the Hessian for groups of parameters."""
        from retinoscope.geometry.sample import seed_of

        groups = self._groups(units)
        values, sizes, products, unfinished = [], [], 0, 0
        for index, members in enumerate(groups.values()):
            size = sum(curvature.learned.tensors[member].numel() for member in members)
            found = self._search(subject, size)(
                lambda vector, members=members: curvature.product(vector, members),
                curvature.like[:size],
                seed_of(self.seed, number, index + 1),
            )
            values.append(self._padded(found.values))
            sizes.append(size)
            products += found.products
            unfinished += int((~found.converged).sum())
        return {
            "block_names": np.array(list(groups), dtype=np.str_),
            "block_sizes": np.array(sizes, dtype=np.int64),
            "block_values": np.array(values).reshape(len(groups), -1 if groups else 0),
            "block_products": np.array(products),
            "block_unfinished": np.array(unfinished),
        }

    def combine(self, anatomy: Anatomy, partials: Sequence[Partial]) -> HessianResult:
        """Proportions, means and densities over all mini-batches."""
        from retinoscope.numerics.eigenvalue_sample import (
            largest,
            mean_fields,
            negative_share,
            sample_densities,
            sample_facts,
            whole_density,
        )
        from retinoscope.numerics.ragged import padded

        partials = sorted(partials, key=lambda partial: int(partial["number"]))
        known = self.which in ("magnitude", "both")
        decay = float(partials[0]["decay"])
        images = np.array([int(p["images"]) for p in partials])
        nodes = padded([p["nodes"] for p in partials]) + decay
        weights = padded([p["weights"] for p in partials])
        names = partials[0]["units"].tolist()
        traces = np.stack([p["traces"] for p in partials])
        values = np.stack([p["values"] for p in partials]) + decay
        blocks = np.stack([p["block_values"] for p in partials], axis=1) + decay
        return HessianResult(
            coverage=covered(anatomy, names, "it has no parameters of its own"),
            images=int(images.sum()),
            parameters=int(partials[0]["parameters"]),
            left_out=tuple(partials[0]["left_out"].tolist()),
            weight_decay=decay,
            image_names=tuple(tuple(p["names"].tolist()) for p in partials),
            image_index=_rows([p["indices"] for p in partials]),
            batch_nll=np.array([float(p["nll"]) for p in partials]),
            nll=float(np.average([float(p["nll"]) for p in partials], weights=images)),
            products=sum(int(p["products"]) + int(p["block_products"]) for p in partials),
            unfinished=sum(int(p["unfinished"]) + int(p["block_unfinished"]) for p in partials),
            **sample_facts(largest(values, self.k), self.seed, known),
            **sample_densities(values),
            **whole_density(nodes, weights),
            **mean_fields("trace", traces.sum(1)),
            **mean_fields("unit_trace", _in_order(anatomy, names, traces)),
            blocks=tuple(partials[0]["block_names"].tolist()),
            block_parameters=tuple(partials[0]["block_sizes"].tolist()),
            eigenvalues=values,
            residuals=np.stack([p["residuals"] for p in partials]),
            nodes=nodes,
            node_weights=weights,
            block_eigenvalues=blocks,
            **mean_fields("block_sharpness", np.nanmax(np.abs(blocks), axis=2, initial=0).T),
            block_nep=np.where(known, negative_share(largest(blocks, self.k)), np.nan),
        )


def _rows(indices: Sequence[np.ndarray]) -> np.ndarray:
    """Rows of indices, padded with −1."""
    rows = np.full((len(indices), max(map(len, indices))), -1)
    for row, own in zip(rows, indices, strict=True):
        row[: len(own)] = own
    return rows


def _in_order(anatomy: Anatomy, names: Sequence[str], traces: np.ndarray) -> np.ndarray:
    """The columns of traces in the order of the units."""
    return traces[:, [names.index(unit.name) for unit in anatomy if unit.name in names]]
