"""Tests of closing eyelids: where they meet, also on a turned face, and what they show."""

from __future__ import annotations

from dataclasses import replace

import cv2
import numpy as np
import pytest
from faces import SIZE, made_face

from vitascope.animation.canonical_mesh import EYES
from vitascope.animation.face import FaceMotion
from vitascope.animation.mesh.animator import MeshAnimator

SKIN, EYE, PUPIL = 150, 250, 10
YAWS = (0.0, 30.0, -30.0)


def closing(share):
    return FaceMotion(
        vertices=np.zeros((468, 3), np.float32), eye_closure=np.array([share, share], np.float32)
    )


def with_face(mesh, yaw):
    """Open an animator with a portrait: skin, and two bright eyes with pupils, a little larger than the landmarks."""
    face = made_face(mesh, yaw=yaw, scale=22.0)
    picture = np.full((SIZE[1], SIZE[0], 3), SKIN, np.uint8)
    for eye in EYES:
        corners = np.rint(face.landmarks[list(eye.outline), :2]).astype(np.int32)
        cv2.fillPoly(picture, [corners], (EYE, EYE, EYE))
        cv2.polylines(picture, [corners], True, (EYE, EYE, EYE), 3)
        x, y = np.rint(face.landmarks[eye.iris[0], :2]).astype(int)
        cv2.circle(picture, (int(x), int(y)), 7, (PUPIL, PUPIL, PUPIL), -1)
    animator = MeshAnimator(mesh)
    animator.set_portrait(picture, face=face)
    return animator, face


@pytest.mark.parametrize("yaw", YAWS)
def test_closed_lids_meet_on_both_sides_of_a_turned_face(mesh, yaw):
    animator, _ = with_face(mesh, yaw)
    open_places, closed_places = (animator.bent(closing(share)).places for share in (0.0, 1.0))
    for eye in EYES:
        upper, lower = list(eye.upper[1:-1]), list(eye.lower[1:-1])
        opening = np.linalg.norm(open_places[upper] - open_places[lower], axis=1)
        left = np.linalg.norm(closed_places[upper] - closed_places[lower], axis=1)
        assert opening.max() > 6
        assert left.max() < 0.5
        # The upper lid closes the eye: the lower one moves less than a third as much.
        moved = np.linalg.norm(closed_places - open_places[: len(closed_places)], axis=1)
        assert moved[lower[2:-2]].mean() < moved[upper[2:-2]].mean() / 3


def test_the_line_of_closed_lids_slopes_down_to_the_ear(mesh):
    animator, _ = with_face(mesh, 0.0)
    change = animator.bent(closing(1.0)).vertices - animator.bent(closing(0.0)).vertices
    for eye in EYES:
        assert change[eye.outer_corner, 1] < -0.1
        assert change[eye.inner_corner, 1] > 0.02


@pytest.mark.parametrize("yaw", YAWS)
def test_nothing_of_the_eye_is_left_when_it_is_closed(mesh, yaw):
    animator, face = with_face(mesh, yaw)
    still, shut = animator.animate(closing(0.0)), animator.animate(closing(1.0))
    for eye in EYES:
        points = face.landmarks[list(eye.outline + eye.lower_lid), :2]
        (left, top), (right, bottom) = np.floor(points.min(axis=0)).astype(int), np.ceil(points.max(axis=0))
        # Corners stay: the tear duct is not skin.
        inset = round(0.25 * (right - left))
        part = np.s_[top : int(bottom), left + inset : int(right) - inset]
        assert (still[part] > SKIN + 50).mean() > 0.2
        assert (shut[part] > SKIN + 50).mean() < 0.03  # for the far eye, 20 pixels wide


def test_an_open_eye_shows_its_own_lashes(mesh):
    animator, _ = with_face(mesh, 0.0)
    at_rest, half, shut = (animator.bent(closing(share)) for share in (0.0, 0.35, 1.0))
    edges = [point for eye in EYES for point in eye.upper[1:-1] + eye.lower[1:-1]]
    others = np.setdiff1d(np.arange(468), edges)
    assert np.array_equal(at_rest.lid_retracted, [0, 0]) and np.array_equal(shut.lid_retracted, [1, 1])
    assert np.allclose(half.lid_retracted, 0.5)
    halfway = (at_rest.sources[edges] + shut.sources[edges]) / 2
    assert np.abs(half.sources[edges] - halfway).max() < 1e-3
    assert np.array_equal(shut.sources[others], at_rest.sources[others])
    for eye in EYES:  # the skin is outside the landmarks, away from the eye
        upper = list(eye.upper[1:-1])
        assert (shut.sources[upper, 1] < at_rest.sources[upper, 1] - 0.5).all()


def test_lashes_are_dark_and_below_the_lid(mesh):
    animator, _ = with_face(mesh, 0.0)
    shut, bent = animator.animate(closing(1.0)), animator.bent(closing(1.0))
    for eye in EYES:
        x, y = bent.places[eye.upper[4]]
        column = shut[int(y) - 12 : int(y) + 13, round(float(x)), 0].astype(int)
        assert column[10:16].min() < 60  # the closed line
        assert column[:6].min() > SKIN - 30  # the lid above it
        assert column[-4:].min() > SKIN - 30  # the cheek
        assert column[13:18].mean() < column[7:12].mean()  # lashes hang


def test_one_closed_eye_leaves_the_other(mesh):
    animator, _ = with_face(mesh, 0.0)
    wink = replace(closing(0.0), eye_closure=np.array([1, 0], np.float32))
    bent = animator.bent(wink)
    assert np.array_equal(bent.lid_retracted, [1, 0])
    left = list(EYES[1].outline)
    assert np.array_equal(bent.sources[left], animator.bent(closing(0.0)).sources[left])


def test_the_lashes_of_a_blue_eye_are_not_blue(mesh):
    face = made_face(mesh, scale=22.0)
    picture = np.full((SIZE[1], SIZE[0], 3), (200, 150, 130), np.uint8)
    for eye in EYES:
        corners = np.rint(face.landmarks[list(eye.outline), :2]).astype(np.int32)
        cv2.fillPoly(picture, [corners], (235, 230, 225))
        x, y = np.rint(face.landmarks[eye.iris[0], :2]).astype(int)
        cv2.circle(picture, (int(x), int(y)), 9, (40, 75, 110), -1)
    with MeshAnimator(mesh) as animator:
        animator.set_portrait(picture, face=face)
        shut, bent = animator.animate(closing(1.0)), animator.bent(closing(1.0))
    for eye in EYES:
        x, y = np.rint(bent.places[eye.upper[4]]).astype(int)
        around = shut[y - 3 : y + 5, x].astype(int)
        line = around[around.sum(axis=1).argmin()]
        assert line.max() < 80  # the line is there
        assert line[0] >= line[1] >= line[2] - 2
