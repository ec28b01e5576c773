"""A report for the terminal, as Markdown, and as one HTML page; its drawings as PNG pictures."""

from __future__ import annotations

import re
from html import escape
from pathlib import Path

from vitascope.gpu.profiling.document import write_file
from vitascope.gpu.profiling.page import STYLE
from vitascope.gpu.profiling.tables import text_table
from vitascope.tuning.analysis import Analysis
from vitascope.tuning.report_section import Section

__all__ = ["html_report", "markdown_report", "text_report", "write_reports"]

_STYLE = """
h2 { margin-top: 2rem; font-size: 1.15rem; break-after: avoid; }
th, td { padding: .15rem .5rem; }
th { white-space: normal; vertical-align: bottom; }
td.pass { color: #2c6e1f; } td.fail { color: #a8202f; font-weight: 600; }
td.word, th.word { text-align: left; }
li { overflow-wrap: anywhere; } li:has(strong) { margin-bottom: .6rem; }
svg { display: block; mix-blend-mode: multiply; }
.wide { background:
  linear-gradient(to right, #fff 2rem, #fff0) local, linear-gradient(to left, #fff 2rem, #fff0) local,
  linear-gradient(to right, #0003, #0000 .8rem), linear-gradient(to left, #0003, #0000 .8rem); }
@media screen and (max-width: 700px) {
  body { margin: .8rem; } ul { padding-left: 1.2rem; } svg { width: 800px; }
  th:first-child, td:first-child { position: sticky; left: 0; background: #fff; white-space: normal; min-width: 7rem; }
}
@media print {
  .wide { background: none; } table { font-size: 7.5px; } th, td { padding: .1rem .25rem; }
  tr, svg { break-inside: avoid; }
}
"""
"""A shadow at the edge of what can be scrolled, also through white drawings; on a phone a first column stays."""

_FIGURE = re.compile(r"-|(< |>= )?[\d.]+( ?[^\s\d,]+)?")
"""With its unit or without: ``41.3``, ``-``, ``>= 60 frames/s``; ``1080p, batch 4`` is none."""


def text_report(analysis: Analysis) -> str:
    """For a terminal; without drawings."""
    parts = []
    for section in analysis.sections:
        if section.chart is not None:
            continue
        lines = [section.title, "=" * len(section.title)]
        if section.rows:
            lines.append(text_table(section.heads, section.rows))
        parts.append("\n".join([*lines, *(text.replace("\n", "\n  ") for text in section.sentences)]))
    return "\n\n".join(parts)


def markdown_report(analysis: Analysis, *, pictures: dict[str, str]) -> str:
    """As Markdown.

    Args:
        analysis: The report.
        pictures: Name of each drawing's file, by the title of its section.
    """
    parts = [f"# {analysis.title}"]
    for section in analysis.sections:
        parts.append(f"## {section.title}")
        if section.rows:
            table = [section.heads, tuple("-" for _ in section.heads), *section.rows]
            parts.append("\n".join(f"| {' | '.join(_cell(text) for text in row)} |" for row in table))
        if section.sentences:
            parts.append("\n".join(map(_markdown_item, section.sentences)))
        if section.title in pictures:
            parts.append(f"![{section.title}]({pictures[section.title]})")
    return "\n\n".join(parts) + "\n"


def html_report(analysis: Analysis) -> str:
    """As one page: no script, no network, readable on a phone, printable."""
    sections = "\n".join(_html(section) for section in analysis.sections)
    title = escape(analysis.title)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{STYLE}{_STYLE}</style>
</head>
<body>
<h1>{title}</h1>
{sections}
</body>
</html>
"""


def write_reports(analysis: Analysis, folder: Path) -> list[Path]:
    """Write ``benchmark_report.html``, ``.md``, and a picture for each drawing.

    Args:
        analysis: The report.
        folder: Made where it is missing.

    Raises:
        OutputError: A file cannot be written.
    """
    pictures: dict[str, str] = {}
    written = [folder / "benchmark_report.html", folder / "benchmark_report.md"]
    for section in analysis.sections:
        if section.chart is not None:
            name = f"benchmark_report_{len(pictures) + 1}.png"
            pictures[section.title] = name
            written.append(folder / name)
            write_file(folder / name, section.chart.to_png())
    write_file(written[0], html_report(analysis).encode())
    write_file(written[1], markdown_report(analysis, pictures=pictures).encode())
    return written


def _cell(text: str) -> str:
    return text.replace("|", "\\|") or " "


def _markdown_item(sentence: str) -> str:
    heading, *rest = sentence.split("\n")
    return "  \n  ".join([f"- **{heading}**", *rest]) if rest else f"- {heading}"


def _html_item(sentence: str) -> str:
    heading, *rest = escape(sentence).split("\n")
    return "<br/>".join([f"<strong>{heading}</strong>", *rest]) if rest else heading


def _html(section: Section) -> str:
    parts = [f"<h2>{escape(section.title)}</h2>"]
    if section.rows:
        heads = "".join(
            f"<th{_word_class(text)}>{escape(head)}</th>"
            for head, text in zip(section.heads, section.rows[0], strict=True)
        )
        rows = "\n".join(f"<tr>{''.join(map(_html_cell, row))}</tr>" for row in section.rows)
        table = f"<table>\n<thead><tr>{heads}</tr></thead>\n<tbody>\n{rows}\n</tbody>\n</table>"
        parts.append(f'<div class="wide">\n{table}\n</div>')
    if section.sentences:
        items = "\n".join(f"<li>{_html_item(sentence)}</li>" for sentence in section.sentences)
        parts.append(f"<ul>\n{items}\n</ul>")
    if section.chart is not None:
        parts.append(f'<div class="wide">\n{section.chart.to_svg()}\n</div>')
    return "\n".join(parts)


def _html_cell(text: str) -> str:
    kind = f' class="{text}"' if text in ("pass", "fail") else _word_class(text)
    return f"<td{kind}>{escape(text)}</td>"


def _word_class(text: str) -> str:
    """Words to the left, figures and the dashes for missing ones to the right."""
    return "" if _FIGURE.fullmatch(text) else ' class="word"'
