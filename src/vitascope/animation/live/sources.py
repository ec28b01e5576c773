"""Drivers other than a camera, in real time: a film as if it were one, and recorded motion."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from time import monotonic, sleep
from types import TracebackType
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

__all__ = ["EndlessDriver", "FilmSource", "RecordedEstimator", "ReplaySource", "rows_between"]

_LET_GO_SECONDS = 5.0
"""For a decoder that reads; one that hangs for longer, on a disk that went away, say, is left behind."""


class FilmSource:
    """A film that is shown at its own pace; pictures that nobody took in time fall out. A context manager.

    Args:
        path: A video.
        start_seconds: Leave out what comes before.
        end_seconds: Leave out what comes from here on.
        max_corrupt_frames: Damaged pictures that are skipped.
        prefetch_frames: Pictures that a thread decodes ahead; 0 decodes when one is taken.
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
        self._nothing = no_picture_between(path, start_seconds, end_seconds)
        self._reader = open_video(
            path,
            start_seconds=start_seconds or None,
            end_seconds=end_seconds,
            max_corrupt_frames=max_corrupt_frames,
        )
        self._ahead = _ReadAhead(self._reader, prefetch_frames) if prefetch_frames else None
        self._clock, self._wait = clock, wait
        self._began: float | None = None
        self._next: Frame | None = None
        self._first_pts = 0.0
        self.captured_count = 0
        """Pictures that came due, also those that nobody took."""
        self.is_over = False
        """True after the last picture."""

    def take(self, *, timeout_seconds: float | None = None) -> CameraPicture | None:
        """The newest picture that is due, waited for; None when none comes due in time, or none is left.

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
        frame = next(self._reader if self._ahead is None else self._ahead, None)
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


class RecordedEstimator:
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


class ReplaySource(RecordedEstimator):
    """Recorded motion at its own pace: camera and estimator in one. A context manager.

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
        self._file = MotionReader(path)
        self._rows = rows_between(self._file, start_seconds or 0.0, end_seconds)
        self._clock, self._wait = clock, wait
        self._began: float | None = None
        self._next = next(self._rows, None)
        if self._next is None:
            self._file.close()
            raise InputError(f"{path}: no motion is left between start and end")
        self._first_pts = self._next.pts_seconds
        self._given = FaceMotion()
        self.captured_count = 0
        """Rows that came due."""
        self.is_over = False
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

    def __enter__(self) -> Self:
        """Use as a context manager."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the file."""
        self._file.close()


def rows_between(
    rows: Iterable[FaceMotion], start_seconds: float, end_seconds: float | None
) -> Iterator[FaceMotion]:
    """Rows from ``start_seconds`` until before ``end_seconds``, both counted from the first row."""
    first: float | None = None
    for row in rows:
        first = row.pts_seconds if first is None else first
        if end_seconds is not None and row.pts_seconds - first >= end_seconds:
            return
        if row.pts_seconds - first >= start_seconds:
            yield row


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
