import pytest
import timm
import torch
from timm.models.resnet import BasicBlock, ResNet
from torch import nn
from torch.nn.functional import dropout, relu
from torch.utils.flop_counter import FlopCounterMode

from models.survival import count, images, on_meta, seeded, survives_drawing
from retinoscope import dissect
from retinoscope.anatomy.replay import replay
from retinoscope.layers.smoothing import Smooth
from retinoscope.models.families.resnet_cifar import CifarStemResNet
from retinoscope.models.order_one import draw_at_order_one
from sampling import sampled

MICRO = {
    "micro_resnet": "CC|C↓C|C↓CCC|C↓CCC",
    "micro_resnext": "CC|C↓C|C↓CC|C↓CC",
    "micro_resnet_smooth": "CCP|C↓CP|C↓CCCP|C↓CCCP",
    "micro_resnet_mcdo": "CC|C↓C|C↓CCC|C↓CCC",
    "micro_resnet_mcdo_smooth": "CCP|C↓CP|C↓CCCP|C↓CCCP",
    "micro_resnet_mlp": "CC|C↓C|C↓CCC|C↓CCCP",  # the pool of the MLP
    "micro_resnet_mcdo_mlp": "CC|C↓C|C↓CCC|C↓CCCP",
}
LARGE = {
    "resnet18_cifar": "CC|C↓C|C↓C|C↓C",
    "resnet50_cifar": "CCC|C↓CCC|C↓CCCCC|C↓CC",
    "resnet101_cifar": "CCC|C↓CCC|C↓" + "C" * 22 + "|C↓CC",
    "resnext50_cifar": "CCC|C↓CCC|C↓CCCCC|C↓CC",
    "resnet50_smooth_cifar": "CCCP|C↓CCCP|C↓CCCCCP|C↓CCP",
    "resnet18_mcdo_smooth_cifar": "CCP|C↓CP|C↓CP|C↓CP",
    "resnet18_mlp_cifar": "CC|C↓C|C↓C|C↓C|P",  # from 4 × 4 points to 7 × 7
}
MILLIONS = {
    "resnet18_cifar": 11.2, "resnet18_smooth_cifar": 11.2, "resnet18_mcdo_cifar": 11.2,
    "resnet50_cifar": 23.7, "resnet50_smooth_cifar": 23.7, "resnet50_mcdo_cifar": 23.7,
    "resnet101_cifar": 42.7, "resnext50_cifar": 23.2, "resnet18_mcdo_smooth_cifar": 11.2,
    # the published bodies less their last layer, and 25088 or 100352 → 4096 → 4096 → 100
    "resnet18_mlp_cifar": 11.2 + 119.9, "resnet50_mlp_cifar": 23.5 + 428.2,
}  # fmt: skip


@pytest.mark.parametrize("name", MILLIONS)
def test_sizes_of_the_papers(name):
    assert round(count(on_meta(name)) / 1e6, 1) == pytest.approx(MILLIONS[name], abs=1e-6)


@pytest.mark.parametrize("name", MICRO)
def test_micro_models_are_small_and_cheap(name):
    model = on_meta(name)
    assert 0.10e6 <= count(model) <= 0.17e6
    with FlopCounterMode(display=False) as counter:
        model(torch.zeros(1, 3, 32, 32, device="meta"))
    assert 2e6 < counter.get_total_flops() / 2 <= 10e6


@pytest.mark.parametrize("name", sampled(MICRO | LARGE, *MICRO, "resnet18_cifar"))
def test_anatomy(name):
    anatomy = dissect(on_meta(name), 32)
    assert anatomy.sketch == (MICRO | LARGE)[name]
    assert str(anatomy["conv1"].grid) == "32×32"
    assert not anatomy["conv1"].subsamples


def test_blur_is_a_unit_of_its_own_and_prob_the_end_of_the_unit_before(order_one):
    model, x = order_one("micro_resnet_smooth"), images()
    again = replay(model, x)
    pools = list(again.anatomy.where(kind="pool"))
    assert [unit.module for unit in pools] == [f"layer{n}.smooth.blur" for n in (1, 2, 3, 4)]
    assert [unit.stage for unit in pools] == [1, 2, 3, 4]
    assert not any(unit.residual or unit.subsamples or unit.parameters for unit in pools)
    states, (_, maps) = again.states(x), seeded(model.forward_intermediates, x)
    assert torch.equal(model.layer1.smooth.blur(states["layer1.1"].maps), maps[1])
    assert torch.equal(states["layer1.smooth.blur"].maps, maps[1])


@pytest.mark.parametrize("name", [*MICRO, *MILLIONS])
def test_features_and_configuration(name):
    classes = 10 if name in MICRO else 100
    features = on_meta(name, features_only=True)
    maps = features(torch.zeros(1, 3, 32, 32, device="meta"))
    assert [m.shape[1] for m in maps] == features.feature_info.channels()
    assert features.feature_info.reduction() == [1, 1, 2, 4, 8]
    assert [m.shape[-1] for m in maps] == [32, 32, 16, 8, 4]
    cfg = timm.get_pretrained_cfg(name)
    assert (cfg.num_classes, cfg.input_size) == (classes, (3, 32, 32))
    assert (cfg.first_conv, cfg.classifier) == ("conv1", "fc")
    assert on_meta(name).num_classes == classes


@pytest.mark.parametrize("name", MICRO)
@pytest.mark.parametrize("size", [16, 17, 48])
def test_any_size(name, size):
    model = timm.create_model(name, in_chans=1).eval()
    with torch.no_grad():
        assert model(images(size, channels=1)).shape == (2, 10)
        _, maps = model.forward_intermediates(images(size, channels=1))
    assert [m.shape[-1] for m in maps] == [size, *(-(-size // n) for n in (1, 2, 4, 8))]


@pytest.mark.parametrize("name", MICRO)
def test_intermediates_are_the_features(name, order_one):
    model, x = order_one(name), images()
    features = timm.create_model(name, features_only=True).eval()
    features.load_state_dict(model.state_dict(), strict=False)
    last, maps = seeded(model.forward_intermediates, x)
    for found, expected in zip(maps, seeded(features, x), strict=True):
        assert torch.equal(found, expected)
    assert torch.equal(last, seeded(model.forward_features, x))
    assert torch.equal(maps[-1], last)
    logits = seeded(lambda: model.forward_head(model.forward_features(x)))
    assert torch.equal(logits, seeded(model, x))
    model.prune_intermediate_layers([2])
    assert torch.equal(seeded(model.forward_features, x), maps[2])


@pytest.mark.parametrize("name", MICRO)
def test_the_head_is_reset(name, order_one):
    model, x = order_one(name), images()
    maps = seeded(model.forward_features, x)
    vectors = model.forward_head(maps, pre_logits=True)
    assert vectors.shape == (2, model.head_hidden_size)
    assert torch.equal(model.get_classifier()(vectors), model.forward_head(maps))
    model.reset_classifier(3)
    assert torch.equal(model.forward_head(maps, pre_logits=True), vectors)
    assert model(x).shape == (2, 3) == (2, model.num_classes)
    assert not any(module.training for module in model.modules())
    model.reset_classifier(0)
    assert torch.equal(model.forward_head(maps), vectors)
    model.reset_classifier(0, "")
    assert torch.equal(model.forward_head(maps), maps)
    model.double().reset_classifier(4, "catavgmax")
    assert model(x.double()).shape == (2, 4)
    without = timm.create_model(name, num_classes=0)
    assert without(x).shape == vectors.shape
    assert timm.create_model(name, num_classes=0, global_pool="")(x).shape == maps.shape


@pytest.mark.parametrize("name", sampled(MICRO, "micro_resnet_smooth", "micro_resnet_mcdo"))
def test_trains_exports_saves_and_runs_in_half_precision(name, order_one, tmp_path):
    survives_drawing(order_one(name), timm.create_model(name), images(), tmp_path)


def test_is_timms_resnet_with_another_stem(order_one):
    model, x = order_one("resnet18_cifar"), images()
    peer = timm.create_model("resnet18", num_classes=100).eval()
    peer.conv1, peer.maxpool = nn.Conv2d(3, 64, 3, padding=1, bias=False), nn.Identity()
    peer.load_state_dict(model.state_dict())
    assert torch.equal(seeded(peer, x), seeded(model, x))


def test_smoothing_that_is_off_changes_nothing(order_one):
    plain, x = order_one("resnet18_cifar"), images()
    smooth = timm.create_model("resnet18_smooth_cifar").eval()
    assert list(smooth.state_dict()) == list(plain.state_dict())
    off = timm.create_model("resnet18_smooth_cifar", smoothing=(0, 0, 0, 0)).eval()
    for model in (smooth, off):
        model.load_state_dict(plain.state_dict())
    assert torch.equal(seeded(off, x), seeded(plain, x))
    assert not torch.allclose(seeded(smooth, x), seeded(plain, x), rtol=0.01)


def by_hand(model, x, rate, smooth=lambda x: x):
    """A ResNet with dropout behind the ReLU before the last convolution of each block."""
    x = relu(model.bn1(model.conv1(x)))
    for stage in (model.layer1, model.layer2, model.layer3, model.layer4):
        for block in stage:
            if isinstance(block, Smooth):
                x = smooth(x)
                continue
            branch = relu(block.bn1(block.conv1(x)))
            if isinstance(block, BasicBlock):
                branch = block.bn2(block.conv2(dropout(branch, rate)))
            else:
                branch = dropout(relu(block.bn2(block.conv2(branch))), rate)
                branch = block.bn3(block.conv3(branch))
            x = relu(branch + (x if block.downsample is None else block.downsample(x)))
    return model.fc(x.mean((2, 3)))


@pytest.mark.parametrize("name", ["micro_resnet", "micro_resnext"])
@pytest.mark.parametrize("rate", [0.0, 0.3])
def test_dropout_stands_behind_the_relu_before_the_last_convolution(name, rate, order_one):
    """By a naive twin whose masks come from the same state of the generator."""
    model, x = order_one(name, mc_dropout=rate).double(), images(dtype=torch.float64)
    found, expected = seeded(model, x), seeded(by_hand, model, x, rate)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)  # in double precision


def test_smoothing_stands_at_the_end_of_each_stage(order_one):
    model, x = order_one("micro_resnet_smooth", mc_dropout=0.3), images()

    def smooth(x):
        x = (10 * torch.tanh(x / 10)).clamp_min(0)
        right = torch.cat([x[..., 1:], x[..., -1:]], -1)
        below = torch.cat([x[..., 1:, :], x[..., -1:, :]], -2)
        corner = torch.cat([right[..., 1:, :], right[..., -1:, :]], -2)
        return (x + right + below + corner) / 4

    x = x.double()
    found = seeded(model.double(), x)
    expected = seeded(by_hand, model, x, 0.3, smooth)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["micro_resnet", "micro_resnext"])
def test_dropout_goes_on_in_eval_mode_unless_told_otherwise(name, order_one):
    x, plain = images(), order_one(name)
    bayesian = order_one(name, mc_dropout=0.3)
    assert list(bayesian.state_dict()) == list(plain.state_dict())
    assert not torch.allclose(bayesian(x), bayesian(x), rtol=0.01)
    for options in ({"mc_dropout": 0.0}, {"mc_dropout": 0.3, "always": False}):
        quiet = timm.create_model(name, **options).eval()
        quiet.load_state_dict(plain.state_dict())
        assert torch.equal(quiet(x), plain(x))
    quiet.train()
    assert not torch.equal(quiet(x), quiet(x))


def test_options_of_smoothing_and_of_the_stem():
    grown = timm.create_model("micro_resnet_smooth", smooth_padding="grow")
    sides = [m.shape[-1] for m in grown.forward_intermediates(images())[1]]
    assert sides == [32, 33, 18, 10, 6]  # one more at the end of each stage
    normed = timm.create_model("micro_resnet_smooth", smooth_prob="bn_tanh", smooth_tau=4)
    assert normed.layer3.smooth.prob.norm.num_features == 24
    assert normed.layer3.smooth.prob.tau == 4
    assert timm.create_model("micro_resnet_smooth", smooth_kernel=5).layer1.smooth.blur.kernel == 5
    wide = timm.create_model("micro_resnet", stem_width=12)
    assert wide.forward_intermediates(images())[1][0].shape[1] == 12
    dilated = timm.create_model("micro_resnet", output_stride=2, features_only=True)
    assert [m.shape[-1] for m in dilated(images())] == [32, 32, 16, 16, 16]
    assert dilated.feature_info.reduction() == [1, 1, 2, 2, 2]
    placed = timm.create_model("micro_resnet_smooth", smooth_prob="bn_tanh", dtype=torch.float64)
    assert {p.dtype for p in placed.parameters()} == {torch.float64}


def test_timm_users_find_what_they_know(order_one):
    model, x = order_one("micro_resnet_smooth").train(), images()
    assert isinstance(model, ResNet)
    model.set_grad_checkpointing()
    model(x).sum().backward()
    groups = timm.models.group_parameters(model, model.group_matcher())
    assert sum(map(len, groups.values())) == len(list(model.parameters()))
    assert timm.create_model("micro_resnet", drop_path_rate=0.1).layer4[-1].drop_path is not None


def test_mistakes_say_what_to_do():
    with pytest.raises(ValueError, match=r"0 or 1 for each of the 4 stages; got \(1, 1\)"):
        timm.create_model("micro_resnet", smoothing=(1, 1))
    with pytest.raises(ValueError, match=r"even number of channels; got 7"):
        timm.create_model("micro_resnet", stem_width=7)
    with pytest.raises(ValueError, match=r"output_stride is 2, 4 or 8; got 1"):
        timm.create_model("micro_resnet", output_stride=1)
    with pytest.raises(ValueError, match=r"mc_dropout and drop_block_rate want the same place"):
        timm.create_model("micro_resnet", mc_dropout=0.1, drop_block_rate=0.1)
    with pytest.raises(ValueError, match=r"no head 'none'"):
        CifarStemResNet(BasicBlock, (1, 1, 1, 1), head="none")
    model = draw_at_order_one(timm.create_model("micro_resnet"))
    with pytest.raises(ValueError, match=r"not pooled cannot be classified into 10 classes"):
        model.reset_classifier(10, "")
    assert model(images()).shape == (2, 10)
