"""Lesions against surgery by hand: the eager model with its own forward functions changed."""

from functools import cache, partial

import pytest
import timm
import torch
from torch import nn

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
from sampling import PROOF

VIT = dict(img_size=16, patch_size=4, embed_dim=12, num_heads=3, depth=2, num_classes=5)


class Own(nn.Module):
    """A user's network: a residual convolution, patches, attention by einsum, an MLP, one token."""

    def __init__(self, width=12, heads=3):
        super().__init__()
        self.heads = heads
        self.stem, self.conv = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.embed, self.token = nn.Conv2d(8, width, 4, 4), nn.Parameter(torch.zeros(1, 1, width))
        self.norm, self.qkv = nn.LayerNorm(width), nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 24), nn.GELU(), nn.Linear(24, width))
        self.head = nn.Linear(width, 5)
        self.off, self.changed = (), None
        """What a test switches off, and how it changes the output (N, positions, heads, …)."""

    def mixed(self, x):
        q, k, v = (t.unflatten(-1, (self.heads, -1)) for t in self.qkv(self.norm(x)).chunk(3, -1))
        weights = torch.einsum("bqhd,bkhd->bhqk", q, k).mul(0.5).softmax(-1)
        out = torch.einsum("bhqk,bkhd->bqhd", weights, v)
        return self.proj((self.changed(out) if self.changed else out).flatten(2))

    def forward(self, x):
        x = self.stem(x)
        x = x if "conv" in self.off else x + (x if "kernel" in self.off else self.conv(x)).relu()
        x = self.embed(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1)
        x = x if "attention" in self.off else x + self.mixed(x)
        x = x if "mlp" in self.off else x + self.mlp(x)
        return self.head(x[:, 0])


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


@cache
def network(name):
    """A small network at order one, with its replay, its size, and units with changed forwards."""
    options, size = {
        "vit": ({"model_name": "vit_tiny_patch16_224", **VIT}, 16),
        "unfused": ({"model_name": "vit_tiny_patch16_224", **VIT}, 16),
        "swin": (dict(model_name="swin_tiny_patch4_window7_224", img_size=32, patch_size=2,
                      window_size=4, embed_dim=12, depths=(2, 1), num_heads=(3, 6)), 32),
        "resnet": (dict(model_name="resnet50", layers=(2, 1, 1, 2), channels=(4, 8, 8, 16)), 32),
        "convnext": (dict(model_name="convnext_tiny", depths=(1, 1, 2, 1),
                          dims=(8, 16, 16, 24)), 64),
        "own": (None, 16),
    }[name]  # fmt: skip
    model = Own() if options is None else timm.create_model(**options)
    if name == "unfused":
        for block in model.blocks:
            block.attn.fused_attn = False
    model = draw_at_order_one(model).eval()
    return model, replay(model, size, name=name), size


def images(name, count=3):
    size = network(name)[2]
    return torch.rand(count, 3, size, size, generator=torch.Generator().manual_seed(3))


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


def close(found, expected, whole, what):
    scale = whole.abs().max()
    assert (found - expected).abs().max() <= 1e-6 * scale, what
    assert (found - whole).abs().max() > 1e-3 * scale, f"{what} did not matter"


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


class Inside(nn.Module):
    """Two residual units in a branch that is concatenated, so that their block is not residual."""

    def __init__(self):
        super().__init__()
        self.stem, self.into = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 6, 1)
        self.a, self.b = nn.Conv2d(6, 6, 3, padding=1), nn.Conv2d(6, 6, 3, padding=1)
        self.join, self.head = nn.Conv2d(10, 4, 3, padding=1), nn.Linear(4, 5)
        self.off = ()

    def forward(self, x):
        x = self.stem(x)
        y = self.into(x).relu()
        y = y if "a" in self.off else y + self.a(y).relu()
        y = y if "b" in self.off else y + self.b(y).relu()
        return self.head(self.join(torch.cat([x, y], 1)).mean((2, 3)))


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


def zeros(values):
    return values.new_zeros(1)


def turned(values):
    return values.roll(1, 0)


def mean(values):
    return values.mean(0, keepdim=True)


@torch.inference_mode()
@pytest.mark.parametrize("replacing", [zeros, turned, mean])
@pytest.mark.parametrize("name", ["vit", "unfused", "own", "swin"])
def test_heads_equal_the_eager_modules_with_a_head_replaced(name, replacing, monkeypatch):
    """In timm, the projection reads the heads side by side; windows of an image are together."""
    (model, ours, _), x = network(name), images(name)
    found, lesions = run_lesions(ours, head_lesions, [x], replacing), head_lesions(ours)
    assert len(lesions) == {"own": 3, "swin": 12}.get(name, 6)
    for lesion, logits in zip(lesions, found.lesioned, strict=True):
        unit, _, head = lesion.name.rpartition(" head ")
        head = int(head)

        def changed(out, head=head):
            out = out.clone()
            out[:, :, head] = replacing(out[:, :, head])
            return out

        if name == "own":
            monkeypatch.setattr(model, "changed", changed)
            expected = model(x)
        else:
            attention = model.get_submodule(unit)
            count = attention.num_heads

            def before(_, given, count=count, changed=changed):
                by_image = given[0].reshape(len(x), -1, given[0].shape[-1])
                out = changed(by_image.unflatten(-1, (count, -1)))
                return (out.reshape(given[0].shape),)

            hook = attention.proj.register_forward_pre_hook(before)
            expected = model(x)
            hook.remove()
        close(logits, expected, found.intact, lesion.name)
    monkeypatch.undo()


def test_class_attention_has_heads_without_positions():
    model = timm.create_model(
        "cait_xxs24_224", img_size=16, patch_size=4, embed_dim=12, num_heads=3, depth=1,
        depth_token_only=1, num_classes=5,
    )  # fmt: skip
    ours = replay(draw_at_order_one(model).eval(), 16)
    x = torch.rand(2, 3, 16, 16)
    found, lesions = run_lesions(ours, head_lesions, [x], zeros), head_lesions(ours)
    assert len(lesions) == 6
    projection = model.blocks_token_only[0].attn.proj
    for head in range(3):

        def silent(_, given, head=head):
            given[0].unflatten(-1, (3, -1))[:, :, head] = 0

        hook = projection.register_forward_pre_hook(silent)
        with torch.inference_mode():
            close(found.lesioned[3 + head], model(x), found.intact, lesions[3 + head].name)
        hook.remove()


def test_heads_that_the_graph_does_not_show_are_not_guessed():
    """Linear attention has no weights, and so no heads that could be told from channels."""

    class Linear(Own):
        def mixed(self, x):
            q, k, v = (t.unflatten(-1, (3, -1)) for t in self.qkv(self.norm(x)).relu().chunk(3, -1))
            kept = torch.einsum("bkhd,bkhe->bhde", k, v)
            return self.proj(torch.einsum("bqhd,bhde->bqhe", q, kept).flatten(2))

    ours = replay(draw_at_order_one(Linear()).eval(), 16)
    assert [unit.kind for unit in ours.anatomy.where(kind="attention")] == ["attention"]
    assert head_lesions(ours) == []


@PROOF
@pytest.mark.parametrize("name", ["efficientvit_b0", "coat_lite_tiny", "volo_d1_224"])
def test_heads_of_other_attentions_are_not_guessed(name):
    options = {} if name == "efficientvit_b0" else {"img_size": 64}
    ours = replay(timm.create_model(name, **options).eval(), 64)
    found = {one.units[0].name for one in head_lesions(ours)}
    if name == "volo_d1_224":  # outlook attention comes first, ordinary attention later
        assert {one.split(".")[1] for one in found} == {"2", "3", "4"}
    else:
        assert not found


@torch.inference_mode()
@pytest.mark.parametrize("replacing", [zeros, turned, mean])
@pytest.mark.parametrize("name", ["vit", "own"])
def test_prefix_tokens_are_replaced_in_the_state_after_a_unit(name, replacing):
    (model, ours, _), x = network(name), images(name)
    found, lesions = run_lesions(ours, prefix_lesions, [x], replacing), prefix_lesions(ours)
    names = [lesion.name.removesuffix(" token 0") for lesion in lesions]
    after = {"vit": ["blocks.0.attn", "blocks.0.mlp", "blocks.1.attn", "blocks.1.mlp"],
             "own": ["attention", "mlp"]}[name]  # fmt: skip
    assert names[-len(after) :] == after
    held = ours.states(x)
    for unit, logits in zip(names[:-1], found.lesioned[:-1], strict=True):
        state = held[unit].raw.clone()
        state[:, 0] = replacing(state[:, 0])
        expected = ours.resume(unit, state)
        assert (logits - expected).abs().max() <= 1e-6 * found.intact.abs().max()
    state = held[after[-1]].raw.clone()
    state[:, 0] = replacing(state[:, 0])
    head = model.head if name == "own" else nn.Sequential(model.norm, model.head)
    close(found.lesioned[-1], head(state[:, 0]), found.intact, "the last state, by hand")
    if replacing is turned:  # the token is the same for all images before it has seen them
        assert torch.equal(found.lesioned[0], found.intact)


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
