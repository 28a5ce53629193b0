"""The same network with random weights, as a further subject of a probe."""

from pathlib import Path

import pytest
import torch
from torch import nn

from retinoscope import load_model
from retinoscope.core.errors import NotApplicable
from retinoscope.core.probe import UNTRAINED, Needs
from retinoscope.models.built_file import Construction, write_built
from retinoscope.models.load import untrained
from retinoscope.models.redraw import WeightsFixed, redrawn
from retinoscope.run.subject import load_subject
from run.tiny import build


def test_a_named_model_with_its_own_random_weights():
    subject = load_subject("micro_resnet", "cues", images=5)
    other = subject.another(UNTRAINED)
    drawn = load_model("micro_resnet", pretrained=False)
    assert other.weights == drawn.weights == "untrained, seed 0"
    for ours, theirs in zip(other.backbone.parameters(), drawn.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    assert other.state != subject.state
    assert other.split(Needs()).fingerprint == subject.split(Needs()).fingerprint
    assert subject.another(UNTRAINED) is other


def test_a_module_draws_each_part_anew_and_stays_as_it_is():
    model = build().eval()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    subject = load_subject(model, "cues", size=(16, 16), images=5, seed=3)
    other = subject.another(UNTRAINED).backbone
    assert not other.training
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    for name in ("stem", "block.0", "down", "head"):
        assert not torch.equal(other.get_submodule(name).weight, model.get_submodule(name).weight)
    state = torch.get_rng_state()
    again = redrawn(model, "Tiny", seed=3)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(again.stem.weight, other.stem.weight)
    given = load_subject(model, "cues", size=(16, 16), images=5, others={UNTRAINED: again})
    assert given.another(UNTRAINED).backbone is again


class Table(nn.Module):
    """A network with a parameter that nothing can draw."""

    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.ones(3, 1, 1))
        self.head = nn.Linear(3, 10)

    def forward(self, x):
        return self.head((x * self.table).mean((2, 3)))


def test_parameters_that_nothing_can_draw_are_named():
    with pytest.raises(
        WeightsFixed, match=r"these parts of Table hold .*: the network \(Table\)\."
    ):
        redrawn(Table(), "Table", 0)
    with pytest.raises(NotApplicable, match=r"needs the same network .*others=\{'untrained': mod"):
        untrained(Table())


def test_files_of_weights_are_left_out_but_their_surgeries_stay(tmp_path):
    plain = tmp_path / "plain.pth"
    torch.save(build().state_dict(), plain)
    assert untrained(f"micro_vit:weights={plain}") == "micro_vit"
    assert untrained("micro_vit:img_size=32", str(plain)) == "micro_vit:img_size=32"
    file = str(tmp_path / "cb.safetensors")
    vit = load_model("micro_vit").model
    write_built(Path(file), vit, Construction("micro_vit", ("context_broadcasting",), (32, 32), ""))
    assert untrained(file) == file
    assert untrained("micro_vit", file) == file
    fresh = load_model(file, pretrained=False)
    assert fresh.trained is False
    assert any("Broadcast" in type(module).__name__ for module in fresh.model.modules())


def test_surgeries_on_code_are_not_built_without_being_asked(tmp_path):
    file = tmp_path / "own.safetensors"
    write_built(file, build(), Construction("own.py:build", ("mc_dropout",), (16, 16), ""))
    with pytest.raises(NotApplicable, match=r"describes surgeries on own.py:build, .*others="):
        untrained("own.py:build", str(file))
