import pytest
import timm
import torch

from retinoscope import dissect
from retinoscope.models.families import levit_cifar  # noqa: F401  registers the models
from sampling import sampled


@pytest.fixture
def images():
    return torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))


def test_count_differs_from_imagenets_by_heads_and_biases():
    """7.78 M at 224 pixels, with a second head for a teacher: less two heads for 1000 classes, and
    one for 100 (a norm of 2 · 384 and 384 + 1 per class).

    Each attention head has a bias per offset: 256, 64 and 16 in place of 196, 49 and 16. Heads with
    60 more: 2 blocks of 4 and 8 that subsample; with 15 more: 3 blocks of 6 and 16 that subsample.
    """
    with torch.device("meta"):
        large, small = timm.create_model("levit_128s"), timm.create_model("levit_128s_cifar")
    counts = [sum(p.numel() for p in model.parameters()) for model in (large, small)]
    assert round(counts[0] / 1e6, 2) == 7.78
    heads = (768 + 385 * 100) - 2 * (768 + 385 * 1000)
    assert counts[1] == counts[0] + heads + 60 * (2 * 4 + 8) + 15 * (3 * 6 + 16)
    assert round(counts[1] / 1e6, 2) == 7.05


@pytest.mark.parametrize(
    ("name", "depths", "first"),
    sampled([("levit_128s_cifar", (2, 3, 4), 16), ("micro_levit", (2, 2, 2), 8)], "micro_levit"),
)
def test_anatomy_is_the_layout(name, depths, first):
    anatomy = dissect(timm.create_model(name).eval(), 32)
    one, two, three = ("AM" * depth for depth in depths)
    assert anatomy.sketch == f"{one}|A↓M{two}|A↓M{three}"
    grids = [str(unit.grid) for unit in anatomy if unit.kind != "head"]
    sides = [first, first // 2, first // 4]
    assert list(dict.fromkeys(grids)) == [f"{side}×{side}" for side in sides]


def test_body_is_timms_own(images, order_one):
    """With timm's strides of 2, the same weights give the same logits."""
    ours = order_one("micro_levit", stem_strides=(2, 2, 2), img_size=64)
    theirs = timm.models.levit.Levit(
        img_size=64, num_classes=10, embed_dim=(32, 40, 56), key_dim=8, num_heads=(2, 3, 4),
        depth=(2, 2, 2), stem_type="s8",
    )  # fmt: skip
    theirs.load_state_dict(ours.state_dict())
    large = torch.rand(2, 3, 64, 64)
    torch.testing.assert_close(ours(large), theirs.eval()(large), rtol=0, atol=0)


def test_biases_are_looked_up_in_every_pass(images, order_one):
    model = order_one("micro_levit")
    before = model(images)
    with torch.no_grad():
        model.stages[0].blocks[0].attn.attention_biases.mul_(-3)
    first = model(images)
    assert not torch.allclose(first, before)
    with torch.no_grad():
        model.stages[1].downsample.attn_downsample.attention_biases.mul_(-3)
    assert not torch.allclose(model(images), first)


@pytest.mark.parametrize("strides", [(2, 2), (1, 1, 1), (1, 1, 1, 1)])
def test_impossible_stems_are_explained(strides):
    with pytest.raises(ValueError, match="three or four convolutions that stride by 2 or more"):
        timm.create_model("micro_levit", stem_strides=strides)


def test_sides_must_be_multiples_of_the_stride():
    with pytest.raises(ValueError, match="strides by 4 and needs sides that are multiples"):
        timm.create_model("micro_levit", img_size=30)
