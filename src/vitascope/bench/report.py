"""Benchmark reports: tables, charts, targets and recommendations, for one machine or several side by side."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from vitascope.bench.charts import (
    frame_time_chart,
    latency_chart,
    scaling_chart,
    stage_chart,
    trade_off_chart,
    waterfall_chart,
)
from vitascope.bench.recommendations import Recommendation, fastest_cells, limit_of, recommend
from vitascope.bench.results import BenchResults, Cell, Machine, Operation, what_is_lacking
from vitascope.bench.targets import USER, TargetResult, check_targets
from vitascope.errors import InputError
from vitascope.file_lock import write_file
from vitascope.gpu.profiling.charts import Chart, require_matplotlib
from vitascope.gpu.profiling.tables import html_page, text_table
from vitascope.observe.report_values import gib
from vitascope.segmentation.run_profile import PARTS_OF_STAGES


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One part of a report."""

    title: str
    sentences: tuple[str, ...] = ()
    """If there are several lines, the first is a heading."""
    heads: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    """Rows of a table under the headings; empty without one."""
    chart: Chart | None = None
    is_folded: bool = False
    """Collapsed until the reader opens it; left out on a terminal, as charts are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysis:
    """A report, section by section."""

    title: str
    sections: tuple[Section, ...]


def analyse(runs: Sequence[BenchResults], *, performance: Mapping[str, float] | None = None) -> Analysis:
    """Explain results.

    Args:
        runs: Runs of one machine or several; these are shown side by side, not averaged.
        performance: The user's ``target_fps`` and ``max_latency_ms``, where set.

    Raises:
        InputError: A run has no cell, or a measured cell lacks figures.
    """
    for run in runs:
        if not run.cells:
            raise InputError(f"the results of {run.began_at} have no cell, so there is nothing to analyse")
        if lacking := what_is_lacking(run):
            raise InputError(f"the results of {run.began_at} are damaged: {lacking}")
    sections = []
    if len(runs) > 1:
        sections.append(machines_table(runs))
    for number, run in enumerate(runs, start=1):
        prefix = f"{number}. " if len(runs) > 1 else ""
        sections += _sections(run, prefix=prefix, performance=performance or {})
    return Analysis(title="Vitascope benchmark", sections=tuple(sections))


_ALLOWED_TO_DIFFER = ("only", "gpu.device", "gpu.device_ids")
"""Settings that may differ: the choice of cells and of devices."""


def machines_table(runs: Sequence[BenchResults]) -> Section:
    """A table of each machine's median speed; a cell missing on one machine gets a dash, and nothing is averaged.

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
    """List the differences between the runs other than the machine."""
    asked = [run.workload | run.settings for run in runs]
    found = []
    for name in dict.fromkeys(key for one in asked for key in one):
        values = [str(one.get(name, "not set")) for one in asked]
        if len(set(values)) > 1 and name not in _ALLOWED_TO_DIFFER:
            pairs = ", ".join(f"{which} {value}" for which, value in zip(names, values, strict=True))
            found.append(f"{name} ({pairs})")
    if not found:
        return []
    return [
        f"the runs measured different things, so their speeds say little about the machines: {'; '.join(found)}"
    ]


def _short(machine: Machine) -> str:
    return machine.gpus[0].name if machine.gpus else machine.processor


def _sections(run: BenchResults, *, prefix: str, performance: Mapping[str, float]) -> list[Section]:
    recommendations = recommend(run)
    sections = [
        Section(
            title=f"{prefix}{run.machine.label()}",
            sentences=(*headline(run, recommendations), *_warnings(run)),
        ),
        Section(
            title=f"{prefix}Do this",
            sentences=(
                *(tuple(one.lines() for one in recommendations) or (_nothing_to_do(run),)),
                *_how_to_set(recommendations),
            ),
        ),
        _targets(run, prefix=prefix, performance=performance),
        Section(
            title=f"{prefix}Speed",
            heads=_SPEED_HEADS,
            rows=tuple(map(_speed_row, run.measured)),
            sentences=(*(_SPEED_WORDS if run.measured else ()), *_without_figures(run.cells)),
        ),
    ]
    if any(cell.load is not None and cell.load.gpu_percent is not None for cell in run.measured):
        sections.append(_gpu_load(run.measured, prefix=prefix))
    if any(row.name.startswith("gpu/") for cell in run.measured for row in cell.rows):
        sections.append(_gpu_parts(run.measured, prefix=prefix))
    if run.measured:
        sections += _charts(run.measured, prefix=prefix)
    sections += _operators(run.measured, prefix=prefix)
    sections.append(_about(run, prefix=prefix))
    return sections


_VIDEO_FPS = 30
"""Frame rate of the video that processing times refer to."""


def headline(run: BenchResults, recommendations: Sequence[Recommendation]) -> list[str]:
    """Summarise in three lines: the speed, the bottleneck and what to do; or that no cell was measured.

    Args:
        run: A run of one machine.
        recommendations: Recommendations for it, the most useful first.
    """
    if not run.measured:
        return ["nothing could be measured"]
    fastest = fastest_cells(run.measured)
    limits: dict[str, list[str]] = {}
    for cell in fastest:
        limit = limit_of(cell)
        limits.setdefault("no verdict" if limit is None else limit.title, []).append(_size(cell))
    limited = [f"{title} ({', '.join(sizes)})" for title, sizes in limits.items()]
    todo = _nothing_to_do(run)
    if recommendations:
        best = recommendations[0]
        todo = best.change if best.gain <= 1 else f"{best.change} ({best.gain:.2f}x as fast)"
    return [
        f"how fast: {'; '.join(map(_pace, fastest))}",
        f"what limits: {'; '.join(limited)}",
        f"what to do: {todo}",
    ]


def _pace(cell: Cell) -> str:
    rate = cell.frames_per_second
    told = f"{_size(cell)} {rate:.0f} fps" if rate >= 10 else f"{_size(cell)} {rate:.1f} fps"
    hour = _duration(_VIDEO_FPS / rate * 60)
    return f"{told} with batch {cell.key.batch} in {cell.key.precision} (an hour of {_VIDEO_FPS} fps video: {hour})"


def _size(cell: Cell) -> str:
    return cell.key.resolution + ("" if cell.key.stereo in ("mono", "auto") else f" {cell.key.stereo}")


def _duration(minutes: float) -> str:
    if minutes >= 90:
        return f"{minutes / 60:.1f} hours"
    return f"{minutes:.0f} minutes" if minutes >= 1.5 else f"{minutes * 60:.0f} seconds"


def _warnings(run: BenchResults) -> list[str]:
    told = []
    hot = [cell for cell in run.measured if cell.load is not None and cell.load.throttled_share > 0.1]
    if hot:
        names = "; ".join(cell.key.label() for cell in hot)
        told.append(
            f"the GPU slowed itself down by heat while these were measured, so they are too low: {names}"
        )
    if not run.finished:
        told.append("the run was interrupted: its results up to then are here, the rest is missing")
    return told


def _how_to_set(recommendations: Sequence[Recommendation]) -> list[str]:
    """Say how to try the first setting that a text names; empty if it names none."""
    named = (re.match(r"[a-z_.]+=[^\s,:]+", one.change) for one in recommendations)
    setting = next((found.group() for found in named if found), None)
    if setting is None:
        return []
    return [
        f"to try one: vitascope segment in.mp4 -o out.mp4 --set {setting}; vitascope optimize in.mp4 tries many on "
        "your own video, and says what they gain together"
    ]


def _nothing_to_do(run: BenchResults) -> str:
    if run.measured:
        return "the measurements suggest no change"
    return "nothing could be measured; the reasons are listed below, cell by cell"


def _targets(run: BenchResults, *, prefix: str, performance: Mapping[str, float]) -> Section:
    targets = check_targets(run, performance=performance)
    told = [one for one in targets if one.passed is not None]
    unmeasured = dict.fromkeys(one.target.name for one in targets if one.passed is None)
    sentences = _out_of_reach(told)
    if any(one.status() == "for comparison" for one in told):
        sentences.append("for comparison: a target for a GPU, measured on a CPU")
    if unmeasured:
        sentences.append(f"not measured by this run: {'; '.join(unmeasured)}")
    return Section(
        title=f"{prefix}Targets",
        heads=("what", "result", "measured", "target", "where", "source"),
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
        sentences=tuple(sentences),
    )


def _out_of_reach(targets: Sequence[TargetResult]) -> list[str]:
    """For targets that the user set and the machine misses, say what is possible instead."""
    return [
        f"{one.target.name}: {one.target.limit:g} {one.target.unit} is out of reach with what was measured; "
        f"{one.value:.4g} is possible, with {one.cell.key.label()}"
        for one in targets
        if one.target.source == USER and one.passed is False and one.cell is not None
    ]


_SPEED_HEADS = (
    "cell", "fps", "fps p5", "fps p95", "rounds", "ms a frame", "ms p95", "ms p99", "latency p50", "RAM MB", "VRAM MB",
    "GPU %", "CPU cores", "alpha error", "limited by",
)  # fmt: skip
_SPEED_WORDS = (
    "a cell is one size of video, one batch (frames for each call of the network) and one precision of its arithmetic; "
    "these two change the speed, and hardly the result",
    "fps: frames over time in each round, including the encoder's work at the end, so short videos have fewer; "
    "ms a frame: from one finished batch to the next, over its frames, without the end; latency: from the "
    "decoder to the encoder, in ms",
    "p5, p50, p95, p99: that many of a hundred values are below; alpha error: mean difference of the mattes, 0 to 1, "
    "from those of the same network in fp32, one frame a call",
)


def _speed_row(cell: Cell) -> tuple[str, ...]:
    rate, times, latency = cell.row("throughput"), cell.row("frame_time"), cell.row("latency")
    assert rate is not None  # every measured cell has all three
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


def _without_figures(cells: Sequence[Cell]) -> list[str]:
    """Say why cells have no figures; those with the same reason share a sentence."""
    same: dict[tuple[str, str | None], list[str]] = {}
    for cell in cells:
        if cell.status != "measured":
            same.setdefault((cell.status, cell.reason), []).append(cell.key.label())
    return [f"{'; '.join(labels)}: {status}: {reason}" for (status, reason), labels in same.items()]


_LOAD_COLUMNS = {
    "GPU %": "gpu_percent",
    "memory bus %": "memory_bus_percent",
    "decoder %": "decoder_percent",
    "encoder %": "encoder_percent",
    "to GPU MB/s": "pcie_to_gpu_bytes_per_second",
    "from GPU MB/s": "pcie_from_gpu_bytes_per_second",
    "W": "power_watts",
    "°C": "temperature_celsius_max",
    "MHz": "sm_clock_mhz",
}


def _gpu_parts(cells: Sequence[Cell], *, prefix: str) -> Section:
    """Break the stages down by the GPU's own clock, copies included."""
    parts = [
        {row.name.removeprefix("gpu/"): row.p50 for row in cell.rows if row.name.startswith("gpu/")}
        for cell in cells
    ]
    names = [name for name in PARTS_OF_STAGES if any(name in times for times in parts)]
    return Section(
        title=f"{prefix}Milliseconds of a frame on the GPU's clock, by part",
        heads=("cell", *names),
        rows=tuple(
            (cell.key.label(), *(f"{times[name]:.3f}" if name in times else "-" for name in names))
            for cell, times in zip(cells, parts, strict=True)
            if times
        ),
    )


def _gpu_load(cells: Sequence[Cell], *, prefix: str) -> Section:
    rows = []
    for cell in cells:
        if cell.load is not None:
            figures = {head: getattr(cell.load, name) for head, name in _LOAD_COLUMNS.items()}
            scaled = [
                value if value is None or "MB/s" not in head else value / 1e6
                for head, value in figures.items()
            ]
            rows.append((cell.key.label(), *map(_number, scaled)))
    return Section(title=f"{prefix}Load of the GPU", heads=("cell", *_LOAD_COLUMNS), rows=tuple(rows))


_MOST_DRAWN = 48
"""Maximum number of cells in one chart; more would be unreadable. The whole suite has 40."""
_STAGE_WORDS = (
    "stages work at the same time on different frames, and of a stage with several threads their work is added up: the "
    "longest bar is not always what limits; finish is what the encoder still does after the last picture, shared out "
    "to all frames"
)
_SPREAD_WORDS = "from the 5th to the 95th percentile, and paler to the 99th; the mark is the median"
_LATENCY_WORDS = "how many of the frames are through within which time; to the left is sooner"


def _charts(cells: Sequence[Cell], *, prefix: str) -> list[Section]:
    curves: dict[str, list[Cell]] = {}
    for cell in cells:
        curves.setdefault(f"{cell.key.resolution} {cell.key.precision}", []).append(cell)
    rates = {
        name: [(cell.key.batch, cell.frames_per_second) for cell in curve] for name, curve in curves.items()
    }
    shown = cells[:_MOST_DRAWN]
    cut = () if len(shown) == len(cells) else (f"the first {len(shown)} of {len(cells)} cells",)
    fastest = fastest_cells(cells)
    sections: list[Section] = []

    def add(title: str, make: Callable[[str], Chart], *sentences: str, more: str = "") -> None:
        sections.append(Section(title=f"{prefix}{title}", sentences=sentences, chart=make(f"{title}{more}")))

    if any(len(curve) > 1 for curve in curves.values()):
        add("Speed by batch", lambda title: scaling_chart(title, rates))
    of_fastest = ", the fastest cell of each size"
    add("A frame's way", lambda title: waterfall_chart(title, fastest), _STAGE_WORDS, more=of_fastest)
    add("Work for a frame, by stage", lambda title: stage_chart(title, shown), *cut)
    add(
        "Time for a frame",
        lambda title: frame_time_chart(title, shown),
        _SPREAD_WORDS,
        *cut,
        more=", 5th to 95th and 99th percentile",
    )
    add("Latency of each frame", lambda title: latency_chart(title, fastest), _LATENCY_WORDS, more=of_fastest)
    if len(cells) > len(fastest):  # one cell of each size has nothing to trade
        add(
            "Speed against latency",
            lambda title: trade_off_chart(title, curves),
            *(_traded(cell, cells) for cell in fastest),
            more=", by batch and precision",
        )
    return sections


def _traded(best: Cell, cells: Sequence[Cell]) -> str:
    """Compare the fastest cell of a size with the one of least latency."""
    soonest = min((cell for cell in cells if _size(cell) == _size(best)), key=_wait)
    told = f"{best.key.label()}: {best.frames_per_second:.1f} fps, 95% of frames within {_wait(best):.1f} ms"
    if soonest is best:
        return f"{told}; nothing measured at {best.key.resolution} is faster or has less latency"
    return (
        f"{told}; {soonest.key.label()} has the least latency: {soonest.frames_per_second:.1f} fps, "
        f"within {_wait(soonest):.1f} ms"
    )


def _wait(cell: Cell) -> float:
    row = cell.row("latency")
    assert row is not None  # every measured cell has it
    return row.p95


_KIND_COUNT = 4
"""Number of operator kinds that a sentence names."""
_OPERATOR_HEADS = ("operator", "kind", "result", "calls", "ms a frame", "share", "MB a frame")


def _operators(cells: Sequence[Cell], *, prefix: str) -> list[Section]:
    """List the most expensive operators by precision and batch, where the network is fastest.

    Cells of other resolutions whose network gets pictures of the same size compute the same, and are not repeated.
    """
    sections: list[Section] = []
    missing: dict[str, None] = {}
    seen: set[tuple[object, ...]] = set()
    for cell in cells:
        found = cell.operations
        if found is None:
            continue
        if found.missing:
            missing[f"{cell.key.precision}: {found.missing}"] = None
            continue
        same = (cell.network_size, cell.key.batch, cell.key.precision, cell.key.stereo)
        if same in seen:
            continue
        seen.add(same)
        height, width = cell.network_size or (0, 0)
        kinds = [f"{kind} {share:.0%}" for kind, share in list(found.share_by_kind.items())[:_KIND_COUNT]]
        told = "; ".join(
            [
                f"{found.source}: {found.operator_count} operators, {found.ms:.3f} ms a frame",
                *([", ".join(kinds)] if kinds else []),
            ]
        )
        sections += [
            Section(
                title=f"{prefix}Operators by {what}, batch {cell.key.batch}, {cell.key.precision}, "
                f"network {width}x{height}",
                heads=_OPERATOR_HEADS,
                rows=tuple(map(_operator_row, rows)),
                sentences=sentences,
                is_folded=True,
            )
            for what, rows, sentences in (
                ("time", found.by_time, (told,)),
                ("memory", found.by_memory, ()),
            )
            if rows
        ]
    if missing:
        sections.append(Section(title=f"{prefix}Unknown operators", sentences=tuple(missing)))
    return sections


def _operator_row(row: Operation) -> tuple[str, ...]:
    return (
        row.name if len(row.name) <= 60 else f"{row.name[:57]}...",
        row.kind,
        row.shape or "-",
        f"{row.calls:g}",
        f"{row.ms:.4f}",
        f"{row.share:.1%}",
        "-" if row.mbytes is None else f"{row.mbytes:.3f}",
    )


def _about(run: BenchResults, *, prefix: str) -> Section:
    machine = run.machine
    sentences = [
        f"{run.kind}, began {run.began_at}" + ("" if run.finished else "; it did not finish"),
        f"{machine.processor}, {machine.cores} cores, {gib(machine.memory_bytes)}, {machine.system}",
        *(
            f"{gpu.name}: driver {gpu.driver}, {gib(gpu.memory_bytes)}, at most {_or_unknown(gpu.sm_clock_mhz)} MHz, "
            f"{_or_unknown(gpu.power_watts)} W"
            for gpu in machine.gpus
        ),
        ", ".join(f"{name} {number}" for name, number in machine.versions.items())
        + ("" if machine.commit is None else f", commit {machine.commit}"),
        "; ".join(f"{name}: {value}" for name, value in run.workload.items()),
        *dict.fromkeys(
            f"{cell.key.label()}: {note}"
            for cell in run.measured
            for note in cell.notes
            if "network alone" in note
        ),
    ]
    return Section(title=f"{prefix}About this run", sentences=tuple(sentences))


def _small(error: float) -> str:
    """Format a mean error with four decimals, so that a smaller one does not look like zero."""
    return f"{error:.4f}" if error == 0 or error >= 0.0001 else "< 0.0001"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}"


def _or_unknown(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.0f}"


def text_report(analysis: Analysis) -> str:
    """The report for a terminal, without charts and collapsed sections."""
    parts = []
    for section in analysis.sections:
        if section.chart is not None or section.is_folded:
            continue
        lines = [section.title, "=" * len(section.title)]
        if section.rows:
            lines.append(text_table(section.heads, section.rows))
        parts.append("\n".join([*lines, *(text.replace("\n", "\n  ") for text in section.sentences)]))
    return "\n\n".join(parts)


def markdown_report(analysis: Analysis, *, pictures: Mapping[str, str]) -> str:
    """Render the report as Markdown.

    Args:
        analysis: The report.
        pictures: Name of each chart's file, by the title of its section.
    """
    parts = [f"# {analysis.title}"]
    for section in analysis.sections:
        if section.is_folded:
            parts.append(f"<details>\n<summary>{escape(section.title)}</summary>")
        else:
            parts.append(f"## {section.title}")
        if section.rows:
            table = [section.heads, tuple("-" for _ in section.heads), *section.rows]
            parts.append("\n".join(f"| {' | '.join(map(_markdown_cell, row))} |" for row in table))
        if section.sentences:
            parts.append("\n".join(map(_markdown_item, section.sentences)))
        if section.title in pictures:
            parts.append(f"![{section.title}]({pictures[section.title]})")
        if section.is_folded:
            parts.append("</details>")
    return "\n\n".join(parts) + "\n"


def _markdown_cell(text: str) -> str:
    return text.replace("|", "\\|") or " "


def _markdown_item(sentence: str) -> str:
    heading, *rest = sentence.split("\n")
    return "  \n  ".join([f"- **{heading}**", *rest]) if rest else f"- {heading}"


def html_report(analysis: Analysis) -> str:
    """Render the report as one page: no script, no network, readable on a phone, printable."""
    return html_page(analysis.title, "\n".join(map(_html, analysis.sections)), style=_STYLE)


def write_reports(analysis: Analysis, folder: Path) -> list[Path]:
    """Write ``benchmark_report.html``, ``.md``, and a picture for each chart.

    Args:
        analysis: The report.
        folder: Created if missing.

    Raises:
        MissingDependencyError: matplotlib, which draws the charts, is not installed.
        OutputError: A file cannot be written.
    """
    require_matplotlib()
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


_STYLE = """
h2 { margin-top: 2rem; font-size: 1.15rem; break-after: avoid; }
th, td { padding: .15rem .5rem; }
th { white-space: normal; vertical-align: bottom; }
td.pass { color: #2c6e1f; } td.fail { color: #a8202f; font-weight: 600; }
td.word, th.word { text-align: left; }
li { overflow-wrap: anywhere; } li:has(strong) { margin-bottom: .6rem; }
details { margin: .6rem 0; } summary { cursor: pointer; }
svg { mix-blend-mode: multiply; }
.wide { background:
  linear-gradient(to right, #fff 2rem, #fff0) local, linear-gradient(to left, #fff 2rem, #fff0) local,
  linear-gradient(to right, #0003, #0000 .8rem), linear-gradient(to left, #0003, #0000 .8rem); }
@media screen and (max-width: 700px) {
  ul { padding-left: 1.2rem; }
  th:first-child, td:first-child { position: sticky; left: 0; background: #fff; white-space: normal; min-width: 7rem; }
}
@media print {
  .wide { background: none; } table { font-size: 7.5px; } th, td { padding: .1rem .25rem; }
  tr, svg { break-inside: avoid; }
}
"""
"""Scrollable content has a shadow at its edge, also through white charts; on a phone the first column stays in view."""

_FIGURE = re.compile(r"-|(< |>= )?[\d.]+( ?[^\s\d,]+)?")
"""A figure with or without its unit: ``41.3``, ``-``, ``>= 60 frames/s``; ``1080p, batch 4`` is not one."""


def _html(section: Section) -> str:
    title = escape(section.title)
    parts = []
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
    if section.is_folded:
        return "\n".join([f"<details>\n<summary>{title}</summary>", *parts, "</details>"])
    return "\n".join([f"<h2>{title}</h2>", *parts])


def _html_item(sentence: str) -> str:
    heading, *rest = escape(sentence).split("\n")
    return "<br/>".join([f"<strong>{heading}</strong>", *rest]) if rest else heading


def _html_cell(text: str) -> str:
    kind = f' class="{text}"' if text in ("pass", "fail") else _word_class(text)
    return f"<td{kind}>{escape(text)}</td>"


def _word_class(text: str) -> str:
    """Align words to the left; figures, and the dashes of missing ones, to the right."""
    return "" if _FIGURE.fullmatch(text) else ' class="word"'
