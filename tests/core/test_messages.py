"""Errors that name a flag name the Python call as well: a library is not only its commands."""

import ast
import re
from pathlib import Path

import pytest

import retinoscope

ROOMS = ("core", "data", "models", "train")
_FLAG = re.compile(r"--[a-z]")
_COMMAND = re.compile(r"retinoscope [a-z]+ .*--[a-z]|--nproc-per-node")
"""A whole command, which is not for Python."""


def messages(file: Path):
    """What is raised in a file, as text without its values."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Raise) and node.exc is not None:
            parts = [n.value for n in ast.walk(node.exc) if isinstance(n, ast.Constant)]
            yield node.lineno, " ".join(part for part in parts if isinstance(part, str))


@pytest.mark.parametrize("room", ROOMS)
def test_a_flag_comes_with_its_keyword(room):
    folder = Path(retinoscope.__file__).parent / room
    lacking = [
        f"{file.relative_to(folder)}:{line}: {text}"
        for file in sorted(folder.rglob("*.py"))
        for line, text in messages(file)
        if _FLAG.search(text) and not _COMMAND.search(text) and "Python" not in text
    ]
    assert lacking == []
