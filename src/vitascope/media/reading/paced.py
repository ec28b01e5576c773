"""Plays a video like a camera: at its own pace, dropping late frames."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from time import monotonic, sleep
from typing import Generic, Self, TypeVar

from vitascope.closing import Closing
from vitascope.errors import InputError
from vitascope.frames import Frame
from vitascope.gpu.pipeline.queues import BoundedQueue, Mark, QueueLimits
from vitascope.media.reading.reader import VideoReader, open_video

_LET_GO_SECONDS = 5.0
"""Time for a busy decoder to end; one that hangs for longer, for example on a disconnected disk, is abandoned."""

Picture = TypeVar("Picture")


class Paced(Closing):
    """Yields items when they are due; items not taken in time are dropped. A context manager.

    Args:
        clock: Returns steadily increasing seconds.
        wait: Sleeps for some seconds.
    """

    def __init__(self, clock: Callable[[], float], wait: Callable[[float], object]) -> None:
        self._clock, self._wait = clock, wait
        self._began: float | None = None
        self.captured_count = 0
        """Number of pictures that came due, including dropped ones."""
        self.is_over = False
        """True after the last picture."""

    def _comes_due(self, when: float, timeout_seconds: float | None) -> bool:
        """Wait for a moment; False if the timeout comes first."""
        ahead = when - self._clock()
        if timeout_seconds is not None and ahead > timeout_seconds:
            self._wait(timeout_seconds)
            return False
        if ahead > 0:
            self._wait(ahead)
        return True

    def close(self) -> None:
        """Close what is open."""


class PacedFilm(Paced, ABC, Generic[Picture]):
    """A video played at its own pace; a subclass defines its pictures.

    Args:
        path: The video.
        start_seconds: Leave out frames before this time.
        end_seconds: Leave out frames from this time on.
        max_corrupt_frames: Maximum number of damaged frames that are skipped.
        prefetch_frames: Frames that a thread decodes ahead; 0 decodes on demand.
        clock: Returns steadily increasing seconds.
        wait: Sleeps for some seconds.

    Raises:
        InputError: The video cannot be read.
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
        self.part = start_seconds, end_seconds
        """Requested start and end in seconds."""
        self._reader = open_video(
            path,
            start_seconds=start_seconds or None,
            end_seconds=end_seconds,
            max_corrupt_frames=max_corrupt_frames,
        )
        self.info = self._reader.info
        """The file's description."""
        self._ahead = _ReadAhead(self._reader, prefetch_frames) if prefetch_frames else None
        self._next: Frame | None = None
        self._first_pts = 0.0

    def take(self, *, timeout_seconds: float | None = None) -> Picture | None:
        """Wait for the newest frame that is due; None on timeout or at the end.

        Raises:
            InputError: No frame lies between start and end.
        """
        frame = self._due(timeout_seconds)
        return None if frame is None else self._picture_of(frame, self._when(frame))

    @abstractmethod
    def _picture_of(self, frame: Frame, captured_seconds: float) -> Picture:
        """Make the picture of a frame.

        Args:
            frame: The frame, in host memory.
            captured_seconds: Time at which it was due.
        """

    @abstractmethod
    def _nothing(self) -> InputError:
        """The error for a video without a frame between start and end."""

    def _due(self, timeout_seconds: float | None) -> Frame | None:
        following = self._next or self._read()
        if following is None and self._began is None:
            raise self._nothing()
        if following is None:
            return None
        if self._began is None:
            self._began, self._first_pts = self._clock(), following.pts_seconds
        if not self._comes_due(self._when(following), timeout_seconds):
            self._next = following
            return None
        while True:  # drops late frames
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
        assert self._began is not None  # set with the first frame
        return self._began + frame.pts_seconds - self._first_pts

    def close(self) -> None:
        """Close the file, unless the decoder hangs in it."""
        if self._ahead is None or self._ahead.stop():
            self._reader.close()


class _ReadAhead:
    """The pictures of a reader, some decoded ahead."""

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
        except Exception as error:  # raised when the missing picture is requested
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
        """End the thread; False if it hangs."""
        self._ready.stop()
        self._thread.join(_LET_GO_SECONDS)
        return not self._thread.is_alive()
