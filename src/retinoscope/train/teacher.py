"""The teacher of a distillation."""

from __future__ import annotations

import torch
from torch import nn

from retinoscope.core.errors import WrongInput, first_line
from retinoscope.models.load import load_model
from retinoscope.train.processes import Processes
from retinoscope.train.recipe import Recipe
from retinoscope.train.student import Student


def load_teacher(
    recipe: Recipe, image: tuple[int, int, int], outputs: int, team: Processes
) -> tuple[nn.Module | None, str | None]:
    """The teacher, from images in [0, 1] to logits, and the name of its weights; or None, None."""
    if recipe.distillation == "none":
        return None, None
    loaded = load_model(recipe.teacher, size=image[1:])
    dtype = torch.float64 if recipe.precision == "float64" else torch.float32
    teacher = Student(loaded).to(team.device, dtype).eval().requires_grad_(False)
    example = torch.zeros(1, *image, device=team.device, dtype=dtype)
    try:
        with torch.no_grad():
            answers = teacher(example).shape[-1]
    except Exception as error:  # a wrong size or number of channels can fail anywhere
        raise WrongInput(
            f"The teacher {recipe.teacher} does not take the images of {recipe.model}, "
            f"{'×'.join(map(str, image))}: {first_line(error)} Name one that does."
        ) from error
    if answers != outputs:
        raise WrongInput(
            f"The teacher {recipe.teacher} has {answers} answers, {recipe.model} has {outputs}: "
            "there is nothing to distil. Name one that was trained on the same classes."
        )
    return teacher, loaded.weights
