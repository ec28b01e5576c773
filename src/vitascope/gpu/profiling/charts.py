"""Charts of profiles, memory and benchmarks, drawn by matplotlib, in one style for pages (SVG) and files (PNG).

matplotlib is in the extra ``bench``. It is imported when a chart is drawn, and never through ``pyplot``.
"""

from __future__ import annotations

import re
import warnings
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from io import BytesIO
from itertools import groupby
from typing import TYPE_CHECKING, Any

from vitascope.errors import MissingDependencyError

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PALETTE = ("#4e79a7", "#c96a12", "#3b8f88", "#4c8a3f", "#a8861a", "#8f5a80", "#c2505f", "#7d5b48", "#5b6270")
"""Colours of curves and stages, in order; readable as text on white."""
GREY = "#666666"
_LIGHT = "#e3e6ea"
_HOST, _SELF, _GPU = "#b9cbe4", "#3f6fb0", "#6aa84f"
_WIDTH_INCHES = 8.0
_PNG_DPI = 150
_LOOK: dict[Any, Any] = {
    "font.size": 9,
    "axes.titlesize": 11,
    "axes.titlelocation": "left",
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#b0b6bd",
    "axes.labelcolor": GREY,
    "axes.grid": True,
    "grid.color": _LIGHT,
    "xtick.color": GREY,
    "ytick.labelcolor": "#222222",
    "ytick.color": "#b0b6bd",
    "legend.frameon": False,
    "svg.fonttype": "none",  # keep text as text: small and searchable
    "svg.hashsalt": "vitascope",  # the same drawing gives the same file
    "text.parse_math": False,  # names may hold dollar signs
}
_TIP = "tip: "


def require_matplotlib() -> None:
    """Check that charts can be drawn, before the measurement that they would show.

    Raises:
        MissingDependencyError: matplotlib is not installed.
    """
    if find_spec("matplotlib") is None:
        raise MissingDependencyError("charts are drawn by matplotlib: pip install 'vitascope[bench]'")


@dataclass(frozen=True, slots=True)
class Chart:
    """A drawing that can be rendered in several formats."""

    height_inches: float
    draw: Callable[[Figure], object]
    """Draws into an empty figure, 8 inches wide."""

    def to_svg(self) -> str:
        """Render an ``<svg>`` element for a page; bars and marks show their values on hover.

        Raises:
            MissingDependencyError: matplotlib is not installed.
        """
        nothing = {"Creator": None, "Date": None, "Format": None, "Type": None}
        text = self._saved(format="svg", metadata=nothing).decode()
        element = re.sub(rf'<g id="{_TIP}([^"]*)">', r"<g><title>\1</title>", text[text.index("<svg") :])
        return re.sub(r'<g id="[^"]*">', "<g>", element)  # all drawings of a page would use the same ids

    def to_png(self) -> bytes:
        """Render a PNG file, 1200 pixels wide.

        Raises:
            MissingDependencyError: matplotlib is not installed.
        """
        return self._saved(format="png", dpi=_PNG_DPI)

    def _saved(self, **options: Any) -> bytes:
        require_matplotlib()
        import matplotlib
        from matplotlib.figure import Figure

        content = BytesIO()
        with matplotlib.rc_context(_LOOK), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Glyph .* missing from font")  # any script
            figure = Figure(figsize=(_WIDTH_INCHES, self.height_inches), layout="constrained")
            self.draw(figure)
            figure.savefig(content, **options)
        return content.getvalue()


def tip(artist: Artist, text: str) -> None:
    """Show a text when the pointer hovers over an artist of an SVG."""
    artist.set_gid(_TIP + text)


def color_of(names: Sequence[str], name: str) -> str:
    """The colour of a name, by its position among all."""
    return PALETTE[names.index(name) % len(PALETTE)]


_MOST_BARS = 20
_MOST_LETTERS = 30
_MOST_BOXES = 8000
"""Maximum number of boxes in a timeline; a page with more is slow to open."""
_TIPPED_SHARE = 0.002
"""Share of a timeline's width from which a box is wide enough to point at, and gets a tip."""
_ROW_INCHES = 0.24


def profile_chart(document: dict[str, Any]) -> Chart:
    """Bars of the places that took longest, above a timeline of every thread and CUDA stream.

    Args:
        document: A profile, as ``profile_document`` returns it.
    """
    bars = sorted(document["summary"], key=lambda row: -row["total_seconds"])[:_MOST_BARS]
    lanes = _lanes(document)
    rows = sum(depth + 1 for _, depth, _ in lanes)
    heights = [0.9 + _ROW_INCHES * max(len(bars), 1), *([0.8 + _ROW_INCHES * rows] if lanes else [])]

    def draw(figure: Figure) -> None:
        figure.suptitle(str(document["name"]), x=0.01, ha="left", fontsize=12)
        axes = figure.subplots(len(heights), 1, squeeze=False, height_ratios=heights)[:, 0]
        _draw_bars(axes[0], bars)
        if lanes:
            _draw_timeline(axes[1], lanes)

    return Chart(0.3 + sum(heights), draw)


def _draw_bars(axes: Axes, rows: list[dict[str, Any]]) -> None:
    """Draw total, self and GPU time of each place."""
    axes.set_title("time by place")
    if not rows:
        axes.set_axis_off()
        axes.text(0, 0.5, "no span has ended", color=GREY)
        return
    for n, row in enumerate(rows):
        path, gpu = row["path"], row["gpu"]
        times = [(row["total_seconds"], _HOST, 0.8, 0.0), (row["self_seconds"], _SELF, 0.4, -0.2)]
        if gpu:
            times.append((gpu["total_seconds"], _GPU, 0.25, 0.28))
        for seconds, color, height, offset in times:
            (bar,) = axes.barh(n + offset, seconds * 1e3, height, color=color)
            tip(bar, f"{' > '.join(path)}: {row['count']} times, {row['total_seconds'] * 1e3:.3f} ms")
        label = f" {row['total_seconds'] * 1e3:.1f} ms, {row['count']} x {row['mean_seconds'] * 1e3:.3f}"
        axes.text(max(seconds for seconds, *_ in times) * 1e3, n, label, va="center", color=GREY, fontsize=8)
    axes.set_yticks(range(len(rows)), [_clip(" > ".join(row["path"])) for row in rows])
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.margins(x=0.35)
    axes.set_xlim(left=0)
    axes.set_xlabel("ms")
    axes.grid(axis="y", visible=False)
    for text, color in (("inside", _HOST), ("own", _SELF), ("GPU", _GPU)):
        axes.barh(0, 0, color=color, label=text)
    axes.legend(loc="lower right", ncols=3, bbox_to_anchor=(1, 1))


Box = tuple[float, float, int, str, str]
"""Start and length in seconds, depth, name, tip."""


def _lanes(document: dict[str, Any]) -> list[tuple[str, int, list[Box]]]:
    """Name, greatest depth and boxes of every thread and stream, in order of their numbers."""
    summary = document["summary"]
    names = {row["number"]: row["name"] for row in document["threads"]}
    hosts: dict[int, list[Box]] = {}
    streams: dict[tuple[int, int], list[Box]] = {}
    for span in document["spans"]:
        path = summary[span["place"]]["path"]
        title = " > ".join(path)
        told = f"{title}: {span['seconds'] * 1e3:.3f} ms" + (f" ({span['error']})" if span["error"] else "")
        box = (span["start_seconds"], span["seconds"], len(path) - 1, path[-1], told)
        hosts.setdefault(span["thread"], []).append(box)
        if gpu := span["gpu"]:
            told = f"{title} on the GPU: {gpu['seconds'] * 1e3:.3f} ms"
            lane = streams.setdefault((gpu["device"], gpu["stream"]), [])
            lane.append((gpu["start_seconds"], gpu["seconds"], len(path) - 1, path[-1], told))
    lanes = [(names[number], _flush_left(boxes)) for number, boxes in sorted(hosts.items())]
    lanes += [
        (f"GPU {device}, stream {stream:#x}", _flush_left(boxes))
        for (device, stream), boxes in sorted(streams.items())
    ]
    return [(name, max(box[2] for box in boxes), boxes) for name, boxes in lanes]


def _flush_left(boxes: list[Box]) -> list[Box]:
    """Shift depths to start at 0: enclosing spans may be in another lane, or still open."""
    least = min(box[2] for box in boxes)
    return [(begin, length, depth - least, name, told) for begin, length, depth, name, told in boxes]


def _draw_timeline(axes: Axes, lanes: list[tuple[str, int, list[Box]]]) -> None:
    axes.set_title("timeline")
    begin = min(box[0] for _, _, boxes in lanes for box in boxes)
    end = max(max(box[0] + box[1] for _, _, boxes in lanes for box in boxes), begin + 1e-9)
    row, ticks = 0, []
    for name, depth, boxes in lanes:
        ticks.append((row, name))
        seen = sorted(boxes, key=lambda box: -box[1])[: max(_MOST_BOXES // len(lanes), 1)]
        is_wide = [box[1] >= _TIPPED_SHARE * (end - begin) for box in seen]
        for (start, length, level, title, told), wide in zip(seen, is_wide, strict=True):
            if not wide:
                break  # rows are sorted by time
            (bar,) = axes.barh(row + level, length, 0.8, left=start, color=_color_by_name(title))
            tip(bar, told)
            if length / (end - begin) > 0.014 * (len(title) + 1):
                axes.text(start, row + level, f" {title}", va="center", color="white", fontsize=7)
        narrow = sorted(seen[is_wide.count(True) :], key=lambda box: (box[2], box[3]))
        for (level, title), alike in groupby(narrow, key=lambda box: (box[2], box[3])):
            stretches = [(box[0], box[1]) for box in alike]
            axes.broken_barh(stretches, (row + level - 0.4, 0.8), color=_color_by_name(title))
        row += depth + 1
        axes.axhline(row - 0.5, color="#b0b6bd", linewidth=0.6)
    axes.set_yticks([place for place, _ in ticks], [_clip(name) for _, name in ticks])
    axes.set_ylim(row - 0.5, -0.5)
    axes.set_xlim(begin, end)
    axes.set_xlabel("s")
    axes.grid(axis="y", visible=False)


def curve_chart(title: str, curves: Mapping[str, Sequence[tuple[float, float]]], *, unit: str) -> Chart:
    """Curves over time, from zero to the largest value.

    Args:
        title: Title of the chart.
        curves: Points (seconds, value) by name.
        unit: Unit of the values.
    """

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        axes.set_title(title)
        for n, (name, curve) in enumerate(curves.items()):
            seconds, values = zip(*curve, strict=True)
            axes.plot(seconds, values, color=PALETTE[n % len(PALETTE)], label=name)
        if not curves:
            axes.set_axis_off()
            axes.text(0, 0.5, "nothing was measured", color=GREY)
            return
        axes.margins(x=0)
        axes.set_ylim(bottom=0)
        axes.set_xlabel("s")
        axes.set_ylabel(unit)
        axes.legend(loc="lower right", ncols=4, bbox_to_anchor=(1, 1))

    return Chart(3.2, draw)


def _color_by_name(name: str) -> str:
    """The colour of a name: the same in every lane, and in every profile."""
    return PALETTE[zlib.crc32(name.encode()) % len(PALETTE)]


def _clip(text: str) -> str:
    """The end of a text, with dots in place of what does not fit."""
    return text if len(text) <= _MOST_LETTERS else "..." + text[3 - _MOST_LETTERS :]
