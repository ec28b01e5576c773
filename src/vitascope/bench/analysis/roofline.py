"""What a part of the way achieves, held against what the device gave in the same run.

::

    attainable FLOP/s = min(matrix products, copy bandwidth * FLOPs per byte)

A part whose FLOPs per byte lie left of the ridge (matrix products / copy bandwidth) can at best be bound by memory,
right of it by arithmetic. Williams, Waterman, Patterson: Roofline, 2009.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from vitascope.bench.analysis.log_axes import PlotArea, log_axis, scaled
from vitascope.bench.results import BenchResults, Ceilings, Cell, PartWork
from vitascope.gpu.profiling.drawing import Drawing, Line, Rectangle, Words

__all__ = ["Bound", "RoofPoint", "Roofs", "roof_points", "roofline_chart", "roofs_of"]


Bound = Literal["memory", "compute", "neither"]
_REACHED = 0.5
"""Share of the roof above a part from which it is the roof that bounds it; below, most of the time goes elsewhere."""


@dataclass(frozen=True, slots=True)
class Roofs:
    """Both ceilings of a device, for one precision."""

    device: Literal["cpu", "cuda"]
    precision: str
    bytes_per_second: float
    flops_per_second: float

    @property
    def ridge(self) -> float:
        """FLOPs per byte where both are reached at once."""
        return self.flops_per_second / self.bytes_per_second

    def attainable(self, intensity: float) -> float:
        """Most FLOP/s for so many FLOPs per byte."""
        return min(self.flops_per_second, intensity * self.bytes_per_second)


@dataclass(frozen=True, slots=True, kw_only=True)
class RoofPoint:
    """One part of one cell under its roofs."""

    cell: Cell
    work: PartWork
    roofs: Roofs
    ms: float
    """For a frame, median."""

    @property
    def bytes_per_second(self) -> float:
        """Achieved, of the bytes that must move."""
        assert self.work.nbytes is not None  # others make no point
        return self.work.nbytes / (self.ms / 1e3)

    @property
    def flops_per_second(self) -> float | None:
        """Achieved; None where the arithmetic is not counted."""
        return None if self.work.flops is None else self.work.flops / (self.ms / 1e3)

    @property
    def intensity(self) -> float | None:
        """FLOPs per byte."""
        assert self.work.nbytes is not None
        return None if self.work.flops is None else self.work.flops / self.work.nbytes

    @property
    def copy_share(self) -> float:
        """The share of the copy bandwidth; above 1 where caches held what was counted as moved."""
        return self.bytes_per_second / self.roofs.bytes_per_second

    @property
    def compute_share(self) -> float | None:
        """The share of the ceiling of matrix products."""
        rate = self.flops_per_second
        return None if rate is None else rate / self.roofs.flops_per_second

    @property
    def roof_share(self) -> float:
        """The share of what is attainable at its FLOPs per byte."""
        rate, intensity = self.flops_per_second, self.intensity
        return (
            self.copy_share if rate is None or intensity is None else rate / self.roofs.attainable(intensity)
        )

    @property
    def bound(self) -> Bound:
        """What bounds it: ``neither`` where it stays far below its roof."""
        if self.roof_share < _REACHED:
            return "neither"
        intensity = self.intensity
        return "memory" if intensity is None or intensity < self.roofs.ridge else "compute"


def roofs_of(ceilings: Sequence[Ceilings], *, device: str, precision: str) -> Roofs | None:
    """The roofs of a device; None where one of them was not measured.

    Args:
        ceilings: Of the run.
        device: ``cpu`` or ``cuda``.
        precision: Of the products; ``mixed`` multiplies in fp16.
    """
    wanted = "fp16" if precision == "mixed" else precision
    for one in ceilings:
        if one.device == device:
            copy, products = one.median("copy"), one.median(f"matmul/{wanted}")
            if copy and products:
                return Roofs(one.device, wanted, copy, products)
    return None


def roof_points(results: BenchResults) -> list[RoofPoint]:
    """Every part of every cell whose work, time and roofs are known."""
    found = []
    for cell in results.measured:
        for work in cell.work:
            roofs = roofs_of(results.ceilings, device=work.device, precision=work.precision)
            ms = cell.median(work.row)
            if roofs is not None and ms and work.nbytes:
                found.append(RoofPoint(cell=cell, work=work, roofs=roofs, ms=ms))
    return found


_WIDTH, _HEIGHT = 1000, 450
_LEFT, _TOP, _RIGHT, _BOTTOM = 96, 50, 740, 388
_LEGEND = 760
_ROOF_COLORS = ("#222222", "#8f5a80", "#7d5b48", "#5b6270")
_PART_COLORS = {"network": "#3f6fb0", "preprocess": "#3b8f88", "composite": "#c96a12"}
_DOT = 8
_MARGIN = 2.0
"""Room beside the outermost marks."""
_DEVICES = {"cpu": "processor", "cuda": "GPU"}


def roofline_chart(title: str, points: Sequence[RoofPoint]) -> Drawing:
    """FLOP/s over FLOPs per byte, on logarithmic axes.

    Args:
        title: Of the drawing.
        points: At least one whose arithmetic is counted; others are left out.
    """
    drawn = [
        (point, point.intensity, rate)
        for point in points
        if (rate := point.flops_per_second) is not None and point.intensity is not None
    ]
    roofs = list(dict.fromkeys(point.roofs for point, *_ in drawn))
    intensities = [*(intensity for _, intensity, _ in drawn), *(roof.ridge for roof in roofs)]
    rates = [*(rate for *_, rate in drawn), *(roof.flops_per_second for roof in roofs)]
    area = PlotArea(
        _LEFT,
        _TOP,
        _RIGHT,
        _BOTTOM,
        log_axis([min(intensities) / _MARGIN, max(intensities) * _MARGIN], lambda value: f"{value:g}"),
        log_axis([min(rates), max(rates)], lambda value: scaled(value, "FLOP/s")),
    )
    drawing = Drawing(_WIDTH, _HEIGHT)
    drawing.add(Words(16, 26, title, size=16))
    area.draw(drawing, x_title="FLOPs for each byte that must move")
    for number, roof in enumerate(roofs):
        _draw_roof(drawing, roof, area, number)
    y_legend = _TOP + 14 + 40 * len(roofs)
    for part in dict.fromkeys(point.work.part for point, *_ in drawn):
        drawing.add(Rectangle(_LEGEND, y_legend - 9, _DOT, _DOT, _PART_COLORS[part]))
        drawing.add(Words(_LEGEND + 16, y_legend, part))
        y_legend += 20
    for point, intensity, rate in drawn:
        x, y = area.place(intensity, rate)
        tip = (
            f"{point.cell.key.label()}: {point.work.part}, {scaled(rate, 'FLOP/s')}, "
            f"{scaled(point.bytes_per_second, 'B/s')}, {point.roof_share:.0%} of the roof"
        )
        drawing.add(Rectangle(x - _DOT / 2, y - _DOT / 2, _DOT, _DOT, _PART_COLORS[point.work.part], tip))
    return drawing


def _draw_roof(drawing: Drawing, roof: Roofs, area: PlotArea, number: int) -> None:
    """Slope and flat, and in the legend what they are."""
    color = _ROOF_COLORS[number % len(_ROOF_COLORS)]
    # The slope begins where it enters the drawing: at its left edge or at its foot.
    first = max(area.x.low, area.y.low / roof.bytes_per_second)
    path = [area.place(x, roof.attainable(x)) for x in (first, roof.ridge, area.x.high)]
    drawing.add(Line(tuple(path), color))
    y = _TOP + 14 + 40 * number
    drawing.add(Words(_LEGEND, y - 4, f"{_DEVICES[roof.device]}, {roof.precision}:", color=color))
    told = f"{scaled(roof.flops_per_second, 'FLOP/s')}, {scaled(roof.bytes_per_second, 'B/s')}"
    drawing.add(Words(_LEGEND, y + 12, told, color=color))
