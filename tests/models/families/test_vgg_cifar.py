from itertools import pairwise

import pytest
import timm
import torch
from torch import nn
from torch.nn.functional import dropout, max_pool2d, relu
from torch.utils.flop_counter import FlopCounterMode

from models.survival import images, on_meta, seeded, survives_drawing
from retinoscope import dissect
from retinoscope.layers.smoothing import Smooth
from retinoscope.models.families.vgg_cifar import Halving
from sampling import sampled

# The first convolution is the stem; P↓ is the halving between two stages.
MICRO = {
    "micro_vgg": "C|P↓CC|P↓CC|P↓CC",
    "micro_vgg_mlp": "C|P↓CC|P↓CC|P↓CC|P↓P",  # halved once more, then the pool of the MLP
}
LARGE = {
    "vgg11_gap_cifar": "P↓C|P↓CC|P↓CC|P↓CC",
    "vgg16_gap_cifar": "C|P↓CC|P↓CCC|P↓CCC|P↓CCC",
    "vgg16_mlp_cifar": "C|P↓CC|P↓CCC|P↓CCC|P↓CCC|P↓|P",
    "vgg16_smooth_cifar": "CP|P↓CCP|P↓CCCP|P↓CCCP|P↓CCCP",
    "vgg16_mcdo_cifar": "C|P↓CC|P↓CCC|P↓CCC|P↓CCC",
    "vgg19_gap_cifar": "C|P↓CC|P↓CCCC|P↓CCCC|P↓CCCC",
}
VARIANTS = {
    "plain": {}, "smooth": {"smoothing": (1, 1, 1, 1)}, "mcdo": {"mc_dropout": 0.3},
    "both": {"smoothing": (1, 0, 1, 1), "mc_dropout": 0.3}, "mlp": {"head": "mlp"},
}  # fmt: skip


def small(order_one, variant):
    return order_one("micro_vgg", head_hidden=16, head_side=2, **VARIANTS[variant])


@pytest.mark.parametrize("name", sampled(MICRO | LARGE, *MICRO, "vgg16_smooth_cifar"))
def test_anatomy(name):
    assert dissect(on_meta(name), 32).sketch == (MICRO | LARGE)[name]


@pytest.mark.parametrize("name", ["vgg11", "vgg16", "vgg19"])
def test_is_timms_vgg_without_the_biases_that_batch_norm_undoes(name):
    own, peer = on_meta(f"{name}_gap_cifar").features, on_meta(f"{name}_bn").features
    for layer in peer:
        if isinstance(layer, nn.Conv2d):
            layer.bias = None
    shapes = [{key: v.shape for key, v in part.state_dict().items()} for part in (own, peer)]
    assert shapes[0] == shapes[1]


def test_gives_timms_maps(order_one):
    own, x = order_one("vgg11_gap_cifar"), images()
    peer = on_meta("vgg11_bn").features.to_empty(device="cpu")
    for layer in peer:
        if isinstance(layer, nn.Conv2d):
            nn.init.zeros_(layer.bias)
    peer.load_state_dict(own.features.state_dict(), strict=False)
    assert torch.equal(seeded(own.forward_features, x), seeded(peer[:-1], x))


def test_sizes():
    def head(classes, *widths):
        widths = (*widths, classes)
        return sum((a + 1) * b for a, b in pairwise(widths))

    def total(name):
        return sum(p.numel() for p in on_meta(name).parameters())

    body = total("vgg16_gap_cifar") - head(100, 512)
    assert round(body / 1e6, 2) == 14.72  # the thirteen layers of table 2 with batch norm
    assert total("vgg16_mlp_cifar") == body + head(100, 512 * 49, 4096, 4096)
    assert total("vgg16_smooth_cifar") == total("vgg16_mcdo_cifar") == total("vgg16_gap_cifar")


@pytest.mark.parametrize("name", MICRO)
def test_micro_models_are_small_and_cheap(name):
    model = on_meta(name)
    assert 0.10e6 <= sum(p.numel() for p in model.parameters()) <= 0.17e6
    with FlopCounterMode(display=False) as counter:
        model(torch.zeros(1, 3, 32, 32, device="meta"))
    assert 2e6 < counter.get_total_flops() / 2 <= 10e6


@pytest.mark.parametrize("name", MICRO | LARGE)
def test_features_and_configuration(name):
    classes, stages = (10, 4) if name in MICRO else (100, 5)
    stages += "mlp" in name
    features = on_meta(name, features_only=True)
    maps = features(torch.zeros(1, 3, 32, 32, device="meta"))
    assert [m.shape[1] for m in maps] == features.feature_info.channels()
    assert features.feature_info.reduction() == [2**n for n in range(stages)]
    assert [m.shape[-1] for m in maps] == [32 // 2**n for n in range(stages)]
    cfg = timm.get_pretrained_cfg(name)
    assert (cfg.num_classes, cfg.input_size) == (classes, (3, 32, 32))
    assert (cfg.first_conv, cfg.classifier) == ("features.0", "head.fc")
    assert on_meta(name).num_classes == classes


@pytest.mark.parametrize("name", MICRO | LARGE)
@pytest.mark.parametrize("size", [16, 17, 48])
def test_any_size(name, size):
    model = on_meta(name, in_chans=1)
    x = torch.zeros(2, 1, size, size, device="meta")
    assert model(x).shape == (2, model.num_classes)


def test_halving_is_the_usual_one_and_leaves_one_point():
    x = torch.rand(1, 2, 7, 6)
    assert torch.equal(Halving()(x), nn.MaxPool2d(2)(x))
    assert torch.equal(Halving()(x[..., :1, :1]), x[..., :1, :1])


def by_hand(model, x, rate, smoothing, mlp):
    """Convolution, norm, ReLU, dropout; at the end of a stage smoothing, then halving."""
    convs = [m for m in model.features.modules() if isinstance(m, nn.Conv2d)]
    norms = [m for m in model.features.modules() if isinstance(m, nn.BatchNorm2d)]
    for place, (conv, norm) in enumerate(zip(convs, norms, strict=True)):
        x = dropout(relu(norm(conv(x))), rate)
        stage, within = divmod(place, 2)
        if within:
            x = Smooth()(x) if smoothing[stage] else x
            x = max_pool2d(x, 2) if stage < 3 or mlp else x
    if not mlp:
        return model.head.fc(x.mean((2, 3)))
    x = relu(model.head.neck.fc1(x.flatten(1)))  # of 2 × 2 points already
    return model.head.fc(relu(model.head.neck.fc2(x)))


@pytest.mark.parametrize("variant", VARIANTS)
def test_where_smoothing_and_dropout_stand(variant, order_one):
    """By a naive twin whose masks come from the same state of the generator."""
    model, x = small(order_one, variant).double(), images(dtype=torch.float64)
    options = VARIANTS[variant]
    smoothing = options.get("smoothing", (0, 0, 0, 0))
    rate, mlp = options.get("mc_dropout", 0.0), options.get("head") == "mlp"
    expected = seeded(by_hand, model, x, rate, smoothing, mlp)
    torch.testing.assert_close(seeded(model, x), expected, rtol=1e-12, atol=1e-12)  # in double


def test_options_leave_the_names_of_weights_alone(order_one):
    plain, x = order_one("micro_vgg"), images()
    for options in VARIANTS["smooth"], VARIANTS["both"]:
        model = timm.create_model("micro_vgg", **options).eval()
        model.load_state_dict(plain.state_dict())
        assert not torch.allclose(model(x), plain(x), rtol=0.01)
    for options in {"mc_dropout": 0.0}, {"mc_dropout": 0.3, "always": False}:
        model = timm.create_model("micro_vgg", **options).eval()
        model.load_state_dict(plain.state_dict())
        assert torch.equal(model(x), plain(x))
    model.train()
    assert not torch.equal(model(x), model(x))


def test_dropout_goes_on_in_eval_mode(order_one):
    model, x = small(order_one, "mcdo"), images()
    assert not torch.allclose(model(x), model(x), rtol=0.01)


@pytest.mark.parametrize("variant", VARIANTS)
def test_intermediates_are_the_features(variant, order_one):
    model, x = small(order_one, variant), images()
    options = {"features_only": True, **VARIANTS[variant]}
    features = timm.create_model("micro_vgg", **options).eval()
    state = {key.replace("features.", "features_"): v for key, v in model.state_dict().items()}
    features.load_state_dict({key: state[key] for key in features.state_dict()})
    last, maps = seeded(model.forward_intermediates, x)
    for found, expected in zip(maps, seeded(features, x), strict=True):
        assert torch.equal(found, expected)
    assert torch.equal(last, seeded(model.forward_features, x))
    assert torch.equal(last, maps[-1])
    (second,) = seeded(lambda: model.forward_intermediates(x, [1], intermediates_only=True))
    assert torch.equal(second, maps[1])
    early, _ = seeded(lambda: model.forward_intermediates(x, [1], stop_early=True))
    assert torch.equal(early, maps[1])
    assert model.prune_intermediate_layers([1]) == [1]
    assert torch.equal(seeded(model, x), maps[1])


@pytest.mark.parametrize("variant", ["plain", "mlp"])
def test_the_head_is_reset(variant, order_one):
    model, x = small(order_one, variant), images()
    vectors = model.forward_head(model.forward_features(x), pre_logits=True)
    assert vectors.shape == (2, model.head_hidden_size)
    assert torch.equal(model.get_classifier()(vectors), model(x))
    model.double().reset_classifier(3)
    assert model(x.double()).shape == (2, 3) == (2, model.num_classes)
    assert not any(module.training for module in model.modules())
    model.float().reset_classifier(0)
    torch.testing.assert_close(model(x), vectors)
    model.reset_classifier(0, "")
    assert torch.equal(model(x), model.forward_features(x))
    model.reset_classifier(4, "catavgmax")
    assert model(x).shape == (2, 4)
    assert timm.create_model("micro_vgg", num_classes=0)(x).shape == (2, 64)


@pytest.mark.parametrize("variant", sampled(VARIANTS, "both", "mlp"))
def test_trains_exports_saves_and_runs_in_half_precision(variant, order_one, tmp_path):
    other = timm.create_model("micro_vgg", head_hidden=16, head_side=2, **VARIANTS[variant])
    survives_drawing(small(order_one, variant), other, images(), tmp_path)


def test_checkpointing_changes_no_gradient(order_one):
    """Nor a mask: the generator is set back for the second pass."""
    gradients = []
    model = small(order_one, "both").train()
    for checkpointing in (False, True):
        model.set_grad_checkpointing(checkpointing)
        model.zero_grad()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(5)
            model(images()).sum().backward()
        gradients.append(model.features[0].weight.grad.clone())
    assert torch.equal(*gradients)


def test_timm_users_find_what_they_know():
    model = timm.create_model("micro_vgg", dtype=torch.float64, drop_rate=0.2)
    assert {p.dtype for p in model.parameters()} == {torch.float64}
    assert model.head.drop.p == 0.2
    groups = timm.models.group_parameters(model, model.group_matcher())
    assert sum(map(len, groups.values())) == len(list(model.parameters()))


def test_mistakes_say_what_to_do():
    with pytest.raises(ValueError, match=r"0 or 1 for each of the 4 stages; got \(1, 1, 1, 1, 1\)"):
        timm.create_model("micro_vgg", smoothing=(1, 1, 1, 1, 1))
    with pytest.raises(ValueError, match=r"no head 'none'"):
        timm.create_model("micro_vgg", head="none")
    with pytest.raises(ValueError, match="output_fmt='NCHW'; got 'NLC'"):
        timm.create_model("micro_vgg").forward_intermediates(images(), output_fmt="NLC")
