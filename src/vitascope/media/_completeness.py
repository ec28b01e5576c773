"""Whether a film came whole: what was read against what its header and its index promise."""

from __future__ import annotations

import re
from fractions import Fraction

from av.video.stream import VideoStream

from vitascope.errors import CorruptInputError
from vitascope.media._av_errors import describe_av_error
from vitascope.media._opened_video import OpenedVideo
from vitascope.media._unreadable import count_missing_bytes

__all__ = ["ONE_PICTURE_A_PACKET", "ReadingProgress", "check_end", "frame_rate_of", "promised_end_seconds"]

ONE_PICTURE_A_PACKET = frozenset({"h264", "hevc", "vp9", "av1", "libdav1d"})
"""Decoders of progressive film that give one picture for every packet: what did not come was lost.

VP8 and MPEG-4 have packets that show nothing, and the fields of interlaced film may come in a packet each.
"""
_DEFAULT_FRAME_RATE = Fraction(25)
_MAX_SANE_FRAME_RATE = 1000  # some demuxers report their clock (90000) when they know no rate


class ReadingProgress:
    """How far one run through the packets came.

    Args:
        from_start: The run began with the film's first packet.
    """

    def __init__(self, *, from_start: bool) -> None:
        self.from_start = from_start
        self.packets = 0
        self.pictures = 0
        self.keyframe_seen = False
        self.end_pts: int | None = None

    def shown(self, pts: int | None, duration: int) -> None:
        """Count a picture."""
        self.pictures += 1
        if pts is not None:
            self.end_pts = max(self.end_pts or pts, pts + duration)


def check_end(
    video: OpenedVideo, progress: ReadingProgress, *, decoded: int, failure: Exception | None
) -> None:
    """Compare what came with what the header promised.

    MP4 and MOV list where each packet lies: one beyond the end of the file means a truncated file. They and AVI count
    their packets, so fewer than promised, by more than 1 % and 2 packets (headers are off by that much in healthy
    files), mean the same. Fragmented MP4 counts nothing in advance; its last box must be whole. Matroska, and AVI
    after a seek, compare the end of the last picture with the duration in the same way, with at least 0.5 s of
    tolerance. MPEG-TS promises nothing.

    Args:
        video: The film, still open.
        progress: How far the reading came.
        decoded: Pictures that came out whole.
        failure: What stopped the reading before the end; None when nothing did.

    Raises:
        CorruptInputError: The file is shorter than it promises, or could not be read to its end.
    """
    problem = _shortfall(video, progress, decoded)
    if problem is None and failure is None:
        return
    problem = problem or f"reading failed after {decoded} decoded frames"
    why = f" ({describe_av_error(failure)})" if failure is not None else ""
    raise CorruptInputError(f"{video.path}: {problem}{why}") from failure


def promised_end_seconds(stream: VideoStream) -> float | None:
    """How long the header says the video is: the stream's duration, or Matroska's DURATION tag."""
    if stream.duration and stream.time_base:
        return float(stream.duration * stream.time_base)
    return _parse_duration(stream.metadata.get("DURATION", ""))


def frame_rate_of(stream: VideoStream) -> Fraction:
    """Frames a second, as far as anybody knows."""
    for rate in (stream.average_rate, stream.guessed_rate):
        if rate and 0 < rate <= _MAX_SANE_FRAME_RATE:
            return rate
    return _DEFAULT_FRAME_RATE


def _shortfall(video: OpenedVideo, progress: ReadingProgress, decoded: int) -> str | None:
    container, stream = video.container, video.stream
    promised = _promised_packets(video)
    beyond_end = _packets_beyond_end(video)
    if promised and progress.from_start:
        came = min(progress.packets, promised - beyond_end)
        if beyond_end or promised - came > max(2, promised // 100):
            return (
                f"truncated or damaged: it promises {promised} frames and ends after {came}, "
                f"of which {decoded} could be decoded"
            )
        return None
    if beyond_end:
        return f"truncated: its last {beyond_end} frames lie beyond the end of the file; {decoded} could be decoded"
    if "mp4" in container.format.name and not promised and (lacking := count_missing_bytes(video.path)):
        return f"truncated: its last fragment lacks {lacking} bytes; {decoded} frames could be decoded"
    promised_end = promised_end_seconds(stream)
    if promised_end is None or progress.end_pts is None or stream.time_base is None:
        return None
    end = float((progress.end_pts - (stream.start_time or 0)) * stream.time_base)
    if promised_end - end <= max(0.5, promised_end / 100, 3 / float(frame_rate_of(stream))):
        return None
    return (
        f"truncated or damaged: it promises {promised_end:.2f} s and ends at {end:.2f} s, "
        f"after {decoded} decoded frames"
    )


def _packets_beyond_end(video: OpenedVideo) -> int:
    """Packets that the index of an MP4 or MOV puts, wholly or partly, after the last byte of the file."""
    if "mp4" not in video.container.format.name or not video.stream.frames:
        return 0
    size = video.path.stat().st_size
    return sum(entry.pos + entry.size > size for entry in video.stream.index_entries)


def _promised_packets(video: OpenedVideo) -> int | None:
    stream = video.stream
    if not stream.frames:
        return None
    if "mp4" in video.container.format.name:
        # An edit list leaves samples out that the sample table counts; the index, complete from the moov box
        # on, is what will be demuxed.
        return min(stream.frames, len(stream.index_entries)) or None
    return stream.frames


def _parse_duration(tag: str) -> float | None:
    """Seconds of Matroska's ``HH:MM:SS.nnnnnnnnn``."""
    match = re.fullmatch(r"(\d+):(\d\d):(\d\d(?:\.\d+)?)", tag.strip())
    if match is None:
        return None
    hours, minutes, seconds = match.groups()
    return int(hours) * 3600 + int(minutes) * 60 + float(seconds)
