import pytest
import torch
from torch import nn

from retinoscope.layers.dropout import MonteCarloDropout


def seeded(layer, x):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return layer(x)


def test_goes_on_in_eval_mode():
    layer, x = MonteCarloDropout(0.3).eval(), torch.rand(2000) + 1
    first, second = layer(x), layer(x)
    assert not torch.equal(first, second)
    kept = first != 0
    torch.testing.assert_close(first[kept], x[kept] / 0.7)
    assert abs((~kept).float().mean() - 0.3) < 0.05  # five standard deviations of 2000 draws
    assert torch.equal(seeded(layer, x), seeded(nn.Dropout(0.3).train(), x))


def test_ordinary_dropout_is_quiet_in_eval_mode():
    layer, x = MonteCarloDropout(0.3, always=False), torch.rand(200)
    assert torch.equal(layer.eval()(x), x)
    layer.train()
    assert torch.equal(seeded(layer, x), seeded(nn.Dropout(0.3).train(), x))
    assert (layer(x) == 0).any()


@pytest.mark.parametrize("training", [True, False])
def test_nothing_to_drop_is_the_identity_and_draws_nothing(training):
    x, before = torch.rand(200), torch.get_rng_state()
    assert MonteCarloDropout(0).train(training)(x) is x
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("transform", ["export", "compile"])
def test_goes_on_behind_export_and_compile(transform):
    layer, x = MonteCarloDropout(0.5).eval(), torch.rand(500) + 1
    if transform == "export":
        layer = torch.export.export(layer, (x,)).module()
    else:
        layer = torch.compile(layer, backend="aot_eager")  # no compiler of C needed
    first, second = layer(x), layer(x)
    assert not torch.equal(first, second)
    assert set((first / x).round().tolist()) == {0.0, 2.0}


def test_settings_and_mistakes():
    assert repr(MonteCarloDropout(0.25, always=False)) == "MonteCarloDropout(p=0.25, always=False)"
    with pytest.raises(ValueError, match=r"0 ≤ p < 1; got p=1"):
        MonteCarloDropout(1)
    with pytest.raises(ValueError, match=r"0 ≤ p < 1; got p=-0.1"):
        MonteCarloDropout(-0.1)
