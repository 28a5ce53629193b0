"""Norms, outliers and massive activations against states that are known, and against NumPy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import timm
import torch
from torch import nn

import retinoscope
from retinoscope.core.errors import NotApplicable
from retinoscope.core.settings import WrongSetting
from retinoscope.models.order_one import draw_at_order_one
from retinoscope.probes.tokens import QUANTILES, Tokens
from retinoscope.run.subject import load_subject


class Glint(torch.utils.data.Dataset):
    """Grey images in which one pixel is five times as bright."""

    classes = ("a", "b")

    def __len__(self):
        return 3

    def __getitem__(self, index):
        image = np.full((8, 8, 3), 51, np.uint8)
        image[2, 5] = 255
        return image, index % 2


class Plain(nn.Module):
    """A stem that shows the image itself in three channels, the second one larger, and a ReLU."""

    def __init__(self, scale=1.0):
        super().__init__()
        self.stem, self.again = nn.Conv2d(3, 3, 1), nn.Conv2d(3, 3, 1)
        self.head = nn.Linear(3, 2)
        with torch.no_grad():
            for conv, factors in ((self.stem, (1, 2, 1)), (self.again, (-1, -1, 1))):
                conv.weight.copy_(scale * torch.diag(torch.tensor(factors)).reshape(3, 3, 1, 1))
                conv.bias.zero_()

    def forward(self, x):
        x = self.again(self.stem(x)).relu()
        return self.head(x.mean((2, 3)))


def shown(model, **options):
    plain = dict(name="plain", size=(8, 8), mean=(0.0,) * 3, std=(1.0,) * 3, images=None)
    return retinoscope.measure(Tokens(**options), load_subject(model.eval(), Glint(), **plain))


def test_one_bright_pixel():
    found = shown(Plain())
    length = 0.2 * 6**0.5
    assert found.units == ("stem", "again")
    np.testing.assert_allclose(found.norm[:5, 0], length, rtol=1e-6)
    assert found.norm[-1, 0] == pytest.approx(5 * length, rel=1e-6)
    np.testing.assert_allclose(found.largest, 5, rtol=1e-6)
    np.testing.assert_allclose(found.outlier_share, 1 / 64)
    assert found.massive[0] == pytest.approx(10, rel=1e-6)  # channel 1 doubles; most entries do not
    assert found.massive_channel.tolist() == [1, 2]
    assert found.massive_channel_share.tolist() == [1, 1]
    assert found.massive[1] == pytest.approx(5, rel=1e-6), "two channels are 0 and do not count"
    expected = np.zeros((8, 8))
    expected[2, 5] = 1
    np.testing.assert_array_equal(found.outliers, expected[None])
    assert found.last == ("after again",)
    assert np.isnan(found.prefix_ratio).all()
    assert np.isnan(found.sink_value).all()
    assert found.skipped == (("head", "its state has no grid"),)


def test_the_threshold_is_a_setting():
    found = shown(Plain(), outlier=5.5)
    assert found.outlier == 5.5
    assert found.outlier_share.tolist() == [0, 0]
    with pytest.raises(WrongSetting, match=r"outlier is above 1; got 0\.5"):
        Tokens(outlier=0.5)


def test_scale_changes_norms_but_no_ratio():
    one, other = shown(Plain()), shown(Plain(scale=10))
    np.testing.assert_allclose(other.norm[:, 0], 10 * one.norm[:, 0], rtol=1e-5)
    for name in ("largest", "outlier_share", "massive"):
        np.testing.assert_allclose(getattr(other, name), getattr(one, name), rtol=1e-5)


@pytest.fixture(scope="module")
def vit():
    """A ViT with a class token and two registers; all of its units' 192 entries count."""
    torch.manual_seed(0)
    model = timm.create_model(
        "vit_tiny_patch16_224", img_size=16, patch_size=4, embed_dim=12, num_heads=3, depth=2,
        num_classes=10, reg_tokens=2,
    )  # fmt: skip
    model = draw_at_order_one(model).eval()
    return load_subject(
        model, "cues", name="vit", size=(16, 16), images=5, batch=2, precision="float64"
    )


def naive(states, prefix, outlier):
    """Everything about tokens (N, L, C) of which the first are prefix tokens, in NumPy."""
    positions = states[:, prefix:]
    norms = np.sqrt((positions**2).sum(-1))
    median = np.median(norms, axis=1)
    largest = np.abs(states).max(1)
    entries = np.abs(positions).reshape(len(states), -1)
    return {
        "norm": np.quantile(norms, QUANTILES, axis=1).T.mean(0),
        "largest": (norms.max(1) / median).mean(),
        "outlier_share": (norms > outlier * median[:, None]).mean(),
        "massive": (largest.max(1) / np.median(entries, axis=1)).mean(),
        "massive_channel": np.bincount(largest.argmax(1)).argmax(),
        "prefix_norm": np.sqrt((states[:, :prefix] ** 2).sum(-1)).mean(0),
    }


def kept(model, run, images):
    """The residual stream of a ViT before every block's norms, and at the end before the last."""
    held = []
    places = [module for block in model.blocks for module in (block.norm1, block.norm2)]
    hooks = [
        module.register_forward_pre_hook(lambda module, given: held.append(given[0].numpy().copy()))
        for module in [*places, model.norm]
    ]
    with torch.no_grad():
        run(images)
    for hook in hooks:
        hook.remove()
    return held


def test_a_vit_equals_numpy_before_the_final_norm(vit):
    found = retinoscope.measure(Tokens(outlier=1.1), vit)
    (batch,) = vit.splits["test"].batches(range(5), 5)
    states = kept(vit.backbone, vit.model, vit.to_device(batch.images))
    assert len(found.units) == len(states) == 5
    assert found.skipped == (("head", "its state has no grid"),)
    for place, tokens in enumerate(states):
        expected = naive(tokens, 3, 1.1)
        np.testing.assert_allclose(found.norm[:, place], expected.pop("norm"), rtol=1e-9)
        for name, value in expected.items():
            np.testing.assert_allclose(getattr(found, name)[place], value, rtol=1e-6, err_msg=name)
    assert found.outlier_share.max() > 0
    assert found.entries == (1,) * 5
    after = found.norm[2] / np.median(found.norm[2])
    assert np.ptp(after) > 0.1, "a norm would make all alike"


def test_values_at_sinks_of_a_vit(vit):
    found = retinoscope.measure(Tokens(), vit)
    (batch,) = vit.splits["test"].batches(range(5), 5)
    assert np.isfinite(found.sink_value).tolist() == [False, True, False, True, False]
    given = []
    blocks = vit.backbone.blocks
    hooks = [b.attn.register_forward_pre_hook(lambda _, x: given.append(x[0])) for b in blocks]
    with torch.no_grad():
        vit.model(vit.to_device(batch.images))
        for place, (block, x) in enumerate(zip(blocks, given, strict=True)):
            q, k, v = block.attn.qkv(x).unflatten(-1, (3, 3, 4)).permute(2, 0, 3, 1, 4)
            weights = (q @ k.mT / 2).softmax(-1)
            each = []
            for n in range(5):
                for h in range(3):
                    norms = v[n, h].norm(dim=-1)
                    each.append(norms[weights[n, h].sum(0).argmax()] / norms.mean())
            assert found.sink_value[1 + 2 * place] == pytest.approx(np.mean(each), rel=1e-6)
    for hook in hooks:
        hook.remove()


def test_batches_do_not_matter(vit):
    one, other = (retinoscope.measure(Tokens(), replace(vit, batch=b)) for b in (2, 5))
    for name, array in one.arrays().items():
        np.testing.assert_allclose(array, other.arrays()[name], rtol=1e-9, err_msg=name)


def test_a_cnn_equals_numpy(order_one):
    """Its first maps have so many entries that the median is that of some."""
    model = order_one("resnet18", layers=(1, 1, 1, 1), channels=(8, 8, 8, 8), num_classes=10)
    subject = load_subject(model, "cues", name="cnn", size=(64, 64), images=3)
    found = retinoscope.measure(Tokens(), subject)
    (batch,) = subject.splits["test"].batches(range(3), 3)
    with torch.no_grad():
        states = subject.replay.states(batch.images)
    for place, unit in enumerate(found.units):
        maps = states[unit].maps.double().numpy()
        norms = np.sqrt((maps**2).sum(1)).reshape(3, -1)
        expected = np.quantile(norms, QUANTILES, axis=1).T.mean(0)
        np.testing.assert_allclose(found.norm[:, place], expected, rtol=1e-5)
        some = np.abs(maps).reshape(3, -1)[:, :: found.entries[place]]
        medians = np.array([np.median(row[row > 0]) for row in some])
        massive = (np.abs(maps).max((1, 2, 3)) / medians).mean()
        assert found.massive[place] == pytest.approx(massive, rel=1e-5)
    assert found.entries[0] > 1
    assert found.entries[-1] == 1
    said = found.findings()
    assert "of positions after layer4.0 are longer than 3 times the median" in said[0]
    assert "times the median entry after" in said[1]
    assert len(said) == 2


class Normed(nn.Module):
    """A convolution between blocks and head, with a norm right behind it."""

    def __init__(self, post=False):
        super().__init__()
        self.embed, self.post = nn.Conv2d(3, 6, 2, 2), post
        self.maps = nn.ModuleList(nn.Linear(6, 6) for _ in range(3))
        self.norms = nn.ModuleList(nn.LayerNorm(6) for _ in range(3))
        self.head = nn.Linear(6, 10)

    def forward(self, x):
        x = self.embed(x).flatten(2).mT
        if self.post:
            for one, norm in zip(self.maps, self.norms, strict=True):
                x = norm(x + one(x).relu())
            return self.head(x.mean(1))
        x = x + self.maps[0](x).relu()
        x = x + self.maps[1](x).relu()
        return self.head(self.norms[2](self.maps[2](x)).mean(1))


def normed(**options):
    torch.manual_seed(0)
    model = draw_at_order_one(Normed(**options)).eval()
    return retinoscope.measure(Tokens(), load_subject(model, "cues", size=(8, 8), images=3))


def test_the_state_behind_the_final_norm_is_left_out():
    found = normed()
    assert found.units == ("embed", "maps.0", "maps.1")
    reasons = dict(found.skipped)
    assert "is the output of the final norm" in reasons["maps.2"]
    assert found.last == ("after maps.1",)


def test_a_network_that_normalises_everywhere_is_measured():
    """Its states are what the next unit starts from."""
    assert len(normed(post=True).units) >= 3


def test_states_of_zeros_are_explained():
    model = nn.Sequential(nn.Conv2d(3, 4, 4, 4), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
                          nn.Linear(4, 10)).eval()  # fmt: skip
    nn.init.zeros_(model[0].weight)
    nn.init.zeros_(model[0].bias)
    subject = load_subject(model, "cues", size=(16, 16), images=2)
    with pytest.raises(NotApplicable, match=r"all states of .* are 0"):
        retinoscope.measure(Tokens(), subject)
