import copy
from dataclasses import replace
from itertools import pairwise

import pytest
import timm
import torch
from torch import nn

import retinoscope.models  # noqa: F401
from retinoscope import dissect
from retinoscope.core.errors import SurgeryRefused, UnknownSurgery
from retinoscope.models.order_one import draw_at_order_one
from retinoscope.surgery import parse_surgery
from retinoscope.surgery.build_up import BuildUp, slots
from sampling import PROOF, sampled

FAMILIES = {
    "resnet26": ((0, 0, 1, 1), "CC|C↓C|C↓A|C↓A"),
    "resnext50_32x4d": ((0, 1, 3, 1), "CCC|C↓CCA|C↓ACACA|C↓CA"),
    "regnety_002": ((0, 0, 2, 3), "C↓|C↓|C↓ACA|C↓CACACA"),
    "convnext_atto": ((0, 0, 2, 1), "CC|C↓CC|C↓CCCACA|C↓CA"),
    "efficientnet_b0": ((0, 0, 1, 1, 2), "C|C↓C|C↓A|C↓CCCCA|C↓ACACM"),
    "mobilenetv3_small_050": ((0, 0, 1, 1), "C↓|C↓C|C↓CCCA|C↓CAM"),
    "resnetv2_50": ((0, 0, 1, 1), "CCC|C↓CCC|C↓CCCCA|C↓CA"),
    "darknet17": ((0, 0, 0, 1, 0), "C|C↓C|C↓C|C↓A|C↓C"),
    "repvgg_a0": ((0, 1, 1, 0), "C↓C|C↓CCA|C↓CCCCCCCCCCCCA|C↓"),
    "gernet_s": ((0, 0, 1, 1), "C↓|C↓CC|C↓CCCCCA|C↓ACM"),
    "inception_next_atto": ((0, 0, 1, 1), "CC|C↓CC|C↓CCCCCA|C↓CA"),
}


SHALLOW = {  # the same blocks, fewer of them
    "resnet26": ({"layers": (1, 1, 2, 2)}, (0, 0, 1, 1), "C|C↓|C↓A|C↓A"),
    "convnext_atto": ({"depths": (1, 1, 2, 2)}, (0, 0, 1, 1), "C|C↓C|C↓CA|C↓CA"),
    "resnetv2_50": ({"layers": (1, 1, 2, 3)}, (0, 0, 1, 1), "C|C↓|C↓A|C↓CA"),
}


@pytest.mark.parametrize(
    ("name", "options", "plan", "sketch"),
    [
        *((name, *SHALLOW[name]) for name in SHALLOW),
        *(pytest.param(name, {}, *FAMILIES[name], marks=PROOF) for name in FAMILIES),
    ],
)
def test_families_get_the_promised_anatomy_and_train(name, options, plan, sketch):
    torch.manual_seed(0)
    model = timm.create_model(name, num_classes=5, **options).eval()
    anatomy = dissect(model, 64, name=name)
    before = copy.deepcopy(model.state_dict())
    patient = BuildUp(plan).operate(model, anatomy)
    after = dissect(patient, 64)
    assert after.sketch == sketch
    assert all(torch.equal(model.state_dict()[key], before[key]) for key in before)
    new = [f"{n}." for n, m in patient.named_modules() if type(m).__name__ == "AttentionBlock"]
    kept = [key for key in patient.state_dict() if not key.startswith(tuple(new))]
    assert len(kept) > len(before) / 3
    assert all(torch.equal(patient.state_dict()[key], before[key]) for key in kept)
    for unit, twin in zip(anatomy, after, strict=True):
        assert (unit.channels, unit.grid) == (twin.channels, twin.grid)
    _trains(patient, 64)


def _trains(patient: nn.Module, size: int) -> None:
    """One step moves weights, batch statistics and every part of the new units."""
    patient.train()
    blocks = [m for m in patient.modules() if type(m).__name__ == "AttentionBlock"]
    assert blocks
    before = copy.deepcopy(patient.state_dict())
    optimiser = torch.optim.SGD(patient.parameters(), lr=0.1)
    nn.functional.cross_entropy(patient(torch.randn(4, 3, size, size)), torch.arange(4)).backward()
    for block in blocks:
        assert all(p.grad is not None and p.grad.abs().max() > 0 for p in block.parameters())
    optimiser.step()
    moved = [k for k, v in patient.state_dict().items() if not torch.equal(v, before[k])]
    assert any("running_mean" in key for key in moved)
    assert any("attn.qkv" in key for key in moved)


class Cell(nn.Module):
    """A user's block with odd names, drop-out inside and the sum written in a function."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.a = nn.Conv2d(width, width, 3, padding=1)
        self.zz = nn.BatchNorm2d(width)
        self.noise = nn.Dropout(0.5)
        self.b = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x):
        return x.add(self.b(self.noise(self.zz(self.a(x)).relu())))


class Foreign(nn.Module):
    """Two stages of three cells; nothing is called as in any library."""

    def __init__(self) -> None:
        super().__init__()
        self.eye = nn.Conv2d(3, 16, 3, padding=1)
        self.left = nn.ModuleDict({"p": Cell(16), "q": Cell(16), "r": Cell(16)})
        self.shrink = nn.Conv2d(16, 24, 2, 2)
        self.right = nn.ModuleList([Cell(24), Cell(24), Cell(24)])
        self.answer = nn.Linear(24, 5)

    def forward(self, x):
        x = self.eye(x)
        for cell in self.left.values():
            x = cell(x)
        x = self.shrink(x)
        for cell in self.right:
            x = cell(x)
        return self.answer(x.mean((2, 3)))


def test_a_network_of_ones_own():
    torch.manual_seed(0)
    model = draw_at_order_one(Foreign()).eval()
    anatomy = dissect(model, 16)
    assert anatomy.sketch == "CCC|C↓CCC"
    patient = BuildUp((1, 2), head_width=8).operate(model, anatomy)
    assert dissect(patient, 16).sketch == "CCA|C↓ACA"
    _trains(patient, 16)
    patient.train()
    x = torch.randn(2, 3, 16, 16)
    assert not torch.equal(patient(x), patient(x))  # the user's drop-out draws anew
    patient.eval()
    assert torch.equal(patient(x), patient(x))


def test_the_new_unit_is_the_papers():
    """In the place of a unit, with its input and output: nothing else of the network changes."""
    model = draw_at_order_one(Foreign()).double().eval()
    patient = BuildUp((0, 1), head_width=8).operate(model, dissect(model, 16))
    draw_at_order_one(patient.right[2])
    x = torch.randn(2, 3, 16, 16, dtype=torch.float64)
    state = model.eye(x)
    for cell in model.left.values():
        state = cell(state)
    state = model.right[1](model.right[0](model.shrink(state)))
    block = patient.right[2]
    narrow = block.conv(nn.functional.gelu(block.bn1(state)))
    state = state + block.attn(block.bn2(narrow))
    torch.testing.assert_close(patient(x), model.answer(state.mean((2, 3))))


@pytest.mark.parametrize(
    ("layers", "sketch"),
    [
        ((1, 2, 2, 3), "C|C↓A|C↓A|C↓ACA"),
        pytest.param((3, 4, 6, 3), "CCC|C↓CCA|C↓CCCCA|C↓ACA", marks=PROOF),
    ],
)
def test_the_papers_fourth_block(layers, sketch):
    """ResNet-50's last stage has three blocks; with one more, two of them can be attention."""
    model = timm.create_model("resnet50", num_classes=5, layers=layers)
    anatomy = dissect(model, 64, name="resnet50")
    with pytest.raises(SurgeryRefused, match=r"room for 1 of the 2 .* or set grow=True"):
        BuildUp((0, 1, 1, 2)).operate(model, anatomy)
    patient = BuildUp((0, 1, 1, 2), grow=True).operate(model, anatomy)
    assert dissect(patient, 64).sketch == sketch
    assert patient.layer4[1].attn.heads == 24
    assert patient.layer4[1].conv.out_channels == 512
    assert patient.layer2[-1].attn.heads == 6
    assert torch.equal(patient.layer4[2].conv1.weight, model.layer4[2].conv1.weight)


def test_heads_windows_and_width_follow_the_network():
    model = timm.create_model("resnet18")
    patient = BuildUp((0, 1, 1, 1)).operate(model, dissect(model, 224))
    blocks = [patient.layer2[1], patient.layer3[1], patient.layer4[1]]
    assert [b.attn.heads for b in blocks] == [6, 12, 24]
    assert [b.attn.window for b in blocks] == [7, 7, 7]
    assert [b.conv.out_channels for b in blocks] == [128, 256, 512]  # basic blocks do not narrow
    small = BuildUp((0, 0, 0, 1), heads=(1, 1, 1, 2), window=3, tables="shared")
    layer = small.operate(model, dissect(model, 128)).layer4[1].attn
    assert (layer.heads, layer.window, layer.relative_bias.shape) == (2, 3, (1, 5, 5))


def test_stochastic_depth_is_inherited():
    model = timm.create_model("resnet18", drop_path_rate=0.3, layers=(1, 1, 1, 2))
    patient = BuildUp((0, 0, 0, 1)).operate(model, dissect(model, 64))
    assert patient.layer4[1].drop_path.drop_prob == model.layer4[1].drop_path.drop_prob > 0


def test_a_plain_chain_loses_its_convolution_norm_and_activation_together():
    """VGG's units are three modules one behind the other."""
    model = timm.create_model("micro_vgg", num_classes=5)
    anatomy = dissect(model, 32, name="micro_vgg")
    assert anatomy.sketch == "C|P↓CC|P↓CC|P↓CC"
    patient = BuildUp((0, 0, 0, 1)).operate(model, anatomy)
    replaced = [n for n, m in patient.named_modules() if type(m).__name__ == "AttentionBlock"]
    assert len(replaced) == 1
    place = int(replaced[0].split(".")[1])
    assert all(isinstance(patient.features[place + i], nn.Identity) for i in (1, 2))
    _trains(patient, 32)


@pytest.mark.parametrize(
    "name", sampled(["micro_resnet", "resnet50", "efficientnet_b0"], "micro_resnet")
)
def test_slots_never_touch_and_never_take_a_stride(name, taken_apart):
    anatomy = taken_apart(name, 32 if name.startswith("micro") else 64)
    for stage in anatomy.stages:
        for grow in (False, True):
            found = slots(anatomy, stage, grow)
            places = [slot.unit.depth + slot.behind for slot in found]
            # The only unit of a stage may change the width, and then cannot be replaced.
            assert places or not grow
            assert all(a - b >= 2 for a, b in pairwise(places))
            assert not any(slot.unit.subsamples and not slot.behind for slot in found)


@pytest.mark.parametrize(
    ("name", "options", "plan", "says"),
    [
        (
            "vit_tiny_patch16_224", {"img_size": 64, "depth": 1}, (1,),
            "build_up cannot be applied to vit_.*: it has no conv unit",
        ),
        (
            "resnet18", {"layers": (2, 2, 1, 1)}, (0, 1),
            r"it has 4 stages \(CC\|C↓C\|C↓\|C↓\), but msa_per_stage has 2",
        ),
        ("resnet18", {"layers": (2, 2, 1, 1)}, (0, 0, 0, 1), "stage 4 has room for 0 of the 1"),
        pytest.param(
            "resnet18", {}, (0, 1),
            r"it has 4 stages \(CC\|C↓C\|C↓C\|C↓C\), but msa_per_stage has 2", marks=PROOF,
        ),
        pytest.param("dpn68", {}, (0, 0, 0, 1), "stage 4 has room for 0 of the 1", marks=PROOF),
        pytest.param(
            "cspresnet50", {}, (1, 0, 0, 0),
            "at 'stages.0': its work is not done by one module", marks=PROOF,
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_refused(name, options, plan, says, taken_apart):
    anatomy = replace(taken_apart(name, 64, **options), model=name)
    with pytest.raises(SurgeryRefused, match=says):
        BuildUp(plan).operate(timm.create_model(name, **options), anatomy)


def test_a_unit_whose_work_no_module_does_is_refused():
    class Bare(Foreign):
        def forward(self, x):
            x = self.eye(x)
            for cell in self.left.values():
                x = x + cell.b(cell.a(x).relu())
            return self.answer(self.shrink(x).mean((2, 3)))

    model = Bare()
    with pytest.raises(SurgeryRefused, match="its work is not done by one module"):
        BuildUp((1, 0)).operate(model, dissect(model, 16))


def test_wrong_settings_are_named():
    with pytest.raises(UnknownSurgery, match=r"build_up needs msa_per_stage: Number of attention"):
        parse_surgery("build_up")
    with pytest.raises(UnknownSurgery, match=r"at least one of them not 0; got \(0, 0\)"):
        parse_surgery("build_up:msa_per_stage=(0,0)")
    with pytest.raises(UnknownSurgery, match="msa_per_stage is a tuple of integers"):
        parse_surgery("build_up:msa_per_stage=many")
    with pytest.raises(UnknownSurgery, match=r"no setting 'window_size'. Did you mean 'window'\?"):
        parse_surgery("build_up:msa_per_stage=(1,),window_size=7")
    with pytest.raises(UnknownSurgery, match=r"no surgery 'buildup'. Did you mean 'build_up'\?"):
        parse_surgery("buildup")
    with pytest.raises(ValueError, match="heads needs one number for each of 2 stages"):
        BuildUp((0, 1), heads=(3,))


def test_an_anatomy_of_another_model_is_refused(taken_apart):
    model = timm.create_model("resnet18", layers=(1, 1, 1, 1))
    other = taken_apart("resnet18", 64, layers=(2, 2, 1, 1))
    with pytest.raises(SurgeryRefused, match="is not that of this ResNet: the model has no unit"):
        BuildUp((1, 0, 0, 0)).operate(model, other)
