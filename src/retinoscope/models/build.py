"""Apply surgeries to a model given by name, and list which of its weights were kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import torch
from torch import nn

from retinoscope.anatomy.dissect import known_or_taken_apart
from retinoscope.core.anatomy import Anatomy
from retinoscope.core.errors import WrongInput
from retinoscope.core.preprocessing import Size, image_size
from retinoscope.core.specification import Specification, short_name
from retinoscope.core.surgery import Surgery
from retinoscope.core.wording import assumed_words
from retinoscope.models.assumed import Channels
from retinoscope.models.built_file import Construction, write_built
from retinoscope.models.load import LoadedModel, load_model, split_weights
from retinoscope.surgery import parse_surgery, write_surgery
from retinoscope.surgery.operate import operate


@dataclass(frozen=True)
class BuiltModel:
    """A model after surgeries, with its anatomy before them."""

    model: nn.Module
    construction: Construction
    before: Anatomy
    kept: tuple[str, ...]
    """State dict keys whose values did not change."""
    new: tuple[str, ...]
    """Keys that were added or whose values or shape changed."""
    lost: tuple[str, ...]
    """Keys that were removed or whose values or shape changed."""

    @cached_property
    def after(self) -> Anatomy:
        """The anatomy after the surgeries, computed on first access."""
        size, name = self.construction.size, self.before.model
        return known_or_taken_apart(self.model, size, name).anatomy

    def save(self, path: Path | str) -> None:
        """Write a file from which ``load_model`` rebuilds the model with its weights."""
        if Path(path).suffix != ".safetensors":
            raise WrongInput(f"A built model is a .safetensors file; got {str(path)!r}.")
        write_built(Path(path), self.model, self.construction)


def build_model(
    name: str,
    surgeries: Sequence[Surgery | str],
    *,
    size: Size | None = None,
    pretrained: bool = True,
    weights: Path | str | None = None,
    seed: int = 0,
    allow_pickle: bool = False,
    mean: Channels | None = None,
    std: Channels | None = None,
    say: Callable[[str], None] | None = None,
) -> BuiltModel:
    """Load the model ``name`` and apply surgeries to it.

    Args:
        name: A name that ``load_model`` accepts, including the file of a built model.
        surgeries: Surgeries, or their string form, in the order in which they are applied.
        size: Image size: 224, or (height, width). Default: the model's own.
        pretrained: Load the published weights. False: random weights drawn from ``seed``.
        weights: A weights file to load instead.
        seed: Random seed of untrained weights and of those that surgeries draw.
        allow_pickle: Also read ``.pth`` files that run code.
        mean: Mean of the normalisation, stored in the file. Default: the model's own.
        std: Standard deviation of the normalisation, likewise.
        say: Called with a message if something about the images had to be assumed.
    """
    given = [surgeries] if isinstance(surgeries, str) else surgeries
    asked = None if size is None else image_size(size)
    chosen = [parse_surgery(s) if isinstance(s, str) else s for s in given]
    loaded = load_model(
        name, pretrained=pretrained, weights=weights, seed=seed, allow_pickle=allow_pickle,
        size=asked, mean=mean, std=std,
    )  # fmt: skip
    if say is not None and loaded.assumed:
        say(assumed_words(short_name(name), loaded.assumed))
    made, sides = loaded.construction, loaded.image[1:]
    if made and sides != made.size:
        raise WrongInput(
            f"{name} was built for images of {made.size[0]}×{made.size[1]}, so it cannot be built "
            f"further for {sides[0]}×{sides[1]}. Start again from {made.model}."
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model, anatomy = _operated(loaded, chosen, sides)
    before, after = loaded.model.state_dict(), model.state_dict()
    kept = [
        key
        for key in before.keys() & after.keys()
        if before[key].shape == after[key].shape and torch.equal(before[key], after[key])
    ]
    written = tuple(write_surgery(surgery) for surgery in chosen)
    return BuiltModel(
        model,
        Construction(
            made.model if made else str(split_weights(Specification.parse(name))[0]),
            (*(made.surgeries if made else ()), *written),
            sides,
            loaded.weights,
            loaded.trained,
            loaded.preprocessing.mean if mean is not None else made and made.mean,
            loaded.preprocessing.std if std is not None else made and made.std,
        ),
        replace(anatomy, weights=loaded.weights),
        tuple(sorted(kept)),
        tuple(sorted(after.keys() - set(kept))),
        tuple(sorted(before.keys() - set(kept))),
    )


def _operated(
    loaded: LoadedModel, surgeries: Sequence[Surgery], size: tuple[int, int]
) -> tuple[nn.Module, Anatomy]:
    """Return the model after all surgeries, and its anatomy before them."""
    before = known_or_taken_apart(loaded.model, size, loaded.name).anatomy
    if not surgeries:
        return loaded.model, before
    return operate(loaded.model, *surgeries, example=size, name=loaded.name), before
