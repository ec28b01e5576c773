"""Drivers other than a camera, in real time: a video, a voice, recorded motion; endless ones to measure."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import monotonic, sleep

import numpy as np

from vitascope.animation.drivers import no_picture_between
from vitascope.animation.face import FaceMotion, FloatArray, RgbPicture, TrackedFace
from vitascope.animation.motion_file import MOTION_SUFFIX, MotionReader
from vitascope.animation.speech.hearing import SAMPLE_RATE
from vitascope.animation.speech.voice import Voice
from vitascope.animation.tracking import driver_picture
from vitascope.errors import InputError
from vitascope.frames import Frame
from vitascope.media.live_loop import PictureSource
from vitascope.media.reading.camera import CameraPicture
from vitascope.media.reading.microphone import Microphone, SoundCapture, is_microphone, open_microphone
from vitascope.media.reading.paced import Paced, PacedFilm
from vitascope.media.reading.reader import VideoReader, open_video
from vitascope.media.reading.sound import SoundReader

_MOST_BYTES = 256 << 20
_NO_PICTURE = np.zeros((1, 1, 3), np.uint8)


class FilmSource(PacedFilm[CameraPicture]):
    """A driver's video in real time; arguments and errors are those of ``PacedFilm``."""

    def _picture_of(self, frame: Frame, captured_seconds: float) -> CameraPicture:
        rgb = driver_picture(frame, rotation_degrees=self.info.rotation_degrees)
        return CameraPicture(rgb, captured_seconds, frame.index, frame.index == 0)

    def _nothing(self) -> InputError:
        return no_picture_between(self.info.path, *self.part)


class _Recorded(Paced):
    """An estimator for known motion: it returns the motion of the picture from ``take``."""

    _given: FaceMotion

    def update(
        self, face: TrackedFace | None, *, pts_seconds: float, driver_rgb: RgbPicture | None = None
    ) -> FaceMotion:
        """Return the motion of the picture from ``take``."""
        del face, pts_seconds, driver_rgb
        return self._given

    def set_neutral(self, face: TrackedFace | None = None) -> bool:
        """False: a recording has its neutral."""
        del face
        return False

    def find_neutral(self) -> bool:
        """False: a recording has its neutral."""
        return False

    def set_smoothing(self, *, pose_window: int, expression_window: int) -> None:
        """Do nothing: a recording is smoothed already."""


class ReplaySource(_Recorded):
    """Recorded motion in real time: camera and estimator in one.

    Args:
        path: A ``.motion`` file.
        start_seconds: Start of the part, counted from the first row.
        end_seconds: End of the part.
        clock: A monotonic clock, in seconds.
        wait: Sleeps.

    Raises:
        InputError: It cannot be read.
    """

    def __init__(
        self,
        path: Path,
        *,
        start_seconds: float | None = None,
        end_seconds: float | None = None,
        clock: Callable[[], float] = monotonic,
        wait: Callable[[float], object] = sleep,
    ) -> None:
        super().__init__(clock, wait)
        self._file = MotionReader(path)
        self._rows = (motion for _, motion in self._file.between(start_seconds or 0.0, end_seconds))
        self._next = next(self._rows, None)
        if self._next is None:
            self._file.close()
            raise InputError(f"{path}: no motion between --start and --end")
        self._first_pts = self._next.pts_seconds
        self._given = FaceMotion()

    def take(self, *, timeout_seconds: float | None = None) -> CameraPicture | None:
        """Wait for the newest row that is due, and return a stand-in for its picture; ``update`` returns the row."""
        if self._next is None:
            return None
        if self._began is None:
            self._began = self._clock()
        if not self._comes_due(self._when(self._next), timeout_seconds):
            return None
        while self._next is not None and self._when(self._next) <= self._clock() + 1e-4:
            self._given, self._next = self._next, next(self._rows, None)
            self.captured_count += 1
        self.is_over = self._next is None
        number = self.captured_count - 1
        return CameraPicture(_NO_PICTURE, self._when(self._given), number, number == 0)

    def _when(self, row: FaceMotion) -> float:
        assert self._began is not None  # set at the first row
        return self._began + row.pts_seconds - self._first_pts

    def close(self) -> None:
        """Close the file."""
        self._file.close()


_BLOCK_SECONDS = 0.01
_WAITED_SECONDS = 0.05
_LONGEST_SILENCE_SECONDS = 2.0
"""Maximum silence inserted at once while the microphone is disconnected."""


class PacedSound:
    """Reads a file's sound at the pace of a microphone; a ``SoundCapture``.

    Args:
        reader: The file.
        clock: A monotonic clock, in seconds.
        wait: Sleeps.
    """

    def __init__(
        self,
        reader: SoundReader,
        *,
        clock: Callable[[], float] = monotonic,
        wait: Callable[[float], object] = sleep,
    ) -> None:
        self._reader, self._clock, self._wait = reader, clock, wait
        self._blocks = iter(reader)
        self._ready: FloatArray = np.zeros(0, np.float32)
        self._began: float | None = None
        self._given = 0

    def read(self) -> FloatArray | None:
        """Return the next samples when they are due; None at the end."""
        size = round(_BLOCK_SECONDS * SAMPLE_RATE)
        while len(self._ready) < size and (block := next(self._blocks, None)) is not None:
            self._ready = np.concatenate((self._ready, block))
        block, self._ready = self._ready[:size], self._ready[size:]
        if not len(block):
            return None
        if self._began is None:
            self._began = self._clock()
        self._given += len(block)
        self._wait(max(self._began + self._given / SAMPLE_RATE - self._clock(), 0.0))
        return block

    def close(self) -> None:
        """Close the file."""
        self._reader.close()


class VoiceSource(_Recorded):
    """Motion of a live voice: camera and estimator in one.

    A picture's capture time is that of the sound it shows, so the run's delay is that of lips behind the voice.

    Args:
        microphone: The sound, at ``SAMPLE_RATE``; its context is entered here.
        frame_rate: Pictures per second.
        seed: As for ``Voice``.
        clock: A monotonic clock, in seconds.
        wait: Sleeps.

    Raises:
        InputError: It cannot be opened.
    """

    def __init__(
        self,
        microphone: Microphone,
        *,
        frame_rate: float,
        seed: int = 0,
        clock: Callable[[], float] = monotonic,
        wait: Callable[[float], object] = sleep,
    ) -> None:
        super().__init__(clock, wait)
        self._frame_rate = frame_rate
        self._voice = Voice(frame_rate=frame_rate, seed=seed)
        self._sample_count = 0
        self._given = FaceMotion()
        self._next = 0
        self._has_finished = False
        self._microphone = microphone
        microphone.__enter__()

    def take(self, *, timeout_seconds: float | None = None) -> CameraPicture | None:
        """Wait for the newest moment whose mouth shape is known; ``update`` returns its motion."""
        until = None if timeout_seconds is None else self._clock() + timeout_seconds
        while True:
            left = None if until is None else max(until - self._clock(), 0.0)
            self._hear(_WAITED_SECONDS if left is None else min(left, _WAITED_SECONDS))
            known = self._voice.known_seconds
            if self._has_finished:
                known = min(known, self._sample_count / SAMPLE_RATE)
            newest = int(known * self._frame_rate)
            if newest >= self._next and known > 0:
                break
            if self._has_finished:
                self.is_over = True
                return None
            if until is not None and self._clock() >= until:
                return None
        self._next = newest + 1
        self.captured_count = self._next  # including those that came too late
        seconds = newest / self._frame_rate
        assert self._began is not None  # set when sound was heard
        self._given = replace(self._voice.motion_at(seconds), pts_seconds=self._began + seconds)
        return CameraPicture(_NO_PICTURE, self._began + seconds, newest, newest == 0)

    def _hear(self, timeout_seconds: float) -> None:
        """Process new sound, or silence where there was none."""
        blocks = self._microphone.take(timeout_seconds=timeout_seconds)
        for block in blocks:
            began = block.end_seconds - (self._sample_count + len(block.samples)) / SAMPLE_RATE
            if self._began is None:
                self._began = began
            if block.is_first and began > self._began:
                self._listen_to_silence(began - self._began)
            self._voice.listen(block.samples)
            self._sample_count += len(block.samples)
            # The sound with the smallest delay shows best when it was spoken.
            self._began = min(self._began, block.end_seconds - self._sample_count / SAMPLE_RATE)
        if not blocks and self._microphone.is_over and not self._has_finished:
            self._voice.finish()
            self._has_finished = True
        elif not blocks and self._began is not None and self._microphone.is_lost:
            self._listen_to_silence(self._clock() - self._began - self._sample_count / SAMPLE_RATE)

    def _listen_to_silence(self, seconds: float) -> None:
        assert self._began is not None  # set when sound was heard
        heard = round(min(max(seconds, 0.0), _LONGEST_SILENCE_SECONDS) * SAMPLE_RATE)
        self._voice.listen(np.zeros(heard, np.float32))
        self._sample_count += heard
        self._began += max(seconds - _LONGEST_SILENCE_SECONDS, 0.0)

    def close(self) -> None:
        """Release the microphone."""
        self._microphone.close()


def open_voice(
    name: str,
    *,
    frame_rate: float,
    seed: int = 0,
    start_seconds: float | None = None,
    end_seconds: float | None = None,
    on_message: Callable[[str], object] | None = None,
) -> VoiceSource:
    """Open a microphone, or the voice in a file in real time.

    Args:
        name: ``mic``, ``mic:DEVICE``, or a file.
        frame_rate: Pictures per second.
        seed: As for ``Voice``.
        start_seconds: Start of the part, in a file.
        end_seconds: End of the part, in a file.
        on_message: Called with one line when a microphone is disconnected or back.

    Raises:
        InputError: It cannot be opened, or has no sound.
    """

    def said(is_lost: bool) -> None:
        if on_message is not None:
            on_message(f"{name} was disconnected; waiting for it" if is_lost else f"{name} is connected")

    def paced() -> SoundCapture:
        return PacedSound(
            SoundReader(
                Path(name), sample_rate=SAMPLE_RATE, start_seconds=start_seconds, end_seconds=end_seconds
            )
        )

    if is_microphone(name):
        microphone = Microphone(partial(open_microphone, name, sample_rate=SAMPLE_RATE), on_lost=said)
    else:
        microphone = Microphone(paced, ends=True)
    return VoiceSource(microphone, frame_rate=frame_rate, seed=seed)


class EndlessDriver(_Recorded):
    """Repeats a driver's pictures from memory at a fixed rate, for measuring.

    Nothing is read while it runs: the selected part, at most its first 256 MB, is read in advance. For a recording this
    is the estimator, too. It never ends.

    Args:
        path: A video, or a ``.motion`` file.
        frame_rate: Pictures per second.
        start_seconds: Start of the part.
        end_seconds: End of the part.
        max_corrupt_frames: Maximum damaged frames of a video to skip.
        clock: A monotonic clock, in seconds.
        wait: Sleeps.

    Raises:
        InputError: It cannot be read, or the selected part is empty.
    """

    def __init__(
        self,
        path: Path,
        *,
        frame_rate: float,
        start_seconds: float | None = None,
        end_seconds: float | None = None,
        max_corrupt_frames: int = 250,
        clock: Callable[[], float] = monotonic,
        wait: Callable[[float], object] = sleep,
    ) -> None:
        super().__init__(clock, wait)
        self._rows: list[FaceMotion] = []
        if path.suffix.lower() == MOTION_SUFFIX:
            with MotionReader(path) as file:
                self._rows = [motion for _, motion in file.between(start_seconds or 0.0, end_seconds)]
            self._pictures = [_NO_PICTURE] * len(self._rows)
        else:
            with open_video(
                path,
                start_seconds=start_seconds or None,
                end_seconds=end_seconds,
                max_corrupt_frames=max_corrupt_frames,
            ) as reader:
                self._pictures = _pictures_of(reader)
        if not self._pictures:
            raise InputError(f"{path}: no frame between --start and --end")
        self._interval = 1 / frame_rate
        self._number = 0

    def take(self, *, timeout_seconds: float | None = None) -> CameraPicture | None:
        """Wait for the newest picture that is due; None if none is in time."""
        if self._began is None:
            self._began = self._clock()
        if not self._comes_due(self._began + self.captured_count * self._interval, timeout_seconds):
            return None
        due = int((self._clock() - self._began) / self._interval)
        self._number = max(due, self.captured_count)
        self.captured_count = self._number + 1
        when = self._began + self._number * self._interval
        rgb = self._pictures[self._number % len(self._pictures)]
        return CameraPicture(rgb, when, self._number, self._number == 0)

    def update(
        self, face: TrackedFace | None, *, pts_seconds: float, driver_rgb: RgbPicture | None = None
    ) -> FaceMotion:
        """Return the row of the picture taken last."""
        del face, driver_rgb
        return replace(self._rows[self._number % len(self._rows)], pts_seconds=pts_seconds)


def _pictures_of(reader: VideoReader) -> list[RgbPicture]:
    kept: list[RgbPicture] = []
    for frame in reader:
        kept.append(driver_picture(frame, rotation_degrees=reader.info.rotation_degrees))
        if (len(kept) + 1) * kept[0].nbytes > _MOST_BYTES:
            break
    return kept


_JITTER = 0.3
"""Share of an interval by which a picture may come early, as cameras jitter."""


class Capped:
    """Limits a source's pictures per second; ignores pictures that come too soon.

    Args:
        source: The source; not closed here.
        frame_rate: Maximum pictures per second.
    """

    def __init__(self, source: PictureSource[CameraPicture], *, frame_rate: float) -> None:
        self._source = source
        self._interval = 1 / frame_rate
        self._due = -math.inf
        self._last_index: int | None = None
        self.captured_count = 0
        """Number of pictures captured, without those that came too soon."""

    @property
    def is_over(self) -> bool:
        """True if no more pictures will come."""
        return self._source.is_over

    def take(self, *, timeout_seconds: float | None = None) -> CameraPicture | None:
        """Wait for the newest picture; None if none came in time, or it came too soon."""
        picture = self._source.take(timeout_seconds=timeout_seconds)
        if picture is None:
            return None
        when = picture.captured_seconds
        # Most pictures that came between two calls came too soon: count as many as the limit allows.
        missed = 0 if self._last_index is None else picture.index - self._last_index - 1
        self._last_index = picture.index
        lost = math.floor((when - self._due) / self._interval) if when > self._due > -math.inf else 0
        self.captured_count += min(missed, lost)
        if when < self._due - _JITTER * self._interval and not picture.is_first:
            return None
        self.captured_count += 1
        # Advance along a fixed grid, so that a camera's jitter loses no picture; start a new grid after a gap.
        self._due = (self._due if when - self._due < self._interval else when) + self._interval
        return picture
