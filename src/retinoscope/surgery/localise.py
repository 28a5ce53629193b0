"""Global attention restricted to a window around each query, on any transformer.

Park & Kim, 2022, "How Do Vision Transformers Work?", arXiv:2202.06709, figure 7: attention within
5×5 positions is more accurate than global attention on an 8×8 map. Here windows are cut off at the
border of the map; class, distillation and register tokens see all positions and are seen by all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar

from retinoscope.core.anatomy import Anatomy
from retinoscope.core.settings import REQUIRED, WrongSetting, check, setting
from retinoscope.core.unit import Kind, Unit

if TYPE_CHECKING:
    from torch import Tensor, fx, nn

    from retinoscope.anatomy.attentions import Attention, Places
    from retinoscope.anatomy.dissect import Dissection
    from retinoscope.core.errors import SurgeryRefused
    from retinoscope.layers.attention_mask import AttentionMask
    from retinoscope.surgery.table import Table


@dataclass(frozen=True)
class Localise:
    """Restrict each query to the ``kernel`` × ``kernel`` positions around it.

    Weights do not change, and a window that covers the map changes nothing. The changed model
    accepts only images of the anatomy's size and raises an error for others.
    """

    example_model: ClassVar[str] = "micro_vit"

    kernel: int = setting(
        REQUIRED, "Side of the window in positions of the map; odd.", at_least=1, example=3
    )

    def __post_init__(self) -> None:
        check(self, "localise")
        if self.kernel % 2 == 0:
            raise WrongSetting(
                "localise: kernel must be an odd number of at least 1, because the window is "
                f"centred on its query; got {self.kernel}."
            )

    def operate(self, model: nn.Module, anatomy: Anatomy) -> nn.Module:
        """A copy of ``model`` with local attention; ``model`` itself is not modified."""
        from torch import nn

        from retinoscope.anatomy.record import remember
        from retinoscope.core.errors import WrongInput
        from retinoscope.surgery.table import Table

        table = Table(model, anatomy, "localise")
        wards = _wards(table)
        masks = {ward.module: self._mask(ward) for ward in wards}
        for path, mask in masks.items():
            table.graft(path, mask, "around")
            if isinstance(module := table.module(path), nn.MultiheadAttention):
                # torch's fused encoder layers bypass this module unless it has a hook.
                module.register_forward_hook(_leave_alone)
        try:
            remember(table.patient, self._prove(table, wards, masks))
        except WrongInput as error:  # raised by the masks themselves
            raise table.refusal(
                f"not all of its attention could be intercepted: {error}"
            ) from error
        return table.patient

    def _mask(self, ward: _Ward) -> AttentionMask:
        from retinoscope.layers.attention_mask import AttentionMask

        map_ = f"{ward.queries.height}×{ward.queries.width} positions"
        beside = f" plus {ward.queries.prefix} outside the map" if ward.queries.prefix else ""
        what = f"{self.kernel}×{self.kernel} of {map_}{beside}"
        hidden = self._hidden(ward.queries, ward.keys)
        return AttentionMask(hidden, ward.calls, ward.query_dim, ward.key_dim, what)

    def _hidden(self, queries: Places, keys: Places) -> Tensor:
        """The keys that a query must not see (queries, keys), in storage order."""
        from retinoscope.layers.neighbourhood_attention import neighbourhood_mask

        mask = neighbourhood_mask(queries.height, queries.width, self.kernel, queries.prefix)
        return mask.isinf()[list(queries.order)][:, list(keys.order)]

    def _prove(
        self, table: Table, wards: list[_Ward], masks: Mapping[str, AttentionMask]
    ) -> Dissection:
        """The dissection of the changed model; raises unless all weights of hidden keys are zero.

        The weights are read from the original model's graph with the masks inserted, if the changed
        model gives bit-identical logits, with and without gradients. Otherwise they are read from
        the changed model's own graph.
        """
        from retinoscope.anatomy.dissect import take_apart
        from retinoscope.anatomy.masked import read_from
        from retinoscope.surgery.calls import shaken

        images = _images(table.sites.dissection)
        if images.is_meta:
            raise table.refusal(
                "its weights contain no numbers that could prove that the mask works"
            )
        if found := _foreseen(table, wards, masks):
            shaky = shaken(table.patient)
            seen = read_from(found, table.patient, shaky)
            if _does(shaky, seen, wards, images):
                self._check(table, seen, wards, images)
                return found
        shaky = shaken(table.patient)
        found = take_apart(shaky, table.anatomy.image[1:], name=table.anatomy.model)
        self._check(table, found, wards, images)
        runs, _ = _runs(shaky, wards, images)
        for ward in wards:
            if runs[ward.module] != {ward.runs}:
                raise _unmasked(table, ward)
        return read_from(found, shaky, table.patient)

    def _check(self, table: Table, found: Dissection, wards: list[_Ward], images: Tensor) -> None:
        """Raise unless all weights of hidden keys are zero and all attention was found."""
        from retinoscope.anatomy.attentions import holder, measured, weights
        from retinoscope.layers.attention_mask import along

        units = {ward.module: ward.unit for ward in wards}
        proven: Counter[str] = Counter()
        for attention, values in measured(found, images):
            if (module := holder(found, attention)) not in units:
                continue
            at = weights(found, attention)
            if at.queries is None or at.keys is None:
                continue  # reported as missing below
            hidden = self._hidden(at.queries, at.keys).to(values.device)
            shown = along(~hidden, at.query_dim, at.key_dim)
            if leak := values.masked_fill(shown, 0).abs().amax().item():
                raise table.refusal(
                    "an operation between its softmax and its values gives hidden keys a weight "
                    f"of up to {leak:.2g}",
                    units[module],
                )
            proven[module] += 1
        for ward in wards:
            if proven[ward.module] != ward.attentions:
                raise _unmasked(table, ward)


@dataclass(frozen=True)
class _Ward:
    """A module whose attention is to be masked."""

    module: str
    unit: Unit = field(compare=False)
    """The first unit for which the module attends."""
    queries: Places
    keys: Places
    query_dim: int
    key_dim: int
    attentions: int = 1
    """Number of attentions in one pass through the model."""
    calls: int = 1
    """Number of softmaxes to mask each time the module runs."""
    runs: int = 1
    """How often the module runs in one pass through the model."""
    softmaxes: tuple[fx.Node, ...] = field(default=(), compare=False)
    """The softmaxes to mask, in the model's graph."""


def _wards(table: Table) -> list[_Ward]:
    """The modules that attend; raises if one of the attentions is not global."""
    from retinoscope.anatomy.attentions import attentions

    found = table.sites.dissection
    asked: dict[_Ward, list[Attention]] = {}
    units = table.units((Kind.ATTENTION,))
    for unit in units:
        for attention in attentions(found, table.sites.piece(unit).nodes) or [None]:
            if attention is None:
                raise table.refusal(
                    "its weights do not come from a softmax over keys that can be masked", unit
                )
            if ward := _ward(table, unit, attention):
                asked.setdefault(ward, []).append(attention)
    if not asked:
        raise table.refusal(
            "its only queries are tokens outside the map, which see all positions", units[0]
        )
    everything = [
        attention
        for outer in table.whole
        for attention in attentions(found, found.pieces[outer.name].nodes)
    ]
    return [_counted(table, ward, members, everything) for ward, members in asked.items()]


def _ward(table: Table, unit: Unit, attention: Attention) -> _Ward | None:
    """The module of a global attention; None if no position is a query. Raises if not maskable."""
    from retinoscope.anatomy.attentions import holder, logits
    from retinoscope.anatomy.graph.flow import arguments, operation

    found = table.sites.dissection
    at = logits(found, attention)
    if at.apart:
        raise table.refusal(
            "its attention is not global: it is restricted to parts of the map", unit
        )
    if not at.asks:
        return None
    if at.queries is None or at.keys is None:
        raise table.refusal("its queries or keys are not the positions of one map", unit)
    asking, answering = (
        f"{tokens.height}×{tokens.width}" + (f"+{tokens.prefix}" if tokens.prefix else "")
        for tokens in (at.queries, at.keys)
    )
    if asking != answering:
        raise table.refusal(
            f"its attention is not global: it has {asking} queries but {answering} keys", unit
        )
    if any(operation(node) == "roll" for node in table.sites.piece(unit).nodes):
        raise table.refusal(
            "it rolls the map, so positions that are adjacent in memory need not be neighbours",
            unit,
        )
    if arguments(attention.node).get("is_causal"):
        raise table.refusal("its attention is causal", unit)
    module = holder(found, attention)
    return _Ward(module, unit, at.queries, at.keys, at.query_dim, at.key_dim)


def _counted(
    table: Table, ward: _Ward, members: list[Attention], everything: list[Attention | None]
) -> _Ward:
    """``ward`` with its counts filled in; raises if its module also computes other attention."""
    from retinoscope.anatomy.attentions import run_of

    found, paths = table.sites.dissection, table.sites.paths
    there = {a.node for a in everything if a and ward.module in ("", *paths(a.node))}
    if there != {attention.node for attention in members}:
        raise table.refusal(
            f"{ward.module!r} also computes other attention, of another map or not selected",
            ward.unit,
        )
    softmaxes = [
        (attention, node)
        for attention in members
        for node in attention.softmaxes
        if node is attention.node or _fits(found, node, ward)
    ]
    calls = Counter(run_of(attention.node, ward.module) for attention, _ in softmaxes)
    times, *others = set(calls.values())
    if others:
        raise table.refusal(
            f"{ward.module!r} does not compute the same each time it runs", ward.unit
        )
    return replace(
        ward,
        attentions=len(members),
        calls=times,
        runs=len(calls),
        softmaxes=tuple(dict.fromkeys(node for _, node in softmaxes)),
    )


def _fits(found: Dissection, softmax: fx.Node, ward: _Ward) -> bool:
    """Whether a softmax is over the ward's keys for its queries."""
    from retinoscope.anatomy.graph.flow import arguments

    shape = found.flow.shape(softmax)
    if len(shape) < -min(ward.query_dim, ward.key_dim):
        return False
    sizes = (shape[ward.query_dim], shape[ward.key_dim])
    along = arguments(softmax)["dim"] % len(shape) - len(shape) == ward.key_dim
    return along and sizes == (len(ward.queries.order), len(ward.keys.order))


def _images(found: Dissection) -> Tensor:
    import torch

    source = found.flow.source
    like = source.image.meta["val"]
    shape = (source.batch or 2, *found.anatomy.image)
    drawn = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    return drawn.to(like.device, like.dtype)


def _foreseen(
    table: Table, wards: list[_Ward], masks: Mapping[str, AttentionMask]
) -> Dissection | None:
    """The expected changed model: the model's graph with the masks inserted."""
    from retinoscope.anatomy.attentions import FUSED
    from retinoscope.anatomy.graph.flow import operation
    from retinoscope.anatomy.masked import Mask, masked, read_from
    from retinoscope.layers.attention_mask import along

    put: list[Mask] = []
    for ward in wards:
        part = masks[ward.module]
        spread = along(part.hidden, ward.query_dim, ward.key_dim)
        for node in ward.softmaxes if part.hides else ():
            put.append(Mask(part.hidden if operation(node) == FUSED else spread, node))
    found = masked(table.sites.dissection, put)
    return found and read_from(found, table.model, table.patient)


def _does(patient: nn.Module, found: Dissection, wards: list[_Ward], images: Tensor) -> bool:
    """Whether a changed model gives exactly a graph's logits, and runs its modules as often."""
    import torch

    from retinoscope.anatomy.replay import Replay

    try:
        runs, answers = _runs(patient, wards, images)
    except Exception:  # an export gives a better error message
        return False
    with torch.no_grad():
        expected = Replay(found)(images)
    same = all(torch.equal(answer, expected) for answer in answers)
    return same and all(runs[ward.module] == {ward.runs} for ward in wards)


def _runs(
    patient: nn.Module, wards: Iterable[_Ward], images: Tensor
) -> tuple[dict[str, set[int]], list[Tensor]]:
    """How often each module runs in one pass, with and without gradients; and the logits."""
    import torch

    from retinoscope.anatomy.graph.answer import choose_logits
    from retinoscope.surgery.graft import Around, graft

    class Counting(Around):
        times = 0

        def context(self, *args: object, **kwargs: object) -> nullcontext[None]:
            self.times += 1
            return nullcontext()

    found: dict[str, set[int]] = {}
    answers: list[Tensor] = []
    parts = {ward.module: Counting() for ward in wards}
    for module, part in parts.items():
        graft(patient.get_submodule(module), part, "around")
    for gradients in (False, True):
        with torch.set_grad_enabled(gradients):
            answers.append(choose_logits(patient(images), None).detach())
        for module, part in parts.items():
            found.setdefault(module, set()).add(part.times)
            part.times = 0
    return found, answers


def _unmasked(table: Table, ward: _Ward) -> SurgeryRefused:
    return table.refusal("the model can attend without the mask", ward.unit)


def _leave_alone(module: nn.Module, given: object, answer: object) -> None:
    """A hook that changes nothing."""
