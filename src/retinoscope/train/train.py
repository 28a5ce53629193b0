"""A recipe and a folder → a trained model. The same call goes on where it was stopped.

What a step does depends on the recipe and on the number of the step alone, so a checkpoint holds
weights, optimiser state and a number: no generator, no position in a loader.
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
    """Train by a recipe, into a folder; goes on where an earlier call was stopped.

    Args:
        recipe: What decides which weights come out.
        out: The folder; one of another recipe is refused.
        name: What to call the recipe.
        root: Where data lie; RETINOSCOPE_DATA if not given.
        workers: Processes that read and augment images; they change no bit.
        device: Where to train; the best there is if not given.
        listeners: Who is told.
        until: Stop when so many steps are done, for another call to go on.
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
    """Around what reseeds the global generators: afterwards they are as before."""
    used = [team.device] if team.device.type == "cuda" else []
    return torch.random.fork_rng(devices=used)
