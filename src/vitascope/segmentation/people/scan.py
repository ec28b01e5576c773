"""Scans a whole video for its people: who they are, when they are visible, and which part of the matte is theirs.

A scan is a run like any other (``FilmRun``), but with small pictures, and its mattes are analysed instead of drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from itertools import islice
from multiprocessing import current_process
from pathlib import Path
from time import sleep
from typing import Final

import cv2
import numpy as np
import numpy.typing as npt

from vitascope.config import LoadedSettings
from vitascope.device import Device
from vitascope.errors import BeingWrittenError
from vitascope.frames import Frame, Projection, StereoLayout, VideoInfo
from vitascope.gpu.interchange import to_numpy
from vitascope.gpu.pipeline.pipeline import Pipeline
from vitascope.gpu.pipeline.stages import Map, Source
from vitascope.models.network import MatteEstimate, NetworkInput
from vitascope.models.store.store import ModelStore
from vitascope.observe.report_values import Started
from vitascope.segmentation.film_run import FilmRun, FilmRunner
from vitascope.segmentation.matting.batch import Batch, Estimator
from vitascope.segmentation.matting.cached_film import video_fingerprint
from vitascope.segmentation.matting.cuts_between import CutsBetween
from vitascope.segmentation.matting.estimates import plain_rgb, small_alpha
from vitascope.segmentation.matting.networks import FetchProgress
from vitascope.segmentation.people.faces import FaceNetworks, FacesNowAndThen
from vitascope.segmentation.people.film_follower import (
    FilmFollower,
    FollowingProcess,
    Found,
    Settled,
    ShotEnded,
    Sighting,
)
from vitascope.segmentation.people.small_frames import Picture, SmallFrame, SmallFrames
from vitascope.segmentation.people.table import PeopleTable, PeopleWriter, table_path
from vitascope.segmentation.plan import no_picture_between
from vitascope.segmentation.render.renderer import Rendered
from vitascope.segmentation.writing import FramesUntilDamage
from vitascope.vr.detection import VrDescription

FloatMap = npt.NDArray[np.float32]

_NETWORK_SIDE: Final = 512
"""Longest side of the network's picture in a scan, in samples. With 384, it missed a man in front of a
workshop for seconds; he then became part of another person."""
_LOOKS_A_SECOND = 9
"""Approximate looks per second: every third frame of most videos. The network sets a scan's pace."""
_WAIT_SECONDS = 0.2


def find_people(
    video: Path,
    loaded: LoadedSettings,
    *,
    store: ModelStore,
    fetch_progress: FetchProgress | None = None,
    on_start: Callable[[Started], object] | None = None,
) -> PeopleTable:
    """Scan a video for people, and store the result for ``known_people``.

    If another run is scanning the video, this waits for it and uses its result.

    Args:
        video: The input.
        loaded: Its device, and how the video is read; the network is always the default one, so that every scan of
            the video gives people the same numbers.
        store: The store of networks.
        fetch_progress: Called with the progress of a network's download.
        on_start: Called once everything is open, and before waiting for another run.

    Raises:
        InputError: The video cannot be read, or has no picture in the requested part.
        OutputError: The result cannot be saved.
        ModelError: The network is unavailable.
        WorkerError: The process that follows people on a GPU ended unexpectedly, or cannot be started.
    """
    usual = type(loaded.settings)()
    quick = loaded.with_values(
        {
            "model": usual.model.model_copy(update={"input_size": _NETWORK_SIDE, "name": "auto"}),
            "inference": usual.inference,
            "edges": usual.edges,
            "people": usual.people,
            "gpu.device_ids": None,
            "processing.use_multiprocessing": False,
            "processing.cluster": None,
            # The cluster's nodes may have a GPU where this machine has none.
            **({} if loaded.settings.processing.cluster is None else {"gpu.device": "auto"}),
            "processing.enable_caching": False,
        }
    )
    wanted = quick.settings.video
    writer = _open_writer(table_path(video, wanted), on_start)
    if writer is None:
        return PeopleTable(table_path(video, wanted))
    with writer:
        return _look(video, quick, writer, store=store, fetch_progress=fetch_progress, on_start=on_start)


def _open_writer(path: Path, on_start: Callable[[Started], object] | None) -> PeopleWriter | None:
    """Claim a video's people file for writing; None if another run had it, and has written it."""
    before, waiting = _written_at(path), None
    while True:
        try:
            writer = PeopleWriter(path)
        except BeingWrittenError:
            if waiting is None:
                # It never runs: it lets a display follow the wait, and end it.
                waiting = Pipeline([Source("another run", ())])
                if on_start is not None:
                    doubts = ("another run is already looking for its people; waiting for it",)
                    on_start(Started(waiting, None, doubts, is_scan=True))
            if waiting.halted:
                raise KeyboardInterrupt from None
            sleep(_WAIT_SECONDS)
            continue
        if waiting is None or _written_at(path) == before:
            return writer
        with writer:  # the other run's result stays
            return None


def _written_at(path: Path) -> int | None:
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return None


def _look(
    video: Path,
    quick: LoadedSettings,
    writer: PeopleWriter,
    *,
    store: ModelStore,
    fetch_progress: FetchProgress | None,
    on_start: Callable[[Started], object] | None,
) -> PeopleTable:
    """Scan a video with these settings, and write its people."""
    wanted = quick.settings.video
    with (
        FaceNetworks(store, fetch_progress) as faces,
        FilmRunner(quick, store=store, fetch_progress=fetch_progress) as runner,
        runner.open_video(video) as reader,
        _open_follower(runner.device) as follower,
    ):
        frames = SmallFrames()
        watching: list[_Watching] = []

        def around(inner: Estimator, shown: NetworkInput) -> Estimator:
            watching.append(_Watching(inner, shown))
            return watching[0]

        with FilmRun(runner, reader, [], around=around) as film:
            aspect = _pixel_aspect(reader.info, film.vr)
            look_for_faces = FacesNowAndThen(faces.find, faces.describe, pixel_aspect=aspect)
            pictures = BestPictures(pixel_aspect=aspect)
            source = FramesUntilDamage(reader)
            rate = reader.info.average_frame_rate
            step = max(round(float(rate) / _LOOKS_A_SECOND), 1) if rate else 1

            def write(found: Iterable[Found], eye: Picture | None) -> None:
                for one in found:
                    if isinstance(one, Settled):
                        writer.add(one.pts, one.labels)
                    elif isinstance(one, ShotEnded):
                        writer.end_shot(one.named)
                        pictures.end_shot(one.named)
                    elif eye is not None:
                        pictures.note(one, eye)

            def shrink(rendered: Rendered) -> tuple[SmallFrame, Picture]:
                return frames.next(*watching[0].seen.pop(rendered.index))

            looks: Iterable[Frame] = islice(source, 0, None, step)
            if step > 1:
                matting, threshold = film.job.matting, wanted.scene_cut_threshold
                looks = cuts = CutsBetween(source, step, eye=matting.regions[0], threshold=threshold)
                matting.told_changes = cuts.change

            pipeline = film.pipeline(
                looks,
                wants_alpha=lambda _: False,
                then=[
                    Map("shrink", shrink),
                    Map("faces", look_for_faces),
                    *follower.stages(write),
                ],
            )
            if on_start is not None:
                expected = reader.expected_frame_count
                expected_looks = None if expected is None else -(-expected // step)
                on_start(Started(pipeline, expected_looks, film.vr.doubts, is_scan=True))
            pipeline.run()
            source.raise_damage()
        if reader.decoded_count == 0:
            raise no_picture_between(video, wanted, reader.info)
        presences = follower.finish(write)
        base = reader.info.time_base
        writer.finish(
            presences,
            faces=pictures.pngs(),
            time_base=(base.numerator, base.denominator),
            origin_pts=reader.origin_pts,
            video=video.name,
            fingerprint=video_fingerprint(video),
            begin_seconds=wanted.start_seconds,
            end_seconds=wanted.end_seconds,
            network=runner.chosen.network.name,
            notes=tuple(line for line in (runner.chosen.note, *faces.notes) if line),
        )
    return PeopleTable(table_path(video, wanted))


def _pixel_aspect(info: VideoInfo, vr: VrDescription) -> float:
    """Displayed width over height of an eye's pixel, upright; through a lens, as its projection says."""
    aspect = 1 / info.pixel_aspect if info.rotation_degrees in (90, 270) else info.pixel_aspect
    if vr.is_half and vr.projection is Projection.FLAT:
        aspect *= 2 if vr.layout is StereoLayout.SIDE_BY_SIDE else 0.5
    return aspect


def _open_follower(device: Device) -> AbstractContextManager[FilmFollower | FollowingProcess]:
    """Open the follower; for a GPU in its own process, unless this process may not start any, as in a pool."""
    if device.kind == "cpu" or current_process().daemon:
        return nullcontext(FilmFollower())
    return FollowingProcess()


class _Watching:
    """An estimator that keeps its input and output until they are read."""

    def __init__(self, inner: Estimator, shown: NetworkInput) -> None:
        self._inner, self._shown = inner, shown
        self.seen: dict[int, tuple[int, FloatMap, FloatMap, bool]] = {}
        """By frame number: pts, pictures [E, 3, h, w], mattes [E, h, w], and whether a shot begins."""

    def estimate(self, batch: Batch) -> list[MatteEstimate]:
        """The inner estimator's mattes."""
        estimates = self._inner.estimate(batch)
        for at, (frame, estimate) in enumerate(zip(batch.frames, estimates, strict=True)):
            images = batch.images[at]
            rgb = to_numpy(plain_rgb(images, self._shown)).astype(np.float32)
            alpha = to_numpy(small_alpha(estimate, images, self._shown))
            self.seen[frame.index] = frame.pts, rgb, alpha, batch.starts_shot[at]
        return estimates


_PICTURE_HEIGHT: Final = 192


class BestPictures:
    """Keeps the best picture of each person: large, and not hidden by others.

    Args:
        pixel_aspect: Width of a pixel over its height, upright; pictures have square ones.
    """

    def __init__(self, *, pixel_aspect: float = 1.0) -> None:
        self._pixel_aspect = pixel_aspect
        self._tracks: dict[int, tuple[float, Picture]] = {}
        self._people: dict[int, tuple[float, Picture]] = {}

    def note(self, sighting: Sighting, eye: Picture) -> None:
        """Keep a picture.

        Args:
            sighting: The person's place in the frame.
            eye: The frame, uint8 [H, W, 3].
        """
        height, width = eye.shape[:2]
        first_row, last_row = (row * height // sighting.grid[0] for row in sighting.rows)
        first_column, last_column = (column * width // sighting.grid[1] for column in sighting.columns)
        top, left = max(first_row - height // 40, 0), max(first_column - width // 40, 0)
        right = min(last_column + width // 40, width)
        bottom = min(last_row + height // 40, top + round(1.5 * max(right - left, 8)), height)
        cut = eye[top:bottom, left:right]
        width = cut.shape[1] * _PICTURE_HEIGHT / cut.shape[0] * self._pixel_aspect
        size = max(round(width), 1), _PICTURE_HEIGHT
        small = np.asarray(cv2.resize(cut, size, interpolation=cv2.INTER_AREA), np.uint8)
        self._tracks[sighting.track] = sighting.worth, small

    def end_shot(self, named: Mapping[int, int]) -> None:
        """Give the pictures of a shot's tracks to people; ``named`` has the person's number for each track's."""
        for track, picture in self._tracks.items():
            if track in named:
                person = named[track]
                self._people[person] = max(self._people.get(person, picture), picture, key=lambda one: one[0])
        self._tracks.clear()

    def pngs(self) -> dict[int, bytes]:
        """A PNG, 192 pixels high, for each person's number."""
        pictures = {}
        for number, (_, rgb) in sorted(self._people.items()):
            encoded, content = cv2.imencode(".png", cv2.cvtColor(rgb, cv2.COLOR_RGB2BGR))
            assert encoded
            pictures[number] = content.tobytes()
        return pictures
