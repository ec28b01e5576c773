"""Drivers other than a camera, in real time: a video as if it were one, recorded motion, and either without end."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from time import monotonic, sleep
from typing import Self

import numpy as np

from vitascope.animation.drivers import no_picture_between
from vitascope.animation.face import FaceMotion, RgbPicture, TrackedFace
from vitascope.animation.motion_file import MOTION_SUFFIX, MotionReader
from vitascope.animation.pictures import driver_picture
from vitascope.errors import InputError
from vitascope.frames import Frame
from vitascope.gpu.pipeline.queues import BoundedQueue, Mark, QueueLimits
from vitascope.media.reading.camera import CameraPicture
from vitascope.media.reading.reader import VideoReader, open_video

__all__ = ["EndlessDriver", "FilmSource", "ReplaySource"]

_LET_GO_SECONDS = 5.0
"""For a decoder that reads; one that hangs for longer, on a disk that went away, say, is left behind."""
_MOST_BYTES = 256 << 20
_NO_PICTURE = np.zeros((1, 1, 3), np.uint8)


class _Paced:
    """Gives what comes due by the clock; what nobody takes in time falls out. A context manager.

    Args:
        clock: Seconds that pass evenly.
        wait: Sleeps.
    """

    def __init__(self, clock: Callable[[], float], wait: Callable[[float], object]) -> None:
        self._clock, self._wait = clock, wait
        self._began: float | None = None
        self.captured_count = 0
        """Pictures that came due, also those that nobody took."""
        self.is_over = False
        """True after the last picture."""

    def _comes_due(self, when: float, timeout_seconds: float | None) -> bool:
        """Wait for a moment; False when it does not come in time."""
        ahead = when - self._clock()
        if timeout_seconds is not None and ahead > timeout_seconds:
            self._wait(timeout_seconds)
            return False
        if ahead > 0:
            self._wait(ahead)
        return True

    def close(self) -> None:
        """Close what is open."""

    def __enter__(self) -> Self:
        """Use as a context manager."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()


class FilmSource(_Paced):
    """A video that is shown at its own pace.

    Args:
        path: A video.
        start_seconds: Leave out what comes before.
        end_seconds: Leave out what comes from here on.
        max_corrupt_frames: Damaged frames that are skipped.
        prefetch_frames: Frames that a thread decodes ahead; 0 decodes when one is taken.
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
        max_corrupt_frames: int = 250,
        prefetch_frames: int = 0,
        clock: Callable[[], float] = monotonic,
        wait: Callable[[float], object] = sleep,
    ) -> None:
        super().__init__(clock, wait)
        self._nothing = no_picture_between(path, start_seconds, end_seconds)
        self._reader = open_video(
            path,
            start_seconds=start_seconds or None,
            end_seconds=end_seconds,
            max_corrupt_frames=max_corrupt_frames,
        )
        self._ahead = _ReadAhead(self._reader, prefetch_frames) if prefetch_frames else None
        self._next: Frame | None = None
        self._first_pts = 0.0

    def take(self, *, timeout_seconds: float | None = None) -> CameraPicture | None:
        """Wait for the newest frame that is due; None when none comes due in time, or none is left.

        Raises:
            InputError: None lies between start and end.
        """
        frame = self._due(timeout_seconds)
        if frame is None:
            return None
        rgb = driver_picture(frame, rotation_degrees=self._reader.info.rotation_degrees)
        return CameraPicture(rgb, self._when(frame), frame.index, frame.index == 0)

    def _due(self, timeout_seconds: float | None) -> Frame | None:
        following = self._next or self._read()
        if following is None and self._began is None:
            raise self._nothing
        if following is None:
            return None
        if self._began is None:
            self._began, self._first_pts = self._clock(), following.pts_seconds
        if not self._comes_due(self._when(following), timeout_seconds):
            self._next = following
            return None
        while True:  # what is late falls out
            self.captured_count += 1
            frame, following = following, self._read()
            if following is None or self._when(following) > self._clock():
                self._next = following
                return frame

    def _read(self) -> Frame | None:
        frame = next(self._reader if self._ahead is None else self._ahead, None)
        self.is_over = frame is None
        return frame

    def _when(self, frame: Frame) -> float:
        assert self._began is not None  # of the first frame
        return self._began + frame.pts_seconds - self._first_pts

    def close(self) -> None:
        """Close the file, unless the decoder hangs in it."""
        if self._ahead is None or self._ahead.stop():
            self._reader.close()


class _ReadAhead:
    """The pictures of a reader, some of them ready."""

    def __init__(self, reader: VideoReader, count: int) -> None:
        self._reader = reader
        self._ready: BoundedQueue[Frame] = BoundedQueue("decode > capture", limits=QueueLimits(items=count))
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._read, name="vitascope-film", daemon=True)
        self._thread.start()

    def _read(self) -> None:
        try:
            while (frame := next(self._reader, None)) is not None and self._ready.put(frame):
                pass
        except Exception as error:  # raised where the picture is missed
            self._failure = error
        self._ready.end()

    def __next__(self) -> Frame:
        taken = self._ready.get()
        if not isinstance(taken, Mark):
            return taken[1]
        if self._failure is not None:
            raise self._failure
        raise StopIteration

    def __iter__(self) -> Self:
        return self

    def stop(self) -> bool:
        """End the thread; False when it hangs."""
        self._ready.stop()
        self._thread.join(_LET_GO_SECONDS)
        return not self._thread.is_alive()


class _Recorded(_Paced):
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
