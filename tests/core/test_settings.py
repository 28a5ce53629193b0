from dataclasses import dataclass, field
from typing import Literal

import pytest

from retinoscope.core.catalogue import class_of, entries, name_of
from retinoscope.core.settings import WrongSetting, choices, described, make
from retinoscope.probes.variance import Variance


@dataclass(frozen=True)
class Knobs:
    count: int = field(metadata={"help": "How many."})
    share: float = 0.5
    mode: Literal["up", "down"] = "up"
    row: tuple[int, ...] = ()
    loud: bool = False
    side: int | None = None

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
        ({"count": "many"}, "count is a whole number; got 'many'"),
        ({"count": True}, "count is a whole number; got True"),
        ({"count": 1, "share": "half"}, "share is a number; got 'half'"),
        ({"count": 1, "mode": "left"}, "mode is one of up, down; got 'left'"),
        ({"count": 1, "row": (1, 0.5)}, r"row is a row of int, .* got \(1, 0.5\)"),
        ({"count": 1, "loud": 1}, "loud is True or False; got 1"),
        ({"count": 1, "side": "a"}, "side is a whole number; got 'a'"),
        ({"count": -1}, "knobs: count is 0 or more; got -1"),
    ],
)
def test_what_does_not_fit_is_refused(given, says):
    with pytest.raises(WrongSetting, match=says):
        make(Knobs, given, "knobs")


def test_settings_describe_themselves():
    rows = {name: (default, text) for name, default, text in described(Knobs)}
    assert rows["count"] == ("required", "How many.")
    assert rows["mode"] == ("up", " One of: up, down.")
    assert rows["side"][0] == "not set"


def test_rooms_list_their_files():
    import retinoscope.probes

    assert "variance" in entries(retinoscope.probes.__path__)
    assert "variance" not in entries(retinoscope.probes.__path__, ["variance"])
    assert class_of("retinoscope.probes", "variance") is Variance
    assert name_of(Variance()) == name_of(Variance) == "variance"
