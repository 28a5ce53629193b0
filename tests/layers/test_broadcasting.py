import pytest
import torch

from retinoscope.layers.broadcasting import Broadcast, MeanPrefix

TOKENS = torch.randn(3, 5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def by_hand(x, variant, weight=None):
    """Tokens (N, T, C), one image and one token at a time."""
    images = []
    for image in x:
        mean = sum(image) / len(image)
        forms = {
            "cb": lambda t, mean=mean: (t + mean) / 2,
            "cb_s": lambda t, mean=mean: t + weight * mean,
            "gate": lambda t, image=image: t * (image[0] + 1),
            "hybrid": lambda t, image=image, mean=mean: t * image[0] + (t + mean) / 2,
        }
        images.append(torch.stack([forms[variant](token) for token in image]))
    return torch.stack(images)


@pytest.mark.parametrize("variant", ["cb", "cb_s", "gate", "hybrid"])
def test_is_the_papers_form(variant):
    layer = Broadcast(variant, channels=4).double()
    if variant == "cb_s":
        layer.weight.data = torch.tensor([0.5, -1.0, 2.0, 0.0], dtype=torch.float64)
    weight = getattr(layer, "weight", None)
    # the sum in another order
    torch.testing.assert_close(layer(TOKENS), by_hand(TOKENS, variant, weight), rtol=1e-13, atol=0)


@pytest.mark.parametrize("variant", ["cb", "cb_s", "gate", "hybrid"])
@pytest.mark.parametrize("stored", [(1, 0, 2), (0, 2, 1)])
def test_works_on_any_storage(variant, stored):
    plain = Broadcast(variant, channels=4).double()
    moved = Broadcast(variant, (stored.index(1),), stored.index(2), 4).double()
    if variant == "cb_s":
        plain.weight.data = moved.weight.data = torch.arange(4.0, dtype=torch.float64)
    expected = plain(TOKENS).permute(stored)
    torch.testing.assert_close(moved(TOKENS.permute(stored)), expected, rtol=1e-13, atol=0)


def test_maps_have_two_dimensions_of_positions():
    maps = torch.rand(2, 6, 3, 4)
    tokens = maps.flatten(2).transpose(1, 2)
    found = Broadcast("cb", (2, 3), 1)(maps).flatten(2).transpose(1, 2)
    torch.testing.assert_close(found, Broadcast("cb")(tokens))


@pytest.mark.parametrize("variant", ["cb", "gate", "hybrid", "cb_s"])
def test_scale_says_how_much_of_the_change_is_made(variant):
    layers = [Broadcast(variant, channels=4, scale=s).double() for s in (0.0, 0.25, 1.0)]
    for layer in layers:
        if variant == "cb_s":
            layer.weight.data += 0.7
    none, quarter, whole = (layer(TOKENS) for layer in layers)
    assert none is TOKENS
    expected = TOKENS + 0.25 * (whole - TOKENS)
    torch.testing.assert_close(quarter, expected, rtol=1e-13, atol=1e-15)
    assert not torch.allclose(whole, TOKENS, rtol=0.1)


def test_learned_scales_start_as_the_identity_and_learn():
    layer = Broadcast("cb_s", channels=4).double()
    assert torch.equal(layer(TOKENS), TOKENS)
    layer(TOKENS).square().sum().backward()
    assert (layer.weight.grad.abs() > 0.01).all()


def test_refuses_what_it_cannot_do():
    with pytest.raises(ValueError, match=r"no variant 'cbs'.*one of: cb, cb_s, gate, hybrid"):
        Broadcast("cbs")
    with pytest.raises(ValueError, match="'cb_s' scales each channel: pass channels="):
        Broadcast("cb_s")
    with pytest.raises(ValueError, match=r"tokens must be in one dimension; got \(2, 3\)"):
        Broadcast("gate", (2, 3), 1)
    assert repr(Broadcast("cb", scale=0.5)) == "Broadcast('cb', positions=(1,), scale=0.5)"


@pytest.mark.parametrize(("before", "behind"), [(1, 0), (2, 0), (0, 1), (1, 2)])
def test_the_mean_of_the_grid_stands_beside_it(before, behind):
    found = MeanPrefix(1, before, behind)(TOKENS)
    end = 5 - behind
    mean = TOKENS[:, before:end].mean(1)
    assert torch.equal(found[:, before:end], TOKENS[:, before:end])
    for place in (*range(before), *range(end, 5)):
        torch.testing.assert_close(found[:, place], mean, rtol=1e-14, atol=0)
    swapped = MeanPrefix(0, before, behind)(TOKENS.transpose(0, 1)).transpose(0, 1)
    torch.testing.assert_close(swapped, found, rtol=1e-14, atol=0)
    assert repr(MeanPrefix(1, 2, 0)) == "MeanPrefix(dimension=1, before=2, behind=0)"
