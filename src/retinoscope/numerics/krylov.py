"""Eigenvalues of a symmetric matrix of which only products with vectors can be had.

Lanczos's method with full reorthogonalisation and thick restarts (Wu & Simon, 2000). A value is
taken for found when its residual says so, never because it has stopped changing: that is how power
iteration comes to return wrong values without a word. The same products give the density of the
whole spectrum (Golub & Welsch, 1969; Ghorbani et al., 2019, arXiv:1901.10159).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

Which = Literal["magnitude", "positive", "negative", "both"]
Product = Callable[[Tensor], Tensor]

_BASIS_BYTES = 2 << 30
"""Memory that the basis may take before it is restarted."""
_NOISE = 64.0
"""Residuals below so many times the precision of the largest value cannot be told from 0."""
_LITTLE = 1e-2
"""What is left of a product, as a share of the largest value, that is orthogonalised once more."""
_GROWTH = 10.0
"""By how many residuals a value may still grow; eigenvectors that a space hardly holds do that."""
_SAME, _CLOSE = 1e-2, 15.0
"""Tolerances, of the largest value and of their own, within which two may hide a third."""
_ROUGH = 0.1
"""Residual, as a share of a value, at which it is known well enough to be passed over."""
_ALARM = 3.09
"""Normal quantile of 0.999: how surprising the start must be before copies are looked for."""


@dataclass(frozen=True)
class Eigenpairs:
    """Eigenvalues of one end or both, each with its residual, and a quadrature of the rest."""

    values: np.ndarray
    """float64 (k,), from the end inwards; of both ends, the positive one first."""
    residuals: np.ndarray
    """‖Av − λv‖ of each."""
    converged: np.ndarray
    """bool (k,): whether the residual bounds the error as asked."""
    vectors: Tensor
    """(k, n)."""
    products: int
    start: Tensor
    """What the search began with, (n,), of length 1."""
    image: Tensor
    """The matrix times ``start``."""
    nodes: np.ndarray
    """Of the quadrature that the start gives: Σ weight · f(node) estimates tr f(A) / n."""
    weights: np.ndarray
    closed: bool
    """Whether the matrix mapped the space of the search into itself, so that copies are likely."""
    noise: float
    """Values of this size cannot be told from 0, and are 0."""

    def spectrum(self) -> tuple[np.ndarray, np.ndarray]:
        """A quadrature of the whole spectrum that knows better than its start.

        Each eigenvalue that was found is one of n, whatever share of it the start has; the other
        nodes stand for the rest.
        """
        size = len(self.start)
        found, vectors = self.values[self.converged], self.vectors[torch.from_numpy(self.converged)]
        weights = self.weights.copy()
        for value, share in zip(found, (vectors @ self.start).square().tolist(), strict=True):
            nearest = np.abs(self.nodes - value).argmin()
            weights[nearest] -= min(weights[nearest], share)
        left = 1 - len(found) / size
        if left and weights.sum() <= len(weights) * np.finfo(np.float64).eps:
            return self.nodes, self.weights  # the start has nothing of the rest
        weights *= left / (weights.sum() or 1.0)
        nodes = np.concatenate([found, self.nodes])
        weights = np.concatenate([np.full(len(found), 1 / size), weights])
        order = np.argsort(nodes, kind="stable")
        return nodes[order], weights[order]


@dataclass(frozen=True)
class Lanczos:
    """The search for the eigenvalues at one end of a symmetric matrix, or at both.

    A value θ with residual r is off by at most r; by about r² over its distance to the others,
    which is far less, but a neighbour that no value stands for yet can make that untrue. So it is
    found when r is below ``tolerance`` · |θ + shift| and the next value, at either end, is known or
    too small. What a start has next to nothing of is still missed, once in some hundred searches,
    and it cannot tell copies of an eigenvalue apart. So the search is repeated beside what was
    found where two values are close, where the start has more of them than of single ones, or
    where it ends in a space that the matrix maps into itself; a few copies can still pass for one.
    ``again`` repeats it always, until nothing new comes.

    Example:
        >>> matrix = torch.diag(torch.tensor([10.0, -9.9, 5, -4, 3, -2], dtype=torch.float64))
        >>> found = Lanczos(k=3)(lambda v: matrix @ v, torch.zeros(6, dtype=torch.float64), seed=0)
        >>> found.values.round(6).tolist()
        [10.0, -9.9, 5.0]
    """

    k: int = 5
    """How many; of both ends, of each."""
    which: Which = "magnitude"
    """Of largest magnitude, the most positive, the most negative, or both of these."""
    tolerance: float = 1e-3
    """Largest residual, as a share of the value: a bound of its relative error."""
    products: int = 100
    """The search ends after so many, whatever has been found."""
    steps: int = 0
    """At least so many, for a finer quadrature."""
    shift: float = 0.0
    """Added to eigenvalues where their magnitude counts."""
    basis: int | None = None
    """Vectors that are kept at once; as memory allows if None."""
    again: bool = False
    """Whether to look beside what was found in any case, from another start."""

    def __call__(self, product: Product, like: Tensor, seed: int) -> Eigenpairs:
        """The eigenvalues of the matrix that ``product`` multiplies vectors such as ``like`` by."""
        draws = torch.Generator().manual_seed(seed)
        found = self._search(product, _drawn(like, draws), like.new_empty(0, len(like)), draws)
        while self._unsure(found, len(like)) and found.products < self.products:
            # Two at a time tell neighbours apart, and suffice to see that nothing larger is left.
            left = replace(self, k=2, products=self.products - found.products, steps=0)
            more = left._search(
                product, _drawn(like, draws), found.vectors, draws, self._bars(found)
            )
            found, brought = self._merged(found, more)
            if not brought:
                break
        return replace(found, values=np.where(np.abs(found.values) > found.noise, found.values, 0))

    def _search(
        self,
        product: Product,
        start: Tensor,
        aside: Tensor,
        draws: torch.Generator,
        known: tuple[float, Sequence[float]] = (0.0, ()),
    ) -> Eigenpairs:
        """One Krylov space, restarted where memory asks for it.

        Args:
            product: Of the matrix.
            start: What the space begins with.
            aside: Orthonormal vectors that it must not hold.
            draws: For fresh vectors, where the matrix maps the space into itself.
            known: The size of the matrix at least, since what is left of it beside ``aside`` may be
                rounding alone; and for each end what a value must exceed to be of any use.
        """
        size, bars = known
        space = _Space(start, self._room(start), aside, draws, size)
        first, image = space.vectors[0].clone(), space.expand(product)
        quadrature: tuple[np.ndarray, np.ndarray] | None = None
        done = 1
        while True:
            values, residuals, coordinates = space.ritz()
            noise = _NOISE * torch.finfo(start.dtype).eps * max(size, np.abs(values).max())
            places, settled = self._verdict(values, residuals, noise)
            settled |= self._useless(values, residuals, bars)
            if (settled and done >= self.steps) or space.whole or done >= self.products:
                break
            if space.full:
                quadrature = quadrature or space.quadrature()
                space.restart(self._wanted(values, 2 * self.k + 2))
            space.expand(product)
            done += 1
        nodes, weights = quadrature or space.quadrature()
        residuals = np.hypot(residuals, space.leaked(coordinates))
        return Eigenpairs(
            values=values[places], residuals=residuals[places],
            converged=self._close(values, residuals, noise)[places],
            vectors=space.lifted(coordinates[:, places]), products=done, start=first, image=image,
            nodes=nodes, weights=weights, closed=space.closed, noise=noise,
        )  # fmt: skip

    def _room(self, start: Tensor) -> int:
        fitting = _BASIS_BYTES // (start.element_size() * len(start))
        return max(4 * self.k + 12, min(self.basis or fitting, self.products))

    def _ends(self, values: np.ndarray) -> list[np.ndarray]:
        """By which values are asked for: the larger, the sooner."""
        measures = {
            "magnitude": [np.abs(values + self.shift)],
            "positive": [values],
            "negative": [-values],
            "both": [values, -values],
        }
        return measures[self.which]

    def _wanted(self, values: np.ndarray, count: int) -> np.ndarray:
        """The indices of the values that are asked for, best first."""
        ends = [np.argsort(-measure, kind="stable")[:count] for measure in self._ends(values)]
        return np.array(list(dict.fromkeys(np.concatenate(ends).tolist())), dtype=np.int64)

    def _close(self, values: np.ndarray, residuals: np.ndarray, noise: float) -> np.ndarray:
        """Which values are found."""
        return residuals <= np.maximum(self.tolerance * np.abs(values + self.shift), noise)

    def _verdict(
        self, values: np.ndarray, residuals: np.ndarray, noise: float
    ) -> tuple[np.ndarray, bool]:
        """The indices of what is asked for, and whether all of it is found."""
        found = self._close(values, residuals, noise)
        places = self._wanted(values, self.k)
        settled = bool(found[places].all())
        for measure in self._ends(values):
            order = np.argsort(-measure, kind="stable")
            if len(order) <= self.k:
                settled = False
                continue
            last, rest = order[self.k - 1], order[self.k :]
            rivals = self._rivals(values, rest)
            # What comes next may still grow: it must be known, or too small in any case.
            grown = measure[rivals] + _GROWTH * residuals[rivals]
            settled &= bool((found[rivals] | (grown < measure[last])).all())
        return places, settled

    def _rivals(self, values: np.ndarray, rest: np.ndarray) -> np.ndarray:
        """The first of the others, in falling order; of magnitudes, that of either sign."""
        both = [values[rest].argmax(), values[rest].argmin()]
        return rest[both] if self.which == "magnitude" else rest[:1]

    def _useless(self, values: np.ndarray, residuals: np.ndarray, bars: Sequence[float]) -> bool:
        """Whether nothing in this space will exceed what is known already."""
        for measure, bar in zip(self._ends(values), bars, strict=False):
            order = np.argsort(-measure, kind="stable")
            rivals = self._rivals(values, order)
            grown = measure[rivals] + _GROWTH * residuals[rivals]
            rough = residuals[order[0]] > _ROUGH * np.abs(values[order[0]])
            if rough or (grown >= bar).any():
                return False
        return bool(bars)

    def _bars(self, found: Eigenpairs) -> tuple[float, list[float]]:
        """The size of the matrix, and the least of what was found at each end."""
        ends = [np.sort(measure)[-self.k :] for measure in self._ends(found.values)]
        full = len(found.values) >= self.k * len(ends)
        return float(np.abs(found.values).max()), [float(end[0]) for end in ends] if full else []

    def _unsure(self, found: Eigenpairs, size: int) -> bool:
        """Whether there may be more: copies of eigenvalues, or some between others."""
        if (
            (whole := max(len(found.nodes), len(found.values)) >= size)
            or found.closed
            or self.again
        ):
            return not whole
        rising = np.sort(found.values)
        own = _CLOSE * np.maximum(np.abs(rising[1:]), np.abs(rising[:-1]))
        if (
            np.diff(rising) <= self.tolerance * np.maximum(_SAME * np.abs(rising).max(), own)
        ).any():
            return True
        places = self._wanted(found.nodes, self.k)
        # Of j single eigenvectors a random start has a share of about j / n: χ² with j degrees.
        shares, degrees = size * found.weights[places].cumsum(), np.arange(1, len(places) + 1)
        spread = 2 / (9 * degrees)
        return bool((shares > degrees * (1 - spread + _ALARM * np.sqrt(spread)) ** 3).any())

    def _merged(self, old: Eigenpairs, new: Eigenpairs) -> tuple[Eigenpairs, bool]:
        """The best of two searches, and whether the second one brought anything."""
        values = np.concatenate([old.values, new.values])
        best = self._wanted(values, self.k)
        ends = [[np.sort(m)[-self.k :] for m in self._ends(v)] for v in (old.values, values)]
        brought = len(best) > len(old.values) or np.sum(ends[1]) > np.sum(ends[0]) + old.noise
        return replace(
            old, values=values[best], products=old.products + new.products,
            residuals=np.concatenate([old.residuals, new.residuals])[best],
            converged=np.concatenate([old.converged, new.converged])[best],
            vectors=torch.cat([old.vectors, new.vectors])[torch.from_numpy(best)],
        ), bool(brought)  # fmt: skip


class _Space:
    """An orthonormal basis, and the matrix as it looks within."""

    def __init__(
        self, start: Tensor, room: int, aside: Tensor, draws: torch.Generator, scale: float
    ) -> None:
        self.aside, self.draws, self.scale = aside, draws, scale
        self.dimension = len(start) - len(aside)
        self.room = min(room, self.dimension)
        self.vectors = start.new_empty(self.room + 1, len(start))
        self.vectors[0] = _unit(_without(start, aside))
        self.projected = np.zeros((self.room, self.room))
        self.leaks = np.zeros((len(aside), self.room))
        """What of each product lies along the vectors set aside."""
        self.size = 0
        self.beyond = 0.0
        """How much of the last product lies outside."""
        self.closed = False
        """Whether the matrix has mapped the space into itself."""
        self._near = 0

    @property
    def full(self) -> bool:
        return self.size == self.room

    @property
    def whole(self) -> bool:
        return self.size == self.dimension

    def expand(self, product: Product) -> Tensor:
        """Multiply the newest vector; what leaves the space becomes the next one."""
        newest = self.size
        image = whole = product(self.vectors[newest])
        if len(self.aside):
            leak = self.aside @ whole
            image = whole - leak @ self.aside
            self.leaks[:, newest] = leak.cpu().double().numpy()
        # In exact arithmetic a product meets the last two vectors only (all, after a restart);
        # taking these away first makes one pass over the whole basis as good as two.
        near, basis = self.vectors[self._near : newest + 1], self.vectors[: newest + 1]
        first = near @ image
        rest = image - first @ near
        again = basis @ rest
        rest -= again @ basis
        column = again.cpu().double()
        column[self._near :] += first.cpu().double()
        self.projected[: newest + 1, newest] = column.cpu().numpy()
        self.projected[newest, : newest + 1] = self.projected[: newest + 1, newest]
        self.size, self._near = newest + 1, newest
        self.beyond = _length(rest)
        if not self.whole:
            self._turn(rest)
        else:
            self.beyond = 0.0
        return whole

    def _turn(self, rest: Tensor) -> None:
        """Make what is left of a product the next vector; a fresh one where nothing is left."""
        scale = max(self.scale, np.abs(self.projected[: self.size, : self.size]).max())
        if self.beyond <= _NOISE * torch.finfo(rest.dtype).eps * scale:
            self.beyond, self.closed = 0.0, True
            rest = _drawn(rest, self.draws)
        if self.beyond <= _LITTLE * scale:
            for _ in range(2):  # of little, rounding is a large part
                rest = _without(_without(rest, self.aside), self.vectors[: self.size])
        self.vectors[self.size] = _unit(rest)

    def ritz(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Values, residuals and coordinates (size, size) of the best guesses within."""
        values, coordinates = np.linalg.eigh(self.projected[: self.size, : self.size])
        return values, self.beyond * np.abs(coordinates[-1]), coordinates

    def leaked(self, coordinates: np.ndarray) -> np.ndarray:
        """How far the products of guesses lead back to the vectors set aside."""
        return np.linalg.norm(self.leaks[:, : self.size] @ coordinates, axis=0)

    def quadrature(self) -> tuple[np.ndarray, np.ndarray]:
        """Nodes, and how much of the first vector belongs to each."""
        values, _, coordinates = self.ritz()
        return values, coordinates[0] ** 2

    def restart(self, places: np.ndarray) -> None:
        """Keep these guesses and the newest direction only."""
        values, _, coordinates = self.ritz()
        kept, newest = self.lifted(coordinates[:, places]), self.vectors[self.size].clone()
        self.leaks[:, : len(places)] = self.leaks[:, : self.size] @ coordinates[:, places]
        self.size, self._near = len(places), 0
        self.vectors[: self.size] = kept
        self.vectors[self.size] = newest
        self.projected[:] = 0
        self.projected[range(self.size), range(self.size)] = values[places]

    def lifted(self, coordinates: np.ndarray) -> Tensor:
        """Vectors (k, n) from coordinates (size, k)."""
        share = torch.from_numpy(coordinates.T.copy()).to(self.vectors)
        return share @ self.vectors[: self.size]


def _drawn(like: Tensor, draws: torch.Generator) -> Tensor:
    """A Gaussian vector, the same on every device."""
    return torch.randn(len(like), generator=draws, dtype=like.dtype).to(like.device)


def _unit(vector: Tensor) -> Tensor:
    return vector / _length(vector)


def _length(vector: Tensor) -> float:
    """The norm, also where squares would be too small or too large for single precision."""
    largest = float(vector.abs().max())
    return largest * float((vector / largest).norm()) if largest else 0.0


def _without(vector: Tensor, directions: Tensor) -> Tensor:
    """What is left of a vector beside some orthonormal ones (k, n)."""
    return vector - (directions @ vector) @ directions if len(directions) else vector
