"""How a portrait is read while its response is measured: each picture twice, because one reading is uncertain."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np

from vitascope.animation.face import RgbPicture, TrackedFace
from vitascope.animation.tracking import FaceTracker

__all__ = ["steady_reader"]

_LEAST_CONFIDENCE = 0.3
"""Portraits are painted, too."""


@contextmanager
def steady_reader(model: Path) -> Iterator[Callable[[RgbPicture], TrackedFace | None]]:
    """A reader for ``MeshAnimator.calibrate``.

    MediaPipe reads the same picture differently as it frames the face: of a painting's small jaw opening 0.09 where it
    follows the face from the picture before, 0.16 where it finds it anew. So it does both, and weights are the mean.

    Args:
        model: The file ``face_landmarker.task``.

    Yields:
        Finds the face in a picture (uint8 [H, W, 3]); None when neither way finds one.

    Raises:
        MissingDependencyError: MediaPipe is not installed.
        ModelError: The file is no Face Landmarker.
    """
    with (
        FaceTracker(model, mode="image", min_confidence=_LEAST_CONFIDENCE) as anew,
        FaceTracker(model, mode="video", min_confidence=_LEAST_CONFIDENCE) as following,
    ):
        # A second between pictures: MediaPipe smooths what it follows over time.
        seconds = itertools.count()

        def read(rgb: RgbPicture) -> TrackedFace | None:
            ways = (next(iter(anew.find(rgb)), None), following.track(rgb, pts_seconds=float(next(seconds))))
            found = [face for face in ways if face is not None]
            if not found:
                return None
            weights = np.mean([face.blendshapes for face in found], axis=0)
            return replace(found[0], blendshapes=np.asarray(weights, np.float32))

        yield read
