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
from vitascope.animation.mesh.lashes import LASHES_BOTTOM, LASHES_LEFT, LASHES_RIGHT, LASHES_TOP, shut_lashes

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
        line = int(column.argmin())
        assert column[line + 1 : line + 7].mean() < column[line - 6 : line].mean()  # lashes hang


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


@pytest.mark.parametrize("width", [12.0, 45.0, 160.0, 2000.0])
def test_lashes_fade_downward_as_peoples_do(width):
    """Against the means of eight people, shut; of lashes with 0.28 of the skin's light."""
    cover = shut_lashes(width, index=0)
    rows, columns = cover.shape
    assert cover.min() >= 0 and 0.75 < cover.max() <= 1
    for border in (cover[[0, -1]], cover[:, [0, -1]]):
        assert not border.any()
    below = (np.arange(rows) + 0.5) / rows * (LASHES_BOTTOM - LASHES_TOP) + LASHES_TOP
    along = (np.arange(columns) + 0.5) / columns * (LASHES_RIGHT - LASHES_LEFT) + LASHES_LEFT
    light = 1 - 0.72 * cover[:, (along > 0.3) & (along < 0.7)].mean(axis=1)
    # From the middle of the line, which lies above the lid's edge.
    line = below[light.argmin()]
    for away, expected in ((0.06, 0.62), (0.10, 0.77), (0.14, 0.86), (0.18, 0.92), (0.22, 0.96)):
        assert np.interp(line + away, below, light) == pytest.approx(expected, abs=0.12)
    assert np.interp(line - 0.08, below, light) > 0.9


def test_the_lashes_of_both_eyes_differ_and_stay_the_same():
    one, other = (shut_lashes(60.0, index=index) for index in (0, 1))
    assert (one != other).any()
    assert np.array_equal(one, shut_lashes(60.0, index=0))


def test_lashes_are_single_where_the_picture_shows_them():
    """A smooth band looks drawn; in a small picture it is what is seen of them."""
    fine, coarse = (shut_lashes(width, index=0) for width in (160.0, 16.0))
    uneven = []
    for cover in (fine, coarse):
        rows, columns = cover.shape
        row = round((0.07 - LASHES_TOP) / (LASHES_BOTTOM - LASHES_TOP) * rows)
        middle = cover[row, columns // 4 : 3 * columns // 4]
        uneven.append(float(middle.std() / middle.mean()))
    assert uneven[0] > 0.2 > uneven[1]


@pytest.mark.parametrize("yaw", YAWS)
def test_a_shut_eye_is_darker_along_its_lashes_than_beside_them(mesh, yaw):
    animator, _ = with_face(mesh, yaw)
    shut, bent = animator.animate(closing(1.0)), animator.bent(closing(1.0))
    for eye in EYES:
        line = bent.places[list(eye.upper[2:-2])]
        lid, cheek = bent.places[list(eye.upper_lid[1:-1])], bent.places[list(eye.lower_lid[1:-1])]
        light = [
            np.mean([shut[y - 1 : y + 2, x].min() for x, y in np.rint(row).astype(int)])
            for row in (line, lid, cheek)
        ]
        assert light[0] < 0.5 * light[1] and light[0] < 0.5 * light[2]
        assert light[1] > 0.8 * SKIN and light[2] > 0.8 * SKIN


def test_lashes_of_a_pale_eye_are_dark_and_warm(mesh):
    face = made_face(mesh, scale=22.0)
    skin = np.array([210, 160, 140], np.float32)
    picture = np.broadcast_to(skin.astype(np.uint8), (SIZE[1], SIZE[0], 3)).copy()
    for eye in EYES:
        corners = np.rint(face.landmarks[list(eye.outline), :2]).astype(np.int32)
        cv2.fillPoly(picture, [corners], (190, 195, 200))
    with MeshAnimator(mesh) as animator:
        animator.set_portrait(picture, face=face)
        for eyeball in animator._portrait.eyes:
            colour = eyeball.lash_colour
            assert colour.mean() < 0.42 * skin.mean()
            assert colour[1] / colour[0] < skin[1] / skin[0] and colour[2] / colour[0] < skin[2] / skin[0]
