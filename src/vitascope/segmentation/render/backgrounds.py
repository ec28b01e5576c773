"""The picture or video behind the people of ``replace``."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

from vitascope.closing import Closing
from vitascope.errors import InputError
from vitascope.frames import Frame, Rotation
from vitascope.gpu.kernels.fit import fit_frame
from vitascope.gpu.kernels.region import Region
from vitascope.media.planes import has_alpha
from vitascope.media.reading.reader import open_video


class Background(Closing):
    """A still picture, or a video that plays in real time and loops.

    It fills each eye's view (scaled to cover, cropped in the middle), so in stereo it appears infinitely far away.
    A context manager; used by one thread.

    Args:
        path: An image or a video.
        begin_seconds: Time of the frame at which it begins; by default that of the first frame given to ``behind``.

    Raises:
        InputError: It cannot be opened.
    """

    def __init__(self, path: Path, *, begin_seconds: Fraction | None = None) -> None:
        self._path = path
        self._frames = open_video(path)
        self._rotation_degrees: Rotation = self._frames.info.rotation_degrees
        self._current = self._first()
        self._next: Frame | None = next(self._frames, None)
        self._is_still = self._next is None
        self._loop_start_seconds: Fraction | None = None
        if begin_seconds is not None:
            self._loop_start_seconds = begin_seconds - _time_of(self._current)
        self._fitted: Frame | None = None

    @property
    def moves(self) -> bool:
        """False for a still picture."""
        return not self._is_still

    @property
    def is_transparent(self) -> bool:
        """True if it has an alpha channel, which is ignored."""
        info = self._frames.info
        return has_alpha(info.source_format) or info.has_alpha_beside

    def close(self) -> None:
        """Close the file."""
        self._frames.close()

    def behind(self, frame: Frame, regions: list[Region], *, rotation_degrees: Rotation = 0) -> Frame:
        """The background for a frame: same size, format and time; it is upright when the frame is shown upright.

        Args:
            frame: The frame to be drawn in front of it; call in frame order.
            regions: The area of each eye.
            rotation_degrees: Clockwise turn that makes the frame upright.
        """
        shown = self._current
        if not self._is_still:
            self._advance(frame.pts * frame.time_base)
        if self._fitted is None or self._current is not shown:
            self._fitted = fit_frame(
                self._current,
                like=frame,
                regions=regions,
                picture_rotation_degrees=self._rotation_degrees,
                rotation_degrees=rotation_degrees,
            )
        return frame.with_planes(self._fitted.planes)

    def _advance(self, now_seconds: Fraction) -> None:
        if self._loop_start_seconds is None:
            self._loop_start_seconds = now_seconds - _time_of(self._current)
        while self._next is not None and _time_of(self._next) + self._loop_start_seconds <= now_seconds:
            self._current = self._next
            self._next = next(self._frames, None)
            if self._next is None:
                length = _time_of(self._current) + self._shown_seconds(self._current)
                self._frames.close()
                self._frames = open_video(self._path)
                self._next = self._first()
                loop_seconds = length - _time_of(self._next)
                self._loop_start_seconds += loop_seconds
                behind = now_seconds - _time_of(self._next) - self._loop_start_seconds
                if behind >= loop_seconds > 0:  # skip whole loops: the frame may be far into the video
                    self._loop_start_seconds += behind // loop_seconds * loop_seconds

    def _shown_seconds(self, frame: Frame) -> Fraction:
        """Duration of a picture in seconds: the file's, else the average interval."""
        if frame.duration > 0:
            return frame.duration * frame.time_base
        return 1 / self._frames.info.average_frame_rate

    def _first(self) -> Frame:
        first = next(self._frames, None)
        if first is None:
            raise InputError(f"{self._path}: there is no picture in it to put behind people")
        return first


def _time_of(frame: Frame) -> Fraction:
    """Exact presentation time in seconds: with rounded times, every loop would lose a bit of time."""
    return frame.pts * frame.time_base
