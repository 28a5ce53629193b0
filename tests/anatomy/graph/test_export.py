"""Bad input: what was asked, what exists, and what to do."""

import re

import pytest
import timm
import torch
from torch import nn

from retinoscope import dissect, replay
from retinoscope.core.errors import NotABackbone, NotExportable, WrongInput, WrongOutput


class Answering(nn.Module):
    """Returns whatever ``shape`` makes of its logits and its maps."""

    def __init__(self, shape):
        super().__init__()
        self.conv, self.fc = nn.Conv2d(3, 8, 4, 4), nn.Linear(8, 5)
        self.shape = shape

    def forward(self, x):
        maps = self.conv(x)
        return self.shape(self.fc(maps.mean((2, 3))), maps)


@pytest.mark.parametrize(
    "shape",
    [
        lambda logits, _: logits,
        lambda logits, maps: (logits, maps),
        lambda logits, maps: [maps, logits],
        lambda logits, maps: {"out": logits, "features": maps},
        lambda logits, maps: {"logits": logits, "aux": logits * 2},
        lambda logits, maps: (maps, {"deep": {"logits": logits}}),
    ],
)
def test_logits_are_found(shape):
    model = Answering(shape)
    x = torch.randn(2, 3, 16, 16)
    plain = Answering(lambda logits, _: logits)
    plain.load_state_dict(model.state_dict())
    torch.testing.assert_close(replay(model, 16)(x), plain(x), rtol=0, atol=0)


def test_model_output_of_transformers():
    transformers = pytest.importorskip("transformers")
    config = transformers.ViTConfig(
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        image_size=16,
        patch_size=8,
    )
    model = transformers.ViTForImageClassification(config).eval()
    x = torch.randn(2, 3, 16, 16)
    with torch.no_grad():
        torch.testing.assert_close(replay(model, 16)(x), model(x).logits, rtol=0, atol=0)


def test_several_candidates_are_asked_for():
    model = Answering(lambda logits, maps: {"a": logits, "b": logits + 1})
    with pytest.raises(WrongOutput, match=re.escape("a (N, 5), b (N, 5). Select one: output='a'")):
        dissect(model, 16)
    assert len(dissect(model, 16, output="b")) == 2
    with pytest.raises(WrongOutput, match=r"no entry 'c'. It has: a \(N, 5\), b"):
        dissect(model, 16, output="c")


def test_no_tensor_at_all():
    with pytest.raises(NotABackbone, match="returns str, which contains no tensor"):
        dissect(Answering(lambda *_: "cat"), 16)


def test_an_answer_that_ignores_the_image():
    with pytest.raises(NotABackbone, match="does not depend on the image"):
        dissect(Answering(lambda logits, maps: torch.zeros(2, 5)), 16)


class Fickle(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 1)

    def forward(self, x):
        x = self.conv(x)
        if x.sum() > 0:  # the line that cannot be exported
            x = -x
        return x.mean((2, 3))


def test_a_model_that_does_not_export_names_the_line_and_the_way_out():
    with pytest.raises(NotExportable) as caught:
        dissect(Fickle(), 16)
    text = str(caught.value)
    assert "Fickle cannot be exported as a graph" in text
    assert "`if x.sum() > 0:" in text
    assert re.search(r"test_export\.py:\d+", text)
    assert "torch.where instead of if" in text


def test_wrong_image_size_names_the_right_one():
    with pytest.raises(WrongInput) as caught:
        dissect(timm.create_model("vit_tiny_patch16_224"), 200)
    assert "does not accept images of 3×200×200" in str(caught.value)
    assert "Its own size is 3×224×224: use --size 224" in str(caught.value)


def test_an_image_that_is_too_small():
    with pytest.raises(WrongInput, match="does not accept images of 3×1×1"):
        dissect(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3)), 1)


@pytest.mark.parametrize("example", [torch.zeros(3, 8, 8), torch.zeros(5)])
def test_an_example_that_is_no_batch(example):
    with pytest.raises(
        WrongInput, match=r"must be a batch of images \(N, C, H, W\) or an image size"
    ):
        dissect(nn.Conv2d(3, 4, 3), example)


def test_an_image_without_positions():
    with pytest.raises(WrongInput, match="An image of 0×8 pixels has no positions"):
        dissect(nn.Conv2d(3, 4, 3), (0, 8))


def test_modules_that_are_no_backbones():
    with pytest.raises(WrongInput, match="Embedding does not accept images"):
        dissect(nn.Embedding(5, 5), 16)
    with pytest.raises(NotABackbone, match="cannot be called with only a batch of images"):
        dissect(nn.MultiheadAttention(4, 1), 16)
    with pytest.raises(NotABackbone, match="The model's output is its input"):
        dissect(nn.Identity(), 16)


def test_in_place_writes_to_views_are_functional():
    class Writes(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 8, 3, padding=1)

        def forward(self, x):
            x = self.conv(x)
            kept = x * 1
            x[:, :4] += 1
            x.relu_()
            return (x + kept).mean((2, 3))

    model = Writes()
    x = torch.randn(3, 3, 8, 8)
    with torch.no_grad():
        torch.testing.assert_close(replay(model, 8)(x), model(x), rtol=0, atol=0)


def test_in_place_operations_do_not_reach_kept_states(order_one):
    """A ResNet's ReLU writes in place; the states before it must stay what they were."""
    ours = replay(order_one("test_resnet"), 160)
    x = torch.randn(2, 3, 160, 160)
    with torch.no_grad():
        at_once = ours.states(x)
        for state in ours.walk(x):
            assert torch.equal(state.raw, at_once[state.unit.name].raw)


def test_greyscale_and_other_channels():
    model = timm.create_model("test_resnet", in_chans=1)
    assert dissect(model, torch.zeros(1, 1, 160, 160)).image == (1, 160, 160)
