"""Serves videos to the page: the file in ranges, its description, and a copy if browsers cannot play it.

It does this for a video of the folders, below ``/api/films/{video}``, and for a job's output, below
``/api/jobs/{job}/files/{number}``. Copies are small, 8-bit H.264, made once on their own thread, and kept in one
folder under names derived from the video file's content; the least recently used is deleted first.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response

from vitascope.config import VideoSettings
from vitascope.device import available_cores
from vitascope.errors import InputError, VitascopeError, one_line
from vitascope.frames import PIXEL_FORMATS, Frame, Projection, StereoLayout, VideoInfo
from vitascope.gpu.kernels.region import Region
from vitascope.gpu.kernels.shrink import shrink_frame
from vitascope.gpu.pipeline.pipeline import Pipeline
from vitascope.gpu.pipeline.report import Interruptible
from vitascope.gpu.pipeline.stages import Map, Sink, Source
from vitascope.media.reading.reader import open_video, probe
from vitascope.media.writing.encoding import choose_encoding
from vitascope.media.writing.writer import VideoWriter
from vitascope.segmentation.layout import vr_of
from vitascope.segmentation.matting.cached_film import video_fingerprint
from vitascope.segmentation.writing import FramesUntilDamage
from vitascope.studio.previews import BusyError
from vitascope.vr.projection import Equirectangular, Fisheye, Lens, Rectilinear

_SUFFIX: Final = ".proxy.mp4"
_FORMAT: Final = "2"
"""Version of the copies made here; part of their names."""
_MOST_WAITING: Final = 20
_FLAT_SIDE: Final = 1280
_VR_SIDE: Final = 3840
"""Longest sides. Both eyes of a VR video share a picture, of which only a small part is seen at a time."""
_LEVEL_5_2: Final = (4096, 2304)
"""Largest picture of H.264's level 5.2 at 60 frames per second, which browsers' hardware decoders accept."""
_CONTAINERS: Final = frozenset({"mov", "mp4", "matroska", "webm", "ogg"})
_CODECS: Final = {
    "h264": "H.264",
    "hevc": "HEVC",
    "vp8": "VP8",
    "vp9": "VP9",
    "libvpx": "VP8",
    "libvpx-vp9": "VP9",
    "av1": "AV1",
    "libdav1d": "AV1",
    "libaom-av1": "AV1",
}
"""Codecs that browsers play, some not everywhere, by the names of FFmpeg's decoders."""
_COPIED_SOUND: Final = frozenset({"aac", "mp3", "mp3float", "opus", "libopus", "flac"})
"""Sound that browsers play in MP4, by the names of FFmpeg's decoders. They do not play AC-3, E-AC-3, DTS or PCM in
it."""
_PLAYED_SOUND: Final = _COPIED_SOUND | {"vorbis", "libvorbis"}
"""Sound that they also play in other containers."""
_SOUND_NAMES: Final = {"ac3": "AC-3", "eac3": "E-AC-3", "dca": "DTS"}
_H264_FORMATS: Final = frozenset({"yuv420p", "yuvj420p", "nv12"})

State = Literal["waiting", "making", "done", "failed"]


class Copying(NamedTuple):
    """Progress of a copy."""

    state: State
    share: float = 0.0
    """Progress, 0 to 1."""
    error: str | None = None


def why_no_browser_plays(info: VideoInfo) -> str | None:
    """The reason why no browser can play a video; None if at least one can.

    Args:
        info: The video.
    """
    names = set(info.container.split(","))
    if not names & _CONTAINERS:
        return f"browsers cannot read {info.container.split(',')[0]} files"
    if info.codec not in _CODECS:
        return f"browsers cannot decode {info.codec}"
    if info.codec == "h264" and info.source_format not in _H264_FORMATS:
        return f"browsers only decode H.264 in 8 bits and 4:2:0, and this is {info.source_format}"
    if info.audio_codec is not None and info.audio_codec not in _PLAYED_SOUND:
        name = info.audio_codec.partition("_")[0]
        return f"browsers cannot play {_SOUND_NAMES.get(name, name.upper())} sound"
    long, short = max(info.width, info.height), min(info.width, info.height)
    if long > _LEVEL_5_2[0] or short > _LEVEL_5_2[1]:
        return f"{info.width} × {info.height} is more than browsers play smoothly"
    return None


@dataclass
class _Copy:
    """A copy that is waiting, being made, or failed."""

    video: Path
    state: State = "waiting"
    pipeline: Interruptible | None = None
    expected: int | None = None
    error: str | None = None

    def so_far(self) -> Copying:
        pipeline, share = self.pipeline, 0.0
        if pipeline is not None and self.expected:
            share = min(pipeline.snapshot().items / self.expected, 1.0)
        return Copying(self.state, share, self.error)


class Proxies:
    """Makes one copy at a time, for any number of requesting threads.

    Args:
        folder: Folder for the copies.
        most_bytes: Limit of their total size; the newest is kept whatever its size.
    """

    def __init__(self, folder: Path, *, most_bytes: int) -> None:
        self._folder, self._most_bytes = folder, most_bytes
        self._copies: dict[str, _Copy] = {}
        self._names: dict[tuple[Path, int, int], str] = {}
        self._waiting: deque[str] = deque()
        self._changed = threading.Condition()
        self._is_over = False
        self._thread = threading.Thread(target=self._work, name="vitascope-proxies", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Cancel copies in progress, and remove their files."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()
            for copy in self._copies.values():
                if copy.pipeline is not None:
                    copy.pipeline.interrupt()
        self._thread.join()

    def find(self, video: Path) -> Path | None:
        """The copy of a video, if it exists.

        Raises:
            InputError: The video cannot be read.
        """
        file = self._file(self._name(video))
        with suppress(OSError):
            os.utime(file)
            return file
        return None

    def make(self, video: Path) -> Copying:
        """Make sure that a copy is made, and report its progress. A failed one is tried again after the next start.

        Raises:
            InputError: The video cannot be read.
            BusyError: Too many are waiting.
        """
        name = self._name(video)
        if self._file(name).is_file():
            return Copying("done", 1.0)
        with self._changed:
            if name not in self._copies:
                if len(self._waiting) >= _MOST_WAITING:
                    raise BusyError("too many copies are waiting")
                self._copies[name] = _Copy(video)
                self._waiting.append(name)
                self._changed.notify_all()
            return self._copies[name].so_far()

    def _name(self, video: Path) -> str:
        """Fingerprint a file's content; computed once for each state of the file."""
        try:
            status = video.stat()
        except OSError:
            return video_fingerprint(video)  # reports why it cannot be read
        key = video, status.st_mtime_ns, status.st_size
        if key not in self._names:
            self._names[key] = video_fingerprint(video)
        return self._names[key]

    def _file(self, name: str) -> Path:
        return self._folder / f"{name}.{_FORMAT}{_SUFFIX}"

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._is_over or self._waiting)
                if self._is_over:
                    return
                name = self._waiting.popleft()
                copy = self._copies[name]
                copy.state = "making"
            try:
                self._folder.mkdir(parents=True, exist_ok=True)
                self._make(copy, self._file(name))
                self._make_room(self._file(name))
            except KeyboardInterrupt:
                copy.state = "waiting"
            except VitascopeError as error:
                copy.state, copy.error = "failed", one_line(error)
            except OSError as error:
                copy.state, copy.error = "failed", f"{self._folder}: {error.strerror or error}"
            else:
                with self._changed:
                    del self._copies[name]
            finally:
                copy.pipeline = None

    def _make(self, copy: _Copy, target: Path) -> None:
        threads = max(available_cores() - 1, 1)  # leave a core for the page's pictures
        with open_video(copy.video, threads=threads, grey_behind_alpha=True) as reader:
            info = reader.info
            size = _proxy_size(info)
            made = replace(info, width=size[1], height=size[0])
            encoding = choose_encoding(
                target,
                codec="h264",
                source_format=PIXEL_FORMATS["yuv420p"],
                bit_depth=8,
                speed="fast",
                threads=threads,
                size=size[::-1],
            )
            frames = FramesUntilDamage(reader)
            whole = [Region(0, 0, info.width, info.height)]

            def shrink(frame: Frame) -> Frame:
                is_small = size == (frame.height, frame.width)
                return frame if is_small else shrink_frame(frame, regions=whole, size=size)

            source = None if info.container == "images" else copy.video
            with VideoWriter(
                target,
                info=made,
                encoding=encoding,
                copy_from=source,
                sound_codecs=_COPIED_SOUND,
                hdr=reader.hdr,
            ) as writer:
                pipeline = Pipeline(
                    [Source("decode", frames), Map("shrink", shrink), Sink("encode", writer.write)]
                )
                with self._changed:
                    copy.pipeline, copy.expected = pipeline, reader.expected_frame_count
                    if self._is_over:
                        raise KeyboardInterrupt
                try:
                    pipeline.run()
                except KeyboardInterrupt:
                    writer.discard()
                    raise

    def _make_room(self, newest: Path) -> None:
        """Delete the least recently used copies until the rest fits."""
        files = [(file.stat(), file) for file in self._folder.glob(f"*{_SUFFIX}")]
        total = sum(known.st_size for known, _ in files)
        for known, file in sorted(files, key=lambda one: one[0].st_mtime_ns):
            if total <= self._most_bytes:
                break
            if file != newest:
                total -= known.st_size
                file.unlink(missing_ok=True)


def _proxy_size(info: VideoInfo) -> tuple[int, int]:
    """(height, width) of a copy, both even: the video's, or reduced to what is shown of it."""
    is_flat = info.stereo in (None, StereoLayout.MONO) and info.projection in (None, Projection.FLAT)
    # Without a VR box the shape decides: no flat video is as wide as two squares.
    side = _FLAT_SIDE if is_flat and info.width < 2 * info.height else _VR_SIDE
    shrink = max(max(info.width, info.height) / side, 1.0)
    height, width = (max(round(edge / shrink) & ~1, 2) for edge in (info.height, info.width))
    return height, width


Asked = Callable[[Request], Awaitable[Response]]


class Watched(NamedTuple):
    """A file to watch."""

    path: Path
    address: str
    """Address of its own bytes."""
    key_color: tuple[int, int, int] | None = None
    """8-bit RGB behind people, if that is known to be a key colour."""


class Watching:
    """Answers requests about videos being played.

    Args:
        proxies: Makes copies.
        wanted: Settings for videos' stereo layout and projection.
        find: Returns the requested file; raises an error if it does not exist.
    """

    def __init__(
        self, proxies: Proxies, wanted: VideoSettings, find: Callable[[Request], Awaitable[Watched]]
    ) -> None:
        self._proxies, self._wanted, self._find = proxies, wanted, find

    def answers(self, base: str) -> list[tuple[str, str, Asked]]:
        """Routes: method, path and handler.

        Args:
            base: Path prefix of a file.
        """
        return [
            ("GET", f"{base}/playing", self._playing),
            ("GET", f"{base}/proxy", self._proxy),
            ("POST", f"{base}/proxy", self._make),
        ]

    async def original(self, request: Request) -> Response:
        """Send the file, whole or in ranges (RFC 9110, 14)."""
        return in_ranges((await self._find(request)).path)

    async def _playing(self, request: Request) -> Response:
        watched = await self._find(request)

        def look() -> dict[str, Any]:
            info = probe(watched.path)
            vr = vr_of(info, self._wanted)
            copy = self._proxies.find(watched.path)
            return {
                "name": watched.path.name,
                "original": watched.address,
                "why_not": why_no_browser_plays(info),
                "has_copy": copy is not None,
                "width": info.width,
                "height": info.height,
                "layout": vr.layout.value,
                "right_eye_first": vr.right_eye_first,
                "is_packed_alpha": vr.is_packed_alpha,
                "key_color": watched.key_color,
                "lenses": [_plain(lens) for lens in vr.lenses],
            }

        return JSONResponse(await asyncio.to_thread(look))

    async def _make(self, request: Request) -> Response:
        watched = await self._find(request)
        copying: Copying = await asyncio.to_thread(self._proxies.make, watched.path)
        status = HTTPStatus.OK if copying.state in ("done", "failed") else HTTPStatus.ACCEPTED
        return JSONResponse(copying._asdict(), status_code=status)

    async def _proxy(self, request: Request) -> Response:
        watched = await self._find(request)
        copy = await asyncio.to_thread(self._proxies.find, watched.path)
        if copy is None:
            raise InputError(f"{watched.path.name}: there is no copy of it yet")
        return in_ranges(copy)


def in_ranges(path: Path, *, downloads: bool = False) -> FileResponse:
    """Send a file, whole or in ranges (RFC 9110, 14).

    Args:
        path: The file.
        downloads: Let the browser save it as a download.
    """
    return FileResponse(
        path,
        filename=path.name,
        content_disposition_type="attachment" if downloads else "inline",
        headers={"Cache-Control": "private, no-cache"},
    )


def _plain(lens: Lens) -> dict[str, Any]:
    """Describe a projection for the shader that shows it."""
    match lens:
        case Fisheye():
            return {
                "kind": "fisheye",
                "fov": lens.fov_degrees,
                "center": list(lens.center),
                "radius": list(lens.radius),
            }
        case Equirectangular():
            return {
                "kind": "equirectangular",
                "fov": lens.horizontal_fov_degrees,
                "tall": lens.vertical_fov_degrees,
            }
        case Rectilinear():
            return {
                "kind": "flat",
                "fov": lens.horizontal_fov_degrees,
                "tall": lens.vertical_fov_degrees,
            }
    raise AssertionError(lens)  # there is no other projection
