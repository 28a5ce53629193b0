"""What tells how a model was trained: two files, wherever they lie beside its weights."""

from __future__ import annotations

MARK, LOG = "training.json", "log.jsonl"
"""The recipe, the data and the steps; a line per epoch."""
KIND = "retinoscope training"
"""The key in :data:`MARK` that says it is ours; its value is the layout."""
SCHEMA = 1
