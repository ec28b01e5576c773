"""The studio's server: the page, its API, and events over a WebSocket; the library does the work."""

from __future__ import annotations

import asyncio
import json
import secrets
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager, closing, suppress
from http import HTTPStatus
from importlib.resources import files
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple, TypeVar, get_args

import uvicorn
from pydantic import BaseModel, ValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.types import ASGIApp
from starlette.websockets import WebSocket, WebSocketDisconnect

from vitascope import __version__
from vitascope.config import SettingsSource
from vitascope.config.flags import PersonWord
from vitascope.config.hints import Mark
from vitascope.config.values import RgbColor
from vitascope.errors import InputError, OutputError, UsageError, VitascopeError, did_you_mean, one_line
from vitascope.frames import Projection
from vitascope.models.store.catalogue import is_loopback_host
from vitascope.models.store.store import ModelStore
from vitascope.segmentation.people.choice import meant_by
from vitascope.segmentation.people.hinted import marked_person
from vitascope.segmentation.people.table import PeopleTable, known_people
from vitascope.segmentation.render.rectified_views import has_rectified_views
from vitascope.studio.corrections import (
    WHAT_IS_SET,
    Corrections,
    CorrectionsClashError,
    change_corrections,
    hints_path,
    read_corrections,
    write_corrections,
)
from vitascope.studio.cuts import CutFinder
from vitascope.studio.guard import UPLOAD, Entrance, Guard, TlsFiles, reached_at
from vitascope.studio.library import Library, ListedFile, film_id, plain_name, receive
from vitascope.studio.openapi import openapi
from vitascope.studio.portraits import Portraits, Strength
from vitascope.studio.previews import BusyError, Preview, Previews, Wanted
from vitascope.studio.proxies import Proxies, Watched, Watching, in_ranges
from vitascope.studio.queue import Job, NoSuchJobError, Order, Queue, QueueFullError
from vitascope.studio.still_frames import Look, Pointed, places_in_eye

T = TypeVar("T")
_NEWS_SECONDS = 0.5
_MOST_LISTENERS = 100
_MOST_UPLOADS = 4
_RETRY_SECONDS = "5"
_LAST_ANSWERS_SECONDS = 1.0
"""How long the studio waits at its end for answers being sent."""
_PAGE_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


class FilmChangedError(UsageError):
    """The file has changed since the page read it."""


_STATUS: tuple[tuple[type[Exception], int], ...] = (
    (CorrectionsClashError, 409),
    (FilmChangedError, 409),
    (BusyError, 503),
    (QueueFullError, 503),
    (NoSuchJobError, 404),
    (UsageError, 422),
    (InputError, 404),
    (VitascopeError, 500),
)


class Studio:
    """The application behind the page, in ASGI; requests reach it through ``Guard``.

    Args:
        library: The videos that may be opened.
        source: Settings of previews and jobs.
        home: Folder for the queue and for results about videos.
        store: The store of networks.
    """

    def __init__(self, library: Library, source: SettingsSource, *, home: Path, store: ModelStore) -> None:
        self.library = library
        self._loop: asyncio.AbstractEventLoop | None = None
        self._listeners: set[asyncio.Queue[str]] = set()
        self._news = threading.Event()
        self._fetching: str | None = None
        self._uploads = 0
        settings = source.load().settings
        self._wanted, self._key_color = settings.video, settings.output.key_color
        self._home = home
        self.queue = Queue(
            home / "queue.json", source, store=store, may_use=library.holds, on_news=self._news.set
        )
        self.previews = Previews(source, store=store, fetch_progress=self._fetched)
        self.portraits = Portraits(source, store=store, fetch_progress=self._fetched)
        self.cuts = CutFinder(home / "cuts", self._wanted, on_news=self._tell_film)
        self.proxies = Proxies(home / "proxies", most_bytes=int(settings.processing.cache_size_gb * 1e9))
        self.watching = Watching(self.proxies, self._wanted, self._watched)

    def app(self, *, token: str, port: int, names: frozenset[str], with_page: bool = True) -> ASGIApp:
        """The application with its guard.

        Args:
            token: The secret in the address.
            port: Port of the server.
            names: Host names of the server.
            with_page: False for use by programs only.
        """
        api: list[tuple[str, str, Callable[[Request], Awaitable[Response]]]] = [
            ("GET", "/api/openapi.json", self._described),
            ("GET", "/api/studio", self._studio),
            ("GET", "/api/films", self._films),
            (*UPLOAD, self._upload),
            ("GET", "/api/films/{film}", self._film),
            ("GET", "/api/films/{film}/frame", self._frame),
            ("GET", "/api/films/{film}/media", self.watching.original),
            *self.watching.answers("/api/films/{film}"),
            ("POST", "/api/films/{film}/places", self._places),
            ("GET", "/api/films/{film}/cuts", self._cuts),
            ("GET", "/api/films/{film}/people", self._who),
            ("GET", "/api/films/{film}/people/at", self._who_at),
            ("GET", "/api/films/{film}/people/{number:int}.png", self._face),
            ("GET", "/api/films/{film}/corrections", self._corrections),
            ("PUT", "/api/films/{film}/corrections", self._correct),
            ("PATCH", "/api/films/{film}/corrections", self._change),
            ("GET", "/api/films/{film}/motion", self._motion),
            ("GET", "/api/films/{film}/animated", self._animated),
            ("POST", "/api/films/{film}/jobs", self._order),
            ("GET", "/api/jobs", self._jobs),
            ("GET", "/api/jobs/{job}", self._job),
            ("DELETE", "/api/jobs/{job}", self._stop),
            ("GET", "/api/jobs/{job}/files/{number:int}", self._file),
            *self.watching.answers("/api/jobs/{job}/files/{number:int}"),
        ]
        routes: list[BaseRoute] = [
            Route(path, self._answer(work), methods=[method]) for method, path, work in api
        ]
        routes.append(WebSocketRoute("/api/news", self._listen))
        if with_page:
            routes += [Route(path, self._page) for path in ("/", "/headset", "/page/{name}")]
        inner = Starlette(
            routes=routes, lifespan=self._lifespan, exception_handlers={HTTPException: _nothing_there}
        )
        entrance = Entrance(self._home / "cookie.key", port=port)
        return Guard(inner, token=token, entrance=entrance, names=names)

    def close(self) -> None:
        """Stop jobs, which start again next time, and free the network."""
        self.queue.close()
        self.cuts.close()
        self.proxies.close()
        self.portraits.close()
        self.previews.close()

    @asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
        self._loop = asyncio.get_running_loop()
        self.queue.start()
        teller = asyncio.create_task(self._tell_of_jobs())
        try:
            yield
        finally:
            teller.cancel()
            with suppress(asyncio.CancelledError):
                await teller
            await asyncio.to_thread(self.close)

    # The page

    async def _page(self, request: Request) -> Response:
        start = "headset.html" if request.url.path == "/headset" else "index.html"
        name = request.path_params.get("name", start)
        page = files("vitascope") / "studio" / "page" / name
        kind = _PAGE_TYPES.get(Path(name).suffix)
        # The router allows no slash in a name, so this is a file in that folder, or none.
        if kind is None or not page.is_file():
            return JSONResponse({"error": "there is no such page"}, status_code=404)
        content = page.read_bytes()
        if name == "index.html":
            content = content.replace(b"{{version}}", __version__.encode())
        return Response(content, media_type=kind, headers={"Cache-Control": "no-cache"})

    def _answer(
        self, work: Callable[[Request], Awaitable[Response]]
    ) -> Callable[[Request], Awaitable[Response]]:
        """Turn our errors into one line with a fitting status."""

        async def answer(request: Request) -> Response:
            try:
                return await work(request)
            except VitascopeError as error:
                status = next(status for kind, status in _STATUS if isinstance(error, kind))
                later = {"Retry-After": _RETRY_SECONDS} if status == HTTPStatus.SERVICE_UNAVAILABLE else None
                told = {"error": one_line(error), "code": type(error).__name__}
                return JSONResponse(told, status_code=status, headers=later)

        return answer

    # Films

    async def _studio(self, _: Request) -> Response:
        return JSONResponse({"version": __version__, "named": self.library.named})

    async def _described(self, _: Request) -> Response:
        return JSONResponse(openapi())

    async def _films(self, _: Request) -> Response:
        made = [path for job in self.queue.jobs() for path in job.made]
        films, pictures, voices = await asyncio.gather(
            asyncio.to_thread(self.library.films, without=made),
            asyncio.to_thread(self.library.pictures),
            asyncio.to_thread(self.library.voices),
        )
        return JSONResponse(
            {
                "films": [
                    {"id": film.id, "name": film.name, "corrected": hints_path(film.path).is_file()}
                    for film in films
                ],
                "pictures": [{"id": picture.id, "name": picture.name} for picture in pictures],
                "voices": [{"id": voice.id, "name": voice.name} for voice in voices],
            }
        )

    async def _upload(self, request: Request) -> Response:
        """Receive a file into the first given folder."""
        name, folder = plain_name(request.query_params.get("name", "")), self.library.folder
        if self._uploads >= _MOST_UPLOADS:
            raise BusyError("too many uploads at once")
        self._uploads += 1
        try:
            size_bytes = int(request.headers["content-length"])
            path = await receive(request.stream(), folder, name=name, size_bytes=size_bytes)
        except ClientDisconnect as error:
            raise UsageError(f"{name}: the upload was cut off") from error
        finally:
            self._uploads -= 1
        return JSONResponse({"id": film_id(path), "name": path.name}, status_code=HTTPStatus.CREATED)

    async def _found(self, request: Request) -> ListedFile:
        film = await asyncio.to_thread(self.library.find, request.path_params["film"])
        wanted = request.query_params.get("version")
        if wanted is not None and wanted != film.version:
            raise FilmChangedError(f"{film.name} has been replaced by another file")
        return film

    async def _film(self, request: Request) -> Response:
        film = await self._found(request)
        facts = await _waited(self.previews.facts(film))
        info, vr = facts.info, facts.vr
        eyes = 1 if vr.layout.value == "mono" else 2
        regions_wide = info.width // 2 if vr.layout.value == "side-by-side" else info.width
        regions_high = info.height // 2 if vr.layout.value == "top-bottom" else info.height
        is_upright = info.rotation_degrees in (0, 180)
        size = (regions_wide, regions_high) if is_upright else (regions_high, regions_wide)
        shown_wide = regions_wide * info.pixel_aspect
        return JSONResponse(
            {
                "id": film.id,
                "name": film.name,
                "version": film.version,
                "seconds": info.duration_seconds or 0.0,
                "frames_per_second": float(info.average_frame_rate or 25),
                "width": size[0],
                "height": size[1],
                "aspect": shown_wide / regions_high if is_upright else regions_high / shown_wide,
                "eyes": eyes,
                "layout": vr.layout.value,
                "projection": vr.projection.value,
                "is_vr": vr.projection is not Projection.FLAT,
                "looks_around": has_rectified_views(vr) and not info.rotation_degrees,
                "fov": vr.fov_degrees,
                "hints": hints_path(film.path).name,
            }
        )

    async def _frame(self, request: Request) -> Response:
        film, query = await self._found(request), request.query_params
        look = None
        if "yaw" in query:
            look = Look(
                _number(query, "yaw", -180, 180),
                _number(query, "pitch", -90, 90),
                _number(query, "fov", 30, 120),
            )
        picture = query.get("background")
        background = await asyncio.to_thread(self.library.find, picture) if picture else None
        wanted = Wanted(
            film=film,
            version=film.version,
            revision=query.get("revision", ""),
            seconds=_number(query, "t", 0, 1e6),
            view=query.get("view", "source"),
            beside=tuple(view for view in query.get("beside", "").split(",") if view),
            eye="right" if query.get("eye") == "right" else "left",
            longest_side=round(_number(query, "side", 1, 10_000, 960)),
            look=look,
            background=None if background is None else background.path,
            key_color=query.get("key_color"),
        )
        made: Preview = await _waited(self.previews.picture(wanted))
        return Response(
            made.jpeg,
            media_type="image/jpeg",
            headers={
                # A source picture never changes; a matted one depends on the settings of this start.
                "Cache-Control": "private, max-age=3600"
                if wanted.view == "source" and "version" in query
                else "no-store",
                "X-Seconds": f"{made.seconds:.6f}",
                "Server-Timing": f"picture;dur={made.milliseconds:.0f}",
            },
        )

    async def _places(self, request: Request) -> Response:
        """Map points chosen in a view to the eye's own picture."""
        film, given = await self._found(request), await _json(request)
        try:
            pointed = Pointed.model_validate(given)
        except ValidationError as error:
            raise UsageError(_first_fault(error, Pointed)) from error
        vr = (await _waited(self.previews.facts(film))).vr
        look = Look(pointed.yaw, pointed.pitch, pointed.fov)
        places = await asyncio.to_thread(places_in_eye, pointed.points, vr, eye=pointed.eye, look=look)
        return JSONResponse({"points": places})

    async def _cuts(self, request: Request) -> Response:
        film = await self._found(request)
        cuts = self.cuts.of(film, film.version)
        return JSONResponse(
            {
                "cuts": list(cuts.seconds),
                "looked_at": cuts.looked_at_seconds,
                "complete": cuts.is_complete,
                "error": cuts.error,
            }
        )

    # People

    def _table(self, film: ListedFile) -> PeopleTable | None:
        return known_people(film.path, self._wanted)

    async def _who(self, request: Request) -> Response:
        film = await self._found(request)
        table = await asyncio.to_thread(self._table, film)
        people = [] if table is None else [one.model_dump(mode="json") for one in table.people]
        notes = [] if table is None else list(table.facts.notes)
        meant = {} if table is None else await self._meant(film, table)
        return JSONResponse({"looked": table is not None, "people": people, "notes": notes, **meant})

    async def _meant(self, film: ListedFile, table: PeopleTable) -> dict[str, Any]:
        """The people meant by the corrections' words, clicks and boxes; each click as the corrections hold it."""
        hints = (await asyncio.to_thread(read_corrections, film.path)).hints
        marks = () if hints is None else hints.pointed
        right_eye_first = bool(marks) and (await _waited(self.previews.facts(film))).vr.right_eye_first

        def look() -> dict[str, Any]:
            return {
                "words": {word: sorted(meant_by(word, table.people)) for word in get_args(PersonWord)},
                "pointed": [
                    {
                        "mark": mark.model_dump(mode="json", **WHAT_IS_SET),
                        "person": marked_person(mark, table, right_eye_first=right_eye_first),
                    }
                    for mark in marks
                ],
            }

        return await asyncio.to_thread(look)

    async def _who_at(self, request: Request) -> Response:
        """The person at a position in an eye's upright picture; 0 for nobody."""
        film, query = await self._found(request), request.query_params
        seconds, x, y = (_number(query, "t", 0, 1e6), _number(query, "x", 0, 1), _number(query, "y", 0, 1))
        vr = (await _waited(self.previews.facts(film))).vr

        def look() -> int:
            table = self._table(film)
            if table is None:
                raise UsageError("nobody has searched this video for people yet")
            eye = "right" if query.get("eye") == "right" else "left"
            click = Mark.model_validate({"at": seconds, "click": (x, y), "eye": eye})
            return marked_person(click, table, right_eye_first=vr.right_eye_first)

        return JSONResponse({"person": await asyncio.to_thread(look)})

    async def _face(self, request: Request) -> Response:
        film = await self._found(request)
        table = await asyncio.to_thread(self._table, film)
        face = None if table is None else table.face(request.path_params["number"])
        if face is None:
            raise InputError("there is no picture of this person")
        return Response(face, media_type="image/png")

    # Portraits

    async def _motion(self, request: Request) -> Response:
        """The known motion of a driver's face; the first request starts reading it."""
        motion = self.portraits.motion(await self._found(request))
        return JSONResponse(
            {
                "seconds": motion.seconds[-1] if motion.is_complete else 0.0,
                "read": motion.read_share,
                "complete": motion.is_complete,
                "error": motion.error,
            }
        )

    async def _animated(self, request: Request) -> Response:
        """A portrait at one moment of a driver; at rest until that moment has been read."""
        driver, query = await self._found(request), request.query_params
        portrait = await asyncio.to_thread(self.library.find, query.get("portrait", ""))
        drawn = self.portraits.picture(
            portrait,
            self.portraits.motion(driver),
            seconds=_number(query, "t", 0, 1e6, 0),
            strength=Strength(_number(query, "expression", 0, 4, 1), _number(query, "pose", 0, 4, 1)),
            longest_side=round(_number(query, "side", 16, 1920, 960)),
        )
        return Response(await _waited(drawn), media_type="image/jpeg", headers={"Cache-Control": "no-store"})

    # Corrections

    async def _corrections(self, request: Request) -> Response:
        film = await self._found(request)
        told = await asyncio.to_thread(lambda: read_corrections(film.path).json)
        return Response(told, media_type="application/json")

    async def _correct(self, request: Request) -> Response:
        """Replace all of a video's corrections."""
        return await self._written(
            request, lambda video, given, at: write_corrections(video, given.get("hints"), revision=at)
        )

    async def _change(self, request: Request) -> Response:
        """Change some of a video's corrections; the others are neither sent nor rewritten."""
        return await self._written(
            request, lambda video, given, at: change_corrections(video, given.get("changes"), revision=at)
        )

    async def _written(
        self, request: Request, write: Callable[[Path, dict[str, Any], str], Corrections]
    ) -> Response:
        film, content = await self._found(request), await request.body()

        def work() -> tuple[str, str]:
            given = _object(content)
            written = write(film.path, given, str(given.get("revision")))
            return written.revision, str(given.get("window", ""))[:40]

        revision, window = await asyncio.to_thread(work)
        self._tell({"news": "corrections", "film": film.id, "revision": revision, "window": window})
        return JSONResponse({"revision": revision})

    # Jobs

    async def _order(self, request: Request) -> Response:
        film, given = await self._found(request), await _json(request)
        named = {name: given.pop(name, None) for name in ("background", "portrait")}
        paths = {
            name: (await asyncio.to_thread(self.library.find, str(picture))).path if picture else None
            for name, picture in named.items()
        }
        try:
            order = Order.model_validate({**given, **paths})
        except ValidationError as error:
            raise UsageError(_first_fault(error, Order)) from error
        if order.task == "cut" and order.kind == "replace" and order.background is None:
            raise UsageError("choose the picture to show behind people")
        if order.task == "animate" and order.portrait is None:
            raise UsageError("choose the portrait to animate")
        job = await asyncio.to_thread(self.queue.add, film.path, order)
        return JSONResponse(self._plain(job), status_code=HTTPStatus.CREATED)

    async def _jobs(self, _: Request) -> Response:
        return JSONResponse(self._state())

    async def _job(self, request: Request) -> Response:
        job = self.queue.find(request.path_params["job"])
        progress = self.queue.progress() if job.state == "running" else None
        told = None if progress is None else progress.model_dump(mode="json")
        return JSONResponse({**self._plain(job), "progress": told})

    async def _stop(self, request: Request) -> Response:
        await asyncio.to_thread(self.queue.stop, request.path_params["job"])
        return Response(status_code=HTTPStatus.NO_CONTENT)

    async def _file(self, request: Request) -> Response:
        """Send a file made by a job."""
        _, path = self._made(request)
        return in_ranges(path, downloads="download" in request.query_params)

    def _made(self, request: Request) -> tuple[Job, Path]:
        """A job and the requested file."""
        job, number = self.queue.find(request.path_params["job"]), request.path_params["number"]
        if not 0 <= number < len(job.made):
            raise InputError("the job made no such file")
        path = job.made[number]
        if not self.library.holds(path) or not path.is_file():
            raise InputError(f"{path.name}: no longer exists")
        return job, path

    async def _watched(self, request: Request) -> Watched:
        """A video of the folders, or a file made by a job."""
        if "film" in request.path_params:
            film = await self._found(request)
            return Watched(film.path, f"/api/films/{film.id}/media")
        job, path = self._made(request)
        key = RgbColor.parse(job.order.key_color or self._key_color)
        address = f"/api/jobs/{job.id}/files/{request.path_params['number']}"
        return Watched(path, address, key.as_tuple() if job.order.kind == "key" else None)

    def _plain(self, job: Job) -> dict[str, Any]:
        plain = job.model_dump(mode="json", exclude={"film", "made"})
        plain["film"], plain["film_id"] = job.film.name, film_id(job.film)
        plain["made"] = [
            {"name": path.name, "bytes": path.stat().st_size if path.is_file() else None} for path in job.made
        ]
        plain["is_named"] = self.library.holds(job.film)
        return plain

    def _state(self) -> dict[str, Any]:
        progress = self.queue.progress()
        return {
            "news": "jobs",
            "version": __version__,
            "jobs": [self._plain(job) for job in self.queue.jobs()],
            "progress": None if progress is None else progress.model_dump(mode="json"),
            "fetching": self._fetching,
            "problem": self.queue.problem,
        }

    # News

    async def _listen(self, socket: WebSocket) -> None:
        if len(self._listeners) >= _MOST_LISTENERS:
            await socket.close(code=1013)  # RFC 6455's registry: try again later
            return
        await socket.accept()
        news: asyncio.Queue[str] = asyncio.Queue(maxsize=64)
        self._listeners.add(news)
        try:
            await socket.send_text(json.dumps(self._state()))
            sending = asyncio.create_task(_send(socket, news))
            try:
                while True:  # nothing is expected; this notices when the page is closed
                    await socket.receive_text()
            finally:
                sending.cancel()
        except WebSocketDisconnect:
            pass
        finally:
            self._listeners.discard(news)

    async def _tell_of_jobs(self) -> None:
        """Send one text to all listeners, twice a second while something runs, and at once after a change."""
        while True:
            await asyncio.sleep(_NEWS_SECONDS)
            changed = self._news.is_set()
            self._news.clear()
            is_running = self.queue.progress() is not None or self._fetching is not None
            if self._listeners and (changed or is_running):
                self._tell(self._state())

    def _tell(self, news: Mapping[str, Any]) -> None:
        """Pass news to all listeners; slow ones miss the oldest. Call it on the loop's thread."""
        text = json.dumps(news)
        for listener in self._listeners:
            if listener.full():
                listener.get_nowait()
            listener.put_nowait(text)

    def _tell_film(self, film_id: str) -> None:
        """Report from another thread that more is known about a video."""
        loop = self._loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self._tell, {"news": "cuts", "film": film_id})

    def _fetched(self, model: str, done_bytes: int, total_bytes: int) -> None:
        is_there = done_bytes >= total_bytes
        self._fetching = None if is_there else f"{model} ({done_bytes // 10**6} of {total_bytes // 10**6} MB)"
        self._news.set()


async def _send(socket: WebSocket, news: asyncio.Queue[str]) -> None:
    with suppress(WebSocketDisconnect, RuntimeError):  # the page is closed
        while True:
            await socket.send_text(await news.get())


async def _nothing_there(request: Request, error: Exception) -> Response:
    """The answer to an unknown address, or to a method that it does not support."""
    assert isinstance(error, HTTPException)  # it is called for no other
    where = request.url.path
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        said = f"{where} does not support {request.method}; see /api/openapi.json"
    else:
        said = f"there is no {where}; see /api/openapi.json"
    told = {"error": said, "code": "UsageError"}
    return JSONResponse(told, status_code=error.status_code, headers=error.headers)


def _first_fault(error: ValidationError, of: type[BaseModel]) -> str:
    first = error.errors()[0]
    if first["type"] == "extra_forbidden":
        said = f"unknown field{did_you_mean(first['loc'][-1], of.model_fields)}"
    else:
        said = first["msg"].replace("Input should be", "expected", 1)
    return f"{'.'.join(map(str, first['loc']))}: {said}"


async def _waited(future: Future[T]) -> T:
    return await asyncio.wrap_future(future)


async def _json(request: Request) -> dict[str, Any]:
    return _object(await request.body())


def _object(content: bytes) -> dict[str, Any]:
    try:
        given = json.loads(content, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise UsageError("the request is not JSON") from error
    if not isinstance(given, dict):
        raise UsageError("the request is not a JSON object")
    return given


def _refuse_constant(name: str) -> None:
    """Refuse constants that Python's ``json`` accepts beyond JSON."""
    raise ValueError(f"{name} is not a JSON number")


def _number(
    query: Mapping[str, str], name: str, least: float, most: float, otherwise: float | None = None
) -> float:
    try:
        value = float(query.get(name, "") if otherwise is None else query.get(name, otherwise))
    except ValueError:
        value = float("nan")
    if not least <= value <= most:
        raise UsageError(f"{name}={query.get(name)}: expected a number from {least:g} to {most:g}")
    return value


class _Server(uvicorn.Server):
    """A server that on shutdown leaves no connection open and its jobs in order.

    A browser playing a video reads only what it will show soon. An answer that it stopped reading would never be sent
    completely, and its connection would outlive the event loop.
    """

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Shut down. Further signals are ignored: uvicorn would skip the end of the jobs and print a traceback."""
        if not self.should_exit:
            super().handle_exit(sig, frame)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Give answers a moment to be read, cut the others off, and end."""

        async def break_off() -> None:
            await asyncio.sleep(_LAST_ANSWERS_SECONDS)
            for connection in list(self.server_state.connections):
                connection.transport.abort()

        breaking_off = asyncio.create_task(break_off())
        try:
            await super().shutdown(sockets)
        finally:
            breaking_off.cancel()


class Opened(NamedTuple):
    """A server that is listening but not yet running."""

    address: str
    """Includes the token: anyone who has it may use the studio."""
    server: uvicorn.Server
    listening: socket.socket
    studio: Studio
    is_open_to_read: bool
    """True if others on the network can read the traffic: without TLS, and not only on this machine."""

    def run(self) -> None:
        """Serve until Ctrl-C, or until ``server.should_exit`` is set."""
        with closing(self.listening), suppress(KeyboardInterrupt):
            self.server.run(sockets=[self.listening])


def open_studio(
    named: Sequence[Path],
    source: SettingsSource,
    *,
    home: Path,
    host: str,
    port: int,
    token: str | None = None,
    with_page: bool = True,
    tls: TlsFiles | None = None,
) -> Opened:
    """Open the studio.

    Args:
        named: Folders and videos that may be opened.
        source: Settings of previews and jobs.
        home: Vitascope's home folder.
        host: Host to listen on.
        port: Port to listen on; 0 takes a free one.
        token: The secret that gives access; a new one when omitted.
        with_page: False for use by programs only.
        tls: Certificate and key for HTTPS; HTTP when omitted.

    Raises:
        InputError: A video or folder does not exist.
        ConfigError: Certificate and key cannot be used.
        UsageError: There is no such port.
        OutputError: The address cannot be used, or the queue cannot be read.
    """
    library = Library(named)
    names = frozenset({host.lower(), socket.gethostname().lower()})
    if tls is not None:
        tls.check()
        names |= tls.names()
    listening = _listening(host, port)
    try:
        port = int(listening.getsockname()[1])
        token = token or secrets.token_urlsafe(24)
        studio = Studio(library, source, home=home / "studio", store=ModelStore(home))
    except BaseException:
        listening.close()
        raise
    reached = reached_at(host)
    shown = f"[{reached}]" if ":" in reached else reached
    address = f"{'http' if tls is None else 'https'}://{shown}:{port}/" + (
        f"?token={token}" if with_page else "api/"
    )
    if with_page and len(named) == 1 and named[0].is_file():
        address += f"&film={film_id(named[0].resolve())}"
    config = uvicorn.Config(
        studio.app(token=token, port=port, names=names, with_page=with_page),
        log_level="error",
        access_log=False,
        server_header=False,
        ws_max_size=1 << 16,
        ws="websockets-sansio",
        timeout_graceful_shutdown=5,
        ssl_certfile=None if tls is None else tls.certificate,
        ssl_keyfile=None if tls is None else tls.key,
    )
    return Opened(
        address,
        _Server(config),
        listening,
        studio,
        is_open_to_read=tls is None and not is_loopback_host(host),
    )


def _listening(host: str, port: int) -> socket.socket:
    if not 0 <= port <= 65535:
        raise UsageError(f"--port: expected a port from 0 to 65535, not {port}")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio does not recognise a socket without a protocol number as TCP, and leaves Nagle's algorithm on: each
    # answer on a kept connection would wait 40 ms for an acknowledgement.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(128)
    except (OSError, UnicodeError) as error:  # the encoding of host names refused the name
        listening.close()
        reason = getattr(error, "strerror", None) or error
        raise OutputError(f"{host}:{port} cannot be used: {reason}; choose another --port") from error
    return listening
