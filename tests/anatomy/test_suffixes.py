"""Lesions against surgery by hand: the eager model with its own forward functions changed."""

from functools import partial

import pytest
import torch
from torch import nn

from anatomy.small_networks import Inside, Own, close, images, mean, network, turned
from retinoscope.anatomy.lesions import (
    convolution_lesions,
    head_lesions,
    pair_lesions,
    prefix_lesions,
    stage_lesions,
    unit_lesions,
)
from retinoscope.anatomy.replay import replay
from retinoscope.anatomy.suffixes import run_lesions
from retinoscope.core.errors import NotResidual, UnknownUnit
from retinoscope.models.order_one import draw_at_order_one


def resnet(block):
    """A post-activation block whose branch is gone: its last ReLU stays."""
    return lambda x: block.act3(x)


def convnext(block):
    return lambda x: x


def vit(block, without):
    """A block of ViT or Swin without attention or MLP."""

    def forward(x, **_):
        if without == "mlp":
            return first(x)
        return x + block.mlp(block.norm2(x)) if x.ndim == 3 else second(x)

    def first(x):
        return x + (block._attn if x.ndim == 4 else block.attn)(block.norm1(x))

    def second(x):
        flat = x.flatten(1, 2)
        return (flat + block.mlp(block.norm2(flat))).reshape(x.shape)

    return forward


@torch.inference_mode()
def by_hand(model, unit, x, monkeypatch):
    """The logits with the forward function of one block replaced."""
    if isinstance(model, Own):
        monkeypatch.setattr(model, "off", (unit,))
    else:
        path, _, branch = unit.rpartition(".")
        split = branch in ("attn", "mlp")
        block = model.get_submodule(path if split else unit)
        kind = vit if split else resnet if hasattr(block, "conv3") else convnext
        forward = partial(kind, without=branch)(block) if split else kind(block)
        monkeypatch.setattr(block, "forward", forward)
    try:
        return model(x)
    finally:
        monkeypatch.undo()


@pytest.mark.parametrize("name", ["resnet", "vit", "swin", "convnext", "own"])
def test_units_equal_changed_forward_functions(name, monkeypatch):
    (model, ours, _), x = network(name), images(name)
    found = run_lesions(ours, unit_lesions, [x])
    with torch.inference_mode():
        torch.testing.assert_close(found.intact, model(x), rtol=1e-5, atol=1e-5)
    lesions = unit_lesions(ours)
    assert len(lesions) == {"resnet": 2, "vit": 4, "swin": 6, "convnext": 5, "own": 3}[name]
    for lesion, logits in zip(lesions, found.lesioned, strict=True):
        expected = by_hand(model, lesion.name, x, monkeypatch)
        close(logits, expected, found.intact, lesion.name)
        with torch.inference_mode():
            torch.testing.assert_close(logits, ours.without(lesion.name)(x), rtol=0, atol=0)


@pytest.mark.parametrize(("name", "stages"), [("vit", 1), ("swin", 2), ("resnet", 2)])
def test_stages_and_pairs_are_several_lesions_at_once(name, stages):
    (_, ours, _), x = network(name), images(name)
    for find in (stage_lesions, pair_lesions):
        found, lesions = run_lesions(ours, find, [x]), find(ours)
        assert len(lesions) == (stages if find is stage_lesions else len(unit_lesions(ours)) - 1)
        for lesion, logits in zip(lesions, found.lesioned, strict=True):
            removed = {unit.name for unit in lesion.units}
            with torch.inference_mode():
                state = x
                for unit, segment in zip(ours.anatomy, ours.network.segments, strict=True):
                    whole = ours.network.constants(len(x))
                    changed = ours._lesioned(unit) if unit.name in removed else segment
                    state = changed(state, len(x), *whole)
            close(logits, state, found.intact, lesion.name)


@torch.inference_mode()
def test_inner_units_alone_and_in_a_pair(monkeypatch):
    """The skip of the second is the output of the first, which is gone too."""
    model = draw_at_order_one(Inside()).eval()
    ours, x = replay(model, 16), torch.rand(2, 3, 16, 16)
    for find, off in ((unit_lesions, [("a",), ("b",)]), (pair_lesions, [("a", "b")])):
        found, lesions = run_lesions(ours, find, [x]), find(ours)
        for lesion, logits, gone in zip(lesions, found.lesioned, off, strict=True):
            assert tuple(unit.name for unit in lesion.units) == gone
            monkeypatch.setattr(model, "off", gone)
            close(logits, model(x), found.intact, lesion.name)
    influence = run_lesions(ours, unit_lesions, [x]).influence
    y = model.into(model.stem(x)).relu()
    after = y + model.a(y).relu()
    expected = 1 - torch.cosine_similarity(y.double(), after.double(), 1).mean((1, 2))
    torch.testing.assert_close(influence[:, 0], expected, rtol=1e-5, atol=1e-7)


def test_convolutions_equal_identities_in_their_place():
    """The paper's lesion of a bottleneck: its norm and activation stay."""
    (model, ours, _), x = network("resnet"), images("resnet")
    names = [lesion.name for lesion in convolution_lesions(ours)]
    assert names == ["layer1.0.conv2", "layer1.1.conv2", "layer4.1.conv2"]
    found = run_lesions(ours, convolution_lesions, [x])
    for name, logits in zip(names, found.lesioned, strict=True):
        conv = model.get_submodule(name)
        model.set_submodule(name, nn.Identity())
        with torch.inference_mode():
            expected = model(x)
        model.set_submodule(name, conv)
        close(logits, expected, found.intact, name)
    assert [one.name for one in convolution_lesions(ours, ["layer1.1"])] == names[1:2]


def test_depthwise_and_own_convolutions(monkeypatch):
    _, ours, _ = network("convnext")
    assert next(one.name for one in convolution_lesions(ours)) == "stages.0.blocks.0.conv_dw"
    (model, ours, _), x = network("own"), images("own")
    found = run_lesions(ours, convolution_lesions, [x])
    assert [one.name for one in convolution_lesions(ours)] == ["conv"]
    close(found.lesioned[0], by_hand(model, "kernel", x, monkeypatch), found.intact, "conv")
    assert convolution_lesions(network("vit")[1]) == []


@pytest.mark.parametrize("find", [unit_lesions, head_lesions, prefix_lesions])
def test_parts_advance_together(find):
    """The mean and the neighbour are those of the whole group, in whatever parts it goes."""
    (_, ours, _), x = network("vit"), images("vit", 5)
    for replacing in (turned, mean):
        whole = run_lesions(ours, find, [x], replacing)
        for parts in ([2, 3], [1, 1, 1, 2]):
            found = run_lesions(ours, find, x.split(parts), replacing)
            torch.testing.assert_close(found.intact, whole.intact, rtol=1e-5, atol=1e-6)
            for one, other in zip(found.lesioned, whole.lesioned, strict=True):
                torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
            torch.testing.assert_close(found.influence, whole.influence, equal_nan=True)


def test_influence_is_that_of_the_states(monkeypatch):
    """Over all tokens, with the class token; of a post-activation block after its ReLU."""
    for name in ("vit", "swin", "resnet"):
        (_, ours, _), x = network(name), images(name)
        found, lesions = run_lesions(ours, unit_lesions, [x]), unit_lesions(ours)
        before, states = {}, ours.states(x)
        for last, unit in zip(ours.anatomy.units, ours.anatomy.units[1:], strict=False):
            before[unit.name] = last.name
        for k, lesion in enumerate(lesions):
            ends = [states[n] for n in (before[lesion.name], lesion.name)]
            rows = [s.raw.double() for s in ends]
            if name == "resnet":
                rows = [row.permute(0, 2, 3, 1) for row in rows]
            cosine = torch.cosine_similarity(*(r.reshape(3, -1, r.shape[-1]) for r in rows), dim=-1)
            torch.testing.assert_close(
                found.influence[:, k], 1 - cosine.mean(1), rtol=1e-5, atol=1e-7
            )
        assert found.influence.max() > 0.01


def test_chosen_units():
    _, ours, _ = network("vit")
    assert [one.name for one in unit_lesions(ours, ["blocks.1.mlp", "blocks.0.attn"])] == [
        "blocks.0.attn", "blocks.1.mlp",
    ]  # fmt: skip
    assert len(head_lesions(ours, ["blocks.1.attn"])) == 3
    assert len(prefix_lesions(ours, ["blocks.1.attn", "blocks.0.mlp"])) == 2
    with pytest.raises(NotResidual, match=r"'head' of vit is not residual, .* Units that can be"):
        unit_lesions(ours, ["head"])
    with pytest.raises(UnknownUnit, match=r"no unit 'blocks.9.mlp'"):
        head_lesions(ours, ["blocks.9.mlp"])


def test_a_graph_for_each_number_of_images():
    """A model whose code depends on the number of images is exported for each."""

    class Counting(Own):
        def forward(self, x):
            return super().forward(x) * (1 if len(x) < 3 else 2)

    model = Counting().eval()
    model.load_state_dict(network("own")[0].state_dict())
    ours, x = replay(model, 16), torch.rand(5, 3, 16, 16)
    found = run_lesions(ours, head_lesions, [x[:3], x[3:]], mean)
    with torch.inference_mode():
        expected = torch.cat([model(x[:3]), model(x[3:])])
    torch.testing.assert_close(found.intact, expected)
    plain = run_lesions(network("own")[1], head_lesions, [x], mean)
    factor = torch.tensor([2.0, 2, 2, 1, 1])[:, None]
    for one, other in zip(found.lesioned, plain.lesioned, strict=True):
        torch.testing.assert_close(one, factor * other, rtol=1e-5, atol=1e-5)
