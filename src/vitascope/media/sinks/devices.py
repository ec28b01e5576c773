"""Sinks that other programs see as a source, each through an optional library: virtual camera, NDI, Spout."""

from __future__ import annotations

import platform
from typing import Any

from vitascope.errors import MissingDependencyError, OutputError
from vitascope.media.sinks.sink import LivePicture, PixelFormat, SinkFormat


class VirtualCameraSink:
    """A camera for video calls and browsers, through pyvirtualcam (v4l2loopback, OBS, Unity Capture).

    See https://github.com/letmaik/pyvirtualcam. Its licence is GPL-2.0, so it is a separate extra.

    Args:
        target: A device, such as ``/dev/video2``; empty uses the first free one.
    """

    pixel_format: PixelFormat = "rgb24"
    """Supported by every backend."""

    def __init__(self, target: str = "") -> None:
        self._device = target or None
        self._camera: Any = None

    @property
    def name(self) -> str:
        """``virtualcam``, with the device if one was given."""
        return "virtualcam" if self._device is None else f"virtualcam:{self._device}"

    def open(self, made: SinkFormat) -> None:
        """See ``Sink.open``."""
        try:
            import pyvirtualcam
        except ImportError as error:
            raise MissingDependencyError(
                "a virtual camera needs pyvirtualcam: pip install 'vitascope[virtualcam]'"
            ) from error
        try:
            self._camera = pyvirtualcam.Camera(
                made.width,
                made.height,
                float(made.frame_rate),
                fmt=pyvirtualcam.PixelFormat.RGB,
                device=self._device,
            )
        except (RuntimeError, OSError) as error:  # one line for each backend that was tried
            reason = " ".join(str(error).split())
            raise OutputError(
                f"{self.name}: no virtual camera device can be used (Linux: modprobe v4l2loopback; Windows and macOS: "
                f"install OBS): {reason}"
            ) from error

    def send(self, picture: LivePicture) -> None:
        """Show a picture; the caller sets the pace."""
        self._camera.send(picture.as_format("rgb24"))

    def close(self) -> None:
        """Release the device."""
        camera, self._camera = self._camera, None
        if camera is not None:
            camera.close()


class NdiSink:
    """An NDI source in the local network, through cyndilib (which includes the vendor's library).

    See https://cyndilib.readthedocs.io. NDI compresses, so pixel values change slightly.

    Args:
        target: Name of the source; empty means ``Vitascope``.
    """

    pixel_format: PixelFormat = "bgra"
    """NDI's native order."""

    def __init__(self, target: str = "") -> None:
        self._source = target or "Vitascope"
        self._sender: Any = None
        self._held: LivePicture | None = None

    @property
    def name(self) -> str:
        """``ndi:NAME``."""
        return f"ndi:{self._source}"

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
            # Pictures arrive at the loop's own pace.
            sender = Sender(self._source, clock_video=False)
            sender.set_video_frame(frame)
            sender.open()
        except Exception as error:  # cyndilib raises plain exceptions
            raise OutputError(f"{self.name} cannot be opened: {error}") from error
        self._sender = sender

    def send(self, picture: LivePicture) -> None:
        """Send a picture; NDI compresses it on its own thread, and reads it until the next one comes."""
        self._sender.write_video_async(picture.as_format("bgra").reshape(-1))
        self._held = picture

    def close(self) -> None:
        """Leave the network."""
        sender, self._sender = self._sender, None
        if sender is not None:
            sender.close()
        self._held = None


_GL_RGBA = 0x1908


class SpoutSink:
    """A Spout sender on Windows, through SpoutGL, whose pictures OBS, Resolume and others take from the GPU.

    See https://github.com/jlai/Python-SpoutGL. Never run, because it needs Windows; its calls are tested against a
    stand-in.

    Args:
        target: Name of the sender; empty means ``Vitascope``.
    """

    pixel_format: PixelFormat = "rgba"
    """OpenGL's ``GL_RGBA``."""

    def __init__(self, target: str = "") -> None:
        self._sender_name = target or "Vitascope"
        self._sender: Any = None

    @property
    def name(self) -> str:
        """``spout:NAME``."""
        return f"spout:{self._sender_name}"

    def open(self, made: SinkFormat) -> None:
        """See ``Sink.open``."""
        del made
        if platform.system() != "Windows":
            raise OutputError(f"{self.name}: Spout only exists on Windows; ndi and mjpeg work everywhere")
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
