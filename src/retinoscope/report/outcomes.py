"""The outcome of each probe: measured, unfinished, not applicable or failed; unreadable images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from retinoscope.report.collect import Examined


def table_rows(subject: Examined) -> list[dict[str, Any]]:
    """One row for every measured and every skipped probe."""
    rows = []
    for measured in subject.measured:
        result, note = measured.result, measured.note
        rows.append({
            "subject": subject.name, "probe": result.probe, "status": "measured",
            "images": str(result.values().get("images", result.protocol.get("images", ""))),
            "units": str(len(result.units) or ""),
            "pieces": str(note.get("pieces", "")), "seconds": str(note.get("seconds", "")),
            "remarks": [
                *_in_one_pass(note.get("shared", ())),
                *note.get("warnings", ()),
                *(f"unit {unit} not measured: {why}" for unit, why in result.skipped),
                *(f"repeated: {text}" for text in note.get("redone", ())),
                *note.get("notices", ()),
            ],
        })  # fmt: skip
    for one in subject.unfinished:
        status = f"unfinished, {one.get('done', 0)} of {one.get('pieces', '?')}"
        rows.append(_no_result(subject, one, status))
    for one in subject.skipped:
        status = one.get("status", "not applicable")
        verb = "it " if status == "not applicable" else ""
        rows.append(_no_result(subject, one, status, f"{verb}{one.get('reason', '')}"))
    return rows


def _no_result(
    subject: Examined, one: dict[str, Any], status: str, *remarks: str
) -> dict[str, Any]:
    return {
        "subject": subject.name, "probe": one.get("probe", ""), "status": status,
        "images": "", "units": "", "pieces": "", "seconds": "", "remarks": list(remarks),
    }  # fmt: skip


def _in_one_pass(shared: Sequence[str]) -> list[str]:
    """A note if the seconds of a row are those of a pass for several probes."""
    return (
        [f"in one pass with {', '.join(shared)}; the seconds are for the whole pass"]
        if shared
        else []
    )


def unfinished(examined: Sequence[Examined]) -> list[tuple[str, str, str]]:
    """Model, probe, and number of finished pieces."""
    return [
        (subject.name, str(one.get("probe")), f"{one.get('done', 0)} of {one.get('pieces', '?')}")
        for subject in examined
        for one in subject.unfinished
    ]


def warnings(examined: Sequence[Examined]) -> list[str]:
    """Warnings about results, without duplicates."""
    return list(dict.fromkeys(
        str(text)
        for subject in examined
        for measured in subject.measured
        for text in measured.note.get("warnings", ())
    ))  # fmt: skip


def set_aside(examined: Sequence[Examined]) -> list[tuple[str, str, str]]:
    """Images that could not be read: data, image, reason."""
    found = dict.fromkeys(
        (str(measured.result.protocol.get("data", "")), str(image), str(reason))
        for subject in examined
        for measured in subject.measured
        for image, reason in measured.result.protocol.get("set aside", ())
    )
    return list(found)
