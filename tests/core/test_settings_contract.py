"""What holds for the settings of every probe, surgery and recipe, whoever writes the next one."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import get_args

import pytest

from retinoscope.core.settings import (
    Range,
    WrongSetting,
    choices,
    example,
    hint,
    is_required,
    make,
    written,
)
from retinoscope.core.specification import Specification
from retinoscope.data.augment import Augmentation
from retinoscope.probes import get_probe, list_probes, parse_probe, write_probe
from retinoscope.recipes import get_recipe, list_recipes, parse_recipe, write_recipe
from retinoscope.run.specification import SubjectSpecification
from retinoscope.surgery import get_surgery, list_surgeries, parse_surgery, write_surgery
from retinoscope.train.recipe import Recipe, changed

KINDS = {
    **{name: get_probe(name) for name in list_probes()},
    **{name: get_surgery(name) for name in list_surgeries()},
    "recipe": Recipe,
    "augmentation": Augmentation,
    "subject": SubjectSpecification,
}
OWN = {"augmentation", "label", "folder"}
"""Fields that nobody writes as text."""
SETTINGS = [
    pytest.param(kind, field, id=f"{name}.{field.name}")
    for name, kind in KINDS.items()
    for field in fields(kind)
    if field.name not in OWN
]


def instance(kind, **given):
    """From Python, as a user would; what is required has its example."""
    needed = {f.name: f.metadata["example"] for f in fields(kind) if is_required(f)}
    if kind is SubjectSpecification:
        needed = {"model": "micro_resnet"}
    return kind(**needed | given)


def outside(allowed: Range) -> list[float]:
    """Numbers next to a range."""
    found = []
    for bound, step in ((allowed.at_least, -1), (allowed.at_most, 1)):
        found += [] if bound is None else [bound + step]
    return [*found, *(bound for bound in (allowed.above, allowed.below) if bound is not None)]


@pytest.mark.parametrize(("kind", "field"), SETTINGS)
def test_settings_say_what_they_mean(kind, field):
    text = field.metadata["help"]
    assert text[-1] == "." or "retinoscope list" in text or text.endswith("…")
    assert (
        (field.metadata["example"] is not None) or not is_required(field) or field.name == "model"
    )


@pytest.mark.parametrize(("kind", "field"), SETTINGS)
def test_choices_refuse_other_words(kind, field):
    if words := choices(kind, field.name):
        assert field.default in (*words, None) or is_required(field)
        with pytest.raises(WrongSetting, match=f"{field.name} is one of .*; got 'ture'"):
            instance(kind, **{field.name: "ture"})


@pytest.mark.parametrize(("kind", "field"), SETTINGS)
def test_numbers_out_of_range_are_refused(kind, field):
    row = getattr(hint(kind, field.name), "__origin__", None) is tuple
    number = get_args(hint(kind, field.name))[0] if row else hint(kind, field.name)
    for value in outside(field.metadata["range"]):
        asked = (number(value),) * 2 if row else number(value)
        with pytest.raises(WrongSetting, match=rf"\b{field.name} is .*; got"):
            instance(kind, **{field.name: asked})


@pytest.mark.parametrize(("kind", "field"), SETTINGS)
def test_other_types_are_refused(kind, field):
    wanted = hint(kind, field.name)
    wrong = [object(), {"a": 1}, 1.5j]
    wrong += [] if wanted is str or choices(kind, field.name) else ["many"]
    wrong += [] if wanted is bool else [True]
    wrong += [float("nan"), float("inf")] if wanted is float else []
    for value in wrong:
        with pytest.raises(WrongSetting, match=rf"\b{field.name} is "):
            instance(kind, **{field.name: value})


@pytest.mark.parametrize("name", [*list_probes(), *list_surgeries()])
def test_the_string_form_gives_the_same_again(name):
    probe = name in list_probes()
    parse, write = (parse_probe, write_probe) if probe else (parse_surgery, write_surgery)
    kind = KINDS[name]
    first = parse(example(kind, name))
    assert parse(write(first)) == first
    for field in fields(kind):
        for value in others(kind, field):
            try:
                other = replace(first, **{field.name: value})
            except WrongSetting:  # a rule between two settings
                continue
            assert parse(write(other)) == other
            assert parse(str(Specification(name, vars(other)))) == other


@pytest.mark.parametrize("name", list_recipes())
def test_the_string_form_of_a_recipe_gives_the_same_again(name):
    recipe = get_recipe(name)
    assert parse_recipe(write_recipe(recipe, name)) == recipe
    for kind in (Recipe, Augmentation):
        for field in fields(kind):
            for value in others(kind, field):
                try:
                    other = changed(recipe, {field.name: value})
                except WrongSetting:
                    continue
                assert parse_recipe(write_recipe(other, name)) == other


def others(kind, field) -> list:
    """Further values that a setting may have, odd texts among them."""
    wanted = hint(kind, field.name)
    if words := choices(kind, field.name):
        return list(words)
    allowed: Range = field.metadata["range"]
    near = [b for b in (allowed.at_least, allowed.at_most, 0.5, 3) if b is not None]
    values = {
        bool: [True, False],
        str: ["a, b=c:d[1].pth", "vit:depth=2,heads=3", "5", "None", "it's", ""],
        int: [int(n) for n in near if int(n) in allowed],
        float: [float(n) for n in near if n in allowed],
    }
    return values.get(wanted, [])


def test_make_checks_as_construction_does():
    for name, kind in KINDS.items():
        for field in fields(kind):
            if field.name not in OWN:
                needed = {"model": "a"} if kind is SubjectSpecification else {}
                needed |= {f.name: f.metadata["example"] for f in fields(kind) if is_required(f)}
                with pytest.raises(WrongSetting, match=f"{name}: .*{field.name} is "):
                    make(kind, needed | {field.name: object()}, name)


def test_a_setting_that_is_not_changed_is_not_written():
    assert written(Augmentation(), "augmentation") == "augmentation"
