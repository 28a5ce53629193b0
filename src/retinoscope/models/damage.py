"""Explain from its size and first bytes why a weights file cannot be read, and what to do."""

from __future__ import annotations

from pathlib import Path

from retinoscope.core.errors import UnreadableFile

_READ_AGAIN = "Copy or download it again."
_FORMS = "Weights are a .safetensors file, or a .pth file that torch.save wrote."
_BEGINNINGS = (
    (
        b"version https://git-lfs",
        "it is a pointer of Git LFS, not the file itself",
        "Fetch the file with: git lfs pull",
    ),
    (b"<", "it is a web page or another text, so a download may have gone wrong", _READ_AGAIN),
    (b"\x1f\x8b", "it is packed by gzip", "Unpack it with: gunzip"),
    (b"PK", "it is cut off or damaged", _READ_AGAIN),
    (b"\x80", "it is cut off or damaged", _READ_AGAIN),
)
"""The first bytes of a file, what they show, and what to do."""
_HEAD = 64


def unreadable(path: Path) -> UnreadableFile:
    """Return our own error for a weights file that its reader has refused.

    The reader's message is not passed on: even for files that are only damaged, torch advises
    disabling the check that keeps a file from running code.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            head = file.read(_HEAD)
    except OSError as error:
        what = error.strerror or type(error).__name__
        return UnreadableFile(f"{str(path)!r} cannot be read as weights: {what}.")
    what, way = _judged(path, head)
    return UnreadableFile(
        f"{str(path)!r} ({size:,} bytes) cannot be read as weights: {what}. {way} {_FORMS}"
    )


def _judged(path: Path, head: bytes) -> tuple[str, str]:
    if not head:
        return "it is empty", _READ_AGAIN
    for beginning, what, way in _BEGINNINGS:
        if head.startswith(beginning):
            return what, way
    # A .safetensors file starts with the length of its header in 8 bytes, then the JSON header.
    if path.suffix == ".safetensors" and head[8:9] == b"{":
        return "it is cut off or damaged", _READ_AGAIN
    return "it is damaged, or no file of weights at all", _READ_AGAIN
