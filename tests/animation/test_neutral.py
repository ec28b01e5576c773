"""Tests of finding the driver's face at rest among all frames, by geometry."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from faces import made_face

from vitascope.animation.canonical_mesh import EYES, INNER_LOWER_LIP, INNER_UPPER_LIP
from vitascope.animation.drivers import _MotionMaker, _Seen
from vitascope.animation.expression import ExpressionBasis
from vitascope.animation.face import BLENDSHAPE_INDEX
from vitascope.animation.face_reading import read_face
from vitascope.animation.motion import MotionEstimator
from vitascope.animation.neutral import NeutralSearch, is_same_person


@pytest.fixture(scope="module")
def basis(mesh):
    return ExpressionBasis(mesh)


@pytest.fixture(scope="module")
def shut(mesh):
    """Return the displacement that closes the lips, which are half a centimetre apart in the canonical face."""
    moved = np.zeros((468, 3), np.float32)
    for upper, lower in zip(INNER_UPPER_LIP[1:-1], INNER_LOWER_LIP[1:-1], strict=True):
        gap = mesh.vertices[upper, 1] - mesh.vertices[lower, 1]
        moved[upper, 1], moved[lower, 1] = -gap / 2, gap / 2
    return moved


@pytest.fixture
def posed(mesh, basis, shut):
    """Make a face with some expressions; its eyes may be partly closed, or look aside."""

    def make(
        *, seconds=0.0, closed=0.0, aside=0.0, is_new=False, bones=None, weights=False, pose=None, **shapes
    ):
        moved = shut.copy()
        for name, strength in shapes.items():
            moved = moved + basis.field(name) * np.float32(strength)
        if bones is not None:
            moved = moved + bones
        for eye in EYES:
            upper, lower = list(eye.upper[1:-1]), list(eye.lower[1:-1])
            moved[upper] += (mesh.vertices[lower] - mesh.vertices[upper]) * closed
        face = made_face(mesh, displacement=moved, seconds=seconds, is_new=is_new, **(pose or {}))
        landmarks = face.landmarks.copy()
        for eye in EYES:
            landmarks[list(eye.iris), 0] += aside * 30
        blendshapes = face.blendshapes.copy()
        for name, strength in shapes.items() if weights else ():
            blendshapes[BLENDSHAPE_INDEX[name]] = strength
        return replace(face, landmarks=landmarks, blendshapes=blendshapes)

    return make


@pytest.fixture
def wider(mesh):
    """Return a displacement that makes another person of the canonical face."""
    return mesh.vertices * np.array([0.12, -0.08, 0], np.float32)


def found(mesh, faces):
    search = NeutralSearch(mesh)
    for face in faces:
        search.add(face)
    return search.best()


@pytest.mark.parametrize(
    "wrong",
    [
        {"jawOpen": 0.15},
        {"closed": 0.8},
        {"aside": 0.6},
        {"mouthSmileLeft": 0.5, "mouthSmileRight": 0.5},
        {"pose": {"yaw": 14}},
        {"pose": {"scale": 16.0}},
    ],
    ids=["parted", "blinking", "glancing", "smiling", "turned", "near"],
)
def test_what_only_geometry_shows_is_no_rest(mesh, posed, wrong):
    """Check parted lips and a glance: they have no expression weight, and a network may be wrong."""
    usual = [posed(seconds=step, jawOpen=0.02) for step in range(1, 8)]
    neutral = found(mesh, [posed(seconds=0.0, **wrong), *usual])
    assert neutral.face.pts_seconds > 0
    assert np.abs(neutral.reading.vertices - read_face(mesh, usual[0]).vertices).max() < 0.02


def test_who_sits_askew_rests_askew(mesh, posed):
    faces = [posed(seconds=float(step), pose={"yaw": 18, "pitch": -9}) for step in range(30)]
    odd = posed(seconds=99.0, pose={"yaw": -2})
    assert found(mesh, [odd, *faces]).face.pts_seconds < 99


def test_a_moving_mouth_is_speaking_even_while_it_is_closed(mesh, posed):
    gaps = [0.0, 0.2, 0.0, 0.2, 0.0, 0.0, 0.0]
    faces = [posed(seconds=step / 25, jawOpen=gap) for step, gap in enumerate(gaps)]
    assert found(mesh, faces).face.pts_seconds >= 5 / 25


def test_noise_is_averaged_away(mesh, shut):
    rng = np.random.default_rng(0)
    faces = [
        made_face(mesh, displacement=shut, seconds=step / 25, noise=rng.normal(scale=0.4, size=(478, 3)))
        for step in range(60)
    ]
    still = read_face(mesh, made_face(mesh, displacement=shut)).vertices
    one = np.abs(read_face(mesh, faces[0]).vertices - still).mean()
    assert np.abs(found(mesh, faces).reading.vertices - still).mean() < 0.6 * one


def test_a_driver_who_always_grins_has_a_rest_without_the_grin(mesh, posed):
    grin = {"mouthSmileLeft": 0.9, "mouthSmileRight": 0.9, "jawOpen": 0.2}
    faces = [posed(seconds=step / 25, weights=True, **grin) for step in range(20)]
    rest = found(mesh, faces).reading
    still = read_face(mesh, posed())
    lips = [61, 291, 13, 14, 0, 17]
    before = np.linalg.norm(read_face(mesh, faces[0]).vertices[lips] - still.vertices[lips], axis=1).mean()
    assert np.linalg.norm(rest.vertices[lips] - still.vertices[lips], axis=1).mean() < 0.4 * before
    assert rest.blendshapes[BLENDSHAPE_INDEX["mouthSmileLeft"]] == pytest.approx(0)


def test_whose_grin_is_more_than_its_weights_has_lips_that_meet_in_line(mesh, posed):
    grin = {"mouthSmileLeft": 0.9, "mouthSmileRight": 0.9, "mouthUpperUpLeft": 0.6, "mouthUpperUpRight": 0.6}
    told = [
        BLENDSHAPE_INDEX[f"mouth{name}{side}"] for name in ("Smile", "UpperUp") for side in ("Left", "Right")
    ]
    faces = [posed(seconds=step / 25, **grin) for step in range(20)]
    weights = np.zeros_like(faces[0].blendshapes)
    weights[told] = 0.9, 0.9, 0.1, 0.1
    rest = found(mesh, [replace(face, blendshapes=weights) for face in faces]).reading.vertices
    upper, lower = rest[list(INNER_UPPER_LIP), 1], rest[list(INNER_LOWER_LIP), 1]
    assert (upper - lower).min() > -0.03
    assert (upper - lower).max() < 0.12
    assert np.abs((upper + lower) / 2 - np.linspace(upper[0], upper[-1], len(upper))).max() < 0.15


def test_lips_drawn_together_for_once_are_no_rest_of_who_always_grins(mesh, posed):
    grin = {"mouthSmileLeft": 0.9, "mouthSmileRight": 0.9, "jawOpen": 0.3}
    faces = [posed(seconds=float(step), weights=True, **grin) for step in range(30)]
    faces += [posed(seconds=99.0 + step, weights=True, mouthPucker=0.9) for step in range(2)]
    assert found(mesh, faces).face.pts_seconds < 99


def test_lips_that_never_meet_rest_closed_and_leave_the_chin(mesh, posed, shut):
    faces = [made_face(mesh, seconds=step / 25) for step in range(20)]  # half a centimetre apart
    rest = found(mesh, faces).reading.vertices
    assert 0.0 < rest[13, 1] - rest[14, 1] < 0.15
    assert abs(rest[152, 1] - read_face(mesh, faces[0]).vertices[152, 1]) < 0.3


def test_full_lips_that_are_parted_keep_their_shape(mesh, posed):
    faces = [posed(seconds=step / 25, weights=True, jawOpen=0.15, mouthPucker=0.29) for step in range(40)]
    before, rest = read_face(mesh, faces[0]), found(mesh, faces).reading
    assert rest.vertices[13, 1] - rest.vertices[14, 1] < 0.15
    width = np.ptp(before.vertices[[61, 291], 0])
    assert np.ptp(rest.vertices[[61, 291], 0]) == pytest.approx(width, rel=0.04)
    assert rest.blendshapes[BLENDSHAPE_INDEX["mouthPucker"]] == pytest.approx(0.29, abs=0.02)


@pytest.mark.parametrize(("gap", "rests_at"), [(0.05, 0.05), (0.12, 0.04), (0.2, 0.0), (0.3, 0.0)])
def test_lips_that_are_a_little_apart_at_rest_are_parted(mesh, posed, basis, gap, rests_at):
    """Check 0.3 cm, as in a painting; shut lips are read as up to 0.08 cm apart."""
    apart = basis.lips_apart * np.float32(gap / (basis.lips_apart[13, 1] - basis.lips_apart[14, 1]))
    neutral = found(mesh, [posed(seconds=step / 25, bones=apart) for step in range(20)])
    vertices = neutral.reading.vertices
    assert vertices[13, 1] - vertices[14, 1] == pytest.approx(rests_at, abs=0.01)


@pytest.mark.parametrize("yaw", [0.0, 25.0, -25.0])
def test_eyes_that_always_look_aside_rest_at_the_camera(mesh, posed, yaw):
    looks = {
        aside: found(mesh, [posed(seconds=step / 25, aside=aside, pose={"yaw": yaw}) for step in range(20)])
        .reading.irises[:, 0]
        .mean()
        for aside in (-0.5, 0.5)
    }
    at_the_camera = -0.25 * np.sin(np.radians(yaw))
    assert looks[-0.5] == pytest.approx(at_the_camera, abs=0.02)
    assert looks[0.5] == pytest.approx(at_the_camera, abs=0.02)


def test_people_are_told_apart_by_their_bones(mesh, posed, wider):
    one, same, other = (
        found(mesh, [posed(seconds=step / 25, bones=bones, **shape) for step in range(5)]).reading
        for bones, shape in ((None, {}), (None, {"mouthSmileLeft": 0.3}), (wider, {}))
    )
    assert is_same_person(one, same)
    assert not is_same_person(one, other)


def test_a_whole_driver_is_looked_at_before_its_first_picture_moves(mesh, posed):
    """Check a driver who speaks for four seconds and rests at the end: the first frame is measured from there."""
    maker = _MotionMaker(mesh, MotionEstimator(mesh), "auto", None)
    faces = [posed(seconds=step / 10, jawOpen=0.3 + 0.1 * (step % 3), is_new=step == 0) for step in range(40)]
    faces += [posed(seconds=4 + step / 10) for step in range(10)]
    driven = []
    for index, face in enumerate(faces):
        driven += maker.accumulate(_Seen(None, index, index / 10, face, None))
    assert not driven
    driven = list(maker.flush())
    assert [item.index for item in driven] == list(range(50))
    first, last = driven[0].motion.vertices, driven[-1].motion.vertices
    assert first[14, 1] < -0.5
    assert np.abs(last[[13, 14]]).max() < 0.1


def test_after_a_cut_to_somebody_else_there_is_another_neutral(mesh, posed, wider):
    maker = _MotionMaker(mesh, MotionEstimator(mesh), "auto", None)
    faces = []
    for step in range(45):
        part, within = divmod(step, 15)
        faces.append(
            posed(
                seconds=step / 10,
                is_new=within == 0,
                bones=wider if part == 1 else None,
                pose={"scale": 9.0 if part == 2 else 12.0},
            )
        )
    driven = []
    for index, face in enumerate(faces):
        driven += maker.accumulate(_Seen(None, index, index / 10, face, None))
    driven += maker.flush()
    for at in (14, 29, 44):  # each at rest, at the size in which its camera shows it
        assert np.abs(driven[at].motion.vertices).max() < 0.05
        assert driven[at].motion.scale == pytest.approx(1, abs=0.01)


def test_live_learning_goes_on(mesh, posed):
    """Check somebody who looks up at first, and down to the camera after five seconds."""
    following = MotionEstimator(mesh, pose_window=1)
    for step in range(90):
        seconds = step / 6
        face = posed(seconds=seconds, pose={"pitch": 16 if seconds < 5 else 0})
        motion = following.update(face, pts_seconds=seconds)
        if step == 29:
            assert motion.angles_degrees[1] == pytest.approx(0, abs=0.5)
    assert motion.angles_degrees[1] == pytest.approx(0, abs=0.5)
    motion = following.update(posed(seconds=15.0, pose={"pitch": 16}), pts_seconds=15.0)
    assert motion.angles_degrees[1] == pytest.approx(16, abs=0.5)


def test_live_somebody_else_gets_a_neutral_of_their_own(mesh, posed, wider):
    following = MotionEstimator(mesh, expression_window=1)
    moved = []
    for step in range(90):
        other = 30 <= step < 60
        face = posed(seconds=step / 10, is_new=step in (0, 30, 60), bones=wider if other else None)
        moved.append(np.abs(following.update(face, pts_seconds=step / 10).vertices).max())
    assert moved[29] < 0.05 and moved[59] < 0.05 and moved[89] < 0.05
