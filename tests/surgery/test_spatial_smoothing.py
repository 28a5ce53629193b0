import copy
from functools import cache

import pytest
import timm
import torch
from torch import nn
from torch.nn.functional import avg_pool2d

from retinoscope import dissect
from retinoscope.core.errors import SurgeryRefused
from retinoscope.models.order_one import draw_at_order_one
from retinoscope.surgery import parse_surgery, write_surgery
from retinoscope.surgery.spatial_smoothing import SpatialSmoothing

SIZE = 64
SWIN = {"img_size": 56, "embed_dim": 12, "depths": (1, 1), "num_heads": (2, 2), "num_classes": 5}
OFF = {"kernel": 1, "prob": "off"}


def ready(model):
    return draw_at_order_one(model).eval().double()


@pytest.fixture(scope="module")
def resnet():
    return ready(timm.create_model("test_resnet", num_classes=5))


@pytest.fixture(scope="module")
def swin():
    return ready(timm.create_model("swin_tiny_patch4_window7_224", **SWIN))


def images(size=SIZE):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(3, 3, size, size, generator=generator, dtype=torch.float64)


@cache
def anatomy_of(model, size=SIZE):
    return dissect(model, size)


def operated(model, size=SIZE, **settings):
    return SpatialSmoothing(**settings).operate(model, anatomy_of(model, size))


@torch.no_grad()
def difference(a, b, x):
    """The largest difference of two models' logits, relative to the largest value."""
    return ((a(x) - b(x)).abs().max() / b(x).abs().max()).item()


def smoothed(x, tau=10):
    """Maps by hand: bounded, then each point averaged with those right of it and below."""
    x = (tau * torch.tanh(x / tau)).clamp_min(0)
    x = torch.cat([x, x[:, :, -1:]], 2)
    x = torch.cat([x, x[..., -1:]], 3)
    return (x[:, :, 1:, 1:] + x[:, :, 1:, :-1] + x[:, :, :-1, 1:] + x[:, :, :-1, :-1]) / 4


def hooked(model, paths, form=smoothed):
    """A copy in which ``form`` is done by hooks behind some of its modules."""
    twin = copy.deepcopy(model)
    for path in paths:
        twin.get_submodule(path).register_forward_hook(lambda _, __, given: form(given))
    return twin


@pytest.mark.parametrize(("stages", "layers"), [((), (1, 2, 3, 4)), ((1, 3), (1, 3)), ((4,), (4,))])
def test_agrees_with_hooks_behind_the_stages(resnet, stages, layers):
    patient = operated(resnet, stages=stages)
    reference = hooked(resnet, [f"layer{n}" for n in layers])
    assert difference(patient, reference, images()) < 1e-12  # float64, sums in another order
    assert difference(patient, resnet, images()) > 1e-2


def test_a_relu_that_runs_twice_is_not_smoothed_twice():
    """The only ReLU of torchvision's blocks gives the state, and something else before."""
    torchvision = pytest.importorskip("torchvision")
    model = ready(torchvision.models.resnet18(num_classes=5))
    patient = operated(model, stages=(1, 2, 4))
    reference = hooked(model, ["layer1", "layer2", "layer4"])
    assert difference(patient, reference, images()) < 1e-12


def test_states_with_channels_last(swin):
    def form(x):
        return smoothed(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)

    patient, x = operated(swin, 56), images(56)
    assert difference(patient, hooked(swin, ["layers.0", "layers.1"], form), x) < 1e-12
    assert difference(patient, swin, x) > 1e-2
    kinds = [unit.kind for unit in dissect(patient, 56) if unit.kind != "pool"]
    assert kinds == [unit.kind for unit in anatomy_of(swin, 56)]


@pytest.mark.parametrize(("name", "size"), [("resnet", SIZE), ("swin", 56)])
def test_neutral_settings_change_nothing(request, name, size):
    model = request.getfixturevalue(name)
    before = copy.deepcopy(model.state_dict())
    patient = operated(model, size, **OFF)
    assert difference(patient, model, images(size)) == 0
    assert list(patient.state_dict()) == list(before)
    assert all(torch.equal(model.state_dict()[key], before[key]) for key in before)
    assert all("graft" not in name for name, _ in model.named_modules())


def test_the_blur_is_a_unit_at_the_end_of_each_stage(resnet):
    assert anatomy_of(resnet).sketch == "C|C↓|C↓|C↓"
    assert dissect(operated(resnet), SIZE).sketch == "CP|C↓P|C↓P|C↓P"
    assert dissect(operated(resnet, kernel=1), SIZE).sketch == "C|C↓|C↓|C↓"


@pytest.mark.parametrize(
    ("settings", "form"),
    [
        ({"prob": "clamp", "kernel": 1, "tau": 0.5}, lambda x: x.clamp(0, 0.5)),
        ({"prob": "scale", "kernel": 3}, None),
        ({"prob": "tanh", "kernel": 1, "tau": 2.0}, lambda x: (2 * (x / 2).tanh()).relu()),
        ({"prob": "off", "padding": "grow"}, lambda x: avg_pool2d(x, 2, 1, 1)),
        ({"prob": "softmax", "kernel": 1}, lambda x: 10 * (x / 10).softmax(1)),
    ],
)
def test_settings_reach_the_layer(resnet, settings, form):
    patient = operated(resnet, stages=(2,), **settings)
    if form is None:
        pad = nn.ReplicationPad2d(1)
        form = lambda x: avg_pool2d(pad(x / 5), 3, 1)  # noqa: E731
    assert difference(patient, hooked(resnet, ["layer2"], form), images()) < 1e-12
    assert difference(patient, resnet, images()) > 1e-3


def test_growing_maps_pass_where_the_head_averages_and_are_refused_elsewhere(resnet):
    grown = dissect(operated(resnet, padding="grow"), SIZE)
    sides = [unit.grid.height for unit in grown if unit.kind == "pool"]
    before = [unit.grid.height for unit in anatomy_of(resnet) if unit.stage]
    assert sides[0] == before[0] + 1

    class Flat(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = nn.Conv2d(3, 4, 3, 2, 1), Res(conv(4), nn.ReLU(), conv(4))
            self.out = nn.Linear(4 * 16 * 16, 5)

        def forward(self, x):
            return self.out(self.two(self.one(x)).flatten(1))

    model = Flat()
    with pytest.raises(
        SurgeryRefused, match=r"'grow' maps become larger.*'replicate', which keeps"
    ):
        operated(model, 32, padding="grow")
    operated(model, 32, padding="grow", kernel=3)  # an odd kernel keeps the size


def test_batch_norm_inside_trains(resnet):
    patient = operated(resnet, prob="bn_tanh", stages=(1, 4)).train()
    new = {key: value for key, value in patient.state_dict().items() if "graft" in key}
    assert len(new) == 2 * 5
    assert {v.dtype for v in new.values()} == {torch.float64, torch.int64}
    means = [key for key in new if key.endswith("running_mean")]
    widths = [anatomy_of(resnet).where(stage=stage).units[0].channels for stage in (1, 4)]
    assert [len(new[key]) for key in means] == widths
    before = {key: value.clone() for key, value in new.items()}
    optimiser = torch.optim.SGD(patient.parameters(), lr=0.1)
    patient(images()).square().mean().backward()
    optimiser.step()
    after = patient.state_dict()
    assert all(not torch.equal(after[key], before[key]) for key in before)


def conv(width, stride=1):
    return nn.Conv2d(width, width, 3, stride, 1)


class Res(nn.Sequential):
    """Children in turn, and a skip: what is put onto it must not become one of them."""

    def forward(self, x):
        return x + super().forward(x)


class Halve(nn.Module):
    """Reads its input twice: in a module of its own, and beside it."""

    def __init__(self, width):
        super().__init__()
        self.way = conv(width, 2)

    def forward(self, x):
        return self.way(x) + avg_pool2d(x, 2)


class Strange(nn.Module):
    """The state before ``next_please`` comes from a ReLU that is used elsewhere under another name.

    The other state comes from a Sequential.
    """

    def __init__(self):
        super().__init__()
        self.pool, self.head = nn.Conv2d(3, 8, 4, 4), nn.Conv2d(8, 8, 1)
        self.relu = act = nn.ReLU()
        self.a, self.next_please = conv(8), Halve(8)
        self.stem = Res(conv(8), act, conv(8))
        self.last = nn.Linear(8, 5)

    def forward(self, x):
        x = self.head(self.pool(x).relu())
        x = self.relu(x + self.a(x).tanh())
        return self.last(self.stem(self.next_please(x)).mean((2, 3)))


def test_a_module_of_ones_own():
    model = ready(Strange())
    assert anatomy_of(model).sketch == "C|C↓C"
    reference = hooked(model, ["stem"])
    reference.next_please.register_forward_pre_hook(lambda _, given: smoothed(given[0]))
    patient = operated(model)
    assert difference(patient, reference, images()) < 1e-12
    assert difference(patient, model, images()) > 1e-3
    assert set(model.state_dict()) == set(patient.state_dict())


def test_a_stage_of_pooling_alone_has_to_be_named():
    model = ready(
        nn.Sequential(
            nn.Conv2d(3, 8, 3, 1, 1), nn.ReLU(), nn.Conv2d(8, 8, 3, 1, 1), nn.ReLU(),
            nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8 * 16 * 16, 5),
        )
    )  # fmt: skip
    assert anatomy_of(model, 32).sketch == "C|P↓"
    assert dissect(operated(model, 32), 32).sketch == "CP|P↓"
    assert dissect(operated(model, 32, stages=(2,)), 32).sketch == "C|P↓P"
    last = hooked(model, ["4"])  # before it is flattened for the head
    assert difference(operated(model, 32, stages=(2,)), last, images(32)) < 1e-12


def test_refuses_what_it_cannot_smooth(resnet):
    vit = timm.create_model(
        "vit_tiny_patch16_224", img_size=32, patch_size=8, embed_dim=12, depth=1, num_heads=2
    )
    with pytest.raises(SurgeryRefused, match=r"blocks.0.mlp.*stored as tokens, but a blur needs"):
        operated(vit, 32)
    with pytest.raises(SurgeryRefused, match=r"no stage 5 to smooth. Stages: 1, 2, 3, 4"):
        operated(resnet, stages=(5,))
    part = anatomy_of(resnet).where(stage=2)
    with pytest.raises(SurgeryRefused, match=r"no stage 1 to smooth. Stages: 2"):
        SpatialSmoothing(stages=(1,)).operate(resnet, part)
    only = SpatialSmoothing().operate(resnet, part)
    assert difference(only, hooked(resnet, ["layer2"]), images()) < 1e-12
    with pytest.raises(SurgeryRefused, match=r"no stage to smooth. It has: 1 head"):
        SpatialSmoothing().operate(resnet, anatomy_of(resnet).where(kind="head"))


def test_refuses_a_state_that_no_module_holds():
    class Bare(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two, self.three = nn.Conv2d(3, 8, 4, 4), conv(8), nn.Linear(8, 5)

        def forward(self, x):
            x = self.one(x)
            x = x + self.two(x.relu()).relu()
            return self.three(x.mean((2, 3)))

    with pytest.raises(SurgeryRefused, match=r"'two'.*no module outputs or takes the state"):
        operated(Bare(), 32)


def test_settings_are_checked_and_written():
    assert parse_surgery("spatial_smoothing:stages=2,tau=5") == SpatialSmoothing(
        stages=(2,), tau=5.0
    )
    written = write_surgery(SpatialSmoothing(kernel=3, stages=(1, 2)))
    assert parse_surgery(written) == SpatialSmoothing(kernel=3, stages=(1, 2))
    for wrong, message in (
        ({"kernel": 0}, "kernel is 1 or more; got 0"),
        ({"tau": 0.0}, "tau is above 0; got 0.0"),
        ({"padding": "zeros"}, "padding is one of replicate, grow; got 'zeros'"),
        ({"prob": "relu"}, "prob is one of tanh, .*; got 'relu'"),
        ({"stages": ("1",)}, "stages is a tuple of integers"),
    ):
        with pytest.raises(ValueError, match=message):
            SpatialSmoothing(**wrong)
