"""Tests from tracked faces to motion: pose apart from expression, neutrals, smoothing, and faces that come and go."""

from __future__ import annotations

import numpy as np
import pytest
from faces import made_face

from vitascope.animation.expression import ExpressionBasis
from vitascope.animation.face import FaceMotion
from vitascope.animation.motion import MotionEstimator
from vitascope.errors import UsageError


@pytest.fixture(scope="module")
def jaw(mesh):
    return ExpressionBasis(mesh).field("jawOpen")


def estimator(mesh, **options):
    return MotionEstimator(mesh, **{"neutral": "first", "pose_window": 1, "expression_window": 1, **options})


def test_pose_and_expression_are_taken_apart(mesh, jaw):
    following = estimator(mesh)
    following.update(made_face(mesh), pts_seconds=0.0)
    turned = following.update(made_face(mesh, yaw=15, pitch=-8, roll=5), pts_seconds=0.1)
    assert turned.angles_degrees == pytest.approx((15, -8, 5), abs=0.1)
    assert np.abs(turned.vertices).max() < 0.05
    opened = following.update(made_face(mesh, displacement=0.5 * jaw), pts_seconds=0.2)
    assert np.abs(opened.angles_degrees).max() < 2.5
    gap = opened.vertices[13, 1] - opened.vertices[14, 1]
    assert gap == pytest.approx(0.5 * (jaw[13, 1] - jaw[14, 1]), rel=0.1)


def test_moving_and_nearing(mesh):
    following = estimator(mesh)
    following.update(made_face(mesh, scale=10), pts_seconds=0.0)
    motion = following.update(made_face(mesh, scale=12, centre=(350, 230)), pts_seconds=0.1)
    assert motion.scale == pytest.approx(1.2, rel=1e-3)
    assert motion.translation == pytest.approx((3.0, -1.0), abs=0.05)  # centimetres of the neutral head


def test_a_driver_that_starts_with_an_open_mouth_is_no_trouble(mesh, jaw):
    following = estimator(mesh)
    first = following.update(made_face(mesh, displacement=jaw), pts_seconds=0.0)
    assert np.abs(first.vertices).max() < 1e-3  # it is the neutral face
    assert following.set_neutral(made_face(mesh))
    for step in range(1, 20):  # a crossfade, not a jump
        later = following.update(made_face(mesh, displacement=jaw), pts_seconds=step / 20)
        assert np.abs(later.vertices - first.vertices).max() < 1.3
        first = later
    assert later.vertices[14, 1] < -2


def test_a_film_begins_with_what_its_first_picture_shows(mesh, jaw):
    following = estimator(mesh)
    following.set_neutral(made_face(mesh))
    first = following.update(made_face(mesh, displacement=jaw, is_new=True), pts_seconds=0.0)
    assert first.presence == 1
    assert first.vertices[14, 1] < -2
    # A face that comes in later fades in.
    late = estimator(mesh)
    late.set_neutral(made_face(mesh))
    late.update(None, pts_seconds=0.0)
    motion = late.update(made_face(mesh, displacement=jaw, is_new=True), pts_seconds=0.1)
    assert motion.presence < 0.1


def test_auto_takes_the_calmest_face(mesh, jaw):
    following = estimator(mesh, neutral="auto")
    for index, yaw in enumerate((30, 25, 2, 20)):
        motion = following.update(made_face(mesh, yaw=yaw, seconds=index * 0.6), pts_seconds=index * 0.6)
    assert motion.angles_degrees[0] == pytest.approx(18, abs=1)
    assert following.find_neutral()


def test_without_a_face_there_is_only_the_neutral(mesh):
    following = estimator(mesh)
    motion = following.update(None, pts_seconds=0.0)
    assert isinstance(motion, FaceMotion) and motion.presence == 0
    assert np.allclose(motion.rotation, np.eye(3))
    assert not following.set_neutral()
    assert not following.find_neutral()


def test_a_lost_face_relaxes_and_comes_back_without_a_jump(mesh, jaw):
    following = estimator(mesh)
    following.update(made_face(mesh), pts_seconds=0.0)
    shown = [following.update(made_face(mesh, yaw=20, displacement=jaw, seconds=0.04), pts_seconds=0.04)]
    for step in range(2, 60):
        shown.append(following.update(None, pts_seconds=step * 0.04))
    assert shown[3].angles_degrees[0] == pytest.approx(20, abs=0.2)  # held for a moment
    assert abs(shown[-1].angles_degrees[0]) < 0.1  # neutral after some time
    assert shown[-1].presence == 0
    assert shown[-1].face is None
    for step in range(60, 90):
        face = made_face(mesh, yaw=-15, seconds=step * 0.04, is_new=step == 60)
        shown.append(following.update(face, pts_seconds=step * 0.04))
    yaws = np.array([motion.angles_degrees[0] for motion in shown])
    assert np.abs(np.diff(yaws)).max() < 5
    assert yaws[-1] == pytest.approx(-15, abs=0.2)


def test_smoothing_calms_pose_and_expression_apart(mesh):
    rng = np.random.default_rng(0)
    noise = rng.normal(scale=0.4, size=(120, 478, 3))

    def jitter(**windows):
        following = estimator(mesh, **windows)
        out = [
            following.update(made_face(mesh, seconds=i / 30, noise=n), pts_seconds=i / 30)
            for i, n in enumerate(noise)
        ][30:]
        angles = np.array([motion.angles_degrees for motion in out])
        return angles.std(), np.array([motion.vertices for motion in out]).std(axis=0).mean()

    raw, pose, face = jitter(), jitter(pose_window=8), jitter(expression_window=8)
    assert pose[0] < 0.7 * raw[0] and pose[1] == pytest.approx(raw[1], rel=0.05)
    assert face[1] < 0.7 * raw[1] and face[0] == pytest.approx(raw[0], rel=0.05)


def test_windows_have_a_least(mesh):
    with pytest.raises(UsageError, match="at least 1"):
        estimator(mesh, pose_window=0)


def test_motion_names_the_neutral_and_its_picture(mesh):
    following = estimator(mesh)
    pictures = [np.full((4, 4, 3), level, np.uint8) for level in range(4)]
    first, second, third = (made_face(mesh, seconds=at) for at in (0.0, 0.1, 0.2))
    motion = following.update(first, pts_seconds=0.0, driver_rgb=pictures[0])
    assert motion.neutral_face is first
    assert motion.neutral_rgb is pictures[0]
    motion = following.update(second, pts_seconds=0.1, driver_rgb=pictures[1])
    assert motion.neutral_rgb is pictures[0]
    assert following.set_neutral()
    motion = following.update(third, pts_seconds=0.2, driver_rgb=pictures[2])
    assert motion.neutral_face is second
    assert motion.neutral_rgb is pictures[1]
    assert following.set_neutral(third, rgb=pictures[3])
    assert following.update(third, pts_seconds=0.3, driver_rgb=pictures[2]).neutral_rgb is pictures[3]
