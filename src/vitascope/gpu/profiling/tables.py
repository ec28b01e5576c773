"""Format tables as plain text, and HTML pages around them."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape


def milliseconds(seconds: float | None) -> str:
    """Format a duration in ms; a dash for None."""
    if seconds is None:
        return "-"
    value = seconds * 1e3
    return f"{value:.3f}" if value < 10 else f"{value:.1f}"


def megabytes(nbytes: float | None) -> str:
    """Format a size in MB (10^6); a dash for None."""
    return "-" if nbytes is None else f"{nbytes / 1e6:.1f}"


def text_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Format columns under headings: the first is left-aligned, figures are right-aligned."""
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]

    def line(cells: Sequence[str]) -> str:
        aligned = [
            cell.ljust(width) if n == 0 else cell.rjust(width)
            for n, (cell, width) in enumerate(zip(cells, widths, strict=True))
        ]
        return "  ".join(aligned).rstrip()

    return "\n".join([line(heads), line(["-" * width for width in widths]), *map(line, rows)])


_STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; margin: 1.2rem; color: #222; background: #fff; overflow-wrap: anywhere; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .15rem .7rem; text-align: right; white-space: nowrap; border-bottom: 1px solid #e3e6ea; }
th:first-child, td:first-child { text-align: left; }
svg { display: block; max-width: none; height: auto; }
@media screen and (max-width: 700px) { body { margin: .8rem; } svg { width: 600px; } }
@media print {
  .wide { overflow: visible; } svg { max-width: 100%; max-height: 25cm; } body { font-size: 10px; margin: 0; }
}
"""


def html_page(title: str, body: str, *, style: str = "") -> str:
    """Make a self-contained page: without scripts or network access, readable on a phone, printable.

    Args:
        title: Title of the page and its first heading.
        body: HTML; put tables and drawings into ``<div class="wide">``, which scrolls sideways.
        style: More CSS.
    """
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<style>{_STYLE}{style}</style>
</head>
<body>
<h1>{escape(title)}</h1>
{body}
</body>
</html>
"""
