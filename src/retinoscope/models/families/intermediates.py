"""States in the form in which timm's ``forward_intermediates`` gives them out."""

from __future__ import annotations


def check_maps(output_fmt: str) -> None:
    """Refuse another form than maps, where a network has nothing else."""
    if output_fmt != "NCHW":
        raise ValueError(f"Intermediates come as maps, output_fmt='NCHW'; got {output_fmt!r}.")
