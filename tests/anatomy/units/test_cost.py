"""FLOPs and parameters against torch's own counter."""

import pytest
import timm
import torch
from torch.utils.flop_counter import FlopCounterMode

from retinoscope import dissect


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("test_resnet", 160),
        ("test_vit", 160),
        ("test_convnext", 160),
        ("mobilevit_xxs", 128),
        ("mixer_s32_224", 224),
        ("swin_tiny_patch4_window7_224", 224),
        ("coat_lite_tiny", 224),
    ],
)
def test_agrees_with_the_counter_of_torch(name, size):
    model = timm.create_model(name).eval()
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(torch.zeros(1, 3, size, size))
    anatomy = dissect(model, size)
    assert anatomy.flops == counter.get_total_flops()
    assert anatomy.parameters == sum(p.numel() for p in model.parameters())


def test_inner_units_are_parts_of_the_outer():
    anatomy = dissect(timm.create_model("mobilevit_xxs"), 128)
    outer = next(unit for unit in anatomy if unit.inner)
    assert sum(unit.flops for unit in outer.inner) == outer.flops
    assert sum(unit.parameters for unit in outer.inner) == outer.parameters


def test_the_batch_does_not_count():
    model = timm.create_model("test_vit")
    assert dissect(model, torch.zeros(5, 3, 160, 160)) == dissect(model, 160)


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
