"""Attention against its own weights, computed by hand, whoever wrote the network."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import timm
import torch
import torchvision
from torch import nn
from torch.nn import functional

import retinoscope
from numerics.naive_attention import statistics
from probes.small import small
from retinoscope.core.errors import NotApplicable
from retinoscope.core.settings import WrongSetting
from retinoscope.models.order_one import draw_at_order_one
from retinoscope.probes.attention import STATISTICS, Attention
from retinoscope.run.subject import load_subject
from run.elsewhere import TINY
from sampling import sampled

IMAGES = 5
WIDTH = 12


class Block(nn.Module):
    """Attention by einsum with a bias, then an MLP."""

    def __init__(self, tokens, heads=3):
        super().__init__()
        self.norm, self.heads = nn.LayerNorm(WIDTH), heads
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.bias = nn.Parameter(torch.zeros(heads, tokens, tokens))
        self.mlp = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 24), nn.GELU(),
                                 nn.Linear(24, WIDTH))  # fmt: skip

    def weights(self, x):
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, self.heads, -1)).unbind(2)
        return (torch.einsum("bqhd,bkhd->bhqk", q, k) / 2 + self.bias).softmax(-1), v

    def forward(self, x):
        weights, v = self.weights(x)
        x = x + self.proj(torch.einsum("bhqk,bkhd->bqhd", weights, v).flatten(2))
        return x + self.mlp(x)


class Einsum(nn.Module):
    """A ViT of one's own; its class token comes last."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Conv2d(3, WIDTH, 4, 4)
        self.token = nn.Parameter(torch.zeros(1, 1, WIDTH))
        self.blocks = nn.ModuleList(Block(17) for _ in range(2))
        self.head = nn.Linear(WIDTH, 10)

    def forward(self, x):
        x = self.embed(x).flatten(2).mT
        x = torch.cat([x, self.token.expand(len(x), -1, -1)], 1)
        for block in self.blocks:
            x = block(x)
        return self.head(x[:, -1])


def caught(modules, model, images):
    """What each module is given."""
    held = {}
    hooks = [
        module.register_forward_pre_hook(
            lambda module, given, options: held.update({module: given or tuple(options.values())}),
            with_kwargs=True,
        )
        for module in modules
    ]
    with torch.no_grad():
        model(images)
    for hook in hooks:
        hook.remove()
    return [held[module][0] for module in modules]


def of_timm_vit(model, run, images):
    attentions = [block.attn for block in model.blocks]
    for module, x in zip(attentions, caught(attentions, run, images), strict=True):
        q, k, _ = module.qkv(x).unflatten(-1, (3, module.num_heads, -1)).permute(2, 0, 3, 1, 4)
        yield (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1)[:, None]


def of_einsum(model, run, images):
    for block, x in zip(model.blocks, caught(model.blocks, run, images), strict=True):
        yield block.weights(x)[0][:, None]


class Own(nn.Module):
    """Patches, two residual ``nn.MultiheadAttention``, and a head."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Conv2d(3, WIDTH, 4, 4)
        self.token = nn.Parameter(torch.zeros(1, 1, WIDTH))
        self.layers = nn.ModuleList(
            nn.MultiheadAttention(WIDTH, 3, batch_first=True) for _ in range(2)
        )
        self.head = nn.Linear(WIDTH, 10)

    def forward(self, x):
        x = self.embed(x).flatten(2).mT
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1)
        for layer in self.layers:
            x = x + layer(x, x, x, need_weights=False)[0]
        return self.head(x[:, 0])


def of_multihead(model, run, images):
    modules = [module for module in model.modules() if isinstance(module, nn.MultiheadAttention)]
    for module, x in zip(modules, caught(modules, run, images), strict=True):
        yield module(x, x, x, need_weights=True, average_attn_weights=False)[1][:, None]


def of_transformers(model, run, images):
    """A second network that computes its weights openly, with the same parameters."""
    transformers = pytest.importorskip("transformers")
    kind = transformers.ViTForImageClassification
    plain = kind._from_config(model.config, attn_implementation="eager").to(images).eval()
    plain.load_state_dict(model.state_dict())
    for weights in plain(run.normalise(images), output_attentions=True).attentions:
        yield weights[:, None]


def of_swin(model, run, images):
    blocks = model.layers[0].blocks
    attentions = [block.attn for block in blocks]
    given = caught(attentions, run, images)
    for block, module, x in zip(blocks, attentions, given, strict=True):
        q, k, _ = module.qkv(x).unflatten(-1, (3, module.num_heads, -1)).permute(2, 0, 3, 1, 4)
        logits = q @ k.mT * q.shape[-1] ** -0.5 + module._get_rel_pos_bias()
        logits = logits.unflatten(0, (len(images), 4))
        if block.attn_mask is not None:
            logits = logits + block.attn_mask[:, None]
        yield logits.softmax(-1)


def timm_vit(fused=True, **options):
    before = timm.layers.use_fused_attn()
    timm.layers.set_fused_attn(fused)
    small = {"img_size": 16, "patch_size": 4, "embed_dim": WIDTH, "num_heads": 3, "depth": 2}
    model = timm.create_model("vit_tiny_patch16_224", num_classes=10, **small, **options)
    timm.layers.set_fused_attn(before)
    assert model.blocks[0].attn.fused_attn == fused
    return model


def transformers_vit(how):
    transformers = pytest.importorskip("transformers")
    config = transformers.ViTConfig(
        hidden_size=WIDTH, num_hidden_layers=2, num_attention_heads=3, intermediate_size=24,
        image_size=16, patch_size=4, num_labels=10,
    )  # fmt: skip
    return transformers.ViTForImageClassification._from_config(config, attn_implementation=how)


def swin():
    return timm.create_model(
        "swin_tiny_patch4_window7_224", img_size=16, patch_size=2, window_size=4, embed_dim=WIDTH,
        depths=(2,), num_heads=(3,), num_classes=10,
    )  # fmt: skip


def torchvision_vit():
    return torchvision.models.VisionTransformer(16, 4, 2, 3, WIDTH, 24, num_classes=10)


FAMILIES = {
    "timm, fused": (timm_vit, of_timm_vit),
    "timm, not fused": (lambda: timm_vit(fused=False), of_timm_vit),
    "timm, registers": (lambda: timm_vit(reg_tokens=2), of_timm_vit),
    "transformers, SDPA": (lambda: transformers_vit("sdpa"), of_transformers),
    "transformers, eager": (lambda: transformers_vit("eager"), of_transformers),
    "torchvision": (torchvision_vit, of_multihead),
    "nn.MultiheadAttention": (Own, of_multihead),
    "swin": (swin, of_swin),
    "einsum": (Einsum, of_einsum),
}


@cache
def subject_of(family, precision="float64"):
    torch.manual_seed(0)
    model = draw_at_order_one(FAMILIES[family][0]()).eval()
    return load_subject(
        model, "cues", name=family, size=(16, 16), images=IMAGES, batch=2, precision=precision
    )


@cache
def measured(family, precision="float64"):
    return retinoscope.measure(Attention(ranks=3), subject_of(family, precision))


@torch.no_grad()
def weights_of(family, subject):
    """The weights of each attention (N, windows, heads, queries, keys), computed by hand."""
    (batch,) = subject.splits["test"].batches(range(IMAGES), IMAGES)
    images = subject.to_device(batch.images)
    return list(FAMILIES[family][1](subject.backbone, subject.model, images))


def about(family, place):
    """Which tokens are positions, their distances in pixels, and what may be seen."""
    side, pixels = 4, 2 if family == "swin" else 4
    at = np.stack(np.divmod(np.arange(side * side), side), 1) * pixels
    prefix = {"swin": 0, "timm, registers": 3}.get(family, 1)
    tokens = slice(None, prefix and -prefix) if family == "einsum" else slice(prefix, None)
    on = np.zeros(16 + prefix, bool)
    on[tokens] = True
    distance = np.full((16 + prefix,) * 2, np.nan)
    distance[tokens, tokens] = np.linalg.norm(at[:, None] - at[None], axis=-1)
    return on, distance


@pytest.mark.parametrize(
    "family",
    sampled(FAMILIES, "timm, fused", "transformers, SDPA", "swin", "nn.MultiheadAttention"),
)
def test_equals_the_naive_twin_of_explicit_weights(family):
    subject, found = subject_of(family), measured(family)
    explicit = weights_of(family, subject)
    assert len(found.units) == len(explicit) == 2
    assert found.images == IMAGES
    assert found.heads == (3, 3)
    for place, weights in enumerate(explicit):
        on, distance = about(family, place)
        seen = None
        if family == "swin" and place == 1:
            seen = np.repeat((subject.backbone.layers[0].blocks[1].attn_mask == 0)[:, None], 3, 1)
            assert 0.2 < seen.numpy().mean() < 0.8
        expected = statistics(weights.numpy(), on, on, distance, seen)
        for name in STATISTICS:
            if family == "swin" and name == "prefix_share":
                assert np.isnan(found.head_prefix_share).all()
                continue
            heads, each = getattr(found, f"head_{name}")[place], expected[name]
            np.testing.assert_allclose(heads, each.mean(0), rtol=1e-6, atol=1e-9, err_msg=name)
            assert np.ptp(each) > 1e-3, f"{name} is the same everywhere: nothing is shown"
            means, errors = getattr(found, name)[place], getattr(found, f"{name}_error")[place]
            assert means == pytest.approx(each.mean(), rel=1e-6)
            assert errors == pytest.approx(each.mean(1).std(ddof=1) / IMAGES**0.5, rel=1e-6)
        ranks = np.square(weights.numpy()).sum((-1, -2)) / np.linalg.norm(
            weights.numpy(), 2, axis=(-2, -1)
        ) ** 2  # fmt: skip
        np.testing.assert_allclose(found.head_stable_rank[place], ranks[:3].mean((0, 1)), rtol=1e-6)


def test_fused_or_not_in_single_precision():
    fused, plain = (measured(f"timm, {how}", "float32") for how in ("fused", "not fused"))
    exact = measured("timm, fused")
    for name, array in fused.arrays().items():
        if name not in ("maps", "pictures"):
            np.testing.assert_allclose(array, plain.arrays()[name], rtol=1e-5, atol=1e-5)
            np.testing.assert_allclose(array, exact.arrays()[name], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("family", ["timm, fused", "swin"])
def test_batches_do_not_matter(family):
    subject = subject_of(family, "float32")
    whole = retinoscope.measure(Attention(ranks=3), replace(subject, batch=5))
    for name, array in measured(family, "float32").arrays().items():
        np.testing.assert_allclose(array, whole.arrays()[name], rtol=1e-6, atol=1e-6, err_msg=name)


def test_maps_are_the_weights_of_the_class_token_over_its_image():
    subject, found = subject_of("timm, registers"), measured("timm, registers")
    explicit = weights_of("timm, registers", subject)
    assert found.captions[:2] == ("0 · blocks.0.attn", "0 · blocks.1.attn")
    assert found.head_names == ("mean over heads", "head 0", "head 1", "head 2")
    assert found.maps.shape == (4, 4, 4, 4)
    np.testing.assert_allclose(found.maps.max((2, 3)), 1)
    maps = found.maps * found.largest_weight[..., None, None]
    for place in range(2):
        for image in range(2):
            heads = explicit[place][image, 0, :, 0, 3:].unflatten(-1, (4, 4))
            own = maps[:, 2 * image + place]
            np.testing.assert_allclose(own[0], heads.mean(0), rtol=2e-3, atol=1e-6)
            np.testing.assert_allclose(own[1:], heads, rtol=2e-3, atol=1e-6)
    (batch,) = subject.splits["test"].batches(range(2), 2)
    shown = batch.images.movedim(1, -1).numpy()
    low, high = shown.min((1, 2, 3), keepdims=True), shown.max((1, 2, 3), keepdims=True)
    np.testing.assert_allclose(found.pictures, (shown - low) / (high - low), atol=1e-3)


def test_maps_of_windows_are_put_together():
    """Without a class token: what queries look at on average, wherever the window is shifted to."""
    found, explicit = measured("swin"), weights_of("swin", subject_of("swin"))
    assert found.maps.shape == (4, 4, 8, 8)
    windows = explicit[1][0].mean((1, 2))  # (windows, keys)
    rolled = windows.reshape(2, 2, 4, 4).permute(0, 2, 1, 3).reshape(8, 8)
    expected = torch.roll(rolled, (2, 2), (0, 1))
    own = found.maps[0, 1] * found.largest_weight[0, 1]
    np.testing.assert_allclose(own, expected, rtol=2e-3, atol=1e-6)
    assert ("swin", "it has no prefix tokens") in found.remarks


def test_heads_that_a_stage_does_not_have():
    found = retinoscope.measure(Attention(), small("swin"))
    assert found.heads == (2, 2, 4)
    assert np.isnan(found.head_entropy[:2, 2:]).all()
    assert np.isnan(found.maps[3:, :2]).all(), "the first stage has two heads"
    assert np.isfinite(found.maps[3:, 2]).all()


def test_findings_and_saving(tmp_path):
    found = measured("timm, fused")
    said = found.findings()
    assert "attention looks farthest in blocks." in said[0]
    assert "of the largest entropy" in said[1]
    assert "prefix tokens get most weight in blocks." in said[2]
    found.save(tmp_path)
    again = type(found).load(tmp_path)
    assert again == found


class Same(nn.Module):
    """A network whose attention is even, or looks only at itself, whatever the image."""

    def __init__(self, strength):
        super().__init__()
        self.stem, self.head = nn.Conv2d(3, 6, 4, 4), nn.Linear(6, 5)
        self.value, self.strength = nn.Linear(6, 6), strength
        self.own = nn.Parameter(torch.eye(16))  # learned: a constant that hides keys is a mask

    def forward(self, image):
        x = self.stem(image).flatten(2).mT
        weights = (0 * x @ x.mT + self.strength * self.own).softmax(-1)
        x = x + weights @ self.value(x)
        return self.head(x.mean(1))


@pytest.mark.parametrize(("strength", "share"), [(0.0, 1.0), (1000.0, 0.0)])
def test_known_answer_even_attention_and_attention_to_oneself(strength, share):
    subject = load_subject(Same(strength).eval(), "cues", size=(16, 16), images=3)
    found = retinoscope.measure(Attention(ranks=3), subject)
    assert found.entropy[0] == pytest.approx(share * math.log(16), abs=1e-6)
    assert found.normalised_entropy[0] == pytest.approx(share, abs=1e-6)
    assert found.mutual_information[0] == pytest.approx(1 - share, abs=1e-6)
    assert found.sink[0] == pytest.approx(1, abs=1e-6)
    assert found.stable_rank[0] == pytest.approx(1 if share else 16, rel=1e-6)
    at = np.stack(np.divmod(np.arange(16), 4), 1) * 4
    apart = np.linalg.norm(at[:, None] - at, axis=-1)
    assert found.distance[0] == pytest.approx(share * apart.mean(), abs=1e-5)
    assert np.isnan(found.prefix_share).all(), "it has no prefix tokens"


class Odd(nn.Module):
    """One residual unit of each oddity, and a head that pools with a learned query."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Conv2d(3, WIDTH, 4, 4)
        self.qkv = nn.ModuleList(nn.Linear(WIDTH, 3 * WIDTH) for _ in range(5))
        self.latent = nn.Parameter(torch.zeros(1, 1, WIDTH))
        self.head = nn.Linear(WIDTH, 10)

    def split(self, place, x, heads):
        return self.qkv[place](x).unflatten(-1, (3, heads, -1)).permute(2, 0, 3, 1, 4)

    def forward(self, x):
        x = self.embed(x).flatten(2).mT
        fused = functional.scaled_dot_product_attention
        both = [fused(*self.split(i, x, heads)) for i, heads in ((0, 3), (1, 2))]
        x = x + sum(one.transpose(1, 2).flatten(2) for one in both)
        q, k, v = self.split(2, x, 3).mT  # channels attend to channels
        x = x + ((q @ k.mT).softmax(-1) @ v).permute(0, 3, 1, 2).flatten(2)
        q, k, v = self.split(3, x, 3)  # no softmax
        x = x + (q.relu() @ (k.relu().mT @ v)).transpose(1, 2).flatten(2)
        q, k, v = self.qkv[4](x).chunk(3, -1)  # nine neighbours each
        near = [functional.unfold(t.mT.unflatten(2, (4, 4)), 3, padding=1) for t in (k, v)]
        k, v = (t.unflatten(1, (WIDTH, 9)).permute(0, 3, 1, 2) for t in near)
        x = x + ((q[:, :, None] @ k).softmax(-1) @ v.mT)[:, :, 0]
        return self.head(fused(self.latent.expand(len(x), -1, -1), x, x)[:, 0])


def test_several_attentions_and_odd_ones():
    torch.manual_seed(0)
    model = draw_at_order_one(Odd()).eval()
    subject = load_subject(model, "cues", name="odd", size=(16, 16), images=3)
    found = retinoscope.measure(Attention(), subject)
    kinds = dict(zip((u.name for u in subject.anatomy), subject.anatomy, strict=True))
    assert found.heads == (5, 1, 1)
    assert found.head_entropy.shape == (3, 5)
    skipped = {str(kinds[name].kind): why for name, why in found.skipped}
    assert skipped["stem"] == "it has no attention"
    assert skipped["channel_attention"] == "it attends to channels, not to positions"
    assert skipped["attention"].startswith("its weights are not a softmax")
    both, near, pool = found.units
    remarks = dict(found.remarks)
    assert both not in remarks
    assert "does not show where its queries or keys are" in remarks[near]
    assert "class attention" in remarks[pool]
    assert np.isfinite(found.distance).tolist() == [True, False, False]
    assert np.isfinite(found.mutual_information).tolist() == [True, True, False]
    assert np.isfinite(found.entropy).all()
    assert found.normalised_entropy[1] <= 1


def test_a_network_without_attention():
    subject = load_subject(TINY, "cues", images=4)
    with pytest.raises(
        NotApplicable, match=r"no attention that the graph shows, only: 1 stem, 2 conv"
    ):
        retinoscope.measure(Attention(), subject)


def test_settings_are_checked():
    with pytest.raises(WrongSetting, match="maps is 0 or more; got -1"):
        Attention(maps=-1)
    found = retinoscope.measure(Attention(maps=0), subject_of("timm, fused"))
    assert found.maps.size == found.pictures.size == 0
    assert np.isnan(found.stable_rank).all()
