"""Where weights come from: the training that a file of weights belongs to."""

from __future__ import annotations

from pathlib import Path

from retinoscope.core.history import KIND, LOG, MARK


def find_history(weights: Path | str) -> Path | None:
    """The folder of the training that wrote a file of weights; None where there is none.

    A training keeps its snapshots in a folder within its own, so the file's folder and the one
    above are looked into. Whether the log is whole is for its reader to say.
    """
    # Resolved: the folder above that of a bare file name is not in the path itself.
    here = Path(weights).resolve().parent
    return next((folder for folder in (here, here.parent) if _is_training(folder)), None)


def _is_training(folder: Path) -> bool:
    """Whether a folder holds a training of ours: others give their files the same names."""
    try:
        return (folder / LOG).is_file() and f'"{KIND}"' in (folder / MARK).read_text("utf-8")
    except (OSError, ValueError):
        return False
