"""The port of a live output, and the picture that is handed to all of them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal, Protocol, runtime_checkable

import av
import cv2
import numpy as np
import numpy.typing as npt
from av.video.reformatter import Colorspace, Interpolation, VideoReformatter

__all__ = ["Attentive", "LivePicture", "PixelFormat", "Sink", "SinkFormat"]

PixelFormat = Literal["rgb24", "rgba", "bgra", "yuv420p"]
"""``rgb24``, ``rgba`` and ``bgra``: uint8 [H, W, 3 or 4], full range, alpha 255. ``yuv420p``: an ``av.VideoFrame``,
BT.709 limited range, each chroma sample between its four pixels."""


@dataclass(frozen=True, slots=True)
class SinkFormat:
    """What a sink will be given; the same for every picture until it is opened again."""

    width: int
    height: int
    frame_rate: Fraction
    """Pictures a second that are aimed at; they may come later or fall out."""


class LivePicture:
    """One picture for all sinks, converted once to each format that any of them wants. Thread-safe.

    Args:
        rgb: uint8 [H, W, 3], C-contiguous; held, and not changed by anyone from now on.
        captured_seconds: When what it shows was captured, on ``time.monotonic``'s clock.
        index: Counted from 0 over a run.
    """

    def __init__(self, rgb: npt.NDArray[np.uint8], *, captured_seconds: float, index: int = 0) -> None:
        self.rgb = rgb
        self.captured_seconds = captured_seconds
        self.index = index
        self._lock = threading.Lock()
        self._made: dict[PixelFormat, Any] = {"rgb24": rgb}

    @property
    def size(self) -> tuple[int, int]:
        """(width, height)."""
        return self.rgb.shape[1], self.rgb.shape[0]

    def as_format(self, wanted: PixelFormat) -> Any:
        """The picture in a format; shared, so read it only."""
        with self._lock:
            if wanted not in self._made:
                self._made[wanted] = _CONVERSIONS[wanted](self.rgb)
            return self._made[wanted]


class Sink(Protocol):
    """One live output. Opened, given pictures, and closed by one thread, its own; may be opened again after closing."""

    @property
    def name(self) -> str:
        """What the user called it, for reports."""
        ...

    @property
    def pixel_format(self) -> PixelFormat:
        """What ``send`` takes."""
        ...

    def open(self, made: SinkFormat) -> None:
        """Get ready.

        Raises:
            MissingDependencyError: A package is not installed; the message names the extra.
            OutputError: It cannot be had: a device that is missing, a port in use, a size that it does not take.
        """
        ...

    def send(self, picture: LivePicture) -> None:
        """Show, write or send a picture of the format that ``open`` was told.

        Raises:
            OutputError: It is gone.
        """
        ...

    def close(self) -> None:
        """Finish; further calls do nothing.

        Raises:
            OutputError: What was sent could not be completed.
        """
        ...


@runtime_checkable
class Attentive(Protocol):
    """A sink that also has work while no picture comes: the keys of a window, which are pressed in a pause, too."""

    def attend(self) -> None:
        """Do what cannot wait for the next picture. Called between pictures, by the sink's own thread."""
        ...


_REFORMATTER = threading.local()


def _yuv420p(rgb: npt.NDArray[np.uint8]) -> av.VideoFrame:
    reformatter = getattr(_REFORMATTER, "kept", None)
    if reformatter is None:  # its context may not be shared by threads
        reformatter = _REFORMATTER.kept = VideoReformatter()
    made: av.VideoFrame = reformatter.reformat(
        av.VideoFrame.from_ndarray(rgb, format="rgb24"),
        format="yuv420p",
        dst_colorspace=Colorspace.ITU709,
        interpolation=Interpolation.AREA,
    )
    return made


_CONVERSIONS: dict[PixelFormat, Callable[[npt.NDArray[np.uint8]], Any]] = {
    "rgba": lambda rgb: cv2.cvtColor(rgb, cv2.COLOR_RGB2RGBA),
    "bgra": lambda rgb: cv2.cvtColor(rgb, cv2.COLOR_RGB2BGRA),
    "yuv420p": _yuv420p,
}
