"""What a live loop is put together from, as far as it has to know."""

from __future__ import annotations

from typing import Protocol

from vitascope.animation.face import FaceMotion, RgbPicture, TrackedFace
from vitascope.media.reading.camera import CameraPicture

__all__ = ["Estimator", "Paintable", "PictureSource", "Tracker"]


class PictureSource(Protocol):
    """What the driver is seen through, such as ``media.camera.Camera``."""

    @property
    def captured_count(self) -> int:
        """Pictures that came, also those that nobody took."""
        ...

    @property
    def is_over(self) -> bool:
        """True when no picture will come any more."""
        ...

    def take(self, *, timeout_seconds: float | None = None) -> CameraPicture | None:
        """The newest picture that was not taken yet; None when none came in time."""
        ...


class Tracker(Protocol):
    """What finds the driver's face, such as ``animation.tracking.FaceTracker``."""

    def track(self, rgb: RgbPicture, *, pts_seconds: float) -> TrackedFace | None:
        """The followed face; None while it cannot be seen."""
        ...


class Estimator(Protocol):
    """What makes motion of faces, such as ``animation.motion.MotionEstimator``."""

    def update(
        self, face: TrackedFace | None, *, pts_seconds: float, driver_rgb: RgbPicture | None = None
    ) -> FaceMotion:
        """The motion of the next picture."""
        ...

    def set_neutral(self, face: TrackedFace | None = None) -> bool:
        """Take the face that is seen now for neutral; False when there is none."""
        ...

    def find_neutral(self) -> bool:
        """Take the best face seen so far for neutral; False when there is none."""
        ...

    def set_smoothing(self, *, pose_window: int, expression_window: int) -> None:
        """Change the windows, in frames."""
        ...


class Paintable(Protocol):
    """What lays the portrait on another background."""

    def __call__(self, rgb: RgbPicture) -> RgbPicture:
        """The picture on its new background; a new array."""
        ...
