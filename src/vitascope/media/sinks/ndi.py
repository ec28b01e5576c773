"""An NDI source in the local network, through cyndilib (which brings the vendor's library)."""

from __future__ import annotations

from typing import Any

from vitascope.errors import MissingDependencyError, OutputError
from vitascope.media.sinks.sink import LivePicture, PixelFormat, SinkFormat

__all__ = ["NdiSink"]


class NdiSink:
    """See https://cyndilib.readthedocs.io. NDI compresses: levels come out changed by a few.

    Args:
        target: The source's name; ``Vitascope`` when empty.
    """

    def __init__(self, target: str = "") -> None:
        self._source = target or "Vitascope"
        self._sender: Any = None
        self._held: LivePicture | None = None

    @property
    def name(self) -> str:
        """``ndi:NAME``."""
        return f"ndi:{self._source}"

    @property
    def pixel_format(self) -> PixelFormat:
        """NDI's own order."""
        return "bgra"

    def open(self, made: SinkFormat) -> None:
        """See ``Sink.open``."""
        try:
            from cyndilib.sender import Sender
            from cyndilib.video_frame import VideoSendFrame
            from cyndilib.wrapper.ndi_structs import FourCC
        except ImportError as error:
            raise MissingDependencyError("NDI needs cyndilib: pip install 'vitascope[ndi]'") from error
        frame = VideoSendFrame()
        frame.set_resolution(made.width, made.height)
        frame.set_frame_rate(made.frame_rate)
        frame.set_fourcc(FourCC.BGRA)
        try:
            # Pictures come at the loop's own pace.
            sender = Sender(self._source, clock_video=False)
            sender.set_video_frame(frame)
            sender.open()
        except Exception as error:  # the library raises plain exceptions
            raise OutputError(f"{self.name} cannot be opened: {error}") from error
        self._sender = sender

    def send(self, picture: LivePicture) -> None:
        """Send a picture; NDI compresses it in a thread of its own, and reads it until the next one comes."""
        self._sender.write_video_async(picture.as_format("bgra").reshape(-1))
        self._held = picture

    def close(self) -> None:
        """Leave the network."""
        sender, self._sender = self._sender, None
        if sender is not None:
            sender.close()
        self._held = None
