"""From planes on the GPU to the frames that NVENC is fed with, without a copy where they lie as it wants them.

Checked against stand-ins for the encoder: it has never run on one. See ``nvenc``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import av
from av.packet import Packet
from av.video.frame import CudaContext
from av.video.stream import VideoStream

from vitascope.errors import OutputError
from vitascope.frames import Frame, Plane
from vitascope.gpu.kernels.cuda_module import is_on_gpu, wait_until_ready
from vitascope.media.encoder_frames import FramePacker

__all__ = ["NvencFramePacker", "NvencStreamEncoder"]


class NvencStreamEncoder:
    """The encoder of a stream, opened by its first picture: that says whether pictures come from the GPU.

    Args:
        stream: Of an output container, its encoder NVENC's and not yet open.
    """

    def __init__(self, stream: VideoStream) -> None:
        self._stream = stream

    def encode(self, picture: av.VideoFrame) -> Iterable[Packet[VideoStream]]:
        """See ``PictureEncoder``."""
        context = self._stream.codec_context
        if not context.is_open:
            # From host memory the encoder uploads by itself; a CUDA picture brings its own memory pool along.
            context.pix_fmt = picture.format.name
        return self._stream.encode(picture)

    def flush(self) -> Iterable[Packet[VideoStream]]:
        """See ``PictureEncoder``."""
        return self._stream.encode(None)

    def close(self) -> None:
        """The container owns the encoder."""


class NvencFramePacker:
    """Wraps NV12 and P010 planes on the GPU as CUDA pictures, and copies planes in host memory.

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
