"""Tests of rotations, and of what motions do under them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitascope.animation.face import (
    BLENDSHAPES,
    FaceMotion,
    TrackedFace,
    angles_of,
    rotation_from_degrees,
    rotation_from_vector,
    rotation_vector,
)
from vitascope.errors import UsageError

angles = st.tuples(st.floats(-80, 80), st.floats(-80, 80), st.floats(-170, 170))


@given(angles)
def test_angles_come_back(turned):
    rotation = rotation_from_degrees(*turned)
    assert np.allclose(rotation @ rotation.T, np.eye(3), atol=1e-5)
    assert np.allclose(angles_of(rotation), turned, atol=0.05)


@given(st.lists(st.floats(-1.5, 1.5), min_size=3, max_size=3))
def test_rotation_vectors_come_back(vector):
    rotation = rotation_from_vector(np.array(vector))
    assert np.allclose(rotation_vector(rotation), vector, atol=2e-3)


def test_signs_are_those_of_the_picture():
    nose = np.array([0.0, 0.0, -1.0])  # towards the camera
    assert (rotation_from_degrees(20, 0, 0) @ nose)[0] > 0.3  # to the right
    assert (rotation_from_degrees(0, 20, 0) @ nose)[1] < -0.3  # up
    right = rotation_from_degrees(0, 0, 20) @ np.array([1.0, 0.0, 0.0])
    assert right[1] > 0.3  # clockwise


def test_blendshapes_are_arkits():
    assert len(BLENDSHAPES) == 52 == len(set(BLENDSHAPES))
    assert BLENDSHAPES[0] == "_neutral"


def moved(**changes):
    weights = np.zeros(52, np.float32)
    weights[25] = 0.8
    return FaceMotion(
        rotation=rotation_from_degrees(20, -10, 5),
        scale=1.2,
        translation=np.array([2.0, -1.0], np.float32),
        blendshapes=weights,
        vertices=np.ones((468, 3), np.float32),
        eye_closure=np.array([1.0, 0.5], np.float32),
        **changes,
    )


def test_relaxing_goes_to_neutral():
    motion = moved(presence=1.0)
    assert motion.relaxed(1.0).expression("jawOpen") == pytest.approx(0.8)
    half = motion.relaxed(0.5)
    assert half.expression("jawOpen") == pytest.approx(0.4)
    assert abs(half.angles_degrees[0]) < 12
    assert half.presence == 0.5
    still = motion.relaxed(0.0)
    assert np.allclose(still.rotation, np.eye(3), atol=1e-6)
    assert still.scale == 1.0
    assert not still.translation.any() and not still.vertices.any() and not still.eye_closure.any()


def test_towards_reaches_both_ends():
    a, b = FaceMotion(vertices=np.zeros((468, 3), np.float32)), moved()
    assert np.allclose(a.towards(b, 0.0).rotation, a.rotation, atol=1e-6)
    assert np.allclose(a.towards(b, 1.0).rotation, b.rotation, atol=1e-5)
    assert np.allclose(a.towards(b, 0.25).vertices, 0.25)


def test_a_face_of_the_wrong_shape_is_refused():
    with pytest.raises(ValueError, match="expected"):
        TrackedFace(
            np.zeros((468, 3), np.float32), np.zeros(52, np.float32), np.eye(4, dtype=np.float32), (1, 1)
        )


def test_what_is_no_weight_and_no_angle_is_refused():
    with pytest.raises(UsageError, match="no expression weight is called 'jawopen'; did you mean jawOpen"):
        FaceMotion.authored({"jawopen": 0.5})
    with pytest.raises(UsageError, match="the weight jawOpen is nan, expected a number"):
        FaceMotion.authored({"jawOpen": float("nan")})
    with pytest.raises(UsageError, match="yaw_degrees is '8', expected a number"):
        FaceMotion.authored(yaw_degrees="8")
