import pytest

from retinoscope.core.errors import WrongInput
from retinoscope.probes import list_probes
from retinoscope.probes.variance import Variance
from retinoscope.run.key import name_of
from retinoscope.workflows.presets import CHEAPEST, PRESETS, chosen

# Of its own accord, this probe differentiates the loss; landscapes do where eigenvectors are asked.
DIFFERENTIATES = {"hessian"}


def names(probes):
    return [name_of(probe) for probe in probes]


def test_every_preset_names_probes_that_exist_and_all_settings_fit():
    for preset in PRESETS.values():
        probes, base = chosen(preset.name, None)
        assert base is preset
        assert set(names(probes)) <= set(list_probes())
    assert set(CHEAPEST) <= set(list_probes())
    assert names(chosen(None, list(CHEAPEST.values()))[0]) == list(CHEAPEST)


def test_quick_is_the_default_and_never_differentiates_the_loss():
    probes, base = chosen(None, None)
    assert base is PRESETS["quick"]
    assert not DIFFERENTIATES & set(names(probes))
    assert DIFFERENTIATES <= set(names(chosen("standard", None)[0]))


def test_presets_grow_by_probes_and_by_images():
    quick, standard, paper = (set(names(chosen(name, None)[0])) for name in PRESETS)
    assert quick < standard <= paper
    assert [preset.images for preset in PRESETS.values()] == [256, 512, None]


def test_probes_replace_the_default_and_are_added_to_a_preset_that_is_named():
    assert names(chosen(None, ["variance"])[0]) == ["variance"]
    assert chosen(None, ["variance"])[1] is None
    both, _ = chosen("quick", [Variance(), "hessian:k=3"])
    others = [name for name in names(chosen("quick", None)[0]) if name != "variance"]
    assert names(both) == [*others, "variance", "hessian"]
    assert both[-1].k == 3
    with pytest.raises(WrongInput, match=r"no preset 'quik'. Did you mean 'quick'\? There are:"):
        chosen("quik", None)
