"""Tables of figures as plain text, and the page around those of HTML reports."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from vitascope.gpu.profiling.span_tree import SpanStats

__all__ = ["html_page", "megabytes", "milliseconds", "span_table", "text_table"]


def milliseconds(seconds: float | None) -> str:
    """A duration for a table; a dash where there is none."""
    if seconds is None:
        return "-"
    value = seconds * 1e3
    return f"{value:.3f}" if value < 10 else f"{value:.1f}"


def megabytes(nbytes: float | None) -> str:
    """A size in MB (10^6) for a table; a dash where there is none."""
    return "-" if nbytes is None else f"{nbytes / 1e6:.1f}"


def text_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns under heads: the first to the left, figures to the right."""
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]

    def line(cells: Sequence[str]) -> str:
        aligned = [
            cell.ljust(width) if n == 0 else cell.rjust(width)
            for n, (cell, width) in enumerate(zip(cells, widths, strict=True))
        ]
        return "  ".join(aligned).rstrip()

    return "\n".join([line(heads), line(["-" * width for width in widths]), *map(line, rows)])


def span_table(title: str, stats: Sequence[SpanStats], *, wall_seconds: float) -> str:
    """Spans as a tree, times in milliseconds; the column of the GPU only where it was timed."""
    if not stats:
        return f"{title}: no span has ended yet"
    on_gpu = any(row.gpu is not None for row in stats)
    heads = ["span", "count", "total ms", "self ms", "cpu ms", "mean ms", "p50 ms", "p95 ms", "p99 ms"]
    heads += ["max ms", *(["gpu ms", "gpu mean ms"] if on_gpu else []), "share"]
    rows = []
    for row in stats:
        gpu = (row.gpu.total_seconds, row.gpu.mean_seconds) if row.gpu else (None, None)
        times = (
            row.total_seconds,
            row.self_seconds,
            row.cpu_seconds,
            row.mean_seconds,
            row.p50_seconds,
            row.p95_seconds,
            row.p99_seconds,
            row.max_seconds,
        )
        rows.append(
            [
                "  " * (len(row.path) - 1) + row.name,
                str(row.count),
                *map(milliseconds, times),
                *(map(milliseconds, gpu) if on_gpu else ()),
                f"{row.total_seconds / wall_seconds:.1%}" if wall_seconds else "-",
            ]
        )
    return f"{title}: {wall_seconds:.3f} s\n" + text_table(heads, rows)


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
    """A page of its own: no script, no network, readable on a phone, printable.

    Args:
        title: Also the first heading.
        body: HTML; tables and drawings stand in ``<div class="wide">``, which scrolls sideways.
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
