"""The one string form for models and surgeries: ``name:key=value,key=value``."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from retinoscope.core.errors import RetinoscopeError


class MalformedSpecification(RetinoscopeError, ValueError):
    """A string is not of the form ``name:key=value,key=value``."""


@dataclass(frozen=True)
class Specification:
    """A name and its options.

    Values are read as Python literals (numbers, ``True``, ``None``, tuples); anything else is text.

    Example:
        >>> Specification.parse("vit_tiny_patch16_224:img_size=32,window=(2, 2),pool=avg")
        Specification(name='vit_tiny_patch16_224', \
options={'img_size': 32, 'window': (2, 2), 'pool': 'avg'})
        >>> str(Specification("resnet50", {"num_classes": 10}))
        'resnet50:num_classes=10'
    """

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> Specification:
        """Read ``name`` or ``name:key=value,key=value``; the name may contain colons itself."""
        name, colon, tail = text.rpartition(":")
        if not colon or "=" not in tail.split(",")[0]:
            name, tail = text, ""
        if not name:
            raise MalformedSpecification(
                f"{text!r} has no name. Write it as name:key=value,key=value"
            )
        return cls(name, _options(tail, text))

    @classmethod
    def parse_first(cls, text: str) -> Specification:
        """The same for names without colons: all behind the first one are options.

        Example:
            >>> Specification.parse_first("deit:teacher=torchvision:resnet50").options
            {'teacher': 'torchvision:resnet50'}
        """
        name, _, tail = text.partition(":")
        return cls(name, _options(tail, text))

    def __str__(self) -> str:
        options = ",".join(f"{key}={value}" for key, value in self.options.items())
        return f"{self.name}:{options}" if options else self.name


def _options(tail: str, whole: str) -> dict[str, Any]:
    return dict(_option(part, whole) for part in _split(tail))


def _split(text: str) -> list[str]:
    """Split at commas that are not inside brackets."""
    return re.findall(r"(?:[^,(\[]|\([^)]*\)|\[[^\]]*\])+", text)


def _option(part: str, whole: str) -> tuple[str, Any]:
    key, equals, value = (piece.strip() for piece in part.partition("="))
    if not equals or not key.isidentifier():
        raise MalformedSpecification(
            f"{part!r} in {whole!r} is not of the form key=value. "
            "Write options as name:key=value,key=value"
        )
    try:
        return key, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return key, value
