"""Opens a path as images or a container, with the best decoder that supports the video.

The decoder runs on the GPU or the CPU, in one session or several: several decoders of one video yield one stream of
pictures, in order and without seams.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from heapq import heappop, heappush
from pathlib import Path

import av
from av.packet import Packet
from av.video.stream import VideoStream

from vitascope.errors import CorruptInputError, InputError, UsageError, VitascopeError
from vitascope.gpu.pipeline.queues import BoundedQueue, Mark, QueueLimits
from vitascope.media.libav import fraction_or_none, wrap_input_error
from vitascope.media.planes import is_cuda_picture
from vitascope.media.reading.container import ContainerSource, Decoding, OpenedVideo, on_cuda_device
from vitascope.media.reading.damage import (
    ONE_PICTURE_A_PACKET,
    BrokenGroups,
    DamageCounter,
    ReadingProgress,
    check_end,
)
from vitascope.media.reading.film_index import GopPlan, Segment, Stamp, index_of, plan_segments
from vitascope.media.reading.images import ImageSource, find_images, is_still_image
from vitascope.media.reading.source import PictureSource, SourceFacts

_SEEK_MARGINS_SECONDS = (0, 2, 10, None)
"""Seconds before a keyframe to seek to, tried in turn until the seek lands before it; None is the beginning of the
file."""
_LEAD_IN_SEGMENTS = (0, 1, 4, 16)
"""Number of earlier segments with which a decoder starts, tried in turn until its pictures are complete."""


@dataclass(frozen=True, slots=True)
class LostPicture:
    """A picture of the segment that could not be decoded, however early decoding started."""

    cause: Exception | None


@dataclass(frozen=True, slots=True)
class SegmentEnd:
    """The end of a segment."""

    packet_count: int
    """Number of packets in the segment."""
    failure: Exception | None
    """Why the rest of the file cannot be read; None if it can."""


class _NotWholeError(Exception):
    """A picture is missing or damaged, although decoding began at the segment's own keyframe."""


class SegmentDecoder:
    """Decodes segments of one video, one at a time, in any order. For one thread.

    Random access is exact if no picture after the keyframe refers to pictures before it. Otherwise a gap in the
    presentation times shows the fault, and decoding restarts some segments earlier, so that the references exist.
    What is still missing then is damage, as it would be for a single decoder that reads from the beginning.

    Args:
        video: The video, opened for this decoder alone; its owner closes it.
        plan: The video's segments.
    """

    def __init__(self, video: OpenedVideo, plan: GopPlan) -> None:
        self._video = video
        self._segments = plan.segments
        self._stamp = plan.stamp
        self._last_pts: int | None = None

    def decode(self, number: int) -> Iterator[av.VideoFrame | LostPicture | SegmentEnd]:
        """Decode one segment.

        Args:
            number: Position of the segment.

        Yields:
            The pictures that it owns, in presentation order, a ``LostPicture`` for each missing one, then one
            ``SegmentEnd``.

        Raises:
            CorruptInputError: The packets are not in the order of the index.
        """
        self._last_pts = None
        leads = sorted({min(lead, number) for lead in _LEAD_IN_SEGMENTS})
        for lead in leads:
            try:
                yield from self._attempt(number, number - lead, is_last=lead == leads[-1])
            except _NotWholeError:
                continue
            return

    def _attempt(
        self, number: int, first: int, *, is_last: bool
    ) -> Iterator[av.VideoFrame | LostPicture | SegmentEnd]:
        owned = _OwnedPictures(
            is_first=number == 0, after=self._last_pts, raises=not is_last, path=self._video.path
        )
        reading = _SegmentReading(self._segments[number], owned, self._stamp)
        groups = BrokenGroups(has_begun=first > 0)
        cause: Exception | None = None
        for packet in reading.wanted(self._packets_from(self._segments[first].start)):
            if packet is not None:
                groups.sent(packet)
            try:
                pictures = self._video.decode(packet)
            except (av.FFmpegError, OSError) as error:
                cause = error  # the loss is counted when pictures do not arrive
                continue
            for picture in pictures:
                lost, is_shown = owned.came(picture, is_damaged=groups.hold(picture) or picture.is_corrupt)
                for _ in range(lost):
                    yield LostPicture(cause)
                if is_shown:
                    self._last_pts = picture.pts
                    yield picture
        for _ in range(owned.finish()):
            yield LostPicture(cause)
        yield SegmentEnd(reading.packet_count, reading.failure)

    def _packets_from(self, start: int) -> Iterator[Packet[VideoStream]]:
        """The packets from the keyframe with this timestamp on; none if the file ends before it."""
        for margin in _SEEK_MARGINS_SECONDS:
            if margin is None:
                self._video.reopen()
            else:
                aim = start - round(margin / (fraction_or_none(self._video.stream.time_base) or 1))
                try:
                    self._video.container.seek(aim, stream=self._video.stream, backward=True)
                except (av.FFmpegError, OSError):
                    continue
            packets = (packet for packet in self._video.container.demux(self._video.stream) if packet.size)
            for packet in packets:
                stamp = _stamp_of(packet, self._stamp)
                if stamp == start:
                    yield packet
                    yield from packets
                    return
                if stamp is not None and stamp > start and (self._stamp == "dts" or packet.is_keyframe):
                    break
            else:
                return
        raise CorruptInputError(
            f"{self._video.path}: its index lists a keyframe at tick {start} that does not exist; "
            "read it with one decoder session"
        )


class _SegmentReading:
    """Selects the packets that a segment needs: its own, and the leading pictures after the next keyframe."""

    def __init__(self, segment: Segment, owned: _OwnedPictures, stamp: Stamp) -> None:
        self._segment = segment
        self._owned = owned
        self._stamp = stamp
        self.packet_count = 0
        """Number of packets from the segment's keyframe up to the next one."""
        self.failure: Exception | None = None
        """The error that stopped the reading early."""

    def wanted(self, packets: Iterator[Packet[VideoStream]]) -> Iterator[Packet[VideoStream] | None]:
        """The packets to decode; None tells the decoder to flush."""
        next_keyframe: Packet[VideoStream] | None = None
        is_in_leading = False
        while True:
            try:
                packet = next(packets, None)
            except (av.FFmpegError, OSError) as error:
                self.failure = error
                break
            if packet is None:
                break
            if next_keyframe is not None:
                # Leading pictures directly follow their keyframe: the first other picture ends them.
                if not _is_before(packet, next_keyframe):
                    break
                if not is_in_leading:
                    is_in_leading = True
                    yield next_keyframe
            elif self._begins_next(packet):
                self._owned.ends_before(packet.pts)
                next_keyframe = packet
                continue
            elif _stamp_of(packet, self._stamp) == self._segment.start:
                self._owned.begins_at(packet.pts)
            if next_keyframe is None and self._owned.has_begun:
                self.packet_count += 1
            self._owned.sent(packet)
            if not packet.is_corrupt:  # not cut off by the end of the file
                yield packet
        yield None

    def _begins_next(self, packet: Packet[VideoStream]) -> bool:
        stamp = _stamp_of(packet, self._stamp)
        end = self._segment.end
        if end is None or stamp is None:
            return False
        # Decoding times only increase. Parser and index may disagree whether a packet is a keyframe.
        return stamp == end or (stamp > end and (self._stamp == "dts" or packet.is_keyframe))


class _OwnedPictures:
    """Keeps track of the pictures that a segment owns.

    Args:
        is_first: True for the video's first segment, which also owns pictures shown before its keyframe.
        after: Counts only pictures shown later than this; None counts all.
        raises: Raise ``_NotWholeError`` for a missing picture instead of counting it.
        path: Name of the file for errors.
    """

    def __init__(self, *, is_first: bool, after: int | None, raises: bool, path: Path) -> None:
        self._is_first = is_first
        self._after = after
        self._raises = raises
        self._path = path
        self._begin: int | None = None
        self._end: int | None = None
        self._trailing_seen = False
        self._awaited: list[int] = []

    @property
    def has_begun(self) -> bool:
        """True once the segment's own keyframe was read."""
        return self._begin is not None

    def begins_at(self, pts: int | None) -> None:
        """Set the time of the segment's own keyframe."""
        self._begin = self._checked(pts)

    def ends_before(self, pts: int | None) -> None:
        """Set the time of the next segment's keyframe."""
        self._end = self._checked(pts)
        if self._awaited and max(self._awaited) >= self._end:
            raise self._unordered(max(self._awaited))

    def sent(self, packet: Packet[VideoStream]) -> None:
        """Record a packet that goes to the decoder."""
        pts = self._checked(packet.pts)
        if self._begin is None:
            return
        if pts < self._begin and self._trailing_seen and self._end is None:
            raise self._unordered(pts)
        self._trailing_seen |= pts > self._begin
        is_awaited = self._begin <= pts and (self._end is None or pts < self._end)
        if is_awaited and not packet.is_discard and (self._after is None or pts > self._after):
            heappush(self._awaited, pts)

    def came(self, picture: av.VideoFrame, *, is_damaged: bool) -> tuple[int, bool]:
        """Record a picture that the decoder returned.

        Args:
            picture: The picture.
            is_damaged: True if it must not be shown.

        Returns:
            The number of lost pictures before it, and whether the segment shows it.
        """
        pts = picture.pts
        if pts is None or self._begin is None or (self._end is not None and pts >= self._end):
            return 0, False
        if (pts < self._begin and not self._is_first) or (self._after is not None and pts <= self._after):
            return 0, False
        lost = 0
        while self._awaited and self._awaited[0] <= pts:
            lost += heappop(self._awaited) < pts
        lost += is_damaged
        return self._reported(lost), not is_damaged

    def finish(self) -> int:
        """Record that the decoder is flushed.

        Returns:
            The number of pictures that did not arrive.
        """
        lost, self._awaited = len(self._awaited), []
        return self._reported(lost)

    def _reported(self, lost: int) -> int:
        if lost and self._raises:
            raise _NotWholeError
        return lost

    def _checked(self, pts: int | None) -> int:
        if pts is None:
            raise CorruptInputError(
                f"{self._path}: packets without a presentation time; read it with one decoder session"
            )
        return pts

    def _unordered(self, pts: int) -> CorruptInputError:
        return CorruptInputError(
            f"{self._path}: the picture at tick {pts} is on the wrong side of a keyframe; "
            "read it with one decoder session"
        )


def _stamp_of(packet: Packet[VideoStream], stamp: Stamp) -> int | None:
    return packet.dts if stamp == "dts" else packet.pts


def _is_before(packet: Packet[VideoStream], keyframe: Packet[VideoStream]) -> bool:
    return packet.pts is not None and keyframe.pts is not None and packet.pts < keyframe.pts


@dataclass(frozen=True, slots=True)
class _Failed:
    """Placed in the queue when a session ends with an error."""

    error: BaseException


_Item = av.VideoFrame | LostPicture | SegmentEnd | _Failed
_Lane = BoundedQueue[_Item]
"""Pictures that one session has decoded and the reader has not taken yet."""
_ANY_NUMBER = 2**62


class ParallelSource:
    """The video stream of one container, decoded by several sessions at once.

    Session *k* of *S* decodes segments *k*, *k + S*, *k + 2S* and so on, on its own thread. Pictures are yielded
    segment by segment, as a single decoder would yield them. A session runs ahead until its share of the buffer is
    full, by at least one picture. Then, and for segments larger than the share, it waits for its turn, which only
    costs speed.

    Args:
        headers: The video, opened for its facts and index; never decoded, closed with this source.
        video: The video, opened for the first session; closed with this source.
        open_video: Opens the video for another session, on that session's thread.
        plan: The video's segments, at least two.
        sessions: Number of decoders, at least 1.
        buffer_bytes: Limit in bytes for waiting pictures of all sessions together.
        decoder: Name of the decoder for reports.
    """

    def __init__(
        self,
        headers: ContainerSource,
        video: OpenedVideo,
        *,
        open_video: Callable[[], OpenedVideo],
        plan: GopPlan,
        sessions: int,
        buffer_bytes: int,
        decoder: str,
    ) -> None:
        self._headers = headers
        self._open_video = open_video
        self._idle = [video]
        self._plan = plan
        self._sessions = min(sessions, len(plan.segments))
        # Limited by bytes alone, because the size of a picture depends on the video.
        lane_bytes = max(buffer_bytes // self._sessions, 1)
        self._lane_limits = QueueLimits(items=_ANY_NUMBER, nbytes=lane_bytes)
        self._first = 0
        self._running: Generator[av.VideoFrame, None, None] | None = None
        self.decoder = decoder

    @property
    def facts(self) -> SourceFacts:
        """See ``PictureSource``."""
        return self._headers.facts

    @property
    def damage(self) -> DamageCounter:
        """See ``PictureSource``."""
        return self._headers.damage

    def pictures(self) -> Iterator[av.VideoFrame]:
        """Decode from the current position; see ``PictureSource``."""
        self._stop()
        self._running = self._merge(self._first)
        return self._running

    def seek(self, pts: int) -> None:
        """Continue with the segment that contains ``pts``, or the nearest before it."""
        self._stop()
        self._first = self._plan.segment_at(pts)

    def rewind(self) -> None:
        """Continue with the first segment."""
        self._stop()
        self._first = 0

    def close(self) -> None:
        """End the sessions, wait for their threads, and free everything. Idempotent."""
        self._stop()
        for video in self._idle:
            video.close()
        self._headers.close()

    def _stop(self) -> None:
        running, self._running = self._running, None
        if running is not None:
            running.close()

    def _merge(self, first: int) -> Generator[av.VideoFrame, None, None]:
        lanes = [_Lane(f"decode-{k} > reader", limits=self._lane_limits) for k in range(self._sessions)]
        threads = [
            threading.Thread(
                target=self._work,
                args=(lane, range(first + k, len(self._plan.segments), self._sessions)),
                name=f"decode-{k}",
                daemon=True,
            )
            for k, lane in enumerate(lanes)
        ]
        for thread in threads:
            thread.start()
        try:
            yield from self._in_order(lanes, first)
        finally:
            for lane in lanes:
                lane.stop()
            for thread in threads:
                thread.join()

    def _in_order(self, lanes: list[_Lane], first: int) -> Iterator[av.VideoFrame]:
        progress = ReadingProgress(from_start=first == 0)
        failure: Exception | None = None
        for number in range(first, len(self._plan.segments)):
            lane = lanes[(number - first) % self._sessions]
            while not isinstance(item := _oldest_of(lane), SegmentEnd):
                if isinstance(item, _Failed):
                    raise _told_where(item.error, self.facts.path, self.damage.decoded)
                if isinstance(item, LostPicture):
                    self.damage.add(item.cause)
                    continue
                progress.shown(item.pts, item.duration)
                self.damage.decoded += 1
                yield item
            progress.packets += item.packet_count
            if item.failure is not None:
                failure = item.failure
                break
        check_end(self._headers.video, progress, self.damage, failure=failure)

    def _work(self, lane: _Lane, numbers: range) -> None:
        try:
            video = self._take_idle() or self._open_video()
            try:
                decoder = SegmentDecoder(video, self._plan)
                for number in numbers:
                    for item in decoder.decode(number):
                        if not lane.put(item, nbytes=_bytes_of(item)):
                            return
            finally:
                self._idle.append(video)
        except BaseException as error:  # any error must reach the reader
            lane.put(_Failed(error))
        finally:
            lane.end()

    def _take_idle(self) -> OpenedVideo | None:
        """A video that an earlier run left open: creating a GPU decoder takes a tenth of a second."""
        try:
            return self._idle.pop()
        except IndexError:
            return None


def _oldest_of(lane: _Lane) -> _Item:
    """The next item of a session, waited for."""
    taken = lane.get()
    assert not isinstance(taken, Mark), f"{lane.name}: no segment's end was put"
    return taken[1]


def _bytes_of(item: _Item) -> int:
    if not isinstance(item, av.VideoFrame):
        return 0
    return sum(plane.buffer_size for plane in item.planes)


def _told_where(error: BaseException, path: Path, decoded: int) -> BaseException:
    if not isinstance(error, VitascopeError):
        error.add_note(f"{path}: in a decoder session, after {decoded} frames")
    return error


_GPU_FORMATS = frozenset({"nv12", "p010le"})
"""NVDEC's formats that the kernels can read; 12 bits and 4:4:4 have other formats."""
_SEGMENT_SECONDS = 0.5
"""Minimum length of a segment: each one costs a seek and the flushing of a decoder."""
_HOST_BUFFER_BYTES = 2 << 30
_DEVICE_BUFFER_BYTES = 16 << 30
"""Enough for four sessions to run ahead by a segment of 60 pictures of 7680x4320."""


def open_source(
    path: Path,
    *,
    image_frame_rate: Fraction,
    decoding: Decoding,
    max_corrupt_frames: int,
    sessions: int = 1,
    session_buffer_bytes: int | None = None,
) -> PictureSource:
    """Open images or a container. The last three arguments are those of ``open_film``, and have no effect for images.

    Raises:
        UsageError: The image frame rate is not above 0.
        InputError: The path cannot be opened, or has no video.
    """
    if image_frame_rate <= 0:
        raise UsageError(
            f"{path}: an image frame rate of {image_frame_rate} is not possible; give one above 0"
        )
    with wrap_input_error(path, "look at it"):  # there may be no permission
        images = find_images(path)
        if images is None and path.is_file() and is_still_image(path):
            images = [path]
    if images is not None:
        source = ImageSource(
            path, files=images, frame_rate=image_frame_rate, max_corrupt_frames=max_corrupt_frames
        )
        if decoding.cuda_device is not None:
            source.decoder += ": images are decoded on the CPU"
        return source
    return open_film(
        path,
        decoding=decoding,
        max_corrupt_frames=max_corrupt_frames,
        sessions=sessions,
        session_buffer_bytes=session_buffer_bytes,
    )


def open_film(
    path: Path,
    *,
    decoding: Decoding,
    max_corrupt_frames: int,
    sessions: int = 1,
    session_buffer_bytes: int | None = None,
) -> PictureSource:
    """Open the video of a container with the best decoder that supports it.

    The GPU's decoder is tried on the first picture. If it does not support the video (codec, chroma format, depth,
    size), the CPU decodes, and the source's ``decoder`` says why. If neither can decode it, the CPU's error is
    raised.

    Args:
        path: The file.
        decoding: The device to try first.
        max_corrupt_frames: Maximum number of damaged frames.
        sessions: Number of decoders that share the video.
        session_buffer_bytes: Limit in bytes for waiting pictures of all sessions together. None means a quarter of
            the GPU's free memory, at most 16 GiB; or 2 GiB of host memory.

    Raises:
        InputError: The file cannot be opened, or has no video that this FFmpeg can decode.
        MissingDependencyError: A CUDA device is requested without CuPy.
        UsageError: The CUDA device does not exist.
    """
    source, reason = _open_for(path, decoding, max_corrupt_frames)
    if reason is not None:
        decoding = replace(decoding, cuda_device=None)
    name = "libavcodec" if decoding.cuda_device is None else "nvdec"
    label = f"{name} ({source.facts.codec})"
    source.decoder = f"{label}: {reason}" if reason else label
    if sessions == 1:
        return source
    try:
        headers = ContainerSource(path, decoding=Decoding(threads=1), max_corrupt_frames=max_corrupt_frames)
        plan = _cut(headers)
    except BaseException:
        source.close()
        raise
    if not plan.segments:
        headers.close()
        source.decoder += f"; one session: {plan.why_whole}"
        return source
    count = min(sessions, len(plan.segments))
    if decoding.cuda_device is None:
        source.close()  # it has the threads of all sessions
        decoding = replace(decoding, threads=max((decoding.threads or os.cpu_count() or 1) // count, 1))
    return ParallelSource(
        headers,
        OpenedVideo(path, decoding) if decoding.cuda_device is None else source.hand_over(),
        open_video=partial(OpenedVideo, path, decoding),
        plan=plan,
        sessions=count,
        buffer_bytes=session_buffer_bytes or _default_buffer_bytes(decoding.cuda_device),
        decoder=f"{source.decoder}; {count} sessions",
    )


def _open_for(path: Path, decoding: Decoding, max_corrupt_frames: int) -> tuple[ContainerSource, str | None]:
    """A source on the GPU if that supports the video, else on the CPU, with the reason."""
    reason = None
    if decoding.cuda_device is not None:
        with on_cuda_device(decoding.cuda_device):
            pass  # a device that was requested and is missing is an error, not a reason
        try:
            source = ContainerSource(path, decoding=decoding, max_corrupt_frames=max_corrupt_frames)
        except (InputError, NotImplementedError) as error:
            # If the file is at fault, the CPU's attempt reports it; otherwise no decoder was available (driver,
            # memory).
            reason = f"NVDEC cannot be opened ({error})"
        else:
            reason = _why_not(source)
            if reason is None:
                return source, None
            source.close()
        decoding = replace(decoding, cuda_device=None)
    return ContainerSource(path, decoding=decoding, max_corrupt_frames=max_corrupt_frames), reason


def _why_not(source: ContainerSource) -> str | None:
    """Why the GPU's pictures of this video cannot be used; None if they can. Decodes the first one."""
    codec, context = source.facts.codec, source.video.stream.codec_context
    if not context.is_hwaccel:
        return f"FFmpeg has no way from {codec} to NVDEC"
    try:
        picture = source.peek()
    except CorruptInputError as error:
        return f"NVDEC failed ({error})"
    if picture is None:
        return "NVDEC returned no frame"
    what = f"{picture.format.name} at {picture.width}x{picture.height}"
    if not is_cuda_picture(picture):
        return f"this GPU cannot decode {codec} in {what}"
    layout = picture.sw_format.name if picture.sw_format is not None else "an unknown format"
    if layout not in _GPU_FORMATS:
        return f"NVDEC gives {layout}, which the kernels cannot read"
    if (picture.width, picture.height) != (context.width, context.height):
        # Odd sizes are rounded up, and a crop at the left or top is left to the player.
        return f"NVDEC gives {picture.width}x{picture.height} of {context.width}x{context.height}"
    return None


def _cut(headers: ContainerSource) -> GopPlan:
    """Plan the segments of a video from its container's index."""
    facts = headers.facts
    if facts.codec not in ONE_PICTURE_A_PACKET:
        return GopPlan(why_whole=f"{facts.codec} may have packets that show no picture")
    if facts.interlaced:
        return GopPlan(why_whole="it is interlaced")
    return plan_segments(index_of(headers), min_ticks=max(round(_SEGMENT_SECONDS / facts.time_base), 1))


def _default_buffer_bytes(cuda_device: int | None) -> int:
    if cuda_device is None:
        return _HOST_BUFFER_BYTES
    import cupy

    with on_cuda_device(cuda_device):
        free_bytes, _ = cupy.cuda.runtime.memGetInfo()
    return device_buffer_bytes(int(free_bytes))


def device_buffer_bytes(free_bytes: int) -> int:
    """Limit of GPU memory for the sessions' pictures: a quarter of the free memory, at most 16 GiB."""
    return min(free_bytes // 4, _DEVICE_BUFFER_BYTES)
