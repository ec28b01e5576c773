"""Drivers, which are the sources of motion: a video of a face, a voice, or a recording."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import chain, repeat
from pathlib import Path
from typing import ClassVar, Literal

import cv2
import numpy as np

from vitascope.animation.canonical_mesh import CanonicalMesh, Pose
from vitascope.animation.face import FaceMotion, FloatArray, RgbPicture, TrackedFace
from vitascope.animation.motion import MotionEstimator, Neutral
from vitascope.animation.motion_file import MOTION_SUFFIX, MotionReader
from vitascope.animation.neutral import NeutralFace, NeutralSearch, is_same_person
from vitascope.animation.speech.hearing import SAMPLE_RATE
from vitascope.animation.speech.transcript import align, read_transcript, require_pocketsphinx
from vitascope.animation.speech.visemes import shapes_of
from vitascope.animation.speech.voice import Voice, level_of
from vitascope.animation.tracking import FaceModel, FaceTracker, driver_picture
from vitascope.closing import Closing
from vitascope.config import Settings
from vitascope.errors import InputError, UsageError
from vitascope.frames import Frame, Rotation
from vitascope.gpu.pipeline.queues import QueueLimits
from vitascope.gpu.pipeline.stages import Group, Map, Source, Stage
from vitascope.media.reading.reader import VideoReader, open_video
from vitascope.media.reading.sound import SoundReader, is_sound_file
from vitascope.media.writing.output_clock import FrameTime

_QUEUE = QueueLimits(items=8)
_RECORDED_TIME_BASE = Fraction(1, 90_000)


@dataclass(frozen=True, slots=True, eq=False)
class Driven:
    """One motion, and the time of its picture."""

    time: FrameTime
    index: int
    motion: FaceMotion
    has_face: bool


def open_tracker(model: Path, settings: Settings) -> FaceTracker:
    """Open the face tracker for the ``tracking`` settings.

    Args:
        model: The file ``face_landmarker.task``.
        settings: All settings.

    Raises:
        MissingDependencyError: MediaPipe is not installed.
        ModelError: The file is not a Face Landmarker.
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
    """Create the motion estimator for the settings ``tracking`` and ``animation.neutral``.

    Args:
        mesh: The canonical face.
        settings: All settings.
        frame_rate: Frame rate of the driver.
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
) -> Driver:
    """Open a driver by the type of its file: ``.motion``, sound, or else a video, an image or images.

    Arguments and errors are those of the classes, and of ``model``, which only a video needs.

    Raises:
        UsageError: A text without a voice that says it, or ``keep_pictures`` for a driver without pictures.
    """
    if (nothing := has_no_pictures(path, settings)) is not None and keep_pictures:
        raise UsageError(f"{path}: {nothing} has no pictures, which LivePortrait needs; use --animator mesh")
    if nothing == "a voice":
        return VoiceDriver(path, settings=settings)
    if settings.voice.text is not None:
        raise UsageError(
            f"{path}: voice.text is for a voice; give a sound file as the driver, or add --voice"
        )
    if nothing is not None:
        return RecordedDriver(path, settings=settings)
    return VideoDriver(path, mesh=mesh, model=model(), settings=settings, keep_pictures=keep_pictures)


def has_no_pictures(path: Path, settings: Settings) -> Literal["recorded motion", "a voice"] | None:
    """Return the kind of a driver's file that has motion but no pictures; None for others.

    Raises:
        InputError: The file cannot be read.
        UsageError: ``voice.drives`` is set for recorded motion.
    """
    if path.suffix.lower() == MOTION_SUFFIX:
        if settings.voice.drives:
            raise UsageError(f"{path}: a {MOTION_SUFFIX} file has no sound; leave --voice out")
        return "recorded motion"
    return "a voice" if settings.voice.drives or is_sound_file(path) else None


def no_picture_between(path: Path, start_seconds: float | None, end_seconds: float | None) -> InputError:
    """Make the error for a driver without pictures between start and end."""
    end = "its end" if end_seconds is None else f"{end_seconds:g} s"
    return InputError(f"{path}: no picture between {start_seconds or 0:g} s and {end}")


class RecordedDriver(Closing):
    """Replays a ``.motion`` file. A context manager.

    Args:
        path: The file.
        settings: The run's; ``video.start_seconds`` and ``end_seconds`` count from the first row.

    Raises:
        InputError: The file cannot be read; ``CorruptInputError`` if it is damaged.
    """

    def __init__(self, path: Path, *, settings: Settings) -> None:
        self.path = path
        self._reader = MotionReader(path)
        self._part = settings.video
        self.frame_rate = Fraction(self._reader.header.frame_rate).limit_denominator(1001)
        self.time_base = _RECORDED_TIME_BASE
        self.frame_count: int | None = self._reader.row_count
        self.corrupt_count = 0  # damage ends a recording
        self.is_authored = not self._reader.header.has_vertices
        """True if the motion has only expression weights, not the face's shape."""

    has_streams: ClassVar[bool] = False
    notes: ClassVar[tuple[str, ...]] = ()

    def close(self) -> None:
        """Close the file."""
        self._reader.close()

    def stages(self) -> list[Stage]:
        """Make the only stage, which reads rows."""
        return [Source("read motion", self._rows(), output=_QUEUE)]

    def _rows(self) -> Iterator[Driven]:
        start = self._part.start_seconds
        rows = self._reader.between(start, self._part.end_seconds)
        for index, (seconds, motion) in enumerate(rows):
            ticks = round((seconds - start) / self.time_base)
            yield Driven(FrameTime(ticks, self.time_base, 0), index, motion, motion.presence > 0)


class VideoDriver(Closing):
    """Tracks the face in a video. A context manager.

    Args:
        path: A video, an image or images.
        mesh: The canonical face.
        model: The file ``face_landmarker.task``.
        settings: ``video`` sets the part to read, ``tracking`` how to follow its face, and
            ``performance.prefetch_frames`` how many frames to decode ahead.
        keep_pictures: Keep the frames, for animators that read them.

    Raises:
        InputError: The file cannot be read.
        MissingDependencyError: MediaPipe is not installed.
    """

    def __init__(
        self, path: Path, *, mesh: CanonicalMesh, model: Path, settings: Settings, keep_pictures: bool = False
    ) -> None:
        self._prefetch = QueueLimits(items=max(settings.performance.prefetch_frames, 1))
        self.path = path
        self._part = settings.video
        self._reader = self._opened()
        try:
            self._tracker = open_tracker(model, settings)
        except BaseException:
            self._reader.close()
            raise
        info = self._reader.info
        self.frame_rate = info.average_frame_rate
        self.time_base = info.time_base
        self.frame_count = self._reader.expected_frame_count
        self._mesh = mesh
        self._neutral: Neutral = settings.animation.neutral
        self._follow = settings.tracking.follow
        self._estimator = make_estimator(mesh, settings, frame_rate=float(info.average_frame_rate))
        self._keep_pictures = keep_pictures
        self._first: FloatArray | None = None
        self._is_still = True

    def close(self) -> None:
        """Close the file and the tracker."""
        self._tracker.close()
        self._reader.close()

    is_authored: ClassVar[bool] = False

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on which of several faces is followed, and on a driver that does not move."""
        notes = []
        count = self._tracker.most_faces
        if self._follow == "largest" and count > 1:
            notes.append(
                f"{self.path}: {count} faces; the largest is followed (another one: tracking.max_num_faces={count} "
                "and tracking.follow=0, 1 … from the left)"
            )
        if self._is_still:
            notes.append(f"{self.path}: a still picture has no motion to follow")
        return tuple(notes)

    @property
    def corrupt_count(self) -> int:
        """Number of damaged frames that were skipped."""
        return self._reader.corrupt_count

    @property
    def has_streams(self) -> bool:
        """True for a file that may have sound, subtitles and chapters."""
        info = self._reader.info
        return info.path.is_file() and info.container != "images"

    def stages(self) -> list[Stage]:
        """Make the stages: decode, track, and turn faces into motion."""
        rotation = self._reader.info.rotation_degrees
        return [
            Source("decode", iter(self._reader), output=self._prefetch),
            Map("track", lambda frame: self._track(frame, rotation), output=_QUEUE),
            Group(
                "motion",
                _MotionMaker(
                    self._mesh, self._estimator, self._neutral, self._again if self._keep_pictures else None
                ),
                output=_QUEUE,
            ),
        ]

    def _opened(self) -> VideoReader:
        return open_video(
            self.path,
            start_seconds=self._part.start_seconds or None,
            end_seconds=self._part.end_seconds,
            max_corrupt_frames=self._part.max_corrupt_frames,
        )

    @contextmanager
    def _again(self) -> Iterator[Iterator[RgbPicture]]:
        """Read the frames a second time, from the first."""
        with self._opened() as reader:
            rotation = reader.info.rotation_degrees
            yield (driver_picture(frame, rotation_degrees=rotation) for frame in reader)

    def _track(self, frame: Frame, rotation: Rotation) -> _Seen:
        rgb = driver_picture(frame, rotation_degrees=rotation)
        if self._is_still:
            small = cv2.resize(rgb, _SEEN_FROM_AFAR, interpolation=cv2.INTER_AREA).astype(np.float32)
            self._first = small if self._first is None else self._first
            self._is_still = bool(np.abs(small - self._first).max() < _SAME)
        face = self._tracker.track(rgb, pts_seconds=frame.pts_seconds)
        time = FrameTime(frame.pts, frame.time_base, frame.duration)
        return _Seen(time, frame.index, frame.pts_seconds, face, rgb if self._keep_pictures else None)


@dataclass(frozen=True, slots=True, eq=False)
class _Seen:
    """A frame of the driver after tracking."""

    time: FrameTime
    index: int
    pts_seconds: float
    face: TrackedFace | None
    rgb: RgbPicture | None


_SEEN_FROM_AFAR, _SAME = (48, 48), 4.0
"""Size to which frames are shrunk for comparison, and the difference, in codes of 255, below which all pixels
of two equal frames stay: it hides camera noise and a codec's changes."""
_MOST_HELD = 20_000
"""Maximum faces held until the whole driver is read, 9 kB each: eleven minutes. Later ones are handled as for
live drivers."""


class _MotionMaker:
    """Turns tracked faces into motion; holds them until each person's neutral is known.

    Args:
        mesh: The canonical face.
        estimator: Makes the motion.
        neutral: ``auto`` looks for a face at rest in the whole driver.
        again: Opens the driver's frames again, for animators that read them; None for others.
    """

    def __init__(
        self,
        mesh: CanonicalMesh,
        estimator: MotionEstimator,
        neutral: Neutral,
        again: Callable[[], AbstractContextManager[Iterator[RgbPicture]]] | None,
    ) -> None:
        self._mesh = mesh
        self._estimator = estimator
        self._held: list[_Seen] | None = [] if neutral == "auto" else None
        self._stretches: list[_Stretch] = []
        self._shot = 0
        self._again = again

    def accumulate(self, seen: _Seen, /) -> Iterable[Driven]:
        """Add one frame."""
        if self._held is None:
            return [self._made(seen, seen.rgb)]
        if seen.face is not None:
            if seen.face.is_new or not self._stretches:
                if self._held and self._held[-1].face is not None:
                    self._shot += 1  # the frame before showed another face
                self._stretches.append(_Stretch(len(self._held), self._shot, NeutralSearch(self._mesh)))
            if not seen.face.mouth_covered:
                self._stretches[-1].search.add(seen.face, rgb=seen.rgb)
        self._held.append(replace(seen, rgb=None))
        return self._let_out() if len(self._held) >= _MOST_HELD else ()

    def flush(self) -> Iterable[Driven]:
        """Release the rest at the video's end."""
        return self._let_out() if self._held else ()

    def _let_out(self) -> Iterator[Driven]:
        held, self._held = self._held or [], None
        neutrals = _neutrals(self._stretches)
        with nullcontext(repeat(None)) if self._again is None else self._again() as pictures:
            for index, (seen, rgb) in enumerate(zip(held, pictures, strict=False)):
                if index in neutrals:
                    self._estimator.take_neutral(neutrals[index])
                yield self._made(seen, rgb)
        self._estimator.learn()  # from the faces after the held ones

    def _made(self, seen: _Seen, rgb: RgbPicture | None) -> Driven:
        motion = self._estimator.update(seen.face, pts_seconds=seen.pts_seconds, driver_rgb=rgb)
        return Driven(seen.time, seen.index, motion, seen.face is not None)


@dataclass(frozen=True, slots=True, eq=False)
class _Stretch:
    """Frames in which one face is followed without a break."""

    first: int
    """Index of its first frame."""
    shot: int
    """Number of the shot: the camera changes at each cut."""
    search: NeutralSearch


def _neutrals(stretches: Sequence[_Stretch]) -> dict[int, NeutralFace]:
    """Choose the neutral of each stretch, by the index of its first frame.

    A person has one face at rest, the calmest of all stretches; the resting pose of the head is the shot's.
    """
    people: list[tuple[float, NeutralFace]] = []
    heads: dict[tuple[int, int], tuple[float, Pose]] = {}
    seen = []
    for stretch in stretches:
        own = stretch.search.best()
        assert own is not None  # a stretch begins with a face
        score = stretch.search.score(own)
        for person, (best, known) in enumerate(people):
            if is_same_person(known.reading, own.reading):
                if score < best:
                    people[person] = score, own
                break
        else:
            person = len(people)
            people.append((score, own))
        where = stretch.shot, person
        if where not in heads or score < heads[where][0]:
            heads[where] = score, own.reading.pose
        seen.append((stretch.first, where))
    found = {}
    for first, where in seen:
        _, known = people[where[1]]
        found[first] = replace(known, reading=replace(known.reading, pose=heads[where][1]))
    return found


_PRIMED_SECONDS = 10.0
"""Length of the beginning of a file from which the voice's usual level is measured, before its first word."""
_LITTLE_SPEECH = 0.35
"""Minimum share of audible sound in which the mouth opens, for speech: 0.22 in tested music, 0.92 in a
sentence."""


class VoiceDriver(Closing):
    """Makes motion from the voice in a file. A context manager.

    Args:
        path: A sound file, or a video with sound.
        settings: Reads ``voice``, and the start and end in ``video``.

    Raises:
        InputError: The file cannot be read, has no sound, or lacks the words of ``voice.text``.
        MissingDependencyError: There is a text, and PocketSphinx is not installed.
        UsageError: The text has no words.
    """

    has_streams: ClassVar[bool] = True
    is_authored: ClassVar[bool] = True
    time_base: ClassVar[Fraction] = _RECORDED_TIME_BASE

    def __init__(self, path: Path, *, settings: Settings) -> None:
        self.path = path
        self._part, self._seed = settings.video, settings.voice.seed
        self._text: str | None = None
        if settings.voice.text is not None:
            require_pocketsphinx()
            self._text = read_transcript(settings.voice.text)
        self.frame_rate = Fraction(settings.voice.frame_rate).limit_denominator(1001)
        self._reader = SoundReader(
            path,
            sample_rate=SAMPLE_RATE,
            start_seconds=self._part.start_seconds or None,
            end_seconds=self._part.end_seconds,
        )
        seconds = self._reader.duration_seconds
        self.frame_count: int | None = None if seconds is None else max(round(seconds * self.frame_rate), 1)
        self.notes: tuple[str, ...] = ()
        """Notes on the voice, after its end."""

    def close(self) -> None:
        """Close the file."""
        self._reader.close()

    @property
    def corrupt_count(self) -> int:
        """Number of damaged packets that were skipped."""
        return self._reader.corrupt_count

    def stages(self) -> list[Stage]:
        """Make the only stage, which reads the voice and makes motion."""
        return [Source("hear", self._motions(), output=_QUEUE)]

    def _motions(self) -> Iterator[Driven]:
        blocks: Iterator[FloatArray] = iter(self._reader)
        begun: list[FloatArray] = []
        wanted = _PRIMED_SECONDS * SAMPLE_RATE if self._text is None else float("inf")
        count = 0
        while count < wanted and (block := next(blocks, None)) is not None:
            begun.append(block)
            count += len(block)
        if not count:
            end = "its end" if self._part.end_seconds is None else f"{self._part.end_seconds:g} s"
            raise InputError(f"{self.path}: no sound between {self._part.start_seconds:g} s and {end}")
        known = np.concatenate(begun)
        shapes: FloatArray | None = None
        if self._text is not None:
            aligned = align(known, self._text)
            shapes = shapes_of(aligned.sounds, seconds=count / SAMPLE_RATE + 1)
            if aligned.guessed:
                self.notes = (
                    f"not in the dictionary, so spelled letter by letter: {', '.join(aligned.guessed)}",
                )
        voice = Voice(
            frame_rate=float(self.frame_rate), seed=self._seed, level_db=level_of(known), shapes=shapes
        )
        index, count = 0, 0
        for block in chain(begun, blocks):
            voice.listen(block)
            count += len(block)
            for due in range(index, self._due(min(voice.known_seconds, count / SAMPLE_RATE))):
                yield self._driven(voice, due)
                index = due + 1
        voice.finish()
        while index < count / SAMPLE_RATE * self.frame_rate:
            yield self._driven(voice, index)
            index += 1
        self.notes += _notes_of(voice)
        if missing := self._reader.missing_seconds:
            self.notes += (
                f"{self.path.name} was cut off: {missing:.1f} s of the sound announced in its header is missing",
            )

    def _due(self, seconds: float) -> int:
        """Count the pictures before a time."""
        return max(int(seconds * self.frame_rate), 0)

    def _driven(self, voice: Voice, index: int) -> Driven:
        seconds = index / self.frame_rate
        begin = self._reader.begin_seconds + (self._part.start_seconds or 0.0)
        ticks = round((Fraction(begin) + seconds) / self.time_base)
        motion = voice.motion_at(float(seconds))
        return Driven(
            FrameTime(ticks, self.time_base, round(1 / self.frame_rate / self.time_base)), index, motion, True
        )


def _notes_of(voice: Voice) -> tuple[str, ...]:
    """Make the notes on a voice after its end."""
    if voice.audible_count < 0.005 * voice.row_count:
        return ("the sound is silent: the portrait breathes, blinks and looks about",)
    if voice.opened_count < _LITTLE_SPEECH * voice.audible_count:
        return ("hardly any speech was recognised in the sound: the mouth stays almost still",)
    return ()


Driver = VideoDriver | RecordedDriver | VoiceDriver
"""All drivers that read a file."""
