"""Experiment trackers that follow a training: TensorBoard, Weights & Biases, MLflow.

Each writes into the training folder, unless the user's environment names another location. A
resumed training continues the same run, without duplicate rows. A failing tracker does not stop a
training.
"""

from __future__ import annotations

import json
import os
import re
import time
import warnings
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol
from uuid import uuid4

from retinoscope.core.errors import RetinoscopeError, did_you_mean, first_line
from retinoscope.core.files import write_atomically
from retinoscope.train.listener import Listener, Started

# Consecutive failures after which a tracker is disabled: each may have waited for a network.
_PATIENCE = 3


class UnknownTracker(RetinoscopeError, LookupError):
    """No tracker of that name exists."""


class TrackerMissing(RetinoscopeError, ImportError):
    """The package of a tracker is not installed."""


@dataclass(frozen=True)
class Kept:
    """What is saved about a tracker's run from one process to the next."""

    run: str = ""
    store: str = ""
    step: int = -1
    """Step of the last row in the run."""


class Book(Protocol):
    """The run of a training in a tracker; ``open`` creates or resumes it."""

    module: str
    entry: str
    """A name that the module must define to be the right one."""
    folder: str

    def open(self, package: Any, started: Started, kept: Kept) -> Kept: ...  # noqa: D102
    def write(self, numbers: Mapping[str, float], step: int) -> None: ...  # noqa: D102
    def close(self, finished: bool) -> None: ...  # noqa: D102


class TensorBoard:
    """Event files in ``DIR/tensorboard``; see them with ``tensorboard --logdir DIR``."""

    module, entry, folder = "torch.utils.tensorboard", "SummaryWriter", "tensorboard"

    def open(self, package: Any, started: Started, kept: Kept) -> Kept:
        """Hide rows of steps that will be repeated; write the recipe as a table at the start."""
        held = min(kept.step, started.done)
        self._writer = package.SummaryWriter(
            log_dir=str(started.folder / self.folder), purge_step=held + 1 if held >= 0 else None
        )
        if held < 0:
            lines = [f"| {name} | {value} |" for name, value in flattened(started.recipe).items()]
            table = "\n".join(["| setting | value |", "|---|---|", *lines])
            self._writer.add_text("recipe", table, global_step=0)
        return replace(kept, step=held)

    def write(self, numbers: Mapping[str, float], step: int) -> None:
        """Write one scalar per number, and flush it to disk."""
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, global_step=step)
        self._writer.flush()

    def close(self, finished: bool) -> None:
        """Close the file."""
        self._writer.close()


class WeightsAndBiases:
    """A run of Weights & Biases, by default offline in ``DIR/wandb``: ``wandb sync`` uploads it.

    With ``WANDB_MODE=online`` or a ``WANDB_API_KEY`` in the environment it is sent to the server.
    ``WANDB_DIR``, ``WANDB_PROJECT``, ``WANDB_NAME`` and ``WANDB_RUN_ID`` are respected too.
    """

    module, entry, folder = "wandb", "init", "wandb"

    def open(self, package: Any, started: Started, kept: Kept) -> Kept:
        """Create a run, or resume the one with the saved id."""
        theirs, folder = os.environ, started.folder
        label = re.sub(r"[^A-Za-z0-9_.-]+", "-", folder.name)[:40]
        run = theirs.get("WANDB_RUN_ID") or kept.run or f"{label}-{uuid4().hex[:8]}"
        mode = theirs.get("WANDB_MODE") or ("online" if "WANDB_API_KEY" in theirs else "offline")
        ours = {"WANDB_PROJECT": ("project", "retinoscope"), "WANDB_NAME": ("name", folder.name),
                "WANDB_DIR": ("dir", str(folder)), "WANDB_MODE": ("mode", mode)}  # fmt: skip
        options: dict[str, Any] = {
            name: value for variable, (name, value) in ours.items() if not theirs.get(variable)
        }
        if mode not in ("offline", "dryrun", "disabled"):
            options |= {"resume": "allow", "allow_val_change": True}
        # The terminal output is redrawn all the time, which makes no sense in a file.
        self._run = package.init(
            id=run, config=flattened(started.recipe), settings={"console": "off"}, **options
        )
        # An offline run cannot be resumed: the new file replaces the one before when both are
        # uploaded, so it gets all rows again.
        held = self._run.starting_step - 1 if self._run.resumed else -1
        return replace(kept, run=run, step=held)

    def write(self, numbers: Mapping[str, float], step: int) -> None:
        """Log a step that is visible immediately instead of with the next one."""
        self._run.log(dict(numbers), step=step, commit=True)

    def close(self, finished: bool) -> None:
        """Wait until everything is written or uploaded."""
        self._run.finish()


class MLflow:
    """A run of MLflow, by default in ``DIR/mlruns/mlflow.db``; ``MLFLOW_TRACKING_URI`` overrides.

    See it with ``mlflow ui --backend-store-uri sqlite:///DIR/mlruns/mlflow.db``: new versions of
    MLflow refuse stores of plain files. ``MLFLOW_EXPERIMENT_NAME`` is respected too.
    """

    module, entry, folder = "mlflow", "MlflowClient", "mlruns"

    def open(self, package: Any, started: Started, kept: Kept) -> Kept:
        """Create a run with the recipe as its parameters, or resume the saved one."""
        theirs = os.environ.get("MLFLOW_TRACKING_URI", "")
        room = (started.folder / self.folder).absolute()
        room.mkdir(parents=True, exist_ok=True)
        address = theirs or f"sqlite:///{(room / 'mlflow.db').as_posix()}"
        # A separate client, so that the user's active run and tracking URI do not change.
        self._client = package.MlflowClient(tracking_uri=address)
        store = re.sub("//[^/@]*@", "//", theirs)  # without a password
        if kept.run and kept.store == store:
            self._run = kept.run
            self._client.update_run(self._run, status="RUNNING")
            return kept
        experiment = self._experiment(None if theirs else (room / "artifacts").as_uri())
        created = self._client.create_run(experiment, run_name=started.folder.name)
        self._run = created.info.run_id
        param = import_module("mlflow.entities").Param
        settings = flattened(started.recipe).items()
        self._client.log_batch(self._run, params=[param(name, str(v)) for name, v in settings])
        return Kept(self._run, store)

    def _experiment(self, artifacts: str | None) -> str:
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or "retinoscope"
        found = self._client.get_experiment_by_name(name)
        if found is None:
            return self._client.create_experiment(name, artifact_location=artifacts)
        return found.experiment_id

    def write(self, numbers: Mapping[str, float], step: int) -> None:
        """Write one metric per number, in one request."""
        metric, now = import_module("mlflow.entities").Metric, int(1000 * time.time())
        metrics = [metric(name, float(value), now, step) for name, value in numbers.items()]
        self._client.log_batch(self._run, metrics=metrics)

    def close(self, finished: bool) -> None:
        """Set the final status of the run."""
        self._client.set_terminated(self._run, status="FINISHED" if finished else "KILLED")


TRACKERS: dict[str, type[Book]] = {
    "tensorboard": TensorBoard,
    "wandb": WeightsAndBiases,
    "mlflow": MLflow,
}


class Tracker:
    """A listener that writes each row to a book once; failed rows are retried next epoch."""

    def __init__(self, name: str, package: Any, tell: Callable[[str], None]) -> None:
        self._name, self._package, self._tell = name, package, tell
        self._book: Book = TRACKERS[name]()
        self._started: Started | None = None

    def begin(self, started: Started) -> None:
        """Open the book."""
        self._started, self._done = started, started.done
        self._kept: Kept | None = None
        self._waiting: deque[Mapping[str, Any]] = deque()
        self._failures, self._told = 0, False
        self._try(self._write)

    def step(self, step: int) -> None:
        """Remember the number of steps done."""
        self._done = step

    def epoch(self, row: Mapping[str, Any]) -> None:
        """Write the row, and those that failed before."""
        self._waiting.append(row)
        self._try(self._write)

    def say(self, text: str) -> None:
        """Ignore messages: trackers hold numbers."""

    def end(self) -> None:
        """Write rows that failed before, and close the book."""
        if self._started is None:
            return
        self._try(self._write)
        if self._kept is not None:
            finished = self._done >= self._started.steps
            self._try(lambda: self._book.close(finished))
        self._started = None

    def _try(self, action: Callable[[], None]) -> None:
        if self._failures >= _PATIENCE:
            return
        try:
            action()
            self._failures = 0
        except Exception as error:  # a tracker may raise anything
            self._failures += 1
            if not self._told:
                self._tell(
                    f"The tracker {self._name} failed: {first_line(error)} "
                    "The training goes on, and log.jsonl holds every row."
                )
            self._told = True

    def _write(self) -> None:
        if self._started is None:
            return
        file = self._started.folder / self._book.folder / "retinoscope.json"
        if self._kept is None:
            self._kept = self._book.open(self._package, self._started, _known(file))
            write_atomically(file, json.dumps(asdict(self._kept)))
        while self._waiting:
            row = self._waiting[0]
            if row["step"] > self._kept.step:
                self._book.write(_numbers(row), row["step"])
                self._kept = Kept(self._kept.run, self._kept.store, row["step"])
                write_atomically(file, json.dumps(asdict(self._kept)))
            self._waiting.popleft()


def get_tracker(name: str, tell: Callable[[str], None] | None = None) -> Listener:
    """The tracker of that name; its first failure is passed to ``tell`` or becomes a warning."""
    if (book := TRACKERS.get(name)) is None:
        raise UnknownTracker(
            f"There is no tracker {name!r}. {did_you_mean(name, list(TRACKERS))}"
            f"There are: {', '.join(TRACKERS)}."
        )
    try:
        package = import_module(book.module)
        # A folder called wandb in the working directory can be imported too, but defines nothing.
        getattr(package, book.entry)
    except (ImportError, AttributeError) as error:
        raise TrackerMissing(
            f"The tracker {name} cannot be used: {first_line(error)} "
            f"Install it with: pip install 'retinoscope[{name}]'"
        ) from error
    return Tracker(name, package, tell or (lambda text: warnings.warn(text, stacklevel=2)))


def flattened(recipe: Mapping[str, Any], within: str = "") -> dict[str, Any]:
    """Nested settings as one flat mapping, with dots in names.

    Example:
        >>> flattened({"lr": 0.1, "augmentation": {"mixup": 0.8}})
        {'lr': 0.1, 'augmentation.mixup': 0.8}
    """
    flat: dict[str, Any] = {}
    for name, value in recipe.items():
        path = f"{within}{name}"
        flat |= flattened(value, f"{path}.") if isinstance(value, Mapping) else {path: value}
    return flat


def _numbers(row: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a row without its step, which is passed separately."""
    return {
        name: value
        for name, value in row.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and name != "step"
    }


def _known(file: Path) -> Kept:
    try:
        return Kept(**json.loads(file.read_text()))
    except (OSError, ValueError, TypeError):
        return Kept()
