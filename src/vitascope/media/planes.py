"""Converts between PyAV's pictures and our planes: views if the layouts agree, else swscale or a matrix.

A decoder's picture becomes planes (``PlaneReader``) in one of four ways, chosen by the pixel format alone:

- *view*: the format is one of ``frames.PIXEL_FORMATS``, or differs only in name (``yuvj420p``) or in an alpha plane
that is dropped (``yuva444p10le``): NumPy views onto the decoder's memory, without a copy.
- *grey*: a view of the luma, and constant chroma.
- *yuv*: another subsampling, depth or packing: swscale to the nearest format that keeps all information.
- *rgb*: BT.709 full range 4:4:4, by the exact matrix (swscale's conversion is off by half a code value in chroma).

A picture in a GPU decoder's memory becomes CuPy views (``planes_on_gpu``), without a copy or a wait.

``FramePacker`` turns planes into the encoder's input picture with one copy, and with swscale only if the layouts
differ. Pictures for NVENC are in ``nvenc``.

RGB pictures of live sinks and sources are converted by OpenCV (``planes_of``, ``rgb_of``): within one or two codes of
``kernels.rgb``, and much faster.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any, Literal, cast

import av
import cv2
import numpy as np
import numpy.typing as npt
from av.video.format import VideoFormat
from av.video.plane import VideoPlane
from av.video.reformatter import ColorRange, Colorspace, Interpolation, VideoReformatter

from vitascope.errors import OutputError
from vitascope.frames import PIXEL_FORMATS, ColorSpec, DeviceEvent, Frame, Plane, YuvFormat
from vitascope.gpu.kernels.color import rgb_from_yuv, yuv_from_rgb
from vitascope.gpu.kernels.cuda_module import is_on_gpu
from vitascope.gpu.memory.pinned_pool import shared_pool

RGB_COLOR = ColorSpec(
    matrix="bt709",
    full_range=True,
    chroma_location="center",
    primaries=1,
    transfer=13,
    matrix_code=1,
)
"""Colour of the planes read from RGB sources: BT.709 primaries and matrix, sRGB transfer (H.273 code 13), full
range."""

_SWSCALE_FLAGS = (
    Interpolation.BICUBIC
    | Interpolation.ACCURATE_RND
    | Interpolation.FULL_CHR_H_INT
    | Interpolation.FULL_CHR_H_INP
)
_SWSCALE_MATRICES = {"bt601": 5, "bt709": 1, "bt2020": 9}
_SUBSAMPLING = {(0, 0): "444", (1, 0): "422", (1, 1): "420", (2, 0): "422", (0, 1): "444", (2, 2): "420"}
_READY_EVENTS = 64  # usually more than the frames of one video in flight


@dataclass(frozen=True, slots=True)
class Layout:
    """How to read one source pixel format."""

    format: YuvFormat
    """The layout of the result."""
    way: Literal["view", "grey", "yuv", "rgb"]
    intermediate: str | None = None
    """swscale's target before the planes are read; None if the decoder's memory is used directly."""


def has_alpha(source_format: str) -> bool:
    """True for an FFmpeg pixel format with alpha, which ``layout_of`` drops.

    Args:
        source_format: FFmpeg's name; palettes count as opaque.

    Raises:
        ValueError: FFmpeg does not know the format.
    """
    return any(component.is_alpha for component in VideoFormat(source_format).components)


@lru_cache(maxsize=64)
def layout_of(source_format: str) -> Layout:
    """Choose the nearest of ``PIXEL_FORMATS`` for an FFmpeg pixel format.

    The nearest format never loses chroma resolution and keeps the bit depth up to 12: 9 bits become 10; 14, 16 and
    float become 12. Alpha is dropped.

    Args:
        source_format: FFmpeg's name.

    Raises:
        ValueError: FFmpeg does not know the format.
    """
    if source_format in PIXEL_FORMATS:
        return Layout(PIXEL_FORMATS[source_format], "view")
    renamed = source_format.replace("yuvj", "yuv").replace("yuva", "yuv")
    if renamed in PIXEL_FORMATS:
        return Layout(PIXEL_FORMATS[renamed], "view")
    description = VideoFormat(source_format, 64, 64)
    depth = max((component.bits for component in description.components), default=8)
    if source_format.startswith("bayer") and "16" in source_format:
        depth = 16  # FFmpeg counts a mosaic's bits per channel, not per sample
    kept_depth = 8 if depth <= 8 else 10 if depth <= 10 else 12
    suffix = "" if kept_depth == 8 else f"{kept_depth}le"
    # Bayer and palette pictures are RGB; XYZ can only become YUV through RGB.
    if description.is_rgb or description.has_palette or source_format.startswith(("xyz", "bayer")):
        return Layout(PIXEL_FORMATS["yuv444p" + suffix], "rgb", "rgb24" if kept_depth == 8 else "rgb48le")
    if len([c for c in description.components if not c.is_alpha]) == 1:
        grey = "gray" + suffix
        return Layout(PIXEL_FORMATS["yuv420p" + suffix], "grey", None if source_format == grey else grey)
    shifts = (
        _log2_of_ratio(64, description.chroma_width(64)),
        _log2_of_ratio(64, description.chroma_height(64)),
    )
    target = PIXEL_FORMATS[f"yuv{_SUBSAMPLING.get(shifts, '444')}p{suffix}"]
    return Layout(target, "yuv", target.name)


def pixel_format_name(picture: av.VideoFrame) -> str:
    """FFmpeg's name of a picture's sample layout, in any memory: ``nv12`` for a CUDA picture in NV12."""
    return picture.format.name if picture.sw_format is None else picture.sw_format.name


class PlaneReader:
    """Reads the planes of decoded frames; keeps swscale's context and grey chroma between frames.

    Args:
        grey_behind_alpha: Blend pictures that have alpha with grey, instead of dropping the alpha.
    """

    def __init__(self, *, grey_behind_alpha: bool = False) -> None:
        self._grey_behind_alpha = grey_behind_alpha
        self._reformatter = VideoReformatter()
        self._neutral: dict[tuple[int, int, int], Plane] = {}

    def read(self, frame: av.VideoFrame, *, target: YuvFormat) -> tuple[Plane, ...]:
        """The frame's planes in ``target``.

        Args:
            frame: A decoded software frame.
            target: The layout to return. If the frame's own nearest layout differs (a stream that changes its pixel
                format, a folder of mixed images), swscale converts.

        Returns:
            Read-only arrays as described in ``Frame.planes``. Views share the decoder's memory and keep it allocated.
            The decoder never writes to it again, but still uses it as a reference picture, so nobody else may write
            to it.
        """
        layout = layout_of(frame.format.name)
        if layout.format != target and layout.way != "rgb":
            layout = Layout(target, "yuv", target.name)
        if layout.way == "rgb" and target.chroma_shift_x:
            frame = self._reformatter.reformat(
                frame,
                format=target.name,
                interpolation=_SWSCALE_FLAGS,
                dst_colorspace=Colorspace.ITU709,
                dst_color_range=ColorRange.JPEG,
            )
            layout = Layout(target, "view")
        if layout.way == "rgb":
            return self._from_rgb(frame, layout.intermediate or "rgb24", target)
        if layout.intermediate is not None:
            frame = self._reformat(frame, layout.intermediate)
        if any(plane.line_size < 0 for plane in frame.planes):
            frame = _upright_copy(frame)
        if layout.way == "grey":
            luma = _view(frame.planes[0], target.dtype)
            return (luma, *self._neutral_chroma(target, luma.shape))
        if target.semi_planar:
            chroma = _view(frame.planes[1], target.dtype, samples=2)
            return (_view(frame.planes[0], target.dtype), chroma)
        planes = tuple(_view(plane, target.dtype) for plane in frame.planes[:3])
        if self._grey_behind_alpha and frame.format.name.startswith("yuva"):
            return _before_grey(planes, _view(frame.planes[3], target.dtype), target)
        return planes

    def _reformat(self, frame: av.VideoFrame, name: str) -> av.VideoFrame:
        # Give both sides the same range explicitly: swscale takes "yuvj" and grey as full and all untagged formats as
        # limited, and would convert between them.
        full = frame.color_range == ColorRange.JPEG or frame.format.name.startswith(
            ("yuvj", "gray", "ya", "mono")
        )
        color_range = ColorRange.JPEG if full else ColorRange.MPEG
        return self._reformatter.reformat(
            frame,
            format=name,
            interpolation=_SWSCALE_FLAGS,
            src_color_range=color_range,
            dst_color_range=color_range,
        )

    def _neutral_chroma(self, target: YuvFormat, luma_shape: Sequence[int]) -> tuple[Plane, Plane]:
        width, height = target.chroma_size(luma_shape[1], luma_shape[0])
        key = (width, height, target.bit_depth)
        if key not in self._neutral:
            plane = np.full((height, width), 1 << (target.bit_depth - 1), target.dtype)
            plane.flags.writeable = False
            self._neutral[key] = plane
        return self._neutral[key], self._neutral[key]

    def _from_rgb(self, frame: av.VideoFrame, packed: str, target: YuvFormat) -> tuple[Plane, ...]:
        rgb_frame = self._reformat(frame, packed)
        dtype = np.dtype(np.uint8 if packed == "rgb24" else np.uint16)
        rgb = _view(rgb_frame.planes[0], dtype, samples=3)
        yuv = cv2.transform(np.ascontiguousarray(rgb), _rgb_to_yuv(8 * dtype.itemsize, target.bit_depth))
        if target.dtype != dtype:
            yuv = yuv.astype(target.dtype)
        largest = (1 << target.bit_depth) - 1
        planes = []
        for plane in cv2.split(yuv):
            # cv2 saturates to the data type, not to the bit depth: Cb of pure blue is 2^n before clipping.
            clipped = plane if target.bit_depth == 8 else np.minimum(plane, target.dtype.type(largest))
            clipped.flags.writeable = False
            planes.append(clipped)
        return tuple(planes)


def _before_grey(planes: tuple[Plane, ...], alpha: Plane, target: YuvFormat) -> tuple[Plane, ...]:
    """Blend straight colours with mid-grey, which has the middle code in every plane."""
    middle, peak = 1 << (target.bit_depth - 1), (1 << target.bit_depth) - 1
    blended = []
    for plane in planes:
        share = alpha
        if plane.shape != alpha.shape:
            share = cv2.resize(alpha, plane.shape[::-1], interpolation=cv2.INTER_AREA)
        weight = share.astype(np.float32) / peak
        made = np.rint(middle + (plane.astype(np.float32) - middle) * weight).astype(target.dtype)
        made.flags.writeable = False
        blended.append(made)
    return tuple(blended)


def _rgb_to_yuv(source_depth: int, depth: int) -> npt.NDArray[np.float64]:
    """BT.709 full range (H.273 with KR = 0.2126, KB = 0.0722) as a float64 [3, 4] matrix on code values."""
    kr, kb = 0.2126, 0.0722
    luma = np.array([kr, 1 - kr - kb, kb])
    rows = np.stack(
        [luma, (np.array([0, 0, 1]) - luma) / (2 * (1 - kb)), (np.array([1, 0, 0]) - luma) / (2 * (1 - kr))]
    )
    scale = ((1 << depth) - 1) / ((1 << source_depth) - 1)
    offset = np.array([[0], [1 << (depth - 1)], [1 << (depth - 1)]], np.float64)
    return np.hstack([rows * scale, offset])


def _upright_copy(frame: av.VideoFrame) -> av.VideoFrame:
    """A copy with rows from top to bottom: raw video may be stored bottom up, with a negative row stride."""
    graph = av.filter.Graph()
    source = graph.add_buffer(
        width=frame.width, height=frame.height, format=frame.format, time_base=Fraction(1)
    )
    copy, sink = graph.add("copy"), graph.add("buffersink")
    graph.link_nodes(source, copy, sink).configure()
    graph.vpush(frame)
    return graph.vpull()


def _log2_of_ratio(luma: int, chroma: int) -> int:
    return (luma // max(chroma, 1)).bit_length() - 1


def is_cuda_picture(picture: av.VideoFrame) -> bool:
    """True if the picture's samples are in the memory of an NVIDIA GPU."""
    return picture.format.name == "cuda"


def planes_on_gpu(picture: av.VideoFrame, target: YuvFormat, *, device: int) -> tuple[Plane, ...]:
    """Create views onto the decoder's memory.

    Args:
        picture: A CUDA picture in NV12 or P010.
        target: The same format.
        device: The CUDA device of the picture.

    Returns:
        CuPy arrays: luma ``[H, W]`` and chroma ``[ceil(H / 2), ceil(W / 2), 2]``, uint8 or uint16, with rows padded
        to the decoder's pitch. They keep the picture alive. When the last one is gone, the decoder may overwrite its
        memory, even if the GPU has not finished reading.

    Raises:
        ValueError: The picture has another format.
    """
    import cupy

    layout = picture.sw_format
    if layout is None or layout.name != target.name:
        raise ValueError(f"a picture in {layout and layout.name}, where {target.name} was expected")
    luma, chroma = picture.planes
    size = target.dtype.itemsize
    width, height = target.chroma_size(picture.width, picture.height)

    def view(pointer: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> Plane:
        # Not through DLPack: there PyAV rounds the chroma of odd sizes down, and requires that the caller has waited.
        memory = cupy.cuda.UnownedMemory(pointer, shape[0] * strides[0], picture, device)
        array: Plane = cupy.ndarray(shape, target.dtype, cupy.cuda.MemoryPointer(memory, 0), strides=strides)
        return array

    return (
        view(luma.buffer_ptr, (picture.height, picture.width), (luma.line_size, size)),
        view(chroma.buffer_ptr, (height, width, 2), (chroma.line_size, 2 * size, size)),
    )


class ReadyEvents:
    """Events that complete when the decoder has written all pictures it has returned so far.

    FFmpeg copies pictures out of the decoder on the legacy default stream, whatever stream the reader uses. Events
    are reused, because CuPy holds the interpreter lock while it creates and destroys one. So a wait for an old
    picture may also wait for a later one, which was ready no earlier. For one thread.

    Args:
        device: The CUDA device.
    """

    def __init__(self, device: int) -> None:
        self._device = device
        self._events: deque[Any] = deque()

    def record(self) -> DeviceEvent:
        """Record an event after all pictures so far."""
        import cupy

        with cupy.cuda.Device(self._device):
            if len(self._events) < _READY_EVENTS:
                self._events.append(cupy.cuda.Event(disable_timing=True))
            else:
                self._events.rotate(-1)
            event: DeviceEvent = self._events[-1]
            cupy.cuda.Stream.null.record(event)
        return event


def upload(planes: tuple[Plane, ...], *, device: int) -> tuple[Plane, ...]:
    """Copy planes from host memory; any stream may read them at once."""
    import cupy

    pool = shared_pool(device)
    with cupy.cuda.Device(device):
        stream: Any = cupy.cuda.Stream(non_blocking=True)
        arrays = tuple(pool.upload(plane, stream=stream, beside=False) for plane in planes)
        stream.synchronize()
    return arrays


class FramePacker:
    """Creates input frames for the encoder; keeps swscale's context between them.

    Args:
        pixel_format: FFmpeg's format for the encoder's input: planar YUV with or without alpha, grey, RGB(A).
        color: Colour of the incoming frames.
        full_range: Range of the output frames (RGB is always full).
        rotation_degrees: Clockwise rotation applied to the pixels, for containers without a rotation tag: 0, 90, 180,
            270.
        size: (height, width) of the output frames, after rotation; sizes above the input's repeat the last row and
            column. By default the input's.
    """

    def __init__(
        self,
        pixel_format: str,
        *,
        color: ColorSpec,
        full_range: bool,
        rotation_degrees: int = 0,
        size: tuple[int, int] | None = None,
    ) -> None:
        self._target = pixel_format
        self._target_format = VideoFormat(pixel_format)
        self._has_alpha = any(component.is_alpha for component in self._target_format.components)
        self._color = color
        self._full_range = full_range
        self._turns = -(rotation_degrees // 90)  # np.rot90 counts counterclockwise
        self._size = size
        self._reformatter = VideoReformatter()
        self._luma_table: npt.NDArray[Any] | None = None

    def pack(self, frame: Frame, alpha: Plane | None = None) -> av.VideoFrame:
        """Copy a frame's planes, converted as needed.

        Args:
            frame: Any of ``frames.PIXEL_FORMATS``; planes may be strided. Read-only yuv420p planes that are
                contiguous in one block are used without a copy.
            alpha: uint8 ``[H, W]`` with 255 opaque, or uint16 ``[H, W]`` with 65535 opaque; None is opaque.

        Returns:
            A frame in the encoder's pixel format, without a time.

        Raises:
            OutputError: The pixel format has no alpha but alpha is given, the alpha plane has another size, or the
                planes are on the GPU.
        """
        if is_on_gpu(frame.planes[0]):
            raise OutputError(
                f"frame {frame.index} is on the GPU, and this encoder needs host memory; copy it down first"
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
        if self._size not in (None, planes[0].shape):
            planes, alpha = self._enlarged(planes, source, alpha)
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
        """Convert layout, depth or chroma resolution; the matrix stays, and the range changes only if necessary."""
        source_range = ColorRange.JPEG if self._color.full_range else ColorRange.MPEG
        target_range = ColorRange.JPEG if self._full_range or self._target_format.is_rgb else ColorRange.MPEG
        if picture.format.name == name and source_range == target_range:
            return picture
        matrix = _SWSCALE_MATRICES[self._color.matrix]
        return self._reformatter.reformat(
            picture,
            format=name,
            src_colorspace=matrix,
            dst_colorspace=matrix,
            interpolation=_SWSCALE_FLAGS,
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
        picture = self._convert(_fill(planes, source.name), self._target)
        if self._has_alpha:
            bits = self._target_format.components[0].bits
            dtype = np.dtype(np.uint8 if bits == 8 else ">u2")
            rgba = _view(picture.planes[0], dtype, samples=4, writeable=True)
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
        _view(target.planes[0], dtype, writeable=True)[...] = self._luma_table[luma >> source.sample_shift]
        return target

    def _rotated(self, planes: tuple[Plane, ...], source: YuvFormat) -> tuple[tuple[Plane, ...], YuvFormat]:
        if self._turns % 2 and source.chroma_shift_x != source.chroma_shift_y:
            # 4:2:2 rotated by 90 degrees is 4:4:0, which no encoder accepts.
            full = PIXEL_FORMATS[source.name.replace("422", "444")]
            picture = self._reformatter.reformat(
                _fill(planes, source.name), format=full.name, interpolation=_SWSCALE_FLAGS
            )
            planes, source = _planes_of(picture), full
        return tuple(np.rot90(plane, self._turns) for plane in planes), source

    def _enlarged(
        self, planes: tuple[Plane, ...], source: YuvFormat, alpha: Plane | None
    ) -> tuple[tuple[Plane, ...], Plane | None]:
        """Repeat the last row and column up to the output size."""
        assert self._size is not None  # otherwise not called
        height, width = self._size
        luma, *chroma = planes
        rows, columns = -(-height >> source.chroma_shift_y), -(-width >> source.chroma_shift_x)
        larger = (_repeated(luma, height, width), *(_repeated(plane, rows, columns) for plane in chroma))
        return larger, None if alpha is None else _repeated(alpha, height, width)


def _repeated(plane: Plane, rows: int, columns: int) -> Plane:
    """A plane [h, w, ...] extended by copies of its last row and column."""
    missing = (rows - plane.shape[0], columns - plane.shape[1])
    return np.pad(plane, [(0, count) for count in missing] + [(0, 0)] * (plane.ndim - 2), mode="edge")


def scale_alpha(alpha: Plane, bits: int) -> Plane:
    """Convert a full-range alpha plane to another depth; opaque stays opaque.

    Args:
        alpha: uint8 with 255 opaque, or uint16 with 65535 opaque.
        bits: 8 to 16; the result is uint8 for 8, else uint16, with ``2**bits - 1`` opaque.

    Raises:
        OutputError: The dtype is neither.
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
    """Grey code values for every luma code (H.273 equations for limited range, clipped)."""

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
        # The encoder reads the planes in place and keeps them alive until then; a copy would cost more.
        whole = np.lib.stride_tricks.as_strided(luma, (height * 3 // 2, width), (width, 1), writeable=False)
        return av.VideoFrame.from_numpy_buffer(whole, name)
    picture = av.VideoFrame(planes[0].shape[1], planes[0].shape[0], name)
    for target, plane in zip(picture.planes, planes, strict=True):
        samples = plane.shape[2] if plane.ndim == 3 else 1
        _view(target, plane.dtype, samples=samples, writeable=True)[...] = plane
    return picture


def _are_one_picture(planes: tuple[Plane, ...]) -> bool:
    """True for read-only 8-bit 4:2:0 planes that are contiguous in one memory block."""
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
    return tuple(_view(plane, dtype, writeable=True) for plane in picture.planes)


def _view(plane: VideoPlane, dtype: np.dtype[Any], *, samples: int = 1, writeable: bool = False) -> Plane:
    """A [H, W] or [H, W, samples] view onto a plane; the array keeps the picture's buffer alive."""
    # PyAV's stubs do not declare the buffer protocol that planes support.
    memory = np.frombuffer(cast("memoryview[int]", plane), dtype)
    shape = (plane.height, plane.width) + ((samples,) if samples > 1 else ())
    strides = (plane.line_size, samples * dtype.itemsize, dtype.itemsize)
    return np.lib.stride_tricks.as_strided(memory, shape, strides[: len(shape)], writeable=writeable)


RGB_VIDEO_COLOR = ColorSpec(
    matrix="bt709", full_range=False, chroma_location="center", primaries=1, transfer=1, matrix_code=1
)
"""Colour of RGB pictures in video: BT.709, limited range, each chroma sample the mean of its four pixels."""

_FORMAT = PIXEL_FORMATS["yuv420p"]


def _to_video() -> npt.NDArray[np.float32]:
    """Rows of ``yuv = matrix @ (r, g, b, 1)`` for codes 0..255."""
    matrix, offset = yuv_from_rgb(RGB_VIDEO_COLOR, _FORMAT)
    return np.concatenate((matrix / 255, offset[:, None]), axis=1).astype(np.float32)


_TO_VIDEO = _to_video()


def planes_of(rgb: npt.NDArray[np.uint8]) -> tuple[Plane, Plane, Plane]:
    """Planes of a picture as ``yuv420p`` in ``RGB_VIDEO_COLOR``.

    Args:
        rgb: uint8 [H, W, 3].
    """
    yuv = cv2.transform(rgb, _TO_VIDEO)
    height, width = rgb.shape[:2]
    luma = np.ascontiguousarray(yuv[..., 0])
    if height % 2 or width % 2:
        yuv = cv2.copyMakeBorder(yuv, 0, height % 2, 0, width % 2, cv2.BORDER_REPLICATE)
    half = cv2.resize(yuv, (yuv.shape[1] // 2, yuv.shape[0] // 2), interpolation=cv2.INTER_AREA)
    return luma, np.ascontiguousarray(half[..., 1]), np.ascontiguousarray(half[..., 2])


def rgb_of(frame: Frame) -> npt.NDArray[np.uint8]:
    """The RGB picture of a frame; chroma is taken as centred, which is off by half a pixel at most.

    Args:
        frame: In host memory, with three planes.

    Returns:
        uint8 [H, W, 3].
    """
    luma, *chroma = frame.planes
    height, width = luma.shape
    full = [
        cv2.resize(
            plane,
            (plane.shape[1] << frame.format.chroma_shift_x, plane.shape[0] << frame.format.chroma_shift_y),
        )[:height, :width]
        for plane in chroma
    ]
    rgb = cv2.transform(cv2.merge([luma, *full]), _from_video(frame.color, frame.format))
    if rgb.dtype != np.uint8:
        rgb = np.minimum(rgb, 255).astype(np.uint8)
    return np.asarray(rgb)


@lru_cache(maxsize=16)
def _from_video(color: ColorSpec, fmt: YuvFormat) -> npt.NDArray[np.float32]:
    """Rows of ``rgb = matrix @ (y, u, v, 1)`` for codes 0..255."""
    matrix, offset = rgb_from_yuv(color, fmt)
    return (np.concatenate((matrix, offset[:, None]), axis=1) * 255).astype(np.float32)
