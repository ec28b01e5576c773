"""Draws a portrait as a recording would move it, frame by frame, with a run's driver, settings and animator.

The driver's motion is read once, as in a run, on its own thread; any of its frames can then be drawn at any strength,
on another thread, by a portrait that stays open.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Final, NamedTuple

import cv2
import numpy as np

from vitascope.animation.animator import OpenedAnimator, open_animator
from vitascope.animation.canonical_mesh import read_canonical_mesh
from vitascope.animation.drivers import open_driver
from vitascope.animation.face import FaceMotion
from vitascope.animation.mesh.animator import MeshAnimator
from vitascope.animation.motion import Mirror
from vitascope.animation.portrait import load_portrait, with_even_sides
from vitascope.animation.tracking import fetch_face_model
from vitascope.config import LoadedSettings, SettingsSource, vitascope_home
from vitascope.errors import UsageError, VitascopeError, one_line
from vitascope.gpu.pipeline.pipeline import Pipeline
from vitascope.models.store.store import ModelStore
from vitascope.studio.library import ListedFile
from vitascope.studio.still_frames import jpeg

_MOST_SECONDS: Final = 60.0
"""Seconds of a driver that are read for previews; a recording uses all of it."""
_MOTIONS_REMEMBERED, _PORTRAITS_OPEN = 4, 2
_AT_REST = FaceMotion()


class Strength(NamedTuple):
    """The strengths with which a portrait follows its driver; 1 is the driver's own."""

    expression: float
    pose: float


@dataclass
class Motion:
    """The part of a driver's motion read so far; written by one thread, read by others."""

    seconds: list[float] = field(default_factory=list)
    """Time of each frame, starting with the first one."""
    motions: list[FaceMotion] = field(default_factory=list)
    is_complete: bool = False
    error: str | None = None
    pipeline: Pipeline | None = None
    frame_count: int | None = None

    @property
    def read_share(self) -> float:
        """Share read so far, 0 to 1."""
        if self.is_complete:
            return 1.0
        if self.pipeline is None or not self.frame_count:
            return 0.0
        stages = self.pipeline.snapshot().stages
        return min(min(stage.items for stage in stages[: max(len(stages) - 1, 1)]) / self.frame_count, 0.99)

    def at(self, seconds: float) -> FaceMotion:
        """The motion at a time; at rest while nothing is known."""
        if not self.is_complete or not self.motions:
            return _AT_REST
        return self.motions[max(bisect_right(self.seconds, seconds + 1e-4) - 1, 0)]


class Portraits:
    """Draws portraits and reads drivers, for any number of threads.

    Args:
        source: Settings of the studio.
        store: The store of networks.
        fetch_progress: Called with the progress of a network's download.
    """

    def __init__(
        self, source: SettingsSource, *, store: ModelStore, fetch_progress: Callable[[str, int, int], None]
    ) -> None:
        self._source = source
        self._model = cache(lambda: fetch_face_model(store, fetch_progress))
        self._mesh = cache(read_canonical_mesh)
        self._reading = ThreadPoolExecutor(1, "vitascope-drivers")
        self._drawing = ThreadPoolExecutor(1, "vitascope-portraits")
        self._motions: OrderedDict[tuple[str, str], Motion] = OrderedDict()
        self._open: OrderedDict[tuple[str, str], tuple[OpenedAnimator, ExitStack]] = OrderedDict()
        self._is_over = False

    def close(self) -> None:
        """Stop reading, and close the portraits."""
        self._is_over = True
        for motion in self._motions.values():
            if motion.pipeline is not None:
                motion.pipeline.interrupt()
        self._reading.shutdown(cancel_futures=True)
        self._drawing.submit(self._close_portraits, 0).result()
        self._drawing.shutdown(cancel_futures=True)

    def motion(self, driver: ListedFile) -> Motion:
        """A driver's motion; the first call starts reading. Call it from one thread."""
        key = driver.id, driver.version
        if key not in self._motions:
            while len(self._motions) >= _MOTIONS_REMEMBERED:
                _, old = self._motions.popitem(last=False)
                if old.pipeline is not None:
                    old.pipeline.interrupt()
            self._motions[key] = Motion()
            self._reading.submit(self._read, driver, self._motions[key])
        self._motions.move_to_end(key)
        return self._motions[key]

    def picture(
        self, portrait: ListedFile, motion: Motion, *, seconds: float, strength: Strength, longest_side: int
    ) -> Future[bytes]:
        """A portrait at one moment of a driver, as JPEG; raises the errors of a run."""
        return self._drawing.submit(self._drawn, portrait, motion, seconds, strength, longest_side)

    def _settings(self) -> LoadedSettings:
        # LivePortrait needs the driver's pictures, which are not kept for previews.
        return self._source.load({"animation.animator": "mesh"}, chosen_by="vitascope studio")

    def _read(self, driver: ListedFile, motion: Motion) -> None:
        try:
            loaded = self._settings().with_values({"video.end_seconds": _MOST_SECONDS})
            with open_driver(
                driver.path, mesh=self._mesh(), model=self._model, settings=loaded.settings
            ) as source:
                pipeline = Pipeline(source.stages())
                mirror = Mirror(self._mesh()) if loaded.settings.animation.mirror else None
                motion.frame_count, motion.pipeline = source.frame_count, pipeline
                first: float | None = None
                with closing(pipeline.stream()) as driven:
                    for one in driven:
                        if self._is_over:
                            return
                        shown = float(one.time.pts * one.time.time_base)
                        first = shown if first is None else first
                        motion.seconds.append(shown - first)
                        motion.motions.append(one.motion if mirror is None else mirror(one.motion))
            if not any(one.presence > 0 for one in motion.motions):
                raise UsageError(f"{driver.name}: no face was found in it; nothing moves the portrait")
            motion.is_complete = True
        except VitascopeError as error:
            motion.error = one_line(error)
        except KeyboardInterrupt:  # no longer wanted
            motion.error = "stopped"
        finally:
            motion.pipeline = None

    def _drawn(
        self, portrait: ListedFile, motion: Motion, seconds: float, strength: Strength, longest_side: int
    ) -> bytes:
        animator = self._opened(portrait).animator
        assert isinstance(animator, MeshAnimator)  # set in ``_settings``
        animator.gains = replace(animator.gains, expression=strength.expression, pose=strength.pose)
        rgb = animator.animate(motion.at(seconds))
        shrink = max(rgb.shape[:2]) / longest_side
        if shrink > 1:
            size = round(rgb.shape[1] / shrink), round(rgb.shape[0] / shrink)
            rgb = np.asarray(cv2.resize(rgb, size, interpolation=cv2.INTER_AREA), np.uint8)
        return jpeg(rgb)

    def _opened(self, portrait: ListedFile) -> OpenedAnimator:
        key = portrait.id, portrait.version
        if key not in self._open:
            self._close_portraits(_PORTRAITS_OPEN - 1)
            loaded = self._settings().with_values({"gpu.device_ids": None})
            wanted = loaded.settings.animation
            found = load_portrait(
                portrait.path, model=self._model, face=wanted.face, max_side=wanted.max_side
            )
            with ExitStack() as stack:
                opened = open_animator(
                    with_even_sides(found),
                    mesh=self._mesh(),
                    model=self._model,
                    loaded=loaded,
                    home=vitascope_home(),
                    stack=stack,
                    live=True,
                )
                self._open[key] = opened, stack.pop_all()
        self._open.move_to_end(key)
        return self._open[key][0]

    def _close_portraits(self, left: int) -> None:
        while len(self._open) > left:
            self._open.popitem(last=False)[1][1].close()
