"""From a decoded ``av.VideoFrame`` to our planes: views where the layout is ours, swscale or a matrix where not.

Four ways, chosen by the pixel format alone:

- *view*: the format is one of ``frames.PIXEL_FORMATS``, or differs only in name (``yuvj420p``) or in an alpha plane
  that is left out (``yuva444p10le``): NumPy views onto the decoder's memory, nothing is copied.
- *grey*: a view of the luma, and constant chroma.
- *yuv*: another subsampling, depth or packing: swscale to the nearest format that keeps what the file has.
- *rgb*: BT.709 full range 4:4:4, by the exact matrix (swscale's own conversion drifts by half a code value in chroma).
"""

from __future__ import annotations

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

from vitascope.frames import PIXEL_FORMATS, ColorSpec, Plane, YuvFormat

__all__ = ["RGB_COLOR", "Layout", "PlaneReader", "layout_of", "pixel_format_name"]

RGB_COLOR = ColorSpec(
    matrix="bt709",
    full_range=True,
    chroma_location="center",
    primaries=1,
    transfer=13,
    matrix_code=1,
)
"""How RGB sources come out: BT.709 primaries and matrix, sRGB transfer (H.273 code 13), full range."""

_SWSCALE_FLAGS = (
    Interpolation.BICUBIC
    | Interpolation.ACCURATE_RND
    | Interpolation.FULL_CHR_H_INT
    | Interpolation.FULL_CHR_H_INP
)
_SUBSAMPLING = {(0, 0): "444", (1, 0): "422", (1, 1): "420", (2, 0): "422", (0, 1): "444", (2, 2): "420"}


@dataclass(frozen=True, slots=True)
class Layout:
    """How one source pixel format is read."""

    format: YuvFormat
    """What comes out."""
    way: Literal["view", "grey", "yuv", "rgb"]
    intermediate: str | None = None
    """swscale's target before the planes are taken; None when the decoder's memory is taken as it is."""


@lru_cache(maxsize=64)
def layout_of(source_format: str) -> Layout:
    """Choose the nearest of ``PIXEL_FORMATS`` for an FFmpeg pixel format.

    Nearest never loses chroma resolution and keeps the bit depth up to 12: 9 bits become 10, and 14, 16 and float
    become 12. Alpha is left out.

    Args:
        source_format: FFmpeg's name.

    Raises:
        ValueError: FFmpeg knows no such format.
    """
    if source_format in PIXEL_FORMATS:
        return Layout(PIXEL_FORMATS[source_format], "view")
    renamed = source_format.replace("yuvj", "yuv").replace("yuva", "yuv")
    if renamed in PIXEL_FORMATS:
        return Layout(PIXEL_FORMATS[renamed], "view")
    description = VideoFormat(source_format, 64, 64)
    depth = max((component.bits for component in description.components), default=8)
    if source_format.startswith("bayer") and "16" in source_format:
        depth = 16  # FFmpeg counts a mosaic's bits a channel, not a sample
    kept_depth = 8 if depth <= 8 else 10 if depth <= 10 else 12
    suffix = "" if kept_depth == 8 else f"{kept_depth}le"
    # Bayer and palette pictures are RGB; XYZ only becomes YUV by way of RGB.
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
    """FFmpeg's name of how a picture's samples lie, wherever they lie: ``nv12`` for a CUDA picture in NV12."""
    return picture.format.name if picture.sw_format is None else picture.sw_format.name


class PlaneReader:
    """Takes planes out of decoded frames; keeps swscale's context and the grey chroma between frames."""

    def __init__(self) -> None:
        self._reformatter = VideoReformatter()
        self._neutral: dict[tuple[int, int, int], Plane] = {}

    def read(self, frame: av.VideoFrame, *, target: YuvFormat) -> tuple[Plane, ...]:
        """The frame's planes in ``target``.

        Args:
            frame: A decoded software frame.
            target: What to give out. When the frame's own nearest format is another one (a stream that changes its
                pixel format on the way, a folder of mixed images), swscale converts.

        Returns:
            Read-only arrays as ``Frame.planes`` describes them. Views share the decoder's memory, which stays
            allocated as long as any of them does; the decoder never writes to it again, but still reads it as a
            reference picture, so it must not be written to.
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
        return tuple(_view(plane, target.dtype) for plane in frame.planes[:3])

    def _reformat(self, frame: av.VideoFrame, name: str) -> av.VideoFrame:
        # Both sides get the same range, said aloud: swscale takes "yuvj" and grey for full and everything untagged
        # for limited, and would convert between them.
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
            # cv2 saturates to the word, not to the bit depth: pure blue's Cb is 2^n before clipping.
            clipped = plane if target.bit_depth == 8 else np.minimum(plane, target.dtype.type(largest))
            clipped.flags.writeable = False
            planes.append(clipped)
        return tuple(planes)


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


def _view(plane: VideoPlane, dtype: np.dtype[Any], *, samples: int = 1) -> Plane:
    """A read-only [H, W] or [H, W, samples] view onto a plane; the array keeps the frame's buffer alive."""
    # PyAV's stubs do not declare the buffer protocol that its planes have.
    memory = np.frombuffer(cast("memoryview[int]", plane), dtype)
    shape = (plane.height, plane.width) + ((samples,) if samples > 1 else ())
    strides = (plane.line_size, samples * dtype.itemsize, dtype.itemsize)
    return np.lib.stride_tricks.as_strided(memory, shape, strides[: len(shape)], writeable=False)


def _upright_copy(frame: av.VideoFrame) -> av.VideoFrame:
    """A copy with rows from top to bottom; raw video may be stored bottom up, shown as a negative row stride."""
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
