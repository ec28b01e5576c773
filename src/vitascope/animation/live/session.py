"""The live loop: capture, track, animate and hand over, each in a thread of its own, the newest picture first.

::

    camera ──> track ──> animate ──> sinks
          newest    newest      newest

Between two of them waits at most one picture; a newer one takes its place. So the delay is that of the stages alone,
and what is too slow costs pictures, not time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic, strftime
from typing import Protocol, TypeVar

import cv2
import numpy as np

from vitascope.animation.face import FaceMotion, PortraitAnimator, RgbPicture, TrackedFace
from vitascope.animation.live.controls import Controls, LiveState
from vitascope.animation.live.effects import with_overlay
from vitascope.animation.live.report import LiveFigures, LiveReport
from vitascope.animation.motion import Mirror
from vitascope.animation.motion_file import MotionWriter
from vitascope.errors import OutputError
from vitascope.gpu.pipeline.pipeline import Pipeline
from vitascope.gpu.pipeline.queues import QueueLimits
from vitascope.gpu.pipeline.stages import Map, Sink, Source, Stage
from vitascope.gpu.profiling.utilisation import Utilisation, UtilisationSampler
from vitascope.gpu.toolkit.temporal import change
from vitascope.media.reading.camera import CameraPicture
from vitascope.media.sinks.outlet import SinkOutlet
from vitascope.media.sinks.sink import LivePicture

__all__ = ["Estimator", "LiveOptions", "LiveSession", "PictureSource", "Stillness", "Tracker", "similarity"]


class PictureSource(Protocol):
    """Source of the driver's pictures, such as ``media.camera.Camera``."""

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
    """Finder of the driver's face, such as ``animation.tracking.FaceTracker``."""

    def track(self, rgb: RgbPicture, *, pts_seconds: float) -> TrackedFace | None:
        """The followed face; None while it cannot be seen."""
        ...


class Estimator(Protocol):
    """Maker of motion from faces, such as ``animation.motion.MotionEstimator``."""

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


_NEWEST = QueueLimits(items=1, nbytes=None, overflow="drop_oldest")
_WAIT_SECONDS = 0.1
_STOP_SECONDS = 5.0
"""For threads of a run that was given up."""

Taken = TypeVar("Taken")
Made = TypeVar("Made")


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveOptions:
    """Options of a live run."""

    target_fps: float = 30.0
    """Rate to reach; the report says whether it was met."""
    max_latency_ms: float | None = None
    """Limit for the delay of 95 % of the pictures; the report says when it does not."""
    skip_similarity: float | None = None
    """0..1: a driver's picture at least as similar to the last one is not animated; None animates every one."""
    pose_window: int | None = None
    """Frames that the head's pose is smoothed over; None is the same as for the face."""
    snapshot_folder: Path = Path()
    """Folder of snapshots."""
    seconds: float | None = None
    """Length after which it stops by itself; None runs on."""
    absence_seconds: float | None = None
    """After so long without a picture the driver is taken for absent, and the portrait relaxes; None waits still."""
    warm_up_pictures: int = 0
    """The first pictures, which figures leave out, and with which ``seconds`` does not begin."""
    ending_seconds: float = 60.0
    """Time that a stopped run has for the pictures on their way, of which one may take 20 seconds (LivePortrait on a
    CPU); then it is given up."""


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
    """Stands in for pictures that do not come; shows the last one that did."""


def _described(item: CameraPicture | _Seen | _Made) -> str:
    """Name the picture that a stage worked on when it failed."""
    if isinstance(item, _Made):
        return f"picture {item.picture.index} of the driver"
    captured = item.captured if isinstance(item, _Seen) else item
    return f"picture {captured.index} of the driver"


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
        sampler: Measures CPU and GPU; started.
        device: What draws, for the report.
        with_spans: Lays a profiler's spans around the work of the stages.
    """

    def __init__(
        self,
        source: PictureSource,
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
        self._device = device
        self._strength = controls.state.strength
        self._figures = LiveFigures(lambda: source.captured_count, warm_up_pictures=options.warm_up_pictures)
        wanted = options.skip_similarity
        self._stillness = None if wanted is None or tracker is None else Stillness(wanted)
        self._last_motion = FaceMotion()
        self._drawn: tuple[FaceMotion, LiveState] | None = None
        self._last_picture: RgbPicture | None = None
        self._at_work: set[str] = set()
        self._has_ended = threading.Event()
        stages: list[Stage] = [
            Source("capture", self._captured(), output=_NEWEST),
            Map("track", self._ending("track", self._track), output=_NEWEST),
            Map("animate", self._ending("animate", self._animate), output=_NEWEST),
            Sink("output", self._ending("output", self._hand_over)),
        ]
        self._pipeline = Pipeline(with_spans(stages), describe=_described, stop_timeout_seconds=_STOP_SECONDS)

    def run(self) -> LiveReport:
        """Work until the key Q, ``stop``, the end of the time given, or of the driver.

        Raises:
            PipelineError: A stage failed, or hung after the run was stopped.
            OutputError: Every sink has failed.
        """
        watch = threading.Thread(target=self._give_up_in_time, name="vitascope-ending", daemon=True)
        try:
            watch.start()
            self._pipeline.run()
        finally:
            self._has_ended.set()
            if watch.ident is not None:
                watch.join()
        if self._has_no_sink():
            raise OutputError("; ".join(str(outlet.error) for outlet in self._outlets))
        return self.report()

    def stop(self) -> None:
        """End the run; returns at once."""
        self.controls.request("quit")

    @property
    def is_stuck(self) -> bool:
        """True after a run of which a thread was left behind: what tracks and animates may still be in use."""
        return self._has_ended.is_set() and bool(self._at_work)

    def report(self) -> LiveReport:
        """The run so far."""
        return LiveReport(
            seconds=self._figures.seconds_shown,
            animator=self._animator.name,
            size=self._size,
            captured=self._figures.captured,
            shown=self._figures.shown,
            repeated=self._figures.repeated,
            lost=self._figures.lost,
            target_fps=self._options.target_fps,
            max_latency_ms=self._options.max_latency_ms,
            latency=self._figures.latency(),
            sinks=tuple(outlet.report() for outlet in self._outlets),
            pipeline=self._pipeline.snapshot(),
            utilisation=self._utilisation(),
            device=self._device,
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
            self._obey_at_once()
            picture = self._source.take(timeout_seconds=_WAIT_SECONDS)
            if picture is None and self._source.is_over:
                return
            last, picture = picture or last, picture or self._absence(last)
            if self.controls.state.paused:
                self._figures.pause()
                continue
            self._figures.go_on()
            if picture is None:
                continue
            self._figures.begin(picture.captured_seconds)
            yield picture

    def _obey_at_once(self) -> None:
        """Do what must not wait for a picture to come through."""
        if self.controls.take("restart"):
            names = [outlet.name for outlet in self._outlets if outlet.restart()]
            self._say(f"started again: {', '.join(names)}" if names else "no sink has failed")
        if self.controls.state.paused:
            self._obey_at_the_end()

    def _absence(self, last: CameraPicture | None) -> CameraPicture | None:
        after, now = self._options.absence_seconds, monotonic()
        if after is None or last is None or self._tracker is None or now - last.captured_seconds < after:
            return None
        return _Absence(last.rgb, now, last.index, False)

    def _is_over(self) -> bool:
        if self.controls.is_asked("quit") or self._has_no_sink():
            return True
        limit = self._options.seconds
        return limit is not None and self._figures.seconds >= limit

    def _give_up_in_time(self) -> None:
        """End a run in which a stage hangs, and so cannot end with the others."""
        while not (self._is_over() or self._source.is_over):
            if self._has_ended.wait(_WAIT_SECONDS):
                return
        if not self._has_ended.wait(self._options.ending_seconds):
            self._pipeline.stop(drain=False)

    def _ending(self, name: str, work: Callable[[Taken], Made]) -> Callable[[Taken], Made]:
        """A stage whose failure also ends the wait for a camera that gives nothing."""

        def guarded(taken: Taken) -> Made:
            self._at_work.add(name)
            try:
                return work(taken)
            except BaseException:
                self.stop()
                raise
            finally:
                self._at_work.discard(name)

        return guarded

    def _has_no_sink(self) -> bool:
        return bool(self._outlets) and all(outlet.has_failed for outlet in self._outlets)

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
        """Do what was asked of the estimator."""
        controls = self.controls
        recorded = "a recording has its own neutral" if self._tracker is None else None
        if controls.take("neutral"):
            is_set = self._estimator.set_neutral()
            self._say("neutral: this face" if is_set else recorded or "no face is seen: the neutral stays")
        if controls.take("best-neutral"):
            is_set = self._estimator.find_neutral()
            calmest = "neutral: the calmest frontal face so far"
            self._say(calmest if is_set else recorded or "no face was seen yet: the neutral stays")
        if controls.take("smoothing"):
            if self._tracker is None:
                self._say("a recording was smoothed when it was made: it stays as it is")
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
        # Who barely moves is shown already, unless the last picture fell out or a key changed how it is drawn.
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
        assert self._last_picture is not None  # the first one is no repeat
        captured = seen.captured
        picture = LivePicture(
            self._last_picture, captured_seconds=captured.captured_seconds, index=captured.index
        )
        return _Made(picture, is_repeat, seen.is_lost)

    def _hand_over(self, made: _Made) -> None:
        picture = made.picture
        for outlet in self._outlets:
            outlet.offer(picture)
        self._figures.hand_over(picture.captured_seconds, is_repeat=made.is_repeat, is_lost=made.is_lost)
        self._obey_at_the_end()

    def _obey_at_the_end(self) -> None:
        """Do what is about the pictures that were shown."""
        if self._last_picture is not None and self.controls.take("snapshot"):
            self._snapshot(self._last_picture)
        if self.controls.take("report") and self._on_report is not None:
            self._on_report(self.report())

    def _snapshot(self, rgb: RgbPicture) -> None:
        path = (
            self._options.snapshot_folder / f"portrait-{strftime('%Y%m%d-%H%M%S')}-{self._figures.shown}.png"
        )
        if cv2.imwrite(str(path), cv2.cvtColor(rgb, cv2.COLOR_RGB2BGR)):
            self._say(f"snapshot: {path}")
        else:
            self._say(f"the snapshot cannot be written to {path}")

    def _say(self, line: str) -> None:
        if self._on_message is not None:
            self._on_message(line)


_NOTHING_IN_COMMON = 0.02
"""Mean difference of one tile of two thumbnails, in shares of the scale."""
_TILES = (8, 8)
_THUMBNAIL = (64, 64)


class Stillness:
    """Compares each picture of a driver with the last one that was animated. Used by one thread.

    Args:
        similarity: 0..1: from here on the driver barely moved.
    """

    def __init__(self, similarity: float) -> None:
        self._similarity = similarity
        self._animated: RgbPicture | None = None

    def barely_moved(self, rgb: RgbPicture, *, is_first: bool) -> bool:
        """True when the picture need not be animated.

        Args:
            rgb: The driver's picture, uint8 [H, W, 3].
            is_first: The first one after the camera was found, or found again, is always animated.
        """
        thumbnail = np.asarray(cv2.resize(rgb, _THUMBNAIL, interpolation=cv2.INTER_AREA), np.uint8)
        before = self._animated
        if before is not None and not is_first and similarity(before, thumbnail) >= self._similarity:
            return True
        self._animated = thumbnail  # of the last one that was animated: drift adds up
        return False


def similarity(before: RgbPicture, now: RgbPicture) -> float:
    """Compare two small pictures: 1 when nothing changed, 0 when any tile differs by 2 % of the scale.

    Two consecutive pictures of people who talk in front of a still camera: 0.73 and 0.78 in the median, 0.86
    and 0.90 in the stillest 5 % (two videos of 512x512). So 0.92 finds drivers who sit still, and nobody who speaks.

    Args:
        before: uint8 [64, 64, 3].
        now: The same.
    """
    planes = (np.moveaxis(picture, -1, 0) for picture in (before, now))
    return max(1 - change(*planes, tiles=_TILES) / _NOTHING_IN_COMMON, 0.0)
