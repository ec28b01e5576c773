"""What a portrait needs more of an expression, measured with readers whose readings are known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from faces import made_face

from vitascope.animation.expression import ExpressionBasis
from vitascope.animation.face import BLENDSHAPE_INDEX, FaceMotion
from vitascope.animation.mesh.calibration import steady_reader
from vitascope.animation.mesh.response import measure_response
from vitascope.animation.tracking import FaceTracker


@pytest.fixture(scope="module")
def basis(mesh):
    return ExpressionBasis(mesh)


def reader(mesh, basis, *, of_jaw, in_smile):
    """Reads of a jaw's strength the share ``of_jaw``, in a full smile ``in_smile``."""
    fields = [basis.field("jawOpen"), basis.field("mouthSmileLeft") + basis.field("mouthSmileRight")]
    solve = np.linalg.pinv(np.stack([field.ravel() for field in fields]).T)
    face = made_face(mesh)

    def read(motion):
        jaw, smile = solve @ motion.vertices.ravel()
        weights = np.zeros(52, np.float32)
        weights[BLENDSHAPE_INDEX["jawOpen"]] = jaw * (of_jaw + (in_smile - of_jaw) * smile)
        return replace(face, blendshapes=weights)

    return read


def jaw_of(basis, response, *, jaw, smile):
    """The strength of the jaw in what is drawn when a driver opens it."""
    weights = np.zeros(52, np.float32)
    weights[BLENDSHAPE_INDEX["jawOpen"]] = jaw
    weights[[BLENDSHAPE_INDEX["mouthSmileLeft"], BLENDSHAPE_INDEX["mouthSmileRight"]]] = smile
    shown, _ = response.adjust(
        basis.displacement(weights), np.zeros(2, np.float32), FaceMotion(blendshapes=weights)
    )
    names = ("jawOpen", "mouthSmileLeft", "mouthSmileRight")
    solve = np.linalg.pinv(np.stack([basis.field(name).ravel() for name in names]).T)
    return float((solve @ shown.ravel())[0])


def test_a_jaw_is_opened_by_what_a_portrait_hides_of_it(mesh, basis):
    response = measure_response(basis, reader(mesh, basis, of_jaw=0.8, in_smile=0.8))
    assert jaw_of(basis, response, jaw=0.4, smile=0.0) == pytest.approx(0.5, abs=0.01)
    assert jaw_of(basis, response, jaw=0.4, smile=1.0) == pytest.approx(0.5, abs=0.01)


def test_a_smile_that_hides_the_jaw_opens_it_more(mesh, basis):
    response = measure_response(basis, reader(mesh, basis, of_jaw=0.8, in_smile=0.5))
    assert jaw_of(basis, response, jaw=0.4, smile=0.0) == pytest.approx(0.5, abs=0.01)
    assert jaw_of(basis, response, jaw=0.4, smile=0.5) == pytest.approx(0.65, abs=0.02)
    assert jaw_of(basis, response, jaw=0.4, smile=1.0) == pytest.approx(0.8, abs=0.02)


def test_a_jaw_is_opened_by_no_more_than_a_face_allows(mesh, basis):
    response = measure_response(basis, reader(mesh, basis, of_jaw=0.3, in_smile=0.3))
    assert jaw_of(basis, response, jaw=0.6, smile=0.0) == pytest.approx(0.6 + 0.55, abs=0.02)


def test_the_steady_reader_is_the_mean_of_finding_and_following(face_model, astronaut):
    with steady_reader(face_model) as read:
        first, second = read(astronaut), read(astronaut)
        assert read(np.zeros_like(astronaut)) is None
    with FaceTracker(face_model, mode="image", min_confidence=0.3) as tracker:
        found = tracker.find(astronaut)[0]
    with FaceTracker(face_model, min_confidence=0.3) as tracker:
        followed = [tracker.track(astronaut, pts_seconds=float(second)) for second in range(2)]
    for got, face in zip((first, second), followed, strict=True):
        assert np.allclose(got.blendshapes, (found.blendshapes + face.blendshapes) / 2, atol=1e-6)
