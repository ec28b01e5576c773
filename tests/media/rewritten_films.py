"""Functions that rewrite videos with all other streams, and read what is then in them."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
from av.subtitles.subtitle import SubtitleSet

from vitascope.frames import PIXEL_FORMATS, ColorSpec, Frame, VideoInfo
from vitascope.media.writing.encoding import choose_encoding
from vitascope.media.writing.writer import VideoWriter

ASS_HEADER = (
    b"[Script Info]\r\nScriptType: v4.00+\r\n\r\n[V4+ Styles]\r\nFormat: Name, Fontname, Fontsize, PrimaryColour, "
    b"SecondaryColour, OutlineColour, BackColour, Bold, Italic, Underline, StrikeOut, ScaleX, ScaleY, Spacing, Angle, "
    b"BorderStyle, Outline, Shadow, Alignment, MarginL, MarginR, MarginV, Encoding\r\n"
    b"Style: Default,Arial,16,&Hffffff,&Hffffff,&H0,&H0,0,0,0,0,100,100,0,0,1,1,0,2,10,10,10,1\r\n\r\n[Events]\r\n"
    b"Format: Layer, Start, End, Style, Name, MarginL, MarginR, MarginV, Effect, Text\r\n"
)


def rewrite(
    source: Path,
    target: Path,
    *,
    tags: dict[str, str] | None = None,
    pictures_from: str | None = None,
    **options: Any,
) -> VideoWriter:
    """Read a clip, and write it again with everything beside the picture.

    Args:
        source: The clip.
        target: The new one.
        tags: Those of the video; the clip's own when omitted.
        pictures_from: The container in the description of the pictures; the clip's when omitted.
        options: For ``VideoWriter``.
    """
    start, end = options.get("start_seconds"), options.get("end_seconds")
    with av.open(str(source)) as container:
        stream = container.streams.video[0]
        time_base, rate = stream.time_base, stream.average_rate
        context = stream.codec_context
        info = VideoInfo(
            path=source,
            width=context.width,
            height=context.height,
            format=PIXEL_FORMATS["yuv420p"],
            source_format="yuv420p",
            color=ColorSpec(),
            codec="h264",
            container=pictures_from or container.format.name,
            time_base=time_base,
            average_frame_rate=rate,
            metadata=dict(container.metadata) if tags is None else tags,
        )
        encoding = choose_encoding(target, source_format=info.format, speed="fast")
        with VideoWriter(target, info=info, encoding=encoding, copy_from=source, **options) as writer:
            index = 0
            for picture in container.decode(stream):
                moment = picture.pts * time_base
                if (start is not None and moment < start) or (end is not None and moment >= end):
                    continue
                planes = tuple(
                    np.frombuffer(plane, np.uint8).reshape(plane.height, -1)[:, : plane.width]
                    for plane in picture.planes
                )
                writer.write(
                    Frame(
                        planes, info.format, info.color, index, picture.pts, time_base, picture.duration or 0
                    )
                )
                index += 1
    return writer


def packets(path: Path, kind: str = "audio", index: int = 0) -> list[tuple[Fraction, bytes]]:
    with av.open(str(path)) as container:
        stream = [stream for stream in container.streams if stream.type == kind][index]
        return [
            (packet.pts * packet.time_base, bytes(packet))
            for packet in container.demux(stream)
            if packet.size
        ]


def video_times(path: Path) -> list[Fraction]:
    with av.open(str(path)) as container:
        return [frame.pts * frame.time_base for frame in container.decode(video=0)]


def write_subtitled(path: Path, codec: str, *, attachment: bool = False, begin_seconds: int = 0) -> Path:
    """Write a two-second video with two subtitles, two sound tracks, tags and chapters.

    Picture and sound may begin after the clock; then the second line and the second chapter last until the
    end.
    """
    with av.open(str(path), "w") as container:
        container.metadata.update({"title": "Käse", "artist": "Nobody"})
        container.set_chapters(
            [
                {
                    "id": 1,
                    "start": 0,
                    "end": 1000,
                    "time_base": Fraction(1, 1000),
                    "metadata": {"title": "One"},
                },
                {
                    "id": 2,
                    "start": 1000,
                    "end": 2000 + 1000 * begin_seconds,
                    "time_base": Fraction(1, 1000),
                    "metadata": {"title": "Two"},
                },
            ]
        )
        video = container.add_stream("libx264", rate=24, width=32, height=32, pix_fmt="yuv420p")
        sounds = [
            container.add_stream("aac" if path.suffix == ".mp4" else "libopus", rate=48000) for _ in range(2)
        ]
        for sound, language in zip(sounds, ("deu", "fra"), strict=True):
            sound.metadata["language"] = language
        text = container.add_stream(codec)
        text.codec_context.subtitle_header = ASS_HEADER
        text.time_base = text.codec_context.time_base = Fraction(1, 1000)
        text.metadata["language"] = "swe"
        if attachment:
            container.add_attachment("font.ttf", "application/x-truetype-font", b"\0\1\0\0 not really")
        for n in range(48):
            picture = av.VideoFrame(32, 32, "yuv420p")
            for plane in picture.planes:
                np.frombuffer(plane, np.uint8)[:] = 100 + n
            picture.pts, picture.time_base = n + 24 * begin_seconds, Fraction(1, 24)
            container.mux(video.encode(picture))
        container.mux(video.encode(None))
        for pitch, sound in enumerate(sounds):
            for start in range(0, 96000, 960):
                wave = np.sin((440 + 110 * pitch) * 2 * np.pi * (start + np.arange(960)) / 48000).astype(
                    np.float32
                )
                samples = av.AudioFrame.from_ndarray(np.stack([wave, wave]), format="fltp", layout="stereo")
                samples.sample_rate, samples.time_base = 48000, Fraction(1, 48000)
                samples.pts = start + 48000 * begin_seconds
                container.mux(sound.encode(samples))
            container.mux(sound.encode(None))
        for n, line in enumerate(
            (b"0,0,Default,,0,0,0,,Hello {\\i1}World{\\i0}", "1,0,Default,,0,0,0,,Grüße".encode())
        ):
            packet = text.codec_context.encode_subtitle(SubtitleSet.create(line, 0, 800, n * 1000))
            packet.stream, packet.time_base = text, Fraction(1, 1000)
            packet.pts = packet.dts = n * 1000 + 100
            packet.duration = 800 + n * 1000 * begin_seconds
            container.mux(packet)
    return path
