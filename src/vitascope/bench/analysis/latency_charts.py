"""Drawings of latency: how it is spread over frames, and what speed costs of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from vitascope.bench.analysis.charts import PALETTE
from vitascope.bench.analysis.log_axes import Axis, PlotArea, log_axis
from vitascope.bench.results import Cell
from vitascope.gpu.profiling.drawing import Drawing, Line, Rectangle, Words

__all__ = ["latency_chart", "trade_off_chart"]

_WIDTH, _HEIGHT = 1000, 400
_LEFT, _TOP, _RIGHT, _BOTTOM = 84, 50, 730, 340
_LEGEND = 750
_DOT = 6
_PLACES = 100
"""Points of a curve of percentiles."""


def latency_chart(title: str, cells: Sequence[Cell]) -> Drawing:
    """Share of the frames that are through within a time, from decoder to encoder.

    Args:
        title: Of the drawing.
        cells: Measured ones.
    """
    shares = np.linspace(0, 100, _PLACES + 1)
    curves = [
        (cell.key.label(), np.percentile(row.samples, shares), row)
        for cell in cells
        if (row := cell.row("latency")) is not None
    ]
    times = [time for _, curve, _ in curves for time in (curve[0], curve[-1])]
    area = PlotArea(
        _LEFT,
        _TOP,
        _RIGHT,
        _BOTTOM,
        log_axis([max(float(time), 1e-3) for time in times], lambda ms: f"{ms:g} ms"),
        Axis(0, 100, (0, 25, 50, 75, 95), lambda share: f"{share:g}%", logarithmic=False),
    )
    drawing = Drawing(_WIDTH, _HEIGHT)
    drawing.add(Words(16, 26, title, size=16))
    area.draw(drawing, x_title="from the decoder to the encoder, queues included")
    for number, (name, curve, row) in enumerate(curves):
        color = PALETTE[number % len(PALETTE)]
        points = [
            area.place(max(float(ms), 1e-3), float(share)) for ms, share in zip(curve, shares, strict=True)
        ]
        drawing.add(Line(tuple(points), color))
        for share in (50.0, 95.0, 99.0):
            ms = float(np.interp(share, shares, curve))
            x, y = area.place(max(ms, 1e-3), share)
            tip = f"{name}: {share:g}% within {ms:.1f} ms, n {row.n}"
            drawing.add(Rectangle(x - _DOT / 2, y - _DOT / 2, _DOT, _DOT, color, tip))
        drawing.add(Words(_LEGEND, _TOP + 12 + 36 * number, name, color=color))
        told = f"p50 {row.p50:.0f}, p95 {row.p95:.0f}, p99 {row.p99:.0f} ms"
        drawing.add(Words(_LEGEND, _TOP + 27 + 36 * number, told, color="#777777", size=11))
    return drawing


def trade_off_chart(title: str, curves: Mapping[str, Sequence[Cell]]) -> Drawing:
    """Frames a second over latency, a mark for each batch: up is faster, left answers sooner.

    Args:
        title: Of the drawing.
        curves: Measured cells by name, each of one resolution and precision.
    """
    points = {
        name: [
            (cell, latency.p95, rate.p50)
            for cell in sorted(cells, key=lambda cell: cell.key.batch)
            if (latency := cell.row("latency")) is not None and (rate := cell.row("throughput")) is not None
        ]
        for name, cells in curves.items()
    }
    area = PlotArea(
        _LEFT,
        _TOP,
        _RIGHT,
        _BOTTOM,
        log_axis([ms for curve in points.values() for _, ms, _ in curve], lambda ms: f"{ms:g} ms"),
        log_axis([fps for curve in points.values() for *_, fps in curve], lambda fps: f"{fps:g} fps"),
    )
    drawing = Drawing(_WIDTH, _HEIGHT)
    drawing.add(Words(16, 26, title, size=16))
    area.draw(
        drawing, x_title="latency, 95th percentile; the numbers are frames for each call of the network"
    )
    for number, (name, curve) in enumerate(points.items()):
        color = PALETTE[number % len(PALETTE)]
        places = [area.place(ms, fps) for _, ms, fps in curve]
        if len(places) > 1:
            drawing.add(Line(tuple(places), color))
        for (x, y), (cell, ms, fps) in zip(places, curve, strict=True):
            tip = f"{cell.key.label()}: {fps:.1f} fps, 95% of frames within {ms:.1f} ms"
            drawing.add(Rectangle(x - _DOT / 2, y - _DOT / 2, _DOT, _DOT, color, tip))
            drawing.add(Words(x + 6, y - 5, str(cell.key.batch), color=color, size=11))
        drawing.add(Words(_LEGEND, _TOP + 12 + 18 * number, name, color=color))
    return drawing
