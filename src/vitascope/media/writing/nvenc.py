"""The GPU's video encoder: whether it works here, what it is told, and the pictures that it is fed with.

Written from FFmpeg's and NVIDIA's documentation and checked against a stand-in: the machines that this code was
developed on have no NVENC, so it has never run on hardware.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, cast

import av
import numpy as np
from av.codec.codec import UnknownCodecError
from av.packet import Packet
from av.video.frame import CudaContext
from av.video.stream import VideoStream

from vitascope.errors import OutputError
from vitascope.frames import Frame, Plane
from vitascope.gpu.kernels.cuda_module import is_on_gpu, wait_until_ready
from vitascope.media.libav import describe_av_error, silence_libav
from vitascope.media.writing.parallel_encoder import StreamEncoder

if TYPE_CHECKING:
    from av.video.codeccontext import VideoCodecContext

    from vitascope.media.planes import FramePacker
    from vitascope.media.writing.encoding import Encoding

__all__ = [
    "NVENC_ENCODERS",
    "Hardware",
    "NvencFramePacker",
    "NvencStreamEncoder",
    "on_hardware",
    "why_nvenc_fails",
]

Hardware = Literal["cpu", "nvenc", "auto"]

NVENC_ENCODERS: Mapping[str, str] = MappingProxyType(
    {"h264": "h264_nvenc", "h265": "hevc_nvenc", "av1": "av1_nvenc"}
)
"""Codec to FFmpeg's encoder."""
_PIXEL_FORMATS = {
    ("h264", "yuv420p"): "nv12",
    ("h265", "yuv420p"): "nv12",
    ("h265", "yuv420p10le"): "p010le",
    ("av1", "yuv420p"): "nv12",
    ("av1", "yuv420p10le"): "p010le",
}
"""Codec and the CPU encoder's pixel format to NVENC's; what is missing here NVENC does not take on every GPU."""
_PRESET_COUNT = 7
"""p1 is the fastest, p7 the best."""
_CQ_MAX = 51
_CRF_MAX = {"h264": 51, "h265": 51, "av1": 63}
_TRIAL_SIZE = 256
"""Width and height of the trial picture; all generations take it for every codec."""


def on_hardware(encoding: Encoding, hardware: Hardware, *, preset_index: int, preset_count: int) -> Encoding:
    """Move an encoding to the GPU's encoder, if that is wished for and possible.

    Args:
        encoding: The CPU's.
        hardware: ``cpu`` leaves it alone; ``auto`` too, where NVENC cannot take it.
        preset_index: Place of the CPU's preset among its presets, 0 the fastest.
        preset_count: The number of its presets.

    Raises:
        OutputError: ``nvenc`` is asked for and cannot be had; the message says what is missing.
    """
    if hardware == "cpu":
        return encoding
    codec = encoding.codec
    encoder, pixel_format = (
        NVENC_ENCODERS.get(codec),
        _PIXEL_FORMATS.get((codec, encoding.pixel_format.replace("nv12", "yuv420p"))),
    )
    if encoder is None:
        reason: str | None = f"it writes {', '.join(NVENC_ENCODERS)}, not {codec}"
    elif pixel_format is None:
        reason = f"it takes no {encoding.pixel_format} for {codec}"
    else:
        reason = why_nvenc_fails(encoder)
    if reason is not None or encoder is None or pixel_format is None:
        if hardware == "nvenc":
            raise OutputError(f"NVENC was asked for, and cannot be used: {reason}; leave it to the CPU")
        return encoding
    crf = float(encoding.options["crf"])
    step = round(preset_index * (_PRESET_COUNT - 1) / max(preset_count - 1, 1))
    options = {
        "rc": "vbr",
        "cq": str(max(round(crf * _CQ_MAX / _CRF_MAX[codec]), 1)),  # 0 would mean automatic
        "preset": f"p{1 + step}",
        "tune": "hq",
    }
    return replace(
        encoding,
        encoder=encoder,
        pixel_format=pixel_format,
        options=MappingProxyType(options),
        parameters=MappingProxyType({}),
        parallel_encoders=1,
    )


@lru_cache(maxsize=8)
def why_nvenc_fails(encoder: str) -> str | None:
    """Encode one grey picture; asked once in a process.

    Args:
        encoder: One of ``NVENC_ENCODERS``' values.

    Returns:
        The reason why it does not work; None when it does.
    """
    silence_libav()
    try:
        context = cast("VideoCodecContext", av.CodecContext.create(encoder, "w"))
    except UnknownCodecError:
        return f"this FFmpeg build has no {encoder}"
    grey = np.full((_TRIAL_SIZE * 3 // 2, _TRIAL_SIZE), 128, np.uint8)
    try:
        context.width = context.height = _TRIAL_SIZE
        context.pix_fmt, context.time_base, context.framerate = "nv12", Fraction(1, 25), Fraction(25)
        picture = av.VideoFrame.from_ndarray(grey, format="nv12")
        picture.pts, picture.time_base = 0, Fraction(1, 25)
        packets = [*context.encode(picture), *context.encode(None)]
    except (av.FFmpegError, OSError, ValueError) as error:
        return (
            f"{encoder} does not start on this machine ({describe_av_error(error)}): "
            "it has no GPU with NVENC, or its driver is too old"
        )
    return None if packets else f"{encoder} gave no packet for a trial picture"


class NvencStreamEncoder(StreamEncoder):
    """The encoder of a stream, opened by its first picture: that says whether pictures come from the GPU."""

    def encode(self, picture: av.VideoFrame) -> Iterable[Packet[VideoStream]]:
        """See ``PictureEncoder``."""
        context = self._stream.codec_context
        if not context.is_open:
            # From host memory the encoder uploads by itself; a CUDA picture brings its own memory pool along.
            context.pix_fmt = picture.format.name
        return super().encode(picture)


class NvencFramePacker:
    """Wraps NV12 and P010 planes on the GPU as CUDA pictures, without a copy where they lie as NVENC wants them.

    Planes in host memory are copied.

    The encoder reads planes on the CuPy stream that is current at the first call, and holds them until it is done:
    a buffer that is written to again before its packet has come out spoils that picture.

    Args:
        host_packer: For frames in host memory.
        pixel_format: ``nv12`` or ``p010le``.
        rotation_degrees: Clockwise turn applied to the pixels: 0, 90, 180, 270.
    """

    def __init__(self, host_packer: FramePacker, pixel_format: str, *, rotation_degrees: int = 0) -> None:
        self._host_packer = host_packer
        self._target = pixel_format
        self._turns = -(rotation_degrees // 90)  # rot90 counts counterclockwise
        self._context: CudaContext | None = None

    def pack(self, frame: Frame, alpha: Plane | None = None) -> av.VideoFrame:
        """A picture in the encoder's pixel format, or a CUDA picture of it, without time.

        Args:
            frame: On the GPU: in the encoder's pixel format, even width and height. In host memory: any.
            alpha: NVENC has none; must be None.

        Raises:
            OutputError: A frame on the GPU has another format, or alpha came.
        """
        if not is_on_gpu(frame.planes[0]) or alpha is not None:
            return self._host_packer.pack(frame, alpha)
        import cupy

        if frame.format.name != self._target:
            raise OutputError(
                f"frame {frame.index} is {frame.format.name} on the GPU; its encoder takes {self._target} there"
            )
        stream: Any = cupy.cuda.get_current_stream()
        wait_until_ready(frame)
        luma: Any
        chroma: Any
        luma, chroma = frame.planes
        device = int(luma.device.id)
        if self._turns:
            luma, chroma = cupy.rot90(luma, self._turns), cupy.rot90(chroma, self._turns)
        if not _is_one_allocation(luma, chroma):
            luma, chroma = _joined(luma, chroma)
        if self._context is None:
            # PyAV hands FFmpeg a stream of device 0 only.
            handle = int(stream.ptr) if device == 0 else 0
            self._context = CudaContext(
                device, primary_ctx=False, current_ctx=True, cuda_stream=handle or None
            )
        if device != 0:
            stream.synchronize()
        planes = (_Unsynchronized(luma), _Unsynchronized(chroma))
        return av.VideoFrame.from_dlpack(
            planes, format=self._target, device_id=device, cuda_context=self._context
        )


class _Unsynchronized:
    """A CuPy array that hands itself over as it is: the encoder works on the stream that wrote it."""

    def __init__(self, array: Any) -> None:
        self._array = array

    def __dlpack__(self, *, stream: int | None = None) -> Any:
        return self._array.__dlpack__(stream=-1 if stream is None else stream)  # -1: do not synchronise

    def __dlpack_device__(self) -> Any:
        return self._array.__dlpack_device__()


def _is_one_allocation(luma: Any, chroma: Any) -> bool:
    """NVENC takes one pointer and one pitch: the chroma rows must follow the luma rows."""
    pitch = luma.strides[0]
    return bool(
        chroma.data.ptr == luma.data.ptr + luma.shape[0] * pitch
        and chroma.strides[0] == pitch
        and luma.strides[1] == luma.itemsize
        and chroma.strides[1:] == (2 * luma.itemsize, luma.itemsize)
    )


def _joined(luma: Any, chroma: Any) -> tuple[Any, Any]:
    import cupy

    height, width = luma.shape
    whole = cupy.empty((height * 3 // 2, width), luma.dtype)
    target = whole[:height], whole[height:].reshape(height // 2, width // 2, 2)
    target[0][...] = luma
    target[1][...] = chroma
    return target
