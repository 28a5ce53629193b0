from functools import cache

import numpy as np
import pytest
import timm
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from anatomy.test_renaming import renamed
from retinoscope import replay
from retinoscope.core.errors import WeightsMismatch
from retinoscope.core.subject import Subject
from retinoscope.geometry.directions import movable, random_direction, scaled, shaped, towards
from retinoscope.geometry.moving import Moving
from retinoscope.models.order_one import draw_at_order_one
from run.tiny import build
from sampling import sampled

FEW = settings(max_examples=25, deadline=None)
NETWORKS = {
    "vit_tiny_patch16_224": {
        "img_size": 32, "depth": 1, "embed_dim": 24, "num_heads": 2, "init_values": 1e-5,
    },
    "swin_tiny_patch4_window7_224": {
        "img_size": 32, "window_size": 4, "depths": (1, 1), "num_heads": (2, 2), "embed_dim": 16,
    },
    "convnext_atto": {"depths": (1, 1, 1, 1), "dims": (8, 8, 16, 16)},
    "levit_128s": {
        "img_size": 32, "embed_dim": (16, 16), "depth": (1, 1), "num_heads": (2, 2), "key_dim": 8,
    },
}  # fmt: skip
STAY = {
    "vit_tiny_patch16_224": {"cls_token", "pos_embed", "blocks.0.ls1.gamma"},
    "swin_tiny_patch4_window7_224": {"layers.0.blocks.0.attn.relative_position_bias_table"},
    "convnext_atto": {"stages.0.blocks.0.gamma", "stem.1.weight"},
    "levit_128s": {"stages.0.blocks.0.attn.attention_biases", "head.bn.weight"},
}


def subject_of(model, size=None, name="own"):
    taken = None if size is None else replay(model, size)
    return Subject(
        name=name, backbone=model, model=model, replay=taken, splits={}, weights="", state="",
        fingerprint="",
    )  # fmt: skip


@cache
def network(name):
    return subject_of(timm.create_model(name, num_classes=4, **NETWORKS[name]).eval(), 32)


@st.composite
def weights(draw):
    shape = draw(st.lists(st.integers(1, 5), min_size=2, max_size=4))
    random = torch.Generator().manual_seed(draw(st.integers(0, 10**6)))
    weight = torch.randn(shape, generator=random) * 10 ** draw(st.integers(-6, 6))
    if draw(st.booleans()):
        weight[0] = 0
    return weight, torch.randn(shape, generator=random)


def norms(tensor, dimensions):
    return torch.linalg.vector_norm(tensor.double(), dim=dimensions)


@FEW
@given(weights())
def test_each_filter_has_the_norm_of_the_weights(pair):
    weight, drawn = pair
    found = scaled(drawn, weight, "filter")
    along = tuple(range(1, weight.ndim))
    # Single precision, rounded once per entry.
    torch.testing.assert_close(norms(found, along), norms(weight, along), rtol=1e-6, atol=0)
    for one, other, own in zip(found, drawn, weight, strict=True):
        assert own.any() or not one.any()  # a filter of zeros stays one
        cosine = torch.nn.functional.cosine_similarity(one.flatten(), other.flatten(), 0, 1e-12)
        assert not own.any() or float(cosine) == pytest.approx(1, abs=1e-5)
    assert found.dtype == weight.dtype


@FEW
@given(weights())
def test_the_papers_code_takes_norms_across_filters(pair):
    weight, drawn = pair
    found = scaled(drawn, weight, "paper")
    torch.testing.assert_close(norms(found, (0,)), norms(weight, (0,)), rtol=1e-6, atol=0)


@FEW
@given(weights(), st.sampled_from(["filter", "paper"]), st.floats(0.1, 1e4))
def test_the_length_of_what_was_drawn_does_not_matter_and_that_of_the_weight_does(
    pair, scale, factor
):
    weight, drawn = pair
    found = scaled(drawn, weight, scale)
    near = {"rtol": 1e-5, "atol": 0}
    torch.testing.assert_close(scaled(factor * drawn, weight, scale), found, **near)
    torch.testing.assert_close(scaled(drawn, factor * weight, scale), factor * found, **near)
    assert scaled(drawn, weight, "none") is drawn


def test_known_answers():
    weight, drawn = torch.tensor([[3.0, 4.0], [0.0, 2.0]]), torch.tensor([[1.0, 0.0], [1.0, 1.0]])
    assert scaled(drawn, weight, "filter").tolist() == [
        [5, 0], [pytest.approx(2**0.5), pytest.approx(2**0.5)]
    ]  # fmt: skip
    found = scaled(drawn, weight, "paper")
    torch.testing.assert_close(found, torch.tensor([[1.5 * 2**0.5, 0], [1.5 * 2**0.5, 20**0.5]]))
    assert not scaled(torch.zeros(2, 2), weight, "filter").any()


def test_directions_of_a_network():
    weights = movable(network("convnext_atto"))
    one, same, other = (random_direction(weights, "filter", seed) for seed in (1, 1, 2))
    assert list(one) == list(weights)
    for name, weight in weights.items():
        along = tuple(range(1, weight.ndim))
        torch.testing.assert_close(norms(one[name], along), norms(weight, along), rtol=1e-6, atol=0)
        assert torch.equal(one[name], same[name])
        assert not torch.equal(one[name], other[name])
        assert not one[name].requires_grad
    double = {name: weight.double() for name, weight in weights.items()}
    for name, way in random_direction(double, "filter", 1).items():
        torch.testing.assert_close(way.float(), one[name], rtol=1e-6, atol=0)
    flat = torch.cat([way.flatten() for way in random_direction(weights, "none", 3).values()])
    assert abs(float(flat.mean())) < 4 / len(flat) ** 0.5
    assert float(flat.std()) == pytest.approx(1, abs=4 / len(flat) ** 0.5)


@pytest.mark.parametrize("name", sampled(NETWORKS, "vit_tiny_patch16_224"))
def test_only_linear_maps_move(name):
    """The naive twin knows the classes of modules; the graph has never heard of them."""
    subject = network(name)
    model = subject.backbone
    maps = {id(m.weight) for m in model.modules() if isinstance(m, nn.Linear | nn.Conv2d)}
    moved = movable(subject)
    named = dict(model.named_parameters())
    assert {id(tensor) for tensor in moved.values()} == maps
    assert all(named[key] is tensor for key, tensor in moved.items())
    assert named.keys() > STAY[name]
    assert not STAY[name] & moved.keys()


@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "tiny"])
def test_names_mean_nothing(name):
    model = build() if name == "tiny" else timm.create_model(name, **NETWORKS[name])
    maps = {id(m.weight) for m in model.modules() if isinstance(m, nn.Linear | nn.Conv2d)}
    found = movable(subject_of(renamed(model).eval(), 32))
    assert {id(tensor) for tensor in found.values()} == maps
    assert all(key.split(".")[-1].startswith("z") for key in found)


class WithVector(nn.Module):
    """A map to one number whose weight is a vector: it has no filters to have norms."""

    def __init__(self):
        super().__init__()
        self.stem, self.head = nn.Conv2d(3, 4, 2), nn.Linear(4, 3)
        self.vector = nn.Parameter(torch.randn(4))

    def forward(self, x):
        x = self.stem(x).mean((2, 3))
        return self.head(x) + (x @ self.vector)[:, None]


def test_vectors_stay_even_where_they_are_multiplied():
    model = WithVector().eval()
    subject = subject_of(model, 8)
    assert any(tensor is model.vector for tensor in subject.replay.multiplied())
    assert set(movable(subject)) == {"stem.weight", "head.weight"}


def test_a_way_leads_to_the_other_weights_and_statistics():
    one, other = (draw_at_order_one(build(), seed=seed).eval() for seed in (0, 1))
    with torch.no_grad():
        other.block[1].running_var += 3
        other.block[1].num_batches_tracked += 5
    way = towards(subject_of(one), subject_of(other))
    assert {"block.1.running_mean", "block.1.running_var", "stem.weight"} < way.keys()
    assert "block.1.num_batches_tracked" not in way  # counts do not move
    x = torch.rand(2, 3, 16, 16)
    with torch.no_grad(), Moving(one.state_dict(), [way]) as moving:
        moving.to(1.0)
        for key, tensor in other.state_dict().items():
            if key in way:
                # w + (v − w): rounded twice.
                torch.testing.assert_close(one.state_dict()[key], tensor, rtol=1e-6, atol=5e-7)
        torch.testing.assert_close(one(x), other(x), rtol=1e-4, atol=1e-4)
        moving.to(0.5)
        half = (one.stem.weight - other.stem.weight).norm()
    assert float(half) == pytest.approx(float(way["stem.weight"].norm()) / 2, rel=1e-5)
    assert not any(tensor.any() for tensor in towards(subject_of(one), subject_of(one)).values())


def test_there_is_no_way_to_another_architecture():
    class Wider(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem = nn.Conv2d(3, 7, 3)

    one = subject_of(build(), name="tiny")
    said = r"no direction from tiny to wider: .* block\.0\.bias, .* …\. Name .* such as a snapshot"
    with pytest.raises(WeightsMismatch, match=said):
        towards(one, subject_of(Wider(), name="wider"))
    other = build()
    other.head = nn.Linear(8, 11)
    with pytest.raises(WeightsMismatch, match=r"2 tensors .* shape: head\.bias, head\.weight\. "):
        towards(one, subject_of(other, name="eleven"))


def test_flat_vectors_become_directions():
    model = build()
    names = ["head.bias", "stem.weight"]
    vectors = np.arange(2 * 172, dtype=np.float32).reshape(2, 172)
    one, two = shaped(subject_of(model), names, vectors)
    assert list(one) == names
    assert one["head.bias"].tolist() == list(range(10))
    assert one["stem.weight"].shape == model.stem.weight.shape
    assert one["stem.weight"].flatten().tolist() == list(range(10, 172))
    assert two["head.bias"][0] == 172
