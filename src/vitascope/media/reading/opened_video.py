"""A container that is open for decoding: its video stream is chosen, its decoder told where and how to work."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import av
from av.codec.hwaccel import HWAccel
from av.container import InputContainer
from av.stream import Discard, Disposition
from av.video.stream import VideoStream

from vitascope.errors import InputError, MissingDependencyError, UsageError
from vitascope.media.av_errors import describe_av_error, silence_libav
from vitascope.media.reading.unreadable import explain_unreadable

if TYPE_CHECKING:
    from av.packet import Packet

__all__ = ["Decoding", "OpenedVideo", "on_cuda_device", "open_container"]

_NOT_A_VIDEO = Disposition.attached_pic | Disposition.timed_thumbnails


@dataclass(frozen=True, slots=True)
class Decoding:
    """Where and how a stream is decoded."""

    threads: int = 0
    """Decoder threads on the CPU; 0 means one a core. The GPU's decoder is driven by one."""
    cuda_device: int | None = None
    """CUDA device whose decoder is tried; None for the CPU."""


def open_container(path: Path, *, hwaccel: HWAccel | None = None) -> InputContainer:
    """Open a media file.

    Args:
        path: The file.
        hwaccel: Where to decode; None for the CPU.

    Raises:
        InputError: It does not exist, is empty, is not finished, or is not media; the message says which.
    """
    silence_libav()
    try:
        # The prefix keeps names such as "talk: part 1.mp4" from being read as a protocol; pattern_type keeps a
        # "%03d" in a name literal; a tag in a foreign encoding must not make a video unreadable.
        return av.open(
            f"file:{path}",
            "r",
            options={"pattern_type": "none"},
            metadata_errors="replace",
            hwaccel=hwaccel,
        )
    except (av.FFmpegError, OSError) as error:
        reason = explain_unreadable(path) or describe_av_error(error)
        raise InputError(f"{path}: cannot open it: {reason}") from error


class OpenedVideo:
    """One container and its video stream. Not thread-safe, but may be used by one thread after another.

    Decoding on the CPU uses frame threads where the codec has them, else slice threads (``thread_type="AUTO"``).
    PyAV's default, slice threads alone, keeps a single core busy on the one-slice-a-picture H.264 that most encoders
    write. The known hang of ``AUTO`` on an early break (PyAV issue 1861) needs FFmpeg's log callback to wait for the
    GIL while closing the decoder holds it; ``silence_libav`` takes the callback away, and tests close readers early in
    a loop. On the GPU one thread feeds the decoder: more would each hold back a picture and win nothing.

    Args:
        path: The file.
        decoding: Where and how to decode.

    Raises:
        InputError: The file cannot be opened or holds no video that this FFmpeg can decode.
        MissingDependencyError: A CUDA device is asked for without CuPy.
        UsageError: There is no such CUDA device.
    """

    def __init__(self, path: Path, decoding: Decoding) -> None:
        self.path = path
        self._decoding = decoding
        self._container: InputContainer | None = None
        self.reopen()

    def reopen(self) -> None:
        """Open the file again, at its beginning.

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
            self.stream: VideoStream = self._choose_stream(container)
        except BaseException:
            self.close()
            raise
        for other in container.streams:
            # Where no table lists the packets, those of sound tell a pause from a part that cannot be read.
            if other is not self.stream and (self.lists_packets or other.type == "video"):
                other.discard = Discard.all
        self.stream.thread_type = "AUTO" if on_cpu else "SLICE"
        self.stream.thread_count = decoding.threads if on_cpu else 1

    @property
    def lists_packets(self) -> bool:
        """True for MP4 and MOV, whose index says where each packet is."""
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
        if container is not None:
            container.close()

    def decode(self, packet: Packet[VideoStream] | None) -> list[av.VideoFrame]:
        """Decode one packet; None and the empty packet that ends ``demux`` flush.

        Returns:
            Pictures in presentation order, time base set: software pictures, or CUDA ones that stay on the device.

        Raises:
            FFmpegError: The packet could not be decoded.
            InputError: There is no memory left for the picture.
        """
        try:
            pictures = self.stream.decode(packet)
        except av.error.EOFError:
            return []  # flushed before
        except MemoryError as error:
            where = (
                "host" if self._decoding.cuda_device is None else f"CUDA device {self._decoding.cuda_device}"
            )
            raise InputError(
                f"{self.path}: no memory of the {where} is left for the next picture; keep fewer frames, or use "
                "fewer decoder sessions or a smaller buffer for them"
            ) from error
        for picture in pictures:
            if picture.time_base is None:  # flushed without a packet
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
    """Make a CUDA device and its primary context, the one that CuPy and PyTorch share, current in this thread.

    Raises:
        MissingDependencyError: CuPy is not installed.
        UsageError: There is no such device.
    """
    try:
        import cupy
    except ImportError as error:
        raise MissingDependencyError(
            "decoding on the GPU needs CuPy: pip install 'vitascope[cuda]'"
        ) from error
    runtime: Any = cupy.cuda.runtime
    try:
        count = runtime.getDeviceCount()
    except runtime.CUDARuntimeError as error:
        raise UsageError(f"CUDA device {device}: no GPU can be used here ({error})") from error
    if not 0 <= device < count:
        raise UsageError(f"CUDA device {device}: this machine has devices 0 to {count - 1}")
    with cupy.cuda.Device(device):
        runtime.free(0)  # creates the context if nobody has yet
        yield


def _nvdec() -> HWAccel:
    # current_ctx takes the thread's context. PyAV's default makes FFmpeg set flags on the primary context, which the
    # driver refuses once another library has created it.
    return HWAccel(
        "cuda",
        allow_software_fallback=True,
        options={"primary_ctx": "0", "current_ctx": "1"},
        is_hw_owned=True,
    )
