"""Live outputs: their interface, the picture passed to all of them, and the names to request them by."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal, Protocol, runtime_checkable

import av
import cv2
import numpy as np
import numpy.typing as npt
from av.video.reformatter import Colorspace, Interpolation, VideoReformatter

from vitascope.errors import UsageError

PixelFormat = Literal["rgb24", "rgba", "bgra", "yuv420p", "yuva420p"]
"""``rgb24``, ``rgba`` and ``bgra``: uint8 [H, W, 3 or 4], full range, straight alpha, 255 if the picture has
none. ``yuv420p`` and ``yuva420p``: an ``av.VideoFrame``, BT.709 limited range, chroma centred between four
pixels."""
ALPHA_FORMATS: frozenset[PixelFormat] = frozenset({"rgba", "bgra", "yuva420p"})
"""Formats of sinks that show transparency."""


@dataclass(frozen=True, slots=True)
class SinkFormat:
    """Format of a sink's pictures; constant until it is opened again."""

    width: int
    height: int
    frame_rate: Fraction
    """Target frame rate; pictures may be late or dropped."""


class LivePicture:
    """A picture for all sinks, converted at most once to each format. Thread-safe.

    Args:
        rgb: uint8 [H, W, 3], C-contiguous; kept, so it must not be modified.
        alpha: uint8 [H, W], 255 opaque, straight; kept, too. None is opaque.
        captured_seconds: Capture time, on ``time.monotonic``.
        index: Number in the run, from 0.
    """

    def __init__(
        self,
        rgb: npt.NDArray[np.uint8],
        *,
        alpha: npt.NDArray[np.uint8] | None = None,
        captured_seconds: float,
        index: int = 0,
    ) -> None:
        self.rgb = rgb
        self.alpha = alpha
        self.captured_seconds = captured_seconds
        self.index = index
        self._lock = threading.Lock()
        self._made: dict[PixelFormat, Any] = {"rgb24": rgb}

    @property
    def size(self) -> tuple[int, int]:
        """(width, height)."""
        return self.rgb.shape[1], self.rgb.shape[0]

    def as_format(self, wanted: PixelFormat) -> Any:
        """Convert the picture to a format; the result is shared and read-only."""
        with self._lock:
            if wanted not in self._made:
                self._made[wanted] = self._converted(wanted)
            return self._made[wanted]

    def for_png(self) -> npt.NDArray[np.uint8]:
        """Convert the picture for OpenCV's PNG writer: uint8 [H, W, 3], or 4 with alpha."""
        bgr = cv2.COLOR_RGB2BGR
        made = cv2.cvtColor(self.rgb, bgr) if self.alpha is None else self._converted("bgra")
        return np.asarray(made, np.uint8)

    def _converted(self, wanted: PixelFormat) -> Any:
        match wanted:
            case "rgb24":
                return self.rgb
            case "rgba" | "bgra":
                order = cv2.COLOR_RGB2RGBA if wanted == "rgba" else cv2.COLOR_RGB2BGRA
                made = cv2.cvtColor(self.rgb, order)
                if self.alpha is not None:
                    made[..., 3] = self.alpha
                return made
            case "yuv420p":
                return _as_video(self.rgb, "rgb24", wanted)
            case "yuva420p":
                return _as_video(self._converted("rgba"), "rgba", wanted)


@runtime_checkable
class Sink(Protocol):
    """A live output. One thread opens it, sends pictures and closes it; it can be opened again."""

    @property
    def name(self) -> str:
        """The user's name for the sink, for reports."""
        ...

    @property
    def pixel_format(self) -> PixelFormat:
        """Format of the pictures that ``send`` takes."""
        ...

    def open(self, made: SinkFormat) -> None:
        """Open the output.

        Raises:
            MissingDependencyError: A package is not installed; the message names the extra.
            OutputError: It is not available: a missing device, a port in use, an unsupported size.
        """
        ...

    def send(self, picture: LivePicture) -> None:
        """Show, write or send a picture of the format passed to ``open``.

        Raises:
            OutputError: The output is gone.
        """
        ...

    def close(self) -> None:
        """Finish; idempotent.

        Raises:
            OutputError: The output could not be completed.
        """
        ...


@runtime_checkable
class Attentive(Protocol):
    """A sink with work between pictures, such as a window's key presses."""

    def attend(self) -> None:
        """Do work that cannot wait for the next picture. Called between pictures, on the sink's own thread."""
        ...


_REFORMATTER = threading.local()


def _as_video(picture: npt.NDArray[np.uint8], packed: str, wanted: PixelFormat) -> av.VideoFrame:
    reformatter = getattr(_REFORMATTER, "kept", None)
    if reformatter is None:  # its context must not be shared between threads
        reformatter = _REFORMATTER.kept = VideoReformatter()
    made: av.VideoFrame = reformatter.reformat(
        av.VideoFrame.from_ndarray(picture, format=packed),
        format=wanted,
        dst_colorspace=Colorspace.ITU709,
        interpolation=Interpolation.AREA,
    )
    return made


class NullSink:
    """Discards pictures, to measure everything before the output.

    Args:
        target: Empty.
    """

    name = "null"
    pixel_format: PixelFormat = "rgba"
    """Any format would do; this one needs no conversion."""

    def __init__(self, target: str = "") -> None:
        del target

    def open(self, made: SinkFormat) -> None:
        """Do nothing."""

    def send(self, picture: LivePicture) -> None:
        """Discard the picture."""

    def close(self) -> None:
        """Do nothing."""


@dataclass(frozen=True, slots=True)
class SinkKind:
    """A kind of live output."""

    word: str
    """Word to request it by."""
    target: str
    """Text allowed after the colon; empty for none."""
    home: str
    """Module and class below ``vitascope.media.sinks``."""
    needs_target: bool = False


SINKS: dict[str, SinkKind] = {
    kind.word: kind
    for kind in (
        SinkKind("window", "", "window:WindowSink"),
        SinkKind("file", "PATH", "file:FileSink", needs_target=True),
        SinkKind("virtualcam", "DEVICE", "devices:VirtualCameraSink"),
        SinkKind("ndi", "NAME", "devices:NdiSink"),
        SinkKind("spout", "NAME", "devices:SpoutSink"),
        SinkKind("mjpeg", "[HOST:]PORT", "streams:MjpegSink"),
        SinkKind("udp", "HOST:PORT", "streams:UdpSink", needs_target=True),
        SinkKind("null", "", "sink:NullSink"),
    )
}


def make_sink(spec: str, **options: Mapping[str, Any]) -> Sink:
    """Make a sink without opening it; its dependencies are imported when it is opened.

    Args:
        spec: A word of ``SINKS``, with a target after the colon if any: ``window``, ``file:out.mp4``,
            ``mjpeg:8080``.
        options: Further arguments by kind: ``file={"crf": 20}``.

    Raises:
        UsageError: The word is unknown, or its target is missing, superfluous or malformed.
    """
    word, _, target = spec.partition(":")
    kind = SINKS.get(word)
    if kind is None:
        raise UsageError(
            f"unknown sink {spec!r}; known are {', '.join(_usage(kind) for kind in SINKS.values())}"
        )
    if (kind.needs_target and not target) or (target and not kind.target):
        raise UsageError(f"sink {spec!r}: write {_usage(kind)}")
    module, _, name = kind.home.partition(":")
    make: Callable[..., Sink] = getattr(importlib.import_module(f"vitascope.media.sinks.{module}"), name)
    return make(target, **options.get(word, {}))


def _usage(kind: SinkKind) -> str:
    if not kind.target:
        return kind.word
    return f"{kind.word}:{kind.target}" if kind.needs_target else f"{kind.word}[:{kind.target}]"
