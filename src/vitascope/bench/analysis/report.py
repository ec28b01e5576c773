"""What results mean: tables, drawings, targets and recommendations, for one machine or several side by side."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from vitascope.bench.analysis.charts import frame_time_chart, scaling_chart, stage_chart, waterfall_chart
from vitascope.bench.analysis.in_short import fastest_cells, in_short, limit_of
from vitascope.bench.analysis.latency_charts import latency_chart, trade_off_chart
from vitascope.bench.analysis.recommendations import Recommendation, recommend
from vitascope.bench.analysis.targets import USER, TargetResult, check_targets
from vitascope.bench.analysis.work import Section, operation_sections, roofline_sections
from vitascope.bench.machine import Machine
from vitascope.bench.results import BenchResults, Cell, what_is_lacking
from vitascope.errors import InputError
from vitascope.gpu.profiling.document import write_file
from vitascope.gpu.profiling.page import STYLE
from vitascope.gpu.profiling.tables import text_table

__all__ = [
    "Analysis",
    "Section",
    "analyse",
    "html_report",
    "machines_table",
    "markdown_report",
    "text_report",
    "write_reports",
]


_ALLOWED_TO_DIFFER = ("only", "gpu.device", "gpu.device_ids")
"""Settings that may differ: which cells, and where."""


def machines_table(runs: Sequence[BenchResults]) -> Section:
    """Each machine's median speed; cells that one of them lacks have a dash, and nothing is averaged.

    Args:
        runs: Two or more.
    """
    keys = dict.fromkeys(cell.key for run in runs for cell in run.measured)
    rows = []
    for key in keys:
        rates = [None if (cell := run.cell(key)) is None else cell.median("throughput") for run in runs]
        rows.append((key.label(), *("-" if rate is None else f"{rate:.1f} fps" for rate in rates)))
    names = [f"{n}. {_short(run.machine)}" for n, run in enumerate(runs, start=1)]
    return Section(
        title="Side by side",
        heads=("cell", *names),
        rows=tuple(rows),
        sentences=tuple(_not_the_same(runs, names)),
    )


def _not_the_same(runs: Sequence[BenchResults], names: Sequence[str]) -> list[str]:
    """What besides the machine makes the speeds differ."""
    asked = [run.workload | run.settings for run in runs]
    found = []
    for name in dict.fromkeys(key for one in asked for key in one):
        values = [str(one.get(name, "not set")) for one in asked]
        if len(set(values)) > 1 and name not in _ALLOWED_TO_DIFFER:
            pairs = ", ".join(f"{which} {value}" for which, value in zip(names, values, strict=True))
            found.append(f"{name} ({pairs})")
    if not found:
        return []
    return [f"not the same was measured, so speeds say little about the machines: {'; '.join(found)}"]


def _short(machine: Machine) -> str:
    return machine.gpus[0].name if machine.gpus else machine.processor


_MOST_DRAWN = 48
"""Cells in one drawing: more would be a wall. The whole suite has 40."""


_SPEED_HEADS = (
    "cell", "fps", "fps p5", "fps p95", "rounds", "ms a frame", "ms p95", "ms p99", "latency p50", "RAM MB", "VRAM MB",
    "GPU %", "CPU cores", "alpha error", "limited by",
)  # fmt: skip
_SPEED_WORDS = (
    "a cell is one size of film, one batch (frames for each call of the network) and one precision of its arithmetic; "
    "these two change how fast it goes, and next to nothing of what comes out",
    "fps: frames over time in each round, what the encoder still does at the end included, so short films have fewer; "
    "ms a frame: from one batch that comes out to the next, over its frames, the end not included; latency: from the "
    "decoder to the encoder, in ms",
    "p5, p50, p95, p99: so many of a hundred values lie below; alpha error: mean difference of the mattes, 0 to 1, "
    "from those of the same network in fp32, one frame a call",
)
_STAGE_WORDS = (
    "stages work at the same time on different frames, and of a stage with several threads their work is added up: the "
    "longest bar is not always what limits; finish is what the encoder still does after the last picture, shared out "
    "to all frames"
)
_SPREAD_WORDS = "from the 5th to the 95th percentile, and paler to the 99th; the mark is the median"
_LATENCY_WORDS = "how many of the frames are through within which time; to the left is sooner"


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysis:
    """A report, in order."""

    title: str
    sections: tuple[Section, ...]


def analyse(runs: Sequence[BenchResults], *, performance: Mapping[str, float] | None = None) -> Analysis:
    """Explain results.

    Args:
        runs: Of one machine, or of several, which are shown side by side and not averaged.
        performance: The user's ``target_fps`` and ``max_latency_ms``, those that were set.

    Raises:
        InputError: A run holds no cell, or one that was measured lacks figures.
    """
    for run in runs:
        if not run.cells:
            raise InputError(f"the results of {run.began_at} hold no cell: there is nothing to analyse")
        if lacking := what_is_lacking(run):
            raise InputError(f"the results of {run.began_at} are damaged: {lacking}")
    sections = []
    if len(runs) > 1:
        sections.append(machines_table(runs))
    for number, run in enumerate(runs, start=1):
        prefix = f"{number}. " if len(runs) > 1 else ""
        sections += _sections(run, prefix=prefix, performance=performance or {})
    return Analysis(title="Vitascope benchmark", sections=tuple(sections))


def _sections(run: BenchResults, *, prefix: str, performance: Mapping[str, float]) -> list[Section]:
    sections = [Section(title=f"{prefix}{run.machine.label()}", sentences=(*in_short(run), *_throttled(run)))]
    recommendations = recommend(run)
    sections.append(
        Section(
            title=f"{prefix}Do this",
            sentences=(
                *(tuple(one.lines() for one in recommendations) or (_nothing_to_do(run),)),
                *_how_to_set(recommendations),
            ),
        )
    )
    sections.append(_targets(run, prefix=prefix, performance=performance))
    sections.append(_speeds(run, prefix=prefix))
    if any(cell.load is not None and cell.load.gpu_percent is not None for cell in run.measured):
        sections.append(_gpu_load(run.measured, prefix=prefix))
    if run.measured:
        sections += _drawings(run.measured, prefix=prefix)
    if run.measured:
        sections += roofline_sections(run, prefix=prefix)
    sections += operation_sections(run.measured, prefix=prefix)
    sections.append(_about(run, prefix=prefix))
    return sections


def _targets(run: BenchResults, *, prefix: str, performance: Mapping[str, float]) -> Section:
    targets = check_targets(run, performance=performance)
    told = [one for one in targets if one.passed is not None]
    unmeasured = dict.fromkeys(one.target.name for one in targets if one.passed is None)
    return Section(
        title=f"{prefix}Targets",
        heads=("target", "result", "measured", "wanted", "where", "asked by"),
        rows=tuple(
            (
                one.target.name,
                one.status(),
                f"{one.value:.4g} {one.target.unit}",
                one.target.wish(),
                "" if one.cell is None else one.cell.key.label(),
                one.target.source,
            )
            for one in told
        ),
        sentences=(
            *_out_of_reach(told),
            *(
                ["asked by the documents that Vitascope was ordered with, and by your settings"]
                if told
                else []
            ),
            *([f"not measured by this run: {'; '.join(unmeasured)}"] if unmeasured else []),
        ),
    )


def _about(run: BenchResults, *, prefix: str) -> Section:
    machine = run.machine
    sentences = [
        f"{run.kind}, began {run.began_at}" + ("" if run.finished else "; it did not finish"),
        f"{machine.processor}, {machine.cores} cores, {_gib(machine.memory_bytes)}, {machine.system}",
        *(
            f"{gpu.name}: driver {gpu.driver}, {_gib(gpu.memory_bytes)}, at most {_or_unknown(gpu.sm_clock_mhz)} MHz, "
            f"{_or_unknown(gpu.power_watts)} W"
            for gpu in machine.gpus
        ),
        ", ".join(f"{name} {number}" for name, number in machine.versions.items())
        + ("" if machine.commit is None else f", commit {machine.commit}"),
        "; ".join(f"{name}: {value}" for name, value in run.workload.items()),
    ]
    return Section(title=f"{prefix}About this run", sentences=tuple(sentences))


def _throttled(run: BenchResults) -> list[str]:
    hot = [cell for cell in run.measured if cell.load is not None and cell.load.throttled_share > 0.1]
    if not hot:
        return []
    names = "; ".join(cell.key.label() for cell in hot)
    return [f"the GPU slowed itself down by heat while these were measured, so they are too low: {names}"]


def _speeds(run: BenchResults, *, prefix: str) -> Section:
    return Section(
        title=f"{prefix}Speed",
        heads=_SPEED_HEADS,
        rows=tuple(_speed_row(cell) for cell in run.measured),
        sentences=(
            *(_SPEED_WORDS if run.measured else ()),
            *_without_figures(run.cells),
        ),
    )


def _without_figures(cells: Sequence[Cell]) -> list[str]:
    """Why cells have none; those with the same reason in one sentence."""
    same: dict[tuple[str, str | None], list[str]] = {}
    for cell in cells:
        if cell.status != "measured":
            same.setdefault((cell.status, cell.reason), []).append(cell.key.label())
    return [f"{'; '.join(labels)}: {status}: {reason}" for (status, reason), labels in same.items()]


def _how_to_set(recommendations: Sequence[Recommendation]) -> list[str]:
    """How the first setting that is named is tried; nothing where none is."""
    named = (re.match(r"[a-z_.]+=[^\s,:]+", one.change) for one in recommendations)
    setting = next((found.group() for found in named if found), None)
    if setting is None:
        return []
    return [
        f"to try one: vitascope segment in.mp4 -o out.mp4 --set {setting}; vitascope optimize in.mp4 tries many on "
        "your own film, and says what they gain together"
    ]


def _nothing_to_do(run: BenchResults) -> str:
    if run.measured:
        return "nothing that was measured calls for a change"
    return "nothing could be measured; why stands below, cell by cell"


def _speed_row(cell: Cell) -> tuple[str, ...]:
    rate, times, latency = cell.row("throughput"), cell.row("frame_time"), cell.row("latency")
    assert rate is not None  # every measured cell has these three
    assert times is not None
    assert latency is not None
    load, limit = cell.load, limit_of(cell)
    return (
        cell.key.label(),
        f"{rate.p50:.1f}",
        f"{rate.p5:.1f}",
        f"{rate.p95:.1f}",
        str(rate.n),
        f"{times.p50:.2f}",
        f"{times.p95:.2f}",
        f"{times.p99:.2f}",
        f"{latency.p50:.1f}",
        _number(cell.median("peak_ram")),
        _number(cell.median("peak_vram")),
        _number(None if load is None else load.gpu_percent),
        "-" if load is None else f"{load.process_cores:.1f}",
        "-" if cell.alpha_error is None else _small(cell.alpha_error),
        "-" if limit is None else limit.kind.replace("_", "-"),
    )


def _out_of_reach(targets: Sequence[TargetResult]) -> list[str]:
    """What can be had instead, of targets that the user set."""
    return [
        f"{one.target.name}: {one.target.limit:g} {one.target.unit} is out of reach with what was measured; "
        f"{one.value:.4g} can be had, with {one.cell.key.label()}"
        for one in targets
        if one.target.source == USER and one.passed is False and one.cell is not None
    ]


def _gpu_load(cells: Sequence[Cell], *, prefix: str) -> Section:
    heads = (
        "cell",
        "GPU %",
        "memory bus %",
        "decoder %",
        "encoder %",
        "to GPU MB/s",
        "from GPU MB/s",
        "W",
        "°C",
    )
    rows = []
    for cell in cells:
        load = cell.load
        if load is None:
            continue
        to_gpu, from_gpu = load.pcie_to_gpu_bytes_per_second, load.pcie_from_gpu_bytes_per_second
        figures = (
            load.gpu_percent,
            load.memory_bus_percent,
            load.decoder_percent,
            load.encoder_percent,
            None if to_gpu is None else to_gpu / 1e6,
            None if from_gpu is None else from_gpu / 1e6,
            load.power_watts,
            load.temperature_celsius_max,
            load.sm_clock_mhz,
        )
        rows.append((cell.key.label(), *map(_number, figures)))
    return Section(title=f"{prefix}Load of the GPU", heads=(*heads, "MHz"), rows=tuple(rows))


def _drawings(cells: Sequence[Cell], *, prefix: str) -> list[Section]:
    curves: dict[str, list[tuple[int, float]]] = {}
    for cell in cells:
        rate = cell.median("throughput")
        if rate:
            curves.setdefault(f"{cell.key.resolution} {cell.key.precision}", []).append(
                (cell.key.batch, rate)
            )
    way, stages, times = "A frame's way", "Work for a frame, by stage", "Time for a frame"
    shown = cells[:_MOST_DRAWN]
    cut = () if len(shown) == len(cells) else (f"the first {len(shown)} of {len(cells)} cells",)
    fastest = fastest_cells(cells)
    sections = [
        Section(
            title=f"{prefix}{way}",
            sentences=(_STAGE_WORDS,),
            chart=waterfall_chart(f"{way}, the fastest cell of each size", fastest),
        ),
        Section(title=f"{prefix}{stages}", sentences=cut, chart=stage_chart(stages, shown)),
        Section(
            title=f"{prefix}{times}",
            sentences=(_SPREAD_WORDS, *cut),
            chart=frame_time_chart(f"{times}, 5th to 95th and 99th percentile", shown),
        ),
    ]
    sections += _latency(cells, prefix=prefix)
    if any(len(curve) > 1 for curve in curves.values()):
        title = "Speed by batch"
        sections.insert(0, Section(title=f"{prefix}{title}", chart=scaling_chart(title, curves)))
    return sections


def _latency(cells: Sequence[Cell], *, prefix: str) -> list[Section]:
    """Its spread in the fastest cell of each resolution, and what batch and precision trade for it."""
    fastest = fastest_cells(cells)
    curves: dict[str, list[Cell]] = {}
    for cell in cells:
        curves.setdefault(f"{cell.key.resolution} {cell.key.precision}", []).append(cell)
    spread, trade = "Latency of each frame", "Speed against latency"
    sections = [
        Section(
            title=f"{prefix}{spread}",
            sentences=(_LATENCY_WORDS,),
            chart=latency_chart(f"{spread}, the fastest cell of each size", fastest),
        )
    ]
    if len(cells) > len(fastest):  # one cell of each size trades nothing
        sections.append(
            Section(
                title=f"{prefix}{trade}",
                chart=trade_off_chart(f"{trade}, by batch and precision", curves),
                sentences=tuple(_traded(cell, cells) for cell in fastest),
            )
        )
    return sections


def _traded(best: Cell, cells: Sequence[Cell]) -> str:
    """The fastest cell of a size against the one that answers soonest."""
    alike = [
        cell
        for cell in cells
        if (cell.key.resolution, cell.key.stereo) == (best.key.resolution, best.key.stereo)
    ]
    soonest = min(alike, key=_wait)
    told = f"{best.key.label()}: {_rate(best):.1f} fps, 95% of frames within {_wait(best):.1f} ms"
    if soonest is best:
        return f"{told}; nothing measured at {best.key.resolution} is faster or answers sooner"
    return f"{told}; {soonest.key.label()} answers soonest: {_rate(soonest):.1f} fps, within {_wait(soonest):.1f} ms"


def _rate(cell: Cell) -> float:
    return cell.median("throughput") or 0.0


def _wait(cell: Cell) -> float:
    row = cell.row("latency")
    assert row is not None  # every measured cell has it
    return row.p95


def _small(error: float) -> str:
    """What is there must not look like nothing."""
    return f"{error:.4f}" if error == 0 or error >= 0.0001 else "< 0.0001"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}"


def _or_unknown(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.0f}"


def _gib(nbytes: int | None) -> str:
    return "memory unknown" if nbytes is None else f"{nbytes / 2**30:.0f} GiB"


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
