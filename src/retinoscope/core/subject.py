"""The subject of a measurement: a model in eval mode, its anatomy, its images and its loss."""

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
"""The prefix of entries in a protocol's list ``assumed`` that concern only augmented images."""


class SetAside(NamedTuple):
    """An image that could not be read, with the reason."""

    image: str
    reason: str


@dataclass(frozen=True)
class Batch:
    """Some images of a split in pixel space, with their indices and labels."""

    images: Tensor
    """(N, C, H, W) in [0, 1]; normalisation is the model's first step."""
    indices: tuple[int, ...]
    """Their indices in the split."""
    labels: Tensor | None = None
    """(N,) in the model's own classes; None if unknown."""
    targets: Tensor | None = None
    """(N, K), if augmentation has made the labels soft."""
    set_aside: tuple[SetAside, ...] = ()
    """Images that were requested but could not be read."""

    def rows(self, which: slice) -> Batch:
        """Some of its images; unreadable images are not repeated."""
        return Batch(
            self.images[which],
            self.indices[which],
            None if self.labels is None else self.labels[which],
            None if self.targets is None else self.targets[which],
        )


class Split(Protocol):
    """A fixed, ordered list of images that is exactly reproducible."""

    @property
    def labelled(self) -> bool:
        """Whether labels exist in the model's own classes."""
        ...

    @property
    def unlabelled_because(self) -> str:
        """Why there are no labels; empty if there are."""
        ...

    @property
    def attributes(self) -> Mapping[str, np.ndarray]:
        """Further attributes of each image, by name."""
        ...

    @property
    def fingerprint(self) -> str:
        """A hash that changes with any image, label or preprocessing step."""
        ...

    @property
    def protocol(self) -> Mapping[str, Any]:
        """A description of the images and their preprocessing, as plain values."""
        ...

    def __len__(self) -> int: ...

    def known(self) -> Split:
        """The same split without images of classes that the model does not know."""
        ...

    def viewed(self, view: View) -> Split:
        """The same images in another view; raises ``NotApplicable`` if that is impossible."""
        ...

    def names(self, indices: Sequence[int]) -> list[str]:
        """The names of the images at these indices: files, or rows of a table."""
        ...

    def batches(self, indices: Sequence[int], size: int, workers: int = 0) -> Iterator[Batch]:
        """The images at these indices, in batches of ``size``, for any number of workers."""
        ...


class Origin(Protocol):
    """The origin of a subject, which can load further subjects on the same images."""

    def another(self, name: str) -> Subject:
        """A second model, a member of an ensemble, or a snapshot."""
        ...


@dataclass(frozen=True)
class Subject:
    """A model with everything that a probe may need. Its batches are exactly reproducible."""

    name: str
    backbone: nn.Module
    """The model as loaded; it takes normalised images."""
    model: nn.Module
    """The model preceded by its normalisation; it takes images in [0, 1]."""
    replay: Replay
    """The model as a chain of units; it takes images in [0, 1] too."""
    splits: Mapping[str, Split]
    """By name, each with unchanged images; :meth:`split` gives other views."""
    weights: str
    """A tag, a file and its hash, or ``untrained, seed 0``."""
    state: str
    """A hash of the weights when the subject was loaded."""
    fingerprint: str
    """A hash that changes with architecture, weights, normalisation or precision."""
    weight_decay: float = 0.0
    """As in training: probes of the loss add it, and report it separately."""
    seed: int = 0
    batch: int = 64
    workers: int = 0
    passes: int = 0
    """The number of seeded passes of a network that is random at test time; 0 if deterministic."""
    protocol: Mapping[str, Any] = field(default_factory=dict)
    """Facts for the reader: precision, device, versions."""
    origin: Origin | None = None
    """How another process can rebuild the subject and load others on the same images."""
    history: Path | None = None
    """The folder of the training that its weights come from, which contains its snapshots."""

    @property
    def anatomy(self) -> Anatomy:
        """The model's units."""
        return self.replay.anatomy

    def split(self, needs: Needs) -> Split:
        """The images that a probe needs; if they do not exist, the error lists those that do."""
        if (kept := self.splits.get(needs.split)) is None:
            existing = ", ".join(self.splits) or "none"
            seen = (describe_view(needs.view) or {"view": ""})["view"]
            raise NotApplicable(
                f"needs the split {needs.split!r}{f' {seen}' * bool(seen)}; the data have: "
                f"{existing}. Put images into a folder {needs.split}/ with one folder per class"
            )
        found = kept.viewed(needs.view)
        if not needs.labels or (needs.labels == "optional" and not found.labelled):
            return found
        if not found.labelled:
            raise NotApplicable(f"needs labels; {found.unlabelled_because}")
        return found.known()

    def assumptions(self, needs: Needs) -> list[str]:
        """Assumptions about the images of a probe, beyond those that all probes share."""
        assumed = self.protocol.get("assumed", ()) if needs.view == AUGMENTED else ()
        return [text for text in assumed if text.startswith(ASSUMED_AUGMENTATION)]

    @property
    def assumed(self) -> list[str]:
        """The preprocessing that was assumed because the model does not specify it."""
        found = map(str, self.protocol.get("assumed", ()))
        return [text for text in found if not text.startswith(ASSUMED_AUGMENTATION)]

    def another(self, name: str) -> Subject:
        """A further subject on the same images. Probes use ``context.another`` instead."""
        if self.origin is None:
            raise RetinoscopeError(
                f"The probe needs another subject, {name!r}, but {self.name} has no origin to "
                f"load it from. Pass it to load_subject(…, others={{name: module}})"
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
        """The mean loss of the model in its current state, without weight decay."""
        return self.loss(self.model(self.to_device(batch.images)), batch)

    def to_device(self, images: Tensor) -> Tensor:
        """The images on the model's device, in its precision."""
        like: torch.Tensor | None = next(self.model.parameters(), None)
        return images if like is None else images.to(like.device, like.dtype)
