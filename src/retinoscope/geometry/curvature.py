"""The Hessian of a loss on one mini-batch, as Hessian-vector products."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor, nn

from retinoscope.core.errors import NotApplicable, RetinoscopeError
from retinoscope.core.subject import Batch
from retinoscope.geometry.differentiable import check_twice, explained, twice_differentiable
from retinoscope.models.memory import Parts, went_in_parts

T = TypeVar("T")


@dataclass(frozen=True)
class Learned:
    """The parameters of a network that a loss depends on, and the remaining ones."""

    names: tuple[str, ...]
    tensors: tuple[nn.Parameter, ...]
    left_out: tuple[str, ...]
    """Parameters that require no gradient or get none."""

    @property
    def size(self) -> int:
        """The total number of elements."""
        return sum(tensor.numel() for tensor in self.tensors)


class Curvature:
    """The Hessian of a network's mean loss over a mini-batch; weight decay is not part of it.

    The graph of the gradient is built once and kept, so that a product costs one backward pass
    through it. If memory is insufficient, the mini-batch is processed in parts, whose graphs are
    rebuilt for each product.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Callable[[Batch], Tensor],
        batch: Batch,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        """The Hessian with respect to the parameters of ``model`` that require a gradient.

        Args:
            model: The model whose parameters are used, with its names for them.
            loss: The mean loss of a batch as a function of these parameters.
            batch: The mini-batch.
            say: Called with a notice if the mini-batch must be processed in parts to save memory.
        """
        self._mean_loss, self._batch, self._say = loss, batch, say
        self._parts = Parts()
        self.images = len(batch.images)
        self.loss = 0.0
        """The mean loss of the mini-batch."""
        named = dict(model.named_parameters())
        asked = {name: tensor for name, tensor in named.items() if tensor.requires_grad}
        _check(asked)
        self._tensors = tuple(asked.values())
        self._gradients: Sequence[Tensor | None] | None = None
        gradients = self._attempt(self._build)
        used = [name for name, g in zip(asked, gradients, strict=True) if g is not None]
        self.learned = Learned(
            tuple(used),
            tuple(asked[name] for name in used),
            tuple(name for name in named if name not in used),
        )
        self._tensors = self.learned.tensors
        kept: Sequence[Tensor | None] | None = self._gradients
        self._gradients = None if kept is None else [g for g in kept if g is not None]
        self.gradient = torch.cat([g.detach().flatten() for g in gradients if g is not None])

    @property
    def like(self) -> Tensor:
        """A vector of the size, type and device that products expect."""
        return self.gradient

    def product(self, vector: Tensor, indices: Sequence[int] | None = None) -> Tensor:
        """The Hessian times a vector (n,).

        Args:
            vector: A vector with one element per parameter element.
            indices: Indices of the parameters whose block of the Hessian is used. Default: all.
        """
        chosen = range(len(self._tensors)) if indices is None else indices
        tensors = [self._tensors[index] for index in chosen]
        parts = vector.split([tensor.numel() for tensor in tensors])
        shaped = [part.view_as(tensor) for part, tensor in zip(parts, tensors, strict=True)]
        found = self._attempt(lambda: self._multiply(shaped, tensors, chosen))
        if not found.isfinite().all():
            raise RetinoscopeError(
                f"The loss on the mini-batch of image {self._batch.indices[0]} is finite, but its "
                "curvature is not: an operation of the network has no second derivative at these "
                "weights, for example a square root at 0."
            )
        return found

    def _multiply(
        self, vectors: Sequence[Tensor], tensors: Sequence[Tensor], chosen: Sequence[int]
    ) -> Tensor:
        total = vectors[0].new_zeros(sum(vector.numel() for vector in vectors))
        for gradients in self._graphs():
            pairs = [
                (gradients[index], vector)
                for index, vector in zip(chosen, vectors, strict=True)
                if gradients[index].requires_grad  # otherwise it is constant: a linear loss
            ]
            if not pairs:
                continue
            outputs, weights = zip(*pairs, strict=True)
            with explained():
                found = torch.autograd.grad(
                    outputs, tensors, weights, retain_graph=self._parts.count == 1,
                    allow_unused=True, materialize_grads=True,
                )  # fmt: skip
            total += torch.cat([part.detach().flatten() for part in found])
        return total

    def _graphs(self) -> Iterator[Sequence[Tensor]]:
        """The gradients of each part, with their graphs."""
        if self._gradients is not None:
            yield [g for g in self._gradients if g is not None]
            return
        for part in range(self._parts.count):
            yield [g for g in self._differentiate(part) if g is not None]

    def _build(self) -> list[Tensor | None]:
        """The gradient; its graph is kept if there is only one part."""
        self.loss = 0.0
        if self._parts.count == 1:
            self._gradients = self._differentiate(0, count=True)
            return list(self._gradients)
        sums: list[Tensor | None] = [None] * len(self._tensors)
        for part in range(self._parts.count):
            for index, found in enumerate(self._differentiate(part, count=True)):
                if found is not None:
                    before = sums[index]
                    sums[index] = found.detach() + (0 if before is None else before)
        return sums

    def _differentiate(self, part: int, count: bool = False) -> Sequence[Tensor | None]:
        with twice_differentiable():
            loss = self._loss(part)
            if not loss.requires_grad:
                raise NotApplicable("needs parameters that affect the loss; all are frozen")
            found = torch.autograd.grad(loss, self._tensors, create_graph=True, allow_unused=True)
        if count:
            self.loss += loss.item()
            check_twice(found)
        return found

    def _loss(self, part: int) -> Tensor:
        """The contribution of a part of the mini-batch to its mean loss."""
        ends = [len(self._batch.images) * end // self._parts.count for end in (part, part + 1)]
        piece = self._batch.rows(slice(*ends))
        loss = self._mean_loss(piece) * (len(piece.images) / len(self._batch.images))
        if not torch.isfinite(loss):
            raise RetinoscopeError(
                f"The loss at the network's own weights is {loss.item()} on the mini-batch of "
                f"image {self._batch.indices[0]}; so its curvature is not defined. Are the "
                "weights undamaged, and do they match --mean, --std and --precision?"
            )
        return loss

    def _attempt(self, work: Callable[[], T]) -> T:
        """Do the work, doubling the number of parts whenever memory runs out."""

        def split(count: int) -> None:
            self._gradients = None
            self._say(went_in_parts(self.images, count))

        return self._parts.run(lambda count: work(), self.images, split)


def joined(batches: Sequence[Batch]) -> Batch:
    """Concatenate several batches."""
    labels = [b.labels for b in batches if b.labels is not None]
    targets = [b.targets for b in batches if b.targets is not None]
    return Batch(
        torch.cat([b.images for b in batches]),
        tuple(index for b in batches for index in b.indices),
        torch.cat(labels) if labels else None,
        torch.cat(targets) if targets else None,
    )


def _check(asked: dict[str, nn.Parameter]) -> None:
    if not asked:
        raise NotApplicable("needs parameters with requires_grad; all are frozen")
    low = {str(t.dtype) for t in asked.values() if t.dtype in (torch.bfloat16, torch.float16)}
    if low:
        raise NotApplicable(
            f"needs float32 or float64; the network is in {', '.join(sorted(low))}, in which a "
            "product is wrong by several percent"
        )
