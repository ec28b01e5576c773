"""A camera that video calls and browsers see, through pyvirtualcam (v4l2loopback, OBS, Unity Capture)."""

from __future__ import annotations

from typing import Any

from vitascope.errors import MissingDependencyError, OutputError
from vitascope.media.sinks.sink import LivePicture, PixelFormat, SinkFormat

__all__ = ["VirtualCameraSink"]


class VirtualCameraSink:
    """See https://github.com/letmaik/pyvirtualcam. It is under the GPL-2.0, and so comes as an extra of its own.

    Args:
        target: A device, such as ``/dev/video2``; empty takes the first free one.
    """

    def __init__(self, target: str = "") -> None:
        self._device = target or None
        self._camera: Any = None

    @property
    def name(self) -> str:
        """``virtualcam``, and its device where one was named."""
        return "virtualcam" if self._device is None else f"virtualcam:{self._device}"

    @property
    def pixel_format(self) -> PixelFormat:
        """What every backend takes."""
        return "rgb24"

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
        """Show a picture; the pace is the caller's."""
        self._camera.send(picture.as_format("rgb24"))

    def close(self) -> None:
        """Give the device back."""
        camera, self._camera = self._camera, None
        if camera is not None:
            camera.close()
