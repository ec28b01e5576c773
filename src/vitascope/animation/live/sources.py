"""Drivers other than a camera, in real time: a film as if it were one, and recorded motion."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from time import monotonic, sleep
from types import TracebackType
from typing import Self

import numpy as np

from vitascope.animation.face import FaceMotion, RgbPicture, TrackedFace
from vitascope.animation.motion_file import MotionReader
from vitascope.animation.pictures import driver_picture
from vitascope.frames import Frame
from vitascope.media.camera import CameraPicture
from vitascope.media.reader import open_video

__all__ = ["FilmSource", "ReplaySource"]


class FilmSource:
    """A film that is shown at its own pace; pictures that nobody took in time fall out. A context manager.

    Args:
        path: A video.
        clock: Seconds that pass evenly.
        wait: Sleeps.

    Raises:
        InputError: It cannot be read.
    """

    def __init__(
        self,
        path: Path,
        *,
        clock: Callable[[], float] = monotonic,
        wait: Callable[[float], object] = sleep,
    ) -> None:
        self._reader = open_video(path)
        self._clock, self._wait = clock, wait
        self._began: float | None = None
        self._next: Frame | None = None
        self._first_pts = 0.0
        self.captured_count = 0
        """Pictures that came due, also those that nobody took."""
        self.is_over = False
        """True after the last picture."""

    def take(self, *, timeout_seconds: float | None = None) -> CameraPicture | None:
        """The newest picture that is due, waited for; None when none comes due in time, or none is left."""
        frame = self._due(timeout_seconds)
        if frame is None:
            return None
        rgb = driver_picture(frame, rotation_degrees=self._reader.info.rotation_degrees)
        return CameraPicture(rgb, self._when(frame), frame.index, frame.index == 0)

    def _due(self, timeout_seconds: float | None) -> Frame | None:
        following = self._next or self._read()
        if following is None:
            return None
        if self._began is None:
            self._began, self._first_pts = self._clock(), following.pts_seconds
        ahead = self._when(following) - self._clock()
        if timeout_seconds is not None and ahead > timeout_seconds:
            self._next = following
            self._wait(timeout_seconds)
            return None
        if ahead > 0:
            self._wait(ahead)
        while True:  # what is late falls out
            self.captured_count += 1
            frame, following = following, self._read()
            if following is None or self._when(following) > self._clock():
                self._next = following
                return frame

    def _read(self) -> Frame | None:
        frame = next(self._reader, None)
        self.is_over = frame is None
        return frame

    def _when(self, frame: Frame) -> float:
        assert self._began is not None  # of the first picture
        return self._began + frame.pts_seconds - self._first_pts

    def __enter__(self) -> Self:
        """Use as a context manager."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the file."""
        self._reader.close()


class ReplaySource:
    """Recorded motion at its own pace: camera and estimator in one. A context manager.

    Args:
        path: A ``.motion`` file.
        clock: Seconds that pass evenly.
        wait: Sleeps.

    Raises:
        InputError: It cannot be read.
    """

    def __init__(
        self,
        path: Path,
        *,
        clock: Callable[[], float] = monotonic,
        wait: Callable[[float], object] = sleep,
    ) -> None:
        self._file = MotionReader(path)
        self._rows = iter(self._file)
        self._clock, self._wait = clock, wait
        self._began: float | None = None
        self._next = next(self._rows, None)
        self._first_pts = 0.0 if self._next is None else self._next.pts_seconds
        self._given = FaceMotion()
        self.captured_count = 0
        """Rows that came due."""
        self.is_over = self._next is None
        """True after the last row."""

    def take(self, *, timeout_seconds: float | None = None) -> CameraPicture | None:
        """A stand-in for the picture of the newest row that is due; the row follows with ``update``."""
        if self._next is None:
            return None
        if self._began is None:
            self._began = self._clock()
        ahead = self._when(self._next) - self._clock()
        if timeout_seconds is not None and ahead > timeout_seconds:
            self._wait(timeout_seconds)
            return None
        if ahead > 0:
            self._wait(ahead)
        while self._next is not None and self._when(self._next) <= self._clock() + 1e-4:
            self._given, self._next = self._next, next(self._rows, None)
            self.captured_count += 1
        self.is_over = self._next is None
        return CameraPicture(
            np.zeros((1, 1, 3), np.uint8),
            self._when(self._given),
            self.captured_count - 1,
            self.captured_count == 1,
        )

    def _when(self, row: FaceMotion) -> float:
        assert self._began is not None  # of the first row
        return self._began + row.pts_seconds - self._first_pts

    def update(
        self, face: TrackedFace | None, *, pts_seconds: float, driver_rgb: RgbPicture | None = None
    ) -> FaceMotion:
        """The row that ``take`` announced."""
        del face, pts_seconds, driver_rgb
        return self._given

    def set_neutral(self, face: TrackedFace | None = None) -> bool:
        """False: a recording has its neutral."""
        del face
        return False

    def find_neutral(self) -> bool:
        """False: a recording has its neutral."""
        return False

    def set_smoothing(self, *, pose_window: int, expression_window: int) -> None:
        """A recording was smoothed when it was made."""

    def __enter__(self) -> Self:
        """Use as a context manager."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the file."""
        self._file.close()
