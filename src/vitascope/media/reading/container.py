"""Any container that FFmpeg reads: find its video, decode, seek, and notice when it ends early."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from fractions import Fraction
from itertools import chain
from pathlib import Path
from typing import Any

import av
from av.packet import Packet
from av.video.stream import VideoStream

from vitascope.media.metadata.color_tags import read_chroma_location
from vitascope.media.reading.damage import (
    ONE_PICTURE_A_PACKET,
    DataGaps,
    MissingPictures,
    ReadingProgress,
    check_end,
    frame_rate_of,
    promised_end_seconds,
)
from vitascope.media.reading.opened_video import Decoding, OpenedVideo
from vitascope.media.reading.source import DamageCounter, SourceFacts

__all__ = ["ContainerSource"]

_FIELD_ORDERS_INTERLACED = (2, 3, 4, 5)  # AVFieldOrder: TT, BB, TB, BT


class ContainerSource:
    """The video stream of one container, decoded in one go.

    Args:
        path: The file.
        decoding: Where and how to decode.
        max_corrupt_frames: Damage that is tolerated.

    Raises:
        InputError: The file cannot be opened or holds no video that this FFmpeg can decode.
        MissingDependencyError: A CUDA device is asked for without CuPy.
        UsageError: There is no such CUDA device.
    """

    def __init__(self, path: Path, *, decoding: Decoding, max_corrupt_frames: int) -> None:
        self.damage = DamageCounter(path, limit=max_corrupt_frames)
        self._video = OpenedVideo(path, decoding)
        self._running: Generator[av.VideoFrame, None, None] | None = None
        self._peeked: av.VideoFrame | None = None
        self._from_start = True
        self.facts = _read_facts(self._video)
        self.decoder = f"libavcodec ({self.facts.codec})"

    @property
    def video(self) -> OpenedVideo:
        """The open container."""
        return self._video

    def hand_over(self) -> OpenedVideo:
        """Stop decoding, and leave the open container to the caller, who closes it."""
        self._stop()
        return self._video

    def close(self) -> None:
        """Free the decoder with its threads, and the file. Idempotent."""
        self._stop()
        self._video.close()

    def rewind(self) -> None:
        """Start again at the first picture, by opening the file again: exact for every container."""
        self._stop()
        self._video.reopen()
        self._from_start = True

    def seek(self, pts: int) -> None:
        """Go to the keyframe at or before ``pts``; to the beginning in containers that cannot seek."""
        self._stop()
        container = self._video.container
        try:
            container.seek(pts, stream=self._video.stream, backward=True)
        except (av.FFmpegError, OSError):
            self.rewind()
        else:
            self._from_start = False

    def peek(self) -> av.VideoFrame | None:
        """The next picture, which ``pictures()`` gives out again; None at the end.

        Raises:
            CorruptInputError: As ``pictures``.
            InputError: As ``pictures``.
        """
        self._stop()
        self._running = self._decode()
        self._peeked = next(self._running, None)
        return self._peeked

    def pictures(self) -> Iterator[av.VideoFrame]:
        """Decode from the current position; see ``PictureSource``."""
        if self._peeked is not None and self._running is not None:
            picture, self._peeked = self._peeked, None
            return chain([picture], self._running)
        self._stop()
        self._running = self._decode()
        return self._running

    def _stop(self) -> None:
        running, self._running, self._peeked = self._running, None, None
        if running is not None:
            running.close()

    def _decode(self) -> Generator[av.VideoFrame, None, None]:
        container, stream = self._video.container, self._video.stream
        progress = ReadingProgress(from_start=self._from_start)
        missing = MissingPictures(
            is_exact=self.facts.codec in ONE_PICTURE_A_PACKET and not self.facts.interlaced,
            from_start=self._from_start and container.format.name != "mpegts",
            may_begin_late=container.format.name == "mpegts",
        )
        gaps = DataGaps(frame_rate=self.facts.average_frame_rate, time_base=self.facts.time_base)
        failure: Exception | None = None
        packets: Iterator[Packet[Any]] = (
            container.demux(stream) if self._video.lists_packets else container.demux()
        )
        while True:
            try:
                packet = next(packets)
            except StopIteration:
                break
            except (av.FFmpegError, OSError) as error:
                failure = error
                break
            if packet.stream_index != stream.index:
                gaps.passed(packet)
                continue
            if packet.size:
                progress.packets += 1
                progress.keyframe_seen |= packet.is_keyframe
                if not self._video.lists_packets and (lost := gaps.before(packet)):
                    self.damage.add(count=lost)
                if packet.is_corrupt and container.format.name != "mpegts":
                    # Cut off by the end of the file. Its error would surface while frame threads flush, and PyAV
                    # gives no second chance to fetch the good pictures behind it. A transport stream marks a packet
                    # for any lost fragment; the rest of it is worth decoding.
                    self._skip(progress, None)
                    continue
                missing.sent(packet)
            yield from self._pictures_of(packet, progress, missing)
        if failure is not None:
            yield from self._pictures_of(None, progress, missing)
        check_end(self._video, progress, decoded=self.damage.decoded, failure=failure)
        if lost := missing.at_end():
            self.damage.add(missing.cause, count=lost)

    def _pictures_of(
        self, packet: Packet[VideoStream] | None, progress: ReadingProgress, missing: MissingPictures
    ) -> Iterator[av.VideoFrame]:
        try:
            pictures = self._video.decode(packet)
        except (av.FFmpegError, OSError) as error:
            if missing.is_exact:
                missing.cause = error  # what it costs shows in the pictures that do not come
            else:
                self._skip(progress, error)
            return
        for picture in pictures:
            if lost := missing.before(picture):
                self.damage.add(missing.cause, count=lost)
            if picture.is_corrupt:
                self._skip(progress, None)
                continue
            progress.shown(picture.pts, picture.duration)
            self.damage.decoded += 1
            yield picture

    def _skip(self, progress: ReadingProgress, cause: Exception | None) -> None:
        # A recording that starts in the middle of a GOP begins with pictures that lack their reference: no damage.
        if progress.keyframe_seen or progress.pictures:
            self.damage.add(cause)


def _read_facts(video: OpenedVideo) -> SourceFacts:
    container, stream = video.container, video.stream
    rate = frame_rate_of(stream)
    duration = promised_end_seconds(stream)
    if duration is None and container.duration:
        duration = container.duration / av.time_base
    count = stream.frames or None
    if count is not None and (left_out := sum(entry.is_discard for entry in stream.index_entries)):
        count -= left_out  # by an edit list: decoded, but not shown
    if count is None and duration is not None:
        count = max(round(duration * rate), 1)
    return SourceFacts(
        path=video.path,
        container=container.format.name,
        codec=stream.codec_context.name,
        time_base=stream.time_base or Fraction(1, av.time_base),
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
