"""Builds a subject from names: normalisation plus model, its anatomy, and its images."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from retinoscope import __version__
from retinoscope.anatomy.replay import replay
from retinoscope.core.errors import WrongInput, did_you_mean
from retinoscope.core.preprocessing import Preprocessing
from retinoscope.core.probe import UNTRAINED
from retinoscope.core.specification import short_name, split_label
from retinoscope.core.subject import ASSUMED_AUGMENTATION, Origin, Split, Subject
from retinoscope.data.augment import Augmentation
from retinoscope.data.load import check_data, load_data
from retinoscope.data.source import Source, configured_root
from retinoscope.data.split import ImageSplit
from retinoscope.data.subset import balanced_subset
from retinoscope.models.assumed import settled
from retinoscope.models.built_file import read_construction
from retinoscope.models.checkpoint import CHECKPOINTS, state_hash
from retinoscope.models.device import find_device
from retinoscope.models.finite import check_finite
from retinoscope.models.load import LoadedModel, load_model, untrained
from retinoscope.models.normalise import Normalise, PixelModel
from retinoscope.models.sources import describe_module
from retinoscope.run.labels import has_classifier, model_classes
from retinoscope.run.specification import Precision, SubjectSpecification
from retinoscope.train.recipe import recorded_recipe


def load_subject(
    model: str | nn.Module,
    data: Any = "cues",
    *,
    name: str | None = None,
    others: Mapping[str, nn.Module] | None = None,
    **settings: Any,
) -> Subject:
    """Load a model and its images, ready for probes.

    Args:
        model: A name known to :func:`retinoscope.load_model`, optionally with a label
            (``mine=resnet50``), or a module of your own.
        data: A name (``cues``, ``cifar100``, a folder, a parquet file, ``hf:NAME``), a
            ``Dataset`` of your own, or a dict of datasets by split name.
        name: The name for a module of your own, or a label for a named model.
        others: Further modules of your own, by the names that probes use for them.
        settings: The other fields of :class:`SubjectSpecification`: ``images``, ``size``,
            ``root``, ``batch``, ``precision``, ``augmentation`` and so on.
    """
    known = SubjectSpecification.__dataclass_fields__
    if unknown := set(settings) - set(known):
        raise WrongInput(
            f"load_subject has no setting {', '.join(sorted(unknown))}. "
            f"{did_you_mean(min(unknown), list(known))}Its settings are: {', '.join(known)}."
        )
    if isinstance(model, str):
        label, called = split_label(model)
        model, settings["label"] = called, name or label or settings.get("label")
    else:
        called = settings["label"] = name or type(model).__name__
    described = data if isinstance(data, str) else type(data).__name__
    settings["root"] = settings.get("root") or configured_root()
    specification = SubjectSpecification(called, described, **settings)
    if isinstance(data, str):  # a model may have to be downloaded: first what costs nothing
        check_data(data, specification.root)
    if isinstance(model, str) and isinstance(data, str) and not others:
        return rebuild(specification)
    loaded = _load(specification) if isinstance(model, str) else _live(model, called, specification)
    own = settings | {"label": None}
    return _assemble(specification, loaded, data, Live(model, data, others or {}, own))


def rebuild(specification: SubjectSpecification) -> Subject:
    """Build the subject of a specification."""
    loaded = _load(specification)
    return _assemble(specification, loaded, specification.data, Named(specification))


@dataclass(frozen=True)
class Named:
    """The origin of a subject given by names, which another process can rebuild."""

    specification: SubjectSpecification
    _loaded: dict[str, Subject] = field(default_factory=dict, compare=False, repr=False)

    def another(self, name: str) -> Subject:
        """Another model on the same images, other weights of the same one, or random weights."""
        if name not in self._loaded:
            self._loaded[name] = rebuild(self._specification(name))
        return self._loaded[name]

    def _specification(self, name: str) -> SubjectSpecification:
        if name == UNTRAINED:
            model = str(untrained(self.specification.model, self.specification.weights))
            return replace(self.specification, model=model, weights=None, pretrained=False)
        # A snapshot is the same model with other weights, unless the file names its own model.
        if name.endswith(CHECKPOINTS) and read_construction(Path(name)) is None:
            return replace(self.specification, weights=name)
        return replace(self.specification, model=name, weights=None, label=None, output=None)


@dataclass(frozen=True)
class Live:
    """The origin of a subject made from live objects, which no other process can rebuild."""

    model: str | nn.Module
    """The subject's own model."""
    data: Any
    modules: Mapping[str, nn.Module]
    """Further modules by name."""
    settings: Mapping[str, Any]
    _loaded: dict[str, Subject] = field(default_factory=dict, compare=False, repr=False)

    def another(self, name: str) -> Subject:
        """One of the given modules, a model by its name, or the same with random weights."""
        if name not in self._loaded:
            others = {k: v for k, v in self.settings.items() if k not in ("weights", "output")}
            asked = self.modules.get(name, name)
            if asked == UNTRAINED:
                seed, weights = self.settings.get("seed", 0), self.settings.get("weights")
                asked = untrained(self.model, weights, seed)
                others |= {"pretrained": False, "output": self.settings.get("output")}
            self._loaded[name] = load_subject(asked, self.data, name=name, **others)
        return self._loaded[name]


def _load(specification: SubjectSpecification) -> LoadedModel:
    loaded = load_model(
        specification.model,
        pretrained=specification.pretrained,
        weights=specification.weights,
        seed=specification.seed,
        allow_pickle=specification.allow_pickle,
        size=specification.size,
        mean=specification.mean,
        std=specification.std,
    )
    loaded.model.to(find_device(specification.device), _dtype(specification.precision or "float32"))
    return loaded


def _dtype(precision: Precision) -> torch.dtype:
    return getattr(torch, precision)


def _live(model: nn.Module, name: str, specification: SubjectSpecification) -> LoadedModel:
    if specification.device is not None or specification.precision is not None:
        model = deepcopy(model)  # leaves the user's module unchanged
        if specification.device is not None:
            model.to(find_device(specification.device))
        if specification.precision is not None:
            model.to(_dtype(specification.precision))
    called = f"as given, weights {state_hash(model)}"
    check_finite(model, called)
    built = describe_module(model, called, specification.size)
    built, assumed = settled(built, specification.size, specification.mean, specification.std)
    return LoadedModel(name, model, called, built.image, built.preprocessing, assumed=assumed)


def _assemble(
    asked: SubjectSpecification, loaded: LoadedModel, data: Any, origin: Origin
) -> Subject:
    specification = _as_trained(asked, loaded.history)
    preprocessing = _preprocessing(specification, loaded)
    channels = loaded.image[0]
    like = next(loaded.model.parameters(), torch.empty(0))
    normalise = Normalise(preprocessing.mean, preprocessing.std, channels)
    normalise = normalise.to(like.device, like.dtype)
    example = torch.zeros(1, channels, *preprocessing.size, device=like.device, dtype=like.dtype)
    backbone = loaded.model
    taken = replay(
        backbone,
        example,
        output=specification.output,
        name=specification.model,
        before=normalise,
    )
    taken.anatomy = replace(taken.anatomy, weights=loaded.weights)
    outputs = taken.anatomy.units[-1].channels
    sources = load_data(data, specification.root, preprocessing.size)
    splits = _splits(
        specification, sources, preprocessing, (channels, outputs), loaded.classes,
        has_classifier(backbone, taken.anatomy),
    )  # fmt: skip
    protocol = _protocol(specification, loaded, like)
    if "train" in splits:
        assumed = _assumed_augmentation(specification, loaded)
        protocol["assumed"] = [*protocol.get("assumed", ()), *assumed]
    state = state_hash(backbone)
    plain = [
        specification.model,
        state,
        preprocessing.to_plain(),
        str(like.dtype),
        taken.fingerprint,
        [unit.name for unit in taken.anatomy.walk()],
    ]
    plain += [["passes", specification.passes, specification.seed]] * (specification.passes > 0)
    return Subject(
        name=specification.label or short_name(specification.model),
        backbone=backbone,
        model=PixelModel(normalise, backbone, specification.output).train(backbone.training),
        replay=taken,
        splits=splits,
        weights=loaded.weights,
        state=state,
        fingerprint=hashlib.sha256(json.dumps(plain).encode()).hexdigest(),
        weight_decay=specification.weight_decay or 0.0,
        seed=specification.seed,
        batch=specification.batch,
        workers=specification.workers,
        passes=specification.passes,
        protocol=protocol,
        origin=origin,
        history=loaded.history,
    )


def _as_trained(specification: SubjectSpecification, history: Path | None) -> SubjectSpecification:
    """Fill in the loss settings that the user left open, from the training of the weights."""
    recipe = None if history is None else recorded_recipe(history)
    if recipe is None:
        return specification
    given = specification.augmentation, specification.weight_decay
    return replace(
        specification,
        augmentation=recipe.augmentation if given[0] is None else given[0],
        weight_decay=recipe.weight_decay if given[1] is None else given[1],
    )


def _preprocessing(specification: SubjectSpecification, loaded: LoadedModel) -> Preprocessing:
    """The model's own preprocessing, with the user's changes."""
    own = loaded.preprocessing
    if specification.size is not None and specification.size != own.size:
        own = replace(own, size=specification.size)
    changed = {
        key: getattr(specification, key)
        for key in ("crop_pct", "crop_mode", "interpolation", "mean", "std")
        if getattr(specification, key) is not None
    }
    return replace(own, **changed)


def _splits(
    specification: SubjectSpecification,
    sources: Mapping[str, Source],
    preprocessing: Preprocessing,
    shape: tuple[int, int],
    known: tuple[str, ...] | None,
    classifier: bool,
) -> dict[str, Split]:
    channels, outputs = shape
    splits: dict[str, Split] = {}
    for name, source in sources.items():
        classes, reason = model_classes(source, outputs, known, classifier)
        indices = balanced_subset(
            source.labels, len(source), specification.images, specification.seed
        )
        # Images generated at the model's size need no crop.
        made = hasattr(source, "read_many")
        augmentation = specification.augmentation or Augmentation()
        splits[name] = ImageSplit(
            name, source, indices,
            replace(preprocessing, crop_pct=1.0) if made else preprocessing,
            channels, classes, outputs, called=specification.data, unlabelled_because=reason,
            in_training=augmentation if name == "train" else None, seed=specification.seed,
            balanced=source.labels is not None and len(indices) < len(source),
        )  # fmt: skip
    return splits


def _assumed_augmentation(specification: SubjectSpecification, loaded: LoadedModel) -> list[str]:
    """The warning to give if the augmentation in the training of the weights is unknown."""
    if specification.augmentation is not None or loaded.trained is False:
        return []
    return [
        f"{ASSUMED_AUGMENTATION}: random crop and flip, because it is not known how these weights "
        "were trained. If you know, pass --recipe NAME, or augmentation=Augmentation(…) in Python"
    ]


def _protocol(
    specification: SubjectSpecification, loaded: LoadedModel, like: torch.Tensor
) -> dict[str, Any]:
    import timm

    return {
        "model": specification.model,
        "weights": loaded.weights,
        "trained": loaded.trained,
        "assumed": list(loaded.assumed),
        "precision": str(like.dtype).removeprefix("torch."),
        "device": like.device.type,
        "seed": specification.seed,
        "weight decay": specification.weight_decay or 0.0,
        "batch": specification.batch,
        **({"passes": specification.passes} if specification.passes else {}),
        "versions": {
            "retinoscope": __version__,
            "torch": torch.__version__,
            "timm": timm.__version__,
            "python": platform.python_version(),
        },
    }
