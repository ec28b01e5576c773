"""Functions that write videos through the writer, and decode them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np

from vitascope.frames import PIXEL_FORMATS, ColorSpec, Frame, VideoInfo
from vitascope.media.writing.encoding import Encoding, choose_encoding
from vitascope.media.writing.writer import VideoWriter

NTSC = Fraction(30000, 1001)


def make_info(
    width: int = 96,
    height: int = 64,
    *,
    format_name: str = "yuv420p",
    time_base: Fraction = Fraction(1, 24),
    rate: Fraction = Fraction(24),
    color: ColorSpec | None = None,
    **changes: Any,
) -> VideoInfo:
    info = VideoInfo(
        path=Path("in.mp4"),
        width=width,
        height=height,
        format=PIXEL_FORMATS[format_name],
        source_format=format_name,
        color=color or ColorSpec(matrix="bt709", matrix_code=1, primaries=1, transfer=1),
        codec="h264",
        container="mov,mp4,m4a,3gp,3g2,mj2",
        time_base=time_base,
        average_frame_rate=rate,
    )
    return replace(info, **changes)


def make_frame(info: VideoInfo, index: int, *, pts: int | None = None, duration: int = 0) -> Frame:
    """Make a smooth picture whose brightness identifies it."""
    fmt = info.format
    x, y = np.meshgrid(np.arange(info.width), np.arange(info.height))
    top = (1 << fmt.bit_depth) - 1
    luma = (top * (0.2 + 0.4 * (x + y) / (info.width + info.height) + 0.02 * (index % 8))).astype(fmt.dtype)
    chroma_width, chroma_height = fmt.chroma_size(info.width, info.height)
    blue = np.full((chroma_height, chroma_width), int(top * 0.45), fmt.dtype)
    red = np.full((chroma_height, chroma_width), int(top * 0.6), fmt.dtype)
    planes: tuple[np.ndarray, ...] = (luma, blue, red)
    if fmt.semi_planar:
        planes = (luma << fmt.sample_shift, np.stack([blue, red], axis=2) << fmt.sample_shift)
    return Frame(
        planes=planes,
        format=fmt,
        color=info.color,
        index=index,
        pts=index if pts is None else pts,
        time_base=info.time_base,
        duration=duration,
    )


def encode(
    path: Path,
    info: VideoInfo,
    *,
    pts: Sequence[int] = tuple(range(6)),
    encoding: Encoding | None = None,
    duration: int = 0,
    **options: Any,
) -> VideoWriter:
    encoding = encoding or choose_encoding(path, source_format=info.format, speed="fast")
    with VideoWriter(path, info=info, encoding=encoding, **options) as writer:
        for index, when in enumerate(pts):
            writer.write(make_frame(info, index, pts=when, duration=duration))
    return writer


def decode(path: Path, decoder: str | None = None) -> list[av.VideoFrame]:
    with av.open(str(path)) as container:
        if decoder is None:
            return list(container.decode(video=0))
        context = av.CodecContext.create(decoder, "r")
        return [
            frame
            for packet in container.demux(video=0)
            for frame in context.decode(packet if packet.size else None)
        ]


def plane(frame: av.VideoFrame, index: int, dtype: type = np.uint8) -> np.ndarray:
    source = frame.planes[index]
    rows = np.frombuffer(source, dtype).reshape(source.height, -1)
    return rows[:, : source.width]


def seconds(path: Path) -> list[Fraction]:
    return [frame.pts * frame.time_base for frame in decode(path)]
