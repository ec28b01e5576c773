"""Drivers, which give motion: a video with a face in it, or a recording."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Self

from vitascope.animation.canonical_mesh import CanonicalMesh
from vitascope.animation.face import FaceMotion, RgbPicture, TrackedFace
from vitascope.animation.motion import AUTO_SECONDS, MotionEstimator, Neutral, neutral_score
from vitascope.animation.motion_file import MOTION_SUFFIX, MotionReader
from vitascope.animation.pictures import driver_picture
from vitascope.animation.tracking import FaceModel, FaceTracker
from vitascope.config import Settings
from vitascope.errors import InputError
from vitascope.frames import Frame, Rotation
from vitascope.gpu.pipeline.queues import QueueLimits
from vitascope.gpu.pipeline.stages import Group, Map, Source, Stage
from vitascope.media.reading.reader import VideoReader, open_video
from vitascope.media.writing.output_clock import FrameTime

__all__ = [
    "Driven",
    "RecordedDriver",
    "VideoDriver",
    "make_estimator",
    "no_picture_between",
    "open_driver",
    "open_tracker",
]

_QUEUE = QueueLimits(items=8)
_RECORDED_TIME_BASE = Fraction(1, 90_000)


@dataclass(frozen=True, slots=True, eq=False)
class Driven:
    """One motion, and when its picture is shown."""

    time: FrameTime
    index: int
    motion: FaceMotion
    has_face: bool


def open_tracker(model: Path, settings: Settings) -> FaceTracker:
    """Open what finds the driver's face, as ``tracking`` says.

    Args:
        model: The file ``face_landmarker.task``.
        settings: All settings.

    Raises:
        MissingDependencyError: MediaPipe is not installed.
        ModelError: The file is no Face Landmarker.
    """
    wanted = settings.tracking
    return FaceTracker(
        model,
        max_faces=wanted.max_num_faces,
        follow=wanted.follow,
        refine=wanted.refine_landmarks,
        min_confidence=wanted.min_confidence,
    )


def make_estimator(mesh: CanonicalMesh, settings: Settings, *, frame_rate: float = 30.0) -> MotionEstimator:
    """Make what turns the driver's faces into motion, as ``tracking`` and ``animation.neutral`` say.

    Args:
        mesh: The canonical face.
        settings: All settings.
        frame_rate: Of the driver.
    """
    wanted = settings.tracking
    return MotionEstimator(
        mesh,
        neutral=settings.animation.neutral,
        pose_window=wanted.pose_smoothing_window or wanted.smoothing_window,
        expression_window=wanted.smoothing_window,
        frame_rate=frame_rate,
    )


def open_driver(
    path: Path, *, mesh: CanonicalMesh, model: FaceModel, settings: Settings, keep_pictures: bool = False
) -> VideoDriver | RecordedDriver:
    """Open a driver by what the file is: a ``.motion`` file, else a video, an image or images.

    Arguments and errors are those of the two classes, and of ``model``, which a ``.motion`` file does not need.
    """
    if path.suffix.lower() == MOTION_SUFFIX:
        return RecordedDriver(path, settings=settings)
    return VideoDriver(path, mesh=mesh, model=model(), settings=settings, keep_pictures=keep_pictures)


def no_picture_between(path: Path, start_seconds: float | None, end_seconds: float | None) -> InputError:
    """The error for a start and an end that no picture of a driver lies between."""
    end = "its end" if end_seconds is None else f"{end_seconds:g} s"
    return InputError(f"{path}: no picture between {start_seconds or 0:g} s and {end}")


class RecordedDriver:
    """Replays a ``.motion`` file. A context manager.

    Args:
        path: The file.
        settings: Of which ``video.start_seconds`` and ``end_seconds`` count from the first row.

    Raises:
        InputError: It cannot be read; ``CorruptInputError`` when it is damaged.
    """

    def __init__(self, path: Path, *, settings: Settings) -> None:
        self.path = path
        self._reader = MotionReader(path)
        self._part = settings.video
        self.frame_rate = Fraction(self._reader.header.frame_rate).limit_denominator(1001)
        self.time_base = _RECORDED_TIME_BASE
        self.frame_count: int | None = self._reader.row_count
        self.corrupt_count = 0  # damage ends a recording

    def __enter__(self) -> Self:
        """Use as a context manager."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the file."""
        self._reader.close()

    def stages(self) -> list[Stage]:
        """Make the one stage: rows as they are read."""
        return [Source("read motion", self._rows(), output=_QUEUE)]

    def _rows(self) -> Iterator[Driven]:
        start = self._part.start_seconds
        rows = self._reader.between(start, self._part.end_seconds)
        for index, (seconds, motion) in enumerate(rows):
            ticks = round((seconds - start) / self.time_base)
            yield Driven(FrameTime(ticks, self.time_base, 0), index, motion, motion.presence > 0)


class VideoDriver:
    """Tracks the face in a video. A context manager.

    Args:
        path: A video, an image or images.
        mesh: The canonical face.
        model: The file ``face_landmarker.task``.
        settings: ``video`` says which part is read, ``tracking`` how its face is followed, and
            ``performance.prefetch_frames`` how many frames are decoded ahead.
        keep_pictures: Hand the frames on, for animators that read them.

    Raises:
        InputError: The file cannot be read.
        MissingDependencyError: MediaPipe is not installed.
    """

    def __init__(
        self, path: Path, *, mesh: CanonicalMesh, model: Path, settings: Settings, keep_pictures: bool = False
    ) -> None:
        self._prefetch = QueueLimits(items=max(settings.performance.prefetch_frames, 1))
        self.path = path
        self._reader: VideoReader = open_video(
            path,
            start_seconds=settings.video.start_seconds or None,
            end_seconds=settings.video.end_seconds,
            max_corrupt_frames=settings.video.max_corrupt_frames,
        )
        try:
            self._tracker = open_tracker(model, settings)
        except BaseException:
            self._reader.close()
            raise
        info = self._reader.info
        self.frame_rate = info.average_frame_rate
        self.time_base = info.time_base
        self.frame_count = self._reader.expected_frame_count
        self._neutral: Neutral = settings.animation.neutral
        self._estimator = make_estimator(mesh, settings, frame_rate=float(info.average_frame_rate))
        self._keep_pictures = keep_pictures

    def __enter__(self) -> Self:
        """Use as a context manager."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the file and the tracker."""
        self._tracker.close()
        self._reader.close()

    @property
    def corrupt_count(self) -> int:
        """Damaged pictures that were skipped."""
        return self._reader.corrupt_count

    @property
    def has_streams(self) -> bool:
        """True for a file that may have sound, subtitles and chapters beside its pictures."""
        info = self._reader.info
        return info.path.is_file() and info.container != "images"

    def stages(self) -> list[Stage]:
        """Make the stages: decode, track, and turn faces into motion."""
        rotation = self._reader.info.rotation_degrees
        return [
            Source("decode", iter(self._reader), output=self._prefetch),
            Map("track", lambda frame: self._track(frame, rotation), output=_QUEUE),
            Group("motion", _MotionMaker(self._estimator, self._neutral), output=_QUEUE),
        ]

    def _track(self, frame: Frame, rotation: Rotation) -> _Seen:
        rgb = driver_picture(frame, rotation_degrees=rotation)
        face = self._tracker.track(rgb, pts_seconds=frame.pts_seconds)
        time = FrameTime(frame.pts, frame.time_base, frame.duration)
        return _Seen(time, frame.index, frame.pts_seconds, face, rgb if self._keep_pictures else None)


@dataclass(frozen=True, slots=True, eq=False)
class _Seen:
    """A picture of the driver after tracking."""

    time: FrameTime
    index: int
    pts_seconds: float
    face: TrackedFace | None
    rgb: RgbPicture | None


class _MotionMaker:
    """Turns tracked faces into motion; holds the first moments back until their best neutral is known."""

    def __init__(self, estimator: MotionEstimator, neutral: Neutral) -> None:
        self._estimator = estimator
        self._held: list[_Seen] | None = [] if neutral == "auto" else None

    def accumulate(self, seen: _Seen, /) -> Iterable[Driven]:
        """Take one picture."""
        if self._held is None:
            return [self._made(seen)]
        self._held.append(seen)
        faces = self._faces()
        if not faces or seen.pts_seconds - faces[0].pts_seconds < AUTO_SECONDS:
            # While nobody is there, there is nothing to wait for, and no end of pictures to keep.
            return [] if faces else self._let_out(keep_waiting=True)
        return self._let_out(keep_waiting=False)

    def flush(self) -> Iterable[Driven]:
        """The video ended."""
        return self._let_out(keep_waiting=False) if self._held else []

    def _faces(self) -> Sequence[TrackedFace]:
        return [seen.face for seen in self._held or () if seen.face is not None]

    def _let_out(self, *, keep_waiting: bool) -> list[Driven]:
        held = self._held or []
        scored = [(neutral_score(seen.face), seen) for seen in held if seen.face is not None]
        if scored:
            _, best = min(scored, key=lambda pair: pair[0])
            self._estimator.set_neutral(best.face, rgb=best.rgb)
        self._held = [] if keep_waiting else None
        return [self._made(seen) for seen in held]

    def _made(self, seen: _Seen) -> Driven:
        motion = self._estimator.update(seen.face, pts_seconds=seen.pts_seconds, driver_rgb=seen.rgb)
        return Driven(seen.time, seen.index, motion, seen.face is not None)
