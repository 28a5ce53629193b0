"""The key of a measurement: a hash of everything that determines the result, and nothing else."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from retinoscope.core.catalogue import source_of
from retinoscope.core.probe import Probe, Watcher
from retinoscope.core.subject import Subject
from retinoscope.models.snapshots import fingerprint, snapshots_of

_DIGITS = 12


def settings_of(probe: Probe | Watcher) -> dict[str, Any]:
    """The settings of a probe as plain values.

    Example:
        >>> from retinoscope.probes.fourier import Fourier
        >>> settings_of(Fourier(bands=9))["bands"]
        9
    """
    return {f.name: _plain(getattr(probe, f.name)) for f in fields(probe)}  # type: ignore[arg-type]


def name_of(probe: Probe | Watcher) -> str:
    """The name of a probe, which is also that of its results and of its file.

    Example:
        >>> from retinoscope.probes.variance import Variance
        >>> name_of(Variance())
        'variance'
    """
    return probe.result.probe


def key_of(probe: Probe | Watcher, subject: Subject) -> str:
    """A hash of model weights, data, settings and schema, in twelve hexadecimal digits.

    The way in which the work is done (batch size, workers, engine) does not affect it.
    """
    needs = probe.needs
    plain = {
        "probe": name_of(probe),
        "schema": probe.schema,
        "settings": settings_of(probe),
        "model": subject.fingerprint,
        "data": subject.split(needs).fingerprint,
        # Affects losses only, which need labels.
        "weight decay": subject.weight_decay if needs.labels is True else 0.0,
        "others": [subject.another(name).fingerprint for name in needs.others],
    }
    if (source := source_of(type(probe))) is not None:  # the user's code may have changed
        plain["source"] = hashlib.sha256(source.read_bytes()).hexdigest()
    if needs.group is not None:  # the grouping of images affects the result
        plain["group"] = needs.group
    if needs.labels is True:  # parameters without gradient do not enter the curvature of a loss
        named = subject.backbone.named_parameters()
        plain["frozen"] = [name for name, tensor in named if not tensor.requires_grad]
    if needs.snapshots is not None:
        plain["snapshots"] = fingerprint(snapshots_of(subject, needs))
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()[:_DIGITS]


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return value
