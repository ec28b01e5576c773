"""Fixtures for the animator's tests: the canonical mesh, and a portrait with its face."""

from __future__ import annotations

import numpy as np
import pytest

from kept_portraits import people_stay_found

__all__ = ["people_stay_found"]


@pytest.fixture(scope="session")
def mesh():
    """Return the canonical face."""
    from vitascope.animation.canonical_mesh import read_canonical_mesh

    return read_canonical_mesh()


@pytest.fixture(scope="session")
def astronaut():
    """Return the astronaut, uint8 [512, 512, 3]."""
    from skimage import data  # imported here, so that other tests run without scikit-image

    return np.ascontiguousarray(data.astronaut())


@pytest.fixture(scope="session")
def astronaut_face(face_model, astronaut):
    """Return the astronaut's face, as tracked."""
    from vitascope.animation.tracking import FaceTracker

    with FaceTracker(face_model, mode="image") as tracker:
        return tracker.find(astronaut)[0]
