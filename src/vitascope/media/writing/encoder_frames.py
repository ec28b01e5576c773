"""From our planes to the ``av.VideoFrame`` an encoder is fed with: one copy, and swscale only where layouts differ.

From planes on the GPU to the frames that NVENC is fed with, without a copy where they lie as it wants them.

Checked against stand-ins for the encoder: it has never run on one. See ``nvenc``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

import av
import numpy as np
import numpy.typing as npt
from av.packet import Packet
from av.video.format import VideoFormat
from av.video.frame import CudaContext
from av.video.plane import VideoPlane
from av.video.reformatter import Interpolation, VideoReformatter
from av.video.stream import VideoStream

from vitascope.errors import OutputError
from vitascope.frames import PIXEL_FORMATS, ColorSpec, Frame, Plane, YuvFormat
from vitascope.gpu.kernels.cuda_module import is_on_gpu, wait_until_ready

__all__ = ["FramePacker", "NvencFramePacker", "NvencStreamEncoder", "scale_alpha"]


_SWSCALE_FLAGS = (
    Interpolation.BICUBIC
    | Interpolation.ACCURATE_RND
    | Interpolation.FULL_CHR_H_INT
    | Interpolation.FULL_CHR_H_INP
)
_SWSCALE_MATRICES = {"bt601": 5, "bt709": 1, "bt2020": 9}
_LIMITED, _FULL = 1, 2  # AVCOL_RANGE_MPEG, AVCOL_RANGE_JPEG


class FramePacker:
    """Builds the encoder's frames; keeps swscale's context between them.

    Args:
        pixel_format: FFmpeg's format that the encoder is fed with: planar YUV with or without alpha, grey, RGB(A).
        color: Colour of the frames that come in.
        full_range: Range of the frames that go out (pictures in RGB are always full).
        rotation_degrees: Clockwise turn applied to the pixels, for containers that cannot say it: 0, 90, 180, 270.
    """

    def __init__(
        self, pixel_format: str, *, color: ColorSpec, full_range: bool, rotation_degrees: int = 0
    ) -> None:
        self._target = pixel_format
        self._target_format = VideoFormat(pixel_format)
        self._has_alpha = any(component.is_alpha for component in self._target_format.components)
        self._color = color
        self._full_range = full_range
        self._turns = -(rotation_degrees // 90)  # np.rot90 counts counterclockwise
        self._reformatter = VideoReformatter()
        self._luma_table: npt.NDArray[Any] | None = None

    def pack(self, frame: Frame, alpha: Plane | None = None) -> av.VideoFrame:
        """Copy a frame's planes, converted as needed.

        Args:
            frame: Any of ``frames.PIXEL_FORMATS``; planes may be strided. Read-only yuv420p planes that lie one behind
                the other in one memory are not copied, but held.
            alpha: uint8 ``[H, W]`` with 255 opaque, or uint16 ``[H, W]`` with 65535 opaque; opaque when omitted.

        Returns:
            A frame in the encoder's pixel format, without time.

        Raises:
            OutputError: The pixel format has no alpha but alpha came, the alpha plane has another size, or the planes
                are on the GPU.
        """
        if is_on_gpu(frame.planes[0]):
            raise OutputError(
                f"frame {frame.index} is on the GPU, and this encoder takes host memory; copy it down first"
            )
        if alpha is not None:
            if not self._has_alpha:
                raise OutputError(f"the output's pixel format {self._target} has no alpha plane")
            if alpha.shape != frame.planes[0].shape:
                raise OutputError(f"alpha of shape {alpha.shape} beside a picture of {frame.planes[0].shape}")
        planes, source = frame.planes, frame.format
        if self._turns:
            planes, source = self._rotated(planes, source)
            alpha = np.rot90(alpha, self._turns) if alpha is not None else None
        if self._target.startswith("gray"):
            packed = self._pack_grey(planes[0], source)
        elif self._target_format.is_rgb:
            packed = self._pack_rgb(planes, source, alpha)
        elif self._has_alpha:
            packed = self._pack_yuv_with_alpha(planes, source, alpha)
        else:
            packed = self._convert(_fill(planes, source.name), self._target)
        return packed

    def _convert(self, picture: av.VideoFrame, name: str) -> av.VideoFrame:
        """Change layout, depth or chroma resolution; the matrix stays, the range only changes if it has to."""
        source_range = _FULL if self._color.full_range else _LIMITED
        target_range = _FULL if self._full_range else _LIMITED
        if picture.format.name == name and source_range == target_range:
            return picture
        matrix = _SWSCALE_MATRICES[self._color.matrix]
        return self._reformatter.reformat(
            picture,
            format=name,
            src_colorspace=matrix,
            dst_colorspace=matrix,
            interpolation=Interpolation(_SWSCALE_FLAGS),
            src_color_range=source_range,
            dst_color_range=target_range,
        )

    def _pack_yuv_with_alpha(
        self, planes: tuple[Plane, ...], source: YuvFormat, alpha: Plane | None
    ) -> av.VideoFrame:
        colour_name = self._target.replace("yuva", "yuv")
        if source.name != colour_name or self._color.full_range != self._full_range:
            planes = _planes_of(self._convert(_fill(planes, source.name), colour_name))
        bits = self._target_format.components[0].bits
        return _fill((*planes, _alpha_plane(alpha, planes[0].shape, bits)), self._target)

    def _pack_rgb(self, planes: tuple[Plane, ...], source: YuvFormat, alpha: Plane | None) -> av.VideoFrame:
        picture = self._reformatter.reformat(
            _fill(planes, source.name),
            format=self._target,
            src_colorspace=_SWSCALE_MATRICES[self._color.matrix],
            dst_colorspace=_SWSCALE_MATRICES[self._color.matrix],
            interpolation=Interpolation(_SWSCALE_FLAGS),
            src_color_range=_FULL if self._color.full_range else _LIMITED,
            dst_color_range=_FULL,
        )
        if self._has_alpha:
            bits = self._target_format.components[0].bits
            dtype = np.dtype(np.uint8 if bits == 8 else ">u2")
            rgba = _samples(picture.planes[0], dtype, 4)
            rgba[..., 3] = _alpha_plane(alpha, planes[0].shape, bits)
        return picture

    def _pack_grey(self, luma: Plane, source: YuvFormat) -> av.VideoFrame:
        bits = self._target_format.components[0].bits
        target = av.VideoFrame(luma.shape[1], luma.shape[0], self._target)
        dtype = np.dtype(np.uint8 if bits == 8 else ">u2" if self._target.endswith("be") else "<u2")
        if self._luma_table is None:
            self._luma_table = _luma_table(source, bits, self._color.full_range, self._full_range).astype(
                dtype
            )
        _samples(target.planes[0], dtype, 1)[..., 0] = self._luma_table[luma >> source.sample_shift]
        return target

    def _rotated(self, planes: tuple[Plane, ...], source: YuvFormat) -> tuple[tuple[Plane, ...], YuvFormat]:
        if self._turns % 2 and source.chroma_shift_x != source.chroma_shift_y:
            # 4:2:2 turned a quarter is 4:4:0, which no encoder takes.
            full = PIXEL_FORMATS[source.name.replace("422", "444")]
            picture = self._reformatter.reformat(
                _fill(planes, source.name), format=full.name, interpolation=Interpolation(_SWSCALE_FLAGS)
            )
            planes, source = _planes_of(picture), full
        return tuple(np.rot90(plane, self._turns) for plane in planes), source


def scale_alpha(alpha: Plane, bits: int) -> Plane:
    """Rescale a full-range alpha plane to another depth, so that opaque stays opaque.

    Args:
        alpha: uint8 with 255 opaque, or uint16 with 65535 opaque.
        bits: 8 to 16; the result is uint8 for 8, else uint16, with ``2**bits - 1`` opaque.

    Raises:
        OutputError: Another dtype.
    """
    if alpha.dtype not in (np.uint8, np.uint16):
        raise OutputError(f"alpha of dtype {alpha.dtype}; it must be uint8 or uint16")
    source_max, target_max = int(np.iinfo(alpha.dtype).max), (1 << bits) - 1
    if source_max == target_max:
        return alpha
    dtype = np.uint8 if bits == 8 else np.uint16
    codes = np.arange(source_max + 1, dtype=np.uint64)
    table = ((codes * target_max * 2 + source_max) // (2 * source_max)).astype(dtype)
    scaled: Plane = table[alpha]
    return scaled


def _alpha_plane(alpha: Plane | None, shape: tuple[int, ...], bits: int) -> Plane:
    if alpha is None:
        return np.full(shape, (1 << bits) - 1, np.uint8 if bits == 8 else np.uint16)
    return scale_alpha(alpha, bits)


def _luma_table(source: YuvFormat, bits: int, full_in: bool, full_out: bool) -> npt.NDArray[Any]:
    """Code values of grey for every luma code (H.273 equations for limited range, clipped)."""

    def black_and_span(depth: int, full: bool) -> tuple[int, int]:
        return (0, (1 << depth) - 1) if full else (16 << (depth - 8), 219 << (depth - 8))

    black_in, span_in = black_and_span(source.bit_depth, full_in)
    black_out, span_out = black_and_span(bits, full_out)
    codes = np.arange(1 << source.bit_depth)
    grey = np.rint((codes - black_in) * (span_out / span_in) + black_out)
    table: npt.NDArray[np.uint16] = np.clip(grey, 0, (1 << bits) - 1).astype(np.uint16)
    return table


def _fill(planes: tuple[Plane, ...], name: str) -> av.VideoFrame:
    if name == "yuv420p" and _are_one_picture(planes):
        luma = planes[0]
        height, width = luma.shape
        # The encoder reads the planes where they are, and holds them until it has; a copy would cost it more.
        whole = np.lib.stride_tricks.as_strided(luma, (height * 3 // 2, width), (width, 1), writeable=False)
        return av.VideoFrame.from_numpy_buffer(whole, name)
    picture = av.VideoFrame(planes[0].shape[1], planes[0].shape[0], name)
    for target, plane in zip(picture.planes, planes, strict=True):
        samples = _samples(target, plane.dtype, plane.shape[2] if plane.ndim == 3 else 1)
        samples[...] = plane if plane.ndim == 3 else plane[..., None]
    return picture


def _are_one_picture(planes: tuple[Plane, ...]) -> bool:
    """True for 8-bit 4:2:0 planes that lie one behind the other in one memory, and that nobody may change."""
    luma = planes[0]
    height, width = luma.shape
    if luma.base is None or width % 2 or height % 4:  # PyAV counts the rows of all planes in sixths
        return False
    address = luma.ctypes.data
    for plane in planes:
        if (
            plane.base is not luma.base
            or plane.flags.writeable
            or not plane.flags.c_contiguous
            or plane.ctypes.data != address
        ):
            return False
        address += plane.nbytes
    return True


def _planes_of(picture: av.VideoFrame) -> tuple[Plane, ...]:
    dtype = np.dtype(np.uint8 if picture.format.components[0].bits == 8 else np.uint16)
    return tuple(_samples(plane, dtype, 1)[..., 0] for plane in picture.planes)


def _samples(plane: VideoPlane, dtype: np.dtype[Any], channels: int) -> Plane:
    """A writable view ``[H, W, channels]`` of a plane, without the padding at the end of its rows."""
    # PyAV's stubs do not declare the buffer protocol that its planes have.
    memory: Plane = np.frombuffer(cast("memoryview[int]", plane), dtype)
    row = plane.line_size // dtype.itemsize
    width = plane.width * channels
    return memory.reshape(plane.height, row)[:, :width].reshape(plane.height, plane.width, channels)


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
