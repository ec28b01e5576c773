"""A driver for measuring: a film or a recording again and again, at a rate of one's own, from memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from time import monotonic, sleep
from types import TracebackType
from typing import Self

import numpy as np

from vitascope.animation.face import FaceMotion, RgbPicture, TrackedFace
from vitascope.animation.live.sources import RecordedEstimator, rows_between
from vitascope.animation.motion_file import MOTION_SUFFIX, MotionReader
from vitascope.animation.pictures import driver_picture
from vitascope.errors import InputError
from vitascope.media.reading.camera import CameraPicture
from vitascope.media.reading.reader import VideoReader, open_video

__all__ = ["EndlessDriver"]

_MOST_BYTES = 256 << 20
_NO_PICTURE = np.zeros((1, 1, 3), np.uint8)


class EndlessDriver(RecordedEstimator):
    """Gives a driver's pictures without end; those that nobody took in time fall out. A context manager.

    Reading costs nothing while it runs: the part that is given, at most its first 256 MB, is read before. For a
    recording this is the estimator, too.

    Args:
        path: A video, or a ``.motion`` file.
        frame_rate: Pictures a second.
        start_seconds: Leave out what comes before.
        end_seconds: Leave out what comes from here on.
        max_corrupt_frames: Damaged pictures of a video that are skipped.
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
        is_recording = path.suffix.lower() == MOTION_SUFFIX
        self._rows: list[FaceMotion] = []
        if is_recording:
            with MotionReader(path) as rows:
                self._rows = list(rows_between(rows, start_seconds or 0.0, end_seconds))
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
        self._clock, self._wait = clock, wait
        self._began: float | None = None
        self._given = 0
        self.captured_count = 0
        """Pictures that came due, also those that nobody took."""
        self.is_over = False
        """Never."""

    def take(self, *, timeout_seconds: float | None = None) -> CameraPicture | None:
        """The newest picture that is due, waited for; None when none comes due in time."""
        if self._began is None:
            self._began = self._clock()
        ahead = self._began + self.captured_count * self._interval - self._clock()
        if timeout_seconds is not None and ahead > timeout_seconds:
            self._wait(timeout_seconds)
            return None
        if ahead > 0:
            self._wait(ahead)
        due = int((self._clock() - self._began) / self._interval)
        self._given = max(due, self.captured_count)
        self.captured_count = self._given + 1
        when = self._began + self._given * self._interval
        rgb = self._pictures[self._given % len(self._pictures)]
        return CameraPicture(rgb, when, self._given, self._given == 0)

    def update(
        self, face: TrackedFace | None, *, pts_seconds: float, driver_rgb: RgbPicture | None = None
    ) -> FaceMotion:
        """The row of the picture that was taken last."""
        del face, driver_rgb
        return replace(self._rows[self._given % len(self._rows)], pts_seconds=pts_seconds)

    def __enter__(self) -> Self:
        """Use as a context manager."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing is open."""


def _pictures_of(reader: VideoReader) -> list[RgbPicture]:
    kept: list[RgbPicture] = []
    for frame in reader:
        kept.append(driver_picture(frame, rotation_degrees=reader.info.rotation_degrees))
        if (len(kept) + 1) * kept[0].nbytes > _MOST_BYTES:
            break
    return kept
