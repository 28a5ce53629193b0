from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pytest

from retinoscope.core.catalogue import class_of, entries, name_of
from retinoscope.core.settings import (
    WrongSetting,
    check,
    choices,
    described,
    make,
    setting,
    written,
)
from retinoscope.probes import parse_probe
from retinoscope.probes.variance import Variance


@dataclass(frozen=True)
class Knobs:
    count: int = field(metadata={"help": "How many."})
    share: float = setting(0.5, "How much.", at_least=0, at_most=1)
    mode: Literal["up", "down"] = "up"
    row: tuple[int, ...] = setting((), "Several.", at_least=1)
    loud: bool = False
    side: int | None = None
    pair: tuple[int, int] | None = None

    def __post_init__(self):
        if self.count < 0:
            raise ValueError(f"count is 0 or more; got {self.count}.")


def test_values_are_taken_as_the_fields_want_them():
    made = make(Knobs, {"count": 3, "share": 1, "row": [1, 2], "side": None}, "knobs")
    assert made == Knobs(3, 1.0, row=(1, 2))
    assert isinstance(made.share, float)
    assert make(Knobs, {"count": 1, "row": 4}, "knobs").row == (4,)
    assert choices(Knobs, "mode") == ("up", "down")
    assert choices(Knobs, "count") == ()


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({}, r"knobs needs count: How many. Write it as knobs:count=…"),
        ({"count": 1, "shares": 1}, r"no setting 'shares'. Did you mean 'share'\?"),
        ({"count": "many"}, "count is an integer; got 'many'"),
        ({"count": True}, "count is an integer; got True"),
        ({"count": 1, "share": "half"}, "share is a number; got 'half'"),
        ({"count": 1, "mode": "left"}, "mode is one of up, down; got 'left'"),
        ({"count": 1, "row": (1, 0.5)}, r"row is a tuple of integers, .* got \(1, 0.5\)"),
        ({"count": 1, "loud": 1}, "loud is True or False; got 1"),
        ({"count": 1, "side": "a"}, "side is an integer; got 'a'"),
        ({"count": -1}, "knobs: count is 0 or more; got -1"),
        ({"count": 1, "share": 2}, "knobs: share is from 0 to 1; got 2.0"),
        ({"count": 1, "share": float("nan")}, "share is a finite number; got nan"),
        ({"count": 1, "row": (1, 0)}, r"row is a tuple of numbers, each 1 or more; got \(1, 0\)"),
        ({"count": 1, "pair": (1, 2, 3)}, r"pair is a tuple of 2 integers, such as pair=\(1, 1"),
    ],
)
def test_what_does_not_fit_is_refused(given, says):
    with pytest.raises(WrongSetting, match=says):
        make(Knobs, given, "knobs")


def test_everything_that_does_not_fit_is_told_at_once():
    @dataclass(frozen=True)
    class Two:
        low: int = setting(1, "", at_least=1)
        word: Literal["a", "b"] = setting("a", "")

        def __post_init__(self):
            check(self, "two")

    with pytest.raises(
        WrongSetting, match=r"^two: low is 1 or more; got 0\. word is one of a, b; g"
    ):
        Two(0, "c")


def test_only_what_differs_is_written():
    assert written(Knobs(3, row=(1, 2)), "knobs") == "knobs:count=3,row=(1, 2)"


def test_settings_describe_themselves():
    rows = {row.name: row for row in described(Knobs)}
    assert rows["count"] == ("count", "an integer", "required", "How many.")
    assert rows["mode"][1:3] == ("up | down", "up")
    assert rows["side"].default == "not set"
    assert rows["share"].values == "a number, from 0 to 1"
    assert rows["row"].values == "a tuple of integers, 1 or more"


def test_rooms_list_their_files():
    import retinoscope.probes

    assert "variance" in entries(retinoscope.probes.__path__)
    assert "variance" not in entries(retinoscope.probes.__path__, ["variance"])
    assert class_of("retinoscope.probes", "variance") is Variance
    assert name_of(Variance()) == name_of(Variance) == "variance"


def test_numbers_of_numpy_and_paths_are_taken_as_ours():
    import numpy as np

    from retinoscope.probes.landscape import Landscape
    from retinoscope.run.specification import SubjectSpecification

    assert type(Landscape(radius=np.float64(0.5)).radius) is float
    assert type(Landscape(points=np.int64(5)).points) is int
    made = SubjectSpecification("resnet50", weights=Path("a.pth"), seed=np.int64(3))
    assert (made.weights, made.seed) == ("a.pth", 3)
    with pytest.raises(WrongSetting, match="points is an integer"):
        Landscape(points=np.float64(5.0))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("landscape:towards=b", "It is now called target: landscape:target=b"),
        ("landscape:and_towards=b", "It is now called second_target"),
        ("landscape:reach=0.5", "It is now called radius: landscape:radius=0.5"),
        ("trajectory:at_most=9", "It is now called max_images: trajectory:max_images=9"),
    ],
)
def test_a_renamed_setting_is_refused_with_its_new_name(text, says):
    with pytest.raises(WrongSetting, match=f"has no setting .*{says}"):
        parse_probe(text)
    with pytest.raises(WrongSetting, match=r"no setting 'reach'\. Its settings"):
        parse_probe("variance:reach=1")  # which never had one
