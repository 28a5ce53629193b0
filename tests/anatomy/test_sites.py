import pytest
import timm
import torch
import torch.nn.functional as F
from torch import nn

from retinoscope.anatomy.dissect import take_apart
from retinoscope.anatomy.sites import Place, Sites, Storage
from retinoscope.core.unit import Kind
from sampling import PROOF

SWIN = {"img_size": 56, "depths": (2,), "num_heads": (3,)}


def sites_of(model: nn.Module, size: int) -> Sites:
    return Sites(take_apart(model.eval(), size))


def unit(sites: Sites, kind: Kind, place: int = 0):
    return list(sites.dissection.anatomy.where(kind=kind))[place]


@pytest.fixture(scope="module")
def resnet() -> Sites:
    return sites_of(timm.create_model("resnet26", layers=(2, 2, 1, 1)), 64)


@pytest.fixture(scope="module")
def vit() -> Sites:
    return sites_of(timm.create_model("test_vit"), 160)


def test_a_block_is_reached_as_a_whole(resnet):
    """The activation behind the sum is part of it; the projection of the first block too."""
    assert resnet.whole(unit(resnet, Kind.CONV, 0)) == ("layer1.0",)
    assert resnet.whole(unit(resnet, Kind.CONV, 3)) == ("layer2.1",)
    assert resnet.giving(unit(resnet, Kind.CONV, 3)) == (Place("layer2.1.act3", "after"),)


def test_the_way_with_most_maps_is_the_branch(resnet):
    """The projection runs last in timm's block, but it is not what the block does."""
    first = [found.module for found in resnet.learned(unit(resnet, Kind.CONV, 2))]
    assert first == ["layer2.0.conv1", "layer2.0.conv2", "layer2.0.conv3"]
    maps = resnet.learned(unit(resnet, Kind.CONV, 2))
    assert maps[0].takes == maps[0].gives == Storage((2, 3), 1)
    beside = resnet.beside(maps[0], unit(resnet, Kind.CONV, 2))
    assert "layer2.0.conv1" in [found.module for found in beside]


def test_attention_and_mlp_are_two_units_of_one_block(vit):
    attention, mlp = unit(vit, Kind.ATTENTION), unit(vit, Kind.MLP)
    assert vit.whole(attention) == ()  # the sum with the skip lies in the block
    assert [found.module for found in vit.learned(attention)] == [
        "blocks.0.attn.qkv", "blocks.0.attn.proj"
    ]  # fmt: skip
    assert [found.module for found in vit.learned(mlp)] == ["blocks.0.mlp.fc1", "blocks.0.mlp.fc2"]
    assert vit.learned(mlp)[0].takes == Storage((1,), 2, before=1)
    assert vit.giving(mlp) == (Place("blocks.0", "after"),)


class Plain(nn.Module):
    """Modules one behind the other; one ReLU for all; a map that is nobody's; a free sum."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Conv2d(3, 8, 3, padding=1)
        self.two = nn.Conv2d(8, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.relu = nn.ReLU()
        self.down = nn.Conv2d(8, 8, 2, 2)
        self.kernel = nn.Parameter(torch.randn(8, 8, 3, 3))
        self.last = nn.Conv2d(8, 8, 3, padding=1)
        self.head = nn.Linear(8, 4)

    def forward(self, x):
        x = self.one(x)
        x = self.relu(self.norm(self.two(x)))
        x = self.down(x)
        x = x + F.conv2d(self.relu(x), self.kernel, padding=1)
        x = x + self.last(x).tanh()
        return self.head(x.mean((2, 3)))


def test_what_is_no_module_is_not_found():
    sites = sites_of(Plain(), 16)
    own, last = sites.dissection.anatomy.where(kind=Kind.CONV)
    assert sites.learned(own) == [None]
    assert sites.whole(own) == ()
    assert sites.whole(last) == ()
    assert [found.module for found in sites.learned(last)] == ["last"]
    assert sites.giving(last) == ()  # a mean outside of any module takes the sum


def test_a_state_in_no_modules_hands_is_caught_where_it_is_taken():
    class Taken(Plain):
        def forward(self, x):
            x = self.one(x)
            x = self.relu(self.norm(self.two(x)))
            x = x + self.last(x)
            return self.head(self.down(x).mean((2, 3)))

    sites = sites_of(Taken(), 16)
    (found,) = sites.dissection.anatomy.where(residual=True)
    assert sites.giving(found) == (Place("down", "before"),)


def test_a_chain_of_modules_and_modules_of_several_names():
    chain = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8),
        nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4),
    )  # fmt: skip
    sites = sites_of(chain, 16)
    assert sites.whole(unit(sites, Kind.CONV)) == ("2", "3", "4")
    taken = Sites(sites.dissection, aliased=["4"])
    assert taken.whole(unit(sites, Kind.CONV)) == ("2",)


@pytest.mark.parametrize(
    ("name", "size", "options", "expected"),
    [
        ("swin_tiny_patch4_window7_224", 56, SWIN, None),  # windows lie in the batch
        ("convnext_atto", 64, {"depths": (1, 1, 1, 1)}, Storage((2, 3), 1)),
        pytest.param("swin_tiny_patch4_window7_224", 224, {}, None, marks=PROOF),
        pytest.param("convnext_atto", 64, {}, Storage((2, 3), 1), marks=PROOF),
    ],
)
def test_storage_is_known_or_said_not_to_be(name, size, options, expected):
    sites = sites_of(timm.create_model(name, **options), size)
    kind = Kind.ATTENTION if "swin" in name else Kind.CONV
    assert sites.learned(unit(sites, kind))[0].takes == expected
