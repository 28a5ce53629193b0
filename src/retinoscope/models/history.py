"""Find the training that wrote a weights file."""

from __future__ import annotations

from pathlib import Path

from retinoscope.core.history import KIND, LOG, MARK


def find_history(weights: Path | str) -> Path | None:
    """Return the folder of the training that wrote a weights file; None if there is none.

    A training stores its snapshots in a subfolder of its own folder, so both the file's folder and
    its parent are searched. Whether the log is complete is not checked here.
    """
    # Resolve first, because the path of a bare file name has no parent folder.
    here = Path(weights).resolve().parent
    return next((folder for folder in (here, here.parent) if _is_training(folder)), None)


def _is_training(folder: Path) -> bool:
    """Return whether a folder is a training of ours; other tools use the same file names."""
    try:
        return (folder / LOG).is_file() and f'"{KIND}"' in (folder / MARK).read_text("utf-8")
    except (OSError, ValueError):
        return False
