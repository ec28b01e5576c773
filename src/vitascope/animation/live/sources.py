"""Drivers other than a camera, in real time: a video as if it were one, recorded motion, and either without end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from time import monotonic, sleep

import numpy as np

from vitascope.animation.drivers import no_picture_between
from vitascope.animation.face import FaceMotion, RgbPicture, TrackedFace
from vitascope.animation.motion_file import MOTION_SUFFIX, MotionReader
from vitascope.animation.pictures import driver_picture
from vitascope.errors import InputError
from vitascope.frames import Frame
from vitascope.media.reading.camera import CameraPicture
from vitascope.media.reading.paced import Paced, PacedFilm
from vitascope.media.reading.reader import VideoReader, open_video

__all__ = ["EndlessDriver", "FilmSource", "ReplaySource"]

_MOST_BYTES = 256 << 20
_NO_PICTURE = np.zeros((1, 1, 3), np.uint8)


class FilmSource(PacedFilm[CameraPicture]):
    """A driver's video that is shown at its own pace; arguments and errors are those of ``PacedFilm``."""

    def _picture_of(self, frame: Frame, captured_seconds: float) -> CameraPicture:
        rgb = driver_picture(frame, rotation_degrees=self.info.rotation_degrees)
        return CameraPicture(rgb, captured_seconds, frame.index, frame.index == 0)

    def _nothing(self) -> InputError:
        return no_picture_between(self.info.path, *self.part)


class _Recorded(Paced):
    """The half of an estimator that recorded motion has no use for; ``update`` is its owner's."""

    def set_neutral(self, face: TrackedFace | None = None) -> bool:
        """False: a recording has its neutral."""
        del face
        return False

    def find_neutral(self) -> bool:
        """False: a recording has its neutral."""
        return False

    def set_smoothing(self, *, pose_window: int, expression_window: int) -> None:
        """A recording was smoothed when it was made."""


class ReplaySource(_Recorded):
    """Recorded motion at its own pace: camera and estimator in one.

    Args:
        path: A ``.motion`` file.
        start_seconds: Leave out what comes before, counted from the first row.
        end_seconds: Leave out what comes from here on.
        clock: Seconds that pass evenly.
        wait: Sleeps.

    Raises:
        InputError: It cannot be read.
    """

    def __init__(
        self,
        path: Path,
        *,
        start_seconds: float | None = None,
        end_seconds: float | None = None,
        clock: Callable[[], float] = monotonic,
        wait: Callable[[float], object] = sleep,
    ) -> None:
        super().__init__(clock, wait)
        self._file = MotionReader(path)
        self._rows = (motion for _, motion in self._file.between(start_seconds or 0.0, end_seconds))
        self._next = next(self._rows, None)
        if self._next is None:
            self._file.close()
            raise InputError(f"{path}: no motion is left between start and end")
        self._first_pts = self._next.pts_seconds
        self._given = FaceMotion()

    def take(self, *, timeout_seconds: float | None = None) -> CameraPicture | None:
        """Wait for the newest row that is due, and stand in for its picture; the row follows with ``update``."""
        if self._next is None:
            return None
        if self._began is None:
            self._began = self._clock()
        if not self._comes_due(self._when(self._next), timeout_seconds):
            return None
        while self._next is not None and self._when(self._next) <= self._clock() + 1e-4:
            self._given, self._next = self._next, next(self._rows, None)
            self.captured_count += 1
        self.is_over = self._next is None
        number = self.captured_count - 1
        return CameraPicture(_NO_PICTURE, self._when(self._given), number, number == 0)

    def _when(self, row: FaceMotion) -> float:
        assert self._began is not None  # of the first row
        return self._began + row.pts_seconds - self._first_pts

    def update(
        self, face: TrackedFace | None, *, pts_seconds: float, driver_rgb: RgbPicture | None = None
    ) -> FaceMotion:
        """Give the row that ``take`` announced."""
        del face, pts_seconds, driver_rgb
        return self._given

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class EndlessDriver(_Recorded):
    """For measuring: gives a driver's pictures again and again, at a rate of one's own, from memory.

    Reading costs nothing while it runs: the part that is given, at most its first 256 MB, is read before. For a
    recording this is the estimator, too. It is never over.

    Args:
        path: A video, or a ``.motion`` file.
        frame_rate: Pictures a second.
        start_seconds: Leave out what comes before.
        end_seconds: Leave out what comes from here on.
        max_corrupt_frames: Damaged frames of a video that are skipped.
        clock: Seconds that pass evenly.
        wait: Sleeps.

    Raises:
        InputError: It cannot be read, or nothing is left of it.
    """

    def __init__(
        self,
        path: Path,
        *,
        frame_rate: float,
        start_seconds: float | None = None,
        end_seconds: float | None = None,
        max_corrupt_frames: int = 250,
        clock: Callable[[], float] = monotonic,
        wait: Callable[[float], object] = sleep,
    ) -> None:
        super().__init__(clock, wait)
        self._rows: list[FaceMotion] = []
        if path.suffix.lower() == MOTION_SUFFIX:
            with MotionReader(path) as file:
                self._rows = [motion for _, motion in file.between(start_seconds or 0.0, end_seconds)]
            self._pictures = [_NO_PICTURE] * len(self._rows)
        else:
            with open_video(
                path,
                start_seconds=start_seconds or None,
                end_seconds=end_seconds,
                max_corrupt_frames=max_corrupt_frames,
            ) as reader:
                self._pictures = _pictures_of(reader)
        if not self._pictures:
            raise InputError(f"{path}: nothing is left of it between start and end")
        self._interval = 1 / frame_rate
        self._given = 0

    def take(self, *, timeout_seconds: float | None = None) -> CameraPicture | None:
        """Wait for the newest picture that is due; None when none comes due in time."""
        if self._began is None:
            self._began = self._clock()
        if not self._comes_due(self._began + self.captured_count * self._interval, timeout_seconds):
            return None
        due = int((self._clock() - self._began) / self._interval)
        self._given = max(due, self.captured_count)
        self.captured_count = self._given + 1
        when = self._began + self._given * self._interval
        rgb = self._pictures[self._given % len(self._pictures)]
        return CameraPicture(rgb, when, self._given, self._given == 0)

    def update(
        self, face: TrackedFace | None, *, pts_seconds: float, driver_rgb: RgbPicture | None = None
    ) -> FaceMotion:
        """Give the row of the picture that was taken last."""
        del face, driver_rgb
        return replace(self._rows[self._given % len(self._rows)], pts_seconds=pts_seconds)


def _pictures_of(reader: VideoReader) -> list[RgbPicture]:
    kept: list[RgbPicture] = []
    for frame in reader:
        kept.append(driver_picture(frame, rotation_degrees=reader.info.rotation_degrees))
        if (len(kept) + 1) * kept[0].nbytes > _MOST_BYTES:
            break
    return kept
