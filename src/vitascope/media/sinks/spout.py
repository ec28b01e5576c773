"""A Spout sender on Windows, through SpoutGL: pictures that OBS, Resolume and others take from the GPU.

It has never been run: it needs Windows. What it calls is tested against a stand-in.
"""

from __future__ import annotations

import platform
from typing import Any

from vitascope.errors import MissingDependencyError, OutputError
from vitascope.media.sinks.sink import LivePicture, PixelFormat, SinkFormat

__all__ = ["SpoutSink"]

_GL_RGBA = 0x1908


class SpoutSink:
    """See https://github.com/jlai/Python-SpoutGL.

    Args:
        target: The sender's name; ``Vitascope`` when empty.
    """

    def __init__(self, target: str = "") -> None:
        self._sender_name = target or "Vitascope"
        self._sender: Any = None

    @property
    def name(self) -> str:
        """``spout:NAME``."""
        return f"spout:{self._sender_name}"

    @property
    def pixel_format(self) -> PixelFormat:
        """OpenGL's ``GL_RGBA``."""
        return "rgba"

    def open(self, made: SinkFormat) -> None:
        """See ``Sink.open``."""
        del made
        if platform.system() != "Windows":
            raise OutputError(f"{self.name}: Spout exists on Windows only; ndi or mjpeg work everywhere")
        try:
            import SpoutGL
        except ImportError as error:
            raise MissingDependencyError("Spout needs SpoutGL: pip install 'vitascope[spout]'") from error
        sender = SpoutGL.SpoutSender()
        sender.setSenderName(self._sender_name)
        self._sender = sender

    def send(self, picture: LivePicture) -> None:
        """Send a picture, top row first."""
        width, height = picture.size
        if not self._sender.sendImage(picture.as_format("rgba"), width, height, _GL_RGBA, False, 0):
            raise OutputError(f"{self.name}: the picture was not taken; is a GPU with OpenGL there?")
        self._sender.setFrameSync(self._sender_name)

    def close(self) -> None:
        """Release the sender."""
        sender, self._sender = self._sender, None
        if sender is not None:
            sender.releaseSender()
