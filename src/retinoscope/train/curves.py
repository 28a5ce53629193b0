"""Learning curves: the log of a training over epochs.

A training writes ``training.json`` (recipe and data) and ``log.jsonl`` (one line per epoch). Both
are read here without the model, so a report needs only these two files.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from retinoscope.core.errors import UnreadableFile
from retinoscope.core.history import KIND, LOG, MARK, SCHEMA
from retinoscope.core.result import Result, answer, axes

_COLUMNS = ("epoch", "step", "lr", "nll_train", "nll", "accuracy", "ece", "images")
_ALWAYS, _COUNTS = ("epoch", "step"), ("epoch", "step", "images")
_ELSEWHERE = {"model", "data", "batch", "weight_decay", "augmentation", "precision", "seed"}
"""Settings of a recipe that have their own line in every protocol."""
_AGAIN = "Go on with the training by the same command, or train into another folder."

QUESTION = "How did it learn?"
READING = (
    "Epoch 0 is the network before training; a dashed line marks the end of the warm-up. The "
    "training NLL is a mean over the epoch, while the weights change, and of images as they were "
    "augmented, mixed and labelled smoothly, so it need not lie below the test NLL. A test NLL "
    "that rises while the accuracy does not fall is a network that grows too sure of itself."
)


@answer
class LearningCurves(Result):
    """``nll[s, e]`` on split s, other values on the test split; all at ``epoch[e]``.

    Values that are missing in the log are NaN: the training NLL at epoch 0, and all test values if
    there are no test images.
    """

    probe: ClassVar[str] = "training"
    schema: ClassVar[int] = 1

    splits: tuple[str, ...]
    """The rows of ``nll``."""
    planned: int
    """Number of epochs, including warm-up."""
    phases: tuple[tuple[float, str], ...]
    """Epochs at which a phase ends, with a label."""
    epoch: np.ndarray = axes("epoch", figure=False)
    step: np.ndarray = axes("epoch", unit="optimiser steps", x="epoch", figure=False)
    nll: np.ndarray = axes(
        "split", "epoch", unit="NLL (nats)", x="epoch", rows="splits", marks="phases",
        title="Negative log-likelihood: of training data as augmented, of test data as they are",
    )  # fmt: skip
    accuracy: np.ndarray = axes(
        "epoch", unit="share that is right", x="epoch", marks="phases",
        title="Accuracy on test data",
    )  # fmt: skip
    ece: np.ndarray = axes(
        "epoch", unit="ECE", x="epoch", marks="phases",
        title="Expected calibration error on test data",
    )  # fmt: skip
    lr: np.ndarray = axes(
        "epoch", unit="learning rate", x="epoch", marks="phases",
        title="Learning rate of each epoch's last step",
    )  # fmt: skip


def read_curves(folder: Path | str) -> LearningCurves:
    """The curves of a training, from the two files in ``folder``.

    The training may be unfinished, and the files may be copies stored with a measured model.
    """
    training, log = Path(folder) / MARK, Path(folder) / LOG
    plain, rows = _training(training), _rows(log)
    columns = {key: np.array([row[key] for row in rows]) for key in _COLUMNS}
    try:
        warmup = int(plain["recipe"]["warmup"])
        planned = warmup + int(plain["recipe"]["epochs"])
        protocol = _protocol(plain, rows[-1], planned)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise UnreadableFile(
            f"{str(training)!r} lacks what it should say: {type(error).__name__}: {error}. {_AGAIN}"
        ) from None
    return LearningCurves(
        protocol=protocol,
        splits=("train", "test"),
        planned=planned,
        phases=((float(warmup), "end of warm-up"),) if warmup else (),
        epoch=columns["epoch"],
        step=columns["step"],
        nll=np.stack([columns["nll_train"], columns["nll"]]),
        accuracy=columns["accuracy"],
        ece=columns["ece"],
        lr=columns["lr"],
    )


def _training(path: Path) -> dict[str, Any]:
    try:
        # NaN is refused, because the values are written to a page as JSON.
        plain = json.loads(path.read_text("utf-8"), parse_constant=_refused)
        found = plain.get(KIND)
    except (OSError, ValueError, AttributeError) as error:
        raise UnreadableFile(
            f"{str(path)!r} cannot be read as that of a training: {error}. {_AGAIN}"
        ) from None
    if found != SCHEMA:
        raise UnreadableFile(
            f"{str(path)!r} is of the form {found!r}, but this version reads trainings of the form "
            f"{SCHEMA}. {_AGAIN}"
        )
    return plain


def _refused(name: str) -> float:
    raise ValueError(f"{name} is no value")


def _rows(path: Path) -> list[dict[str, float]]:
    """The rows of a log, at least one, in the order of their epochs."""
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise UnreadableFile(f"{str(path)!r} cannot be read as a log: {error}. {_AGAIN}") from None
    if not lines:
        raise UnreadableFile(f"{str(path)!r} holds no epoch yet. {_AGAIN}")
    rows: list[dict[str, float]] = []
    for place, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
            rows.append({key: _value(key, row[key]) for key in _COLUMNS})
            _check_order(rows)
        except KeyError as error:
            raise _damaged(path, place, f"it has no {error.args[0]}") from None
        except (ValueError, TypeError, OverflowError) as error:
            raise _damaged(path, place, str(error)) from None
    return rows


def _value(key: str, value: Any) -> float:
    if value is None and key not in _ALWAYS:
        return math.nan
    expected = int if key in _COUNTS else (int, float)
    if isinstance(value, bool) or not isinstance(value, expected):
        raise ValueError(f"{key} is {value!r}, not a {'count' if key in _COUNTS else 'number'}")
    return float(value)


def _check_order(rows: Sequence[Mapping[str, float]]) -> None:
    if len(rows) > 1 and not rows[-2]["epoch"] < rows[-1]["epoch"]:
        raise ValueError(f"epoch {rows[-1]['epoch']:g} comes after {rows[-2]['epoch']:g}")


def _damaged(path: Path, place: int, why: str) -> UnreadableFile:
    return UnreadableFile(f"Line {place} of {str(path)!r} is damaged: {why}. {_AGAIN}")


def _protocol(plain: Mapping[str, Any], last: Mapping[str, float], planned: int) -> dict[str, Any]:
    """The protocol that every result has, and the recipe."""
    recipe, name, train = plain["recipe"], str(plain["name"]), plain["data"]["train"]
    test = plain["data"].get("test") or {}
    tested = 0 if math.isnan(last["images"]) else int(last["images"])
    done = f"{last['epoch']:g} of {planned} epochs"
    return dict(train) | {
        "model": str(recipe["model"]),
        "weights": f"recipe {name}, seed {recipe['seed']}, {done}",
        "trained": last["epoch"] > 0,
        "data": str(plain["data"]["called"]),
        "split": str(train.get("split", "train")),
        # Without the seed, unlike the split's: trainings that differ in the seed are compared.
        "augmentation": dict(recipe["augmentation"]),
        "weight decay": recipe["weight_decay"],
        "precision": str(recipe["precision"]),
        "batch": recipe["batch"],
        "seed": recipe["seed"],
        "epochs": f"{recipe['warmup']} of warm-up, then {recipe['epochs']}",
        "tested on": f"{tested} images of {test.get('split', 'test')}" if tested else "nothing",
        "recipe": {"name": name} | {k: v for k, v in recipe.items() if k not in _ELSEWHERE},
        "versions": dict(plain.get("versions") or {}),
        "question": QUESTION,
        "reading": READING,
    }
