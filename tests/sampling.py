"""A sweep over many cases: a sample of them in every run, all others with ``make prove``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

PROOF = pytest.mark.proof


def sampled(cases: Iterable[Any], *sample: Any) -> list[Any]:
    """All cases for ``parametrize``; those that are not in the sample are proofs.

    Args:
        cases: Names, or rows that begin with one.
        sample: The names that every run takes.
    """
    rows = [case if isinstance(case, tuple) else (case,) for case in cases]
    missing = set(sample) - {row[0] for row in rows}
    assert not missing, f"no cases: {missing}"
    return [pytest.param(*row, marks=[] if row[0] in sample else [PROOF]) for row in rows]
