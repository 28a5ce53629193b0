"""Lesions against the eager model with that branch's output set to zero by hand."""

import pytest
import torch

from retinoscope import replay
from sampling import PROOF

# Which module to silence, for someone who knows each architecture.
BRANCH = {
    "vit_tiny_patch16_224": str,
    "swin_tiny_patch4_window7_224": str,
    "pit_ti_224": str,
    "resnet50": lambda name: f"{name}.bn3",
    "convnext_tiny": lambda name: f"{name}.mlp",
}
COUNT = {
    "vit_tiny_patch16_224": 24,
    "swin_tiny_patch4_window7_224": 24,
    "pit_ti_224": 24,
    "resnet50": 12,
    "convnext_tiny": 18,
}
# Where a block lays its branch out anew behind the last module, no module's output is the branch.
NAMED = {"swin_tiny_patch4_window7_224": 0.5, "convnext_tiny": 0}
SHALLOW = {  # options, size, how many residual units
    "vit_tiny_patch16_224": ({"img_size": 32, "depth": 2}, 32, 4),
    "swin_tiny_patch4_window7_224": (
        {"img_size": 56, "depths": (2, 1), "num_heads": (3, 6)}, 56, 6
    ),
    "pit_ti_224": ({"img_size": 64, "depth": (1, 1, 1)}, 64, 6),
    "resnet50": ({"layers": (2, 1, 1, 2)}, 64, 2),
    "convnext_tiny": ({"depths": (1, 1, 2, 1), "dims": (8, 16, 16, 24)}, 64, 5),
}  # fmt: skip


def silenced(model, path, x):
    """The eager logits with one module's output set to zero."""
    handle = model.get_submodule(path).register_forward_hook(
        lambda _m, _i, out: torch.zeros_like(out)
    )
    try:
        return model(x)
    finally:
        handle.remove()


@pytest.mark.parametrize(
    ("name", "options", "size", "count"),
    [
        *((name, *SHALLOW[name]) for name in BRANCH),
        *(pytest.param(name, {}, 224, COUNT[name], marks=PROOF) for name in BRANCH),
    ],
)
def test_every_residual_unit(name, options, size, count, order_one):
    model = order_one(name, **options)
    ours = replay(model, size, name=name)
    x = torch.randn(1, 3, size, size, generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        whole = model(x)
        lesions = list(ours.lesions(x))
        assert len(lesions) == count == len(ours.anatomy.where(residual=True))
        scale = whole.abs().max()
        for unit, logits in lesions:
            expected = silenced(model, BRANCH[name](unit.name), x)
            assert (logits - expected).abs().max() <= 1e-6 * scale, unit.name
            assert (logits - whole).abs().max() > 1e-3 * scale, f"{unit.name} did not matter"
            if unit.module is not None:
                by_module = silenced(model, unit.module, x)
                assert (logits - by_module).abs().max() <= 1e-6 * scale, unit.module
        named = sum(unit.module is not None for unit, _ in lesions)
        assert named == NAMED.get(name, 1) * count


def test_without_is_a_module_of_its_own(order_one):
    model = order_one("test_vit").double()
    ours = replay(model, 160)
    x = torch.randn(4, 3, 160, 160, dtype=torch.float64)
    lesioned = ours.without("blocks.3.attn")
    torch.testing.assert_close(lesioned(x), silenced(model, "blocks.3.attn", x))
    torch.testing.assert_close(dict(ours.lesions(x, ["blocks.3.attn"])).popitem()[1], lesioned(x))
    lesioned(x).sum().backward()
    assert model.blocks[3].attn.qkv.weight.grad is None
    assert model.blocks[3].mlp.fc1.weight.grad.abs().sum() > 0
    torch.testing.assert_close(ours(x), model(x))  # the chain itself is whole


def test_inner_units_can_be_removed(replayed):
    model, ours = replayed("mobilevit_xxs", 64)
    x = torch.randn(2, 3, 64, 64)
    unit = next(u for u in ours.anatomy.walk() if u.name == "stages.2.1.transformer.0.attn")
    with torch.no_grad():
        expected = silenced(model, "stages.2.1.transformer.0.attn", x)
        torch.testing.assert_close(ours.without(unit)(x), expected, rtol=0, atol=0)
        assert (expected - model(x)).abs().max() > 1e-3 * expected.abs().max()


def test_parallel_branches_are_removed_together(order_one):
    """Two branches added at once cannot be told apart by the graph: merged, and said so."""
    model = order_one(
        "vit_small_patch16_18x2_224", img_size=32, patch_size=8, depth=2, embed_dim=24, num_heads=2
    )
    ours = replay(model, 32)
    merged = [unit for unit in ours.anatomy if unit.note]
    assert [unit.note for unit in merged] == [
        "merged: 2 attentions with paths around each of them"
    ] * 2
    x = torch.randn(2, 3, 32, 32)
    handles = [
        attention.register_forward_hook(lambda _m, _i, out: torch.zeros_like(out))
        for attention in model.blocks[0].attns
    ]
    with torch.no_grad():
        expected = model(x)
        for handle in handles:
            handle.remove()
        torch.testing.assert_close(ours.without(merged[0])(x), expected, rtol=0, atol=0)


class TwoTerms(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.fc = torch.nn.Conv2d(3, 8, 4, 4), torch.nn.Linear(8, 5)
        self.a, self.b = torch.nn.Conv2d(8, 8, 3, padding=1), torch.nn.Conv2d(8, 8, 1)

    def forward(self, x):
        x = self.stem(x)
        x = x + self.a(x) + self.b(x).relu()
        return self.fc(x.mean((2, 3)))


def test_a_difference_inside_a_branch_is_one_branch(order_one):
    """PoolFormer adds what pooling changes: x + (pool(x) - x)."""
    whole = order_one("poolformer_s12")  # whose other stages are like the first
    head = [torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(64, 5)]
    model = torch.nn.Sequential(whole.stem, whole.stages[0], *head)
    pools = replay(model, 64).anatomy.where(kind="pool")
    assert [(unit.residual, unit.note) for unit in pools] == [(True, "")] * 2


@PROOF
def test_a_difference_inside_each_branch_of_poolformer(order_one):
    pools = replay(order_one("poolformer_s12"), 64).anatomy.where(kind="pool")
    assert [(unit.residual, unit.note) for unit in pools] == [(True, "")] * 12


def test_nested_sums_are_one_sum():
    model = TwoTerms()
    ours = replay(model, 16)
    (unit,) = ours.anatomy.where(residual=True)
    assert unit.note == "merged: 2 parallel branches are added at once"
    x = torch.randn(2, 3, 16, 16)
    with torch.no_grad():
        expected = model.fc(model.stem(x).mean((2, 3)))
        torch.testing.assert_close(ours.without(unit)(x), expected, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("join", "residual", "expected"),
    [
        (lambda x, f: x + f, True, lambda x: x),
        (lambda x, f: x - f, True, lambda x: x),
        (lambda x, f: f - x, False, None),
        (lambda x, f: 0.5 * x + f, True, lambda x: 0.5 * x),
        (lambda x, f: torch.add(x, f, alpha=0.3), True, lambda x: x),
        (lambda x, f: torch.add(f, x, alpha=0.3), False, None),
        (lambda x, f: torch.addcmul(x, f, torch.ones(1) * 2), True, lambda x: x),
        (lambda x, f: torch.addcmul(f, x, torch.ones(1) * 2), False, None),
        (lambda x, f: torch.cat([x, f], 1)[:, ::2], False, None),
        (lambda x, f: x * f, False, None),
    ],
)
def test_what_counts_as_a_skip(join, residual, expected):
    class Joined(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.stem, self.fc = torch.nn.Conv2d(3, 8, 4, 4), torch.nn.Linear(8, 5)
            self.conv = torch.nn.Conv2d(8, 8, 3, padding=1)

        def forward(self, x):
            x = self.stem(x)
            return self.fc(join(x, self.conv(x).relu()).mean((2, 3)))

    model = Joined()
    ours = replay(model, 16)
    unit = ours.anatomy.units[1]
    assert (unit.kind, unit.residual) == ("conv", residual)
    if residual:
        x = torch.randn(2, 3, 16, 16)
        with torch.no_grad():
            wanted = model.fc(expected(model.stem(x)).mean((2, 3)))
            torch.testing.assert_close(ours.without(unit)(x), wanted)
