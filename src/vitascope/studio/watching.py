"""Videos as the page plays them: the file itself in ranges, what it is, and a copy where a browser cannot play it.

The same of a video of the folders, below ``/api/films/{video}``, and of what a job made, below
``/api/jobs/{job}/files/{number}``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from pathlib import Path
from typing import Any, NamedTuple

from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response

from vitascope.config import VideoSettings
from vitascope.errors import InputError
from vitascope.media.reading.reader import probe
from vitascope.segmentation.layout import vr_of
from vitascope.studio.proxies import Copying, Proxies, why_no_browser_plays
from vitascope.vr.projection import Equirectangular, Fisheye, Lens, Rectilinear

Asked = Callable[[Request], Awaitable[Response]]


class Watched(NamedTuple):
    """A file that somebody wants to see."""

    path: Path
    address: str
    """Address of its own bytes."""
    key_color: tuple[int, int, int] | None = None
    """8-bit RGB behind people, where that is known to be a key."""


class Watching:
    """Answers requests about videos that are played.

    Args:
        wanted: What is known of videos' stereo layout and projection.
        find: The file that a request is about; raises where it is not there.
    """

    def __init__(
        self, proxies: Proxies, wanted: VideoSettings, find: Callable[[Request], Awaitable[Watched]]
    ) -> None:
        self._proxies, self._wanted, self._find = proxies, wanted, find

    def answers(self, base: str) -> list[tuple[str, str, Asked]]:
        """Methods, paths, and who answers."""
        return [
            ("GET", f"{base}/playing", self._playing),
            ("GET", f"{base}/proxy", self._proxy),
            ("POST", f"{base}/proxy", self._make),
        ]

    async def original(self, request: Request) -> Response:
        """The file, whole or in ranges (RFC 9110, 14)."""
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
            raise InputError(f"{watched.path.name}: no copy of it is made yet")
        return in_ranges(copy)


def in_ranges(path: Path, *, downloads: bool = False) -> FileResponse:
    """A file, whole or in ranges (RFC 9110, 14).

    Args:
        downloads: Have the browser put it among its downloads.
    """
    return FileResponse(
        path,
        filename=path.name,
        content_disposition_type="attachment" if downloads else "inline",
        headers={"Cache-Control": "private, no-cache"},
    )


def _plain(lens: Lens) -> dict[str, Any]:
    """A projection for the shader that shows it."""
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
