from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import retinoscope
from numerics.test_smoothing import naive_cosines
from probes.small import Averaging, small
from retinoscope.core.errors import NotApplicable
from retinoscope.core.probe import UNTRAINED
from retinoscope.core.settings import WrongSetting
from retinoscope.figures.describe import figures
from retinoscope.numerics.smoothing import effective_rank
from retinoscope.probes import parse_probe
from retinoscope.probes.oversmoothing import Oversmoothing
from retinoscope.run.subject import load_subject


def tokens_of(state, prefix=True):
    """(N, n, d) in double precision, joined as nobody should on large states."""
    tokens = state.maps.flatten(2).mT
    if prefix and state.prefix is not None:
        tokens = torch.cat([state.prefix, tokens], 1)
    return tokens.double()


def naive(subject, prefix=True):
    """The mean ratio and the mean cosine after every unit with positions, for all images."""
    split = subject.splits["test"]
    (batch,) = split.batches(range(len(split)), len(split))
    found = {}
    with torch.no_grad():
        for name, state in subject.replay.states(subject.to_device(batch.images)).items():
            if state.lens is None or state.maps[0, 0].numel() < 2:
                continue
            tokens = tokens_of(state, prefix)
            low = tokens.mean(1, keepdim=True)
            ratios = (tokens - low).norm(dim=(1, 2)) / low.expand_as(tokens).norm(dim=(1, 2))
            found[name] = ratios.numpy(), naive_cosines(tokens)[0]
    return found


def test_known_answer_each_unit_halves_what_differs():
    found = retinoscope.measure(Oversmoothing(), small("own"))
    assert found.kinds[1:] == ("attention", "attention")
    np.testing.assert_allclose(found.ratio[1:], found.ratio[0] / [2, 4], rtol=1e-9)
    np.testing.assert_allclose(found.step[1:], np.log10(0.5), rtol=1e-9)
    assert np.isnan(found.step[0])
    assert found.cosine[0] < found.cosine[1] < found.cosine[2]
    assert "2 of 2 attention units lower log₁₀ HFC/LFC (median step −0.301)" in found.findings()[-1]
    assert found.skipped == (("head", "its state has no grid"),)


@pytest.mark.parametrize("family", ["cnn", "vit", "swin", "own"])
@pytest.mark.parametrize("prefix", [True, False])
def test_equals_the_naive_twin(family, prefix):
    found = retinoscope.measure(Oversmoothing(prefix=prefix), small(family))
    expected = naive(small(family), prefix)
    assert found.units == tuple(expected)
    ratios, cosines = zip(*expected.values(), strict=True)
    np.testing.assert_allclose(found.ratio, np.mean(ratios, 1), rtol=1e-9)
    np.testing.assert_allclose(found.cosine, np.mean(cosines, 1), atol=1e-9)
    errors = np.std(ratios, 1, ddof=1) / np.sqrt(len(ratios[0]))
    np.testing.assert_allclose(found.ratio_error, errors, rtol=1e-7)
    steps = np.diff(np.log10(ratios), axis=0).mean(1)
    np.testing.assert_allclose(found.step[1:], steps, atol=1e-9)
    assert np.ptp(found.ratio) > 0.1, "nothing differs between units: nothing would be shown"


def test_the_class_token_counts_unless_it_is_left_out():
    both = [retinoscope.measure(Oversmoothing(prefix=p), small("vit")) for p in (True, False)]
    assert (np.abs(both[0].ratio - both[1].ratio) > 1e-3).all()
    plain = [retinoscope.measure(Oversmoothing(prefix=p), small("cnn")) for p in (True, False)]
    np.testing.assert_array_equal(plain[0].ratio, plain[1].ratio)


def test_batch_size_changes_nothing():
    subject = small("vit", "float32")
    found = [
        retinoscope.measure(Oversmoothing(absolute=4, ranks=3), replace(subject, batch=batch))
        for batch in (64, 4, 1)
    ]
    for other in found[1:]:
        for key, array in found[0].arrays().items():
            np.testing.assert_allclose(other.arrays()[key], array, rtol=2e-6, atol=1e-6)


def test_single_precision_is_as_true_as_double():
    found, exact = (
        retinoscope.measure(Oversmoothing(), small("vit", p)) for p in ("float32", "float64")
    )
    np.testing.assert_allclose(found.ratio, exact.ratio, rtol=1e-4)  # as far as the states agree
    np.testing.assert_allclose(found.cosine, exact.cosine, atol=1e-5)


def test_absolute_cosines_and_ranks_of_the_first_images():
    probe = Oversmoothing(absolute=4, ranks=3, centred=True)
    found = retinoscope.measure(probe, replace(small("vit"), batch=2))
    assert (found.images, found.absolute_images, found.rank_images) == (6, 4, 3)
    (batch,) = small("vit").splits["test"].batches(range(4), 4)
    with torch.no_grad():
        states = small("vit").replay.states(batch.images.double())
    for place, unit in enumerate(found.units):
        tokens = tokens_of(states[unit])
        assert found.absolute[place] == pytest.approx(naive_cosines(tokens, True)[1].mean(), 1e-6)
        assert found.rank[place] == pytest.approx(effective_rank(tokens[:3]).mean().item(), 1e-9)
    assert (found.rank > 1 / 12).all()
    assert (found.rank <= 1).all()
    without = retinoscope.measure(Oversmoothing(), small("vit"))
    assert np.isnan(without.absolute).all()
    assert np.isnan(without.rank).all()
    assert [figure.field for figure in figures(without)] == ["ratio", "step", "cosine"]


def test_random_weights_are_measured_on_the_same_images():
    model = Averaging(0.25).double().eval()
    other = Averaging(0.5).double().eval()
    subject = load_subject(
        model, "cues", size=(16, 16), images=5, batch=2, others={UNTRAINED: other}
    )
    found = retinoscope.measure(Oversmoothing(untrained=True), subject)
    np.testing.assert_array_equal(found.compared[0], found.ratio)
    alone = retinoscope.measure(
        Oversmoothing(), load_subject(other, "cues", size=(16, 16), images=5)
    )
    np.testing.assert_allclose(found.compared[1], alone.ratio, rtol=1e-9)
    assert found.networks == ("own weights", "random weights")
    assert found.findings()[1].startswith("with random weights, HFC/LFC ends at")
    assert retinoscope.measure(Oversmoothing(), subject).compared.shape == (0, 3)


class Dark(nn.Module):
    """A network whose middle is 0 everywhere, whatever it sees."""

    def __init__(self, dark_start=False):
        super().__init__()
        self.start = nn.Conv2d(3, 4, 3, padding=1)
        self.middle, self.end = nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.head = nn.Linear(4, 10)
        with torch.no_grad():
            for part in (self.start, self.middle) if dark_start else (self.middle,):
                part.weight.zero_()
                part.bias.zero_()
            if dark_start:
                self.end.weight.zero_()
                self.end.bias.zero_()

    def forward(self, x):
        x = self.start(x)
        x = self.middle(x)
        return self.head(self.end(x).mean((2, 3)))


def test_states_of_zeros_are_skipped_with_the_reason():
    found = retinoscope.measure(
        Oversmoothing(), load_subject(Dark().eval(), "cues", size=(8, 8), images=3)
    )
    assert ("middle", "the mean of its tokens is 0 or not finite") in found.skipped
    assert np.isfinite(found.ratio).all()
    dark = load_subject(Dark(True).eval(), "cues", size=(8, 8), images=3)
    with pytest.raises(NotApplicable, match="compares tokens with their mean; the mean of its"):
        retinoscope.measure(Oversmoothing(), dark)


def test_settings():
    assert parse_probe("oversmoothing:prefix=False,ranks=8") == Oversmoothing(False, ranks=8)
    with pytest.raises(WrongSetting, match="ranks is 0 or more; got -1"):
        Oversmoothing(ranks=-1)
