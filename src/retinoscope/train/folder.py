"""A training folder: recipe, log, snapshots and checkpoints.

::

    training.json                     recipe, data and number of steps; identifies the folder
    anatomy.json                      the model's units; written at the end of the training
    log.jsonl                         one line per epoch; depends only on the recipe
    times.jsonl                       how long each epoch took, and on which machine
    snapshots/init.safetensors        before training; also warmup, epoch-0010, …, end
    checkpoints/step-00001200.safetensors   the last two, until the end of the training
    report.html                       the learning curves
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from retinoscope.core.errors import RunFolderError
from retinoscope.core.files import write_atomically
from retinoscope.core.folders import claim_alone, read_mark, writing
from retinoscope.core.history import KIND, LOG, MARK, SCHEMA
from retinoscope.train.recipe import Recipe, differences

_WORDS = ("balanced", "choice")


class TrainingFolder:
    """The files of a training; only one process at a time can open the folder."""

    def __init__(self, path: Path | str, recipe: Mapping[str, Any]) -> None:
        self.path = Path(path)
        self._lock = claim_alone(self.path, MARK, "training")
        try:
            self._check(recipe)
        except BaseException:
            self.close()
            raise

    def _check(self, recipe: Mapping[str, Any]) -> None:
        """Refuse the folder of another recipe."""
        if not (found := self.described()):
            return
        # Settings that did not exist then have their defaults.
        before = Recipe.from_plain(found.get("recipe", {})).to_plain()
        if lines := differences(before, recipe):
            raise RunFolderError(
                f"{str(self.path)!r} holds a training by another recipe: {'; '.join(lines)}. Give "
                "the old recipe to go on with it, or another folder with --out (in Python out=…)."
            )

    def described(self) -> dict[str, Any]:
        """The content of ``training.json``; empty for a new folder."""
        known = (self.path / MARK).is_file()
        return read_mark(self.path, MARK, KIND, SCHEMA) if known else {}

    def describe(self, facts: Mapping[str, Any]) -> list[str]:
        """Write ``training.json``, or compare these facts with it; returns changed versions.

        Raises an error if the data, the model or the teacher have changed.
        """
        before = self.described()
        if not before:
            text = json.dumps({KIND: SCHEMA} | dict(facts), indent=1, ensure_ascii=False)
            self.write(MARK, text + "\n")
            return []
        for what in ("data", "model", "teacher"):
            then, now = (_compared({what: one.get(what)}) for one in (before, facts))
            if lines := differences(then, now):
                raise RunFolderError(
                    f"The {what} is no longer that which {str(self.path)!r} was begun with: "
                    f"{'; '.join(lines)}. Bring the old one back, or use another folder with "
                    "--out (in Python out=…)."
                )
        return differences(before.get("versions", {}), facts["versions"])

    def write(self, name: str, content: str | bytes) -> None:
        """Write a file of the folder atomically."""
        with writing(self.path):
            write_atomically(self.path / name, content)

    def write_log(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Rewrite the whole log, which is short, so that no line is ever incomplete."""
        self.write(LOG, "".join(json.dumps(row, allow_nan=False) + "\n" for row in rows))

    def rows(self) -> list[dict[str, Any]]:
        """The rows of the log so far."""
        log = self.path / LOG
        try:
            return [json.loads(line) for line in log.read_text().splitlines()]
        except (OSError, ValueError):
            return []

    def note_time(self, row: Mapping[str, Any]) -> None:
        """Record how long an epoch took; nothing depends on it."""
        with writing(self.path), (self.path / "times.jsonl").open("a") as file:
            file.write(json.dumps(row) + "\n")

    def snapshot(self, name: str) -> Path:
        """The path of the snapshot of that name."""
        return self.path / "snapshots" / f"{name}.safetensors"

    @property
    def checkpoints(self) -> Path:
        """The folder of checkpoints."""
        return self.path / "checkpoints"

    def finished(self, steps: int) -> bool:
        """Whether the training is complete."""
        rows = self.rows()
        return bool(rows) and rows[-1]["step"] == steps and self.snapshot("end").is_file()

    def close(self) -> None:
        """Release the folder for other processes."""
        self._lock.close()


def _compared(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Facts without those that only describe others in words, which may differ between versions."""
    return {
        key: _compared(value) if isinstance(value, Mapping) else value
        for key, value in facts.items()
        if key not in _WORDS
    }
