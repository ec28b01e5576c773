"""Rectangles, lines and words, drawn as SVG or as a PNG picture, without a plotting library."""

from __future__ import annotations

from dataclasses import dataclass, field
from html import escape

import cv2
import numpy as np

__all__ = ["Drawing", "Line", "Rectangle", "Words"]

_FONT = cv2.FONT_HERSHEY_SIMPLEX
_FONT_HEIGHT = 22.0  # OpenCV's font at scale 1, in pixels from the base line to the top of a capital letter
_SVG_CAPITAL = 0.72  # the same of a sans-serif font of size 1


@dataclass(frozen=True, slots=True)
class Rectangle:
    """A filled rectangle, in pixels from the upper left corner."""

    x: float
    y: float
    width: float
    height: float
    color: str
    """``#rrggbb``."""
    tip: str = ""
    """Shown by a browser over it."""


@dataclass(frozen=True, slots=True)
class Line:
    """A line through points, one pixel wide."""

    points: tuple[tuple[float, float], ...]
    color: str


@dataclass(frozen=True, slots=True)
class Words:
    """One line of text; ``y`` is its base line."""

    x: float
    y: float
    text: str
    color: str = "#222222"
    size: float = 12.0
    """Pixels."""
    anchor: str = "start"
    """``start`` or ``end``: which end stands at ``x``."""


@dataclass(slots=True)
class Drawing:
    """What is drawn, in the order in which it is laid down, on white."""

    width: int
    height: int
    marks: list[Rectangle | Line | Words] = field(default_factory=list)

    def add(self, mark: Rectangle | Line | Words) -> None:
        """Lay something on top."""
        self.marks.append(mark)

    def to_svg(self) -> str:
        """An ``<svg>`` element that scales with its surroundings."""
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" width="{self.width}" '
            'font-family="sans-serif" role="img">',
            f'<rect width="{self.width}" height="{self.height}" fill="#ffffff"/>',
        ]
        parts += [_svg(mark) for mark in self.marks]
        return "\n".join([*parts, "</svg>"])

    def to_bgr(self) -> np.ndarray:
        """uint8 [height, width, 3], blue first, 0..255. OpenCV's font has ASCII only; other letters become ``?``."""
        picture = np.full((self.height, self.width, 3), 255, np.uint8)
        for mark in self.marks:
            if isinstance(mark, Rectangle):
                left, top = round(mark.x), round(mark.y)
                right = max(round(mark.x + mark.width), left + 1)
                bottom = max(round(mark.y + mark.height), top + 1)
                picture[max(top, 0) : bottom, max(left, 0) : right] = _bgr(mark.color)
            elif isinstance(mark, Line):
                points = np.round(np.array(mark.points)).astype(np.int32)
                cv2.polylines(picture, [points], isClosed=False, color=_bgr(mark.color), lineType=cv2.LINE_AA)
            else:
                _write(picture, mark)
        return picture

    def to_png(self) -> bytes:
        """The same as a PNG file."""
        encoded, content = cv2.imencode(".png", self.to_bgr())
        assert encoded  # PNG takes every 8-bit picture
        return content.tobytes()


def _svg(mark: Rectangle | Line | Words) -> str:
    if isinstance(mark, Rectangle):
        tip = f"<title>{escape(mark.tip)}</title>" if mark.tip else ""
        return (
            f'<rect x="{mark.x:.2f}" y="{mark.y:.2f}" width="{max(mark.width, 0.3):.2f}" height="{mark.height:.2f}" '
            f'fill="{mark.color}">{tip}</rect>'
        )
    if isinstance(mark, Line):
        points = " ".join(f"{x:.2f},{y:.2f}" for x, y in mark.points)
        return f'<polyline points="{points}" fill="none" stroke="{mark.color}"/>'
    return (
        f'<text x="{mark.x:.1f}" y="{mark.y:.1f}" fill="{mark.color}" font-size="{mark.size:g}" '
        f'text-anchor="{mark.anchor}">{escape(mark.text)}</text>'
    )


def _write(picture: np.ndarray, words: Words) -> None:
    text = words.text.encode("ascii", errors="replace").decode()
    scale = words.size * _SVG_CAPITAL / _FONT_HEIGHT
    (width, _), _ = cv2.getTextSize(text, _FONT, scale, 1)
    x = words.x - width if words.anchor == "end" else words.x
    origin = (round(x), round(words.y))
    cv2.putText(picture, text, origin, _FONT, scale, _bgr(words.color), 1, cv2.LINE_AA)


def _bgr(color: str) -> tuple[int, int, int]:
    red, green, blue = bytes.fromhex(color[1:])
    return blue, green, red
