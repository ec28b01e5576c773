"""The clock of an output: times of its frames and packets, and its time code (SMPTE ST 12-1)."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import NamedTuple, Protocol

from av.packet import Packet
from av.video.stream import VideoStream

_MAX_REORDER_FRAMES = 16
"""Maximum number of pictures that any of our encoders may delay (the limit of H.264 and H.265)."""

_SUMMING_MUXERS = frozenset({"mp4", "mov"})
"""FFmpeg's names of formats in which a video's length is the sum of its packets' durations."""


class Moment(Protocol):
    """An object with a time, such as a frame."""

    @property
    def pts(self) -> int:
        """Presentation time in ticks."""

    @property
    def time_base(self) -> Fraction:
        """Seconds per tick."""

    @property
    def duration(self) -> int:
        """Duration in ticks; 0 if unknown."""


class FrameTime(NamedTuple):
    """The time of a frame whose pixels are elsewhere."""

    pts: int
    time_base: Fraction
    duration: int


class OutputClock:
    """Computes the frames' output times, and restores times that encoders lose.

    Args:
        time_base: Seconds per tick of the output.
        frame_rate: Frames per second, for frames without a duration.
    """

    def __init__(self, *, time_base: Fraction, frame_rate: Fraction) -> None:
        self.time_base = time_base
        self.offset = 0
        """Ticks subtracted from all timestamps of the source."""
        self._end_ticks = 0
        self._usual_duration = max(round(1 / (frame_rate * time_base)), 1)
        self._first_pts: int | None = None
        self._last_pts: int | None = None
        self._first_dts: int | None = None
        self._last_dts: int | None = None
        self._durations: dict[int, int] = {}

    @property
    def offset_seconds(self) -> Fraction:
        """``offset`` in seconds."""
        return self.offset * self.time_base

    @property
    def end(self) -> Fraction:
        """Source time in seconds at which the last frame so far ends."""
        return self._end_ticks * self.time_base

    def ticks_of(self, frame: Moment) -> int:
        """A frame's presentation time in ticks of this clock, before ``offset``."""
        return self._ticks(frame.pts, frame.time_base)

    def _ticks(self, ticks: int, time_base: Fraction) -> int:
        # Fractions are slow, and this runs for every frame.
        same = time_base is self.time_base or time_base == self.time_base
        return ticks if same else round(ticks * time_base / self.time_base)

    def stamp(self, frame: Moment) -> int:
        """The output time of a frame, in ticks; always later than the previous frame's."""
        pts = self.ticks_of(frame) - self.offset
        if self._last_pts is not None and pts <= self._last_pts:
            # Encoders refuse repeated times, which joined and damaged files have.
            pts = self._last_pts + 1
        if self._first_pts is None:
            self._first_pts = pts
        self._last_pts = pts
        duration = self._ticks(frame.duration, frame.time_base) or self._usual_duration
        self._durations[pts] = duration
        self._end_ticks = max(self._end_ticks, pts + self.offset + duration)
        return pts

    def complete(self, packet: Packet[VideoStream]) -> int:
        """Set the packet's duration to its frame's, and its decoding time to a valid one.

        Returns:
            The decoding time on the source's clock, in ticks.
        """
        first = self._first_pts or 0
        pts = packet.pts if packet.pts is not None else first
        packet.duration = self._durations.pop(pts, self._usual_duration)
        dts = packet.dts if packet.dts is not None else pts
        # Decoding starts before the first frame by the time that the encoder delayed frames, which may include a
        # pause.
        held_back = (self._last_pts or 0) - first
        earliest = first - max(_MAX_REORDER_FRAMES * max(self._usual_duration, packet.duration), held_back)
        if self._last_dts is not None:
            earliest = self._last_dts + 1
        if dts < earliest or dts > pts:
            # libx265 returns uninitialised memory for videos of one or two frames, in which nothing is reordered.
            dts = pts if self._last_dts is None else max(earliest, first)
        packet.dts = self._last_dts = dts
        if self._first_dts is None:
            self._first_dts = dts
        return dts + self.offset

    def reach_end(self, packet: Packet[VideoStream], *, muxer: str) -> None:
        """Extend the last packet so that the durations sum up to the video's length, in formats that work that way.

        ISO media files (14496-12, 8.6.1) use differences of decoding times, which lag behind by some frames if an
        encoder reorders them: by seconds, after a long pause at the end.
        """
        if muxer not in _SUMMING_MUXERS:
            return
        length = self._end_ticks - self.offset - (self._first_pts or 0)
        counted = (packet.dts or 0) - (self._first_dts or 0)
        packet.duration = max(packet.duration or 0, length - counted)


_TIMECODE = re.compile(r"(\d\d):([0-5]\d):([0-5]\d)([:;.])(\d{2,3})")
_MINUTES_A_DAY = 24 * 60


def moved_timecode(timecode: str, *, seconds: Fraction, frame_rate: Fraction) -> str | None:
    """Compute the time code of a later frame.

    Args:
        timecode: The first frame's time code, ``hh:mm:ss:ff``. With a semicolon or a full stop before the frames, it
            skips numbers to keep pace with a clock at 29.97 or 59.94 frames per second.
        seconds: Time after the first frame, 0 or more.
        frame_rate: Frames per second.

    Returns:
        The time code in the same form; None if ``timecode`` is invalid for this rate. After a day it starts again at
        zero.
    """
    found = _TIMECODE.fullmatch(timecode.strip())
    rate = round(frame_rate)
    if found is None or rate < 1 or int(found[5]) >= rate:
        return None
    hours, minutes, whole_seconds, frames = (int(found[n]) for n in (1, 2, 3, 5))
    # Skipped numbers per minute, except every tenth: two at 29.97, four at 59.94.
    dropped = rate // 15 if found[4] != ":" else 0
    if dropped and rate % 30:
        return None
    minute = hours * 60 + minutes
    count = (minute * 60 + whole_seconds) * rate + frames - dropped * (minute - minute // 10)
    count += round(seconds * frame_rate)
    count %= _MINUTES_A_DAY * 60 * rate - dropped * (_MINUTES_A_DAY - _MINUTES_A_DAY // 10)
    ten_minutes = 600 * rate - 9 * dropped
    tens, rest = divmod(count, ten_minutes)
    # The first minute of ten is complete; each other one begins with skipped numbers.
    minutes_in_ten = 0 if rest < 60 * rate else 1 + (rest - 60 * rate) // (60 * rate - dropped)
    count += dropped * (9 * tens + minutes_in_ten)
    whole, frames = divmod(count, rate)
    minute, whole_seconds = divmod(whole, 60)
    width = len(found[5])
    return f"{minute // 60:02}:{minute % 60:02}:{whole_seconds:02}{found[4]}{frames:0{width}}"
