from functools import cache

import pytest
import torch
from torch import nn

from retinoscope import replay
from retinoscope.core.subject import Batch, Subject
from retinoscope.geometry.blocks import blocks, owners, traces
from retinoscope.geometry.curvature import Curvature, Learned
from retinoscope.models.load import load_model
from retinoscope.models.order_one import draw_at_order_one
from retinoscope.numerics.krylov import Lanczos
from run.tiny import build


class Little(nn.Module):
    """Three units, 117 parameters; the layer scale belongs to the second."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(1, 3, 2, stride=2)
        self.branch = nn.Sequential(nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3))
        self.scale = nn.Parameter(torch.ones(3, 1, 1))
        self.head = nn.Linear(3, 3)

    def forward(self, x):
        x = self.stem(x)
        x = x + self.scale * torch.tanh(self.branch(x))
        return self.head(x.mean((2, 3)))


def subject_of(model, size, channels=3):
    like = next(model.parameters())
    example = torch.zeros(1, channels, size, size, dtype=like.dtype)
    return Subject(
        name="own", backbone=model, model=model, replay=replay(model, example), splits={},
        weights="", state="", fingerprint="",
    )  # fmt: skip


def learned_of(model):
    named = dict(model.named_parameters())
    return Learned(tuple(named), tuple(named.values()), ())


@pytest.fixture(scope="module")
def little():
    torch.manual_seed(0)
    model = draw_at_order_one(Little().double()).eval()
    subject = subject_of(model, 8, channels=1)
    draws = torch.Generator().manual_seed(0)
    images = torch.rand(6, 1, 8, 8, generator=draws, dtype=torch.float64)
    batch = Batch(images, tuple(range(6)), torch.randint(3, (6,), generator=draws))
    return subject, Curvature(subject.backbone, subject.batch_loss, batch)


@cache
def network(name):
    if name == "own":
        return subject_of(build().eval(), 8)
    loaded = load_model(name)
    return subject_of(loaded.model, loaded.image[1])


@pytest.mark.parametrize("by", ["kind", "stage", "unit"])
@pytest.mark.parametrize("name", ["micro_resnet", "micro_vit", "own"])
def test_blocks_hold_every_parameter_once(name, by):
    whole = network(name)
    learned = learned_of(whole.backbone)
    units = owners(whole, learned)
    found = blocks(units, by)
    assert sorted(p for places in found.values() for p in places) == list(range(len(units)))
    assert all(places == sorted(places) for places in found.values())
    sizes = {n: sum(learned.tensors[p].numel() for p in places) for n, places in found.items()}
    if by == "unit":
        assert sizes == {u.name: u.parameters for u in whole.anatomy if u.parameters}
    if by == "kind":
        kinds = {str(u.kind).replace("_", " ") for u in whole.anatomy if u.parameters}
        assert set(found) == kinds
    if by == "stage":
        stages = {f"stage {u.stage}" for u in whole.anatomy if u.stage is not None and u.parameters}
        assert stages <= set(found)
        assert set(found) - stages == {"stem", "head"}


def test_a_resnet_by_the_names_of_its_modules():
    """The naive twin: someone who knows how timm calls what."""
    subject = network("micro_resnet")
    learned = learned_of(subject.backbone)
    found = blocks(owners(subject, learned), "stage")
    prefixes = sorted({name.split(".")[0] for name in learned.names if name.startswith("layer")})
    assert len(prefixes) >= 3
    for number, prefix in enumerate(prefixes, start=1):
        named = [p for p, name in enumerate(learned.names) if name.startswith(f"{prefix}.")]
        assert found[f"stage {number}"] == named
    assert [learned.names[p] for p in found["head"]] == ["fc.weight", "fc.bias"]


def test_what_the_graph_does_not_know_belongs_to_the_first_unit(little):
    subject, _ = little
    stranger = nn.Parameter(torch.ones(2))
    learned = Learned(("head.bias", "x"), (subject.backbone.head.bias, stranger), ())
    names = [unit.name for unit in owners(subject, learned)]
    assert names == ["head", subject.anatomy.units[0].name]


def test_every_parameter_has_the_unit_that_uses_it(little):
    subject, curvature = little
    units = {
        name: unit.name
        for name, unit in zip(curvature.learned.names, owners(subject, curvature.learned),
                              strict=True)
    }  # fmt: skip
    middle = units["scale"]
    assert middle not in ("stem", "head")
    assert units == {
        "stem.weight": "stem", "stem.bias": "stem", "scale": middle, "branch.0.weight": middle,
        "branch.0.bias": middle, "branch.1.weight": middle, "branch.1.bias": middle,
        "head.weight": "head", "head.bias": "head",
    }  # fmt: skip


def test_the_traces_of_units_add_up(little):
    """Where nothing is found yet, to n · v · Hv; else to the mean of the spectrum's nodes."""
    subject, curvature = little
    units, size = owners(subject, curvature.learned), curvature.learned.size
    one = Lanczos(k=1, products=1)(curvature.product, curvature.like, seed=0)
    assert not one.converged.any()
    found = traces(one, curvature.learned, units)
    assert sum(found.values()) == pytest.approx(size * float(one.start @ one.image))
    assert set(found) == {unit.name for unit in subject.anatomy if unit.parameters}
    many = Lanczos(k=3)(curvature.product, curvature.like, seed=0)
    assert many.converged.all()
    nodes, weights = many.spectrum()
    assert weights.sum() == pytest.approx(1)
    total = sum(traces(many, curvature.learned, units).values())
    assert total == pytest.approx(size * float(nodes @ weights))


def test_many_starts_give_the_trace_of_each_units_part_of_the_dense_hessian(little):
    subject, curvature = little
    size, units = curvature.learned.size, owners(subject, curvature.learned)
    dense = torch.stack([curvature.product(row) for row in torch.eye(size).double()])
    sizes = [tensor.numel() for tensor in curvature.learned.tensors]
    expected = dict.fromkeys((unit.name for unit in units), 0.0)
    for unit, part in zip(units, dense.diagonal().split(sizes), strict=True):
        expected[unit.name] += float(part.sum())
    spreads = []
    for search in (Lanczos(k=1, products=1), Lanczos(k=4, tolerance=1e-6)):
        found = [search(lambda v: dense @ v, curvature.like, seed) for seed in range(400)]
        each = [traces(one, curvature.learned, units) for one in found]
        for name, value in expected.items():
            samples = torch.tensor([one[name] for one in each])
            error = float(samples.std() / len(samples) ** 0.5)
            assert abs(float(samples.mean()) - value) < 4 * error  # four standard errors
            assert error < 0.1 * sum(map(abs, expected.values()))  # else anything would pass
        spreads.append(torch.tensor([sum(one.values()) for one in each]).std())
    assert spreads[1] < 0.5 * spreads[0]  # what the found ones are good for
