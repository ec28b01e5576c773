"""Live capture: a thread reads the camera, keeps the newest picture, and waits for an unplugged camera."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Literal, Self

import cv2
import numpy as np
import numpy.typing as npt

from vitascope.errors import InputError

_RETRY_SECONDS = 1.0
"""Time between attempts to reopen a camera."""
_SILENCE_SECONDS = 2.0
"""Time without a picture after which a camera counts as hanging."""
_CLOSING_SECONDS = 2.0
"""Longest wait for a pending read when a camera closes; a hanging driver is then abandoned."""

_FFMPEG_LEVEL = "OPENCV_FFMPEG_LOGLEVEL"

CameraState = Literal["connected", "silent", "lost"]


@dataclass(frozen=True, slots=True, eq=False)
class CameraPicture:
    """A picture from a camera."""

    rgb: npt.NDArray[np.uint8]
    """uint8 [H, W, 3], R'G'B', C-contiguous; owned by the receiver."""
    captured_seconds: float
    """Capture time, on ``time.monotonic``."""
    index: int
    """Number from 0 over all captured pictures, including dropped ones."""
    is_first: bool
    """True for the first picture after the camera was opened or reopened."""


def is_camera(name: str) -> bool:
    """True if the name is a camera (a number or an address) rather than a file."""
    return (name.isdecimal() and not Path(name).exists()) or "://" in name or name.startswith("/dev/")


class Capture:
    """A camera opened by OpenCV (V4L2, Media Foundation, AVFoundation), or an address such as an RTSP URL."""

    def __init__(self, opened: cv2.VideoCapture) -> None:
        self._opened = opened

    def read(self) -> npt.NDArray[np.uint8] | None:
        """Wait for the next picture, uint8 [H, W, 3] R'G'B'; None if the camera is gone."""
        try:
            has_picture, bgr = self._opened.read()
        except cv2.error:  # how some drivers report that the camera is gone
            return None
        if not has_picture:
            return None
        return np.asarray(cv2.cvtColor(bgr, cv2.COLOR_BGR2RGB), np.uint8)

    def close(self) -> None:
        """Release the camera."""
        self._opened.release()


def open_capture(
    source: int | str,
    *,
    size: tuple[int, int] | None = None,
    frame_rate: float | None = None,
) -> Capture:
    """Open a camera.

    Args:
        source: The camera's number from 0, or an address that OpenCV can open (``rtsp://…``, ``/dev/video2``).
        size: (width, height) to request; cameras use their nearest mode.
        frame_rate: Frames per second to request.

    Raises:
        InputError: The camera does not exist, or another program uses it.
    """
    logging = cv2.utils.logging
    before = logging.setLogLevel(logging.LOG_LEVEL_SILENT)  # our error below says the same in one line
    # FFmpeg's log level (AV_LOG_QUIET), which OpenCV reads once, when the process first uses FFmpeg.
    is_set = _FFMPEG_LEVEL in os.environ
    if not is_set:
        os.environ[_FFMPEG_LEVEL] = "-8"
    try:
        opened = cv2.VideoCapture(source) if isinstance(source, int) else cv2.VideoCapture(str(source))
    except cv2.error as error:
        raise _not_there(source) from error
    finally:
        logging.setLogLevel(before)
        if not is_set:
            os.environ.pop(_FFMPEG_LEVEL, None)
    if not opened.isOpened():
        opened.release()
        raise _not_there(source)
    if size is not None:
        opened.set(cv2.CAP_PROP_FRAME_WIDTH, size[0])
        opened.set(cv2.CAP_PROP_FRAME_HEIGHT, size[1])
    if frame_rate is not None:
        opened.set(cv2.CAP_PROP_FPS, frame_rate)
    opened.set(cv2.CAP_PROP_BUFFERSIZE, 1)  # avoid old pictures; drivers without this property ignore it
    return Capture(opened)


def _not_there(source: int | str) -> InputError:
    name = f"camera {source}" if isinstance(source, int) else str(source)
    return InputError(f"{name} cannot be opened: it does not exist, or another program uses it")


class Camera:
    """A camera that is read continuously, so that pictures are always new. A context manager.

    Args:
        open_one: Opens the camera; called again after it was unplugged. Its first failure is raised by ``__enter__``.
        on_state: Called from the reading thread when the camera is unplugged or hangs, and when it is back.
        retry_seconds: Time between attempts to reopen it.
        reads_ahead: False reads only when a picture is taken, without a thread; the driver's buffered pictures come
            first.
    """

    def __init__(
        self,
        open_one: Callable[[], Capture],
        *,
        on_state: Callable[[CameraState], object] | None = None,
        retry_seconds: float = _RETRY_SECONDS,
        reads_ahead: bool = True,
    ) -> None:
        self._reads_ahead = reads_ahead
        self._capture: Capture | None = None
        self._open_one = open_one
        self._on_state = on_state
        self._retry_seconds = retry_seconds
        self._changed = threading.Condition()
        self._newest: CameraPicture | None = None
        self._captured = 0
        self._newest_seconds = 0.0
        self._state: CameraState = "lost"
        self._is_stopped = False
        self._thread: threading.Thread | None = None

    @property
    def state(self) -> CameraState:
        """``connected`` while pictures arrive."""
        return self._state

    @property
    def is_over(self) -> bool:
        """True once it is closed; an unplugged camera may come back."""
        return self._is_stopped

    @property
    def captured_count(self) -> int:
        """Captured pictures, including dropped ones."""
        return self._captured

    def take(self, *, timeout_seconds: float | None = None) -> CameraPicture | None:
        """Wait for the newest picture not taken yet.

        Args:
            timeout_seconds: Longest wait; None waits while the camera is open.

        Returns:
            The picture; None on timeout, or if the camera was closed.
        """
        if not self._reads_ahead:
            return self._take_directly(timeout_seconds)
        with self._changed:
            self._changed.wait_for(lambda: self._newest is not None or self._is_stopped, timeout_seconds)
            taken, self._newest = self._newest, None
            is_silent = taken is None and monotonic() - self._newest_seconds > _SILENCE_SECONDS
        if is_silent and self._state == "connected":
            self._enter_state("silent")
        return None if self._is_stopped else taken

    def __enter__(self) -> Self:
        """Open the camera and start reading.

        Raises:
            InputError: The camera cannot be opened.
        """
        capture = self._open_one()
        self._is_stopped = False
        if not self._reads_ahead:
            self._capture = capture
            return self
        self._thread = threading.Thread(
            target=self._read, args=(capture,), name="vitascope-camera", daemon=True
        )
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop reading and release the camera; a hanging driver is abandoned."""
        with self._changed:
            self._is_stopped = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(_CLOSING_SECONDS)
        if self._capture is not None:
            self._capture.close()

    def _take_directly(self, timeout_seconds: float | None) -> CameraPicture | None:
        if self._is_stopped:
            return None
        if self._capture is None:
            with self._changed:
                wait = (
                    self._retry_seconds
                    if timeout_seconds is None
                    else min(timeout_seconds, self._retry_seconds)
                )
                self._changed.wait_for(lambda: self._is_stopped, wait)
            try:
                self._capture = self._open_one()
            except InputError:
                return None
        rgb = self._capture.read()
        if rgb is None:
            self._capture.close()
            self._capture = None
            self._enter_state("lost")
            return None
        picture = CameraPicture(rgb, monotonic(), self._captured, self._state == "lost")
        self._captured += 1
        self._enter_state("connected")
        return picture

    def _read(self, capture: Capture | None) -> None:
        while capture is not None:
            self._read_until_gone(capture)
            capture.close()
            capture = self._found_again()

    def _read_until_gone(self, capture: Capture) -> None:
        is_first = True
        while not self._is_stopped and (rgb := capture.read()) is not None:
            picture = CameraPicture(rgb, monotonic(), self._captured, is_first)
            is_first = False
            with self._changed:
                self._captured += 1
                self._newest, self._newest_seconds = picture, picture.captured_seconds
                self._changed.notify_all()
            self._enter_state("connected")
        if not self._is_stopped:
            self._enter_state("lost")

    def _found_again(self) -> Capture | None:
        """Wait until the camera can be reopened; None if this object was closed."""
        while True:
            with self._changed:
                if self._changed.wait_for(lambda: self._is_stopped, self._retry_seconds):
                    return None
            try:
                return self._open_one()
            except InputError:
                continue

    def _enter_state(self, state: CameraState) -> None:
        if state != self._state:
            self._state = state
            if self._on_state is not None:
                self._on_state(state)


def camera_named(
    name: str,
    *,
    size: tuple[int, int] | None = None,
    frame_rate: float | None = None,
    reads_ahead: bool = True,
    on_message: Callable[[str], object] | None = None,
) -> Camera:
    """A camera by the name that users give it; reports when it is lost and when it is back.

    Args:
        name: The camera's number from 0, or an address; see ``is_camera``.
        size: As for ``open_capture``.
        frame_rate: As for ``open_capture``.
        reads_ahead: As for ``Camera``.
        on_message: Called with messages, one line each.
    """
    source = int(name) if name.isdecimal() else name
    lines: dict[CameraState, str] = {
        "lost": f"camera {name} was disconnected; waiting for it",
        "silent": f"camera {name} gives no pictures; waiting for them",
        "connected": f"camera {name} is connected",
    }
    return Camera(
        partial(open_capture, source, size=size, frame_rate=frame_rate),
        on_state=None if on_message is None else (lambda state: on_message(lines[state])),
        reads_ahead=reads_ahead,
    )
