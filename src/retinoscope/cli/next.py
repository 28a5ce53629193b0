"""The command to go on with, as it can be typed in the same folder."""

from __future__ import annotations

import shlex
from pathlib import Path


def examine_command(weights: Path | str) -> str:
    """The command that examines a file which ``build``, ``train`` or ``search`` has written."""
    from retinoscope.models.built_file import names_code, read_construction

    way = read_construction(Path(weights))
    # Of a model that is code, a file of weights alone is no name.
    code = way is not None and names_code(way.model)
    named = [way.model, "--weights", str(weights)] if way and code else [str(weights)]
    return shlex.join(["retinoscope", "examine", *named])
