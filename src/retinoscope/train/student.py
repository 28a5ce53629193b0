"""The network that learns: built by its name, behind its normalisation, with branches that drop."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from retinoscope.anatomy.answer import choose_logits
from retinoscope.core.errors import UnknownModel
from retinoscope.core.settings import WrongSetting
from retinoscope.core.specification import Specification
from retinoscope.models.built_file import Construction
from retinoscope.models.load import LoadedModel, load_model
from retinoscope.models.normalise import Normalise
from retinoscope.train.recipe import Recipe

_RATE = {"torchvision": "stochastic_depth_prob"}
"""What a source calls the rate of stochastic depth, where it is not drop_path_rate."""


class Student(nn.Module):
    """Images in [0, 1] to logits; to two of them where a distillation token has its own."""

    def __init__(self, loaded: LoadedModel, distilled: bool = False) -> None:
        super().__init__()
        preprocessing = loaded.preprocessing
        self.normalise = Normalise(preprocessing.mean, preprocessing.std, loaded.image[0])
        self.backbone = loaded.model
        # timm's networks with a distillation token give both answers only when asked to.
        switch = getattr(loaded.model, "set_distilled_training", None)
        self.pairs = distilled and callable(switch)
        if self.pairs and switch is not None:
            switch(True)

    def no_weight_decay(self) -> set[str]:
        """What the network itself wants spared where norms and biases are: embeddings, mostly."""
        own = getattr(self.backbone, "no_weight_decay", set)
        return {f"backbone.{name}" for name in own()}

    def forward(self, images: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        """The logits (N, K), or a pair of them while a network with two answers learns."""
        answer = self.backbone(self.normalise(images))
        if self.pairs and self.training:
            return answer
        return choose_logits(answer, None)


def load_student(recipe: Recipe) -> tuple[LoadedModel, Construction]:
    """The network of a recipe with its first weights, and how it is built.

    Raises:
        WrongSetting: Branches are to drop at random, but the model has none that do.
    """
    asked = Specification.parse(recipe.model)
    built = asked.name.endswith(".safetensors")
    rate = _RATE.get(asked.name.partition(":")[0], "drop_path_rate")
    options: Mapping[str, Any] = asked.options
    if recipe.drop_path and not built:
        options = {**options, rate: recipe.drop_path}
    name = str(Specification(asked.name, options))
    try:
        loaded = load_model(
            name,
            pretrained=recipe.pretrained or built,
            weights=recipe.weights or None,
            seed=recipe.seed,
        )
    except UnknownModel as error:
        if rate in str(error) and rate not in asked.options:
            raise _undroppable(recipe, str(error)) from None
        raise
    if recipe.drop_path and not _drops(loaded.model):
        raise _undroppable(recipe, "no branch of it drops")
    way = loaded.construction
    return loaded, Construction(
        way.model if way else name,
        way.surgeries if way else (),
        way.size if way else loaded.preprocessing.size,
        loaded.weights,
        loaded.trained,
    )


def outputs_of(student: Student, image: tuple[int, int, int]) -> int:
    """How many answers the network has."""
    like = next(student.parameters())
    was_training = student.training
    student.eval()
    with torch.inference_mode():
        logits = student(torch.zeros(1, *image, device=like.device, dtype=like.dtype))
    student.train(was_training)
    assert isinstance(logits, Tensor)  # pairs come in training mode only
    return logits.shape[-1]


def _drops(model: nn.Module) -> bool:
    """Whether any branch is left out at random: timm's and transformers' name, torchvision's."""
    return any(
        getattr(module, "drop_prob", 0) or (type(module).__name__ == "StochasticDepth")
        for module in model.modules()
    )


def _undroppable(recipe: Recipe, why: str) -> WrongSetting:
    return WrongSetting(
        f"{recipe.model} cannot be trained with stochastic depth (drop_path {recipe.drop_path}): "
        f"{why.rstrip('.')}. Train it without, by drop_path=0, or build it with branches that drop."
    )
