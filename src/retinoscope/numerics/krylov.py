"""Eigenvalues of a symmetric matrix of which only products with vectors can be had.

Lanczos's method with full reorthogonalisation and thick restarts (Wu & Simon, 2000). A value is
taken for found when its residual says so, never because it has stopped changing: that is how power
iteration comes to return wrong values without a word. The same products give the density of the
whole spectrum (Golub & Welsch, 1969; Ghorbani et al., 2019, arXiv:1901.10159).
"""

from __future__ import annotations

from collections.abc import Callable
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
_SAME = 1e-2
"""Share of the tolerance within which two values are copies of one."""
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


@dataclass(frozen=True)
class Lanczos:
    """The search for the eigenvalues at one end of a symmetric matrix, or at both.

    A value θ with residual r is off by at most r; by about r² over its distance to the others,
    which is far less, but a neighbour that no value stands for yet can make that untrue. So it is
    found when r is below ``tolerance`` · |θ + shift| and the next value, at either end, is known or
    too small. A single start cannot tell copies of an eigenvalue apart; where it meets some
    with a weight that one alone would hardly have, or ends in a space that the matrix maps into
    itself, the search is repeated beside what was found. Two or three copies can still pass for
    one.

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

    def __call__(self, product: Product, like: Tensor, seed: int) -> Eigenpairs:
        """The eigenvalues of the matrix that ``product`` multiplies vectors such as ``like`` by."""
        draws = torch.Generator().manual_seed(seed)
        found = self._search(product, _drawn(like, draws), like.new_empty(0, len(like)), draws)
        while self._suspicious(found, len(like)) and found.products < self.products:
            aside = found.vectors

            def beside(vector: Tensor, aside: Tensor = aside) -> Tensor:
                return _without(product(_without(vector, aside)), aside)

            # Two at a time tell neighbours apart, and suffice to see that nothing larger is left.
            left = replace(self, k=2, products=self.products - found.products, steps=0)
            size = float(np.abs(found.values).max())
            more = left._search(beside, _drawn(like, draws), aside, draws, size)
            found, brought = self._merged(found, more)
            if not brought:
                break
        return found

    def _search(
        self,
        product: Product,
        start: Tensor,
        aside: Tensor,
        draws: torch.Generator,
        size: float = 0.0,
    ) -> Eigenpairs:
        """One Krylov space, restarted where memory asks for it.

        Args:
            product: Of the matrix beside ``aside``.
            start: What the space begins with.
            aside: Orthonormal vectors that it must not hold.
            draws: For fresh vectors, where the matrix maps the space into itself.
            size: Of the matrix at least: what is left of it beside ``aside`` may be rounding alone.
        """
        space = _Space(start, self._room(start), aside, draws, size)
        first, image = space.vectors[0].clone(), space.expand(product)
        quadrature: tuple[np.ndarray, np.ndarray] | None = None
        done = 1
        while True:
            values, residuals, coordinates = space.ritz()
            noise = _NOISE * torch.finfo(start.dtype).eps * max(size, np.abs(values).max())
            places, converged, settled = self._verdict(values, residuals, noise)
            if (settled and done >= self.steps) or space.whole or done >= self.products:
                break
            if space.full:
                quadrature = quadrature or space.quadrature()
                space.restart(self._wanted(values, 2 * self.k + 2))
            space.expand(product)
            done += 1
        nodes, weights = quadrature or space.quadrature()
        return Eigenpairs(
            values=values[places], residuals=residuals[places], converged=converged[places],
            vectors=space.lifted(coordinates[:, places]), products=done, start=first, image=image,
            nodes=nodes, weights=weights, closed=space.closed,
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
        """The places of the values that are asked for, best first."""
        ends = [np.argsort(-measure, kind="stable")[:count] for measure in self._ends(values)]
        return np.array(list(dict.fromkeys(np.concatenate(ends).tolist())), dtype=np.int64)

    def _verdict(
        self, values: np.ndarray, residuals: np.ndarray, noise: float
    ) -> tuple[np.ndarray, np.ndarray, bool]:
        """The places of what is asked for, which values are found, and whether all of it is."""
        found = residuals <= np.maximum(self.tolerance * np.abs(values + self.shift), noise)
        places = self._wanted(values, self.k)
        settled = bool(found[places].all())
        for measure in self._ends(values):
            order = np.argsort(-measure, kind="stable")
            if len(order) <= self.k:
                settled = False
                continue
            last, rest = order[self.k - 1], order[self.k :]
            both = [values[rest].argmax(), values[rest].argmin()]
            rivals = rest[both] if self.which == "magnitude" else rest[:1]
            # What comes next may still grow: it must be known, or too small in any case.
            grown = measure[rivals] + _GROWTH * residuals[rivals]
            settled &= bool((found[rivals] | (grown < measure[last])).all())
        return places, found, settled

    def _suspicious(self, found: Eigenpairs, size: int) -> bool:
        """Whether eigenvalues may have copies: the start has more of them than of single ones."""
        if (whole := max(len(found.nodes), len(found.values)) >= size) or found.closed:
            return not whole
        near = _SAME * self.tolerance * np.abs(found.values).max()
        if (np.diff(np.sort(found.values)) <= near).any():
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
        noise = _NOISE * torch.finfo(old.vectors.dtype).eps * np.abs(values).max()
        ends = [[np.sort(m)[-self.k :] for m in self._ends(v)] for v in (old.values, values)]
        brought = len(best) > len(old.values) or np.sum(ends[1]) > np.sum(ends[0]) + noise
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
        image = product(self.vectors[newest])
        # In exact arithmetic a product meets the last two vectors only (all, behind a restart);
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
        self.beyond = float(rest.norm())
        if not self.whole:
            self._turn(rest)
        else:
            self.beyond = 0.0
        return image

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

    def quadrature(self) -> tuple[np.ndarray, np.ndarray]:
        """Nodes, and how much of the first vector belongs to each."""
        values, _, coordinates = self.ritz()
        return values, coordinates[0] ** 2

    def restart(self, places: np.ndarray) -> None:
        """Keep these guesses and the newest direction only."""
        values, _, coordinates = self.ritz()
        kept, newest = self.lifted(coordinates[:, places]), self.vectors[self.size].clone()
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
    return vector / vector.norm()


def _without(vector: Tensor, directions: Tensor) -> Tensor:
    """What is left of a vector beside some orthonormal ones (k, n)."""
    return vector - (directions @ vector) @ directions if len(directions) else vector
