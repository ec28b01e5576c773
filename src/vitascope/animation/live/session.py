"""A live animation: capture, track, animate and show, each on its own thread, with the newest picture.

::

    camera ──> track ──> animate ──> sinks
          newest    newest      newest
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from time import monotonic
from typing import Protocol, TypeVar

import cv2
import numpy as np

from vitascope.animation.face import FaceMotion, PortraitAnimator, RgbPicture, TrackedFace
from vitascope.animation.live.controls import Controls, LiveState
from vitascope.animation.live.effects import with_overlay
from vitascope.animation.live.report import LiveReport
from vitascope.animation.motion import Mirror
from vitascope.animation.motion_file import MotionWriter
from vitascope.gpu.pipeline.stages import Map, Stage
from vitascope.gpu.profiling.utilisation import UtilisationSampler
from vitascope.gpu.toolkit.temporal import change
from vitascope.media.live_loop import NEWEST, LiveLoop, PictureSource, RunOptions
from vitascope.media.reading.camera import CameraPicture
from vitascope.media.sinks.outlet import SinkOutlet
from vitascope.media.sinks.sink import LivePicture


class Tracker(Protocol):
    """Finds the driver's face, such as ``animation.tracking.FaceTracker``."""

    def track(self, rgb: RgbPicture, *, pts_seconds: float) -> TrackedFace | None:
        """Return the followed face; None while it is not visible."""
        ...


class Estimator(Protocol):
    """Estimates motion from faces, such as ``animation.motion.MotionEstimator``."""

    def update(
        self, face: TrackedFace | None, *, pts_seconds: float, driver_rgb: RgbPicture | None = None
    ) -> FaceMotion:
        """Return the motion of the next picture."""
        ...

    def set_neutral(self, face: TrackedFace | None = None) -> bool:
        """Use the current face as neutral; False if there is none."""
        ...

    def find_neutral(self) -> bool:
        """Use the best face seen so far as neutral; False if there is none."""
        ...

    def set_smoothing(self, *, pose_window: int, expression_window: int) -> None:
        """Change the windows, in frames."""
        ...


Taken = TypeVar("Taken")
Made = TypeVar("Made")


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveOptions(RunOptions):
    """Options of a live animation."""

    skip_similarity: float | None = None
    """0..1: a driver's picture at least this similar to the last animated one is skipped; None skips none."""
    pose_window: int | None = None
    """Number of frames over which the head's pose is smoothed; None is the same as for the face."""
    listens: bool = False
    """True if a voice moves the portrait."""
    absence_seconds: float | None = None
    """Time without a picture after which the driver counts as absent, and the portrait relaxes; None waits without
    moving."""


@dataclass(frozen=True, slots=True, eq=False)
class _Seen:
    captured: CameraPicture
    motion: FaceMotion
    is_repeat: bool = False
    is_lost: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class _Made:
    picture: LivePicture
    is_repeat: bool
    is_lost: bool


class _Absence(CameraPicture):
    """Replaces missing pictures while the driver is absent; shows the last one."""


def _described(item: CameraPicture | _Seen | _Made) -> str:
    """Name the picture of a stage's item, for errors."""
    if isinstance(item, _Made):
        return f"picture {item.picture.index} of the driver"
    captured = item.captured if isinstance(item, _Seen) else item
    return f"picture {captured.index} of the driver"


class LiveSession(LiveLoop[CameraPicture]):
    """One portrait that follows one camera. ``run`` works until stopped; everything else may be called meanwhile.

    Args:
        source: The camera.
        tracker: Finds the driver's face; None if motion comes without pictures.
        estimator: Estimates motion from it.
        animator: The animator, with its portrait set.
        size: (width, height) of its pictures.
        outlets: As for ``LiveLoop``.
        controls: State that keys change.
        options: Options of the run.
        mirror: For the key M; None if unwanted.
        on_background: Puts the portrait on green; None if unavailable.
        recorder: Records the motion.
        set_strength: Called with a new strength, for animators that support it.
        on_report: Called with each requested report.
        on_message: Called with one line that the user should see at once.
        sampler: Measures CPU and GPU; already started.
        device: Name of the drawing device, for the report.
        with_spans: True to record a profiler's span for each item of the stages.
    """

    _snapshot_name = "portrait"

    def __init__(
        self,
        source: PictureSource[CameraPicture],
        *,
        tracker: Tracker | None,
        estimator: Estimator,
        animator: PortraitAnimator,
        size: tuple[int, int],
        outlets: Sequence[SinkOutlet],
        controls: Controls,
        options: LiveOptions,
        mirror: Mirror | None = None,
        on_background: Callable[[RgbPicture], RgbPicture] | None = None,
        recorder: MotionWriter | None = None,
        set_strength: Callable[[float], object] | None = None,
        on_report: Callable[[LiveReport], object] | None = None,
        on_message: Callable[[str], object] | None = None,
        sampler: UtilisationSampler | None = None,
        device: str | None = None,
        with_spans: Callable[[Sequence[Stage]], Sequence[Stage]] = list,
    ) -> None:
        super().__init__(
            source,
            outlets=outlets,
            controls=controls,
            options=options,
            on_report=on_report,
            on_message=on_message,
            sampler=sampler,
        )
        self.controls = controls
        """The state that keys change."""
        self._tracker = tracker
        self._estimator = estimator
        self._animator = animator
        self._size = size
        self._options = options
        self._mirror = mirror
        self._on_background = on_background
        self._recorder = recorder
        self._set_strength = set_strength
        self._device = device
        self._strength = controls.state.strength
        wanted = options.skip_similarity
        self._stillness = None if wanted is None or tracker is None else Stillness(wanted)
        self._last_motion = FaceMotion()
        self._drawn: tuple[FaceMotion, LiveState] | None = None
        self._last_picture: RgbPicture | None = None
        self._at_work: set[str] = set()
        stages: list[Stage] = [
            Map("track", self._watched("track", self._track), output=NEWEST),
            Map("animate", self._watched("animate", self._animate), output=NEWEST),
        ]
        self._set_stages(
            stages, self._watched("output", self._show), describe=_described, with_spans=with_spans
        )

    @property
    def is_stuck(self) -> bool:
        """True after a run that left a thread behind: tracker and animator may still be in use."""
        return self._has_ended.is_set() and bool(self._at_work)

    def report(self) -> LiveReport:
        """Report the run so far."""
        return LiveReport(
            animator=self._animator.name,
            size=self._size,
            device=self._device,
            listens=self._options.listens,
            **self._reported(),
        )

    # --- stages, each on its own thread --------------------------------------------------------------------

    def _absence(self, last: CameraPicture | None) -> CameraPicture | None:
        after, now = self._options.absence_seconds, monotonic()
        if after is None or last is None or self._tracker is None or now - last.captured_seconds < after:
            return None
        return _Absence(last.rgb, now, last.index, False)

    def _watched(self, name: str, work: Callable[[Taken], Made]) -> Callable[[Taken], Made]:
        """Wrap a stage so that it records when it is working."""

        def watched(taken: Taken) -> Made:
            self._at_work.add(name)
            try:
                return work(taken)
            finally:
                self._at_work.discard(name)

        return watched

    def _track(self, picture: CameraPicture) -> _Seen:
        self._obey()
        is_there = not isinstance(picture, _Absence)
        if is_there and self._barely_moved(picture):
            return _Seen(picture, self._last_motion, is_repeat=True)
        seconds = picture.captured_seconds
        face = None
        if self._tracker is not None:
            face = self._tracker.track(picture.rgb, pts_seconds=seconds) if is_there else None
        if face is not None and picture.is_first:
            face = replace(face, is_new=True)
        rgb = picture.rgb if self._animator.needs_driver_picture else None
        motion = self._estimator.update(face, pts_seconds=seconds, driver_rgb=rgb)
        if self._recorder is not None:
            began = self._figures.began if self._figures.began is not None else seconds
            self._recorder.write(replace(motion, pts_seconds=seconds - began))
        self._last_motion = motion
        return _Seen(picture, motion, is_lost=self._tracker is not None and face is None)

    def _obey(self) -> None:
        """Carry out requests to the estimator."""
        controls = self.controls
        recorded = "a recording has its own neutral" if self._tracker is None else None
        if controls.take("neutral"):
            is_set = self._estimator.set_neutral()
            self._say("neutral: this face" if is_set else recorded or "no face is visible: the neutral stays")
        if controls.take("best-neutral"):
            is_set = self._estimator.find_neutral()
            calmest = "neutral: the calmest face so far"
            self._say(calmest if is_set else recorded or "no face was seen yet: the neutral stays")
        if controls.take("smoothing"):
            if self._tracker is None:
                self._say("recorded motion is smoothed already: no change")
            window = controls.state.smoothing_window
            self._estimator.set_smoothing(
                pose_window=self._options.pose_window or window, expression_window=window
            )

    def _barely_moved(self, picture: CameraPicture) -> bool:
        still = self._stillness
        return still is not None and still.barely_moved(picture.rgb, is_first=picture.is_first)

    def _animate(self, seen: _Seen) -> _Made:
        state = self.controls.state
        if self._set_strength is not None and state.strength != self._strength:
            self._strength = state.strength
            self._set_strength(state.strength)
        # A driver who barely moved needs no new picture, unless the last one was dropped or a key changed how it is
        # drawn.
        is_repeat = seen.is_repeat and self._drawn == (seen.motion, state)
        if not is_repeat:
            self._drawn = seen.motion, state
            motion = self._mirror(seen.motion) if state.mirror and self._mirror is not None else seen.motion
            rgb = self._animator.animate(motion)
            if state.background == "green" and self._on_background is not None:
                rgb = self._on_background(rgb)
            if state.overlay and seen.motion.face is not None:
                rgb = with_overlay(rgb, seen.captured.rgb, seen.motion.face)
            self._last_picture = rgb
        assert self._last_picture is not None  # the first one is never a repeat
        captured = seen.captured
        picture = LivePicture(
            self._last_picture, captured_seconds=captured.captured_seconds, index=captured.index
        )
        return _Made(picture, is_repeat, seen.is_lost)

    def _show(self, made: _Made) -> None:
        self._hand_over(made.picture, is_repeat=made.is_repeat, is_lost=made.is_lost)


_NOTHING_IN_COMMON = 0.02
"""Mean difference of a tile of two thumbnails at which similarity is 0, as a share of full scale."""
_TILES = (8, 8)
_THUMBNAIL = (64, 64)


class Stillness:
    """Compares each picture of a driver with the last one that was animated. Used by one thread.

    Args:
        similarity: 0..1: minimum at which the driver barely moved.
    """

    def __init__(self, similarity: float) -> None:
        self._similarity = similarity
        self._animated: RgbPicture | None = None

    def barely_moved(self, rgb: RgbPicture, *, is_first: bool) -> bool:
        """True if a picture need not be animated.

        Args:
            rgb: The driver's picture, uint8 [H, W, 3].
            is_first: True for the first picture after the camera was found, or found again; it is always animated.
        """
        thumbnail = np.asarray(cv2.resize(rgb, _THUMBNAIL, interpolation=cv2.INTER_AREA), np.uint8)
        before = self._animated
        if before is not None and not is_first and similarity(before, thumbnail) >= self._similarity:
            return True
        self._animated = thumbnail  # only when animated, so that drift adds up
        return False


def similarity(before: RgbPicture, now: RgbPicture) -> float:
    """Compare two small pictures: 1 if nothing changed, 0 if any tile differs by 2 % of full scale.

    For consecutive pictures of people who talk in front of a fixed camera it is 0.73 and 0.78 in the median, and 0.86
    and 0.90 in the stillest 5 % (two videos of 512x512). So 0.92 detects drivers who sit still, but not those who
    speak.

    Args:
        before: uint8 [64, 64, 3].
        now: The same.
    """
    planes = (np.moveaxis(picture, -1, 0) for picture in (before, now))
    return max(1 - change(*planes, tiles=_TILES) / _NOTHING_IN_COMMON, 0.0)
