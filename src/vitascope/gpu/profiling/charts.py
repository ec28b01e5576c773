"""Drawings of a profile: where the time went, and when."""

from __future__ import annotations

import zlib
from typing import Any

from vitascope.gpu.profiling.drawing import Drawing, Line, Rectangle, Words

__all__ = ["curve_chart", "profile_chart"]

_WIDTH = 1200
_LEFT, _RIGHT = 260, 20
_ROW = 18
_MOST_BARS = 20
_NARROWEST = 0.25  # pixels; what is narrower would not be seen
_MOST_BOXES = 8000  # a page with more is slow to open
_GREY, _LIGHT = "#777777", "#e3e6ea"
_HOST, _SELF, _GPU = "#b9cbe4", "#3f6fb0", "#6aa84f"
_PALETTE = ("#4e79a7", "#c96a12", "#3b8f88", "#4c8a3f", "#a8861a", "#8f5a80", "#c2505f", "#7d5b48", "#5b6270")


def profile_chart(document: dict[str, Any]) -> Drawing:
    """Bars of the places that took longest, and below a timeline of every thread and CUDA stream.

    Args:
        document: Of ``profile_document``.
    """
    bars = sorted(document["summary"], key=lambda row: -row["total_seconds"])[:_MOST_BARS]
    lanes = _lanes(document)
    boxes_height = sum((depth + 1) * _ROW + 8 for _, depth, _ in lanes)
    drawing = Drawing(_WIDTH, 90 + len(bars) * (_ROW + 6) + (50 + boxes_height if lanes else 0))
    drawing.add(Words(16, 26, str(document["name"]), size=18))
    drawing.add(Words(16, 46, f"{document['wall_seconds']:.3f} s, began {document['began_at']}", color=_GREY))
    y = _draw_bars(drawing, bars, top=60)
    if lanes:
        _draw_timeline(drawing, lanes, top=y + 26)
    return drawing


def _draw_bars(drawing: Drawing, rows: list[dict[str, Any]], *, top: float) -> float:
    """Total, own and GPU time of each place; returns where it ends."""
    if not rows:
        drawing.add(Words(16, top + 14, "no span has ended", color=_GREY))
        return top + 20
    for x, color, text in ((_LEFT, _HOST, "inside"), (_LEFT + 90, _SELF, "own"), (_LEFT + 160, _GPU, "GPU")):
        drawing.add(Rectangle(x, top, 12, 10, color))
        drawing.add(Words(x + 17, top + 9, text, color=_GREY, size=11))
    top += 18
    longest = max(_longest(row) for row in rows) or 1.0
    scale = (_WIDTH - _LEFT - 190) / longest
    for row in rows:
        path, gpu = row["path"], row["gpu"]
        tip = f"{' > '.join(path)}: {row['count']} times, {row['total_seconds'] * 1e3:.3f} ms"
        drawing.add(Words(_LEFT - 8, top + 13, _short(path), anchor="end"))
        drawing.add(Rectangle(_LEFT, top, row["total_seconds"] * scale, _ROW, _HOST, tip))
        drawing.add(Rectangle(_LEFT, top, row["self_seconds"] * scale, _ROW * 0.55, _SELF, tip))
        if gpu:
            width = gpu["total_seconds"] * scale
            drawing.add(Rectangle(_LEFT, top + _ROW * 0.7, width, _ROW * 0.3, _GPU, tip))
        label = f"{row['total_seconds'] * 1e3:.1f} ms, {row['count']} x {row['mean_seconds'] * 1e3:.3f}"
        drawing.add(Words(_LEFT + _longest(row) * scale + 6, top + 13, label, color=_GREY, size=11))
        top += _ROW + 6
    return top


def _longest(row: dict[str, Any]) -> float:
    return max(float(row["total_seconds"]), float(row["gpu"]["total_seconds"]) if row["gpu"] else 0.0)


Box = tuple[float, float, int, str, str]
"""Begin and length in seconds, depth, name, tip."""


def _lanes(document: dict[str, Any]) -> list[tuple[str, int, list[Box]]]:
    """Name, greatest depth and boxes of every thread and stream, in the order of their numbers."""
    summary = document["summary"]
    names = {row["number"]: row["name"] for row in document["threads"]}
    hosts: dict[int, list[Box]] = {}
    streams: dict[tuple[int, int], list[Box]] = {}
    for span in document["spans"]:
        path = summary[span["place"]]["path"]
        title = " > ".join(path)
        tip = f"{title}: {span['seconds'] * 1e3:.3f} ms" + (f" ({span['error']})" if span["error"] else "")
        box = (span["start_seconds"], span["seconds"], len(path) - 1, path[-1], tip)
        hosts.setdefault(span["thread"], []).append(box)
        if gpu := span["gpu"]:
            tip = f"{title} on the GPU: {gpu['seconds'] * 1e3:.3f} ms"
            lane = streams.setdefault((gpu["device"], gpu["stream"]), [])
            lane.append((gpu["start_seconds"], gpu["seconds"], len(path) - 1, path[-1], tip))
    lanes = [(names[number], _flush_left(boxes)) for number, boxes in sorted(hosts.items())]
    lanes += [
        (f"GPU {device}, stream {stream:#x}", _flush_left(boxes))
        for (device, stream), boxes in sorted(streams.items())
    ]
    return [(name, max(box[2] for box in boxes), boxes) for name, boxes in lanes]


def _flush_left(boxes: list[Box]) -> list[Box]:
    """Depths from 0: what is around them may lie in another lane, or still be open."""
    least = min(box[2] for box in boxes)
    return [(begin, length, depth - least, name, tip) for begin, length, depth, name, tip in boxes]


def _draw_timeline(drawing: Drawing, lanes: list[tuple[str, int, list[Box]]], *, top: float) -> None:
    begin = min(box[0] for _, _, boxes in lanes for box in boxes)
    end = max(box[0] + box[1] for _, _, boxes in lanes for box in boxes)
    scale = (_WIDTH - _LEFT - _RIGHT) / max(end - begin, 1e-9)
    drawing.add(Words(16, top, "timeline", size=14))
    drawing.add(Words(_LEFT, top, f"{begin:.3f} s", color=_GREY, size=11))
    drawing.add(Words(_WIDTH - _RIGHT, top, f"{end:.3f} s", color=_GREY, size=11, anchor="end"))
    y = top + 10
    room = _MOST_BOXES
    for name, depth, boxes in lanes:
        height = (depth + 1) * _ROW
        drawing.add(Rectangle(_LEFT, y, _WIDTH - _LEFT - _RIGHT, height, _LIGHT))
        drawing.add(Words(_LEFT - 8, y + 13, _clip(name, 36), anchor="end"))
        seen = sorted(boxes, key=lambda box: -box[1])[: max(room // len(lanes), 1)]
        for start, length, level, title, tip in sorted(seen, key=lambda box: (box[2], box[0])):
            x, width = _LEFT + (start - begin) * scale, length * scale
            if width < _NARROWEST and len(boxes) > 500:
                continue
            drawing.add(Rectangle(x, y + level * _ROW + 1, max(width, 0.5), _ROW - 2, _color(title), tip))
            if width > 7 * len(title) + 6:
                drawing.add(Words(x + 3, y + level * _ROW + 13, title, color="#ffffff", size=11))
        y += height + 8


def curve_chart(title: str, curves: dict[str, list[tuple[float, float]]], *, unit: str) -> Drawing:
    """Curves over seconds, from zero to the greatest value.

    Args:
        title: Of the drawing.
        curves: Points (seconds, value) by name.
        unit: Of the values.
    """
    width, height, left, bottom, top = 1200, 420, 90, 40, 60
    drawing = Drawing(width, height)
    drawing.add(Words(16, 26, title, size=18))
    points = [point for curve in curves.values() for point in curve]
    if not points:
        drawing.add(Words(16, 60, "nothing was measured", color=_GREY))
        return drawing
    begin, end = min(point[0] for point in points), max(point[0] for point in points)
    most = max(point[1] for point in points) or 1.0
    x_scale = (width - left - _RIGHT) / max(end - begin, 1e-9)
    y_scale = (height - top - bottom) / most
    for share in (0, 0.25, 0.5, 0.75, 1):
        y = height - bottom - share * most * y_scale
        drawing.add(Line(((left, y), (width - _RIGHT, y)), _LIGHT))
        drawing.add(Words(left - 6, y + 4, f"{share * most:.4g}", color=_GREY, size=11, anchor="end"))
    drawing.add(Words(left, height - 14, f"{begin:.2f} s", color=_GREY, size=11))
    drawing.add(Words(width - _RIGHT, height - 14, f"{end:.2f} s", color=_GREY, size=11, anchor="end"))
    for n, (name, curve) in enumerate(curves.items()):
        color = _PALETTE[n % len(_PALETTE)]
        path = tuple((left + (x - begin) * x_scale, height - bottom - y * y_scale) for x, y in curve)
        drawing.add(Line(path, color))
        drawing.add(Words(left + 180 * n, 48, f"{name} ({unit})", color=color))
    return drawing


def _color(name: str) -> str:
    return _PALETTE[zlib.crc32(name.encode()) % len(_PALETTE)]


def _short(path: list[str]) -> str:
    """The path's end, with dots for what does not fit."""
    return _clip(" > ".join(path), 36)


def _clip(text: str, most: int) -> str:
    return text if len(text) <= most else "..." + text[3 - most :]
