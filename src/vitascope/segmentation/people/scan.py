"""One look at a whole video: who is in it, when, and whose each part of the matte is.

It is a run like any other (``FilmRun``), of small pictures, whose mattes are looked at and not drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import closing, nullcontext
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Final

import cv2
import numpy as np
import numpy.typing as npt

from vitascope.config import LoadedSettings
from vitascope.device import available_cores
from vitascope.errors import ModelUnavailableError
from vitascope.frames import Frame
from vitascope.gpu.interchange import to_numpy
from vitascope.gpu.pipeline.stages import Map, Sink
from vitascope.models.finders import CenterFace, Face
from vitascope.models.network import MatteEstimate, NetworkInput
from vitascope.models.store.store import ModelStore
from vitascope.segmentation.film_run import FilmRun, FilmRunner, Started
from vitascope.segmentation.matting.batch import Batch, Estimator
from vitascope.segmentation.matting.cached_film import video_fingerprint
from vitascope.segmentation.matting.estimates import plain_rgb, small_alpha
from vitascope.segmentation.matting.networks import FetchProgress
from vitascope.segmentation.people.following import Box, Labelled, ShotFollower, everywhere
from vitascope.segmentation.people.identities import Identities
from vitascope.segmentation.people.motion import MotionField
from vitascope.segmentation.people.small_frames import SmallFrame, SmallFrames
from vitascope.segmentation.people.table import PeopleTable, PeopleWriter, table_path
from vitascope.segmentation.plan import no_picture_between
from vitascope.segmentation.render.renderer import Rendered
from vitascope.segmentation.writing import FramesUntilDamage

FloatMap = npt.NDArray[np.float32]

_NETWORK_SIDE: Final = 512
"""Longest side of the network's picture of a scan. With 384 it missed a man behind whom a workshop lay for seconds, who
then came out of the video as a part of another."""
_REACH = 0.06
"""How far somebody's surroundings go, as a share of the grid's longest side."""
_LOOKS_A_SECOND = 9
"""About so many: in most videos every third frame is looked at. The network is what a scan waits for."""
_FACE_HEIGHT = 192
_LOOKS_BETWEEN_FACES = 5
FindFaces = Callable[[npt.NDArray[np.uint8]], Sequence[Face]]


def find_people(
    video: Path,
    loaded: LoadedSettings,
    *,
    store: ModelStore,
    fetch_progress: FetchProgress | None = None,
    on_start: Callable[[Started], object] | None = None,
) -> PeopleTable:
    """Look at a video, and keep who is in it where ``known_people`` finds it.

    Args:
        video: The input.
        loaded: Its device, and how the video is read; the network is the usual one, so that everybody who scans the
            video gives people the same numbers.
        store: Where networks lie.
        fetch_progress: Told how far the download of a network is.
        on_start: Called once everything is open.

    Raises:
        InputError: The video cannot be read, or has no picture in the stretch that is wanted.
        OutputError: The result cannot be kept.
        ModelError: The network cannot be had.
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
            # One is wanted of the cluster's nodes; this machine may have none.
            **({} if loaded.settings.processing.cluster is None else {"gpu.device": "auto"}),
            "processing.enable_caching": False,
        }
    )
    wanted = quick.settings.video
    faces, note = _open_faces(store, fetch_progress)
    with (
        closing(faces) if faces is not None else nullcontext(),
        FilmRunner(quick, store=store, fetch_progress=fetch_progress) as runner,
        runner.open_video(video) as reader,
        PeopleWriter(table_path(video, wanted)) as writer,
    ):
        follower = FilmFollower(writer)
        frames, look_for_faces = SmallFrames(), FacesNowAndThen(None if faces is None else faces.find)
        watching: list[_Watching] = []

        def around(inner: Estimator, shown: NetworkInput) -> Estimator:
            watching.append(_Watching(inner, shown))
            return watching[0]

        with FilmRun(runner, reader, [], around=around) as film:
            source = FramesUntilDamage(reader)
            rate = reader.info.average_frame_rate
            step = max(round(float(rate) / _LOOKS_A_SECOND), 1) if rate else 1

            def shrink(rendered: Rendered) -> SmallFrame:
                return frames.next(*watching[0].seen.pop(rendered.index))

            pipeline = film.pipeline(
                _every(source, step),
                wants_alpha=lambda _: False,
                then=[
                    Map("shrink", shrink),
                    Map("faces", look_for_faces),
                    Sink("follow", lambda seen: follower.look(*seen)),
                ],
            )
            if on_start is not None:
                expected = reader.expected_frame_count
                looks = None if expected is None else -(-expected // step)
                on_start(Started(pipeline, looks, film.vr.doubts, is_scan=True))
            pipeline.run()
            source.raise_damage()
        if reader.decoded_count == 0:
            raise no_picture_between(video, wanted, reader.info)
        follower.finish()
        base = reader.info.time_base
        writer.finish(
            follower.identities.presences,
            faces=follower.faces(),
            time_base=(base.numerator, base.denominator),
            origin_pts=reader.origin_pts,
            video=video.name,
            fingerprint=video_fingerprint(video),
            begin_seconds=wanted.start_seconds,
            end_seconds=wanted.end_seconds,
            network=runner.chosen.network.name,
            notes=tuple(line for line in (runner.chosen.note, note) if line),
        )
    return PeopleTable(table_path(video, wanted))


def _open_faces(store: ModelStore, progress: FetchProgress | None) -> tuple[CenterFace | None, str | None]:
    """What finds faces, fetched when needed; or why there is nothing."""
    try:
        path = store.pull("centerface", progress=partial(progress, "centerface") if progress else None)
    except ModelUnavailableError as error:
        return (
            None,
            f"{error}; going on without faces: people who touch from the first frame on are taken for one until "
            "they part",
        )
    # The stages before and after want cores, too.
    return CenterFace(path, threads=max(available_cores() // 8, 1)), None


def _every(frames: Iterable[Frame], step: int) -> Iterable[Frame]:
    return frames if step == 1 else islice(frames, 0, None, step)


class _Watching:
    """An estimator that keeps what it was shown and what came of it, until somebody looks at it."""

    def __init__(self, inner: Estimator, shown: NetworkInput) -> None:
        self._inner, self._shown = inner, shown
        self.seen: dict[int, tuple[int, FloatMap, FloatMap, bool]] = {}
        """For a frame's number: pts, pictures [E, 3, h, w], mattes [E, h, w], and whether a shot begins."""

    def estimate(self, batch: Batch) -> list[MatteEstimate]:
        """The others' mattes."""
        estimates = self._inner.estimate(batch)
        for at, (frame, estimate) in enumerate(zip(batch.frames, estimates, strict=True)):
            images = batch.images[at]
            rgb = to_numpy(plain_rgb(images, self._shown)).astype(np.float32)
            alpha = to_numpy(small_alpha(estimate, images, self._shown))
            self.seen[frame.index] = frame.pts, rgb, alpha, batch.starts_shot[at]
        return estimates


class FacesNowAndThen:
    """Looks for faces in the first frame of each shot, and in some of those that follow.

    Args:
        find: Finds the faces of a picture, uint8 [h, w, 3]; None finds nothing.
    """

    def __init__(self, find: FindFaces | None) -> None:
        self._find = find
        self._wait = 0

    def __call__(self, frame: SmallFrame) -> tuple[SmallFrame, list[Box]]:
        """A frame, and its faces in cells, as ``FilmFollower.look`` takes them."""
        if self._find is None:
            return frame, []
        if self._wait > 0 and not frame.starts_shot:
            self._wait -= 1
            return frame, []
        self._wait = _LOOKS_BETWEEN_FACES
        picture = np.ascontiguousarray(frame.eye.transpose(1, 2, 0))
        found = self._find(np.rint(picture.clip(0, 1) * 255).astype(np.uint8))
        cell = frame.pixels_a_cell
        return frame, [
            (face.left / cell, face.top / cell, face.width / cell, face.height / cell) for face in found
        ]


class FilmFollower:
    """Follows the people of a video, shot by shot, and writes down whose each cell is.

    Args:
        writer: Takes it.
    """

    def __init__(self, writer: PeopleWriter) -> None:
        self._writer = writer
        self.identities = Identities()
        self._shot: ShotFollower | None = None
        self._other: dict[int, FloatMap] = {}
        self._best: dict[int, tuple[float, npt.NDArray[np.uint8]]] = {}
        self._faces: dict[int, tuple[float, npt.NDArray[np.uint8]]] = {}

    def look(self, frame: SmallFrame, faces: Sequence[Box]) -> None:
        """Look at the next frame.

        Args:
            frame: The next one that ``SmallFrames`` made.
            faces: Left, top, width and height of faces in cells; people who touch are told apart by them.
        """
        if frame.starts_shot:
            self.finish()
        if self._shot is None:
            self._shot = ShotFollower(frame.alpha.shape)
        if frame.other is not None:
            self._other[frame.pts] = frame.other
        for labelled in self._shot.follow(frame, faces=faces):
            self._write(labelled)
        self._picture(frame.eye, frame.matte)

    def finish(self) -> None:
        """The shot is over, or the video."""
        if self._shot is None:
            return
        for labelled in self._shot.finish():
            self._write(labelled)
        named = self.identities.recognise(self._shot.confirmed)
        for limb, whole in reversed(self._shot.limbs.items()):  # who became part of a part comes after it
            if whole in named:
                named[limb] = named[whole]
        self._writer.end_shot(named)
        for track, picture in self._best.items():
            if track in named:
                person = named[track]
                self._faces[person] = max(self._faces.get(person, picture), picture, key=lambda one: one[0])
        self._shot = None
        self._best.clear()
        self._other.clear()

    def faces(self) -> dict[int, bytes]:
        """A PNG of each person, where they were seen best."""
        pictures = {}
        for number, (_, rgb) in sorted(self._faces.items()):
            encoded, content = cv2.imencode(".png", cv2.cvtColor(rgb, cv2.COLOR_RGB2BGR))
            assert encoded
            pictures[number] = content.tobytes()
        return pictures

    def _write(self, labelled: Labelled) -> None:
        labels = everywhere(labelled.labels, reach=_REACH * max(labelled.labels.shape))
        eyes = [labels]
        place = self._other.pop(labelled.pts, None)
        if place is not None:
            eyes.append(MotionField.carried(labels, place, by="nearest"))
        self._writer.add(labelled.pts, np.stack(eyes).astype(np.uint8))

    def _picture(self, rgb: FloatMap, alpha: FloatMap) -> None:
        """Keep the best picture of each: large, and nobody before them."""
        assert self._shot is not None
        height, width = alpha.shape
        for track in self._shot.tracks.values():
            # Among others it may be somebody else's: such a picture only stands in until there is a better one.
            worth = float(track.mask.sum()) * (1.0 if self._shot.is_alone(track.number) else 0.1)
            if track.unseen or worth <= 1.1 * self._best.get(track.number, (0.0,))[0]:
                continue
            rows = np.flatnonzero(track.mask.max(axis=1) > 0.5) * height // track.mask.shape[0]
            columns = np.flatnonzero(track.mask.max(axis=0) > 0.5) * width // track.mask.shape[1]
            if not len(rows) or not len(columns):
                continue
            top, left = max(rows[0] - height // 40, 0), max(columns[0] - width // 40, 0)
            right = min(columns[-1] + width // 40, width)
            bottom = min(rows[-1] + height // 40, top + round(1.5 * max(right - left, 8)), height)
            cut = np.rint(rgb[:, top:bottom, left:right].transpose(1, 2, 0).clip(0, 1) * 255).astype(np.uint8)
            scale = _FACE_HEIGHT / cut.shape[0]
            size = max(round(cut.shape[1] * scale), 1), _FACE_HEIGHT
            self._best[track.number] = worth, np.asarray(cv2.resize(cut, size, interpolation=cv2.INTER_AREA))
