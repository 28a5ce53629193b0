"""What run and training folders hold, read without the models: the only input of a report."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from retinoscope.core.anatomy import Anatomy
from retinoscope.core.errors import RetinoscopeError, UnreadableFile
from retinoscope.core.history import LOG, MARK
from retinoscope.core.result import Result, load_described
from retinoscope.probes import get_probe, list_probes
from retinoscope.train.curves import LearningCurves, read_curves


@dataclass(frozen=True)
class Measured:
    """A result, and how it came to be."""

    result: Result
    note: dict[str, Any]


@dataclass
class Examined:
    """One subject of a run folder, or what a training folder holds."""

    name: str
    weights: str
    anatomy: Anatomy
    protocol: dict[str, Any]
    measured: list[Measured] = field(default_factory=list)
    skipped: list[dict[str, Any]] = field(default_factory=list)
    """Probes that were not applicable, each with its reason."""
    problems: list[str] = field(default_factory=list)
    """Files that could not be read."""


def collect(runs: Iterable[Path]) -> list[Examined]:
    """All subjects of all folders, in the order of the folders and of their names."""
    found = [subject for run in runs for subject in _subjects(Path(run))]
    if not any(subject.measured or subject.skipped or subject.problems for subject in found):
        raise UnreadableFile(
            "Nothing has been measured in these folders yet. "
            "Measure something with: retinoscope examine MODEL --out FOLDER"
        )
    return found


def _subjects(run: Path) -> list[Examined]:
    trained = [_trained(run)] if (run / "training.json").is_file() else []
    if not (run / "run.json").is_file() and not trained:
        raise UnreadableFile(
            f"{str(run)!r} is not a run folder: it has no run.json, nor the training.json of a "
            "training. Make one with: retinoscope examine MODEL --out FOLDER"
        )
    folders = sorted(path.parent for path in run.glob("*/subject.json"))
    order = _order(run)
    folders.sort(key=lambda f: order.index(f.name) if f.name in order else len(order))
    return trained + [_subject(folder) for folder in folders]


def _trained(folder: Path) -> Examined:
    """A training as a subject of which nothing is known but how it learned."""
    called, problems = folder.resolve().name, []
    try:
        anatomy = Anatomy.from_json((folder / "anatomy.json").read_text())
    except FileNotFoundError:  # it is written when the training is done
        anatomy = Anatomy(called, ())
    except (OSError, ValueError, KeyError, TypeError) as error:
        anatomy = Anatomy(called, ())
        problems.append(f"The anatomy in {called} cannot be read: {error}.")
    examined = Examined(anatomy.model, anatomy.weights, anatomy, {}, problems=problems)
    if (curves := _curves(folder, examined)) is not None:
        protocol = curves.protocol
        examined.name, examined.weights = protocol["model"], protocol["weights"]
        examined.protocol = {"trained": protocol["trained"]}
    return examined


def _curves(folder: Path, examined: Examined) -> LearningCurves | None:
    """How the weights of a subject were learned, if its folder says so."""
    if not any((folder / name).exists() for name in (MARK, LOG)):
        return None
    try:
        curves = read_curves(folder)
    except UnreadableFile as error:
        examined.problems.append(f"training: {error}")
        return None
    last = int(curves.epoch[-1])
    unfinished = [f"not finished: {last} of {curves.planned} epochs"] * (last < curves.planned)
    examined.measured.append(Measured(curves, {"notices": unfinished}))
    return curves


def _order(run: Path) -> list[str]:
    """The order in which the subjects were asked for last, where it is known."""
    try:
        return list(json.loads((run / "order.json").read_bytes()))
    except (OSError, ValueError, TypeError):
        return []


def _subject(folder: Path) -> Examined:
    try:
        plain = json.loads((folder / "subject.json").read_bytes())
        anatomy = Anatomy.from_json((folder / "anatomy.json").read_text())
        examined = Examined(plain["name"], plain["weights"], anatomy, dict(plain["protocol"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        problem = f"{folder.name} cannot be read: {error}. Measure the model again."
        return Examined(folder.name, "", Anatomy(folder.name, ()), {}, problems=[problem])
    for note in sorted(folder.glob("*.note.json")):
        _read(note, examined)
    for path in sorted(folder.glob("*.skipped.json")):
        try:
            examined.skipped.append(dict(json.loads(path.read_bytes())))
        except (OSError, ValueError, TypeError):
            examined.problems.append(f"{path.name} is damaged.")
    _curves(folder, examined)
    return examined


def _read(note: Path, examined: Examined) -> None:
    stem = note.name.removesuffix(".note.json")
    try:
        result = _result(note.parent, stem)
        examined.measured.append(Measured(result, dict(json.loads(note.read_bytes()))))
    except (RetinoscopeError, OSError, ValueError, TypeError) as error:
        examined.problems.append(f"{stem}: {error}")


def _result(folder: Path, stem: str) -> Result:
    """A result of one of our probes, or of one that a user has written."""
    name = stem.partition(".")[0]
    if name in list_probes():
        return get_probe(name).result.load(folder, stem)
    return load_described(folder, stem)
