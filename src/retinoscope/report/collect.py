"""Reads run and training folders, without the models; this is the only input of a report."""

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
from retinoscope.run.status import NOTE, SKIPPED, UNFINISHED, finished_pieces, read_asked
from retinoscope.train.curves import LearningCurves, read_curves


@dataclass(frozen=True)
class Measured:
    """A result, with the record of how it was made."""

    result: Result
    note: dict[str, Any]


@dataclass
class Examined:
    """One subject of a run folder, or the content of a training folder."""

    name: str
    weights: str
    anatomy: Anatomy
    protocol: dict[str, Any]
    measured: list[Measured] = field(default_factory=list)
    skipped: list[dict[str, Any]] = field(default_factory=list)
    """Probes that gave no result, each with its status (not applicable, failed) and the reason."""
    unfinished: list[dict[str, Any]] = field(default_factory=list)
    """Probes that were started but have no result yet, with the number of finished pieces."""
    problems: list[str] = field(default_factory=list)
    """Files that could not be read."""


@dataclass
class Collected:
    """The content of several folders."""

    examined: list[Examined] = field(default_factory=list)
    """In the order of the folders, and within a folder in the order of the request."""
    waiting: list[str] = field(default_factory=list)
    """Requested models that were not loaded before the run was stopped."""
    failures: list[tuple[str, str]] = field(default_factory=list)
    """Models that could not be examined, with the reason."""
    left_out: list[tuple[str, str]] = field(default_factory=list)
    """Folders that are not shown, with the reason."""
    commands: list[str] = field(default_factory=list)
    """The commands that resume unfinished runs."""


def collect(runs: Iterable[Path | str], empty: bool = False) -> Collected:
    """Read all subjects of all folders.

    Args:
        runs: Run folders and training folders.
        empty: Whether to include folders without any measurement.
    """
    found = Collected()
    for run in map(Path, runs):
        subjects = _subjects(run)
        if not empty and not any(_shows(subject) for subject in subjects):
            found.left_out.append((str(run), "nothing has been measured in it yet"))
            continue
        found.examined += subjects
        asked = read_asked(run)
        waiting = [one for one in asked.models if one.folder is None]
        found.waiting += [one.name for one in waiting if not one.reason]
        found.failures += [(one.name, one.reason) for one in asked.models if one.reason]
        if asked.command and (found.waiting or any(one.unfinished for one in subjects)):
            found.commands.append(asked.command)
    if not found.examined and not empty:
        raise UnreadableFile(
            "Nothing has been measured in these folders yet: "
            f"{', '.join(folder for folder, _ in found.left_out)}. "
            "Measure something with: retinoscope examine MODEL --out FOLDER"
        )
    return found


def _shows(subject: Examined) -> bool:
    return bool(subject.measured or subject.skipped or subject.problems or subject.unfinished)


def _subjects(run: Path) -> list[Examined]:
    trained = [_trained(run)] if (run / "training.json").is_file() else []
    if not (run / "run.json").is_file() and not trained:
        raise UnreadableFile(
            f"{str(run)!r} is not a run folder: it has neither run.json nor training.json. Create "
            "one with: retinoscope examine MODEL --out FOLDER"
        )
    folders = sorted(path.parent for path in run.glob("*/subject.json"))
    order = [one.folder for one in read_asked(run).models]
    folders.sort(key=lambda f: order.index(f.name) if f.name in order else len(order))
    return trained + [_subject(folder) for folder in folders]


def _trained(folder: Path) -> Examined:
    """A training as a subject with nothing but its learning curves."""
    called, problems = folder.resolve().name, []
    try:
        anatomy = Anatomy.from_json((folder / "anatomy.json").read_text())
    except FileNotFoundError:  # written at the end of training
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
    """The learning curves of a subject's weights, if its folder has them."""
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


def _subject(folder: Path) -> Examined:
    try:
        plain = json.loads((folder / "subject.json").read_bytes())
        anatomy = Anatomy.from_json((folder / "anatomy.json").read_text())
        examined = Examined(plain["name"], plain["weights"], anatomy, dict(plain["protocol"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        problem = f"{folder.name} cannot be read: {error}. Measure the model again."
        return Examined(folder.name, "", Anatomy(folder.name, ()), {}, problems=[problem])
    for note in sorted(folder.glob(f"*{NOTE}")):
        _read(note, examined)
    for path in sorted(folder.glob(f"*{SKIPPED}")):
        examined.skipped += _plain(path, examined)
    for path in sorted(folder.glob(f"*{UNFINISHED}")):
        done = finished_pieces(folder, path.name.removesuffix(UNFINISHED))
        examined.unfinished += [plain | {"done": done} for plain in _plain(path, examined)]
    _curves(folder, examined)
    return examined


def _plain(path: Path, examined: Examined) -> list[dict[str, Any]]:
    """The content of a small file about a probe; damaged files are reported."""
    try:
        return [dict(json.loads(path.read_bytes()))]
    except (OSError, ValueError, TypeError):
        examined.problems.append(f"{path.name} is damaged.")
        return []


def _read(note: Path, examined: Examined) -> None:
    stem = note.name.removesuffix(NOTE)
    try:
        result = _result(note.parent, stem)
        examined.measured.append(Measured(result, dict(json.loads(note.read_bytes()))))
    except (RetinoscopeError, OSError, ValueError, TypeError) as error:
        examined.problems.append(f"{stem}: {error}")


def _result(folder: Path, stem: str) -> Result:
    """A result of one of our probes, or of a user's probe."""
    name = stem.partition(".")[0]
    if name in list_probes():
        return get_probe(name).result.load(folder, stem)
    return load_described(folder, stem)
