"""FLOPs and parameters against torch's own counter."""

import pytest
import timm
import torch
from torch.utils.flop_counter import FlopCounterMode

import retinoscope.models  # noqa: F401  registers the micro networks
from retinoscope import dissect
from sampling import PROOF

SWIN = {"img_size": 56, "depths": (2, 1), "num_heads": (3, 6)}


@pytest.mark.parametrize(
    ("name", "size", "options"),
    [
        ("test_resnet", 160, {}),
        ("test_vit", 160, {}),
        ("test_convnext", 160, {}),
        ("micro_mixer", 32, {}),
        ("swin_tiny_patch4_window7_224", 56, SWIN),
        pytest.param("mobilevit_xxs", 128, {}, marks=PROOF),
        pytest.param("mixer_s32_224", 224, {}, marks=PROOF),
        pytest.param("swin_tiny_patch4_window7_224", 224, {}, marks=PROOF),
        pytest.param("coat_lite_tiny", 224, {}, marks=PROOF),
    ],
)
def test_agrees_with_the_counter_of_torch(name, size, options, taken_apart):
    model = timm.create_model(name, **options).eval()
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(torch.zeros(1, 3, size, size))
    anatomy = taken_apart(name, size, **options)
    assert anatomy.flops == counter.get_total_flops()
    assert anatomy.parameters == sum(p.numel() for p in model.parameters())


def test_inner_units_are_parts_of_the_outer(replayed):
    model, anatomy = replayed("mobilevit_xxs", 64)[0], replayed("mobilevit_xxs", 64)[1].anatomy
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(torch.zeros(1, 3, 64, 64))
    assert anatomy.flops == counter.get_total_flops()
    outer = next(unit for unit in anatomy if unit.inner)
    assert sum(unit.flops for unit in outer.inner) == outer.flops
    assert sum(unit.parameters for unit in outer.inner) == outer.parameters


def test_the_batch_does_not_count(taken_apart):
    model = timm.create_model("test_vit")
    assert dissect(model, torch.zeros(5, 3, 160, 160)) == taken_apart("test_vit", 160)


def test_a_shared_layer_counts_once():
    class Tied(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.stem, self.conv = torch.nn.Conv2d(3, 8, 4, 4), torch.nn.Conv2d(8, 8, 3, padding=1)

        def forward(self, x):
            x = self.stem(x)
            x = x + self.conv(x).relu()
            x = x + self.conv(x).relu()
            return x.mean((2, 3))

    anatomy = dissect(Tied(), 16)
    assert [unit.parameters for unit in anatomy.where(kind="conv")] == [584, 0]
    assert [unit.name for unit in anatomy.where(kind="conv")] == ["conv", "conv#2"]
