"""Records a live run to a video file; pictures keep their capture times."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from fractions import Fraction
from pathlib import Path
from typing import Literal

import numpy as np

from vitascope.errors import OutputError, UsageError
from vitascope.frames import PIXEL_FORMATS, Frame, VideoInfo
from vitascope.media.planes import RGB_VIDEO_COLOR
from vitascope.media.remote import local_path_of
from vitascope.media.sinks.sink import ALPHA_FORMATS, LivePicture, PixelFormat, Sink, SinkFormat
from vitascope.media.writing.encoding import CodecName, choose_encoding
from vitascope.media.writing.writer import VideoWriter

_TIME_BASE = Fraction(1, 90_000)
_YUV420P = PIXEL_FORMATS["yuv420p"]
_ROOM_BYTES, _ROOM_BYTES_A_PICTURE = 32_000_000, 32
"""Free disk space that completing a file may need: for frames that the encoder still holds, and an MP4's index, whose
tables take at most 28 bytes for a frame's size, times and position (ISO/IEC 14496-12, 8.6 and 8.7)."""


def files_of(sinks: Iterable[Sink]) -> list[Path]:
    """The files that sinks write.

    Raises:
        UsageError: Two sinks write the same file.
    """
    paths = [sink.path for sink in sinks if isinstance(sink, FileSink)]
    seen: set[str] = set()
    for path in paths:
        place = os.path.realpath(path)
        if place in seen:
            raise UsageError(f"sink file:{path}: two sinks cannot write the same file")
        seen.add(place)
    return paths


class FileSink:
    """Records H.264, H.265, VP9 or AV1, with a fast preset unless another is set.

    A live run cannot be repeated, so the sink ends while the disk still has room to complete the file.

    Args:
        target: Path of the file, which appears when the sink is closed. If opened again, it writes another file
            beside it, such as ``out-2.mp4`` after ``out.mp4``, and keeps the first.
        codec: A codec, or ``auto`` to choose by the file's suffix.
        crf: Constant rate factor on the codec's own scale; None uses the default for fast encoding.
        preset: The encoder's preset; None uses a fast one.
        with_alpha: Keep transparency, in ProRes 4444 (.mov), VP9 (.webm) or FFV1 (.mkv).
    """

    def __init__(
        self,
        target: str,
        *,
        codec: Literal["auto"] | CodecName = "auto",
        crf: int | None = None,
        preset: str | None = None,
        with_alpha: bool = False,
    ) -> None:
        self.pixel_format: PixelFormat = "yuva420p" if with_alpha else "yuv420p"
        """Always 4:2:0."""
        self._codec, self._crf, self._preset = codec, crf, preset
        self._path = local_path_of(target)
        if not self._path.suffix:
            raise UsageError(f"sink file:{target}: give the file a suffix, such as {target}.mp4")
        self._first_path = self._path
        self._part_count = 0
        self._writer: VideoWriter | None = None
        self._count = 0
        self._origin_seconds = 0.0
        self._last_ticks = -1

    @property
    def name(self) -> str:
        """``file:PATH``, with the current file."""
        return f"file:{self._path}"

    @property
    def path(self) -> Path:
        """The current file."""
        return self._path

    def open(self, made: SinkFormat) -> None:
        """See ``Sink.open``; encoders only support even sizes."""
        if made.width % 2 or made.height % 2:
            raise OutputError(f"{self.name}: pictures of {made.width}x{made.height}; both must be even")
        self._path = self._next_path()
        encoding = choose_encoding(
            self._path,
            codec=self._codec,
            source_format=_YUV420P,
            crf=self._crf,
            preset=self._preset,
            with_alpha=self.pixel_format in ALPHA_FORMATS,
            speed="fast",
        )
        info = VideoInfo(
            path=self._path,
            width=made.width,
            height=made.height,
            format=_YUV420P,
            source_format="yuv420p",
            color=RGB_VIDEO_COLOR,
            time_base=_TIME_BASE,
            average_frame_rate=made.frame_rate,
        )
        self._writer = VideoWriter(self._path, info=info, encoding=encoding, spherical=None, hdr=None)
        self._count, self._last_ticks = 0, -1

    def send(self, picture: LivePicture) -> None:
        """Encode a picture.

        Raises:
            OutputError: The disk is nearly full, or failed; if nearly full, ``close`` still completes the file.
        """
        assert self._writer is not None  # set by open()
        self._refuse_without_room()
        if self._count == 0:
            self._origin_seconds = picture.captured_seconds
        ticks = round((picture.captured_seconds - self._origin_seconds) / _TIME_BASE)
        ticks = max(ticks, self._last_ticks + 1)  # equal capture times must differ
        made = picture.as_format(self.pixel_format)
        planes = tuple(
            np.frombuffer(plane, np.uint8).reshape(plane.height, plane.line_size)[:, : plane.width]
            for plane in made.planes
        )
        frame = Frame(planes[:3], _YUV420P, RGB_VIDEO_COLOR, self._count, ticks, _TIME_BASE, 0)
        if len(planes) == 3:
            self._writer.write(frame)
        else:
            self._writer.write_with_alpha(frame, planes[3])
        self._count, self._last_ticks = self._count + 1, ticks

    def close(self) -> None:
        """Complete the file. Without a picture, no file is created."""
        writer, self._writer = self._writer, None
        if writer is None:
            return
        if self._count:
            self._part_count += 1
            writer.finish()
        else:
            writer.discard()

    def _refuse_without_room(self) -> None:
        """Without room for its index, an MP4 would be lost."""
        try:
            free = shutil.disk_usage(self._path.absolute().parent).free
        except OSError:  # the folder is gone; writing reports it
            return
        needed = _ROOM_BYTES + _ROOM_BYTES_A_PICTURE * self._count
        if free < needed:
            raise OutputError(
                f"{self._path}: {free / 1e6:.0f} MB are free there, and completing the file may need "
                f"{needed / 1e6:.0f}; free some or write elsewhere"
            )

    def _next_path(self) -> Path:
        if not self._part_count:
            return self._first_path
        number = self._part_count + 1
        while (path := self._first_path.with_stem(f"{self._first_path.stem}-{number}")).exists():
            number += 1
        return path
