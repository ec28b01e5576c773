"""Fixtures of the animator's tests: the tracker's model, the canonical mesh, and a portrait with its face."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import numpy as np
import pytest


@pytest.fixture(scope="session")
def face_model(model_store, pull_or_skip) -> Path:
    """The file ``face_landmarker.task``, and MediaPipe to run it."""
    if importlib.util.find_spec("mediapipe") is None:
        give_up = pytest.fail if os.environ.get("VITASCOPE_REQUIRE_MODELS") == "1" else pytest.skip
        give_up("needs MediaPipe (the extra animate)")
    return pull_or_skip(model_store, "face-landmarker")


@pytest.fixture(scope="session")
def mesh(face_model):
    """The canonical face."""
    from vitascope.animation.canonical_mesh import read_canonical_mesh

    return read_canonical_mesh(face_model)


@pytest.fixture(scope="session")
def astronaut():
    """uint8 [512, 512, 3]."""
    from skimage import data  # not at the top: tests that need no photograph run without scikit-image

    return np.ascontiguousarray(data.astronaut())


@pytest.fixture(scope="session")
def astronaut_face(face_model, astronaut):
    """The astronaut's face, as tracked."""
    from vitascope.animation.tracking import FaceTracker

    with FaceTracker(face_model, mode="image") as tracker:
        return tracker.find(astronaut)[0]
