"""Axes against a naive twin: a tensor whose entries say where they come from."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from retinoscope.anatomy.axes import (
    Factor,
    concatenate,
    cut,
    join,
    position,
    reshape,
    roles_of,
    single,
)  # fmt: skip
from retinoscope.anatomy.graph.flow import BATCH
from retinoscope.anatomy.layout import lens

MAPS = (single("n", BATCH), single("c", 6), position("y", 8), position("x", 12))


def image(batch=2):
    """Each entry is its own place in (N, C, H, W)."""
    return torch.arange(batch * 6 * 8 * 12).view(batch, 6, 8, 12)


def windows(tensor, axes, height, width):
    """Swin's partition: (N, C, H, W) → (N · windows, height · width, C)."""
    n, c, y, x = tensor.shape
    shape = (n, c, y // height, height, x // width, width)
    order = (0, 2, 4, 3, 5, 1)
    tensor = tensor.reshape(shape).permute(order)
    axes = reshape(axes, (BATCH, *shape[1:]))
    axes = tuple(axes[d] for d in order)
    flat = (n * (y // height) * (x // width), height * width, c)
    return tensor.reshape(flat), reshape(axes, (flat[0] // n * BATCH, *flat[1:]))


@given(st.sampled_from([1, 2, 4, 8]), st.sampled_from([1, 2, 3, 4, 6, 12]), st.integers(1, 3))
def test_windows_are_seen_as_the_maps_they_came_from(height, width, batch):
    original = image(batch)
    raw, axes = windows(original, MAPS, height, width)
    seen = lens(axes)
    assert seen is not None
    assert seen.grid.resolution == (8, 12)
    torch.testing.assert_close(seen.maps(raw), original, rtol=0, atol=0)
    torch.testing.assert_close(seen.raw(original), raw, rtol=0, atol=0)


@given(st.permutations(range(4)))
def test_any_order_of_dimensions_is_seen_as_maps(order):
    original = image()
    seen = lens(tuple(MAPS[d] for d in order))
    torch.testing.assert_close(seen.maps(original.permute(order)), original, rtol=0, atol=0)


@given(st.integers(0, 3), st.integers(0, 3), st.booleans())
def test_tokens_before_and_behind_the_grid_are_prefix(before, behind, channels_first):
    original = image().double()
    tokens = original.flatten(2).transpose(1, 2)
    extra = -torch.rand(2, before + behind, 6, dtype=torch.float64)
    raw = torch.cat([extra[:, :before], tokens, extra[:, before:]], 1)
    grid = reshape(MAPS, (BATCH, 6, 96))[2]
    parts = [position("p", before)] * bool(before) + [grid] + [position("p", behind)] * bool(behind)
    dimension = concatenate(parts) if len(parts) > 1 else grid
    axes = (MAPS[0], dimension, MAPS[1])
    if channels_first:
        axes, raw = (axes[0], axes[2], axes[1]), raw.transpose(1, 2)
    seen = lens(axes)
    assert seen.grid.prefix == before + behind
    torch.testing.assert_close(seen.maps(raw), original, rtol=0, atol=0)
    if before + behind:
        torch.testing.assert_close(seen.prefix(raw), extra, rtol=0, atol=0)
    torch.testing.assert_close(seen.raw(original, seen.prefix(raw)), raw, rtol=0, atol=0)


@given(st.lists(st.sampled_from([2, 3, 4]), min_size=1, max_size=4))
def test_split_and_join_are_inverse(sizes):
    total = torch.tensor(sizes).prod().item()
    dimension = position("y", total)
    split = reshape((dimension,), sizes)
    assert join(f for d in split for f in d) == dimension


def test_a_shape_that_scrambles_is_unknown():
    assert roles_of(reshape((position("y", 6), position("x", 5)), (5, 6))[0]) == {"?"}


def test_overlapping_neighbourhoods_have_no_grid():
    assert lens((MAPS[0], MAPS[1], (Factor("y", 3, 0),), MAPS[3])) is None


def test_class_token_taken_apart_again():
    grid = (Factor("y", 8), Factor("x", 12))
    tokens = concatenate([position("p", 1), grid])
    assert cut(tokens, 1, 97) == grid
    assert cut(tokens, 0, 1) == position("p", 1)
    assert roles_of(cut(tokens, 2, 97)) == {"?"}  # a part of a grid is no grid


@pytest.mark.parametrize(
    ("axes", "layout"),
    [
        (MAPS, "NCHW"),
        ((MAPS[0], MAPS[2], MAPS[3], MAPS[1]), "NHWC"),
        ((MAPS[0], MAPS[2] + MAPS[3], MAPS[1]), "tokens"),
        (windows(image(), MAPS, 4, 4)[1], "windows"),
    ],
)
def test_layouts(axes, layout):
    assert lens(axes).grid.layout == layout
