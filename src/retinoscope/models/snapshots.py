"""Find, order and read the snapshots of a training.

Three kinds of folder contain snapshots:

- a training folder of ours: ``snapshots/init``, ``warmup``, ``epoch-0010``, …, ``end``;
- a folder of packaged weights: ``warmup`` and ``end``, and the seed of the initial weights;
- any other folder with ``.safetensors`` files, in the natural order of their names.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from retinoscope.core.errors import (
    NotApplicable,
    RetinoscopeError,
    UnreadableFile,
    WeightsMismatch,
)
from retinoscope.core.history import MARK
from retinoscope.core.probe import Needs
from retinoscope.core.subject import Subject
from retinoscope.models.built_file import names_code
from retinoscope.models.checkpoint import file_hash, read_checkpoint, state_hash
from retinoscope.models.damage import unreadable
from retinoscope.models.history import find_history
from retinoscope.models.load import load_model

_RANKS = {"init": 0, "warmup": 1, "end": 3}
"""Sort order of our own names; all other names have 2."""
_LISTED = 4
_HELD = 2**24
"""Number of values in memory at a time, over all snapshots together: 128 MB."""
_FLAG = "--probe trajectory:snapshots=FOLDER (in Python Trajectory(snapshots=FOLDER))"


class NoSnapshots(RetinoscopeError):
    """A folder does not contain the snapshots of a training."""


@dataclass(frozen=True)
class Snapshot:
    """The weights of a model at one moment of its training: a file, or a seed."""

    name: str
    epoch: float
    """Epochs since the start of the training, including warm-up."""
    path: Path | None
    seed: int | None = None
    """Random seed of the weights, if there is no file."""
    model: str = ""
    """Name of the model to draw weights for, if there is no file."""
    weights: str = ""
    """Expected hash of the drawn weights, if there is no file."""


def find_snapshots(folder: Path | str) -> tuple[Snapshot, ...]:
    """Return the snapshots in a folder in training order; there must be two or more.

    In a folder of another tool, the epoch is the last number in the file name. If a name has no
    number, or the numbers do not increase, the epoch is the index of the file.
    """
    here = Path(folder).expanduser().resolve()
    if not here.is_dir():
        raise NoSnapshots(
            f"There is no folder {str(folder)!r} to take snapshots from. Name the folder of a "
            "training, or one with .safetensors files."
        )
    training = find_history(here / "any")
    ours = training is not None and here in (training, training / "snapshots")
    found = _of_training(training) if training is not None and ours else _of_files(here)
    if len(found) < 2:
        names = ", ".join(one.name for one in found) or "none"
        raise NoSnapshots(
            f"{str(here)!r} holds too few snapshots for a path, which needs two or more: {names}. "
            "Train with snapshots=10 to keep one every ten epochs, or name a folder of "
            f".safetensors files with {_FLAG}."
        )
    return found


def snapshots_of(subject: Subject, needs: Needs, *, fitting: bool = False) -> tuple[Snapshot, ...]:
    """Return the snapshots that a probe needs; raise ``NotApplicable`` if the subject has none.

    Args:
        subject: The subject whose training is examined.
        needs: Needs of the probe. Without a folder, that of the subject's own training is used.
        fitting: Also check that each snapshot fits the subject's model.
    """
    if not needs.snapshots and subject.history is None:
        raise NotApplicable(
            f"needs the snapshots of a training; the weights of {subject.name} do not come from a "
            f"training folder. Name one with {_FLAG}"
        )
    try:
        found = find_snapshots(needs.snapshots or subject.history or "")
        if fitting:
            check_fit(found, subject.backbone)
    except RetinoscopeError as error:
        if needs.snapshots:
            raise
        # The user did not name this folder, so it must not stop the other probes.
        raise NotApplicable(f"needs the snapshots of a training. {error}") from error
    return found


def fingerprint(snapshots: Sequence[Snapshot]) -> str:
    """A hash of all snapshots' weights, names and epochs; moving the folder does not change it."""
    plain = [asdict(s) | {"path": s.path and file_hash(s.path)} for s in snapshots]
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


def read_snapshot(snapshot: Snapshot) -> dict[str, Tensor]:
    """Return all weights and buffers by name: read from the file, or drawn and checked."""
    if snapshot.path is not None:
        return read_checkpoint(snapshot.path)
    if names_code(snapshot.model):  # the author of the folder must not run code here
        raise WeightsMismatch(
            f"The snapshot {snapshot.name!r} is to be drawn from {snapshot.model}, which is code "
            "of its maker's and is not run. Put a file "
            f"{snapshot.name}.safetensors into the folder."
        )
    model = load_model(snapshot.model, pretrained=False, seed=snapshot.seed or 0).model
    if (drawn := state_hash(model)) != snapshot.weights:
        raise WeightsMismatch(
            f"The snapshot {snapshot.name!r} does not come again: seed {snapshot.seed} gives "
            f"{snapshot.model} weights with the hash {drawn}, not {snapshot.weights}. Other "
            "versions of torch and timm draw otherwise: use those that the training's "
            f"{MARK} names, or put a file {snapshot.name}.safetensors into the folder."
        )
    return model.state_dict()


def check_fit(snapshots: Sequence[Snapshot], model: nn.Module) -> None:
    """Raise an error for snapshots of another architecture; only file headers are read."""
    own = model.state_dict()
    for snapshot in snapshots:
        if found := differences(own, _shapes(snapshot)):
            raise WeightsMismatch(
                f"The snapshot {snapshot.name!r} ({snapshot.path or snapshot.model}) does not fit "
                f"{type(model).__name__}: {found}. Name the folder of a training of this very "
                f"model with {_FLAG}, or build the model as it was trained (options such as "
                "MODEL:num_classes=10 stand behind its name)."
            )


def differences(own: Mapping[str, Tensor], shapes: Mapping[str, tuple[int, ...]]) -> str:
    """Describe how other weights do not fit a model's own; empty if they fit.

    Example:
        >>> differences({"a": torch.zeros(2), "b": torch.zeros(1)}, {"a": (3,)})
        '1 missing: b; 1 of another shape: a (3,) instead of (2,)'
    """
    other = [
        f"{name} {shapes[name]} instead of {tuple(own[name].shape)}"
        for name in own
        if name in shapes and shapes[name] != tuple(own[name].shape)
    ]
    kinds = {
        "missing": [name for name in own if name not in shapes],
        "not in the model": [name for name in shapes if name not in own],
        "of another shape": other,
    }
    return "; ".join(
        f"{len(names)} {kind}: {', '.join(names[:_LISTED])}{', …' * (len(names) > _LISTED)}"
        for kind, names in kinds.items()
        if names
    )


def gram_matrix(snapshots: Sequence[Snapshot], model: nn.Module) -> np.ndarray:
    """Inner products (T, T) of the snapshots relative to the last one, over all parameters.

    Computed in double precision and in parts, so that no two whole snapshots are in memory.
    Buffers, such as batch norm statistics, are not parameters.
    """
    check_fit(snapshots, model)
    count = len(snapshots)
    gram = np.zeros((count, count))
    with ExitStack() as stack:
        readers = [stack.enter_context(_opened(snapshot)) for snapshot in snapshots]
        for name, parameter in model.named_parameters():
            for part in _parts(tuple(parameter.shape), count):
                rows = torch.stack([read(name, part).double().flatten() for read in readers])
                _check_finite(rows, name, snapshots)
                apart = (rows - rows[-1]).numpy()
                gram += apart @ apart.T
    return gram


def _parts(shape: tuple[int, ...], count: int) -> Iterator[Any]:
    """Yield the index of each part to read: some rows of a tensor, or ``...`` if it has none."""
    if not shape or 0 in shape:
        yield ...
        return
    each = max(1, _HELD * shape[0] // (count * int(np.prod(shape))))
    yield from (slice(start, start + each) for start in range(0, shape[0], each))


def _check_finite(rows: Tensor, name: str, snapshots: Sequence[Snapshot]) -> None:
    for snapshot, finite in zip(snapshots, rows.isfinite().all(1), strict=True):
        if not finite:
            raise RetinoscopeError(
                f"The snapshot {snapshot.name!r} holds weights that are no finite numbers, in "
                f"{name}: its training had diverged. Name a folder without it with {_FLAG}."
            )


@contextmanager
def _opened(snapshot: Snapshot) -> Iterator[Callable[[str, Any], Tensor]]:
    """A context with a function that reads a part of a tensor, given its name."""
    if snapshot.path is None:
        state = read_snapshot(snapshot)
        yield lambda name, part: state[name][part]
        return
    with _open(snapshot.path) as file:
        yield (
            lambda name, part: file.get_tensor(name) if part is ... else file.get_slice(name)[part]
        )


def _open(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt")
    except (SafetensorError, OSError):
        raise unreadable(path) from None


def _shapes(snapshot: Snapshot) -> dict[str, tuple[int, ...]]:
    if snapshot.path is None:
        return {name: tuple(tensor.shape) for name, tensor in read_snapshot(snapshot).items()}
    with _open(snapshot.path) as file:
        return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}


def _of_training(folder: Path) -> tuple[Snapshot, ...]:
    recipe = _json(folder / MARK, "recipe", "model", "warmup", "epochs")
    warmup = float(recipe["warmup"])
    known = {"init": 0.0, "warmup": warmup, "end": warmup + recipe["epochs"]}
    inside = folder / "snapshots" if (folder / "snapshots").is_dir() else folder
    found: dict[str, Snapshot] = {}
    for path in inside.glob("*.safetensors"):
        if behind := re.fullmatch(r"epoch-(\d+)", path.stem):
            # Epochs in file names are counted from the end of warm-up.
            found[path.stem] = Snapshot(path.stem, warmup + int(behind[1]), path)
        elif path.stem in known:
            found[path.stem] = Snapshot(path.stem, known[path.stem], path)
    if "init" not in found and (folder / "init.json").is_file():
        first = _json(folder / "init.json", "", "seed", "weights")
        found["init"] = Snapshot(
            "init", 0.0, None, int(first["seed"]), str(recipe["model"]), str(first["weights"])
        )
    if not warmup and "init" in found:
        found.pop("warmup", None)  # the same weights as init
    return tuple(sorted(found.values(), key=lambda one: (one.epoch, _RANKS.get(one.name, 2))))


def _json(path: Path, within: str, *needed: str) -> dict[str, Any]:
    """Read the needed keys of a JSON file, or of the object under its key ``within``."""
    try:
        plain = json.loads(path.read_bytes())
        plain = plain[within] if within else plain
        return {key: plain[key] for key in needed}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UnreadableFile(
            f"{str(path)!r} does not say what is needed to order the snapshots of a training "
            f"({', '.join(needed)}): {type(error).__name__}: {error}."
        ) from None


def _of_files(folder: Path) -> tuple[Snapshot, ...]:
    paths = [path for path in folder.glob("*.safetensors") if not path.name.startswith(".")]
    paths.sort(key=lambda path: (_RANKS.get(path.stem, 2), _natural(path.stem)))
    numbers = [float(found[-1]) for p in paths if (found := re.findall(r"\d+", p.stem))]
    rising = all(a < b for a, b in pairwise(numbers))
    if len(numbers) < len(paths) or not rising:
        numbers = [float(place) for place in range(len(paths))]
    return tuple(Snapshot(p.stem, epoch, p) for p, epoch in zip(paths, numbers, strict=True))


def _natural(name: str) -> list[tuple[int, str]]:
    """Sort key that compares numbers by value: ``epoch-2`` comes before ``epoch-10``."""
    return [(int(part or 0), "") if i % 2 else (0, part)
            for i, part in enumerate(re.split(r"(\d+)", name))]  # fmt: skip
