"""Eigenvalues of a symmetric matrix that is only available through matrix-vector products.

Lanczos's method with full reorthogonalisation and thick restarts (Wu & Simon, 2000). Convergence is
judged by the residual, never by whether a value has stopped changing: with that criterion, power
iteration can silently return wrong values. The same products give the density of the whole spectrum
(Golub & Welsch, 1969; Ghorbani et al., 2019, arXiv:1901.10159).
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
"""Memory that the basis may use before it is restarted."""
_NOISE = 64.0
"""Residuals below this multiple of the largest value's precision are indistinguishable from 0."""
_LITTLE = 1e-2
"""A product whose remainder is below this fraction of the largest value is reorthogonalised."""
_GROWTH = 10.0
"""Number of residuals by which a value may still grow, if its vector is poorly represented."""
_SAME, _CLOSE = 1e-2, 15.0
"""Tolerances, relative to the largest value and to the values themselves, within which two values
may hide a third."""
_ROUGH = 0.1
"""Residual, relative to a value, at which it is known well enough to be skipped."""
_ALARM = 3.09
"""Normal quantile of 0.999: how unlikely the start vector must be before copies are searched."""


@dataclass(frozen=True)
class Eigenpairs:
    """Eigenvalues at one or both ends, each with its residual, and a quadrature of the spectrum."""

    values: np.ndarray
    """float64 (k,), from the end inwards; with both ends, the positive one first."""
    residuals: np.ndarray
    """‖Av − λv‖ of each eigenpair."""
    converged: np.ndarray
    """bool (k,): whether the residual satisfies the tolerance."""
    vectors: Tensor
    """(k, n)."""
    products: int
    start: Tensor
    """The normalised start vector of the search, (n,)."""
    image: Tensor
    """The matrix times ``start``."""
    nodes: np.ndarray
    """Nodes of the quadrature from the start vector: Σ weight · f(node) estimates tr f(A) / n."""
    weights: np.ndarray
    closed: bool
    """Whether the Krylov space became invariant, so that copies of eigenvalues are likely."""
    noise: float
    """Values of this size are indistinguishable from 0, and are set to 0."""

    def spectrum(self) -> tuple[np.ndarray, np.ndarray]:
        """A quadrature of the whole spectrum, corrected by the computed eigenvalues.

        Each computed eigenvalue gets the weight 1 / n, whatever its component in the start vector;
        the other nodes represent the remaining eigenvalues.
        """
        size = len(self.start)
        found, vectors = self.values[self.converged], self.vectors[torch.from_numpy(self.converged)]
        weights = self.weights.copy()
        for value, share in zip(found, (vectors @ self.start).square().tolist(), strict=True):
            nearest = np.abs(self.nodes - value).argmin()
            weights[nearest] -= min(weights[nearest], share)
        left = 1 - len(found) / size
        if left and weights.sum() <= len(weights) * np.finfo(np.float64).eps:
            return self.nodes, self.weights  # the start vector has no remaining component
        weights *= left / (weights.sum() or 1.0)
        nodes = np.concatenate([found, self.nodes])
        weights = np.concatenate([np.full(len(found), 1 / size), weights])
        order = np.argsort(nodes, kind="stable")
        return nodes[order], weights[order]


@dataclass(frozen=True)
class Lanczos:
    """Computes the eigenvalues at one end of a symmetric matrix's spectrum, or at both.

    The error of a value θ with residual r is at most r. It is usually about r² divided by the
    distance to the other values, which is much smaller, but not if a nearby eigenvalue has not been
    found yet. A value is therefore accepted if r is below ``tolerance`` · |θ + shift| and the next
    value, at either end, has converged or is too small to matter. An eigenvector that is almost
    orthogonal to the start vector can still be missed, once in some hundred searches, and a single
    Krylov space cannot find copies of an eigenvalue. The search is therefore repeated, orthogonally
    to the vectors already found, if two values are close, if the start vector has larger components
    along them than single eigenvectors would explain, or if the Krylov space became invariant. A
    few copies may still be missed. ``again`` always repeats the search, until nothing new is found.

    Example:
        >>> matrix = torch.diag(torch.tensor([10.0, -9.9, 5, -4, 3, -2], dtype=torch.float64))
        >>> found = Lanczos(k=3)(lambda v: matrix @ v, torch.zeros(6, dtype=torch.float64), seed=0)
        >>> found.values.round(6).tolist()
        [10.0, -9.9, 5.0]
    """

    k: int = 5
    """Number of eigenvalues; with both ends, at each end."""
    which: Which = "magnitude"
    """Largest magnitude, most positive, most negative, or the latter two."""
    tolerance: float = 1e-3
    """Largest residual relative to the value: a bound on its relative error."""
    products: int = 100
    """Maximum number of products, even if some values have not converged."""
    steps: int = 0
    """Minimum number of products, for a finer quadrature."""
    shift: float = 0.0
    """Added to eigenvalues when their magnitudes are compared."""
    basis: int | None = None
    """Maximum number of basis vectors in memory; None: as memory allows."""
    again: bool = False
    """Whether to always search again from another start, orthogonally to what was found."""

    def __call__(self, product: Product, like: Tensor, seed: int) -> Eigenpairs:
        """The eigenvalues of the matrix that ``product`` applies to vectors like ``like``."""
        draws = torch.Generator().manual_seed(seed)
        found = self._search(product, _drawn(like, draws), like.new_empty(0, len(like)), draws)
        while self._unsure(found, len(like)) and found.products < self.products:
            # Two at a time separate close eigenvalues, and suffice to show that nothing larger is
            # left.
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
        """Search in one Krylov space, restarted when memory requires it.

        Args:
            product: Multiplies the matrix by a vector.
            start: The start vector.
            aside: Orthonormal vectors to which the space is kept orthogonal.
            draws: Generator of new vectors, used if the space is invariant.
            known: A lower bound on the norm of the matrix, since its part orthogonal to ``aside``
                may be rounding only; and for each end the value that must be exceeded to be useful.
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
        """The sort keys of the requested ends: larger values come first."""
        measures = {
            "magnitude": [np.abs(values + self.shift)],
            "positive": [values],
            "negative": [-values],
            "both": [values, -values],
        }
        return measures[self.which]

    def _wanted(self, values: np.ndarray, count: int) -> np.ndarray:
        """The indices of the requested values, best first."""
        ends = [np.argsort(-measure, kind="stable")[:count] for measure in self._ends(values)]
        return np.array(list(dict.fromkeys(np.concatenate(ends).tolist())), dtype=np.int64)

    def _close(self, values: np.ndarray, residuals: np.ndarray, noise: float) -> np.ndarray:
        """Which values have converged."""
        return residuals <= np.maximum(self.tolerance * np.abs(values + self.shift), noise)

    def _verdict(
        self, values: np.ndarray, residuals: np.ndarray, noise: float
    ) -> tuple[np.ndarray, bool]:
        """The indices of the requested values, and whether all of them have converged."""
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
            # The next value may still grow: it must have converged, or be too small in any case.
            grown = measure[rivals] + _GROWTH * residuals[rivals]
            settled &= bool((found[rivals] | (grown < measure[last])).all())
        return places, settled

    def _rivals(self, values: np.ndarray, rest: np.ndarray) -> np.ndarray:
        """The next values in descending order; for magnitudes, one of each sign."""
        both = [values[rest].argmax(), values[rest].argmin()]
        return rest[both] if self.which == "magnitude" else rest[:1]

    def _useless(self, values: np.ndarray, residuals: np.ndarray, bars: Sequence[float]) -> bool:
        """Whether nothing in this space will exceed the known values."""
        for measure, bar in zip(self._ends(values), bars, strict=False):
            order = np.argsort(-measure, kind="stable")
            rivals = self._rivals(values, order)
            grown = measure[rivals] + _GROWTH * residuals[rivals]
            rough = residuals[order[0]] > _ROUGH * np.abs(values[order[0]])
            if rough or (grown >= bar).any():
                return False
        return bool(bars)

    def _bars(self, found: Eigenpairs) -> tuple[float, list[float]]:
        """The norm of the matrix, and the smallest value found at each end."""
        ends = [np.sort(measure)[-self.k :] for measure in self._ends(found.values)]
        full = len(found.values) >= self.k * len(ends)
        return float(np.abs(found.values).max()), [float(end[0]) for end in ends] if full else []

    def _unsure(self, found: Eigenpairs, size: int) -> bool:
        """Whether there may be more eigenvalues: copies, or some between others."""
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
        # A random start vector has a component of about j / n along j single eigenvectors: χ² with
        # j degrees of freedom.
        shares, degrees = size * found.weights[places].cumsum(), np.arange(1, len(places) + 1)
        spread = 2 / (9 * degrees)
        return bool((shares > degrees * (1 - spread + _ALARM * np.sqrt(spread)) ** 3).any())

    def _merged(self, old: Eigenpairs, new: Eigenpairs) -> tuple[Eigenpairs, bool]:
        """The best values of two searches, and whether the second one found anything new."""
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
    """An orthonormal basis, and the projection of the matrix onto it."""

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
        """The components of each product along the vectors in ``aside``."""
        self.size = 0
        self.beyond = 0.0
        """The norm of the last product's component outside the space."""
        self.closed = False
        """Whether the space is invariant."""
        self._near = 0

    @property
    def full(self) -> bool:
        return self.size == self.room

    @property
    def whole(self) -> bool:
        return self.size == self.dimension

    def expand(self, product: Product) -> Tensor:
        """Multiply the newest vector; the component outside the space becomes the next vector."""
        newest = self.size
        image = whole = product(self.vectors[newest])
        if len(self.aside):
            leak = self.aside @ whole
            image = whole - leak @ self.aside
            self.leaks[:, newest] = leak.cpu().double().numpy()
        # In exact arithmetic a product has components only along the last two vectors (all, after a
        # restart). Subtracting these first makes one pass over the whole basis as accurate as two.
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
        """Normalise the rest of a product as the next vector; use a new one if nothing is left."""
        scale = max(self.scale, np.abs(self.projected[: self.size, : self.size]).max())
        if self.beyond <= _NOISE * torch.finfo(rest.dtype).eps * scale:
            self.beyond, self.closed = 0.0, True
            rest = _drawn(rest, self.draws)
        if self.beyond <= _LITTLE * scale:
            for _ in range(2):  # rounding is a large part of a small remainder
                rest = _without(_without(rest, self.aside), self.vectors[: self.size])
        self.vectors[self.size] = _unit(rest)

    def ritz(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The Ritz values, their residuals, and their coordinates (size, size)."""
        values, coordinates = np.linalg.eigh(self.projected[: self.size, : self.size])
        return values, self.beyond * np.abs(coordinates[-1]), coordinates

    def leaked(self, coordinates: np.ndarray) -> np.ndarray:
        """The components of the Ritz vectors' products along the vectors in ``aside``."""
        return np.linalg.norm(self.leaks[:, : self.size] @ coordinates, axis=0)

    def quadrature(self) -> tuple[np.ndarray, np.ndarray]:
        """The nodes, and the weight of the start vector at each."""
        values, _, coordinates = self.ritz()
        return values, coordinates[0] ** 2

    def restart(self, places: np.ndarray) -> None:
        """Keep only these Ritz vectors and the newest direction."""
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
    """The norm, even if squares underflow or overflow in single precision."""
    largest = float(vector.abs().max())
    return largest * float((vector / largest).norm()) if largest else 0.0


def _without(vector: Tensor, directions: Tensor) -> Tensor:
    """The part of a vector that is orthogonal to some orthonormal vectors (k, n)."""
    return vector - (directions @ vector) @ directions if len(directions) else vector
