"""Tests of the networks' squares: place, rotation with the face, and pasting as the inverse of cropping."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
from portrait_faces import make_face

from vitascope.animation.canonical_mesh import EYES, MOUTH_CORNERS
from vitascope.animation.liveportrait.crop import (
    crop_picture,
    driver_crop,
    lip_openness,
    paste_mask,
    portrait_crop,
)


def mapped(matrix: np.ndarray, point: np.ndarray) -> np.ndarray:
    """Map a point of the picture (edge at 0) into the crop."""
    return matrix[:, :2] @ (point - 0.5) + matrix[:, 2] + 0.5


@pytest.mark.parametrize("roll", [0, 25, -120])
def test_a_portraits_crop_stands_upright_whatever_its_roll(roll: float) -> None:
    upright, turned = make_face(), make_face(roll_degrees=roll)
    for point in (*EYES[0].iris, *MOUTH_CORNERS, 152):
        wanted = mapped(portrait_crop(upright, 512), upright.landmarks[point, :2])
        got = mapped(portrait_crop(turned, 512), turned.landmarks[point, :2])
        np.testing.assert_allclose(got, wanted, atol=0.05)


def test_size_and_place_follow_jaw_and_brows() -> None:
    face = make_face(size=100)
    matrix = portrait_crop(face, 512)
    # Jaw and brows span 100 pixels across, and from -0.35 (the brows) to 0.7 (the chin) down.
    factor = 512 / (105 * 2.3)
    assert np.hypot(*matrix[0, :2]) == pytest.approx(factor, rel=0.02)
    centre = np.array([300, 250 + (0.7 - 0.35) / 2 * 100 - 0.125 * 105 * 2.3])
    np.testing.assert_allclose(mapped(matrix, centre), [256, 256], atol=4)


def test_a_drivers_crop_does_not_turn() -> None:
    matrix = driver_crop(make_face(roll_degrees=20), 256)
    assert abs(float(matrix[0, 1])) < 1e-6
    assert float(matrix[0, 0]) == pytest.approx(float(matrix[1, 1]))


@pytest.mark.parametrize("size", [20, 100, 700])
def test_a_crop_shows_the_picture_without_a_shift(size: float) -> None:
    rows, columns = np.mgrid[:500, :600].astype(np.float32)
    ramp = np.stack([columns / 600 * 250, rows / 500 * 250, rows * 0], axis=-1).astype(np.uint8)
    face = make_face(size=size)
    matrix = driver_crop(face, 256)
    crop = crop_picture(ramp, matrix, 256)
    back = cv2.invertAffineTransform(matrix)
    for y, x in ((128, 128), (40, 200)):
        column, row = back @ np.array([x, y, 1])
        if 0 <= column < 600 and 0 <= row < 500:
            np.testing.assert_allclose(crop[y, x, :2], [column / 600 * 250, row / 500 * 250], atol=1.5)


def test_shrinking_averages() -> None:
    stripes = np.zeros((2000, 2000, 3), np.uint8)
    stripes[::2] = 255
    face = make_face(centre=(1000, 1000), size=700)
    crop = crop_picture(stripes, driver_crop(face, 256), 256)
    assert 100 < crop.min() <= crop.max() < 155


def test_the_mask_is_whole_inside_and_gone_at_the_border() -> None:
    mask = paste_mask(512)
    assert mask[0].max() == mask[:, -1].max() == 0
    assert mask[16:-16, 16:-16].min() == 1
    assert mask[8, 256] == pytest.approx(0.5)


def test_lip_openness_is_the_gap_over_the_width() -> None:
    assert lip_openness(make_face()) == pytest.approx(0.036 / 0.36, rel=1e-3)
