import pytest
import timm
import torch

from retinoscope import dissect
from retinoscope.models.families import convit_cifar  # noqa: F401  registers the models
from sampling import sampled


@pytest.fixture
def images():
    return torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))


def test_count_differs_from_imagenets_by_head_patches_and_positions():
    """5.71 M at 224 pixels: less 900 classes of 192 + 1, less 756 inputs of a patch of 192 each
    (3 · 2² in place of 3 · 16²), and 256 positions in place of 196 of 192 each: 5.40 M.
    """
    with torch.device("meta"):
        large, small = timm.create_model("convit_tiny"), timm.create_model("convit_tiny_cifar")
    counts = [sum(p.numel() for p in model.parameters()) for model in (large, small)]
    assert round(counts[0] / 1e6, 2) == 5.71
    assert counts[1] == counts[0] - 900 * 193 - 756 * 192 + 60 * 192
    assert round(counts[1] / 1e6, 2) == 5.40


@pytest.mark.parametrize(
    ("name", "gated", "plain"),
    sampled([("convit_tiny_cifar", 10, 2), ("micro_convit", 4, 2)], "micro_convit"),
)
def test_anatomy_is_the_layout(name, gated, plain):
    model = timm.create_model(name).eval()
    anatomy = dissect(model, 32)
    assert anatomy.sketch == "AM" * (gated + plain)
    assert [block.use_gpsa for block in model.blocks] == [True] * gated + [False] * plain
    side = 16 if plain + gated == 12 else 8
    assert [str(unit.grid) for unit in anatomy.where(kind="attention")] == (
        [f"{side}×{side}"] * gated + [f"{side}×{side}+1"] * plain
    )


def block_outputs(model, images):
    """What each block gives out within ``forward_features``, by hooks."""
    states = []
    handles = [
        block.register_forward_hook(lambda _, __, output: states.append(output))
        for block in model.blocks
    ]
    final = model.forward_features(images)
    for handle in handles:
        handle.remove()
    return final, states


def test_intermediates_are_what_forward_features_computes(images, order_one):
    model = order_one("micro_convit")
    final, expected = block_outputs(model, images)
    found, tokens = model.forward_intermediates(images, output_fmt="NLC")
    torch.testing.assert_close(found, final, rtol=0, atol=0)
    for spatial, state in zip(tokens, expected, strict=True):
        assert spatial.shape[1] == 64
        torch.testing.assert_close(spatial, state[:, -64:], rtol=0, atol=0)
    maps = model.forward_intermediates(images, intermediates_only=True)
    for place, state in ((1, expected[1]), (5, expected[5][:, 1:])):
        as_maps = state.reshape(2, 8, 8, 48).permute(0, 3, 1, 2)
        torch.testing.assert_close(maps[place], as_maps, rtol=0, atol=0)


def test_indices_norm_and_stopping(images, order_one):
    model = order_one("micro_convit")
    final, expected = block_outputs(model, images)
    (last,) = model.forward_intermediates(
        images, indices=1, norm=True, output_fmt="NLC", intermediates_only=True
    )
    torch.testing.assert_close(last, final[:, 1:], rtol=0, atol=0)
    calls = []
    model.blocks[3].register_forward_hook(lambda *_: calls.append(1))
    early, (state,) = model.forward_intermediates(
        images, indices=[-4], stop_early=True, output_fmt="NLC"
    )
    assert not calls
    torch.testing.assert_close(state, expected[2], rtol=0, atol=0)
    torch.testing.assert_close(early, model.norm(expected[2]), rtol=0, atol=0)


def test_features_of_early_blocks_need_no_later_ones(images):
    model = timm.create_model("micro_convit", features_only=True, out_indices=(0, 2))
    assert len(model.model.blocks) == 3
    assert [f.shape for f in model(images)] == [(2, 48, 8, 8)] * 2


def test_offsets_move_with_the_model_and_stay_out_of_its_weights(images):
    model = timm.create_model("micro_convit")
    assert model.blocks[0].attn.rel_indices.shape == (1, 64, 64, 3)
    assert not [key for key in model.state_dict() if "rel_indices" in key]
    assert model.double().blocks[0].attn.rel_indices.dtype == torch.float64


def test_wrong_requests_are_explained():
    with pytest.raises(ValueError, match="square grid of patches; this image gives 8×16"):
        timm.create_model("micro_convit", img_size=(32, 64))
