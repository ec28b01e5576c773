"""Check that the settings of ``tracking``, and decoding ahead, change what a driver returns."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import av
import numpy as np
import pytest

from clips import write_clip
from vitascope.animation.drivers import open_driver
from vitascope.config import load_settings
from vitascope.gpu.pipeline.pipeline import Pipeline

PORTRAIT = Path(__file__).parents[2] / "examples" / "astronaut.jpg"
FRAMES = 9


@pytest.fixture(scope="module")
def film(tmp_path_factory):
    """Write a video of two people who shake by two pixels."""
    with av.open(str(PORTRAIT)) as container:
        picture = next(container.decode(video=0)).to_ndarray(format="rgb24")
    head = picture[:256, 96:352]
    two = np.hstack([head, head[:, 16:240]])

    def paint(number):
        return np.roll(two, 2 * (number % 2), axis=1)

    path = tmp_path_factory.mktemp("driver") / "two.mkv"
    height, width = two.shape[:2]
    return write_clip(path, width=width, height=height, frame_count=FRAMES, paint=paint)


@pytest.fixture
def driven(film, mesh, face_model):
    """Read a driver with some settings."""

    def follow(*assignments):
        settings = load_settings(assignments=["animation.neutral=first", *assignments]).settings
        with (
            open_driver(film, mesh=mesh, model=lambda: face_model, settings=settings) as driver,
            closing(Pipeline(driver.stages()).stream()) as items,
        ):
            return list(items)

    return follow


def test_max_num_faces(driven):
    second = "tracking.follow=1"
    assert not any(item.has_face for item in driven(second, "tracking.max_num_faces=1"))
    assert all(item.has_face for item in driven(second, "tracking.max_num_faces=2"))


def test_refine_landmarks(driven):
    assert all(item.motion.blendshapes.max() > 0.1 for item in driven("tracking.refine_landmarks=true"))
    assert all(item.motion.blendshapes.max() == 0 for item in driven("tracking.refine_landmarks=false"))


def test_min_confidence(driven):
    assert all(item.has_face for item in driven("tracking.min_confidence=0.5"))
    assert not any(item.has_face for item in driven("tracking.min_confidence=1"))


@pytest.mark.parametrize("key", ["smoothing_window", "pose_smoothing_window"])
def test_smoothing_calms_what_trembles(driven, key):
    def tremor(window):
        items = driven("tracking.smoothing_window=1", f"tracking.{key}={window}")
        across = [float(item.motion.translation[0]) for item in items]
        return float(np.abs(np.diff(across[1:])).mean())

    assert tremor(60) < 0.6 * tremor(1)


def test_prefetch_frames(film, mesh, face_model):
    for frames, wanted in ((7, 7), (0, 1)):  # the decoder always passes one on
        settings = load_settings(assignments=[f"performance.prefetch_frames={frames}"]).settings
        with open_driver(film, mesh=mesh, model=lambda: face_model, settings=settings) as driver:
            assert driver.stages()[0].output.items == wanted
