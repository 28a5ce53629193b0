"""Downloads in the report, as data URLs: numbers as CSV, results as JSON."""

from __future__ import annotations

import base64
import csv
import io
import json
import math
from typing import Any

from retinoscope.core.result import Result
from retinoscope.figures.figure import Figure


def as_json(result: Result) -> str:
    """A result as JSON for other programs; NaN becomes null.

    Images are omitted: as text they would be many times the size of the page. The run folder
    contains them.
    """
    images = {n for n, f in result.described().items() if f.metadata.get("draw") == "images"}
    arrays = {n: _nullable(a.tolist()) for n, a in result.arrays().items() if n not in images}
    head = {"probe": result.probe, "schema": result.schema, "findings": result.findings()}
    plain = head | result.values() | arrays
    return json.dumps(plain, ensure_ascii=False, indent=1, allow_nan=False)


def _nullable(value: Any) -> Any:
    if isinstance(value, list):
        return [_nullable(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def as_csv(figure: Figure) -> str:
    """The numbers of a figure as a table."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(figure.header)
    writer.writerows([_formula_safe(cell) for cell in row] for row in figure.rows)
    return buffer.getvalue()


def _formula_safe(cell: str) -> str:
    """Numbers unchanged; names that a spreadsheet would run as a formula get a leading quote."""
    plain = cell.replace("−", "-")
    try:
        float(plain)
    except ValueError:
        return f"'{cell}" if cell[:1] in "=+-@" else cell
    return plain


def address(kind: str, content: str) -> str:
    """A file as a data URL."""
    return f"data:{kind};base64,{base64.b64encode(content.encode()).decode()}"
