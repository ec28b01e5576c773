"""Makes frames as a cut would, with the network, corrections and renderer of a run.

There are two threads, each with its own open videos: one only decodes, so that source pictures and thumbnails never
wait for the network; the other runs the network.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any, Final, NamedTuple, TypeVar, get_args

from vitascope.config import LoadedSettings, OutputKind, SettingsSource
from vitascope.errors import ConfigError, UsageError, VitascopeError
from vitascope.frames import Frame, VideoInfo
from vitascope.media.reading.reader import open_video
from vitascope.models.store.store import ModelStore
from vitascope.segmentation.capacity import suited_to_device
from vitascope.segmentation.film_run import FilmRun, FilmRunner
from vitascope.segmentation.layout import vr_of
from vitascope.segmentation.matting.networks import FetchProgress
from vitascope.segmentation.people.hinted import Keeping
from vitascope.segmentation.render.renderer import Rendered
from vitascope.studio.corrections import Corrections, hints_path, read_corrections
from vitascope.studio.library import ListedFile
from vitascope.studio.still_frames import EyeName, FilmFrames, Look, OpenFilms, jpeg, upright_eye
from vitascope.vr.detection import VrDescription

T = TypeVar("T")
View = str
"""``source``, or what a cut can write: ``mask``, ``key``, ``blur``, ``replace``, ``overlay``, ``cutout``."""
_VIEWS: Final = ("source", "mask", "key", "blur", "replace", "overlay", "cutout")
_MOST_WAITING = 24
_REMEMBERED = 128
_FRAMES_REMEMBERED = 6
"""Number of matted frames kept at full size, so that looking around in one, or at its other eye, needs no new matte."""
_THUMB_SIDE = 160
_LONGEST_SIDES = (_THUMB_SIDE, 480, 640, 960, 1280, 1920)


class BusyError(VitascopeError):
    """More pictures were requested than can be made; try again later."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A picture of a video."""

    film: ListedFile
    version: str
    """Identifies the state of the video's file."""
    revision: str
    """Identifies the state of its corrections; a source picture has none."""
    seconds: float
    view: View
    beside: tuple[View, ...] = ()
    """Further views requested of the same frame, which cost little if made together."""
    eye: EyeName = "left"
    longest_side: int = 960
    look: Look | None = None
    background: Path | None = None
    """Background behind people in ``replace``."""
    key_color: str | None = None


class Preview(NamedTuple):
    """A finished picture."""

    jpeg: bytes
    seconds: float
    """The exact time of its frame."""
    milliseconds: float
    """Time taken; 0 for a remembered picture."""


@dataclass(frozen=True, slots=True)
class FilmFacts:
    """The facts about a video that the page needs."""

    info: VideoInfo
    vr: VrDescription


class Previews:
    """Makes pictures of videos, for any number of threads.

    Args:
        source: Settings of the studio; each video's corrections are applied on top.
        store: The store of networks.
        fetch_progress: Called with the progress of a network's download.
    """

    def __init__(
        self, source: SettingsSource, *, store: ModelStore, fetch_progress: FetchProgress | None = None
    ) -> None:
        self._source, self._store, self._fetch_progress = source, store, fetch_progress
        self._loaded = source.load()
        self._decoding = ThreadPoolExecutor(1, "vitascope-frames")
        self._matting = ThreadPoolExecutor(1, "vitascope-previews")
        self._runner: FilmRunner | None = None
        self._films = OpenFilms(lambda path: open_video(path, threads=2))
        self._matted_films = OpenFilms(self._open_for_network)
        self._remembered: OrderedDict[tuple[object, ...], Preview] = OrderedDict()
        self._frames: OrderedDict[tuple[object, ...], tuple[Frame, VrDescription]] = OrderedDict()
        self._lock = threading.Lock()
        self._waiting = 0
        self._is_warm = False

    def close(self) -> None:
        """Finish current previews, and free the network."""
        for executor, last in ((self._decoding, self._films.close), (self._matting, self._close_matting)):
            executor.submit(last).result()
            executor.shutdown(cancel_futures=True)

    def facts(self, film: ListedFile) -> Future[FilmFacts]:
        """Describe a video; raises ``InputError`` if it cannot be read. The network is opened in the meantime."""
        if not self._is_warm:
            self._is_warm = True
            self._matting.submit(self._warm)

        def look() -> FilmFacts:
            frames = self._films.get(film.path, film.version)
            return FilmFacts(frames.reader.info, self._vr(frames))

        return self._submit(self._decoding, look)

    def picture(self, wanted: Wanted) -> Future[Preview]:
        """A preview picture; raises the errors of a run.

        Raises:
            UsageError: There is no such view or size.
            BusyError: Too many pictures are waiting.
        """
        unknown = {wanted.view, *wanted.beside} - set(_VIEWS)
        if unknown:
            raise UsageError(f"view {sorted(unknown)[0]!r}: expected one of {', '.join(_VIEWS)}")
        if wanted.longest_side not in _LONGEST_SIDES:
            raise UsageError(
                f"side {wanted.longest_side}: expected one of {', '.join(map(str, _LONGEST_SIDES))}"
            )
        if wanted.view == "source":
            return self._submit(self._decoding, lambda: self._shown(wanted))
        return self._submit(self._matting, lambda: self._matted(wanted))

    def _submit(self, executor: ThreadPoolExecutor, work: Callable[[], T]) -> Future[T]:
        with self._lock:
            if self._waiting >= _MOST_WAITING:
                raise BusyError("too many pictures requested at once")
            self._waiting += 1

        def done(_: Future[T]) -> None:
            with self._lock:
                self._waiting -= 1

        future = executor.submit(work)
        future.add_done_callback(done)
        return future

    def _shown(self, wanted: Wanted) -> Preview:
        """Make a source picture, which only needs decoding."""
        began = perf_counter()
        frames = self._films.get(wanted.film.path, wanted.version)
        key = _key(replace(wanted, revision="", beside=(), background=None, key_color=None))
        if (known := self._recall(key)) is not None:
            return known
        frame = frames.frame_at(wanted.seconds)
        made = self._encoded(frame, frames, self._vr(frames), wanted, began)
        self._remember(key, made)
        return made

    def _matted(self, wanted: Wanted) -> Preview:
        """Make the picture as the run would write it; the others requested with it are remembered."""
        key = _key(wanted)
        if (known := self._recall(key)) is not None:
            return known
        began = perf_counter()
        frame_key = _frame_key(wanted)
        if frame_key not in self._frames:
            self._matte(wanted)
        self._frames.move_to_end(frame_key)
        frame, vr = self._frames[frame_key]
        frames = self._matted_films.get(wanted.film.path, wanted.version)
        made = self._encoded(frame, frames, vr, wanted, began)
        self._remember(key, made)
        return made

    def _matte(self, wanted: Wanted) -> None:
        """Matte a frame, and keep its pictures."""
        loaded = settings_of(
            self._source,
            read_corrections(wanted.film.path),
            wanted.film.path,
            {
                "output.background": wanted.background,
                **({} if wanted.key_color is None else {"output.key_color": wanted.key_color}),
            },
        )
        runner = self._opened(loaded)
        frames = self._matted_films.get(wanted.film.path, wanted.version)
        frame = frames.frame_at(wanted.seconds)
        vr = vr_of(frames.reader.info, loaded.settings.video)
        views = [view for view in dict.fromkeys((wanted.view, *wanted.beside)) if view != "source"]
        rendered = _run(runner, frames, frame, vr, views)
        for view, picture in zip(views, rendered.pictures, strict=True):
            self._frames[_frame_key(replace(wanted, view=view))] = picture, vr
        while len(self._frames) > max(_FRAMES_REMEMBERED, len(views)):
            self._frames.popitem(last=False)

    def _encoded(
        self, frame: Frame, frames: FilmFrames, vr: VrDescription, wanted: Wanted, began: float
    ) -> Preview:
        picture = upright_eye(
            frame,
            vr,
            eye=wanted.eye,
            longest_side=wanted.longest_side,
            info=frames.reader.info,
            look=wanted.look,
        )
        return Preview(jpeg(picture), frames.seconds_of(frame), (perf_counter() - began) * 1e3)

    def _opened(self, loaded: LoadedSettings) -> FilmRunner:
        # One frame needs one process, however jobs are distributed.
        loaded = suited_to_device(
            loaded.with_values({"gpu.device_ids": None, "processing.use_multiprocessing": False}),
            self._store,
        )
        if self._runner is None:
            self._runner = FilmRunner(
                loaded, store=self._store, keeps_mattes=False, fetch_progress=self._fetch_progress
            )
        self._runner.take(loaded)
        return self._runner

    def _warm(self) -> None:
        with suppress(VitascopeError):  # the first picture reports why it cannot be made
            self._opened(self._loaded)

    def _open_for_network(self, path: Path) -> Any:
        assert self._runner is not None  # opened before its videos
        return self._runner.open_video(path)

    def _close_matting(self) -> None:
        self._matted_films.close()
        if self._runner is not None:
            self._runner.close()

    def _vr(self, frames: FilmFrames) -> VrDescription:
        return vr_of(frames.reader.info, self._loaded.settings.video)

    def _recall(self, key: tuple[object, ...]) -> Preview | None:
        with self._lock:
            if key not in self._remembered:
                return None
            self._remembered.move_to_end(key)
            return self._remembered[key]._replace(milliseconds=0.0)

    def _remember(self, key: tuple[object, ...], made: Preview) -> None:
        with self._lock:
            self._remembered[key] = made
            while len(self._remembered) > _REMEMBERED:
                self._remembered.popitem(last=False)


def settings_of(
    source: SettingsSource, corrections: Corrections, video: Path, values: Mapping[str, Any]
) -> LoadedSettings:
    """Settings of the studio with a video's corrections.

    Args:
        source: Settings of the studio.
        corrections: Content of the video's hints file.
        video: The video.
        values: More settings by dotted key.

    Raises:
        ConfigError: The corrections have an error (the message names its line), or a value is out of range.
    """
    if corrections.hints is None:
        raise ConfigError(corrections.error or "the corrections cannot be read")
    hints = {"people.hints": hints_path(video)} if hints_path(video).is_file() else {}
    return source.load({**hints, **values}, chosen_by="vitascope studio")


def _run(
    runner: FilmRunner, frames: FilmFrames, frame: Frame, vr: VrDescription, views: Sequence[View]
) -> Rendered:
    """Process one frame as in the pipeline of a video."""
    reader, settings = frames.reader, runner.settings
    outputs: list[tuple[OutputKind, Path]] = [(_kind(view), Path("preview.mp4")) for view in views]
    kinds = [
        (kind, encoding)
        for (kind, _), encoding in zip(outputs, runner.encodings(reader, outputs), strict=True)
    ]
    around = None
    if settings.people.active:
        moment = frames.seconds_of(frame)
        around = Keeping(reader, vr, settings, moment=moment, open_salient=runner.open_salient).around
    with FilmRun(runner, reader, kinds, around=around) as film:
        pipeline = film.pipeline([frame], wants_alpha=lambda _: False, first_frame_soon=True)
        with closing(pipeline.stream()) as steps:
            rendered: Rendered = next(iter(steps))
            return rendered


def _kind(view: View) -> OutputKind:
    return next(kind for kind in get_args(OutputKind) if kind == view)


def _key(wanted: Wanted) -> tuple[object, ...]:
    """The key shared by equal pictures."""
    return (*_frame_key(wanted), wanted.eye, wanted.longest_side, wanted.look)


def _frame_key(wanted: Wanted) -> tuple[object, ...]:
    """The key shared by pictures of one matted frame."""
    return (
        wanted.film.path,
        wanted.version,
        wanted.revision,
        round(wanted.seconds, 3),
        wanted.view,
        wanted.background,
        wanted.key_color,
    )
