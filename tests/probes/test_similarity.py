from functools import cache

import numpy as np
import pytest
import timm
import torch
from torch import nn

from retinoscope import measure
from retinoscope.core.errors import NotApplicable, RetinoscopeError
from retinoscope.core.settings import WrongSetting
from retinoscope.models.order_one import draw_at_order_one
from retinoscope.probes import parse_probe
from retinoscope.probes.similarity import Similarity
from retinoscope.run.subject import load_subject
from sampling import sampled

NAMES = sampled(
    ["micro_resnet", "micro_vit", "micro_swin", "micro_levit"], "micro_vit", "micro_swin"
)
SMALL = {"images": 40, "size": (32, 32)}


def made(name, **options):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return draw_at_order_one(timm.create_model(name, **options)).eval()


@cache
def subject_of(name):
    return load_subject(made(name), "cues", name=name, **SMALL)


def features(subject):
    """The states of all images, unit by unit, in double precision, through maps and prefix."""
    (batch,) = subject.splits["test"].batches(range(40), 40)
    found = {}
    with torch.no_grad():
        for state in subject.replay.walk(batch.images):
            if state.unit.kind == "head":
                continue
            parts = [state.maps] if state.lens else [state.raw]
            parts += [state.prefix] if state.lens and state.prefix is not None else []
            found[state.unit.name] = torch.cat([p.flatten(1) for p in parts], 1).double().numpy()
    return found


def naive(x, y):
    """HSIC by the published formula, on centred features."""
    k, l = ((z - z.mean(0)) @ (z - z.mean(0)).T for z in (x, y))  # noqa: E741
    np.fill_diagonal(k, 0), np.fill_diagonal(l, 0)
    n, ones = len(k), np.ones(len(k))
    return (
        np.trace(k @ l)
        + k.sum() * l.sum() / ((n - 1) * (n - 2))
        - 2 * ones @ k @ l @ ones / (n - 2)
    ) / (n * (n - 3))


def twin(mine, theirs, group):
    cuts = [slice(start, start + group) for start in range(0, 40, group)]

    def mean(x, y):
        return np.mean([naive(x[cut], y[cut]) for cut in cuts])

    return np.array([
        [mean(x, y) / np.sqrt(mean(x, x) * mean(y, y)) for y in theirs.values()]
        for x in mine.values()
    ])  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_equals_the_formula_on_the_whole_states(name):
    found = measure(Similarity(group=16), subject_of(name))  # 16, 16 and 8 images
    states = features(subject_of(name))
    assert found.units == tuple(states)
    np.testing.assert_allclose(found.cka, twin(states, states, 16), atol=1e-5)
    assert (found.images, found.groups) == (40, 3)
    assert found.cka[0, -1] < 0.999  # the units differ
    np.testing.assert_allclose(np.diag(found.cka), 1)
    np.testing.assert_allclose(np.diag(found.rsa), 1)
    assert all("logits" in reason for _, reason in found.skipped)


def test_two_networks_of_different_families_and_widths(tmp_path):
    code = tmp_path / "nets.py"
    code.write_text(
        "import timm, torch\n"
        "from retinoscope.models.order_one import draw_at_order_one\n"
        "def build(name):\n"
        "    torch.manual_seed(1)\n"
        "    return draw_at_order_one(timm.create_model(name)).eval()\n"
    )
    own, other = (f"{code}:build:name={name}" for name in ("micro_vit", "micro_resnet"))
    subject = load_subject(own, "cues", **SMALL)
    found = measure(Similarity(other=other, group=20, permutations=20), subject)
    mine, theirs = features(subject), features(load_subject(other, "cues", **SMALL))
    np.testing.assert_allclose(found.cka, twin(mine, theirs, 20), atol=1e-5)
    assert [label.split()[-1] for label in found.other_labels] == list(theirs)
    assert found.other_labels[0].startswith("E ")
    assert found.other_stages[-1] == 4
    assert found.contrast is None
    assert found.calibrated.shape == found.cka.shape
    assert (found.calibrated <= np.maximum(found.cka, 0) + 1e-12).all()
    assert "is most similar to" in found.findings()[0]


def test_batches_and_memory_change_nothing():
    probe = Similarity(group=20, permutations=5)
    whole = measure(probe, subject_of("micro_vit"))
    for batch in (7,):
        parts = measure(probe, load_subject(made("micro_vit"), "cues", batch=batch, **SMALL))
        for name, array in whole.arrays().items():
            np.testing.assert_allclose(parts.arrays()[name], array, atol=1e-6, err_msg=name)


def test_kernels_and_neighbours_are_settings():
    linear = measure(Similarity(), subject_of("micro_swin"))
    gaussian = measure(Similarity(kernel="rbf", neighbours=3), subject_of("micro_swin"))
    np.testing.assert_allclose(np.diag(gaussian.cka), 1)
    assert np.abs(gaussian.cka - linear.cka).max() > 0.01
    assert np.abs(gaussian.neighbours - linear.neighbours).max() > 0.01
    wide = measure(Similarity(kernel="rbf", width=100), subject_of("micro_swin"))
    np.testing.assert_allclose(wide.cka, linear.cka, atol=0.01)  # a wide Gaussian is linear


class Constant(nn.Module):
    """A stem whose output does not depend on the image, added to one that does."""

    def __init__(self, dead):
        super().__init__()
        self.stem, self.body = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.head = nn.Linear(4, 5)
        if dead:
            nn.init.zeros_(self.stem.weight)

    def forward(self, x):
        x = self.stem(x).relu()
        x = x + self.body(x).relu()
        return self.head(x.mean((2, 3)))


def test_constant_features_are_explained_and_not_nan():
    with pytest.raises(NotApplicable, match="same features for all images of each group"):
        measure(Similarity(), load_subject(Constant(dead=True), "cues", **SMALL))
    assert np.isfinite(
        measure(Similarity(), load_subject(Constant(False), "cues", **SMALL)).cka
    ).all()


def test_too_few_images_and_wrong_settings_say_so():
    three = load_subject(Constant(dead=False), "cues", images=3, size=(32, 32))
    with pytest.raises(NotApplicable, match="at least 4 images in a group; there are 3"):
        measure(Similarity(), three)
    with pytest.raises(WrongSetting, match=r"group .*4 or more"):
        parse_probe("similarity:group=3")
    with pytest.raises(WrongSetting, match=r"width .*above 0"):
        parse_probe("similarity:kernel=rbf,width=0")


def test_a_short_last_group_is_left_out():
    found = measure(Similarity(group=19), subject_of("micro_swin"))  # 19, 19 and 2 images
    assert (found.images, found.groups) == (38, 2)


def test_another_model_on_other_images_is_refused():
    """The other network has its own preprocessing; if it cannot see these images, that is said."""
    with pytest.raises(RetinoscopeError, match="nothing_like_this"):
        measure(Similarity(other="nothing_like_this"), subject_of("micro_swin"))


def test_blocks_show_as_contrast():
    """Two stages whose units copy each other, and a subsampling that mixes everything."""

    class Blocks(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem = nn.Conv2d(3, 8, 3, padding=1)
            self.first = nn.ModuleList(nn.Conv2d(8, 8, 3, padding=1) for _ in range(2))
            self.down = nn.Conv2d(8, 8, 2, stride=2)
            self.second = nn.ModuleList(nn.Conv2d(8, 8, 3, padding=1) for _ in range(2))
            self.head = nn.Linear(8, 5)

        def forward(self, x):
            x = self.stem(x)
            for layer in self.first:
                x = x + 0.01 * layer(x).relu()
            x = (30 * self.down(x)).sin()
            for layer in self.second:
                x = x + 0.01 * layer(x).relu()
            return self.head(x.mean((2, 3)))

    torch.manual_seed(0)
    subject = load_subject(Blocks(), "cues", images=128, size=(32, 32))
    found = measure(Similarity(group=32), subject)
    assert found.contrast > 0.2
    low, high = found.contrast_interval
    assert 0 < low < found.contrast < high
    assert "stages show as blocks" in found.findings()[0]
