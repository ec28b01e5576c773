"""Fixtures of the animator's tests: the canonical mesh, and a portrait with its face."""

from __future__ import annotations

import numpy as np
import pytest


@pytest.fixture(scope="session", autouse=True)
def people_are_found_once():
    """Dozens of tests open the same portraits, and half of the time to open one goes into finding its person."""
    from vitascope.animation.mesh import animator

    found, find = {}, animator.find_person

    def found_before(rgb, rig):
        key = rgb.tobytes(), rig.face.landmarks.tobytes(), rig.size, rig.box, rig.face_height
        if key not in found:
            found[key] = find(rgb, rig)
        return None if found[key] is None else found[key].copy()

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(animator, "find_person", found_before)
        yield


@pytest.fixture(scope="session")
def mesh():
    """The canonical face."""
    from vitascope.animation.canonical_mesh import read_canonical_mesh

    return read_canonical_mesh()


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
