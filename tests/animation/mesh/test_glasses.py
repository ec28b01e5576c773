"""Check that frames and lenses of dark glasses stay rigid while the face behind them moves."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
from faces import made_face

from vitascope.animation.canonical_mesh import EYES, LEFT_BROW, RIGHT_BROW
from vitascope.animation.face import FaceMotion
from vitascope.animation.mesh.animator import MeshAnimator

SIZE = (480, 640)
SKIN = (205, 160, 140)
BUSY = dict.fromkeys(
    ("eyeBlinkLeft", "eyeBlinkRight", "cheekSquintLeft", "cheekSquintRight", "browDownLeft", "browDownRight"),
    1.0,
) | {"eyeLookOutLeft": 0.8, "eyeLookInRight": 0.8}


@pytest.fixture(scope="module")
def face(mesh):
    return made_face(mesh, scale=20)


def with_eyes(face, white):
    """Draw a face whose eyes have this light: uint8 [480, 640, 3]."""
    rgb = np.full((*SIZE, 3), SKIN, np.uint8)
    for eye in EYES:
        outline = np.rint(face.landmarks[list(eye.outline), :2]).astype(np.int32)
        cv2.fillPoly(rgb, [outline], (white, white, white))
        centre = np.rint(face.landmarks[eye.iris[0], :2]).astype(int)
        cv2.circle(rgb, tuple(map(int, centre)), 9, (60, 40, 30), -1)
    return rgb


def in_dark_glasses(face):
    """Draw that face behind sunglasses, and mark them: uint8 [480, 640, 3] and bool [480, 640]."""
    rgb, covered = with_eyes(face, 220), np.zeros(SIZE, np.uint8)
    for eye in EYES:
        x, y = face.landmarks[list(eye.outline), :2].mean(axis=0)
        first, last = (
            (round(float(x)) - 50, round(float(y)) - 30),
            (round(float(x)) + 50, round(float(y)) + 38),
        )
        cv2.rectangle(covered, first, last, 1, -1)
        cv2.rectangle(rgb, first, last, (35, 45, 40), -1)
        cv2.rectangle(rgb, first, last, (12, 12, 12), 5)
        cv2.circle(rgb, (first[0] + 30, first[1] + 18), 4, (120, 200, 170), -1)  # a reflection
    return rgb, covered > 0


def changes(mesh, face, rgb):
    """Return the changes of a detailed face from its rest, in codes: int [480, 640]."""
    with MeshAnimator(mesh) as animator:
        animator.set_portrait(rgb, face=face)
        rest, moved = (animator.animate(FaceMotion.authored(weights)).astype(int) for weights in ({}, BUSY))
    return np.abs(moved - rest).max(axis=-1)


def test_a_blink_bends_neither_dark_glasses_nor_what_is_reflected_in_them(mesh, face):
    rgb, covered = in_dark_glasses(face)
    assert changes(mesh, face, rgb)[covered].max() <= 3


@pytest.mark.parametrize("hair", [(45, 35, 30), (25, 22, 20), (70, 50, 40)])
def test_a_dark_fringe_hides_no_dark_glasses(mesh, face, hair):
    rgb, covered = in_dark_glasses(face)
    brows = round(float(face.landmarks[[105, 334], 1].min()))
    rgb[:brows] = hair
    assert changes(mesh, face, rgb)[covered].max() <= 3


@pytest.mark.parametrize("shade", [1.0, 0.6])
def test_eyes_that_are_seen_blink_in_the_shade_of_brows_too(mesh, face, shade):
    rgb = with_eyes(face, 220)
    _, sockets = in_dark_glasses(face)
    rgb[sockets] = (rgb[sockets] * shade).astype(np.uint8)
    assert changes(mesh, face, rgb)[sockets].max() > 60


def in_a_shadow_of_brows(face, rgb):
    """Mark where protruding brows shade the eyes: bool [480, 640]."""
    shaded = np.zeros(rgb.shape[:2], np.uint8)
    for eye, brow in zip(EYES, (RIGHT_BROW, LEFT_BROW), strict=True):
        around = np.rint(face.landmarks[list(brow + eye.outline + eye.lower_lid), :2]).astype(np.int32)
        cv2.fillPoly(shaded, [cv2.convexHull(around)], 1)
    return shaded > 0


def in_a_shadow_of_a_hat(face, rgb):
    """Mark where a brim shades forehead, eyes and the upper half of the nose: bool [480, 640]."""
    return np.indices(rgb.shape[:2])[0] < face.landmarks[5, 1]


@pytest.mark.parametrize("shadow", [in_a_shadow_of_brows, in_a_shadow_of_a_hat])
def test_eyes_in_a_hard_shadow_are_not_behind_glasses(mesh, face, shadow):
    rgb = with_eyes(face, 220)
    rgb[shadow(face, rgb)] //= 5
    with MeshAnimator(mesh) as animator:
        animator.set_portrait(rgb, face=face)
        assert not animator.has_dark_glasses


@pytest.mark.parametrize("shadow", [in_a_shadow_of_brows, in_a_shadow_of_a_hat])
def test_dark_glasses_in_a_shadow_are_found(mesh, face, shadow):
    rgb, _ = in_dark_glasses(face)
    rgb[shadow(face, rgb)] //= 3
    with MeshAnimator(mesh) as animator:
        animator.set_portrait(rgb, face=face)
        assert animator.has_dark_glasses


def test_streaks_of_light_on_dark_glasses_are_no_whites_of_eyes(mesh, face):
    rgb, _ = in_dark_glasses(face)
    for eye in EYES:
        x, y = np.rint(face.landmarks[list(eye.outline), :2].mean(axis=0)).astype(int)
        cv2.line(rgb, (int(x) - 14, int(y) - 2), (int(x) + 14, int(y) + 2), (230, 235, 240), 3)
    with MeshAnimator(mesh) as animator:
        animator.set_portrait(rgb, face=face)
        assert animator.has_dark_glasses


def test_one_dark_eye_is_no_glasses(mesh, face):
    rgb, covered = in_dark_glasses(face)
    left = np.arange(SIZE[1]) > SIZE[1] // 2
    covered &= left
    rgb[:, left] = with_eyes(face, 220)[:, left]
    assert changes(mesh, face, rgb)[covered].max() > 60


def test_it_is_told_that_eyes_are_behind_dark_glasses(mesh, face):
    glasses, _ = in_dark_glasses(face)
    for rgb, are_covered in ((glasses, True), (with_eyes(face, 220), False)):
        with MeshAnimator(mesh) as animator:
            assert not animator.has_dark_glasses
            animator.set_portrait(rgb, face=face)
            assert animator.has_dark_glasses == are_covered
