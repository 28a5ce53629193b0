"""The network to train: built by name, after its normalisation, with stochastic depth."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from retinoscope.anatomy.graph.answer import choose_logits
from retinoscope.core.errors import UnknownModel
from retinoscope.core.preprocessing import image_size
from retinoscope.core.settings import WrongSetting
from retinoscope.core.specification import Specification
from retinoscope.layers.dropout import MonteCarloDropout
from retinoscope.models.built_file import Construction
from retinoscope.models.load import LoadedModel, load_model, split_weights
from retinoscope.models.normalise import Normalise
from retinoscope.train.recipe import Recipe

_RATE = {"torchvision": "stochastic_depth_prob"}
"""Name of the stochastic depth rate by source, if it is not drop_path_rate."""
_AT_LEAST = 0.75
"""Rates rise with depth up to the requested one; some torchvision networks do not reach it."""


class Student(nn.Module):
    """Maps images in [0, 1] to logits, or to two of them if a distillation token has its own."""

    def __init__(self, loaded: LoadedModel, distilled: bool = False) -> None:
        super().__init__()
        preprocessing = loaded.preprocessing
        self.normalise = Normalise(preprocessing.mean, preprocessing.std, loaded.image[0])
        self.backbone = loaded.model
        self.image = (loaded.image[0], *preprocessing.size)
        # timm's networks with a distillation token return both outputs only on request.
        switch = getattr(loaded.model, "set_distilled_training", None)
        self.pairs = distilled and callable(switch)
        if self.pairs and switch is not None:
            switch(True)

    def no_weight_decay(self) -> set[str]:
        """Parameters that the network itself exempts from weight decay, mostly embeddings."""
        own = getattr(self.backbone, "no_weight_decay", set)
        return {f"backbone.{name}" for name in own()}

    def forward(self, images: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        """The logits (N, K), or two of them for a network with two outputs in training mode."""
        answer = self.backbone(self.normalise(images))
        if self.pairs and self.training:
            return answer
        return choose_logits(answer, None)


def load_student(recipe: Recipe) -> tuple[LoadedModel, Construction]:
    """The network of a recipe with its initial weights, and how it is built.

    Raises:
        WrongSetting: Its stochastic depth, image size or weights differ from the recipe's.
    """
    if _names_weights(recipe):
        raise WrongSetting(
            f"{recipe.model} names weights, but the training would begin with random ones. Say "
            "pretrained=True to begin with them, or leave the tag out."
        )
    name, loaded = _load(recipe)
    found = largest_rate(loaded.model)
    if not _AT_LEAST * recipe.drop_path <= found <= recipe.drop_path + 1e-6:
        raise WrongSetting(
            f"{recipe.model} would be trained with stochastic depth of {found:g}, not "
            f"{recipe.drop_path:g} as the recipe says: it was built otherwise, or has no branches "
            f"that drop. Say drop_path={found:g}, or name a model that takes a rate."
        )
    way, own = loaded.construction, loaded.preprocessing
    if way and own.size != way.size:
        raise WrongSetting(
            f"{recipe.model} was built for images of {way.size[0]}×{way.size[1]}, so it cannot be "
            f"trained on {own.size[0]}×{own.size[1]}. Leave --size (in Python size=…) "
            f"out, or build it again from {way.model}."
        )
    return loaded, Construction(
        way.model if way else str(split_weights(Specification.parse(name))[0]),
        way.surgeries if way else (),
        own.size,
        loaded.weights,
        loaded.trained,
        own.mean,
        own.std,
    )


def draws(model: nn.Module) -> bool:
    """Whether a network is random in training mode, by dropout or stochastic depth."""
    dropouts = (nn.modules.dropout._DropoutNd, MonteCarloDropout)
    return bool(largest_rate(model)) or any(
        isinstance(module, dropouts) and module.p > 0 for module in model.modules()
    )


def largest_rate(model: nn.Module) -> float:
    """The highest rate of stochastic depth in a network; 0 if there is none.

    It is read from ``drop_prob`` as in timm and transformers, or from torchvision's modules.
    """
    rates = [0.0]
    for module in model.modules():
        if isinstance(found := getattr(module, "drop_prob", None), float | int):
            rates.append(float(found))
        elif type(module).__name__ == "StochasticDepth":
            rates.append(float(module.p))  # type: ignore[arg-type]
    return max(rates)


def _names_weights(recipe: Recipe) -> bool:
    """Whether the name has a tag of timm's, but its weights are not requested."""
    name = Specification.parse(recipe.model).name
    elsewhere = ":" in name or name.endswith((".safetensors", ".py"))
    return "." in name and not (elsewhere or recipe.pretrained or recipe.weights)


def _load(recipe: Recipe) -> tuple[str, LoadedModel]:
    """The model, built with the recipe's stochastic depth if possible, and its full name."""
    asked = Specification.parse(recipe.model)
    rate = _RATE.get(asked.name.partition(":")[0], "drop_path_rate")
    told = str(Specification(asked.name, {**asked.options, rate: recipe.drop_path}))
    fixed = asked.name.endswith(".safetensors") or rate in asked.options
    if not recipe.drop_path or fixed:
        loaded = _loaded(recipe.model, recipe)
        # Some models have stochastic depth by default.
        if fixed or not largest_rate(loaded.model):
            return recipe.model, loaded
    try:
        return told, _loaded(told, recipe)
    except UnknownModel as error:
        if rate not in str(error):
            raise
    return recipe.model, _loaded(recipe.model, recipe)


def _loaded(name: str, recipe: Recipe) -> LoadedModel:
    built = Specification.parse(name).name.endswith(".safetensors")
    return load_model(
        name,
        pretrained=recipe.pretrained or built,
        weights=recipe.weights or None,
        seed=recipe.seed,
        size=image_size(recipe.size) if recipe.size else None,
        mean=recipe.mean or None,
        std=recipe.std or None,
    )


def shape_of(student: Student) -> tuple[int, int]:
    """The number of channels and of outputs of the network."""
    like = next(student.parameters())
    was_training = student.training
    student.eval()
    with torch.inference_mode():
        logits = student(torch.zeros(1, *student.image, device=like.device, dtype=like.dtype))
    student.train(was_training)
    assert isinstance(logits, Tensor)  # pairs come in training mode only
    return student.image[0], logits.shape[-1]
