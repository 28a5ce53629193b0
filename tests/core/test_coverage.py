"""Sentences about kinds of units: who is counted, who is not, and what a paper finds."""

import numpy as np
import pytest

from retinoscope.core.coverage import Claim, by_kind
from retinoscope.core.result import Result, answer, axes

PAPER = Claim("Park & Kim (2022)", lowers=("attention",), raises=("conv", "mlp"))


def test_units_that_subsample_are_counted_apart():
    kinds = ("stem", *["attention"] * 12, *["conv"] * 3)
    smaller = [False] * 10 + [True] * 3 + [True] * 3
    steps = np.array([np.nan, *[-1.0] * 8, 1.0, *[9.0] * 6])
    assert by_kind(kinds, smaller, steps, "the variance") == [
        "8 of 9 attention units lower the variance (median step −1; 3 that subsample are not "
        "counted)",
        "no conv unit is counted for the variance: 3 that subsample are not counted",
    ]


def test_units_without_a_step_are_said_too():
    steps = np.array([np.nan, -1.0])
    (said,) = by_kind(("mlp", "mlp"), (False, False), steps, "the variance")
    assert said.endswith("(median step −1; 1 whose input has no maps is not counted)")


@pytest.mark.parametrize(
    ("kind", "steps", "contradicts"),
    [
        ("attention", (1.0, 1.0, -1.0), "who find that attention units lower it"),
        ("attention", (-1.0, -1.0, 1.0), ""),
        ("attention", (-1.0, 1.0), ""),
        ("conv", (-1.0, -1.0, 1.0), "who find that conv units raise it"),
        ("mlp", (1.0, 1.0, -9.0), ""),
        ("token_mlp", (-1.0, -1.0), ""),
    ],
)
def test_what_contradicts_the_paper_says_so(kind, steps, contradicts):
    (said,) = by_kind((kind,) * len(steps), (), np.array(steps), "the variance", PAPER)
    assert said.endswith(contradicts)
    assert ("in contrast to Park & Kim (2022)" in said) == bool(contradicts)


@answer
class Steps(Result):
    """A step per unit, as a probe declares it."""

    step: np.ndarray = axes("unit", changes="the norm", claim=PAPER, title="Steps")


def test_a_claim_is_declared_with_the_array_and_outlives_its_file(tmp_path):
    from retinoscope.core.coverage import Coverage
    from retinoscope.core.result import load_described

    coverage = Coverage(("a", "b"), ("attention",) * 2, (1, 1), (False, False))
    found = Steps(coverage=coverage, step=np.array([1.0, 2.0]))
    assert "in contrast to Park & Kim (2022)" in found.findings()[0]
    found.save(tmp_path, "steps")
    assert load_described(tmp_path, "steps").findings() == found.findings()
