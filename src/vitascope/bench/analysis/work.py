"""The parts of a report about arithmetic and memory traffic: ceilings, roofline, operators."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from vitascope.bench.analysis.log_axes import scaled
from vitascope.bench.analysis.roofline import RoofPoint, roof_points, roofline_chart, roofs_of
from vitascope.bench.results import BenchResults, Ceilings, Cell, Operation, Operations
from vitascope.gpu.profiling.drawing import Drawing

__all__ = ["Section", "operation_sections", "roofline_sections"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One part of a report."""

    title: str
    sentences: tuple[str, ...] = ()
    """The first line of several is a heading."""
    heads: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    """A table under the heads; empty without one."""
    chart: Drawing | None = None


_ROOF_HEADS = (
    "cell", "part", "bound by", "of its roof", "ms a frame", "n", "GFLOP a frame", "MB a frame", "GB/s", "of copy",
    "GFLOP/s", "of matmul",
)  # fmt: skip
_DEVICES = {"cpu": "the processor", "cuda": "the GPU"}
_TOLD = {
    "memory": "memory-bound: moving less makes it faster",
    "compute": "compute-bound: fewer or cheaper products make it faster",
    "neither": "neither memory- nor compute-bound: launches, small operators or other stages take the time",
}
_ROOF_WORDS = (
    "a mark at its line goes as fast as this machine can; far below it there is time to gain in that part"
)
_KIND_COUNT = 4
"""Kinds of operators that a sentence names."""
_COUNTED = (
    "counted from the network's graph, in this precision: what must move when everything is fused that can be; "
    "kernels do not say what they move"
)


def roofline_sections(run: BenchResults, *, prefix: str) -> list[Section]:
    """Ceilings, and what each part reaches of them; nothing for results that have no ceilings.

    Args:
        run: Of one machine.
        prefix: Of titles.
    """
    if not run.ceilings:
        return []
    points = roof_points(run)
    sections = [_ceilings(run.ceilings, prefix=prefix)]
    uncounted = dict.fromkeys(
        f"{cell.key.label()}, {work.part}: {work.note}"
        for cell in run.measured
        for work in cell.work
        if work.note
    )
    alone = dict.fromkeys(
        f"{cell.key.label()}: {note}"
        for cell in run.measured
        for note in cell.notes
        if "network alone" in note
    )
    without = dict.fromkeys(
        f"{work.part} in {work.precision} on {_DEVICES[work.device]}: no ceilings were measured for it"
        for cell in run.measured
        for work in cell.work
        if roofs_of(run.ceilings, device=work.device, precision=work.precision) is None
    )
    sections.append(
        Section(
            title=f"{prefix}What bounds each part",
            heads=_ROOF_HEADS,
            rows=tuple(map(_roof_row, points)),
            sentences=(*_verdicts(points), *uncounted, *without, *alone),
        )
    )
    if any(point.intensity is not None for point in points):
        title = "Roofline"
        sections.append(
            Section(
                title=f"{prefix}{title}",
                sentences=(_ROOF_WORDS,),
                chart=roofline_chart(f"{title}: each part of each cell", points),
            )
        )
    return sections


def operation_sections(cells: Sequence[Cell], *, prefix: str) -> list[Section]:
    """The most expensive operators: by precision and batch, where the network is as fast as it gets.

    Cells of other resolutions whose network sees pictures of the same size compute the same, and are not repeated.

    Args:
        cells: Measured ones.
        prefix: Of titles.
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
        sections += _operations(cell, found, prefix=prefix)
    if missing:
        sections.append(Section(title=f"{prefix}Operators that are not known", sentences=tuple(missing)))
    return sections


def _ceilings(ceilings: Sequence[Ceilings], *, prefix: str) -> Section:
    rows = [
        (_DEVICES[one.device], row.name, *_rates(row.unit, row.p50, row.p5, row.p95), str(row.n))
        for one in ceilings
        for row in one.rows
    ]
    return Section(
        title=f"{prefix}Ceilings, measured in this run",
        heads=("device", "what", "median", "p5", "p95", "n"),
        rows=tuple(rows),
        sentences=(
            *(f"{_DEVICES[one.device]}: {method}" for one in ceilings for method in one.methods),
            *(f"{_DEVICES[one.device]}, not measured: {why}" for one in ceilings for why in one.missing),
        ),
    )


def _rates(unit: str, *values: float) -> tuple[str, ...]:
    return tuple(scaled(value, "B/s" if unit == "bytes/s" else unit) for value in values)


def _roof_row(point: RoofPoint) -> tuple[str, ...]:
    row = point.cell.row(point.work.row)
    assert row is not None  # a point has a time
    flops, nbytes, rate = point.work.flops, point.work.nbytes, point.flops_per_second
    assert nbytes is not None
    return (
        point.cell.key.label(),
        point.work.part,
        point.bound,
        f"{point.roof_share:.1%}",
        f"{point.ms:.3f}",
        str(row.n),
        "-" if flops is None else _figure(flops / 1e9),
        _figure(nbytes / 1e6),
        _figure(point.bytes_per_second / 1e9),
        f"{point.copy_share:.1%}",
        "-" if rate is None else _figure(rate / 1e9),
        "-" if point.compute_share is None else f"{point.compute_share:.1%}",
    )


def _figure(value: float) -> str:
    return f"{value:.0f}" if value >= 1000 else f"{value:.3g}"


def _verdicts(points: Sequence[RoofPoint]) -> list[str]:
    """A sentence for each part on each device in each precision: what bounds it in most cells."""
    groups: dict[tuple[str, str, str], list[RoofPoint]] = {}
    for point in points:
        groups.setdefault((point.work.part, point.work.device, point.roofs.precision), []).append(point)
    return [_verdict(same) for same in groups.values()]


def _verdict(points: Sequence[RoofPoint]) -> str:
    best = max(points, key=lambda point: point.roof_share)
    roofs = best.roofs
    reach = [_percent(point.roof_share) for point in sorted(points, key=lambda point: point.roof_share)]
    intensity = (
        ""
        if best.intensity is None
        else f" ({best.intensity:.3g} FLOP a byte; the ridge is at {roofs.ridge:.3g})"
    )
    told = (
        f"{best.work.part} in {roofs.precision} on {_DEVICES[best.work.device]}: "
        f"{' to '.join(dict.fromkeys((reach[0], reach[-1])))} of its roof{intensity}"
    )
    if best.roof_share > 1:
        told += (
            ", above 100% where caches held what is counted as moved, or the ceilings met a busier machine"
        )
    bounds = Counter(point.bound for point in points)
    if len(bounds) == 1:
        return f"{told}; {_TOLD[best.bound]}"
    counts = ", ".join(f"{count} {bound}" for bound, count in bounds.most_common())
    return f"{told}; cells by what bounds them: {counts}; {best.cell.key.label()}, the best, is {_TOLD[best.bound]}"


def _percent(share: float) -> str:
    return f"{share:.0%}" if share >= 0.1 else f"{share:.1%}"


def _operations(cell: Cell, found: Operations, *, prefix: str) -> list[Section]:
    height, width = cell.network_size or (0, 0)
    of = f"batch {cell.key.batch}, {cell.key.precision}, network {width}x{height}"
    kinds = list(found.share_by_kind.items())[:_KIND_COUNT]
    sentences = [
        f"{found.source}: {found.operator_count} operators, {found.ms:.3f} ms a frame"
        + (f"; {', '.join(f'{kind} {share:.0%}' for kind, share in kinds)}" if kinds else "")
    ]
    sections = [_operation_table(f"{prefix}Operators by time, {of}", found.by_time, sentences)]
    if found.by_memory:
        sections.append(_memory_table(f"{prefix}Operators by memory, {of}", found.by_memory))
    return sections


def _memory_table(title: str, rows: Sequence[Operation]) -> Section:
    """Those that move most; without times where nobody took them one by one."""
    if any(row.ms for row in rows):
        return _operation_table(title, rows, [])
    return Section(
        title=title,
        heads=("operator", "kind", "result", "MB a frame"),
        rows=tuple((row.name, row.kind, row.shape or "-", f"{row.mbytes or 0:.3f}") for row in rows),
        sentences=(_COUNTED,),
    )


def _operation_table(title: str, rows: Sequence[Operation], sentences: Sequence[str]) -> Section:
    return Section(
        title=title,
        heads=("operator", "kind", "result", "calls", "ms a frame", "share", "MB a frame"),
        rows=tuple(
            (
                row.name if len(row.name) <= 60 else f"{row.name[:57]}...",
                row.kind,
                row.shape or "-",
                f"{row.calls:g}",
                f"{row.ms:.4f}",
                f"{row.share:.1%}",
                "-" if row.mbytes is None else f"{row.mbytes:.3f}",
            )
            for row in rows
        ),
        sentences=tuple(sentences),
    )
