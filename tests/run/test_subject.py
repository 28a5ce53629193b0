import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn

import retinoscope
from retinoscope.core.errors import NotApplicable, NotDeterministic, RetinoscopeError, WrongInput
from retinoscope.core.probe import Needs
from retinoscope.core.view import AUGMENTED
from retinoscope.data.augment import Augmentation
from retinoscope.probes.variance import Variance
from retinoscope.run.check import check_deterministic
from retinoscope.run.subject import load_subject
from run.elsewhere import TINY
from run.tiny import build

TEST = Needs()


def test_normalisation_is_the_models_first_step(tiny):
    subject = tiny(images=5, mean=(0.1, 0.2, 0.3), std=(0.5, 0.6, 0.7))
    (batch,) = subject.split(TEST).batches(range(5), 5)
    x = batch.images
    assert 0 <= x.min() < x.max() <= 1
    mean, std = (torch.tensor(v).view(1, 3, 1, 1) for v in ((0.1, 0.2, 0.3), (0.5, 0.6, 0.7)))
    with torch.no_grad():
        expected = subject.backbone((x - mean) / std)
        assert torch.equal(subject.model(x), expected)
        torch.testing.assert_close(subject.replay(x), expected)
    assert [u.name for u in subject.anatomy] == ["stem", "block.0", "down", "head"]


def test_gradients_reach_the_pixels(tiny):
    subject = tiny(images=2)
    (batch,) = subject.split(TEST).batches(range(2), 2)
    x = batch.images.clone().requires_grad_()
    subject.loss(subject.model(x), batch).backward()
    assert x.grad.abs().max() > 0


def test_training_images_come_augmented_with_soft_targets_and_weight_decay(tiny):
    augmentation = Augmentation(mixup=0.8, smoothing=0.1)
    subject = tiny(images=20, augmentation=augmentation, weight_decay=0.05, seed=4)
    train = subject.split(Needs("train", AUGMENTED))
    (batch,) = train.batches(range(6), 6)
    assert batch.targets.shape == (6, 10)
    torch.testing.assert_close(batch.targets.sum(1), torch.ones(6))
    assert train.protocol["augmentation"]["mixup"] == 0.8
    assert train.protocol["augmentation"]["seed"] == 4
    assert subject.weight_decay == 0.05
    logits = torch.randn(6, 10)
    expected = -(batch.targets * logits.log_softmax(1)).sum(1).mean()
    torch.testing.assert_close(subject.loss(logits, batch), expected)


def test_splits_and_labels_that_are_not_there_are_not_applicable(tiny):
    subject = tiny(images=5)
    with pytest.raises(NotApplicable, match=r"needs the split 'validation'; the data have: train"):
        subject.split(Needs("validation"))
    other = load_subject(
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.AdaptiveAvgPool2d(1),
                      nn.Flatten(), nn.Linear(4, 7)).eval(),
        "cues", size=(16, 16), images=5,
    )  # fmt: skip
    with pytest.raises(NotApplicable, match="10 classes of the data cannot be matched with the 7"):
        other.split(Needs(labels=True))
    assert other.split(TEST).labelled is False
    assert other.split(Needs(labels="optional")).labelled is False


def test_further_subjects_share_the_images(tiny):
    subject = tiny(images=5)
    second = subject.another(TINY.replace("img_size=16", "img_size=16,"))
    assert second.split(TEST).fingerprint == subject.split(TEST).fingerprint
    live = load_subject(
        build().eval(), "cues", name="a", size=(16, 16), images=5, others={"b": build().eval()}
    )
    assert live.another("b").name == "b"
    assert live.another("b").split(TEST).fingerprint == live.split(TEST).fingerprint
    from dataclasses import replace

    with pytest.raises(RetinoscopeError, match=r"needs another subject, 'x'.*others="):
        replace(live, origin=None).another("x")


def test_your_own_model_stays_where_and_as_it_is():
    model = build().eval()
    subject = load_subject(model, "cues", size=(16, 16), images=3, precision="float64")
    assert next(subject.model.parameters()).dtype == torch.float64
    assert next(model.parameters()).dtype == torch.float32
    assert load_subject(model, "cues", size=(16, 16), images=3).backbone is model


def test_real_images_by_name():
    if "RETINOSCOPE_DATA" not in os.environ:
        pytest.skip("RETINOSCOPE_DATA does not say where the real CIFAR lies")
    subject = load_subject(
        "resnet20_cifar:num_classes=100", "cifar100", images=200, pretrained=False
    )
    split = subject.split(Needs(labels=True))
    (batch,) = split.batches(range(200), 200)
    assert torch.bincount(batch.labels).tolist() == [2] * 100
    assert batch.images.shape == (200, 3, 32, 32)
    assert 0.4 < batch.images.mean() < 0.6
    found = retinoscope.measure(Variance(), subject)
    assert found.images == 200


def test_a_snapshot_is_another_subject(tiny, tmp_path):
    from safetensors.torch import save_file

    subject = tiny(images=5)
    state = {k: v * 2 if v.is_floating_point() else v for k, v in build().state_dict().items()}
    save_file(state, tmp_path / "epoch3.safetensors")
    later = subject.another(str(tmp_path / "epoch3.safetensors"))
    assert torch.equal(later.backbone.stem.weight, 2 * subject.backbone.stem.weight)
    assert subject.another(str(tmp_path / "epoch3.safetensors")) is later
    assert later.split(TEST).fingerprint == subject.split(TEST).fingerprint


def test_each_call_loads_anew(tiny):
    first = tiny(images=5)
    first.backbone.train()
    assert not tiny(images=5).backbone.training


def test_images_of_unknown_classes_count_only_where_no_labels_are_needed(tmp_path):
    from PIL import Image

    for name in ("tench", "unicorn"):
        (tmp_path / name).mkdir()
        for place in range(2):
            Image.new("RGB", (16, 16), (place, 9, 9)).save(tmp_path / name / f"{place}.png")
    layers = nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.AdaptiveAvgPool2d(1)
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(4, 1000)).eval()
    subject = load_subject(model, str(tmp_path), size=(16, 16))
    assert len(subject.split(TEST)) == 4
    known = subject.split(Needs(labels=True))
    assert len(known) == 2
    assert known.protocol["left out"] == 2
    (batch,) = known.batches(range(2), 2)
    assert batch.labels.tolist() == [0, 0]
    assert len(subject.split(Needs(labels="optional"))) == 2


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ({"crop_mode": "round"}, "crop_mode is one of center, squash, border"),
        ({"interpolation": "magic"}, "interpolation is one of nearest"),
        ({"crop_pct": 0.0}, "above 0 and up to 1"),
        ({"seed": -1}, "seed is from 0 to 4294967295; got -1"),
        ({"batch": 0}, "batch is 1 or more; got 0"),
        ({"images": 0}, "images is 1 or more; got 0"),
    ],
)
def test_values_that_cannot_be(tiny, setting, says):
    with pytest.raises(WrongInput, match=says):
        tiny(**setting)


def test_what_is_made_at_size_is_not_cut(tiny):
    (cut,) = tiny(images=4, crop_pct=0.5).split(TEST).batches(range(4), 4)
    (whole,) = tiny(images=4).split(TEST).batches(range(4), 4)
    assert torch.equal(cut.images, whole.images)
    assert tiny(images=4, crop_pct=0.5).split(TEST).protocol["preprocessing"]["crop_pct"] == 1.0


def test_wrong_settings_are_refused(tiny):
    with pytest.raises(WrongInput, match="has no setting picutres"):
        tiny(picutres=3)
    with pytest.raises(WrongInput, match="precision is one of float32, float64"):
        tiny(precision="float8")
    with pytest.raises(WrongInput, match=r"The device 'cuda:99' cannot be used.*can"):
        tiny(device="cuda:99")


def test_keys_follow_what_determines_a_result_and_nothing_else(tiny):
    from retinoscope.probes.fourier import Fourier
    from retinoscope.run.key import key_of

    base = key_of(Fourier(), tiny())
    assert base == key_of(Fourier(), tiny(batch=3, workers=2))
    others = [
        key_of(Fourier(bands=9), tiny()),
        key_of(Fourier(), tiny(images=20)),
        key_of(Fourier(), tiny(precision="float64")),
        key_of(Fourier(), tiny(mean=(0.0, 0.0, 0.0))),
        key_of(
            Fourier(), load_subject(tiny().origin.specification.model, "cues:seed=1", images=300)
        ),
    ]
    assert len({base, *others}) == 6


@pytest.mark.proof
def test_the_fingerprint_is_the_same_in_another_process(tiny):
    code = (
        "import sys; from retinoscope import load_subject\n"
        "s = load_subject(sys.argv[1], 'cues', images=5); print(s.fingerprint)"
    )
    subject = tiny(images=5)
    done = subprocess.run(
        [sys.executable, "-c", code, TINY], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == subject.fingerprint


def test_a_model_in_training_mode_is_named_with_its_parts():
    body = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3)
    head = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(), nn.Linear(4, 10)
    model = nn.Sequential(*body, *head)
    subject = load_subject(model, "cues", size=(8, 8), images=4)
    with pytest.raises(NotDeterministic, match=r"1 BatchNorm2d, 1 Dropout.*Call model.eval"):
        check_deterministic(subject, TEST)
    assert model.training, "a check looks and does not touch"
    check_deterministic(load_subject(model.eval(), "cues", size=(8, 8), images=4), TEST)


class Noisy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.body = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3, padding=1)
        self.head = nn.Linear(4, 10)

    def forward(self, x):
        x = self.stem(x)
        x = x + nn.functional.dropout(self.body(x), 0.5, training=True)
        return self.head(x.mean((2, 3)))


def test_dropout_that_is_always_on_is_found_in_its_unit():
    subject = load_subject(Noisy().eval(), "cues", size=(8, 8), images=4)
    with pytest.raises(NotDeterministic, match="differ from unit 'body' onwards"):
        check_deterministic(subject, TEST)


def test_seeded_passes_make_such_a_network_an_ordinary_subject(tmp_path):
    """The mean over passes of each pass's own variance; batches and memory change no mask."""
    from retinoscope.models.drawing import Drawing
    from retinoscope.probes.landscape import Landscape
    from retinoscope.run.run import Run

    model = Noisy().eval()
    found = {
        (batch, passes): retinoscope.measure(
            Variance(),
            load_subject(model, "cues", size=(8, 8), images=10, batch=batch, passes=passes, seed=3),
        )
        for batch, passes in ((10, 4), (3, 4), (10, 1))
    }
    np.testing.assert_allclose(
        found[10, 4].variance, found[3, 4].variance, rtol=1e-6
    )  # single precision, in batches of another size
    body = found[10, 4].units.index("body")
    assert abs(found[10, 4].variance[body] / found[10, 1].variance[body] - 1) > 1e-4
    subject = load_subject(model, "cues", size=(8, 8), images=10, passes=4, seed=3)
    (batch,) = subject.splits["test"].batches(range(10), 10)
    each = []
    for number in range(4):
        with torch.no_grad(), Drawing(3, number, range(10)):
            x = model.stem(subject.model.normalise(batch.images))
            x = x + nn.functional.dropout(model.body(x), 0.5, training=True)
        each.append(x.flatten(2).var(-1).mean())
    np.testing.assert_allclose(found[10, 4].variance[body], np.mean(each), rtol=1e-5)
    assert found[10, 4].protocol["passes"] == 4
    with pytest.raises(NotApplicable, match="not yet defined for a network that is random"):
        Run(tmp_path).measure(Landscape(images="test"), subject)
    with pytest.raises(WrongInput, match="passes is 0 or more; got -1"):
        load_subject(model, "cues", size=(8, 8), passes=-1)


class Shuffled:
    """Another image each time, but with a fingerprint that hides it."""

    fingerprint = "always the same"
    classes = tuple("abcdefghij")

    def __len__(self):
        return 12

    def __getitem__(self, index):
        return np.random.default_rng().integers(0, 255, (8, 8, 3), dtype=np.uint8), index % 10


def test_shuffled_data_are_found_before_work_starts():
    subject = load_subject(
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.AdaptiveAvgPool2d(1),
                      nn.Flatten(), nn.Linear(4, 10)).eval(),
        Shuffled(), size=(8, 8),
    )  # fmt: skip
    with pytest.raises(NotDeterministic, match="change when they are read again"):
        retinoscope.measure(Variance(), subject)


def test_out_of_memory_halves_the_batch_and_says_so(tiny, tmp_path, monkeypatch):
    from retinoscope.anatomy.replay import Replay
    from retinoscope.run.run import Run

    expected = retinoscope.measure(Variance(), tiny(images=40))
    walk = Replay.walk

    def small(self, batch, taps=()):
        if len(batch) > 5:
            raise torch.OutOfMemoryError("no room")
        return walk(self, batch, taps)

    monkeypatch.setattr(Replay, "walk", small)
    found = Run(tmp_path).measure(Variance(), tiny(images=40))
    np.testing.assert_allclose(found.variance, expected.variance, rtol=1e-6)
    (note,) = tmp_path.rglob("*.note.json")
    assert "a mini-batch of 40 goes through in 2 parts" in note.read_text()
    assert "a mini-batch of 40 goes through in 8 parts" in note.read_text()


def test_one_image_that_does_not_fit_is_said(tiny, monkeypatch):
    from retinoscope.anatomy.replay import Replay
    from retinoscope.run import run as running

    monkeypatch.setattr(running, "check_deterministic", lambda *_: [])

    def never(self, batch, taps=()):
        raise torch.OutOfMemoryError("no room")

    monkeypatch.setattr(Replay, "walk", never)
    with pytest.raises(RetinoscopeError, match=r"One image does not fit into memory"):
        retinoscope.measure(Variance(), tiny(images=4))


@pytest.mark.parametrize("size", [8, (8, 8)])
def test_an_image_size_may_be_a_single_number(tiny, size):
    assert tiny(images=2, size=size).anatomy.image == (3, 8, 8)
    assert load_subject(build().eval(), "cues", images=2, size=size).anatomy.image == (3, 8, 8)


@pytest.mark.parametrize("size", [0, (0, 32)])
def test_a_size_without_pixels_is_refused_for_what_it_is(tiny, size):
    with pytest.raises(WrongInput, match="is not an image size"):
        tiny(size=size)


def test_a_live_module_keeps_the_name_it_was_given():
    for name in ("mine/second", "'quoted\" and odd"):
        assert load_subject(build().eval(), "cues", name=name, size=8, images=2).name == name
