"""Tiny synthetic videos: moving shapes on a gradient, a sine tone, subtitles."""

from __future__ import annotations

import struct
import zlib
from collections import OrderedDict
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import numpy.typing as npt
from av.video.reformatter import VideoReformatter

from vitascope.media.writing.encoder_setup import tamed_svt

RgbPainter = Callable[[int], npt.NDArray[np.uint8]]


def moving_disc(width: int, height: int) -> RgbPainter:
    """Return a painter of a disc that drifts over a colour gradient; frame n depends on n alone.

    The disc is bright for the scripted network, and green, because the selfie networks find a head in a disc
    of skin colour, and their gate would look again and again.
    """
    y, x = np.ogrid[0:height, 0:width]
    background = np.empty((height, width, 3), np.uint8)
    background[..., 0] = x * 255 // max(width - 1, 1)
    background[..., 1] = y * 255 // max(height - 1, 1)
    background[..., 2] = 96
    radius = max(min(width, height) // 4, 1)

    def paint(n: int) -> npt.NDArray[np.uint8]:
        rgb = background.copy()
        inside = (x - (width // 4 + 2 * n) % width) ** 2 + (y - height // 2) ** 2 <= radius**2
        rgb[inside] = (120, 250, 60)
        return rgb

    return paint


class _EncodedClips:
    """Caches recently written files by their arguments, so that they need not be encoded again."""

    # A clip of these kinds is one file.
    _SUFFIXES = frozenset({".avi", ".flv", ".m4v", ".mkv", ".mov", ".mp4", ".ts", ".webm"})
    _MOST_BYTES = 32 << 20

    def __init__(self) -> None:
        self._files: OrderedDict[object, bytes] = OrderedDict()
        self._bytes = 0

    @classmethod
    def key(cls, path: Path, paint: RgbPainter | None, arguments: dict[str, Any]) -> object | None:
        """Return a key, equal for equal clips; None if that is unknown."""
        painter = None
        if paint is not None:
            # The content of a closure, a default or an object may differ between clips.
            if getattr(paint, "__closure__", paint) or paint.__defaults__:
                return None
            painter = paint.__module__, paint.__code__
        if path.suffix not in cls._SUFFIXES:
            return None
        return path.suffix, painter, repr(sorted(arguments.items()))

    def get(self, key: object) -> bytes | None:
        if key in self._files:
            self._files.move_to_end(key)
        return self._files.get(key)

    def keep(self, key: object, content: bytes) -> None:
        self._files[key] = content
        self._bytes += len(content)
        while self._bytes > self._MOST_BYTES:
            self._bytes -= len(self._files.popitem(last=False)[1])


_encoded = _EncodedClips()


def write_clip(
    path: Path,
    *,
    width: int = 96,
    height: int = 64,
    frame_count: int = 12,
    frame_rate: Fraction = Fraction(24),
    codec: str = "libx264",
    pixel_format: str = "yuv420p",
    paint: RgbPainter | None = None,
    pts: Sequence[int] | None = None,
    time_base: Fraction | None = None,
    audio: str | None = None,
    color_tags: tuple[int, int, int, int] | None = None,
    codec_options: dict[str, str] | None = None,
    metadata: dict[str, str] | None = None,
) -> Path:
    """Encode a synthetic clip with PyAV, or copy one that was encoded from the same.

    Args:
        path: Where to write; the suffix chooses the container.
        width: Luma samples a row.
        height: Luma rows.
        frame_count: Pictures.
        frame_rate: Nominal pictures a second.
        codec: FFmpeg encoder.
        pixel_format: FFmpeg pixel format to encode.
        paint: RGB picture of frame n, a function of n alone; a moving disc when omitted.
        pts: Presentation times in ``time_base`` ticks, for variable frame rate.
        time_base: Seconds a tick; ``1 / frame_rate`` when omitted.
        audio: FFmpeg audio encoder of a 440 Hz tone as long as the video, for example ``aac``.
        color_tags: H.273 (primaries, transfer, matrix) and FFmpeg's range (1 limited, 2 full).
        codec_options: Encoder options.
        metadata: Container tags.
    """
    arguments = dict(locals())
    del arguments["path"], arguments["paint"]
    key = _encoded.key(path, paint, arguments)
    if key is not None and (content := _encoded.get(key)) is not None:
        path.write_bytes(content)
        return path
    paint = paint or moving_disc(width, height)
    time_base = time_base or 1 / frame_rate
    times = list(pts) if pts is not None else list(range(frame_count))
    with av.open(str(path), "w") as container:
        container.metadata.update(metadata or {})
        stream = container.add_stream(codec, rate=frame_rate, options=codec_options or {})
        stream.width, stream.height, stream.pix_fmt = width, height, pixel_format
        stream.time_base = stream.codec_context.time_base = time_base
        if color_tags:
            context = stream.codec_context
            context.color_primaries, context.color_trc, context.colorspace, context.color_range = color_tags
        with tamed_svt():
            stream.codec_context.open()
        tone = container.add_stream(audio, rate=48000) if audio else None
        convert = VideoReformatter()  # creating one takes longer than converting a small picture
        for n, when in enumerate(times):
            frame = av.VideoFrame.from_ndarray(paint(n), format="rgb24")
            # swscale has 5 for BT.601, H.273 also 6; the others have the same number in both.
            matrix = color_tags[2] if color_tags and color_tags[2] in (1, 9) else 5
            frame = convert.reformat(frame, format=pixel_format, dst_colorspace=matrix)
            frame.pts, frame.time_base = when, time_base
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
        if tone is not None:
            _write_tone(container, tone, seconds=float((times[-1] + 1) * time_base))
    if key is not None:
        _encoded.keep(key, path.read_bytes())
    return path


def copied(
    source: Path,
    target: Path,
    *,
    kept: float = 1.0,
    prepare: Callable[[av.VideoStream], object] | None = None,
    **options: str,
) -> Path:
    """Write the same packets of pictures into another file.

    Args:
        source: Any video.
        target: The file; its suffix names the container.
        kept: Share of the file that is kept, from its beginning; the rest is cut off.
        prepare: Called with the stream before packets are written.
        **options: Of the muxer.
    """
    with av.open(str(source)) as reading, av.open(str(target), "w", options=options) as writing:
        stream = writing.add_stream_from_template(reading.streams.video[0])
        if prepare is not None:
            prepare(stream)
        for packet in reading.demux(reading.streams.video[0]):
            if packet.dts is not None:
                packet.stream = stream
                writing.mux(packet)
    if kept < 1:
        content = target.read_bytes()
        target.write_bytes(content[: int(len(content) * kept)])
    return target


def _write_tone(container: av.container.OutputContainer, tone: av.AudioStream, *, seconds: float) -> None:
    count = 1024
    for start in range(0, int(seconds * 48000), count):
        samples = np.sin(2 * np.pi * 440 * (start + np.arange(count)) / 48000).astype(np.float32)
        frame = av.AudioFrame.from_ndarray(samples[None], format="fltp", layout="mono")
        frame.sample_rate, frame.pts, frame.time_base = 48000, start, Fraction(1, 48000)
        container.mux(tone.encode(frame))
    container.mux(tone.encode(None))


def write_large_png(path: Path, *, side: int) -> Path:
    """Write a square of one colour, in a file a thousandth as large as its pixels."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return (
            struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
        )

    row = b"\0" + b"\x40\x80\xc0" * side
    # A row that is compressed separately (a full flush) is the same each time.
    packer, checksum = zlib.compressobj(1, wbits=-15), 1
    packed = packer.compress(row) + packer.flush(zlib.Z_FULL_FLUSH)
    for _ in range(side):
        checksum = zlib.adler32(row, checksum)
    rows = b"\x78\x01" + packed * side + packer.flush() + struct.pack(">I", checksum)
    head = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", rows) + chunk(b"IEND", b""))
    return path
