from __future__ import annotations

import importlib.util
import math
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import timm
import torch
from torch import nn

from retinoscope.layers.attention_block import AttentionBlock
from retinoscope.models.order_one import draw_at_order_one
from sampling import PROOF, sampled

FOLDER = Path(__file__).parents[2] / "examples"


def load(name: str) -> ModuleType:
    """An example as a module: the folder is no package."""
    path = FOLDER / f"{name}.py"
    specification = importlib.util.spec_from_file_location(f"examples_{name}", path)
    assert specification is not None
    assert specification.loader is not None
    module = sys.modules[specification.name] = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def smp() -> ModuleType:
    return pytest.importorskip("segmentation_models_pytorch")


@pytest.mark.docs
def test_segmentation_learns(smp, capsys):
    before, after = load("segment_with_alternet").main(steps=20, size=(64, 64))

    assert after.loss < 0.8 * before.loss
    assert after.iou > before.iou + 0.2
    printed = capsys.readouterr().out
    assert f"before: {before}" in printed
    assert f"after 20 steps: {after}" in printed


def test_segmentation_scores_what_it_says(smp):
    """A network that finds the upper half of a mask of two rows in four: IoU 1 / 2."""
    example = load("segment_with_alternet")
    masks = torch.zeros(1, 1, 4, 4)
    masks[..., :2, :] = 1
    logits = torch.full_like(masks, -1.0)
    logits[..., :1, :] = 1

    found = example.score(nn.Identity(), logits, masks)

    # Three rows of four are right, with log(1 + 1/e) each; one is wrong, with log(1 + e).
    expected = (3 * math.log1p(math.exp(-1)) + math.log1p(math.exp(1))) / 4
    assert found.loss == pytest.approx(expected, rel=1e-5)
    assert found.iou == 0.5


@pytest.mark.docs
def test_detection_learns(capsys):
    example = load("detect_with_alternet")

    outcome = example.main(steps=10)

    assert set(outcome.first) == {
        "loss_classifier", "loss_box_reg", "loss_objectness", "loss_rpn_box_reg",
    }  # fmt: skip
    for losses in (outcome.first, outcome.last):
        assert all(math.isfinite(loss) for loss in losses.values())
    assert sum(outcome.last.values()) < 0.8 * sum(outcome.first.values())
    assert len(outcome.detections) == len(outcome.overlaps) == 4
    for place, found in enumerate(outcome.detections):
        height, width = example.SIZES[place % 2]
        boxes, count = found["boxes"], len(found["scores"])
        assert count > 0
        assert boxes.shape == (count, 4)
        assert (boxes[:, :2] < boxes[:, 2:]).all()
        assert (boxes[:, 2:] <= torch.tensor([width, height])).all()
    assert capsys.readouterr().out.count("detections") == 4


def test_both_examples_run_one_step(smp, capsys):
    """Whole, and that they learn, by ``make docs``."""
    before, after = load("segment_with_alternet").main(steps=1, size=(64, 64))
    assert before.loss > 0
    assert after.loss != before.loss
    outcome = load("detect_with_alternet").main(steps=1)
    assert outcome.first.keys() == outcome.last.keys()
    assert all(math.isfinite(loss) for loss in outcome.first.values())
    assert "after 1 steps" in capsys.readouterr().out


def test_pyramid_takes_images_that_nothing_divides():
    backbone = load("detect_with_alternet").Pyramid("alternet18", out_channels=16).eval()

    with torch.no_grad():
        maps = backbone(torch.randn(1, 3, 83, 101))

    assert [tuple(m.shape[1:]) for m in maps.values()] == [
        (16, 21, 26), (16, 11, 13), (16, 6, 7), (16, 3, 4), (16, 2, 2),
    ]  # fmt: skip


@PROOF
def test_alternet50_is_an_encoder_of_five_strides(smp):
    network = smp.Unet("tu-alternet50", encoder_weights=None, classes=3)
    draw_at_order_one(network)
    images = torch.randn(2, 3, 96, 64)

    features = network.encoder(images)
    masks = network(images)
    masks.square().mean().backward()

    assert network.encoder.out_channels == [3, 64, 256, 512, 1024, 2048]
    assert [f.shape[1] for f in features] == network.encoder.out_channels
    assert [96 // f.shape[2] for f in features] == [1, 2, 4, 8, 16, 32]
    assert [64 // f.shape[3] for f in features] == [1, 2, 4, 8, 16, 32]
    assert masks.shape == (2, 3, 96, 64)
    attention = [m for m in network.encoder.modules() if isinstance(m, AttentionBlock)]
    assert len(attention) == 6
    for block in attention:
        for name, parameter in block.named_parameters():
            assert parameter.grad is not None, name
            assert parameter.grad.abs().max() > 0, name


@pytest.mark.parametrize("network", sampled(["FPN", "Linknet", "DeepLabV3Plus"], "DeepLabV3Plus"))
def test_other_decoders_take_it_too(smp, network):
    """DeepLab asks for an output stride of 16: its last stage dilates instead of subsampling."""
    built = getattr(smp, network)("tu-alternet18", encoder_weights=None, classes=2).eval()

    with torch.no_grad():
        assert built(torch.randn(1, 3, 64, 96)).shape == (1, 2, 64, 96)
        last = built.encoder(torch.randn(1, 3, 64, 96))[-1]

    assert 64 // last.shape[2] == (16 if network == "DeepLabV3Plus" else 32)


@pytest.mark.parametrize("stride", [8, 16])
def test_dilated_stages_see_what_strided_ones_saw(stride):
    """Convolutions with the same weights: every second or fourth position is the strided map's."""
    strided = draw_at_order_one(timm.create_model("preact_resnet18", features_only=True)).eval()
    dilated: Any = timm.create_model("preact_resnet18", features_only=True, output_stride=stride)
    dilated.eval()
    dilated.load_state_dict(strided.state_dict())
    images = torch.randn(2, 3, 96, 64)

    with torch.no_grad():
        pairs = list(zip(strided(images), dilated(images), strict=True))

    assert dilated.feature_info.reduction() == [min(2**s, stride) for s in range(1, 6)]
    for expected, found in pairs:
        apart = found.shape[2] // expected.shape[2]
        scale = expected.abs().max()
        # float32, sums in another order: about 1e-6 of the largest value.
        assert (found[..., ::apart, ::apart] - expected).abs().max() < 1e-5 * scale


@pytest.mark.parametrize("stride", [2, 12, 0])
def test_impossible_output_strides_are_refused(stride):
    with pytest.raises(ValueError, match=f"at least the stem's 4; got {stride}"):
        timm.create_model("alternet18", output_stride=stride)
