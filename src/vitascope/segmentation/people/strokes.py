"""Brush strokes as layers, carried along by the motion of the video, forwards and backwards.

A stroke applies until the end of the shot, or half-way to the next stroke in it, and for at most ten seconds.
"""

from __future__ import annotations

import math
import threading
import zlib
from bisect import bisect_right
from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain, groupby, islice
from operator import attrgetter
from pathlib import Path
from typing import Any, Final, NamedTuple

import cv2
import numpy as np
import numpy.typing as npt

from vitascope.closing import Closing
from vitascope.config.hints import Eye, Mark
from vitascope.frames import Frame, Rotation
from vitascope.gpu.kernels.preprocess import preprocess
from vitascope.gpu.kernels.region import Region
from vitascope.media.reading.reader import open_video
from vitascope.segmentation.people.small_frames import MotionField
from vitascope.segmentation.people.table import PeopleTable

FloatMap = npt.NDArray[np.float32]
Grey = npt.NDArray[np.uint8]

_GRID_SIDE: Final = 240
_MOST_SECONDS = 10.0
_MOST_REMEMBERED: Final = 256
"""Maximum number of carried strokes in memory, counting those of a frame as one; each takes about 100 kB."""
_WORTH_SEEKING_SECONDS = 2.0
"""Minimum gap that is skipped by seeking: opening a video takes about as long as reading this much of it."""
_NEARBY_SECONDS = 0.2
"""Seconds read around a time, enough to contain a frame at five frames per second or more."""


@dataclass(frozen=True, slots=True)
class Stroked:
    """The area of a stroke, frame by frame."""

    pts: tuple[int, ...]
    masks: tuple[bytes, ...]
    """Each frame's uint8 [E, rows, columns], compressed with zlib."""
    shape: tuple[int, int, int]
    adds: bool

    def at(self, pts: int) -> FloatMap | None:
        """float32 [E, rows, columns], 0..1, at a time; None if the stroke does not apply."""
        if not self.pts or not self.pts[0] <= pts <= self.pts[-1]:
            return None
        packed = self.masks[bisect_right(self.pts, pts) - 1]
        samples = np.frombuffer(zlib.decompress(packed), np.uint8).reshape(self.shape)
        return samples.astype(np.float32) / np.float32(255)


class StrokeLayer:
    """Adds or removes the area of strokes.

    Args:
        strokes: Strokes in the order of the hints; later ones override earlier ones.
    """

    def __init__(self, strokes: Sequence[Stroked]) -> None:
        self._strokes = strokes
        # First and last pts of each: with 100,000 strokes, most frames have only a few of them.
        self._spans = np.array(
            [(one.pts[0], one.pts[-1]) if one.pts else (1, 0) for one in strokes], np.int64
        )

    def share_at(self, frame: Frame, _: int | None = None) -> FloatMap | None:
        """See ``Layer``."""
        return self._maps(frame)[0]

    def added_at(self, frame: Frame) -> FloatMap | None:
        """See ``Layer``."""
        return self._maps(frame)[1]

    def _maps(self, frame: Frame) -> tuple[FloatMap | None, FloatMap | None]:
        share: FloatMap | None = None
        added: FloatMap | None = None
        first, last = self._spans.reshape(-1, 2).T
        for place in np.flatnonzero((first <= frame.pts) & (frame.pts <= last)).tolist():
            stroke = self._strokes[place]
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
    painted: Sequence[tuple[Mark, ...]],
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
        video: The video.
        painted: All strokes of the video, from ``Hints.painted``.
        table: Boundaries of its shots.
        regions: Each eye's region in a frame.
        rotation_degrees: Clockwise rotation that makes the picture upright.
        eyes: The eye of each region.
        moment: The only time needed, in seconds; strokes are carried no further, and others are left out.
        span: The only part needed, in seconds; others are left out.

    Raises:
        InputError: The video cannot be read.
    """
    wanted: list[tuple[tuple[Mark, ...], _Stretch]] = []
    firsts = [group[0] for group in painted]
    for group, bounds in zip(painted, stroke_bounds(firsts, table), strict=True):
        if span is not None and not (bounds[0] < span[1] and span[0] < bounds[1]):
            continue
        if moment is not None:
            if not bounds[0] - _NEARBY_SECONDS <= moment <= bounds[1] + _NEARBY_SECONDS:
                continue
            # By whole seconds, so that looking at frame after frame need not carry the stroke anew for each.
            way, at = moment - group[0].at, group[0].at
            first, last = at + min(math.floor(way), 0), at + max(math.ceil(way), 0)
            bounds = max(bounds[0], first - _NEARBY_SECONDS), min(bounds[1], last + _NEARBY_SECONDS)
        wanted.append((group, _Stretch(video, table.facts.fingerprint, *bounds)))
    carried: dict[int, tuple[Stroked, ...]] = {}
    with _Pictures(video, tuple(regions), rotation_degrees) as pictures:
        # In the order of the video, so that its pictures are read once.
        for place in sorted(range(len(wanted)), key=lambda place: wanted[place][1]):
            group, stretch = wanted[place]
            # With the last one in the key, an earlier state of a frame is found too, as undo needs it.
            key = (stretch, tuple(regions), rotation_degrees, eyes, group[0].at, len(group), group[-1])
            if (known := _recall(key, group)) is None:
                at = group[0].at
                pts, greys = pictures.between(stretch.begin_seconds, stretch.end_seconds, at)
                known = _carried(pts, greys, group, table.pts_at(at), eyes)
                _remember(key, group, known)
            carried[place] = known
    return [one for place in range(len(wanted)) for one in carried[place]]


def stroke_bounds(marks: Sequence[Mark], table: PeopleTable) -> Iterator[tuple[float, float]]:
    """Begin and end of each stroke's effect, in seconds, in their order.

    Args:
        marks: All strokes of the video; neighbours limit each other.
        table: Boundaries of its shots.
    """
    times = sorted({mark.at for mark in marks})
    free = {}
    for own, at in enumerate(times):
        first, last = map(table.seconds_at, table.shot_at(table.pts_at(at)))
        begin, end = max(first, at - _MOST_SECONDS), min(last, at + _MOST_SECONDS)
        if own > 0 and times[own - 1] >= first:
            begin = max(begin, (times[own - 1] + at) / 2)
        if own + 1 < len(times) and times[own + 1] <= last:
            end = min(end, (times[own + 1] + at) / 2)
        free[at] = begin, end
    for mark in marks:
        begin, end = free[mark.at]
        yield max(begin, mark.from_), end if mark.to is None else min(end, mark.to)


class _Stretch(NamedTuple):
    """A part of a video in its current state."""

    video: Path
    fingerprint: str
    begin_seconds: float
    end_seconds: float


_remembered: OrderedDict[tuple[object, ...], tuple[tuple[Mark, ...], tuple[Stroked, ...]]] = OrderedDict()
"""Cache of the strokes of a frame and the result of carrying them."""
_remembering = threading.Lock()


def _recall(key: tuple[object, ...], painted: tuple[Mark, ...]) -> tuple[Stroked, ...] | None:
    with _remembering:
        known = _remembered.get(key)
        # Unchanged marks are identical objects, which compare fast; hashing thousands of them is slow.
        if known is None or known[0] != painted:
            return None
        _remembered.move_to_end(key)
        return known[1]


def _remember(key: tuple[object, ...], painted: tuple[Mark, ...], carried: tuple[Stroked, ...]) -> None:
    with _remembering:
        _remembered[key] = painted, carried
        while len(_remembered) > _MOST_REMEMBERED:
            _remembered.popitem(last=False)


class _Pictures(Closing):
    """Small grey pictures of a video, read in order, so that overlapping parts are read once.

    Args:
        video: The video.
        regions: Each eye's region in a frame.
        rotation: Clockwise rotation that makes the picture upright.
    """

    def __init__(self, video: Path, regions: tuple[Region, ...], rotation: Rotation) -> None:
        self._video, self._regions, self._rotation = video, regions, rotation
        height, width = regions[0].size if rotation in (0, 180) else regions[0].size[::-1]
        shrink = max(height, width) / _GRID_SIDE
        self._size = max(round(height / shrink), 16), max(round(width / shrink), 16)
        self._opened = ExitStack()
        self._frames: Iterator[Frame] | None = None
        self._origin_pts = 0
        self._read: deque[tuple[float, int, Grey]] = deque()
        """Seconds, pts and picture of each frame that may be needed again."""

    def close(self) -> None:
        """Close the video."""
        self._opened.close()

    def between(
        self, begin_seconds: float, end_seconds: float, at_seconds: float
    ) -> tuple[list[int], list[Grey]]:
        """Pts and pictures [E, rows, columns] of a part, which must not begin before the previous one.

        If it is too short to contain a frame, the result is the frame shown at ``at_seconds``.

        Raises:
            InputError: The video cannot be read.
        """
        read_to = self._read[-1][0] if self._read else -math.inf
        if self._frames is None or begin_seconds > read_to + _WORTH_SEEKING_SECONDS:
            self._opened.close()
            self._read.clear()
            start = max(begin_seconds - _NEARBY_SECONDS, 0)
            reader = self._opened.enter_context(open_video(self._video, start_seconds=start or None))
            self._frames, self._origin_pts = iter(reader), reader.origin_pts
        begin, end = begin_seconds - 1e-6, end_seconds + 1e-3
        while not self._read or self._read[-1][0] < end:
            frame = next(self._frames, None)
            if frame is None:
                break
            seconds = float((frame.pts - self._origin_pts) * frame.time_base)
            self._read.append((seconds, frame.pts, self._grey(frame)))
        while len(self._read) > 1 and self._read[1][0] < begin:
            self._read.popleft()
        within = [one for one in self._read if begin <= one[0] < end]
        if not within:
            within = [one for one in self._read if one[0] <= at_seconds + 1e-6][-1:]
        return [pts for _, pts, _ in within], [grey for _, _, grey in within]

    def _grey(self, frame: Frame) -> Grey:
        rgb: Any = preprocess(
            frame, regions=self._regions, size=self._size, layout="NHWC", rotation_degrees=self._rotation
        )
        eyes = [cv2.cvtColor(np.rint(eye * 255).astype(np.uint8), cv2.COLOR_RGB2GRAY) for eye in rgb]
        return np.stack(eyes).astype(np.uint8)


def _carried(
    pts: Sequence[int], greys: Sequence[Grey], painted: Sequence[Mark], at_pts: int, eyes: tuple[Eye, Eye]
) -> tuple[Stroked, ...]:
    """Carry the strokes of one frame through the frames around it; returns what they remove and what they add.

    Args:
        pts: The frames' pts.
        greys: Their pictures, uint8 [E, rows, columns].
        painted: The strokes, for one eye or both, in order; later ones override earlier ones.
        at_pts: Pts of the frame on which they were painted.
        eyes: The eye of each picture.
    """
    if not pts:
        return ()
    at = min(range(len(pts)), key=lambda place: abs(pts[place] - at_pts))
    count, *size = greys[0].shape
    motion, eye, made = MotionField((size[0], size[1])), painted[0].eye, []
    for adds, drawn in zip((False, True), _drawn(painted, (size[0], size[1])), strict=True):
        if drawn is None:
            continue
        begin = [drawn if eye in (name, "both") else np.zeros_like(drawn) for name in eyes[:count]]
        if count == 2 and eye == "both":  # painted in the first eye's picture
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
            zlib.compress(np.rint(masks[frame] * 255).astype(np.uint8).tobytes(), 1)
            for frame in range(len(pts))
        )
        made.append(Stroked(tuple(pts), packed, masks[at].shape, adds=adds))
    return tuple(made)


def _drawn(painted: Sequence[Mark], size: tuple[int, int]) -> tuple[FloatMap | None, FloatMap | None]:
    """Draw what strokes remove and add, as painted, float32 [rows, columns], 0..1; None for nothing.

    Later strokes cover earlier ones, as in painting.
    """
    fine = 4
    canvas = np.zeros((size[0] * fine, size[1] * fine), np.uint8)
    removes, adds = 1, 2
    # A dot is a line that ends where it begins; lines have round ends.
    lines = [mark.stroke if len(mark.stroke) > 1 else mark.stroke * 2 for mark in painted if mark.stroke]
    shares = np.array(list(chain.from_iterable(lines)))
    points = np.rint(shares * (canvas.shape[1], canvas.shape[0])).astype(np.int32)
    ends = np.cumsum([len(line) for line in lines])
    split = iter(np.split(points, ends[:-1]))
    # Consecutive strokes of one brush are drawn in one call, which does not block other threads.
    for (radius, do), run in groupby(painted, attrgetter("radius", "do")):
        cv2.polylines(
            canvas,
            list(islice(split, len(tuple(run)))),
            isClosed=False,
            color=adds if do == "keep" else removes,
            thickness=2 * max(round(radius * canvas.shape[1]), 1),
        )

    def covered(color: int) -> FloatMap | None:
        own = canvas == color
        if not own.any():
            return None
        return np.asarray(
            cv2.resize(own.astype(np.float32), size[::-1], interpolation=cv2.INTER_AREA), np.float32
        )

    return covered(removes), covered(adds)


def _sharp(mask: FloatMap) -> FloatMap:
    """Sharpen a mask blurred by interpolation, which would otherwise fade while it is carried."""
    sharp: FloatMap = np.clip(0.5 + 1.2 * (mask - 0.5), 0, 1).astype(np.float32)
    return sharp
