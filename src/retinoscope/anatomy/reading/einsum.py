"""Parses the letters of an einsum: which dimensions of which operands are summed."""

from __future__ import annotations

from collections.abc import Sequence
from string import ascii_uppercase


def parse_einsum(equation: str, ranks: Sequence[int]) -> tuple[list[str], str]:
    """The letters of each operand and of the result; an ellipsis becomes capital letters.

    Example:
        >>> parse_einsum("...id, ...jd -> ...ij", [3, 3])
        (['Zid', 'Zjd'], 'Zij')
        >>> parse_einsum("ij,jk", [2, 2])
        (['ij', 'jk'], 'ik')
    """
    left, arrow, out = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    hidden = [rank - len(term.replace("...", "")) for term, rank in zip(terms, ranks, strict=True)]
    free = [letter for letter in reversed(ascii_uppercase) if letter not in equation]
    spelt = "".join(free[: max([0, *hidden])][::-1])
    if not arrow:
        letters = sorted(left.replace(",", "").replace(".", ""))
        out = spelt + "".join(x for x in letters if letters.count(x) == 1)
    terms = [t.replace("...", spelt[len(spelt) - h :]) for t, h in zip(terms, hidden, strict=True)]
    return terms, out.replace("...", spelt)
