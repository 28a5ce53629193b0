import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retinoscope.core.anatomy import Anatomy
from retinoscope.core.errors import UnknownUnit, UnreadableFile
from retinoscope.core.unit import Grid, Kind, Unit

UNIT = Unit(
    "layer1.0", Kind.CONV, 1, 1, True, False, Grid("NCHW", 8, 6), 16, 100, 2000, "layer1.0.bn2"
)
STEM = Unit("conv1", Kind.STEM, None, 0, False, True, Grid("NCHW", 8, 6), 16, 10, 100)
HEAD = Unit("fc", Kind.HEAD, None, 2, False, False, None, 10, 20, 40)
ANATOMY = Anatomy("toy", (STEM, replace(UNIT, inner=(replace(UNIT, name="inside"),)), HEAD))

names = st.text(min_size=1, max_size=20)
numbers = st.integers(0, 10**15)
grids = st.builds(
    Grid,
    st.sampled_from(["NCHW", "NHWC", "tokens", "windows"]),
    st.integers(1, 99),
    st.integers(1, 99),
    st.integers(0, 9),
)
leaves = st.builds(
    Unit, names, st.sampled_from(Kind), st.none() | st.integers(1, 9), st.integers(0, 99),
    st.booleans(), st.booleans(), st.none() | grids, numbers, numbers, numbers, st.none() | names,
)  # fmt: skip
units = st.builds(
    lambda unit, inner: replace(unit, inner=tuple(inner)), leaves, st.lists(leaves, max_size=4)
)


@settings(max_examples=30, deadline=None)
@given(st.builds(Anatomy, names, st.lists(units, max_size=8).map(tuple), weights=names))
def test_reads_back_equal(anatomy):
    assert Anatomy.from_json(anatomy.to_json()) == anatomy


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "not JSON"),
        ("[]", "no schema number"),
        ('{"units": []}', "no schema number"),
        ('{"schema": 999}', "schema 999, but this version reads 1"),
        ('{"schema": 1, "model": "x"}', "damaged: KeyError"),
        (ANATOMY.to_json().replace('"stem"', '"stern"'), "damaged: ValueError"),
        (ANATOMY.to_json().replace('"depth"', '"length"'), "damaged: TypeError"),
    ],
)
def test_refuses_what_it_did_not_write(text, says):
    with pytest.raises(UnreadableFile, match=says):
        Anatomy.from_json(text)


def test_schema_stands_in_the_file():
    assert json.loads(ANATOMY.to_json())["schema"] == Anatomy.schema


def test_finds_units_by_name_and_by_property():
    assert ANATOMY["layer1.0"].kind is Kind.CONV
    assert ANATOMY["inside"].name == "inside"
    assert [u.name for u in ANATOMY.where(kind="conv", stage=1)] == ["layer1.0"]
    assert [u.name for u in ANATOMY.where(kind=[Kind.STEM, Kind.HEAD])] == ["conv1", "fc"]
    assert len(ANATOMY.where(residual=True)) == 1
    assert ANATOMY.where(stage=2).units == ()


def test_unknown_unit_offers_the_nearest():
    with pytest.raises(
        UnknownUnit, match=r"toy has no unit 'layer1\.1'\. Did you mean 'layer1\.0'\?"
    ):
        ANATOMY["layer1.1"]
    with pytest.raises(UnknownUnit, match="List all 4 with: retinoscope anatomy toy"):
        ANATOMY["zzz"]


def test_prints_every_unit():
    text = str(ANATOMY)
    assert "toy (unknown), 3×224×224: 1 stem, 1 conv, 1 head" in text
    assert "  layer1.0: conv +, stage 1, 8×6, 16 channels\n    inside" in text
    assert "fc: head, no grid" in text
