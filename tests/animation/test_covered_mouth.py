"""Tests of a hand, a mask or a cup before a driver's mouth, painted over a face of known shape."""

from __future__ import annotations

from dataclasses import replace

import cv2
import numpy as np
import pytest
from faces import made_face

from vitascope.animation.canonical_mesh import (
    FACE_OVAL,
    INNER_LOWER_LIP,
    INNER_UPPER_LIP,
    OUTER_LOWER_LIP,
    OUTER_UPPER_LIP,
)
from vitascope.animation.covered_mouth import MouthWatch
from vitascope.animation.expression import basis_of
from vitascope.animation.face import BLENDSHAPE_INDEX
from vitascope.animation.mesh.lips import gap_cm
from vitascope.animation.motion import MotionEstimator

SKIN, LIPS = (200, 150, 125), (175, 95, 95)


def shut(mesh, **pose):
    """Return the canonical face, whose lips are parted, with closed lips."""
    basis = basis_of(mesh)
    apart = basis.lips_apart * np.float32(gap_cm(mesh.vertices) / gap_cm(basis.lips_apart))
    return made_face(mesh, displacement=-apart, **pose)


def picture(face, *, cover=None):
    """Draw the face, optionally with something in a colour over its mouth."""
    drawn = np.full((480, 640, 3), 90, np.uint8)

    def fill(rows, colour):
        cv2.fillPoly(drawn, [np.rint(face.landmarks[list(rows), :2]).astype(np.int32)], colour)

    fill(FACE_OVAL, SKIN)
    fill(OUTER_UPPER_LIP + OUTER_LOWER_LIP[::-1], LIPS)
    fill(INNER_UPPER_LIP + INNER_LOWER_LIP[::-1], (40, 15, 15))
    if cover is not None:
        x, y = np.rint(face.landmarks[[61, 291, 17], :2].mean(axis=0)).astype(int).tolist()
        cv2.ellipse(drawn, (x, y), (55, 45), 0, 0, 360, cover, -1)
    return drawn


@pytest.fixture
def watch(mesh):
    """Return a watch that knows the face."""
    knows = MouthWatch()
    for _ in range(20):
        assert not knows.is_covered(picture(shut(mesh)), shut(mesh))
    return knows


@pytest.mark.parametrize("cover", [SKIN, (190, 145, 125), (150, 150, 155), (235, 235, 235), (60, 90, 160)])
def test_a_hand_and_a_mask_are_noticed_until_they_go(mesh, watch, cover):
    face = shut(mesh)
    assert all(watch.is_covered(picture(face, cover=cover), face) for _ in range(30))
    assert not watch.is_covered(picture(face), face)


@pytest.mark.parametrize("light", [(0.6, 0.6, 0.6), (1.0, 0.85, 0.7), (0.8, 0.9, 1.0)])
def test_another_light_covers_no_mouth(mesh, watch, light):
    face = shut(mesh)
    lit = (picture(face) * np.array(light)).astype(np.uint8)
    assert not watch.is_covered(lit, face)


def test_an_open_mouth_is_not_covered_whatever_is_seen_in_it(mesh, watch):
    basis = basis_of(mesh)
    for open_by in (0.3, 1.0):
        face = made_face(mesh, displacement=basis.field("jawOpen") * np.float32(open_by))
        assert not watch.is_covered(picture(face), face)
        assert not watch.is_covered(picture(face, cover=(235, 235, 235)), face)


def test_somebody_new_and_few_pictures_say_nothing(mesh, watch):
    face = shut(mesh)
    new = replace(face, is_new=True)
    assert not watch.is_covered(picture(face, cover=SKIN), new)
    assert not MouthWatch().is_covered(picture(face, cover=SKIN), face)


def test_a_grey_film_has_no_red_to_lose(mesh):
    face, watch = shut(mesh), MouthWatch()
    for cover in [None] * 20 + [SKIN] * 5:
        grey = np.repeat(cv2.cvtColor(picture(face, cover=cover), cv2.COLOR_RGB2GRAY)[..., None], 3, axis=2)
        assert not watch.is_covered(np.ascontiguousarray(grey), face)


def test_a_cover_that_stays_is_what_is_usual_at_last(mesh, watch):
    face = shut(mesh)
    said = [watch.is_covered(picture(face, cover=(150, 150, 155)), face) for _ in range(200)]
    assert all(said[:150])
    assert not any(said[150:])


def test_a_mouth_at_the_border_of_the_picture_is_looked_at_where_it_is_seen(mesh):
    face, watch = shut(mesh, centre=(5, 475)), MouthWatch()
    for _ in range(20):
        assert not watch.is_covered(picture(face), face)


def test_a_covered_mouth_keeps_its_last_believed_shape_while_head_and_brows_go_on(mesh):
    basis = basis_of(mesh)
    jaw, brows = basis.field("jawOpen"), basis.field("browInnerUp")

    def face(displacement, **options):
        made = made_face(mesh, displacement=displacement, **options)
        weights = made.blendshapes.copy()
        weights[BLENDSHAPE_INDEX["jawOpen"]] = (
            0.5 if displacement is not None and displacement[14, 1] < -1 else 0
        )
        return replace(made, blendshapes=weights)

    following = MotionEstimator(mesh, neutral="first", pose_window=1, expression_window=1)
    following.update(face(None), pts_seconds=0.0)
    spoken = following.update(face(0.5 * jaw), pts_seconds=0.1)
    guessed = replace(face(brows, yaw=10), mouth_covered=True)  # shut lips
    held = following.update(guessed, pts_seconds=0.2)
    lips = [13, 14, 61, 291, 17]
    assert held.vertices[lips] == pytest.approx(spoken.vertices[lips], abs=0.1)
    assert held.expression("jawOpen") == pytest.approx(0.5, abs=0.01)
    assert held.angles_degrees[0] == pytest.approx(10, abs=0.5)
    assert held.vertices[[55, 285], 1].mean() > 0.4
    seen = following.update(face(brows, yaw=10), pts_seconds=0.3)
    assert np.abs(seen.vertices[lips]).max() < 0.1
    # Nothing is known of this new person yet.
    other = following.update(replace(face(None), mouth_covered=True, is_new=True), pts_seconds=0.4)
    assert np.isfinite(other.vertices).all()


def test_a_mouth_that_is_half_covered_does_not_close(mesh):
    """Regression: a shout became a word while a hand came up, and stayed one."""
    jaw = basis_of(mesh).field("jawOpen")
    following = MotionEstimator(mesh, neutral="first", pose_window=1, expression_window=1)
    following.update(made_face(mesh), pts_seconds=0.0)
    for frame, open_by in enumerate((0.9, 0.9, 0.8, 0.2), 10):
        following.update(made_face(mesh, displacement=open_by * jaw), pts_seconds=frame / 30)
    for frame in range(14, 60):
        covered = replace(made_face(mesh), mouth_covered=True)
        held = following.update(covered, pts_seconds=frame / 30)
        assert gap_cm(held.vertices) == pytest.approx(0.9 * gap_cm(jaw), abs=0.1)


def test_a_driver_that_begins_anew_leaves_no_mouths_to_believe(mesh):
    """Regression: times went back, and a wide mouth from the end was shown for a small covered one."""
    jaw = basis_of(mesh).field("jawOpen")
    following = MotionEstimator(mesh, neutral="first", pose_window=1, expression_window=1)
    following.update(made_face(mesh), pts_seconds=0.0)
    faces = [(60.0, 0.9), *((frame / 30, 0.2) for frame in range(10))]
    for seconds, open_by in faces:
        seen = made_face(mesh, displacement=open_by * jaw, seconds=seconds)
        following.update(seen, pts_seconds=seconds)
    held = following.update(replace(seen, mouth_covered=True), pts_seconds=0.3)
    assert gap_cm(held.vertices) == pytest.approx(0.2 * gap_cm(jaw), abs=0.1)


def test_a_covered_mouth_is_never_the_face_at_rest(mesh):
    jaw = basis_of(mesh).field("jawOpen")
    following = MotionEstimator(mesh, pose_window=1, expression_window=1)
    for step in range(30):
        following.update(made_face(mesh, displacement=0.3 * jaw), pts_seconds=step / 30)
    known = len(following._search)
    for step in range(30, 60):
        following.update(replace(made_face(mesh), mouth_covered=True), pts_seconds=step / 30)
    assert len(following._search) == known
