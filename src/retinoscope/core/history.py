"""The two files that record how a model was trained; they are stored next to its weights."""

from __future__ import annotations

MARK, LOG = "training.json", "log.jsonl"
"""The recipe, the data and the number of steps; the log, with one line per epoch."""
KIND = "retinoscope training"
"""The key in :data:`MARK` that identifies a training; its value is the layout version."""
SCHEMA = 1
