"""Replaced heads and prefix tokens against the eager model, changed by hand."""

import pytest
import timm
import torch
from torch import nn

from anatomy.small_networks import Own, close, images, mean, network, turned, zeros
from retinoscope.anatomy.lesions import head_lesions, prefix_lesions
from retinoscope.anatomy.replay import replay
from retinoscope.anatomy.suffixes import run_lesions
from retinoscope.models.order_one import draw_at_order_one
from sampling import PROOF


@torch.inference_mode()
@pytest.mark.parametrize("replacing", [zeros, turned, mean])
@pytest.mark.parametrize("name", ["vit", "unfused", "own", "swin"])
def test_heads_equal_the_eager_modules_with_a_head_replaced(name, replacing, monkeypatch):
    """In timm, the projection reads the heads side by side; windows of an image are together."""
    (model, ours, _), x = network(name), images(name)
    found, lesions = run_lesions(ours, head_lesions, [x], replacing), head_lesions(ours)
    assert len(lesions) == {"own": 3, "swin": 12}.get(name, 6)
    for lesion, logits in zip(lesions, found.lesioned, strict=True):
        unit, _, head = lesion.name.rpartition(" head ")
        head = int(head)

        def changed(out, head=head):
            out = out.clone()
            out[:, :, head] = replacing(out[:, :, head])
            return out

        if name == "own":
            monkeypatch.setattr(model, "changed", changed)
            expected = model(x)
        else:
            attention = model.get_submodule(unit)
            count = attention.num_heads

            def before(_, given, count=count, changed=changed):
                by_image = given[0].reshape(len(x), -1, given[0].shape[-1])
                out = changed(by_image.unflatten(-1, (count, -1)))
                return (out.reshape(given[0].shape),)

            hook = attention.proj.register_forward_pre_hook(before)
            expected = model(x)
            hook.remove()
        close(logits, expected, found.intact, lesion.name)
    monkeypatch.undo()


def test_class_attention_has_heads_without_positions():
    model = timm.create_model(
        "cait_xxs24_224", img_size=16, patch_size=4, embed_dim=12, num_heads=3, depth=1,
        depth_token_only=1, num_classes=5,
    )  # fmt: skip
    ours = replay(draw_at_order_one(model).eval(), 16)
    x = torch.rand(2, 3, 16, 16)
    found, lesions = run_lesions(ours, head_lesions, [x], zeros), head_lesions(ours)
    assert len(lesions) == 6
    projection = model.blocks_token_only[0].attn.proj
    for head in range(3):

        def silent(_, given, head=head):
            given[0].unflatten(-1, (3, -1))[:, :, head] = 0

        hook = projection.register_forward_pre_hook(silent)
        with torch.inference_mode():
            close(found.lesioned[3 + head], model(x), found.intact, lesions[3 + head].name)
        hook.remove()


def test_heads_that_the_graph_does_not_show_are_not_guessed():
    """Linear attention has no weights, and so no heads that could be told from channels."""

    class Linear(Own):
        def mixed(self, x):
            q, k, v = (t.unflatten(-1, (3, -1)) for t in self.qkv(self.norm(x)).relu().chunk(3, -1))
            kept = torch.einsum("bkhd,bkhe->bhde", k, v)
            return self.proj(torch.einsum("bqhd,bhde->bqhe", q, kept).flatten(2))

    ours = replay(draw_at_order_one(Linear()).eval(), 16)
    assert [unit.kind for unit in ours.anatomy.where(kind="attention")] == ["attention"]
    assert head_lesions(ours) == []


@PROOF
@pytest.mark.parametrize("name", ["efficientvit_b0", "coat_lite_tiny", "volo_d1_224"])
def test_heads_of_other_attentions_are_not_guessed(name):
    options = {} if name == "efficientvit_b0" else {"img_size": 64}
    ours = replay(timm.create_model(name, **options).eval(), 64)
    found = {one.units[0].name for one in head_lesions(ours)}
    if name == "volo_d1_224":  # outlook attention comes first, ordinary attention later
        assert {one.split(".")[1] for one in found} == {"2", "3", "4"}
    else:
        assert not found


@torch.inference_mode()
@pytest.mark.parametrize("replacing", [zeros, turned, mean])
@pytest.mark.parametrize("name", ["vit", "own"])
def test_prefix_tokens_are_replaced_in_the_state_after_a_unit(name, replacing):
    (model, ours, _), x = network(name), images(name)
    found, lesions = run_lesions(ours, prefix_lesions, [x], replacing), prefix_lesions(ours)
    names = [lesion.name.removesuffix(" token 0") for lesion in lesions]
    after = {"vit": ["blocks.0.attn", "blocks.0.mlp", "blocks.1.attn", "blocks.1.mlp"],
             "own": ["attention", "mlp"]}[name]  # fmt: skip
    assert names[-len(after) :] == after
    held = ours.states(x)
    for unit, logits in zip(names[:-1], found.lesioned[:-1], strict=True):
        state = held[unit].raw.clone()
        state[:, 0] = replacing(state[:, 0])
        expected = ours.resume(unit, state)
        assert (logits - expected).abs().max() <= 1e-6 * found.intact.abs().max()
    state = held[after[-1]].raw.clone()
    state[:, 0] = replacing(state[:, 0])
    head = model.head if name == "own" else nn.Sequential(model.norm, model.head)
    close(found.lesioned[-1], head(state[:, 0]), found.intact, "the last state, by hand")
    if replacing is turned:  # the token is the same for all images before it has seen them
        assert torch.equal(found.lesioned[0], found.intact)
