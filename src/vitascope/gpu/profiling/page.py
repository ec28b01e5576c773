"""A profile as one HTML page: no script, no network, readable on a phone, printable."""

from __future__ import annotations

from html import escape
from typing import Any

from vitascope.gpu.profiling.charts import profile_chart
from vitascope.gpu.profiling.tables import milliseconds

__all__ = ["STYLE", "html_page"]

STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; margin: 1.2rem; color: #222; background: #fff; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .15rem .7rem; text-align: right; white-space: nowrap; border-bottom: 1px solid #e3e6ea; }
th:first-child, td:first-child { text-align: left; }
svg { max-width: none; height: auto; }
@media print { .wide { overflow: visible; } svg { max-width: 100%; } body { font-size: 10px; margin: 0; } }
"""
"""The style of every page that this program writes: no script, no network, readable on a phone, printable."""
_HEADS = (
    "span", "count", "total ms", "self ms", "cpu ms", "mean ms", "p50", "p95", "p99", "max", "GPU ms", "GPU p95",
)  # fmt: skip


def html_page(document: dict[str, Any]) -> str:
    """The page of a profile.

    Args:
        document: Of ``profile_document``.
    """
    name, machine = escape(str(document["name"])), document["machine"]
    rows = "\n".join(_row(row) for row in document["summary"])
    heads = "".join(f"<th>{head}</th>" for head in _HEADS)
    gpus = f", {', '.join(machine['gpus'])}" if machine["gpus"] else ""
    where = escape(f"{machine['system']}, {machine['cores']} cores{gpus}, Python {machine['python']}")
    dropped = document["dropped_spans"]
    note = f"<p>{dropped} older spans are in the table, but not in the drawing.</p>" if dropped else ""
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{name}</title>
<style>{STYLE}</style>
</head>
<body>
<h1>{name}</h1>
<p>{document["wall_seconds"]:.3f} s, began {escape(document["began_at"])}<br>{where}</p>
<div class="wide">
<table>
<thead><tr>{heads}</tr></thead>
<tbody>
{rows}
</tbody>
</table>
</div>
{note}
<div class="wide">
{profile_chart(document).to_svg()}
</div>
</body>
</html>
"""


def _row(row: dict[str, Any]) -> str:
    gpu = row["gpu"] or {}
    path = row["path"]
    indent = f' style="padding-left:{0.7 + 1.2 * (len(path) - 1):.1f}rem"'
    times = [row[f"{key}_seconds"] for key in ("total", "self", "cpu", "mean", "p50", "p95", "p99", "max")]
    times += [gpu.get("total_seconds"), gpu.get("p95_seconds")]
    cells = "".join(f"<td>{milliseconds(time)}</td>" for time in times)
    return f"<tr><td{indent}>{escape(path[-1])}</td><td>{row['count']}</td>{cells}</tr>"
