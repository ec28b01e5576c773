"""The live loop: capture, track, animate and hand over, each in a thread of its own, the newest picture first.

::

    camera ──> track ──> animate ──> sinks
          newest    newest      newest

Between two of them waits at most one picture; a newer one takes its place. So the delay is that of the stages alone,
and what is too slow costs pictures, not time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic, strftime
from typing import Protocol, TypeVar

import cv2
import numpy as np

from vitascope.animation.face import Animator, FaceMotion, RgbPicture, TrackedFace
from vitascope.animation.live.controls import Controls
from vitascope.animation.live.overlay import with_overlay
from vitascope.animation.live.report import LiveReport
from vitascope.animation.mirror import Mirror
from vitascope.animation.motion_file import MotionWriter
from vitascope.errors import OutputError
from vitascope.gpu.latency import LatencyHistogram
from vitascope.gpu.pipeline import Pipeline
from vitascope.gpu.profiling.utilisation import Utilisation, UtilisationSampler
from vitascope.gpu.queues import QueueLimits
from vitascope.gpu.stages import Map, Sink, Source
from vitascope.gpu.temporal import change
from vitascope.media.camera import CameraPicture
from vitascope.media.sinks.outlet import SinkOutlet
from vitascope.media.sinks.sink import LivePicture

__all__ = ["Estimator", "LiveOptions", "LiveSession", "PictureSource", "Tracker", "similarity"]

_NEWEST = QueueLimits(items=1, nbytes=None, overflow="drop_oldest")
_NOTHING_IN_COMMON = 0.02
"""Mean difference of one tile of two thumbnails, in shares of the scale."""
_TILES = (8, 8)
_THUMBNAIL = (64, 64)
_WAIT_SECONDS = 0.1

Taken = TypeVar("Taken")
Made = TypeVar("Made")


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


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveOptions:
    """How a live run goes about it."""

    target_fps: float = 30.0
    """What is aimed at; the report says whether it was met."""
    skip_similarity: float | None = None
    """0..1: a driver's picture at least as similar to the last one is not animated; None animates every one."""
    pose_window: int | None = None
    """Frames that the head's pose is smoothed over; None is the same as for the face."""
    snapshot_folder: Path = Path()
    """Where snapshots go."""
    seconds: float | None = None
    """When to stop by itself."""
    absence_seconds: float | None = None
    """After so long without a picture the driver is taken for absent, and the portrait relaxes; None waits still."""


@dataclass(frozen=True, slots=True, eq=False)
class _Seen:
    captured: CameraPicture
    motion: FaceMotion
    is_repeat: bool


class _Absence(CameraPicture):
    """Stands in for pictures that do not come; shows the last one that did."""


class LiveSession:
    """One portrait following one camera. ``run`` works until it is stopped; everything else may be called meanwhile.

    Args:
        source: The camera.
        tracker: Finds the driver's face; None where motion comes without pictures.
        estimator: Makes motion of it.
        animator: With its portrait set.
        size: (width, height) of its pictures.
        outlets: Started sinks; not closed here.
        controls: What keys change.
        options: How to go about it.
        mirror: For the key M; None when it is not wanted.
        on_background: Lays the portrait on green; None when it cannot.
        recorder: Keeps the motion.
        set_strength: Told a new strength, for animators that have one.
        on_report: Told a report when one was asked for.
        on_message: Told, in one line, what should be known at once.
        sampler: Measures processor and GPU; started.
    """

    def __init__(
        self,
        source: PictureSource,
        *,
        tracker: Tracker | None,
        estimator: Estimator,
        animator: Animator,
        size: tuple[int, int],
        outlets: Sequence[SinkOutlet],
        controls: Controls,
        options: LiveOptions,
        mirror: Mirror | None = None,
        on_background: Paintable | None = None,
        recorder: MotionWriter | None = None,
        set_strength: Callable[[float], object] | None = None,
        on_report: Callable[[LiveReport], object] | None = None,
        on_message: Callable[[str], object] | None = None,
        sampler: UtilisationSampler | None = None,
    ) -> None:
        self.controls = controls
        """Keys, and what they changed."""
        self._source = source
        self._tracker = tracker
        self._estimator = estimator
        self._animator = animator
        self._size = size
        self._outlets = list(outlets)
        self._options = options
        self._mirror = mirror
        self._on_background = on_background
        self._recorder = recorder
        self._set_strength = set_strength
        self._on_report = on_report
        self._on_message = on_message
        self._sampler = sampler
        self._strength = controls.state.strength
        self._latency = LatencyHistogram()
        self._shown = self._repeated = self._lost = 0
        self._began: float | None = None
        self._captured_before = source.captured_count
        self._last_thumbnail: RgbPicture | None = None
        self._last_motion = FaceMotion()
        self._last_picture: RgbPicture | None = None
        self._pipeline = Pipeline(
            [
                Source("capture", self._captured(), output=_NEWEST),
                Map("track", self._ending(self._track), output=_NEWEST),
                Map("animate", self._ending(self._animate), output=_NEWEST),
                Sink("output", self._ending(self._hand_over)),
            ]
        )

    def run(self) -> LiveReport:
        """Work until the key Q, ``stop``, the end of the time given, or of the driver.

        Raises:
            PipelineError: A stage failed.
            OutputError: Every sink has failed.
        """
        self._pipeline.run()
        if self._has_no_sink():
            raise OutputError("; ".join(str(outlet.error) for outlet in self._outlets))
        return self.report()

    def stop(self) -> None:
        """End the run; returns at once."""
        self.controls.request("quit")

    def report(self) -> LiveReport:
        """The run so far."""
        return LiveReport(
            seconds=0.0 if self._began is None else monotonic() - self._began,
            animator=self._animator.name,
            size=self._size,
            captured=self._source.captured_count - self._captured_before,
            shown=self._shown,
            repeated=self._repeated,
            lost=self._lost,
            target_fps=self._options.target_fps,
            latency=LatencyHistogram.summary([self._latency]),
            sinks=tuple(outlet.report() for outlet in self._outlets),
            pipeline=self._pipeline.snapshot(),
            utilisation=self._utilisation(),
        )

    def _utilisation(self) -> Utilisation | None:
        if (
            self._sampler is None or len(self._sampler.samples()) < 2
        ):  # nothing lies between one look and the next
            return None
        return self._sampler.summary()

    # --- stages, each on a thread of its own ------------------------------------------------------------------------

    def _captured(self) -> Iterator[CameraPicture]:
        last: CameraPicture | None = None
        while not self._is_over():
            picture = self._source.take(timeout_seconds=_WAIT_SECONDS)
            if picture is None and self._source.is_over:
                return
            last, picture = picture or last, picture or self._absence(last)
            if picture is None or self.controls.state.paused:
                continue
            if self._began is None:
                self._began = picture.captured_seconds
            yield picture

    def _absence(self, last: CameraPicture | None) -> CameraPicture | None:
        after, now = self._options.absence_seconds, monotonic()
        if after is None or last is None or self._tracker is None or now - last.captured_seconds < after:
            return None
        return _Absence(last.rgb, now, last.index, False)

    def _is_over(self) -> bool:
        if self.controls.take("quit") or self._has_no_sink():
            return True
        limit = self._options.seconds
        return limit is not None and self._began is not None and monotonic() - self._began >= limit

    def _ending(self, work: Callable[[Taken], Made]) -> Callable[[Taken], Made]:
        """A stage whose failure also ends the wait for a camera that gives nothing."""

        def guarded(taken: Taken) -> Made:
            try:
                return work(taken)
            except BaseException:
                self.stop()
                raise

        return guarded

    def _has_no_sink(self) -> bool:
        return bool(self._outlets) and all(outlet.has_failed for outlet in self._outlets)

    def _track(self, picture: CameraPicture) -> _Seen:
        self._obey()
        is_there = not isinstance(picture, _Absence)
        if is_there and self._barely_moved(picture):
            return _Seen(picture, self._last_motion, True)
        seconds = picture.captured_seconds
        face = None
        if self._tracker is not None:
            face = self._tracker.track(picture.rgb, pts_seconds=seconds) if is_there else None
            self._lost += face is None
        if face is not None and picture.is_first:
            face = replace(face, is_new=True)
        rgb = picture.rgb if self._animator.needs_driver_picture else None
        motion = self._estimator.update(face, pts_seconds=seconds, driver_rgb=rgb)
        if self._recorder is not None:
            began = self._began if self._began is not None else seconds
            self._recorder.write(replace(motion, pts_seconds=seconds - began))
        self._last_motion = motion
        return _Seen(picture, motion, False)

    def _obey(self) -> None:
        """Do what was asked of the estimator."""
        controls = self.controls
        recorded = "a recording has its own neutral" if self._tracker is None else None
        if controls.take("neutral") and not self._estimator.set_neutral():
            self._say(recorded or "no face is seen: the neutral stays")
        if controls.take("best-neutral") and not self._estimator.find_neutral():
            self._say(recorded or "no face was seen yet: the neutral stays")
        if controls.take("smoothing"):
            window = controls.state.smoothing_window
            self._estimator.set_smoothing(
                pose_window=self._options.pose_window or window, expression_window=window
            )

    def _barely_moved(self, picture: CameraPicture) -> bool:
        wanted = self._options.skip_similarity
        if wanted is None or self._tracker is None:
            return False
        thumbnail = np.asarray(cv2.resize(picture.rgb, _THUMBNAIL, interpolation=cv2.INTER_AREA), np.uint8)
        before = self._last_thumbnail
        if before is not None and not picture.is_first and similarity(before, thumbnail) >= wanted:
            return True
        self._last_thumbnail = thumbnail  # of the last one that was animated: drift adds up
        return False

    def _animate(self, seen: _Seen) -> LivePicture:
        state = self.controls.state
        if self._set_strength is not None and state.strength != self._strength:
            self._strength = state.strength
            self._set_strength(state.strength)
        if seen.is_repeat and self._last_picture is not None:
            self._repeated += 1
        else:
            motion = self._mirror(seen.motion) if state.mirror and self._mirror is not None else seen.motion
            rgb = self._animator.animate(motion)
            if state.background == "green" and self._on_background is not None:
                rgb = self._on_background(rgb)
            if state.overlay and seen.motion.face is not None:
                rgb = with_overlay(rgb, seen.captured.rgb, seen.motion.face)
            self._last_picture = rgb
        assert self._last_picture is not None  # the first picture is no repeat
        return LivePicture(
            self._last_picture, captured_seconds=seen.captured.captured_seconds, index=seen.captured.index
        )

    def _hand_over(self, picture: LivePicture) -> None:
        for outlet in self._outlets:
            outlet.offer(picture)
        self._shown += 1
        self._latency.add(max(monotonic() - picture.captured_seconds, 0.0))
        if self.controls.take("snapshot"):
            self._snapshot(picture.rgb)
        if self.controls.take("report") and self._on_report is not None:
            self._on_report(self.report())

    def _snapshot(self, rgb: RgbPicture) -> None:
        path = self._options.snapshot_folder / f"portrait-{strftime('%Y%m%d-%H%M%S')}-{self._shown}.png"
        if cv2.imwrite(str(path), cv2.cvtColor(rgb, cv2.COLOR_RGB2BGR)):
            self._say(f"snapshot: {path}")
        else:
            self._say(f"the snapshot cannot be written to {path}")

    def _say(self, line: str) -> None:
        if self._on_message is not None:
            self._on_message(line)


def similarity(before: RgbPicture, now: RgbPicture) -> float:
    """How much two small pictures have in common: 1 when nothing changed, 0 when any tile differs by 2 % of the scale.

    Two consecutive pictures of people who talk in front of a still camera: 0.73 and 0.78 in the median, 0.86
    and 0.90 in the stillest 5 % (two clips of 512x512). So 0.92 finds drivers who sit still, and nobody who speaks.

    Args:
        before: uint8 [64, 64, 3].
        now: The same.
    """
    planes = (np.moveaxis(picture, -1, 0) for picture in (before, now))
    return max(1 - change(*planes, tiles=_TILES) / _NOTHING_IN_COMMON, 0.0)
