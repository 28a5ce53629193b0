from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import timm
import torch
from torch import nn

import retinoscope
from numerics.test_attention_spectrum import dense
from probes.small import NETWORKS, small
from retinoscope.core.errors import NotApplicable
from retinoscope.core.settings import WrongSetting
from retinoscope.models.order_one import draw_at_order_one
from retinoscope.probes.attention_spectrum import AttentionSpectrum
from retinoscope.run.subject import load_subject
from surgery.test_eigen_attention import DIM, Odd, Own, Shuffled

OUTCOMES = ("smoothing", "not smoothing", "tie")


@cache
def own(block):
    """A network of one residual attention of 4 × 4 tokens, in double precision."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Own({"shuffled": Shuffled}.get(block, lambda: Odd(block))())
    model = draw_at_order_one(model).double().eval()
    return load_subject(model, "cues", name=block, size=(16, 16), images=6)


def naive(subject, images):
    """Outcomes and decays of a timm ViT from its own weights, by the dense form."""
    (batch,) = subject.splits["test"].batches(range(images), images)
    model, outcomes, decays, seconds, products = subject.backbone, [], [], [], []
    with torch.no_grad():
        x = subject.model.normalise(batch.images.double())
        x = model._pos_embed(model.patch_embed(x))
        for block in model.blocks:
            attention, normed = block.attn, block.norm1(x)
            heads, width = attention.num_heads, attention.head_dim
            query, key, value = (
                attention.qkv(normed).unflatten(-1, (3, heads, width)).permute(2, 0, 3, 1, 4)
            )
            weights = (query @ key.mT * attention.scale).softmax(-1).numpy()
            maps = attention.qkv.weight[2 * heads * width :].unflatten(0, (heads, width)).mT.numpy()
            output = attention.proj.weight.mT.unflatten(0, (heads, width)).numpy()
            for image, head in np.ndindex(images, heads):
                _, vector = dense(weights[image, head], maps[head], output[head])
                outcomes.append(np.abs(vector - vector.mean(0)).max() < 1e-6)
            powers = np.stack(
                [np.linalg.matrix_power(weights, k) @ value.numpy() for k in range(4)]
            )
            high = np.linalg.norm(powers - powers.mean(-2, keepdims=True), axis=(-2, -1))
            decays.append((high / high[0]).mean((1, 2)))
            roots = np.abs(np.linalg.eigvals(weights))
            seconds.append(np.sort(roots)[..., -2].mean())
            products.append(np.linalg.eigvals(maps @ output))
            x = x + attention(normed)
            x = x + block.mlp(block.norm2(x))
    shape = len(model.blocks), images, -1
    return np.array(outcomes).reshape(shape), np.stack(decays), seconds, products


def test_a_vit_agrees_with_the_dense_form_of_every_head_and_image():
    subject = small("vit")
    found = retinoscope.measure(AttentionSpectrum(images=4, powers=3), subject)
    outcomes, decays, seconds, products = naive(subject, 4)
    assert found.units == ("blocks.0.attn", "blocks.1.attn")
    assert (found.images, found.cases) == (4, outcomes.size)
    np.testing.assert_allclose(found.by_head, outcomes.mean(1))
    np.testing.assert_allclose(found.smoothing, outcomes.mean((1, 2)))
    assert found.tally[0] == pytest.approx(outcomes.mean())
    assert found.tally.sum() == pytest.approx(1)
    np.testing.assert_allclose(found.decay, decays, rtol=1e-9)
    assert (np.diff(found.decay) < 0).all()
    assert found.without_maps == ()
    np.testing.assert_allclose(found.second, seconds, rtol=1e-8)
    for place, roots in enumerate(products):  # (heads, width), of which most are 0
        assert found.radius[place] == pytest.approx(np.abs(roots).max(-1).mean(), rel=1e-8)
        shares = (roots.real < -1e-9).sum(-1) / (np.abs(roots) > 1e-9).sum(-1)
        assert found.negative[place] == pytest.approx(shares.mean())


@pytest.mark.parametrize(
    ("name", "smooths"), [("micro_vit_plus", True), ("micro_vit_minus", False)]
)
def test_vit_plus_and_minus_do_what_they_are_made_for(name, smooths):
    subject = load_subject(f"{name}:depth=2", "cues", pretrained=False, images=3)
    found = retinoscope.measure(AttentionSpectrum(images=3), subject)
    assert found.cases == 2 * 3 * 3
    np.testing.assert_allclose(found.negative, 0 if smooths else 1)
    assert found.tally[0] == (1 if smooths else 0)
    assert np.isfinite(found.decay).all()
    assert (
        f"smoothing dominates in {'100' if smooths else '0'} % of 18 cases" in found.findings()[0]
    )


def test_random_weights_of_a_vit_smooth_in_all_cases():
    name, options, size = NETWORKS["vit"]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = timm.create_model(name, **options).eval()
    subject = load_subject(model, "cues", size=(size, size), images=3)
    found = retinoscope.measure(AttentionSpectrum(images=3), subject)
    assert found.tally.tolist() == [1, 0, 0]


def test_windows_of_swin_are_one_matrix():
    found = retinoscope.measure(AttentionSpectrum(images=2, powers=5), small("swin"))
    assert found.cases == 2 * (2 + 2 + 4)
    assert found.by_head.shape == (3, 4)
    assert np.isnan(found.by_head[0, 2:]).all()
    assert (np.diff(found.decay) <= 0).all()
    assert "it has no attention over positions" in dict(found.skipped).values()


def test_heads_in_any_order_of_channels():
    """The same attention, once with heads and channels in an order of its own."""
    subject = own("shuffled")
    found = retinoscope.measure(AttentionSpectrum(images=6), subject)
    block, outcomes = subject.backbone.block, []
    (batch,) = subject.splits["test"].batches(range(6), 6)
    with torch.no_grad():
        model = subject.backbone
        x = subject.model.normalise(batch.images.double())
        x = model.norm(model.start(x).flatten(2).transpose(1, 2))
        _, key, query = block.into(x).unflatten(-1, (-1, 2, 3)).unbind(-1)
        weights = torch.einsum("bqdh,bkdh->bhqk", query, key).softmax(-1).numpy()
        into = block.into.weight.unflatten(0, (4, 2, 3))[:, :, 0].permute(1, 2, 0).numpy()
        out = block.out_of.weight.unflatten(1, (4, 2)).flip(1).permute(2, 1, 0).numpy()
    for image, head in np.ndindex(6, 2):
        _, vector = dense(weights[image, head], into[head], out[head])
        outcomes.append(np.abs(vector - vector.mean(0)).max() < 1e-6)
    np.testing.assert_allclose(found.by_head[0], np.reshape(outcomes, (6, 2)).mean(0))


def test_maps_that_are_unclear_leave_the_decay():
    found = retinoscope.measure(AttentionSpectrum(images=2), own("gate"))
    ((unit, reason),) = found.without_maps
    assert (unit, reason) == ("block", "its mixed values go into mul, not a linear map")
    assert found.cases == 0
    assert np.isnan(found.smoothing).all()
    assert np.isfinite(found.decay).all()
    assert found.findings()[-1] == f"H is unknown for block: {reason}"


def test_batch_size_and_number_of_images():
    subject = small("vit")
    few, more = (retinoscope.measure(AttentionSpectrum(images=n), subject) for n in (2, 99))
    assert (few.images, more.images) == (2, 6)
    again = retinoscope.measure(AttentionSpectrum(images=2), replace(subject, batch=1))
    for key, array in few.arrays().items():
        np.testing.assert_array_equal(again.arrays()[key], array)


class Summed(nn.Module):
    """Attention whose weights are doubled after the softmax."""

    def forward(self, x):
        return 2 * (x @ x.transpose(1, 2)).softmax(-1) @ x


def test_what_does_not_apply_is_said():
    with pytest.raises(NotApplicable, match=r"needs attention over positions .* resnet18 has none"):
        retinoscope.measure(AttentionSpectrum(), small("cnn"))
    with pytest.raises(NotApplicable, match=r"blocks.0.attn: it has 17 tokens; .*max_tokens=17"):
        retinoscope.measure(AttentionSpectrum(max_tokens=16), small("vit"))
    with pytest.raises(NotApplicable, match="do not come from a softmax over keys"):
        retinoscope.measure(AttentionSpectrum(), own("linear attention"))
    doubled = load_subject(Own(Summed()).eval(), "cues", size=(16, 16), images=2)
    with pytest.raises(NotApplicable, match="the weights of its queries do not sum to 1"):
        retinoscope.measure(AttentionSpectrum(), doubled)
    with pytest.raises(WrongSetting, match="images is 1 or more; got 0"):
        AttentionSpectrum(images=0)


class Pooled(nn.Module):
    """Attention of learned queries, as in a pooling head: queries and keys are not the same."""

    def __init__(self):
        super().__init__()
        self.start, self.end = nn.Conv2d(3, DIM, 4, 4), nn.Linear(DIM, 5)
        self.query = nn.Parameter(torch.randn(1, 3, DIM))

    def forward(self, image):
        x = self.start(image).flatten(2).mT
        query = self.query.expand(len(x), -1, -1)
        return self.end(nn.functional.scaled_dot_product_attention(query, x, x).mean(1))


def test_queries_that_are_not_the_keys():
    subject = load_subject(Pooled().eval(), "cues", name="own", size=(16, 16), images=3)
    with pytest.raises(NotApplicable, match="not the same tokens"):
        retinoscope.measure(AttentionSpectrum(), subject)
