"""Axes of drawings: logarithmic, or linear, with round numbers beside them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from vitascope.gpu.profiling.drawing import Drawing, Line, Words

__all__ = ["Axis", "PlotArea", "log_axis", "scaled"]

_GREY, _LIGHT = "#777777", "#e3e6ea"
_SINGLE_STEPS = 2.2
"""Decades up to which steps of 1, 2 and 5 are marked; above, powers of ten."""
_PREFIXES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def scaled(value: float, unit: str) -> str:
    """A figure with the prefix that keeps it short: ``800 TFLOP/s``."""
    for factor, prefix in _PREFIXES:
        if value >= factor:
            return f"{value / factor:.4g} {prefix}{unit}"
    return f"{value:.4g} {unit}"


@dataclass(frozen=True, slots=True)
class Axis:
    """What lies between two values, and what is written beside it."""

    low: float
    high: float
    marks: tuple[float, ...]
    label: Callable[[float], str]
    logarithmic: bool = True

    def share(self, value: float) -> float:
        """Where a value lies, 0 at ``low`` and 1 at ``high``."""
        if self.logarithmic:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)


def log_axis(values: Sequence[float], label: Callable[[float], str]) -> Axis:
    """A logarithmic axis that holds all values and ends on round numbers.

    Args:
        values: Above 0, at least one.
        label: Of a mark.
    """
    low, high = min(values), max(values)
    decades = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 2)
    fine = math.log10(high / low) <= _SINGLE_STEPS
    steps = [factor * 10.0**power for power in decades for factor in ((1, 2, 5) if fine else (1,))]
    first = max(step for step in steps if step <= low * 1.0001)
    last = min(step for step in steps if step >= high * 0.9999 and step > first)
    marks = tuple(step for step in steps if first <= step <= last)
    return Axis(first, last, marks, label)


@dataclass(frozen=True, slots=True)
class PlotArea:
    """The rectangle between two axes, in pixels of the drawing."""

    left: float
    top: float
    right: float
    bottom: float
    x: Axis
    y: Axis

    def place(self, x: float, y: float) -> tuple[float, float]:
        """Where a point lies."""
        return (
            self.left + self.x.share(x) * (self.right - self.left),
            self.bottom - self.y.share(y) * (self.bottom - self.top),
        )

    def draw(self, drawing: Drawing, *, x_title: str) -> None:
        """Grid, numbers and the words below."""
        for value in self.y.marks:
            _, y = self.place(self.x.low, value)
            drawing.add(Line(((self.left, y), (self.right, y)), _LIGHT))
            drawing.add(Words(self.left - 6, y + 4, self.y.label(value), color=_GREY, size=11, anchor="end"))
        for value in self.x.marks:
            x, _ = self.place(value, self.y.low)
            drawing.add(Line(((x, self.top), (x, self.bottom)), _LIGHT))
            drawing.add(
                Words(x + 6, self.bottom + 17, self.x.label(value), color=_GREY, size=11, anchor="end")
            )
        drawing.add(Words(self.left, self.bottom + 38, x_title, color=_GREY, size=11))
