"""What is studied: a model in eval mode, its anatomy, its images and its loss."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from retinoscope.core.errors import NotApplicable, RetinoscopeError
from retinoscope.core.probe import Needs
from retinoscope.core.view import AUGMENTED, View, describe_view

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np
    import torch
    from torch import Tensor, nn

    from retinoscope.anatomy.replay import Replay
    from retinoscope.core.anatomy import Anatomy


ASSUMED_AUGMENTATION = "augmentation of training images"
"""How the entry of a protocol's list ``assumed`` begins that concerns augmented images alone."""


class SetAside(NamedTuple):
    """An image that could not be read, and why."""

    image: str
    reason: str


@dataclass(frozen=True)
class Batch:
    """Some images of a split in pixel space, with what is known about them."""

    images: Tensor
    """(N, C, H, W) in [0, 1]; normalisation is the model's first step."""
    indices: tuple[int, ...]
    """Their indices in the split."""
    labels: Tensor | None = None
    """(N,) in the model's own classes; None where there are none."""
    targets: Tensor | None = None
    """(N, K), where augmentation has made the labels soft."""
    set_aside: tuple[SetAside, ...] = ()
    """Images that were asked for and could not be read."""

    def rows(self, which: slice) -> Batch:
        """Some of its images; what was set aside is not told twice."""
        return Batch(
            self.images[which],
            self.indices[which],
            None if self.labels is None else self.labels[which],
            None if self.targets is None else self.targets[which],
        )


class Split(Protocol):
    """A fixed, ordered list of images that repeats exactly."""

    @property
    def labelled(self) -> bool:
        """Whether the labels are there, and in the model's own classes."""
        ...

    @property
    def unlabelled_because(self) -> str:
        """Why they are not; empty if they are."""
        ...

    @property
    def attributes(self) -> Mapping[str, np.ndarray]:
        """Further facts about each image by name."""
        ...

    @property
    def fingerprint(self) -> str:
        """Changes when any image, label or preparation does."""
        ...

    @property
    def protocol(self) -> Mapping[str, Any]:
        """What the images are and how they were prepared, as plain values."""
        ...

    def __len__(self) -> int: ...

    def known(self) -> Split:
        """The same without images of classes that the model does not know."""
        ...

    def viewed(self, view: View) -> Split:
        """The same images, seen otherwise; ``NotApplicable`` where they cannot be."""
        ...

    def names(self, indices: Sequence[int]) -> list[str]:
        """What the images at these indices are called: files, or rows of a table."""
        ...

    def batches(self, indices: Sequence[int], size: int, workers: int = 0) -> Iterator[Batch]:
        """The images at these indices, ``size`` at a time; the same for any number of workers."""
        ...


class Origin(Protocol):
    """Where a subject comes from, and so how further ones on the same images are loaded."""

    def another(self, name: str) -> Subject:
        """A second model, a member of an ensemble, a snapshot."""
        ...


@dataclass(frozen=True)
class Subject:
    """A model with all that a probe may ask of it. Its batches repeat exactly."""

    name: str
    backbone: nn.Module
    """The model as it was loaded; it takes normalised images."""
    model: nn.Module
    """The same behind its normalisation: it takes images in [0, 1]."""
    replay: Replay
    """The same as a chain of units; it takes images in [0, 1] too."""
    splits: Mapping[str, Split]
    """By name, each with its images as they are; :meth:`split` gives other views."""
    weights: str
    """A tag, a file and its hash, or ``untrained, seed 0``."""
    state: str
    """A hash of the weights when the subject was loaded."""
    fingerprint: str
    """Changes when architecture, weights, normalisation or precision do."""
    weight_decay: float = 0.0
    """As in training: probes of the loss add it, and report it apart."""
    seed: int = 0
    batch: int = 64
    workers: int = 0
    passes: int = 0
    """Seeded passes that are made of a network that draws at test time; 0 for one that does not."""
    protocol: Mapping[str, Any] = field(default_factory=dict)
    """Facts for the reader: precision, device, versions."""
    origin: Origin | None = None
    """From which another process rebuilds the subject, and others on the same images."""
    history: Path | None = None
    """The folder of the training that its weights come from: its snapshots lie there."""

    @property
    def anatomy(self) -> Anatomy:
        """The model's units."""
        return self.replay.anatomy

    def split(self, needs: Needs) -> Split:
        """The images a probe asks for; says what exists where they do not."""
        if (kept := self.splits.get(needs.split)) is None:
            existing = ", ".join(self.splits) or "none"
            seen = (describe_view(needs.view) or {"view": ""})["view"]
            raise NotApplicable(
                f"needs the split {needs.split!r}{f' {seen}' * bool(seen)}; the data have: "
                f"{existing}. Put images into a folder {needs.split}/ with a folder per class"
            )
        found = kept.viewed(needs.view)
        if not needs.labels:
            return found
        if not found.labelled:
            raise NotApplicable(f"needs labels; {found.unlabelled_because}")
        return found.known()

    def assumptions(self, needs: Needs) -> list[str]:
        """What was assumed about the images that a probe asks for beyond what all probes share."""
        assumed = self.protocol.get("assumed", ()) if needs.view == AUGMENTED else ()
        return [text for text in assumed if text.startswith(ASSUMED_AUGMENTATION)]

    def another(self, name: str) -> Subject:
        """A further subject on the same images; probes ask their context, which keeps count."""
        if self.origin is None:
            raise RetinoscopeError(
                f"The probe names another subject, {name!r}, but {self.name} does not know where "
                "it comes from. Make it with load_subject(…, others={name: module})"
            )
        return self.origin.another(name)

    def loss(self, logits: Tensor, batch: Batch) -> Tensor:
        """Mean negative log-likelihood of the batch, without weight decay."""
        from torch.nn.functional import cross_entropy

        target = batch.labels if batch.targets is None else batch.targets
        if target is None:
            raise NotApplicable("needs labels; these images have none")
        kind = logits.dtype if target.is_floating_point() else target.dtype
        return cross_entropy(logits, target.to(logits.device, kind))

    def batch_loss(self, batch: Batch) -> Tensor:
        """The mean loss of the model as it is now, without weight decay."""
        return self.loss(self.model(self.to_device(batch.images)), batch)

    def to_device(self, images: Tensor) -> Tensor:
        """The images where the model is, in the precision it works in."""
        like: torch.Tensor | None = next(self.model.parameters(), None)
        return images if like is None else images.to(like.device, like.dtype)
