"""Explains why a probe is not applicable, with a command that would make it so."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from retinoscope.core.errors import NotApplicable
from retinoscope.core.subject import Subject
from retinoscope.models.snapshots import snapshots_of
from retinoscope.probes import write_probe
from retinoscope.run.work import Question


def check_there(probe: Question, subject: Subject) -> None:
    """Raise ``NotApplicable`` if a subject lacks something that a probe needs.

    The deciding reason is reported first: without snapshots or a classifier, other images would not
    help.
    """
    needs = probe.needs
    if needs.snapshots is not None:
        snapshots_of(subject, needs)
    splits = subject.splits.values()
    if needs.labels is True and splits and not any(split.labelled for split in splits):
        raise NotApplicable(f"needs labels; {next(iter(splits)).unlabelled_because}")
    subject.split(needs)


def explained(reason: NotApplicable, probe: Question, subject: Subject) -> str:
    """The reason, and a setting with which the probe can use the available images, if any.

    By default, a probe of the loss uses training images. If there are none but the test images have
    labels, the probe can use those instead.
    """
    text = str(reason)
    other = _on_test_images(probe)
    if other is None or not _is_there(other, subject):
        return text
    return (
        f"{text.rstrip('.')}. Measure it on the test images instead: --probe {write_probe(other)}"
    )


def _on_test_images(probe: Any) -> Any | None:
    """The same probe with ``images=test``, if it has that setting and another value is set."""
    named = {one.name for one in fields(probe)}
    if "images" not in named or getattr(probe, "images") in ("test", None):  # noqa: B009
        return None
    try:
        return replace(probe, images="test")
    except (TypeError, ValueError):
        return None


def _is_there(probe: Question, subject: Subject) -> bool:
    """Whether a subject has the images that a probe needs."""
    try:
        return len(subject.split(probe.needs)) > 0 and probe.needs.snapshots is None
    except NotApplicable:
        return False
