"""Every parameter has one unit, and linear maps are told from what scales, shifts and places."""

import pytest
import timm
import torch
from torch import nn

from anatomy.test_renaming import renamed
from retinoscope import replay
from run.tiny import build
from sampling import sampled

SMALL = {
    "vit_tiny_patch16_224": {
        "img_size": 32, "depth": 1, "embed_dim": 24, "num_heads": 2, "init_values": 1e-5,
        "reg_tokens": 2,
    },
    "vit_base_patch16_siglip_224": {
        "img_size": 32, "depth": 1, "embed_dim": 24, "num_heads": 2,
    },
    "convnext_atto": {"depths": (1, 1, 1, 1), "dims": (8, 8, 16, 16)},
    "cait_xxs24_224": {"img_size": 32, "depth": 1, "embed_dim": 24, "num_heads": 2},
}  # fmt: skip


def made(name):
    if name == "tiny":
        return build().eval(), 16
    return timm.create_model(name, num_classes=4, **SMALL[name]).eval(), 32


@pytest.mark.parametrize("name", sampled(["tiny", *SMALL], "tiny", "convnext_atto"))
def test_every_parameter_belongs_to_exactly_one_unit(name):
    model, size = made(name)
    found = replay(model, size)
    units = found.parameters()
    assert list(units) == [unit.name for unit in found.anatomy]
    listed = [id(tensor) for tensors in units.values() for tensor in tensors]
    assert len(listed) == len(set(listed))
    assert set(listed) == {id(tensor) for tensor in model.parameters()}
    for unit in found.anatomy:
        assert sum(tensor.numel() for tensor in units[unit.name]) == unit.parameters
    # What is multiplied, by someone who knows the classes of modules.
    maps = {id(m.weight) for m in model.modules() if isinstance(m, nn.Linear | nn.Conv2d)}
    multiplied = found.multiplied()
    assert {id(t) for t in multiplied if t.ndim > 1} == maps
    assert len({id(t) for t in multiplied}) == len(multiplied)


class Written(nn.Module):
    """Linear maps in many ways of writing, each with something that only looks like one."""

    def __init__(self):
        super().__init__()
        draw = torch.randn
        self.kernel = nn.Parameter(draw(4, 3, 2, 2))
        self.transposed = nn.Parameter(draw(4, 4))
        self.added = nn.Parameter(draw(4, 4))
        self.einsum = nn.Parameter(draw(4, 4))
        self.scaled = nn.Parameter(draw(1, 1, 4))
        self.places = nn.Parameter(draw(1, 16, 4))
        self.matrix = nn.Parameter(draw(4, 4))
        self.token = nn.Parameter(draw(1, 1, 4))
        self.mixing = nn.Parameter(draw(17, 17))
        self.halves = nn.ParameterList([nn.Parameter(draw(4, 2)), nn.Parameter(draw(4, 2))])
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        x = nn.functional.conv2d(x, self.kernel, stride=2).flatten(2).transpose(1, 2)
        x = x @ self.transposed.t() + self.places
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1)
        x = x + self.scaled * torch.einsum("nld,de->nle", x, self.einsum)
        x = x + torch.matmul(self.mixing, x)
        shape = x.shape
        x = torch.addmm(self.added[:1], x.reshape(-1, 4), self.matrix).view(shape)
        x = x + x @ torch.cat(list(self.halves), 1)
        return self.head(x.mean(1))


MAPS = {"kernel", "transposed", "einsum", "matrix", "mixing", "halves.0", "halves.1", "head.weight"}


def test_linear_maps_in_any_way_of_writing():
    torch.manual_seed(0)
    model = Written().eval()
    found = replay(model, 8)
    names = {id(tensor): name for name, tensor in model.named_parameters()}
    assert {names[id(tensor)] for tensor in found.multiplied()} == MAPS
    owned = [names[id(t)] for tensors in found.parameters().values() for t in tensors]
    assert sorted(owned) == sorted(names.values())


def test_the_axis_of_outputs_is_known_however_it_is_written():
    torch.manual_seed(0)
    model = Written().eval()
    axes = replay(model, 8).multiplied()
    named = dict(model.named_parameters())
    expected = {"kernel": 0, "transposed": 0, "einsum": 1, "matrix": 1, "mixing": 0, "halves.0": 1,
                "halves.1": 1, "head.weight": 0}  # fmt: skip
    assert {name: axes[named[name]] for name in MAPS} == expected
    turned = nn.Sequential(
        nn.Conv2d(3, 4, 2, stride=2), nn.ReLU(), nn.ConvTranspose2d(4, 6, 2, stride=2),
        nn.Flatten(), nn.Linear(6 * 8 * 8, 3),
    ).eval()  # fmt: skip
    assert list(replay(turned, 8).multiplied().values()) == [0, 1, 0]


class Placed(nn.Module):
    """States are multiplied with a table of offsets, as in MViT v2."""

    def __init__(self):
        super().__init__()
        self.stem, self.head = nn.Conv2d(3, 4, 2, stride=2), nn.Linear(4, 3)
        self.offsets = nn.Parameter(torch.randn(31, 4))
        self.register_buffer("which", torch.arange(16)[:, None] - torch.arange(16) + 15)

    def forward(self, x):
        x = self.stem(x).flatten(2).transpose(1, 2)
        scores = torch.einsum("nqd,qkd->nqk", x, self.offsets[self.which])
        return self.head((scores.softmax(-1) @ x).mean(1))


@pytest.mark.parametrize("fused", [True, False])
def test_queries_of_tokens_and_tables_that_are_looked_up(fused):
    """The same tensors whether attention is fused; what is indexed by positions is none."""
    pooled = timm.create_model(
        "vit_tiny_patch16_224", img_size=32, depth=1, embed_dim=24, num_heads=2, num_classes=4,
        global_pool="map", class_token=False,
    ).eval()  # fmt: skip
    for module in pooled.modules():
        if hasattr(module, "fused_attn"):
            module.fused_attn = fused
    names = {id(tensor): name for name, tensor in pooled.named_parameters()}
    found = {names[id(tensor)] for tensor in replay(pooled, 32).multiplied()}
    assert "attn_pool.q.weight" in found
    assert "attn_pool.latent" not in found
    placed = Placed().eval()
    assert set(replay(placed, 8).multiplied()) == {placed.stem.weight, placed.head.weight}


def test_names_mean_nothing():
    torch.manual_seed(0)
    model = Written()
    kept = {id(tensor) for name, tensor in model.named_parameters() if name in MAPS}
    plain = build()
    weights = {id(m.weight) for m in plain.modules() if isinstance(m, nn.Linear | nn.Conv2d)}
    for network, size, expected in ((model, 8, kept), (plain, 16, weights)):
        found = replay(renamed(network).eval(), size)
        assert {id(tensor) for tensor in found.multiplied()} == expected


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1)
        self.one, self.two = nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 1)
        self.two.weight = self.one.weight
        self.head = nn.Linear(4, 3)
        self.unused = nn.Parameter(torch.ones(2))

    def forward(self, x):
        x = self.stem(x)
        x = x + self.one(x).relu()
        x = x + self.two(x).relu()
        return self.head(x.mean((2, 3)))


def test_tied_parameters_belong_to_their_first_unit_and_unused_ones_to_none():
    model = Tied().eval()
    found = replay(model, 8)
    units = found.parameters()
    names = {id(tensor): name for name, tensor in model.named_parameters()}
    listed = [[names[id(t)] for t in tensors] for tensors in units.values() if tensors]
    assert [sorted(tensors) for tensors in listed] == [
        ["stem.bias", "stem.weight"], ["one.bias", "one.weight"], ["two.bias"],
        ["head.bias", "head.weight"],
    ]  # fmt: skip
    assert [names[id(t)] for t in found.multiplied()].count("one.weight") == 1


def test_they_are_the_models_own_tensors():
    """Not copies: what a probe moves, the model must see."""
    model = build().eval()
    found = replay(model, 16)
    x = torch.rand(2, 3, 16, 16)
    with torch.no_grad():
        before = found(x)
        for tensor in found.multiplied():
            tensor.mul_(2)
        assert torch.equal(found(x), model(x))
        assert not torch.equal(found(x), before)
