"""HTML and SVG elements with escaped attributes and texts."""

from __future__ import annotations

from markupsafe import Markup, escape


def tag(name: str, *children: str | Markup, **attributes: object) -> Markup:
    """An element; trailing underscores of attribute names are dropped, others become hyphens.

    Example:
        >>> tag("b", "1 < 2", class_="x", data_unit='"')
        Markup('<b class="x" data-unit="&#34;">1 &lt; 2</b>')
    """
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(_short(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    inside = Markup("").join(escape(child) for child in children)
    return Markup(f"<{name}{written}>{inside}</{name}>")


def _short(value: object) -> object:
    """Coordinates with two decimals: more are not visible."""
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else value
