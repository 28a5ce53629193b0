import pytest
import timm
import torch

from retinoscope import dissect
from retinoscope.models.families import coat_cifar  # noqa: F401  registers the models
from sampling import sampled


@pytest.fixture
def images():
    return torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))


def test_count_differs_from_imagenets_by_head_and_patches():
    """5.72 M at 224 pixels: less 900 classes of 320 + 1, less 45 inputs of a patch of 64 each
    (3 · 1² in place of 3 · 4²): 5.43 M. Positions are convolutions and cost nothing more.
    """
    with torch.device("meta"):
        large, small = (
            timm.create_model("coat_lite_tiny"),
            timm.create_model("coat_lite_tiny_cifar"),
        )
    counts = [sum(p.numel() for p in model.parameters()) for model in (large, small)]
    assert round(counts[0] / 1e6, 2) == 5.72
    assert counts[1] == counts[0] - 900 * 321 - 45 * 64
    assert round(counts[1] / 1e6, 2) == 5.43


@pytest.mark.parametrize(
    ("name", "first"),
    sampled([("coat_lite_tiny_cifar", 32), ("micro_coat_lite", 16)], "micro_coat_lite"),
)
def test_anatomy_is_the_layout(name, first):
    anatomy = dissect(timm.create_model(name).eval(), 32)
    assert anatomy.sketch == "CAMCAM" + "|C↓CAMCAM" * 3
    grids = [str(unit.grid) for unit in anatomy if unit.kind != "head"]
    sides = [first, first // 2, first // 4, first // 8]
    assert list(dict.fromkeys(grids)) == [f"{side}×{side}+1" for side in sides]


def stage_outputs(model, images):
    """What the last block of each stage gives out within ``forward_features``, by hooks."""
    states = []
    handles = [
        getattr(model, f"serial_blocks{stage}")[-1].register_forward_hook(
            lambda _, __, output: states.append(output)
        )
        for stage in (1, 2, 3, 4)
    ]
    final = model.forward_features(images)
    for handle in handles:
        handle.remove()
    return final, states


def test_intermediates_are_what_forward_features_computes(images, order_one):
    model = order_one("micro_coat_lite")
    final, expected = stage_outputs(model, images)
    last, maps = model.forward_intermediates(images)
    torch.testing.assert_close(last, final, rtol=0, atol=0)
    for found, state in zip(maps, expected, strict=True):
        side, width = found.shape[-1], found.shape[1]
        as_maps = state[:, 1:].reshape(2, side, side, width).permute(0, 3, 1, 2)
        torch.testing.assert_close(found, as_maps, rtol=0, atol=0)


def test_indices_norm_and_stopping(images, order_one):
    model = order_one("micro_coat_lite")
    final, expected = stage_outputs(model, images)
    second, fourth = (
        maps.flatten(2).transpose(1, 2)
        for maps in model.forward_intermediates(
            images, indices=[1, -1], norm=True, intermediates_only=True
        )
    )
    torch.testing.assert_close(second, expected[1][:, 1:], rtol=0, atol=0)  # has no norm
    torch.testing.assert_close(fourth, final[:, 1:], rtol=0, atol=0)
    calls = []
    model.patch_embed3.register_forward_hook(lambda *_: calls.append(1))
    early, _ = model.forward_intermediates(images, indices=[0, 1], stop_early=True)
    assert not calls
    torch.testing.assert_close(early, expected[1], rtol=0, atol=0)


def test_features_of_early_stages_need_no_later_ones(images):
    model = timm.create_model("micro_coat_lite", features_only=True, out_indices=(0, 1))
    assert model.model.patch_embed3 is None
    assert [f.shape for f in model(images)] == [(2, 16, 16, 16), (2, 24, 8, 8)]
    assert {key.split(".")[1] for key in model.state_dict() if "cpe" in key} == {"cpe1", "cpe2"}


def test_shared_convolutions_are_stored_once_and_read_either_way(images, order_one):
    model = order_one("micro_coat_lite")
    state = model.state_dict()
    assert len({tensor.data_ptr() for tensor in state.values()}) == len(state)
    assert set(state) == {name for name, _ in model.named_parameters()}
    as_in_timm = state | {
        f"serial_blocks1.{block}.cpe.proj.weight": state["cpe1.proj.weight"] for block in (0, 1)
    }
    for weights in (state, as_in_timm):
        other = timm.create_model("micro_coat_lite").eval()
        other.load_state_dict(weights)
        torch.testing.assert_close(other(images), model(images), rtol=0, atol=0)
        assert other.serial_blocks1[1].cpe is other.cpe1
    within = torch.nn.ModuleDict({"body": model})
    within.load_state_dict(within.state_dict())
    broken = {key: value for key, value in state.items() if key != "cpe2.proj.bias"}
    with pytest.raises(RuntimeError, match=r"cpe2\.proj\.bias"):
        timm.create_model("micro_coat_lite").load_state_dict(broken)


def test_wrong_requests_are_explained():
    with pytest.raises(ValueError, match="serial stages only"):
        timm.create_model("micro_coat_lite", parallel_depth=2)
