"""The one string form of models, data, probes, surgeries and recipes: ``name:key=value,key=value``.

===================================  =============================================================
``resnet50``                         a name alone
``torchvision:resnet50``             a name may contain colons; options start at the first ``:key=``
``hessian:k=10,blocks=stage``        options; values are Python literals, anything else is text
``swin:window=(7, 7)``               brackets protect the commas inside them
``similarity:other=[vit:depth=2]``   text in square brackets is a nested name, without the brackets
``deit:teacher='a, b.pth'``          quotes protect everything
``runs/lr=0.1,b/end.safetensors``    text that names an existing file is that file
``./rank.py:EffectiveRank:k=3``      a class or function in a file, with options
``mine=resnet50``                    a label for a model, see :func:`split_label`
===================================  =============================================================
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from retinoscope.core.errors import RetinoscopeError

_PAIRS = {"(": ")", "[": "]", "{": "}"}
_OPTION = re.compile(r"\s*[^\W\d]\w*\s*=")
_LABEL = re.compile(r"([A-Za-z0-9_.-]+)=(?=[^=\s])")
_BEFORE_QUOTE = set("=,:([{ \t")
"""A quotation mark after one of these opens a quote; elsewhere it is an apostrophe."""


class MalformedSpecification(RetinoscopeError, ValueError):
    """A string does not have the form ``name:key=value,key=value``."""


@dataclass(frozen=True)
class Specification:
    """A name and its options.

    Example:
        >>> Specification.parse("vit_tiny_patch16_224:img_size=32,window=(2, 2),pool=avg")
        Specification(name='vit_tiny_patch16_224', \
options={'img_size': 32, 'window': (2, 2), 'pool': 'avg'})
        >>> Specification.parse("similarity:other=[torchvision:vit_b_16:num_classes=10]").options
        {'other': 'torchvision:vit_b_16:num_classes=10'}
        >>> str(Specification("similarity", {"other": "vit:depth=2,heads=3", "k": 5}))
        'similarity:other=[vit:depth=2,heads=3],k=5'
    """

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str, *, colons: bool = True) -> Specification:
        """Parse the output of :meth:`__str__`, or text that a user typed.

        Args:
            text: ``name`` or ``name:key=value,key=value``; the path of an existing file is a name,
                whatever characters it contains.
            colons: Whether names of this kind may contain colons; if not, a colon starts the
                options.
        """
        file = _existing(text) if colons else ""
        name, tail = _split_name(text, len(file))
        if not name:
            raise MalformedSpecification(
                f"{text!r} has no name. Write it as name:key=value,key=value"
            )
        if not colons and not file and ":" in name:
            raise _not_an_option(name.partition(":")[2], text)
        return cls(name, _options(tail, text))

    def __str__(self) -> str:
        options = ",".join(f"{key}={_write(value)}" for key, value in self.options.items())
        name = self.name if _is_plain_name(self.name) else repr(self.name)
        return f"{name}:{options}" if options else name


def split_label(text: str) -> tuple[str | None, str]:
    """Split an optional label from a model's name; the label is None if there is none.

    A label consists of letters, digits, ``_``, ``.`` and ``-``. If the whole text is the path of an
    existing file, it is not split.

    Example:
        >>> split_label("mine=resnet50:num_classes=10")
        ('mine', 'resnet50:num_classes=10')
        >>> split_label("resnet50:num_classes=10")
        (None, 'resnet50:num_classes=10')
    """
    found = _LABEL.match(text)
    if found is None or len(_existing(text)) >= found.end():
        return None, text
    return found[1], text[found.end() :]


def short_name(text: str, folders: int = 0) -> str:
    """A model's name for tables and titles: files without the folders that they are in.

    Args:
        text: The name as it was given.
        folders: How many of the folders to keep.

    Example:
        >>> short_name("/home/me/net.py:build:depth=2")
        'net.py:build:depth=2'
        >>> short_name("runs/wide/snapshots/end.safetensors")
        'wide/end'
        >>> short_name("net.py:build:weights=runs/wide/snapshots/end.safetensors")
        'net.py:build (wide/end)'
    """
    asked = Specification.parse(text)
    options = dict(asked.options)
    weights = options.pop("weights", None)
    prefix, path = ("hf:", asked.name[3:]) if asked.name.startswith("hf:/") else ("", asked.name)
    name = Specification(f"{prefix}{_last(path, folders)}", options)
    shown = str(name) if options else name.name
    return shown if weights is None else f"{shown} ({_last(str(weights), folders)})"


def short_names(names: Sequence[str]) -> list[str]:
    """Short names of models, with as many folders as tell them apart.

    Example:
        >>> short_names(["a/net.py:build", "b/net.py:build", "resnet50"])
        ['a/net.py:build', 'b/net.py:build', 'resnet50']
    """
    shown = [short_name(name) for name in names]
    for folders in range(1, max((name.count("/") for name in names), default=0) + 1):
        if len(set(shown)) == len(set(names)):
            break
        shown = [
            short_name(name, folders) if shown.count(now) > 1 else now
            for name, now in zip(names, shown, strict=True)
        ]
    return shown


def _last(path: str, folders: int) -> str:
    """The end of a path; that of a snapshot is the name of its training and its own."""
    parts = path.split("/")
    if len(parts) > 2 and parts[-2] == "snapshots":
        parts = [*parts[:-2], parts[-1].rpartition(".")[0]]
        folders += 1
    return "/".join(parts[-1 - folders :])


def _existing(text: str) -> str:
    """The longest prefix of the text, up to a colon or its end, that is the path of a file."""
    ends = [len(text), *(i for i in range(len(text) - 1, 0, -1) if text[i] == ":")]
    return next((text[:end] for end in ends if text[:end] and os.path.exists(text[:end])), "")


def _split_name(text: str, known: int = 0) -> tuple[str, str]:
    """The name and the text of its options; the first ``known`` characters are part of the name."""
    if not known:
        text = text.strip()
        if _enclosed(text):
            return _split_name(text[1:-1])
    start = known
    name = text[:known]
    if not known and text[:1] in ("'", '"'):
        start = _quote_end(text, 0)
        name = _unquoted(text[:start], text)
        if text[start : start + 1] not in ("", ":"):
            raise MalformedSpecification(f"A colon must follow the quoted name in {text!r}.")
    for at, character in _outside(text, start):
        if character == ":" and _OPTION.match(text, at + 1):
            return name + text[start:at].rstrip(), text[at + 1 :]
    return name + text[start:], ""


def _outside(text: str, start: int = 0) -> Iterator[tuple[int, str]]:
    """The characters outside brackets and quotes, with their indices."""
    closing: list[str] = []
    at = start
    while at < len(text):
        character = text[at]
        if character in "'\"" and at > start and text[at - 1] in _BEFORE_QUOTE:
            at = _quote_end(text, at)
            continue
        if character in _PAIRS:
            closing.append(_PAIRS[character])
        elif character in _PAIRS.values():
            if not closing or closing.pop() != character:
                raise MalformedSpecification(
                    f"{character!r} in {text!r} closes no open bracket. Put text with unbalanced "
                    "brackets in quotes: key='…'"
                )
        elif not closing:
            yield at, character
        at += 1
    if closing:
        raise MalformedSpecification(
            f"{text!r} lacks {closing[-1]!r}. Put text with unbalanced brackets in quotes: key='…'"
        )


def _quote_end(text: str, start: int) -> int:
    """The index after the quote that opens at ``start``."""
    at = start + 1
    while at < len(text) and text[at] != text[start]:
        at += 2 if text[at] == "\\" else 1
    if at >= len(text):
        raise MalformedSpecification(f"The quote {text[start:]!r} is not closed.")
    return at + 1


def _unquoted(quoted: str, whole: str) -> str:
    try:
        return ast.literal_eval(quoted)
    except (ValueError, SyntaxError):
        raise MalformedSpecification(f"{quoted} in {whole!r} is not a quoted text.") from None


def _enclosed(text: str) -> bool:
    """Whether one pair of square brackets encloses the whole text."""
    if not text.startswith("[") or not text.endswith("]"):
        return False
    try:
        # Everything is inside the first bracket, up to the last character.
        list(_outside(text[1:-1]))
    except MalformedSpecification:
        return False
    return True


def _options(tail: str, whole: str) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for part in _split_options(tail):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or not key.isidentifier():
            raise _not_an_option(part, whole)
        if key in options:
            raise MalformedSpecification(f"{key} is given twice in {whole!r}. Name it once.")
        options[key] = _read(value)
    return options


def _split_options(tail: str) -> list[str]:
    commas = [at for at, character in _outside(tail) if character == ","]
    starts, ends = [0, *(at + 1 for at in commas)], [*commas, len(tail)]
    parts = [tail[start:end] for start, end in zip(starts, ends, strict=True)]
    return [part for part in parts if part.strip()]


def _not_an_option(part: str, whole: str) -> MalformedSpecification:
    return MalformedSpecification(
        f"{part!r} in {whole!r} is not of the form key=value. "
        "Write options as name:key=value,key=value"
    )


def _read(value: str) -> Any:
    """A Python literal, a nested name without its brackets, or the text itself."""
    try:
        return ast.literal_eval(value)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return value[1:-1].strip() if _enclosed(value) else value


def _write(value: Any) -> str:
    """The simplest form that is parsed as this value."""
    if not isinstance(value, str):
        return repr(value)
    for form in (value, f"[{value}]"):
        try:
            if _options(f"a={form},b=0", "") == {"a": value, "b": 0}:
                return form
        except MalformedSpecification:
            continue
    return repr(value)


def _is_plain_name(name: str) -> bool:
    try:
        return _split_name(f"{name}:a=0") == (name, "a=0") and _split_name(name) == (name, "")
    except MalformedSpecification:
        return False
