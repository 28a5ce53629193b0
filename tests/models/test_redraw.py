import pytest
import torch
from torch import nn

from retinoscope import load_model
from retinoscope.models.anatomy import anatomy_of
from retinoscope.models.checkpoint import state_hash
from retinoscope.models.redraw import WeightsFixed

OWN = """
from pathlib import Path
import torch
from torch import nn

torch.manual_seed(9)

class Net(nn.Sequential):
    def __init__(self):
        super().__init__(
            nn.Conv2d(3, 4, 3, 2), nn.BatchNorm2d(4), nn.Flatten(2), nn.MultiheadAttention(9, 3),
            nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(4, 10),
        )

    def forward(self, x):
        x = self[2](self[1](self[0](x)))
        return self[6](self[5](self[4](x + self[3](x, x, x)[0])))

def random(img_size=8):
    return Net()

def loaded(img_size=8):
    model = Net()
    file = Path(__file__).with_suffix(".pth")
    if file.is_file():
        model.load_state_dict(torch.load(file))
    return model

def seeded(img_size=8):
    torch.manual_seed(3)
    return Net()

def told(pretrained=True, img_size=8):
    return loaded() if pretrained else random()

class Table(Net):
    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.arange(4.0))

def stuck(img_size=8):
    return Table()
"""


@pytest.fixture
def own(tmp_path):
    """A file of networks, and weights beside it that are far from any draw."""
    (tmp_path / "own.py").write_text(OWN)
    state = load_model(f"{tmp_path}/own.py:random").model.state_dict()
    generator = torch.Generator().manual_seed(1)
    for tensor in state.values():
        if tensor.is_floating_point():
            tensor += 100 + torch.rand(tensor.shape, generator=generator)
    torch.save(state, tmp_path / "own.pth")
    return f"{tmp_path}/own.py"


def test_random_weights_repeat_by_seed(own):
    a, b, c = (load_model(f"{own}:random", pretrained=False, seed=seed) for seed in (3, 3, 4))
    assert state_hash(a.model) == state_hash(b.model) != state_hash(c.model)
    assert (a.weights, a.trained) == ("untrained, seed 3", False)


@pytest.mark.parametrize("function", ["loaded", "seeded"])
def test_weights_that_the_code_fixes_are_drawn_anew(own, function):
    a, b, c = (load_model(f"{own}:{function}", pretrained=False, seed=s) for s in (3, 3, 4))
    assert state_hash(a.model) == state_hash(b.model) != state_hash(c.model)
    assert a.weights == "untrained, seed 3, drawn anew by each module's reset_parameters"
    assert a.trained is False
    assert all(p.abs().max() < 10 for p in a.model.state_dict().values())  # statistics as well
    assert torch.equal(a.model[1].running_mean, torch.zeros(4))
    kept = load_model(f"{own}:{function}")
    assert state_hash(kept.model) == state_hash(load_model(f"{own}:{function}", seed=5).model)
    assert kept.weights.startswith(f"own.py:{function}, weights ")


def test_a_function_that_takes_pretrained_is_told(own):
    assert load_model(f"{own}:told").model[6].bias.min() > 50
    fresh = load_model(f"{own}:told", pretrained=False, seed=2)
    assert fresh.model[6].bias.max() < 10
    assert fresh.weights == "untrained, seed 2"
    asked = load_model(f"{own}:told:pretrained=True", pretrained=False)
    assert asked.model[6].bias.min() > 50
    assert asked.weights.startswith("own.py:told, weights ")


def test_what_cannot_be_drawn_anew_is_refused_by_name(own):
    with pytest.raises(WeightsFixed) as caught:
        load_model(f"{own}:stuck", pretrained=False)
    text = str(caught.value)
    assert "--untrained, in Python pretrained=False" in text
    assert "the network (Table)" in text
    assert "pretrained=True" in text
    assert anatomy_of(f"{own}:stuck").weights.startswith("own.py:stuck, weights ")


def test_a_file_of_weights_needs_no_draw(own, tmp_path):
    state = load_model(f"{own}:stuck").model.state_dict()
    torch.save({key: value + 1 for key, value in state.items()}, tmp_path / "w.pth")
    loaded = load_model(f"{own}:stuck", weights=tmp_path / "w.pth")
    assert torch.equal(loaded.model.table, nn.Parameter(torch.arange(1.0, 5.0)))
