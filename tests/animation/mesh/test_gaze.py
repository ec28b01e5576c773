"""Tests of eyes that look aside: the iris moves over a white that stays."""

from __future__ import annotations

from dataclasses import replace

import cv2
import numpy as np
import pytest
from faces import SIZE, made_face

from vitascope.animation.canonical_mesh import EYES
from vitascope.animation.face import FaceMotion
from vitascope.animation.mesh.animator import MeshAnimator

SKIN, WHITE, IRIS, LINE = 150, 230, 20, 60


def looking(across, down=0.0):
    return FaceMotion(
        vertices=np.zeros((468, 3), np.float32), gaze=np.array([[across, down]] * 2, np.float32)
    )


def with_face(mesh, *, white=WHITE, line=False, shade=1.0, lashes=False, shrunk=1):
    """Open an animator with a portrait; also returns the portrait, and each iris's place and radius.

    ``line``: a dark inner corner; ``shade``: light below the upper lid; ``lashes``: a dark edge there;
    ``shrunk``: how many times smaller.
    """
    face = made_face(mesh, scale=22.0)
    landmarks = face.landmarks.copy()
    picture = np.full((SIZE[1], SIZE[0], 3), SKIN, np.uint8)
    irises = []
    for eye in EYES:
        outline = np.rint(landmarks[list(eye.outline), :2]).astype(np.int32)
        cv2.fillPoly(picture, [outline], (white,) * 3)
        centre, corner = landmarks[eye.iris[0], :2].copy(), landmarks[eye.inner_corner, :2]
        width = float(np.linalg.norm(landmarks[eye.outer_corner, :2] - corner))
        radius = 0.15 * width
        landmarks[list(eye.iris[1:]), :2] += radius * np.array([[1, 0], [0, 1], [-1, 0], [0, -1]])
        upper = [np.rint(landmarks[list(eye.upper), :2]).astype(np.int32)]
        cv2.polylines(picture, upper, False, (round(white * shade),) * 3, round(0.12 * width))
        if line:
            ends = [np.rint(corner + share * (centre - corner)).astype(int).tolist() for share in (0.05, 0.3)]
            cv2.line(picture, *ends, (LINE,) * 3, 1)
        ball, opening = picture.copy(), np.zeros(picture.shape[:2], np.uint8)
        cv2.circle(ball, np.rint(centre).astype(int).tolist(), round(radius), (IRIS,) * 3, -1)
        cv2.fillPoly(opening, [outline], 1)  # lids cover the iris
        picture[opening > 0] = ball[opening > 0]
        if lashes:
            cv2.polylines(picture, [upper[0] - [0, 3]], False, (LINE,) * 3, 5)
        irises.append((centre, radius, width))
    if shrunk > 1:
        size = SIZE[0] // shrunk, SIZE[1] // shrunk
        picture = cv2.resize(picture, size, interpolation=cv2.INTER_AREA)
        landmarks = (landmarks + 0.5) / np.float32(shrunk) - 0.5
        face = replace(face, picture_size=size)
        irises = [
            ((centre + 0.5) / shrunk - 0.5, radius / shrunk, width / shrunk)
            for centre, radius, width in irises
        ]
    animator = MeshAnimator(mesh)
    animator.set_portrait(picture, face=replace(face, landmarks=landmarks))
    return animator, picture, irises


def distances(centre):
    rows, columns = np.mgrid[: SIZE[1], : SIZE[0]]
    return np.hypot(columns - centre[0], rows - centre[1])


@pytest.mark.parametrize("gaze", [(0.25, 0.0), (-0.25, 0.0), (0.15, 0.05)])
def test_the_iris_moves_and_leaves_white_behind(mesh, gaze):
    animator, _, irises = with_face(mesh)
    made = animator.animate(looking(*gaze))[..., 0].astype(int)
    for centre, radius, width in irises:
        moved = centre + width * np.array(gaze)
        there = distances(moved) < 0.6 * radius
        assert np.median(made[there]) < IRIS + 15
        # Places that the iris has left.
        left = (distances(centre) < 0.8 * radius) & (distances(moved) > 1.5 * radius)
        if left.any():
            assert np.median(made[left]) > WHITE - 15


def test_what_an_iris_leaves_lies_in_the_shade_of_the_lid_as_the_white_beside_it_does(mesh):
    light = {}
    for shade in (0.6, 1.0):
        animator, _, irises = with_face(mesh, shade=shade)
        made = animator.animate(looking(-0.3))[..., 0].astype(int)
        light[shade] = [
            made[int(centre[1] - 0.4 * radius), int(centre[0])] / made[int(centre[1]), int(centre[0])]
            for centre, radius, _ in irises
        ]
    assert max(light[0.6]) < 0.9 and min(light[1.0]) > 0.98


def test_what_lies_beside_the_iris_is_not_drawn_along(mesh):
    """Check that a dark corner stays a corner, and is not stretched over the white."""
    animator, portrait, irises = with_face(mesh, line=True)
    made = animator.animate(looking(0.25))
    drawn = animator.animate(looking(1e-4))
    for centre, radius, width in irises:
        aside = distances(centre + np.array([0.25 * width, 0])) > 1.5 * radius
        away = (distances(centre) > 1.8 * radius) & (distances(centre) < 1.2 * width) & aside
        assert np.abs(made[away].astype(int) - drawn[away]).max() <= 4  # whites get a little lighter
        assert (portrait[away] == LINE).any()


def test_a_small_glance_is_a_small_change(mesh):
    animator, _, _ = with_face(mesh)
    still = animator.animate(looking(0.0))
    last = 0.0
    for across in (0.002, 0.01, 0.05, 0.2):
        change = np.abs(animator.animate(looking(across)).astype(int) - still).mean()
        assert last < change
        last = change
    assert np.abs(animator.animate(looking(0.002)).astype(int) - still).max() < 60


def test_a_white_in_the_shade_of_the_lids_is_lit_as_the_face_is(mesh):
    """Check that what the iris uncovers is as light as a white beside skin, not as the dark slivers beside it."""
    animator, portrait, irises = with_face(mesh, white=110)
    made = animator.animate(looking(0.3))[..., 0].astype(int)
    skin = float(np.median(portrait))
    for centre, radius, _ in irises:
        left = made[distances(centre) < 0.35 * radius]
        assert skin * 0.95 < np.median(left) < skin * 1.15


def test_an_eye_that_shows_no_white_gets_none(mesh):
    """Check a statue, or a cartoon with black eyes: uncovered places get the eye's own lightest colour."""
    animator, _, irises = with_face(mesh, white=IRIS + 10)
    made = animator.animate(looking(0.3))[..., 0].astype(int)
    for centre, radius, _ in irises:
        assert made[distances(centre) < 0.8 * radius].max() < IRIS + 30


@pytest.mark.parametrize("lashes", [True, False])
def test_the_lid_ends_in_a_dark_line_where_an_iris_was_if_the_portrait_has_one(mesh, lashes):
    animator, _, _ = with_face(mesh, lashes=lashes)
    assert animator._portrait is not None
    landmarks = animator._portrait.rig.face.landmarks
    for ball, eye in zip(animator._portrait.eyes, EYES, strict=True):
        upper = landmarks[eye.upper[4], :2]
        lower = landmarks[eye.lower[4], :2]
        edge, middle = (
            np.rint(upper + share * (lower - upper) - (ball.patch.left, ball.patch.top)).astype(int)
            for share in (0.0, 0.5)
        )
        share = ball.white[edge[1], edge[0]].mean() / ball.white[middle[1], middle[0]].mean()
        assert share < 0.7 if lashes else share > 0.9


@pytest.mark.parametrize("side", [-1, 1])
def test_an_iris_stays_between_the_corners_of_its_eye(mesh, side):
    animator, _, _ = with_face(mesh)
    assert animator._portrait is not None
    for eye in animator._portrait.eyes:
        corners = animator._portrait.rig.face.landmarks[[eye._eye.outer_corner, eye._eye.inner_corner], :2]
        for across, least in ((0.15, 0.14), (0.42, 0.2)):
            placed = eye.placed(animator.bent(looking(side * across)))
            assert placed is not None
            moved = eye.iris + placed.gaze_shift
            assert np.linalg.norm(corners - moved, axis=1).min() > 0.5 * eye.radius
            assert abs(placed.gaze_shift[0]) / eye._width > least


def test_a_small_eye_that_looks_aside_shows_its_white(mesh):
    """Check eyes of a dozen pixels, in which lids and iris were taken for the white: uncovered places stayed dark."""
    lights = []
    for shrunk in (1, 5):
        animator, _, irises = with_face(mesh, shade=0.3, shrunk=shrunk)
        made = [animator.animate(looking(side))[..., 0] for side in (-0.3, 0.3)]
        height, width = made[0].shape
        lights.append(
            np.mean(
                [
                    one[distances(centre)[:height, :width] < 0.8 * radius].mean()
                    for one in made
                    for centre, radius, _ in irises
                ]
            )
        )
    assert irises[0][2] < 12
    assert lights[1] > 0.75 * lights[0]
