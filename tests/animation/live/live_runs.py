"""A live session in a thread, with a scripted camera and stages of known speed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np

from vitascope.animation.face import BLENDSHAPES, LANDMARK_COUNT, FaceMotion, RgbPicture, TrackedFace
from vitascope.animation.live.controls import Controls, LiveState
from vitascope.animation.live.report import LiveReport
from vitascope.animation.live.session import LiveOptions, LiveSession
from vitascope.media.reading.camera import CameraPicture
from vitascope.media.sinks.outlet import SinkOutlet
from vitascope.media.sinks.sink import LivePicture, PixelFormat, SinkFormat

__all__ = ["MADE", "KeepingSink", "Live", "Parts", "ScriptedCamera", "a_face"]

MADE = SinkFormat(32, 24, Fraction(30))


def a_face() -> TrackedFace:
    return TrackedFace(
        landmarks=np.zeros((LANDMARK_COUNT, 3), np.float32),
        blendshapes=np.zeros(len(BLENDSHAPES), np.float32),
        transform=np.eye(4, dtype=np.float32),
        picture_size=(32, 24),
    )


class ScriptedCamera:
    """Returns levels as pictures; the newest wins."""

    def __init__(self) -> None:
        self.captured_count = 0
        self.is_over = False
        self._changed = threading.Condition()
        self._newest: CameraPicture | None = None

    def give(self, level: int, *, is_first: bool = False) -> None:
        rgb = np.full((24, 32, 3), level, np.uint8)
        with self._changed:
            self._newest = CameraPicture(rgb, time.monotonic(), self.captured_count, is_first)
            self.captured_count += 1
            self._changed.notify_all()

    def take(self, *, timeout_seconds: float | None = None) -> CameraPicture | None:
        with self._changed:
            self._changed.wait_for(lambda: self._newest is not None, timeout_seconds)
            taken, self._newest = self._newest, None
            return taken


class Parts:
    """Tracker, estimator and animator in one: the picture's level passes through as a blendshape."""

    name = "scripted"
    needs_driver_picture = False

    def __init__(self) -> None:
        self.tracked: list[int] = []
        self.new: list[bool] = []
        self.animated: list[float] = []
        self.has_face = True
        self.may_animate = threading.Event()
        self.may_animate.set()
        self.calls: list[Any] = []
        self.fails = False

    def track(self, rgb: RgbPicture, *, pts_seconds: float) -> TrackedFace | None:
        self.tracked.append(int(rgb[0, 0, 0]))
        return a_face() if self.has_face else None

    def update(
        self, face: TrackedFace | None, *, pts_seconds: float, driver_rgb: RgbPicture | None = None
    ) -> FaceMotion:
        self.new.append(face is not None and face.is_new)
        return FaceMotion(scale=1 + self.tracked[-1], face=face)

    def set_neutral(self, face: TrackedFace | None = None) -> bool:
        self.calls.append("neutral")
        return self.has_face

    def find_neutral(self) -> bool:
        self.calls.append("best")
        return True

    def set_smoothing(self, *, pose_window: int, expression_window: int) -> None:
        self.calls.append((pose_window, expression_window))

    def animate(self, motion: FaceMotion, *, out: RgbPicture | None = None) -> RgbPicture:
        assert self.may_animate.wait(5)
        if self.fails:
            raise ValueError("the animator broke")
        self.animated.append(motion.scale)
        return np.full((24, 32, 3), int(motion.scale) - 1, np.uint8)


class KeepingSink:
    name = "keeping"
    pixel_format: PixelFormat = "rgb24"

    def __init__(self) -> None:
        self.levels: list[int] = []

    def open(self, made: SinkFormat) -> None:
        pass

    def send(self, picture: LivePicture) -> None:
        self.levels.append(int(picture.rgb[-1, -1, 0]))

    def close(self) -> None:
        pass


class Live:
    """Runs a session in a thread."""

    def __init__(
        self, *, options: LiveOptions | None = None, sinks: list[Any] | None = None, **more: Any
    ) -> None:
        self.camera, self.parts, self.sink = ScriptedCamera(), Parts(), KeepingSink()
        self.said: list[str] = []
        self.reports: list[LiveReport] = []
        self.outlets = [SinkOutlet(sink, MADE) for sink in (sinks or [self.sink])]
        self.session = LiveSession(
            self.camera,
            tracker=self.parts,
            estimator=self.parts,  # type: ignore[arg-type]  # what it uses of one
            animator=self.parts,  # type: ignore[arg-type]
            size=(32, 24),
            outlets=self.outlets,
            controls=Controls(LiveState(), on_message=self.said.append),
            options=options or LiveOptions(),
            on_report=self.reports.append,
            on_message=self.said.append,
            **more,
        )
        self.result: LiveReport | None = None
        self.error: BaseException | None = None

    def __enter__(self) -> Live:
        for outlet in self.outlets:
            outlet.start()
        self.thread = threading.Thread(target=self._run)
        self.thread.start()
        return self

    def _run(self) -> None:
        try:
            self.result = self.session.run()
        except BaseException as error:
            self.error = error

    def __exit__(self, *_: object) -> None:
        self.session.stop()
        self.parts.may_animate.set()
        self.thread.join(10)
        assert not self.thread.is_alive()
        for outlet in self.outlets:
            outlet.close()

    def show(self, level: int) -> None:
        """Show a picture to the camera, and wait until its sink has it."""
        self.camera.give(level)
        self.until(lambda: bool(self.sink.levels) and self.sink.levels[-1] == level)

    def until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 15
        while not condition():
            assert time.monotonic() < deadline, (self.sink.levels, self.said, self.error)
            time.sleep(0.002)
