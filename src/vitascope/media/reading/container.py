"""Reads any container that FFmpeg supports: opens it, finds the video, decodes, seeks, and detects an early end.

Each decoder runs in its own thread, which can be abandoned if it hangs.

With damaged H.265, FFmpeg's frame threads may wait for each other forever, and nothing can wake or end them. Waiting
for a Python thread instead allows a timeout, and lets Ctrl-C through.
"""

from __future__ import annotations

import weakref
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, TypeAlias

import av
from av.audio.codeccontext import AudioCodecContext
from av.codec.hwaccel import HWAccel
from av.container import InputContainer
from av.packet import Packet
from av.stream import Discard, Disposition
from av.video.stream import VideoStream

from vitascope.errors import CorruptInputError, InputError, UsageError
from vitascope.gpu.kernels.cuda_module import import_cupy
from vitascope.media.libav import describe_av_error, fraction_or_none, open_input, silence_libav
from vitascope.media.metadata.color_tags import read_chroma_location
from vitascope.media.planes import layout_of
from vitascope.media.reading.damage import (
    ONE_PICTURE_A_PACKET,
    BrokenGroups,
    DamageCounter,
    DataGaps,
    MissingPictures,
    ReadingProgress,
    check_end,
    explain_unreadable,
    frame_rate_of,
    left_out_of_table,
    promised_end_seconds,
    promised_frames,
)
from vitascope.media.reading.source import SourceFacts
from vitascope.media.reading.structure import broken_at, is_joined, walks

_PATIENCE_SECONDS = 30
"""Timeout for one packet; a slow machine needs less than a second."""
_LAST_SECONDS = 5
"""Time to wait for a busy decoder when the reader closes."""

_Order: TypeAlias = "tuple[Packet[VideoStream] | None] | None"
_Answer: TypeAlias = "list[av.VideoFrame] | BaseException"


class DecoderHangsError(Exception):
    """The decoder hangs for good; its thread and memory are lost."""


class PatientDecoder:
    """Decodes like ``VideoStream.decode``, with a timeout.

    Used by one thread at a time.

    Args:
        stream: The stream; the caller must not use it until ``end``.
    """

    def __init__(self, stream: VideoStream) -> None:
        self._orders: SimpleQueue[_Order] = SimpleQueue()
        self._answers: SimpleQueue[_Answer] = SimpleQueue()
        self._thread = Thread(
            target=_serve, args=(stream, self._orders, self._answers), name="patient-decoder", daemon=True
        )
        self._thread.start()
        weakref.finalize(self, self._orders.put, None)  # ends the thread if the video is never closed

    def decode(self, packet: Packet[VideoStream] | None) -> list[av.VideoFrame]:
        """Decode one packet; None flushes the decoder.

        Raises:
            DecoderHangsError: The timeout has passed.
        """
        self._orders.put((packet,))
        # Many short waits, so that suspending the process for an hour counts as one of them.
        for _ in range(_PATIENCE_SECONDS):
            try:
                answer = self._answers.get(timeout=1)
            except Empty:
                continue
            if isinstance(answer, BaseException):
                raise answer
            return answer
        raise DecoderHangsError

    def end(self) -> bool:
        """End the thread; False if it hangs, in which case the stream must not be closed."""
        self._orders.put(None)
        self._thread.join(_LAST_SECONDS)
        return not self._thread.is_alive()


def _serve(stream: VideoStream, orders: SimpleQueue[_Order], answers: SimpleQueue[_Answer]) -> None:
    while (order := orders.get()) is not None:
        try:
            answers.put(stream.decode(order[0]))
        except BaseException as error:  # raised in the waiting thread
            answers.put(error)
        del order  # frees the packet, which may be large, while waiting for the next


_MAY_HANG = frozenset({"hevc"})
_OF_MANY_SLICES = frozenset({"prores", "dnxhd"})
"""Codecs whose slices keep all cores busy; frame threads would lose pictures behind a damaged one at the end."""
STILL_BRANDS = frozenset({"avif", "heic", "heif", "heim", "heis", "heix", "mif1", "mif2", "miaf"})
_NOT_A_VIDEO = Disposition.attached_pic | Disposition.timed_thumbnails


@dataclass(frozen=True, slots=True)
class Decoding:
    """The decoder of a stream: its device and options."""

    threads: int = 0
    """Decoder threads on the CPU; 0 means one per core. The GPU's decoder is always fed by one thread."""
    cuda_device: int | None = None
    """Index of the CUDA device whose decoder is tried; None for the CPU."""


def open_container(path: Path, *, hwaccel: HWAccel | None = None) -> InputContainer:
    """Open a media file.

    Args:
        path: The file.
        hwaccel: The hardware decoder; None for the CPU.

    Raises:
        InputError: The file does not exist, is empty, incomplete, not media, an animated AVIF, or a picture in tiles;
            the message says which.
    """
    silence_libav()
    if path.exists() and not (path.is_file() or path.is_dir()):  # opening a pipe would block, even for Ctrl-C
        raise InputError(f"{path}: {explain_unreadable(path)}")
    try:
        container = open_input(path, hwaccel=hwaccel)
    except (av.FFmpegError, OSError) as error:
        reason = explain_unreadable(path) or describe_av_error(error)
        raise InputError(f"{path}: cannot open it: {reason}") from error
    if container.metadata.get("major_brand") == "avis":  # FFmpeg's first stream is its cover
        container.close()
        raise InputError(
            f"{path}: an animated AVIF, which cannot be read; convert it to GIF, APNG or video first"
        )
    if _is_in_tiles(container):
        container.close()
        raise InputError(
            f"{path}: a HEIC or AVIF picture in tiles, as phones write it, which FFmpeg here cannot assemble; "
            "save it as JPEG or PNG first"
        )
    return container


def _is_in_tiles(container: InputContainer) -> bool:
    """True for a picture (ISO/IEC 23008-12, 6.6.2.3.2) whose streams in FFmpeg are tiles or a thumbnail."""
    return container.metadata.get("major_brand") in STILL_BRANDS and any(
        stream.disposition & Disposition.dependent for stream in container.streams.video
    )


class OpenedVideo:
    """One container and its video stream. Not thread-safe, but threads may take turns.

    CPU decoding uses frame threads if the codec supports them, else slice threads (``thread_type="AUTO"``); ProRes
    and DNxHD, whose pictures all have many slices, use slice threads. PyAV's default, slice threads alone, keeps only
    one core busy for H.264 with one slice per picture, which most encoders write. The known hang of ``AUTO`` after an
    early break (PyAV issue 1861) needs FFmpeg's log callback to wait for the GIL while closing the decoder holds it;
    ``silence_libav`` removes the callback, and tests close readers early in a loop. On the GPU one thread feeds the
    decoder: each further one would only delay a picture. Frame threads of H.265 may hang forever, see
    ``PatientDecoder``.

    Args:
        path: The file.
        decoding: Where and how to decode.

    Raises:
        InputError: The file cannot be opened, or has no video that this FFmpeg can decode.
        MissingDependencyError: A CUDA device is requested without CuPy.
        UsageError: The CUDA device does not exist.
    """

    def __init__(self, path: Path, decoding: Decoding) -> None:
        self.path = path
        self.byte_count = 0
        """Size of the file in bytes when it was opened."""
        self._decoding = decoding
        self._container: InputContainer | None = None
        self._patient: PatientDecoder | None = None
        self.reopen()

    def reopen(self) -> None:
        """Reopen the file at its beginning.

        Raises:
            InputError: It cannot be opened any more.
        """
        self.close()
        decoding = self._decoding
        on_cpu = decoding.cuda_device is None
        if decoding.cuda_device is None:
            container = open_container(self.path)
        else:
            with on_cuda_device(decoding.cuda_device):
                container = open_container(self.path, hwaccel=_nvdec())
        self._container = container
        try:
            self.byte_count = self.path.stat().st_size
            self.stream: VideoStream = self._choose_stream(container)
        except BaseException:
            self.close()
            raise
        for other in container.streams:
            # Without an index of packets, those of the sound distinguish a pause from a part that cannot be read.
            if other is not self.stream and (self.lists_packets or other.type == "video"):
                other.discard = Discard.all
        by_frames = on_cpu and self.stream.codec_context.name not in _OF_MANY_SLICES
        self.stream.thread_type = "AUTO" if by_frames else "SLICE"
        self.stream.thread_count = decoding.threads if on_cpu else 1
        if on_cpu and decoding.threads != 1 and self.stream.codec_context.name in _MAY_HANG:
            self._patient = PatientDecoder(self.stream)

    @property
    def lists_packets(self) -> bool:
        """True for MP4 and MOV, whose index lists the position of every packet."""
        return "mp4" in self.container.format.name

    @property
    def container(self) -> InputContainer:
        """The container.

        Raises:
            ValueError: It is closed.
        """
        if self._container is None:
            raise ValueError(f"the reader of {self.path} is closed")
        return self._container

    def close(self) -> None:
        """Free the decoder with its threads, and the file. Idempotent."""
        container, self._container = self._container, None
        patient, self._patient = self._patient, None
        if container is not None and (patient is None or patient.end()):
            container.close()

    def decode(self, packet: Packet[VideoStream] | None) -> list[av.VideoFrame]:
        """Decode one packet; None, or the empty packet that ends ``demux``, flushes the decoder.

        Returns:
            Pictures in presentation order, with a time base: in host memory, or CUDA pictures on the device.

        Raises:
            FFmpegError: The packet could not be decoded.
            InputError: There is not enough memory for the picture.
            CorruptInputError: The decoder hangs.
        """
        try:
            pictures = (self._patient or self.stream).decode(packet)
        except av.error.EOFError:
            return []  # already flushed
        except DecoderHangsError:
            self._container = self._patient = None  # closing would hang, too
            raise CorruptInputError(
                f"{self.path}: its decoder hangs: it is damaged, and FFmpeg's threads wait for each other; try one "
                "thread (--set pipeline.stages.decode.threads=1)"
            ) from None
        except (
            MemoryError,
            av.error.BlockingIOError,
        ) as error:  # BlockingIOError: no thread could be started
            where = (
                "host" if self._decoding.cuda_device is None else f"CUDA device {self._decoding.cuda_device}"
            )
            raise InputError(
                f"{self.path}: no memory of the {where} is left for the next frame; keep fewer frames, or use "
                "fewer decoder sessions or a smaller buffer for them"
            ) from error
        for picture in pictures:
            if not picture.time_base:  # flushed without a packet
                picture.time_base = self.stream.time_base
        return pictures

    def _choose_stream(self, container: InputContainer) -> VideoStream:
        videos = [s for s in container.streams.video if not s.disposition & _NOT_A_VIDEO]
        if not videos:
            others = (
                "its cover picture is not a video" if container.streams.video else "nothing to look at in it"
            )
            kinds = sorted({s.type for s in container.streams if s.type != "video"})
            raise InputError(
                f"{self.path}: it has no video stream: {' and '.join(kinds) or 'no streams'}, {others}"
            )
        best = container.streams.best("video")
        stream = next((s for s in videos if s is best), videos[0])
        if stream.codec_context is None:
            raise InputError(
                f"{self.path}: no decoder in this FFmpeg build knows the codec of its video stream"
            )
        return stream


@contextmanager
def on_cuda_device(device: int) -> Iterator[None]:
    """Make a CUDA device and its primary context, which CuPy and PyTorch share, current in this thread.

    Raises:
        MissingDependencyError: CuPy is not installed.
        UsageError: The device does not exist.
    """
    cupy = import_cupy()
    runtime: Any = cupy.cuda.runtime
    try:
        count = runtime.getDeviceCount()
    except runtime.CUDARuntimeError as error:
        raise UsageError(f"CUDA device {device}: no GPU can be used here ({error})") from error
    if not 0 <= device < count:
        raise UsageError(f"CUDA device {device}: this machine has devices 0 to {count - 1}")
    with cupy.cuda.Device(device):
        runtime.free(0)  # creates the context if there is none
        yield


def _nvdec() -> HWAccel:
    # current_ctx uses the thread's context. PyAV's default lets FFmpeg set flags on the primary context, which the
    # driver refuses if another library has already created it.
    return HWAccel(
        "cuda",
        allow_software_fallback=True,
        options={"primary_ctx": "0", "current_ctx": "1"},
        is_hw_owned=True,
    )


_LONGEST_EMPTY_BYTES = 20
"""Maximum size of an MPEG-4 packet that only repeats the last picture and shows none of its own (ISO/IEC 14496-2,
6.2.5)."""
_FIELD_ORDERS_INTERLACED = (2, 3, 4, 5)  # AVFieldOrder: TT, BB, TB, BT


class ContainerSource:
    """The video stream of one container, decoded by one session.

    Args:
        path: The file.
        decoding: Where and how to decode.
        max_corrupt_frames: Maximum number of damaged frames.

    Raises:
        InputError: The file cannot be opened, or has no video that this FFmpeg can decode.
        MissingDependencyError: A CUDA device is requested without CuPy.
        UsageError: The CUDA device does not exist.
    """

    def __init__(self, path: Path, *, decoding: Decoding, max_corrupt_frames: int) -> None:
        self.damage = DamageCounter(path, limit=max_corrupt_frames)
        self._video = OpenedVideo(path, decoding)
        self._running: Generator[av.VideoFrame, None, None] | None = None
        self._peeked: av.VideoFrame | None = None
        self._from_start = True
        self._holds: bool | None = None
        self._joined: bool | None = None
        self.facts = _read_facts(self._video)
        self.decoder = f"libavcodec ({self.facts.codec})"

    @property
    def video(self) -> OpenedVideo:
        """The open container."""
        return self._video

    def hand_over(self) -> OpenedVideo:
        """Stop decoding, and pass the open container to the caller, who closes it."""
        self._stop()
        return self._video

    def close(self) -> None:
        """Free the decoder with its threads, and the file. Idempotent."""
        self._stop()
        self._video.close()

    def rewind(self) -> None:
        """Restart at the first picture by reopening the file, which works exactly for every container."""
        self._stop()
        self._video.reopen()
        self._from_start = True

    def seek(self, pts: int) -> None:
        """Seek to the keyframe at or before ``pts``; to the start if the container cannot seek, or repeats times."""
        self._stop()
        container = self._video.container
        if self._joined is None:
            self._joined = is_joined(self._video.path, self.facts.container, stream_id=self._video.stream.id)
        if self._joined:
            self.rewind()
            return
        try:
            container.seek(pts, stream=self._video.stream, backward=True)
        except (av.FFmpegError, OSError):
            self.rewind()
        else:
            self._from_start = False

    def peek(self) -> av.VideoFrame | None:
        """The next picture, which ``pictures()`` will yield again; None at the end.

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
            is_exact=self._is_exact() and not self.facts.interlaced,
            from_start=self._from_start and container.format.name != "mpegts",
            may_begin_late=container.format.name == "mpegts",
        )
        groups = BrokenGroups()
        shortest_picture = _LONGEST_EMPTY_BYTES if self.facts.codec == "mpeg4" else 0
        gaps = DataGaps(frame_rate=self.facts.average_frame_rate, time_base=self.facts.time_base)
        failure: Exception | None = None
        packets: Iterator[Packet[Any]] = (
            container.demux(stream) if self._video.lists_packets else container.demux()
        )
        while True:
            try:
                packet = next(packets)
            except (StopIteration, IndexError):
                break  # PyAV's own error, after our last packet, if more streams appeared while reading
            except (av.FFmpegError, OSError) as error:
                failure = error
                break
            if packet.stream_index != stream.index:
                gaps.passed(packet)
                continue
            if packet.size:
                progress.came(packet)
                if not self._video.lists_packets and (lost := gaps.before(packet)) and self._may_have_gaps():
                    self.damage.add(count=lost)
                if packet.is_corrupt and container.format.name != "mpegts":
                    # Cut off at the end of the file. Its error would be raised while frame threads flush, and PyAV
                    # gives no second chance to get the good pictures after it. In a transport stream, one lost
                    # fragment marks the packet; the rest of it is worth decoding.
                    self._skip(progress, None)
                    continue
                if packet.size > shortest_picture:
                    missing.sent(packet)
                groups.sent(packet)
            yield from self._pictures_of(packet, progress, missing, groups)
        if failure is not None:
            yield from self._pictures_of(None, progress, missing, groups)
        check_end(self._video, progress, self.damage, failure=failure, missing=missing)

    def _is_exact(self) -> bool:
        codec = self.facts.codec
        # If MPEG-4 pictures are reordered, AVI has two in a packet, or no times.
        return codec in ONE_PICTURE_A_PACKET or (
            codec == "mpeg4" and not self._video.stream.codec_context.has_b_frames
        )

    def _may_have_gaps(self) -> bool:
        """False if the file's structure is intact: then gaps in time are pauses in the recording."""
        if self._holds is None:
            container, pid = self._video.container.format.name, self._video.stream.id
            try:
                self._holds = (
                    walks(container) and broken_at(self._video.path, container, stream_id=pid) is None
                )
            except FileNotFoundError:  # the file was removed meanwhile
                self._holds = False
        return not self._holds

    def _pictures_of(
        self,
        packet: Packet[VideoStream] | None,
        progress: ReadingProgress,
        missing: MissingPictures,
        groups: BrokenGroups,
    ) -> Iterator[av.VideoFrame]:
        try:
            pictures = self._video.decode(packet)
        except (av.FFmpegError, OSError) as error:
            if missing.counts:
                missing.cause = error  # the loss is counted when pictures do not arrive
            else:
                self._skip(progress, error)
            return
        for picture in pictures:
            if lost := missing.before(picture):
                self.damage.add(missing.cause, count=lost)
            refers_to_damage = groups.hold(picture) and missing.is_exact
            if picture.is_corrupt or refers_to_damage:
                progress.keyframe_seen |= picture.key_frame  # the packet may not be marked as one
                if refers_to_damage:
                    progress.passed(picture.pts, picture.duration)
                self._skip(progress, None)
                continue
            progress.shown(picture.pts, picture.duration)
            self.damage.decoded += 1
            yield picture

    def _skip(self, progress: ReadingProgress, cause: Exception | None) -> None:
        # A recording may start in the middle of a GOP; its first pictures lack their reference and do not count as
        # damage.
        if progress.keyframe_seen or progress.pictures:
            self.damage.add(cause)


def _read_facts(video: OpenedVideo) -> SourceFacts:
    container, stream = video.container, video.stream
    rate = frame_rate_of(stream)
    duration = promised_end_seconds(stream)
    count = promised_frames(stream)
    if duration is None and container.duration and (count or not stream.frames):
        duration = container.duration / av.time_base
    if duration is not None and stream.duration is None and "matroska" in container.format.name:
        begin = float((stream.start_time or 0) * (fraction_or_none(stream.time_base) or 0))
        duration -= begin if 0 < begin < duration else 0  # FFmpeg writes the end time
    hidden_count = left_out_of_table(video)[0]
    if count is not None:
        count -= hidden_count
    if count is None and duration is not None:
        count = max(round(duration * rate), 1)
    return SourceFacts(
        path=video.path,
        container=container.format.name,
        codec=stream.codec_context.name,
        time_base=fraction_or_none(stream.time_base) or Fraction(1, av.time_base),
        average_frame_rate=rate,
        frame_count_estimate=count,
        duration_seconds=duration,
        size=(height, width) if (height := stream.height) and (width := stream.width) else None,
        sample_bytes=_sample_bytes(stream.codec_context.pix_fmt),
        sample_aspect_ratio=fraction_or_none(stream.sample_aspect_ratio) or Fraction(1),
        hidden_count=hidden_count,
        interlaced=stream.codec_context.field_order in _FIELD_ORDERS_INTERLACED,
        has_alpha_beside=stream.metadata.get("alpha_mode", "0") != "0",
        chroma_location=read_chroma_location(stream.codec_context.name, stream.codec_context.extradata),
        audio_stream_count=len(container.streams.audio),
        audio_codec=_decoder_of_sound(container),
        subtitle_stream_count=len(container.streams.subtitles),
        metadata=dict(container.metadata),
    )


def _sample_bytes(source_format: str | None) -> int:
    return 1 if source_format is None else layout_of(source_format).format.dtype.itemsize


def _decoder_of_sound(container: InputContainer) -> str | None:
    # PyAV's stubs do not say that a stream of an unknown codec has no context.
    contexts: list[AudioCodecContext | None] = [
        stream.codec_context for stream in container.streams.audio[:1]
    ]
    return next((context.name for context in contexts if context is not None), None)
