"""The roofline drawn: both roofs of each device and precision, and a mark for each part of each cell."""

from __future__ import annotations

from collections.abc import Sequence

from vitascope.gpu.profiling.drawing import Drawing, Line, Rectangle, Words
from vitascope.tuning.log_axes import PlotArea, log_axis, scaled
from vitascope.tuning.roofline import RoofPoint, Roofs

__all__ = ["roofline_chart"]

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
