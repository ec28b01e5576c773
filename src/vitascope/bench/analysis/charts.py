"""Drawings of benchmark results: speed by batch, stages beside and below one another, the spread of frame times."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from vitascope.bench.results import Cell
from vitascope.gpu.profiling.drawing import Drawing, Line, Rectangle, Words

__all__ = ["PALETTE", "frame_time_chart", "scaling_chart", "stage_chart", "waterfall_chart"]

_WIDTH = 1000
_LEFT, _RIGHT = 260, 150
_ROW = 22
_GREY, _LIGHT = "#777777", "#e3e6ea"
PALETTE = ("#4e79a7", "#c96a12", "#3b8f88", "#4c8a3f", "#a8861a", "#8f5a80", "#c2505f", "#7d5b48", "#5b6270")
"""Colours of curves and stages, in order; readable as text on white."""
_DOT = 5


def scaling_chart(title: str, curves: Mapping[str, Sequence[tuple[int, float]]]) -> Drawing:
    """Frames a second over the batch, on logarithmic axes, where twice as fast is one step at any speed.

    Args:
        title: Of the drawing.
        curves: (batch, frames a second) by name; at least one point in all.
    """
    height, left, right, top, bottom = 380, 70, 210, 60, 44
    drawing = Drawing(_WIDTH, height)
    drawing.add(Words(16, 26, title, size=16))
    batches = sorted({batch for curve in curves.values() for batch, _ in curve})
    rates = [rate for curve in curves.values() for _, rate in curve]
    low, high = math.floor(math.log2(min(rates))), math.ceil(math.log2(max(rates)) + 1e-9)
    high = max(high, low + 1)
    x_scale = (_WIDTH - left - right) / max(math.log2(batches[-1] / batches[0]), 1e-9)
    y_scale = (height - top - bottom) / (high - low)

    def place(batch: int, rate: float) -> tuple[float, float]:
        x = (
            left + math.log2(batch / batches[0]) * x_scale
            if len(batches) > 1
            else (_WIDTH - right + left) / 2
        )
        return x, height - bottom - (math.log2(rate) - low) * y_scale

    for power in range(low, high + 1):
        y = height - bottom - (power - low) * y_scale
        drawing.add(Line(((left, y), (_WIDTH - right, y)), _LIGHT))
        drawing.add(Words(left - 6, y + 4, f"{2.0**power:g} fps", color=_GREY, size=11, anchor="end"))
    for batch in batches:
        drawing.add(
            Words(place(batch, 1)[0] + 4, height - 22, str(batch), color=_GREY, size=11, anchor="end")
        )
    drawing.add(Words(left, height - 6, "frames for each call of the network", color=_GREY, size=11))
    for n, (name, curve) in enumerate(curves.items()):
        color = PALETTE[n % len(PALETTE)]
        points = [place(batch, rate) for batch, rate in sorted(curve)]
        if len(points) > 1:
            drawing.add(Line(tuple(points), color))
        for (x, y), (batch, rate) in zip(points, sorted(curve), strict=True):
            tip = f"{name}, batch {batch}: {rate:.1f} fps"
            drawing.add(Rectangle(x - _DOT / 2, y - _DOT / 2, _DOT, _DOT, color, tip))
        drawing.add(Words(_WIDTH - right + 14, 70 + 18 * n, name, color=color))
    return drawing


def stage_chart(title: str, cells: Sequence[Cell]) -> Drawing:
    """Work for a frame in each stage; stages overlap, so the longest one alone bounds the speed.

    Args:
        title: Of the drawing.
        cells: Measured ones.
    """
    parts = [
        [(row.name.partition("/")[2], row.p50) for row in cell.rows if row.name.startswith("stage/")]
        for cell in cells
    ]
    names = list(dict.fromkeys(name for stages in parts for name, _ in stages))
    drawing = Drawing(_WIDTH, 84 + len(cells) * (_ROW + 6))
    drawing.add(Words(16, 26, title, size=16))
    for n, name in enumerate(names):
        drawing.add(Rectangle(16 + 120 * n, 42, 12, 10, _color(names, name)))
        drawing.add(Words(33 + 120 * n, 51, name, color=_GREY, size=11))
    longest = max((sum(time for _, time in stages) for stages in parts), default=0.0) or 1.0
    scale = (_WIDTH - _LEFT - _RIGHT) / longest
    y = 70.0
    for cell, stages in zip(cells, parts, strict=True):
        drawing.add(Words(_LEFT - 8, y + 15, cell.key.label(), anchor="end"))
        x = float(_LEFT)
        for name, time in stages:
            tip = f"{cell.key.label()}: {name} {time:.3f} ms"
            drawing.add(Rectangle(x, y, time * scale, _ROW, _color(names, name), tip))
            x += time * scale
        drawing.add(Words(x + 6, y + 15, f"{sum(time for _, time in stages):.2f} ms", color=_GREY, size=11))
        y += _ROW + 6
    return drawing


def waterfall_chart(title: str, cells: Sequence[Cell]) -> Drawing:
    """One frame's way, stage below stage, each beginning where the one before it ends.

    Stages of a pipeline work on different frames at a time; this is how long one frame takes without its neighbours.

    Args:
        title: Of the drawing.
        cells: Measured ones, not many.
    """
    ways = [
        (cell, [(row.name.partition("/")[2], row.p50) for row in cell.rows if row.name.startswith("stage/")])
        for cell in cells
    ]
    names = list(dict.fromkeys(name for _, stages in ways for name, _ in stages))
    lines = sum(len(stages) + 1 for _, stages in ways)
    drawing = Drawing(_WIDTH, 44 + lines * _ROW + 8 * len(ways))
    drawing.add(Words(16, 26, title, size=16))
    longest = max((sum(time for _, time in stages) for _, stages in ways), default=0.0) or 1.0
    scale = (_WIDTH - _LEFT - _RIGHT) / longest
    y = 44.0
    for cell, stages in ways:
        total = sum(time for _, time in stages) or 1.0
        drawing.add(Words(_LEFT - 8, y + 15, cell.key.label(), anchor="end"))
        drawing.add(Words(_LEFT, y + 15, f"{total:.2f} ms", color=_GREY, size=11))
        x = float(_LEFT)
        for name, time in stages:
            y += _ROW
            tip = f"{cell.key.label()}: {name} {time:.3f} ms"
            drawing.add(Words(_LEFT - 8, y + 15, name, color=_GREY, size=11, anchor="end"))
            drawing.add(Rectangle(x, y + 2, time * scale, _ROW - 4, _color(names, name), tip))
            x += time * scale
            drawing.add(Words(x + 6, y + 15, f"{time:.2f} ms, {time / total:.0%}", color=_GREY, size=11))
        y += _ROW + 8
    return drawing


def frame_time_chart(title: str, cells: Sequence[Cell]) -> Drawing:
    """From the 5th to the 99th percentile of the time for a frame, darker up to the 95th, a mark at the median.

    Args:
        title: Of the drawing.
        cells: Measured ones.
    """
    rows = [(cell, row) for cell in cells if (row := cell.row("frame_time")) is not None]
    drawing = Drawing(_WIDTH, 60 + len(rows) * (_ROW + 6))
    drawing.add(Words(16, 26, title, size=16))
    scale = (_WIDTH - _LEFT - _RIGHT) / (max((row.p99 for _, row in rows), default=0.0) or 1.0)
    y = 44.0
    for cell, row in rows:
        tip = f"p5 {row.p5:.2f}, p50 {row.p50:.2f}, p95 {row.p95:.2f}, p99 {row.p99:.2f} ms, n {row.n}"
        drawing.add(Words(_LEFT - 8, y + 15, cell.key.label(), anchor="end"))
        for begin, end, color in ((row.p5, row.p99, "#b9cbe4"), (row.p5, row.p95, "#3f6fb0")):
            drawing.add(Rectangle(_LEFT + begin * scale, y, (end - begin) * scale, _ROW, color, tip))
        drawing.add(Rectangle(_LEFT + row.p50 * scale - 1, y, 3, _ROW, "#222222", tip))
        label = f"{row.p50:.2f} ms (p99 {row.p99:.2f})"
        drawing.add(Words(_LEFT + row.p99 * scale + 6, y + 15, label, color=_GREY, size=11))
        y += _ROW + 6
    return drawing


def _color(names: Sequence[str], name: str) -> str:
    return PALETTE[names.index(name) % len(PALETTE)]
