"""Any container that FFmpeg reads: open it, find its video, decode, seek, and notice when it ends early."""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator
from fractions import Fraction
from pathlib import Path

import av
import av.error
from av.container import InputContainer
from av.stream import Discard, Disposition
from av.video.stream import VideoStream

from vitascope.errors import CorruptInputError, InputError
from vitascope.media._av_errors import describe_av_error, silence_libav
from vitascope.media._chroma_site import read_chroma_location
from vitascope.media._source import DamageCounter, SourceFacts
from vitascope.media._unreadable import count_missing_bytes, explain_unreadable

__all__ = ["ContainerSource", "open_container"]

_NOT_A_VIDEO = Disposition.attached_pic | Disposition.timed_thumbnails
_FIELD_ORDERS_INTERLACED = (2, 3, 4, 5)  # AVFieldOrder: TT, BB, TB, BT
_DEFAULT_FRAME_RATE = Fraction(25)
_MAX_SANE_FRAME_RATE = 1000  # some demuxers report their clock (90000) when they know no rate


def open_container(path: Path) -> InputContainer:
    """Open a media file.

    Raises:
        InputError: It does not exist, is empty, is not finished, or is not media; the message says which.
    """
    silence_libav()
    try:
        # The prefix keeps names such as "talk: part 1.mp4" from being read as a protocol; pattern_type keeps a
        # "%03d" in a name literal; a tag in a foreign encoding must not make a video unreadable.
        return av.open(f"file:{path}", "r", options={"pattern_type": "none"}, metadata_errors="replace")
    except (av.FFmpegError, OSError) as error:
        reason = explain_unreadable(path) or describe_av_error(error)
        raise InputError(f"{path}: cannot open it: {reason}") from error


class ContainerSource:
    """The video stream of one container.

    Decoding uses frame threads where the codec has them, else slice threads (``thread_type="AUTO"``). PyAV's default,
    slice threads alone, keeps a single core busy on the one-slice-a-picture H.264 that most encoders write. The
    known hang of ``AUTO`` on an early break (PyAV issue 1861) needs FFmpeg's log callback to wait for the GIL while
    closing the decoder holds it; ``silence_libav`` takes the callback away, and tests close readers early in a loop.

    Args:
        path: The file.
        threads: Decoder threads; 0 lets FFmpeg take one a core.
        max_corrupt_frames: Damage that is tolerated.

    Raises:
        InputError: The file cannot be opened or holds no video that this FFmpeg can decode.
    """

    def __init__(self, path: Path, *, threads: int, max_corrupt_frames: int) -> None:
        self._path = path
        self._threads = threads
        self.damage = DamageCounter(path, limit=max_corrupt_frames)
        self._container: InputContainer | None = None
        self._stream: VideoStream | None = None
        self._running: Generator[av.VideoFrame, None, None] | None = None
        self._from_start = True
        self._open()
        self.facts = self._read_facts()

    def close(self) -> None:
        """Free the decoder with its threads, and the file. Idempotent."""
        self._stop()
        container, self._container, self._stream = self._container, None, None
        if container is not None:
            container.close()

    def rewind(self) -> None:
        """Start again at the first picture, by opening the file again: exact for every container."""
        self.close()
        self._open()
        self._from_start = True

    def seek(self, pts: int) -> None:
        """Go to the keyframe at or before ``pts``; to the beginning in containers that cannot seek."""
        self._stop()
        container, stream = self._opened()
        try:
            container.seek(pts, stream=stream, backward=True)
        except (av.FFmpegError, OSError):
            self.rewind()
        else:
            self._from_start = False

    def pictures(self) -> Iterator[av.VideoFrame]:
        """Decode from the current position; see ``PictureSource``."""
        self._stop()
        self._running = self._decode()
        return self._running

    def _stop(self) -> None:
        running, self._running = self._running, None
        if running is not None:
            running.close()

    def _opened(self) -> tuple[InputContainer, VideoStream]:
        if self._container is None or self._stream is None:
            raise ValueError(f"the reader of {self._path} is closed")
        return self._container, self._stream

    def _open(self) -> None:
        container = open_container(self._path)
        try:
            self._stream = self._choose_stream(container)
        except BaseException:
            container.close()
            raise
        self._container = container
        for other in container.streams:
            if other is not self._stream:
                other.discard = Discard.all
        self._stream.thread_type = "AUTO"
        self._stream.thread_count = self._threads

    def _choose_stream(self, container: InputContainer) -> VideoStream:
        videos = [s for s in container.streams.video if not s.disposition & _NOT_A_VIDEO]
        if not videos:
            others = (
                "its cover picture is not a video" if container.streams.video else "nothing to look at in it"
            )
            kinds = sorted({s.type for s in container.streams if s.type != "video"})
            raise InputError(
                f"{self._path}: it has no video stream: {' and '.join(kinds) or 'no streams'}, {others}"
            )
        best = container.streams.best("video")
        stream = next((s for s in videos if s is best), videos[0])
        if stream.codec_context is None:
            raise InputError(
                f"{self._path}: no decoder in this FFmpeg build knows the codec of its video stream"
            )
        return stream

    def _read_facts(self) -> SourceFacts:
        container, stream = self._opened()
        time_base = stream.time_base or Fraction(1, av.time_base)
        rate = _frame_rate(stream)
        duration = self._promised_end_seconds()
        if duration is None and container.duration:
            duration = container.duration / av.time_base
        count = stream.frames or None
        if count is not None and (left_out := sum(entry.is_discard for entry in stream.index_entries)):
            count -= left_out  # by an edit list: decoded, but not shown
        if count is None and duration is not None:
            count = max(round(duration * rate), 1)
        return SourceFacts(
            path=self._path,
            container=container.format.name,
            codec=stream.codec_context.name,
            time_base=time_base,
            average_frame_rate=rate,
            frame_count_estimate=count,
            duration_seconds=duration,
            sample_aspect_ratio=stream.sample_aspect_ratio or Fraction(1),
            interlaced=stream.codec_context.field_order in _FIELD_ORDERS_INTERLACED,
            chroma_location=read_chroma_location(stream.codec_context.name, stream.codec_context.extradata),
            audio_stream_count=len(container.streams.audio),
            subtitle_stream_count=len(container.streams.subtitles),
            metadata=dict(container.metadata),
        )

    def _promised_end_seconds(self) -> float | None:
        """How long the header says the video is: the stream's duration, or Matroska's DURATION tag."""
        _, stream = self._opened()
        if stream.duration and stream.time_base:
            return float(stream.duration * stream.time_base)
        return _parse_duration(stream.metadata.get("DURATION", ""))

    def _decode(self) -> Generator[av.VideoFrame, None, None]:
        container, stream = self._opened()
        progress = _Progress(from_start=self._from_start)
        failure: Exception | None = None
        packets = container.demux(stream)
        while True:
            try:
                packet = next(packets)
            except StopIteration:
                break
            except (av.FFmpegError, OSError) as error:
                failure = error
                break
            if packet.size:
                progress.packets += 1
                progress.keyframe_seen |= packet.is_keyframe
                if packet.is_corrupt and container.format.name != "mpegts":
                    # Cut off by the end of the file. Its error would surface while frame threads flush, and PyAV
                    # gives no second chance to fetch the good pictures behind it. A transport stream marks a packet
                    # for any lost fragment; the rest of it is worth decoding.
                    self._skip(progress, None)
                    continue
            yield from self._pictures_of(packet, progress)
        if failure is not None:
            yield from self._pictures_of(None, progress)
        self._check_end(progress, failure)

    def _pictures_of(
        self, packet: av.Packet[VideoStream] | None, progress: _Progress
    ) -> Iterator[av.VideoFrame]:
        """Decode one packet; None and the empty packet that ends ``demux`` flush."""
        _, stream = self._opened()
        try:
            frames = stream.decode(packet)
        except av.error.EOFError:
            return  # flushed before
        except (av.FFmpegError, OSError) as error:
            self._skip(progress, error)
            return
        for frame in frames:
            if frame.is_corrupt:
                self._skip(progress, None)
                continue
            if frame.time_base is None:  # flushed without a packet
                frame.time_base = stream.time_base
            if frame.pts is not None:
                progress.end_pts = max(progress.end_pts or frame.pts, frame.pts + frame.duration)
            self.damage.decoded += 1
            progress.pictures += 1
            yield frame

    def _skip(self, progress: _Progress, cause: Exception | None) -> None:
        # A recording that starts in the middle of a GOP begins with pictures that lack their reference: no damage.
        if progress.keyframe_seen or progress.pictures:
            self.damage.add(cause)

    def _check_end(self, progress: _Progress, failure: Exception | None) -> None:
        """Compare what came with what the header promised.

        MP4 and MOV list where each packet lies: one beyond the end of the file means a truncated file. They and AVI
        count their packets, so fewer than promised, by more than 1 % and 2 packets (headers are off by that much in
        healthy files), mean the same. Fragmented MP4 counts nothing in advance; its last box must be whole.
        Matroska, and AVI after a seek, compare the end of the last picture with the duration in the same way, with
        at least 0.5 s of tolerance. MPEG-TS promises nothing.
        """
        problem = self._shortfall(progress)
        if problem is None and failure is None:
            return
        problem = problem or f"reading failed after {self.damage.decoded} decoded frames"
        why = f" ({describe_av_error(failure)})" if failure is not None else ""
        raise CorruptInputError(f"{self._path}: {problem}{why}") from failure

    def _shortfall(self, progress: _Progress) -> str | None:
        container, stream = self._opened()
        promised = self._promised_packets()
        beyond_end = self._packets_beyond_end()
        if promised and progress.from_start:
            came = min(progress.packets, promised - beyond_end)
            if beyond_end or promised - came > max(2, promised // 100):
                return (
                    f"truncated or damaged: it promises {promised} frames and ends after {came}, "
                    f"of which {self.damage.decoded} could be decoded"
                )
            return None
        if beyond_end:
            return (
                f"truncated: its last {beyond_end} frames lie beyond the end of the file; "
                f"{self.damage.decoded} could be decoded"
            )
        if "mp4" in container.format.name and not promised and (lacking := count_missing_bytes(self._path)):
            return f"truncated: its last fragment lacks {lacking} bytes; {self.damage.decoded} frames could be decoded"
        promised_end = self._promised_end_seconds()
        if promised_end is None or progress.end_pts is None or stream.time_base is None:
            return None
        end = float((progress.end_pts - (stream.start_time or 0)) * stream.time_base)
        if promised_end - end <= max(0.5, promised_end / 100, 3 / float(_frame_rate(stream))):
            return None
        return (
            f"truncated or damaged: it promises {promised_end:.2f} s and ends at {end:.2f} s, "
            f"after {self.damage.decoded} decoded frames"
        )

    def _packets_beyond_end(self) -> int:
        """Packets that the index of an MP4 or MOV puts, wholly or partly, after the last byte of the file."""
        container, stream = self._opened()
        if "mp4" not in container.format.name or not stream.frames:
            return 0
        size = self._path.stat().st_size
        return sum(entry.pos + entry.size > size for entry in stream.index_entries)

    def _promised_packets(self) -> int | None:
        container, stream = self._opened()
        if not stream.frames:
            return None
        if "mp4" in container.format.name:
            # An edit list leaves samples out that the sample table counts; the index, complete from the moov box
            # on, is what will be demuxed.
            return min(stream.frames, len(stream.index_entries)) or None
        return stream.frames


class _Progress:
    """How far one run through the packets came."""

    def __init__(self, *, from_start: bool) -> None:
        self.from_start = from_start
        self.packets = 0
        self.pictures = 0
        self.keyframe_seen = False
        self.end_pts: int | None = None


def _frame_rate(stream: VideoStream) -> Fraction:
    for rate in (stream.average_rate, stream.guessed_rate):
        if rate and 0 < rate <= _MAX_SANE_FRAME_RATE:
            return rate
    return _DEFAULT_FRAME_RATE


def _parse_duration(tag: str) -> float | None:
    """Seconds of Matroska's ``HH:MM:SS.nnnnnnnnn``."""
    match = re.fullmatch(r"(\d+):(\d\d):(\d\d(?:\.\d+)?)", tag.strip())
    if match is None:
        return None
    hours, minutes, seconds = match.groups()
    return int(hours) * 3600 + int(minutes) * 60 + float(seconds)
