"""The output format of ``forward_intermediates`` in our models."""

from __future__ import annotations


def check_maps(output_fmt: str) -> None:
    """Raise an error for any output format other than maps (NCHW)."""
    if output_fmt != "NCHW":
        raise ValueError(f"Intermediates come as maps, output_fmt='NCHW'; got {output_fmt!r}.")
