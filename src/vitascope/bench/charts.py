"""Charts of benchmark results: speed by batch, stages side by side and in sequence, frame times and latency."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from vitascope.bench.results import Cell
from vitascope.gpu.profiling.charts import GREY, PALETTE, Chart, color_of, tip

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

_ROW_INCHES = 0.28
_CURVES_INCHES = 3.8
_SHARES = np.linspace(0, 100, 101)
_APART = 0.04
"""Least distance between the labels of two points, as a share of an axis; a label that would lie nearer is left out."""


def scaling_chart(title: str, curves: Mapping[str, Sequence[tuple[int, float]]]) -> Chart:
    """Plot frames per second over the batch, on logarithmic axes, where a doubling is the same step at any speed.

    Args:
        title: Title of the chart.
        curves: (batch, frames per second) by name; at least one point in all.
    """
    batches = sorted({batch for curve in curves.values() for batch, _ in curve})

    def draw(axes: Axes) -> None:
        for n, (name, curve) in enumerate(curves.items()):
            _curve(axes, np.array(sorted(curve)).T, n, name)
            for batch, rate in curve:
                _point(axes, batch, rate, f"{name}, batch {batch}: {rate:.1f} fps")
        axes.set_xscale("log", base=2)
        axes.set_yscale("log", base=2)
        _plain_numbers(axes.yaxis, base=2, steps=(1.0,))
        rates = [rate for curve in curves.values() for _, rate in curve]
        low, high = math.floor(math.log2(min(rates))), math.ceil(math.log2(max(rates)))
        axes.set_ylim(0.95 * 2.0**low, 1.05 * 2.0 ** max(high, low + 1))
        axes.set_xticks(batches, map(str, batches))
        axes.set_xlabel("frames per call of the network")
        axes.set_ylabel("frames per second")
        _legend_beside(axes)

    return _one_chart(title, _CURVES_INCHES, draw)


def stage_chart(title: str, cells: Sequence[Cell]) -> Chart:
    """Plot the time per frame in each stage; stages overlap, so only the longest one limits the speed.

    Args:
        title: Title of the chart.
        cells: Measured cells.
    """
    ways = [cell.stages_ms() for cell in cells]
    names = list(dict.fromkeys(name for way in ways for name in way))

    def draw(axes: Axes) -> None:
        for row, (cell, way) in enumerate(zip(cells, ways, strict=True)):
            begin = 0.0
            for name, ms in way.items():
                (bar,) = axes.barh(row, ms, 0.75, left=begin, color=color_of(names, name))
                tip(bar, f"{cell.key.label()}: {name} {ms:.3f} ms")
                begin += ms
            axes.text(begin, row, f" {begin:.2f} ms", va="center", color=GREY, fontsize=8)
        for name in names:
            axes.barh(0, 0, color=color_of(names, name), label=name)
        _rows(axes, [cell.key.label() for cell in cells])
        _legend_beside(axes)

    return _one_chart(title, max(0.7 + _ROW_INCHES * len(cells), 0.2 + 0.22 * len(names)), draw)


def waterfall_chart(title: str, cells: Sequence[Cell]) -> Chart:
    """Plot the path of one frame through the stages, each beginning where the one before it ends.

    The stages of a pipeline work on different frames at the same time; this shows how long a frame takes on its own.

    Args:
        title: Title of the chart.
        cells: Measured cells, only a few.
    """
    ways = [cell.stages_ms() for cell in cells]
    names = list(dict.fromkeys(name for way in ways for name in way))

    def draw(axes: Axes) -> None:
        labels: list[str] = []
        for cell, way in zip(cells, ways, strict=True):
            total, begin = sum(way.values()) or 1.0, 0.0
            axes.text(0, len(labels), f" {total:.2f} ms", va="center", fontweight="bold")
            labels.append(cell.key.label())
            for name, ms in way.items():
                (bar,) = axes.barh(len(labels), ms, 0.75, left=begin, color=color_of(names, name))
                tip(bar, f"{cell.key.label()}: {name} {ms:.3f} ms")
                begin += ms
                told = f" {ms:.2f} ms, {ms / total:.0%}"
                axes.text(begin, len(labels), told, va="center", color=GREY, fontsize=8)
                labels.append(name)
        _rows(axes, labels)

    return _one_chart(title, 0.7 + _ROW_INCHES * sum(len(way) + 1 for way in ways), draw)


def frame_time_chart(title: str, cells: Sequence[Cell]) -> Chart:
    """Plot the time per frame from the 5th to the 99th percentile, darker up to the 95th, with a mark at the median.

    Args:
        title: Title of the chart.
        cells: Measured cells.
    """
    rows = [(cell.key.label(), row) for cell in cells if (row := cell.row("frame_time")) is not None]

    def draw(axes: Axes) -> None:
        for place, (label, row) in enumerate(rows):
            told = f"p5 {row.p5:.2f}, p50 {row.p50:.2f}, p95 {row.p95:.2f}, p99 {row.p99:.2f} ms, n {row.n}"
            for end, color in ((row.p99, "#b9cbe4"), (row.p95, "#3f6fb0")):
                (bar,) = axes.barh(place, end - row.p5, 0.75, left=row.p5, color=color)
                tip(bar, f"{label}: {told}")
            axes.plot([row.p50] * 2, [place - 0.37, place + 0.37], color="#222222", linewidth=2)
            told = f" {row.p50:.2f} ms (p99 {row.p99:.2f})"
            axes.text(row.p99, place, told, va="center", color=GREY, fontsize=8)
        _rows(axes, [label for label, _ in rows])

    return _one_chart(title, 0.7 + _ROW_INCHES * len(rows), draw)


def latency_chart(title: str, cells: Sequence[Cell]) -> Chart:
    """Plot the share of frames that pass from decoder to encoder within a given time.

    Args:
        title: Title of the chart.
        cells: Measured cells.
    """
    rows = [(cell.key.label(), row) for cell in cells if (row := cell.row("latency")) is not None]

    def draw(axes: Axes) -> None:
        for n, (label, row) in enumerate(rows):
            times = np.maximum(np.percentile(row.samples, _SHARES), 1e-3)
            told = f"{label}\np50 {row.p50:.0f}, p95 {row.p95:.0f}, p99 {row.p99:.0f} ms"
            axes.plot(times, _SHARES, color=PALETTE[n % len(PALETTE)], label=told)
            for share in (50, 95, 99):
                _point(
                    axes, times[share], share, f"{label}: {share}% within {times[share]:.1f} ms, n {row.n}"
                )
        axes.set_xscale("log")
        _plain_numbers(axes.xaxis)
        axes.set_xlabel("ms from the decoder to the encoder, queues included")
        axes.set_ylabel("% of the frames")
        _legend_beside(axes)

    return _one_chart(title, _CURVES_INCHES, draw)


def trade_off_chart(title: str, curves: Mapping[str, Sequence[Cell]]) -> Chart:
    """Plot frames per second over latency, with a mark for each batch: up is faster, left has less latency.

    Args:
        title: Title of the chart.
        curves: Measured cells by name, each curve of one resolution and precision.
    """
    points = {
        name: [
            (latency.p95, rate.p50, cell.key)
            for cell in sorted(cells, key=lambda cell: cell.key.batch)
            if (latency := cell.row("latency")) is not None and (rate := cell.row("throughput")) is not None
        ]
        for name, cells in curves.items()
    }

    def draw(axes: Axes) -> None:
        labelled: list[Any] = []
        places = np.log([(ms, fps) for curve in points.values() for ms, fps, _ in curve])
        span = np.ptp(places, axis=0) + 1e-9
        for n, (name, curve) in enumerate(points.items()):
            color = PALETTE[n % len(PALETTE)]
            path = np.array([(ms, fps) for ms, fps, _ in curve]).T
            _curve(axes, path, n, name)
            for ms, fps, key in curve:
                _point(axes, ms, fps, f"{key.label()}: {fps:.1f} fps, 95% of frames within {ms:.1f} ms")
                place = np.log((ms, fps)) / span
                if all(np.abs(place - other).max() > _APART for other in labelled):
                    labelled.append(place)
                    batch = str(key.batch)
                    axes.annotate(
                        batch, (ms, fps), (4, -9), textcoords="offset points", color=color, fontsize=8
                    )
        axes.set_xscale("log")
        axes.set_yscale("log")
        for axis in (axes.xaxis, axes.yaxis):
            _plain_numbers(axis)
        axes.set_xlabel("latency in ms, 95th percentile; the numbers are frames for each call of the network")
        axes.set_ylabel("frames per second")
        _legend_beside(axes)

    return _one_chart(title, _CURVES_INCHES, draw)


def _one_chart(title: str, height_inches: float, draw: Callable[[Axes], object]) -> Chart:
    def draw_all(figure: Figure) -> None:
        figure.suptitle(title, x=0.01, ha="left", fontsize=11)
        draw(figure.subplots())

    return Chart(0.3 + height_inches, draw_all)


def _rows(axes: Axes, labels: Sequence[str]) -> None:
    """Label a row for each bar, the first on top, and leave room for the figure behind the longest."""
    axes.set_yticks(range(len(labels)), labels)
    axes.set_ylim(len(labels) - 0.4, -0.6)
    axes.margins(x=0.35)
    axes.set_xlim(left=0)
    axes.set_xlabel("ms per frame")
    axes.grid(axis="y", visible=False)


def _curve(axes: Axes, path: npt.NDArray[np.float64], number: int, name: str) -> None:
    """Draw a line through points, float64 [2, N], with a mark at each."""
    axes.plot(*path, color=PALETTE[number % len(PALETTE)], marker="o", markersize=4, label=name)


def _point(axes: Axes, x: float, y: float, told: str) -> None:
    """Draw an almost invisible dot on a curve, with a text that appears under the mouse pointer."""
    (mark,) = axes.plot(x, y, marker="o", markersize=8, alpha=0.01)
    tip(mark, told)


def _plain_numbers(axis: Axis, *, base: int = 10, steps: Sequence[float] = (1.0, 2.0, 5.0)) -> None:
    """Write plain numbers such as ``50`` and ``2000`` on a logarithmic axis, at these multiples of its powers."""
    from matplotlib.ticker import LogLocator, NullLocator, StrMethodFormatter

    axis.set_major_locator(LogLocator(base, subs=steps))
    axis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axis.set_minor_locator(NullLocator())


def _legend_beside(axes: Axes) -> None:
    axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1), borderaxespad=0)
