"""Where motion comes from: a video with a face in it, or a recording."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from types import TracebackType
from typing import Self

from vitascope.animation.canonical_mesh import CanonicalMesh
from vitascope.animation.face import FaceMotion, RgbPicture, TrackedFace
from vitascope.animation.motion import AUTO_SECONDS, MotionEstimator, Neutral, neutral_score
from vitascope.animation.motion_file import MOTION_SUFFIX, MotionReader
from vitascope.animation.pictures import driver_picture
from vitascope.animation.tracking import FaceTracker, Follow
from vitascope.errors import InputError
from vitascope.frames import Frame, Rotation
from vitascope.gpu.pipeline.queues import QueueLimits
from vitascope.gpu.pipeline.stages import Group, Map, Source, Stage
from vitascope.media.reading.reader import VideoReader, open_video
from vitascope.media.writing.output_clock import FrameTime

__all__ = [
    "Driven",
    "RecordedDriver",
    "TrackingOptions",
    "VideoDriver",
    "no_picture_between",
    "open_driver",
]

_QUEUE = QueueLimits(items=8)
_RECORDED_TIME_BASE = Fraction(1, 90_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackingOptions:
    """How a driver's face is followed."""

    max_faces: int = 1
    follow: Follow = "largest"
    refine: bool = True
    pose_window: int = 5
    expression_window: int = 5
    min_confidence: float = 0.5
    neutral: Neutral = "auto"


@dataclass(frozen=True, slots=True, eq=False)
class Driven:
    """One motion, and when its picture is shown."""

    time: FrameTime
    index: int
    motion: FaceMotion
    has_face: bool


def open_driver(
    path: Path,
    *,
    mesh: CanonicalMesh,
    model: Path,
    options: TrackingOptions,
    start_seconds: float | None = None,
    end_seconds: float | None = None,
    max_corrupt_frames: int = 250,
    keep_pictures: bool = False,
    prefetch_frames: int = 3,
) -> VideoDriver | RecordedDriver:
    """Open a driver by what the file is.

    Args:
        path: A ``.motion`` file, else a video, an image or images.
        mesh: The canonical face.
        model: The file ``face_landmarker.task``.
        options: How the face is followed.
        start_seconds: Leave out what comes before.
        end_seconds: Leave out what comes from here on.
        max_corrupt_frames: Damaged pictures that are skipped.
        keep_pictures: Hand the driver's pictures on, for animators that read them.
        prefetch_frames: Pictures that are decoded ahead of the tracker.

    Raises:
        InputError: The file cannot be read.
        MissingDependencyError: MediaPipe is not installed.
    """
    if path.suffix.lower() == MOTION_SUFFIX:
        return RecordedDriver(path, start_seconds=start_seconds, end_seconds=end_seconds)
    return VideoDriver(
        path,
        mesh=mesh,
        model=model,
        options=options,
        start_seconds=start_seconds,
        end_seconds=end_seconds,
        max_corrupt_frames=max_corrupt_frames,
        keep_pictures=keep_pictures,
        prefetch_frames=prefetch_frames,
    )


def no_picture_between(path: Path, start_seconds: float | None, end_seconds: float | None) -> InputError:
    """The error for a start and an end that no picture of a driver lies between."""
    end = "its end" if end_seconds is None else f"{end_seconds:g} s"
    return InputError(f"{path}: no picture between {start_seconds or 0:g} s and {end}")


class RecordedDriver:
    """A ``.motion`` file.

    Args:
        path: The file.
        start_seconds: Leave out what comes before, counted from the first row.
        end_seconds: Leave out what comes from here on.

    Raises:
        InputError: It cannot be read; ``CorruptInputError`` when it is damaged.
    """

    def __init__(
        self, path: Path, *, start_seconds: float | None = None, end_seconds: float | None = None
    ) -> None:
        self.path = path
        self._reader = MotionReader(path)
        self._start = start_seconds or 0.0
        self._end = float("inf") if end_seconds is None else end_seconds
        self.frame_rate = Fraction(self._reader.header.frame_rate).limit_denominator(1001)
        self.time_base = _RECORDED_TIME_BASE
        self.frame_count: int | None = self._reader.row_count
        self.corrupt_count = 0  # damage ends a recording

    def __enter__(self) -> Self:
        """Use as a context manager."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the file."""
        self._reader.close()

    def stages(self) -> list[Stage]:
        """One: rows as they are read."""
        return [Source("read motion", self._rows(), output=_QUEUE)]

    def finish(self) -> None:
        """Nothing: damage ends a run where it is met."""

    def _rows(self) -> Iterator[Driven]:
        origin: float | None = None
        index = 0
        for motion in self._reader:
            origin = motion.pts_seconds if origin is None else origin
            seconds = motion.pts_seconds - origin
            if seconds >= self._end:
                return
            if seconds >= self._start:
                ticks = round((seconds - self._start) / self.time_base)
                yield Driven(FrameTime(ticks, self.time_base, 0), index, motion, motion.presence > 0)
                index += 1


class VideoDriver:
    """A video with a face.

    Args:
        path: A video, an image or images.
        mesh: The canonical face.
        model: The file ``face_landmarker.task``.
        options: How the face is followed.
        start_seconds: Leave out what comes before.
        end_seconds: Leave out what comes from here on.
        max_corrupt_frames: Damaged pictures that are skipped.
        keep_pictures: Hand the pictures on.
        prefetch_frames: Pictures that are decoded ahead of the tracker.

    Raises:
        InputError: The file cannot be read.
        MissingDependencyError: MediaPipe is not installed.
    """

    def __init__(
        self,
        path: Path,
        *,
        mesh: CanonicalMesh,
        model: Path,
        options: TrackingOptions,
        start_seconds: float | None = None,
        end_seconds: float | None = None,
        max_corrupt_frames: int = 250,
        keep_pictures: bool = False,
        prefetch_frames: int = 3,
    ) -> None:
        self._prefetch = QueueLimits(items=max(prefetch_frames, 1))
        self.path = path
        self._reader: VideoReader = open_video(
            path,
            start_seconds=start_seconds or None,
            end_seconds=end_seconds,
            max_corrupt_frames=max_corrupt_frames,
        )
        try:
            self._tracker = FaceTracker(
                model,
                max_faces=options.max_faces,
                follow=options.follow,
                refine=options.refine,
                min_confidence=options.min_confidence,
            )
        except BaseException:
            self._reader.close()
            raise
        info = self._reader.info
        self.frame_rate = info.average_frame_rate
        self.time_base = info.time_base
        self.frame_count = self._reader.expected_frame_count
        self._options = options
        self._estimator = MotionEstimator(
            mesh,
            neutral=options.neutral,
            pose_window=options.pose_window,
            expression_window=options.expression_window,
            frame_rate=float(info.average_frame_rate),
        )
        self._keep_pictures = keep_pictures

    def __enter__(self) -> Self:
        """Use as a context manager."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
        """Decode, track, and make motion of it."""
        rotation = self._reader.info.rotation_degrees
        return [
            Source("decode", iter(self._reader), output=self._prefetch),
            Map("track", lambda frame: self._track(frame, rotation), output=_QUEUE),
            Group("motion", _MotionMaker(self._estimator, self._options.neutral), output=_QUEUE),
        ]

    def finish(self) -> None:
        """Nothing: damage beyond what is skipped ends a run where it is met."""

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
    """Makes motion of tracked faces; holds the first moments back until their best neutral is known."""

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
