"""Reads the sound of any file as one channel at one rate, without gaps, block by block."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import av
import numpy as np
import numpy.typing as npt
from av.audio.stream import AudioStream
from av.container import InputContainer
from av.stream import Discard, Disposition

from vitascope.closing import Closing
from vitascope.errors import CorruptInputError, InputError
from vitascope.media.libav import describe_av_error
from vitascope.media.reading.container import open_container

_LONGEST_GAP_SECONDS = 60.0
"""Missing sound up to this length becomes silence; a longer jump is a damaged timestamp."""
_PROMISING = frozenset({"aiff", "flac", "mov,mp4,m4a,3gp,3g2,mj2"})
"""Formats whose headers give the exact length of the sound, even if the file was cut off. An MP3's length may be a
guess, and for WAV FFmpeg gives the length of what is left."""
_MISSING_SECONDS, _MISSING_SHARE = 0.5, 0.01
"""Tolerance between header and decoder: a few packets of a few dozen milliseconds."""
_UNKNOWN_BYTES = 0x7FFF_F000
"""Programs that write to a pipe do not know the size of their sound: they write 0, or at least this."""
_MOST_CHUNKS = 1000
_JITTER_SECONDS = 0.05
"""Tolerance for timestamps in milliseconds and of joined files."""

Samples = npt.NDArray[np.float32]


def is_sound_file(path: Path) -> bool:
    """True for a file with sound and no pictures other than a cover.

    Raises:
        InputError: The file cannot be opened.
    """
    if not path.is_file():
        return False
    with open_container(path) as container:
        covers = [stream.disposition & Disposition.attached_pic for stream in container.streams.video]
        return bool(container.streams.audio) and all(covers)


class OneChannel:
    """Mixes channels to one, so that a voice on one of them, or on all, is kept.

    Channels are weighted by the principal component of the recent sound, so that a silent side does not halve the
    level, and two sides of opposite sign do not cancel out. Holds the state of one stream.
    """

    def __init__(self) -> None:
        self._covariance: npt.NDArray[np.float64] | None = None
        self._weights: npt.NDArray[np.float64] | None = None

    def __call__(self, channels: Samples) -> Samples:
        """Mix the next block: float32 [channels, n] to float32 [n]; remembers about a second."""
        if len(channels) == 1:
            return channels.reshape(-1)
        if self._weights is None or len(self._weights) != len(channels):
            self._weights = self._covariance = None
        now = channels.astype(np.float64) @ channels.T
        keep = 0.5 ** (channels.shape[1] / 16_000)
        before = np.zeros_like(now) if self._covariance is None else self._covariance
        self._covariance = keep * before + now
        # If all is silent, all channels have the same weight.
        _, vectors = np.linalg.eigh(self._covariance + 1e-9 * np.ones_like(now))
        after = vectors[:, -1]
        reference = np.ones(len(after)) if self._weights is None else self._weights
        after = after * (1.0 if after @ reference >= 0 else -1.0) / np.abs(after).sum()
        first = after if self._weights is None else self._weights
        self._weights = after
        share = np.linspace(0, 1, channels.shape[1], dtype=np.float32)
        return np.asarray((first @ channels) * (1 - share) + (after @ channels) * share, np.float32)


class SoundReader(Closing):
    """Reads the first sound track of a file. A context manager and an iterator of blocks; used by one thread.

    Args:
        path: A sound file, or a video with sound.
        sample_rate: Samples per second of the result.
        start_seconds: Leave out sound before this time, counted from the first sample.
        end_seconds: Leave out sound from this time on.

    Raises:
        InputError: The file cannot be opened, or has no sound that this FFmpeg can decode.
    """

    def __init__(
        self,
        path: Path,
        *,
        sample_rate: int,
        start_seconds: float | None = None,
        end_seconds: float | None = None,
    ) -> None:
        self.path = path
        self._rate = sample_rate
        self._start, self._end = start_seconds or 0.0, end_seconds
        self._container: InputContainer = open_container(path)
        try:
            self._stream = self._sound_of(self._container)
        except BaseException:
            self._container.close()
            raise
        base = self._stream.time_base
        begin = self._stream.start_time or 0
        self.begin_seconds = float(begin * base) if base is not None else 0.0
        """Time of the first sample in the file."""
        self.duration_seconds: float | None = None
        """Length of the part according to the file; None if unknown."""
        if self._stream.duration is not None and base is not None:
            whole = float(self._stream.duration * base)
        else:
            whole = (self._container.duration or 0) / av.time_base
        if whole > 0:
            stop = whole if end_seconds is None else min(end_seconds, whole)
            self.duration_seconds = max(stop - self._start, 0.0)
        self.corrupt_count = 0
        """Number of damaged packets that were skipped."""
        self.missing_seconds = 0.0
        """Seconds that the file lacks compared with its header, once all was read; 0 if the header does not say."""
        promised = whole if self._container.format.name in _PROMISING else _promised_by_wav(path)
        self._promised = promised if end_seconds is None else min(end_seconds, promised)

    def close(self) -> None:
        """Close the file."""
        self._container.close()

    def __iter__(self) -> Iterator[Samples]:
        """Yield the part's blocks in order, float32 [n], -1..1; gaps are silence.

        Raises:
            CorruptInputError: Nothing could be decoded.
        """
        position, given, end = 0, 0, 0
        first, last = round(self._start * self._rate), None
        if self._end is not None:
            last = round(self._end * self._rate)
        for begin, block in self._decoded():
            gap, end = begin - position, max(end, begin + len(block))
            if _JITTER_SECONDS * self._rate < gap < _LONGEST_GAP_SECONDS * self._rate:
                block = np.concatenate((np.zeros(gap, np.float32), block))
            elif gap < -_JITTER_SECONDS * self._rate:
                block = block[-gap:] if -gap < len(block) else block[:0]
            low = max(first - position, 0)
            high = len(block) if last is None else min(max(last - position, 0), len(block))
            position += len(block)
            if high > low:
                given += high - low
                yield block[low:high]
            if last is not None and position >= last:
                break
        # The file's own time of its last sample, if it jumps: the promised length includes the jump.
        missing = self._promised - max(position, end) / self._rate
        if missing > _MISSING_SECONDS + _MISSING_SHARE * self._promised:
            self.missing_seconds = missing
        if not given and self.corrupt_count:
            raise CorruptInputError(f"{self.path}: its sound is damaged; none of it could be decoded")

    def _decoded(self) -> Iterator[tuple[int, Samples]]:
        """Decoded blocks, each with its position in samples from the beginning."""
        resampler: av.AudioResampler | None = None
        shape: tuple[object, ...] = ()
        one_channel = OneChannel()
        position = 0
        for frame in self._frames():
            now = (frame.format.name, frame.layout.name, frame.sample_rate)
            if resampler is None or now != shape:  # joined recordings may change it
                # Not planar: PyAV 18.1 reads past the eighth plane, and 7.1 has eight.
                resampler = av.AudioResampler("flt", frame.layout, self._rate)
                shape = now
            if frame.pts is not None and frame.time_base is not None:
                seconds = float(frame.pts * frame.time_base) - self.begin_seconds
                position = round(seconds * self._rate)
            frame.pts = None
            for resampled in resampler.resample(frame):
                block = one_channel(_channels_of(resampled))
                yield position, block
                position += len(block)
        if resampler is not None:
            for resampled in resampler.resample(None):
                yield position, one_channel(_channels_of(resampled))

    def _frames(self) -> Iterator[av.AudioFrame]:
        packets = self._container.demux(self._stream)
        while True:
            try:
                packet = next(packets, None)
            except (av.FFmpegError, OSError):  # the file ends inside a packet
                self.corrupt_count += 1
                return
            if packet is None:
                return
            try:
                yield from self._stream.decode(packet)
            except (av.FFmpegError, ValueError):
                self.corrupt_count += 1

    def _sound_of(self, container: InputContainer) -> AudioStream:
        if not container.streams.audio:
            raise InputError(f"{self.path}: it has no sound; the portrait needs a voice to follow")
        stream = container.streams.audio[0]
        if getattr(stream, "codec_context", None) is None:
            raise InputError(f"{self.path}: this FFmpeg build does not know the codec of its sound")
        for other in container.streams:
            if other is not stream:
                other.discard = Discard.all
        try:
            stream.codec_context.open(strict=False)
        except (av.FFmpegError, ValueError) as error:
            raise InputError(
                f"{self.path}: its sound cannot be decoded: {describe_av_error(error)}"
            ) from error
        return stream


def _channels_of(frame: av.AudioFrame) -> Samples:
    """Samples of a frame as float32 [channels, n]."""
    return finite(frame.to_ndarray().reshape(-1, frame.layout.nb_channels).T)


def _promised_by_wav(path: Path) -> float:
    """Length of the sound according to a WAV file's header, in seconds; 0 for other files, and if unknown."""
    with suppress(OSError), path.open("rb") as file:
        head = file.read(12)
        if head[:4] != b"RIFF" or head[8:] != b"WAVE":
            return 0.0
        bytes_a_second = 0
        for _ in range(_MOST_CHUNKS):
            chunk = file.read(8)
            if len(chunk) < 8:
                break
            size = int.from_bytes(chunk[4:], "little")
            if chunk[:4] == b"data":
                return size / bytes_a_second if bytes_a_second and size < _UNKNOWN_BYTES else 0.0
            begin = file.tell()
            if chunk[:4] == b"fmt ":
                bytes_a_second = int.from_bytes(file.read(12)[8:], "little")
            file.seek(begin + size + size % 2)
    return 0.0


def finite(samples: npt.NDArray[np.generic]) -> Samples:
    """Samples as float32; NaN and infinity, from damaged files and drivers, become silence."""
    return np.clip(np.nan_to_num(samples.astype(np.float32), posinf=0, neginf=0), -4, 4)
