import pytest

import retinoscope
from retinoscope.core.errors import RetinoscopeError, WrongInput
from retinoscope.report.collect import collect
from retinoscope.run.subject import load_subject
from retinoscope.workflows.examine import default_folder, examine
from run.elsewhere import TINY

SHORT = "tiny.py:build:img_size=16"


def test_examine_goes_on_past_a_model_that_fails(tmp_path):
    done = examine([TINY, "resnet51"], images=20, out=tmp_path / "run", pretrained=False)
    assert list(done.results) == [SHORT]
    assert "timm has no model 'resnet51'" in done.failures[0][1]
    assert "could not be examined" in done.report.read_text()
    assert "resnet51 could not be examined" in str(done)
    with pytest.raises(RetinoscopeError, match="timm has no model"):
        examine("resnet51", out=tmp_path / "two")
    with pytest.raises(RetinoscopeError, match="None of the 2 models could be examined"):
        examine(["resnet51", "resnet52"], out=tmp_path / "three")


def test_default_folder_is_the_same_for_the_same_names():
    assert str(default_folder(["a/b", "c"], "cues")) == "runs/a-b+c-cues".replace("+", "-")


def test_probes_are_named_with_settings_and_twice_if_wanted(tmp_path):
    probes = ["fourier:bands=5", "fourier:bands=9,direction=radial", "variance"]
    done = retinoscope.examine(TINY, images=12, out=tmp_path, probes=probes)
    (found,) = done.results.values()
    assert len(found) == 3
    bands = [one.frequency.shape[1] for name, one in found.items() if name.startswith("fourier")]
    assert bands == [5, 9]
    with pytest.raises(WrongInput, match=r"fourier: axis is one of true, paper; got 'ture'"):
        examine(TINY, out=tmp_path, probes=["fourier:axis=ture"])


def test_a_label_is_what_a_model_is_called(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    models = [f"first={TINY}", f"second={TINY}"]
    done = examine(models, images=12, probes=["variance"])
    assert done.folder.name == "first-second-cues"
    assert list(done.results) == ["first", "second"]
    assert [one.name for one in collect([done.folder]).examined] == ["first", "second"]
    assert "second" in done.report.read_text()
    with pytest.raises(WrongInput, match="The label 'a' is given to more than one model"):
        examine([f"a={TINY}", "a=resnet18"], out=tmp_path)


def test_a_label_changes_nothing_that_is_measured(tmp_path):
    plain, named = load_subject(TINY, images=8), load_subject(f"mine={TINY}", images=8)
    assert (plain.name, named.name) == (SHORT, "mine")
    assert plain.fingerprint == named.fingerprint
    assert named.anatomy.model == TINY
    assert named.another(TINY).name == SHORT
    assert load_subject(TINY, name="other", images=8).name == "other"
