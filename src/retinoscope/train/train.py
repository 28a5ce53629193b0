"""Train a model by a recipe into a folder. The same call resumes an interrupted training.

A step depends only on the recipe and on the step number, so a checkpoint holds weights, optimiser
state and a number, but no random generators and no position in a data loader.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import torch

from retinoscope.train.listener import Listener
from retinoscope.train.processes import Processes, processes
from retinoscope.train.recipe import Recipe
from retinoscope.train.training import Trained, Training


def train_model(
    recipe: Recipe,
    out: Path | str,
    *,
    name: str = "",
    root: str | None = None,
    workers: int = 0,
    device: str | None = None,
    listeners: Sequence[Listener] = (),
    until: int | None = None,
    checkpoint_every: float = 60.0,
) -> Trained:
    """Train a model by a recipe into a folder; resumes if an earlier call was interrupted.

    Args:
        recipe: All settings that determine the trained weights.
        out: Output folder; the folder of another recipe is refused.
        name: Name of the recipe.
        root: Folder to look for files in. Default: RETINOSCOPE_DATA.
        workers: Number of processes that read and augment images; it does not change the result.
        device: Device to train on. Default: the best available.
        listeners: Are notified of every step and epoch.
        until: Stop after this many steps; another call resumes.
        checkpoint_every: Seconds between two checkpoints.
    """
    with processes(device) as team, _generators_kept(team):
        told = tuple(listeners) if team.first else ()
        training = Training(recipe, Path(out), name, root, team, told)
        try:
            return training.run(workers, until, checkpoint_every)
        finally:
            training.close()


def _generators_kept(team: Processes) -> AbstractContextManager[None]:
    """Restore torch's global generators after the block."""
    used = [team.device] if team.device.type == "cuda" else []
    return torch.random.fork_rng(devices=used)
