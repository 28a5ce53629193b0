"""Background colours for kinds of units, the same in figures and in the report.

Grey for attention and blue for subsampling are those of Park & Kim (2022, arXiv:2202.06709).
Nothing here needs matplotlib.
"""

from __future__ import annotations

BANDS = {
    "attention": "#d4d4d4",
    "channel_attention": "#e3d9ea",
    "token_mlp": "#f7edcb",
    "pool": "#dceaf7",
    "subsampling": "#c3dbf0",
    "other": "#f8dedb",
    "stem": "#f4f4f4",
}
