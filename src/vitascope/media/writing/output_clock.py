"""The clock of an output: which ticks its frames and packets get, and its time code (SMPTE ST 12-1)."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import NamedTuple, Protocol

from av.packet import Packet
from av.video.stream import VideoStream

_MAX_REORDER_FRAMES = 16
"""Pictures that any of our encoders may hold back (the limit of H.264 and H.265)."""

_SUMMING_MUXERS = frozenset({"mp4", "mov"})
"""FFmpeg's names of formats in which a video is as long as its packets together."""


class Moment(Protocol):
    """A place in time, such as a frame's."""

    @property
    def pts(self) -> int:
        """Presentation time in ticks."""

    @property
    def time_base(self) -> Fraction:
        """Seconds a tick."""

    @property
    def duration(self) -> int:
        """Ticks that it lasts; 0 when unknown."""


class FrameTime(NamedTuple):
    """The place in time of a frame whose pixels are elsewhere."""

    pts: int
    time_base: Fraction
    duration: int


class OutputClock:
    """Gives frames their time in the output, and restores times that encoders lose.

    Args:
        time_base: Seconds a tick, of the output.
        frame_rate: Frames a second, for frames that do not say how long they last.
    """

    def __init__(self, *, time_base: Fraction, frame_rate: Fraction) -> None:
        self.time_base = time_base
        self.offset = 0
        """Ticks that are taken off every time stamp of the source."""
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
        """The presentation time that a frame gets; strictly later than that of the one before."""
        pts = self.ticks_of(frame) - self.offset
        if self._last_pts is not None and pts <= self._last_pts:
            # Encoders refuse time that stands still, which joined and damaged files have.
            pts = self._last_pts + 1
        if self._first_pts is None:
            self._first_pts = pts
        self._last_pts = pts
        duration = self._ticks(frame.duration, frame.time_base) or self._usual_duration
        self._durations[pts] = duration
        self._end_ticks = max(self._end_ticks, pts + self.offset + duration)
        return pts

    def complete(self, packet: Packet[VideoStream]) -> int:
        """Give an encoder's packet the duration of its frame and a sound decoding time.

        Returns:
            Its decoding time on the source's clock, in ticks.
        """
        first = self._first_pts or 0
        pts = packet.pts if packet.pts is not None else first
        packet.duration = self._durations.pop(pts, self._usual_duration)
        dts = packet.dts if packet.dts is not None else pts
        # Decoding begins as long before the first frame as the encoder held frames back, which may be a pause.
        held_back = (self._last_pts or 0) - first
        earliest = first - max(_MAX_REORDER_FRAMES * max(self._usual_duration, packet.duration), held_back)
        if self._last_dts is not None:
            earliest = self._last_dts + 1
        if dts < earliest or dts > pts:
            # libx265 hands out uninitialised memory for videos of one or two frames. Nothing is reordered in these.
            dts = pts if self._last_dts is None else max(earliest, first)
        packet.dts = self._last_dts = dts
        if self._first_dts is None:
            self._first_dts = dts
        return dts + self.offset

    def reach_end(self, packet: Packet[VideoStream], *, muxer: str) -> None:
        """Extend the last packet until all sum up to the video's length, in formats that count that way.

        ISO media files (14496-12, 8.6.1) count from decoding time to decoding time, which runs behind by some frames
        where an encoder reorders them: with a long pause at the end, by seconds.
        """
        if muxer not in _SUMMING_MUXERS:
            return
        length = self._end_ticks - self.offset - (self._first_pts or 0)
        counted = (packet.dts or 0) - (self._first_dts or 0)
        packet.duration = max(packet.duration or 0, length - counted)


_TIMECODE = re.compile(r"(\d\d):([0-5]\d):([0-5]\d)([:;.])(\d{2,3})")
_MINUTES_A_DAY = 24 * 60


def moved_timecode(timecode: str, *, seconds: Fraction, frame_rate: Fraction) -> str | None:
    """The time code of a later picture.

    Args:
        timecode: That of the first picture, ``hh:mm:ss:ff``. With a semicolon or a full stop before the frames it drops
            numbers, so that it keeps pace with a clock at 29.97 or 59.94 pictures a second.
        seconds: How much later, 0 or more.
        frame_rate: Pictures a second.

    Returns:
        It in the same form; None where what is given is no time code of that rate. After a day it begins anew.
    """
    found = _TIMECODE.fullmatch(timecode.strip())
    rate = round(frame_rate)
    if found is None or rate < 1 or int(found[5]) >= rate:
        return None
    hours, minutes, whole_seconds, frames = (int(found[n]) for n in (1, 2, 3, 5))
    # Two numbers of each minute at 29.97, four at 59.94, but not of every tenth minute.
    dropped = rate // 15 if found[4] != ":" else 0
    if dropped and rate % 30:
        return None
    minute = hours * 60 + minutes
    count = (minute * 60 + whole_seconds) * rate + frames - dropped * (minute - minute // 10)
    count += round(seconds * frame_rate)
    count %= _MINUTES_A_DAY * 60 * rate - dropped * (_MINUTES_A_DAY - _MINUTES_A_DAY // 10)
    ten_minutes = 600 * rate - 9 * dropped
    tens, rest = divmod(count, ten_minutes)
    # The first minute of ten is whole; each of the others begins with numbers that are not there.
    minutes_in_ten = 0 if rest < 60 * rate else 1 + (rest - 60 * rate) // (60 * rate - dropped)
    count += dropped * (9 * tens + minutes_in_ten)
    whole, frames = divmod(count, rate)
    minute, whole_seconds = divmod(whole, 60)
    width = len(found[5])
    return f"{minute // 60:02}:{minute % 60:02}:{whole_seconds:02}{found[4]}{frames:0{width}}"
