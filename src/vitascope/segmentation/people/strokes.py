"""Brush strokes, as layers: what they cover is carried by the film's motion, forwards and backwards.

A stroke acts until the shot ends, until half-way to the next stroke of the shot, and ten seconds at most.
"""

from __future__ import annotations

import math
import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, NamedTuple

import cv2
import numpy as np
import numpy.typing as npt

from vitascope.config.hints import Eye, Mark
from vitascope.frames import Frame, Rotation
from vitascope.gpu.kernels.preprocess import preprocess
from vitascope.gpu.kernels.region import Region
from vitascope.media.reading.reader import open_video
from vitascope.segmentation.people.motion import MotionField
from vitascope.segmentation.people.table import PeopleTable

__all__ = ["StrokeLayer", "Stroked", "carried_strokes", "stroke_bounds"]

FloatMap = npt.NDArray[np.float32]
Grey = npt.NDArray[np.uint8]

_GRID_SIDE: Final = 240
_MOST_SECONDS = 10.0
_MOST_REMEMBERED: Final = 256
"""Carried strokes; each takes some 100 kB, and a picture with more strokes carries all of them anew each time."""
_NEARBY_SECONDS = 0.2
"""What is read around a time holds a frame of it, at five frames a second and more."""


@dataclass(frozen=True, slots=True)
class Stroked:
    """What a stroke covers, frame by frame."""

    pts: tuple[int, ...]
    masks: tuple[bytes, ...]
    """zlib of each frame's uint8 [E, rows, columns]."""
    shape: tuple[int, int, int]
    adds: bool

    def at(self, pts: int) -> FloatMap | None:
        """float32 [E, rows, columns], 0..1, at a time; None where the stroke does not act."""
        if not self.pts or not self.pts[0] <= pts <= self.pts[-1]:
            return None
        packed = self.masks[bisect_right(self.pts, pts) - 1]
        samples = np.frombuffer(zlib.decompress(packed), np.uint8).reshape(self.shape)
        return samples.astype(np.float32) / np.float32(255)


class StrokeLayer:
    """Adds and removes what strokes cover.

    Args:
        strokes: In the order of the hints: a later one wins.
    """

    def __init__(self, strokes: Sequence[Stroked]) -> None:
        self._strokes = strokes

    def share_at(self, frame: Frame, _: int | None = None) -> FloatMap | None:
        """As ``Layer``."""
        return self._maps(frame)[0]

    def added_at(self, frame: Frame) -> FloatMap | None:
        """As ``Layer``."""
        return self._maps(frame)[1]

    def _maps(self, frame: Frame) -> tuple[FloatMap | None, FloatMap | None]:
        share: FloatMap | None = None
        added: FloatMap | None = None
        for stroke in self._strokes:
            mask = stroke.at(frame.pts)
            if mask is None:
                continue
            if stroke.adds:
                added = mask if added is None else np.maximum(added, mask)
            else:
                share = 1 - mask if share is None else share * (1 - mask)
                added = None if added is None else added * (1 - mask)
        return share, added


def carried_strokes(
    video: Path,
    marks: Sequence[Mark],
    table: PeopleTable,
    *,
    regions: Sequence[Region],
    rotation_degrees: Rotation,
    eyes: tuple[Eye, Eye] = ("left", "right"),
    moment: float | None = None,
    span: tuple[float, float] | None = None,
) -> list[Stroked]:
    """Carry strokes through the frames around them.

    Args:
        video: The film.
        marks: Those with a stroke.
        table: Where its shots begin and end.
        regions: Where each eye lies in a frame.
        rotation_degrees: Clockwise turn that makes the picture upright.
        eyes: Which eye each region is.
        moment: Only this time is asked for, in seconds: strokes are carried no further, others are left out.
        span: Only this part is asked for, in seconds: others are left out.

    Raises:
        InputError: The film cannot be read.
    """
    wanted: list[tuple[Mark, _Stretch]] = []
    for mark, bounds in zip(marks, stroke_bounds(marks, table), strict=True):
        if span is not None and not (bounds[0] < span[1] and span[0] < bounds[1]):
            continue
        if moment is not None:
            if not bounds[0] - _NEARBY_SECONDS <= moment <= bounds[1] + _NEARBY_SECONDS:
                continue
            # By whole seconds: whoever looks at frame after frame need not carry the stroke for each.
            way = moment - mark.at
            first, last = mark.at + min(math.floor(way), 0), mark.at + max(math.ceil(way), 0)
            bounds = max(bounds[0], first - _NEARBY_SECONDS), min(bounds[1], last + _NEARBY_SECONDS)
        wanted.append((mark, _Stretch(video, table.facts.fingerprint, *bounds)))
    carried: dict[int, Stroked] = {}
    try:
        # Those of one stretch follow one another: its pictures are read once.
        for place in sorted(range(len(wanted)), key=lambda place: wanted[place][1]):
            mark, stretch = wanted[place]
            carried[place] = _carried(
                stretch,
                mark.model_copy(update={"line": 0}),
                table.pts_at(mark.at),
                regions=tuple(regions),
                rotation=rotation_degrees,
                eyes=eyes,
            )
    finally:
        _pictures.cache_clear()  # of ten seconds of VR video they take more than 100 MB
    return [carried[place] for place in range(len(wanted))]


def stroke_bounds(marks: Sequence[Mark], table: PeopleTable) -> Iterator[tuple[float, float]]:
    """From when to when each stroke acts, in seconds, in their order.

    Args:
        marks: All strokes of the film: neighbours end one another.
        table: Where its shots begin and end.
    """
    times = sorted({mark.at for mark in marks})
    for mark in marks:
        first, last = (table.seconds_at(pts) for pts in table.shot_at(table.pts_at(mark.at)))
        begin, end = max(first, mark.at - _MOST_SECONDS, mark.from_), min(last, mark.at + _MOST_SECONDS)
        own = bisect_left(times, mark.at)
        if own > 0 and times[own - 1] >= first:
            begin = max(begin, (times[own - 1] + mark.at) / 2)
        if own + 1 < len(times) and times[own + 1] <= last:
            end = min(end, (times[own + 1] + mark.at) / 2)
        yield begin, end if mark.to is None else min(end, mark.to)


class _Stretch(NamedTuple):
    """A part of a film, as it is now."""

    video: Path
    fingerprint: str
    begin_seconds: float
    end_seconds: float


@lru_cache(maxsize=_MOST_REMEMBERED)
def _carried(
    stretch: _Stretch,
    mark: Mark,
    mark_pts: int,
    *,
    regions: tuple[Region, ...],
    rotation: Rotation,
    eyes: tuple[Eye, Eye],
) -> Stroked:
    pts, greys = _pictures(stretch, regions, rotation)
    at = min(range(len(pts)), key=lambda place: abs(pts[place] - mark_pts))
    size = greys[0].shape[1:]
    motion = MotionField((size[0], size[1]))
    drawn = _drawn(mark, (size[0], size[1]))
    begin = [
        drawn if mark.eye in (name, "both") else np.zeros_like(drawn)
        for name, _ in zip(eyes, regions, strict=False)
    ]
    if len(regions) == 2 and mark.eye == "both":  # it was painted in the first eye's picture
        begin[1] = motion.carried(drawn, motion.place(greys[at][1], greys[at][0]))
    masks = {at: np.stack(begin)}
    for way in (1, -1):
        for frame in range(at + way, len(pts) if way > 0 else -1, way):
            masks[frame] = np.stack(
                [
                    _sharp(motion.carried(mask, motion.place(now, before)))
                    for mask, now, before in zip(
                        masks[frame - way], greys[frame], greys[frame - way], strict=True
                    )
                ]
            )
    packed = tuple(
        zlib.compress(np.rint(masks[frame] * 255).astype(np.uint8).tobytes(), 1) for frame in range(len(pts))
    )
    return Stroked(tuple(pts), packed, masks[at].shape, adds=mark.do == "keep")


@lru_cache(maxsize=1)
def _pictures(
    stretch: _Stretch, regions: tuple[Region, ...], rotation: Rotation
) -> tuple[list[int], list[Grey]]:
    """Time stamps and small grey pictures [E, rows, columns] of a stretch: its strokes share them."""
    begin, end = stretch.begin_seconds, stretch.end_seconds
    height, width = regions[0].size if rotation in (0, 180) else regions[0].size[::-1]
    shrink = max(height, width) / _GRID_SIDE
    size = max(round(height / shrink), 16), max(round(width / shrink), 16)
    pts, greys = [], []
    with open_video(stretch.video, start_seconds=begin or None, end_seconds=end + 1e-3) as reader:
        for frame in reader:
            rgb: Any = preprocess(frame, regions=regions, size=size, layout="NHWC", rotation_degrees=rotation)
            eyes = [cv2.cvtColor(np.rint(eye * 255).astype(np.uint8), cv2.COLOR_RGB2GRAY) for eye in rgb]
            pts.append(frame.pts)
            greys.append(np.stack(eyes).astype(np.uint8))
    return pts, greys


def _drawn(mark: Mark, size: tuple[int, int]) -> FloatMap:
    """The stroke as it was painted, float32 [rows, columns], 0..1."""
    assert mark.stroke is not None
    fine = 4
    canvas = np.zeros((size[0] * fine, size[1] * fine), np.float32)
    points = np.rint(np.array(mark.stroke) * (canvas.shape[1], canvas.shape[0])).astype(np.int32)
    radius = max(round(mark.radius * canvas.shape[1]), 1)
    cv2.polylines(canvas, [points], isClosed=False, color=1.0, thickness=2 * radius)
    for point in points:
        cv2.circle(canvas, (int(point[0]), int(point[1])), radius, 1.0, -1)
    return np.asarray(cv2.resize(canvas, size[::-1], interpolation=cv2.INTER_AREA), np.float32)


def _sharp(mask: FloatMap) -> FloatMap:
    """As it was before it was read between cells: being carried would blur it away."""
    sharp: FloatMap = np.clip(0.5 + 1.2 * (mask - 0.5), 0, 1).astype(np.float32)
    return sharp
