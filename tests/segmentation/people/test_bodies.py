"""Tests of finding a person in the next frame by their colours, with known motion."""

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitascope.segmentation.people.bodies import Body, carried_bodies
from vitascope.segmentation.people.small_frames import MotionField

SIZE = (40, 60)
HALF_CELLS = st.integers(-5, 5)


def moved(picture: np.ndarray, right: float, down: float) -> np.ndarray:
    matrix = np.float32([[1, 0, right], [0, 1, down]])
    return cv2.warpAffine(picture, matrix, SIZE[::-1], borderMode=cv2.BORDER_REPLICATE)


def somebody(*, seen: float) -> Body:
    noise = np.random.default_rng(7).random((*SIZE, 3), np.float32)
    rgb = cv2.GaussianBlur(noise, (0, 0), 1.5)
    rgb = (rgb - rgb.min()) / (rgb.max() - rgb.min()) * 255
    whole = np.zeros(SIZE, np.float32)
    whole[12:28, 20:38] = 1
    return Body(rgb, whole, seen * whole, np.zeros(2))


@given(HALF_CELLS, HALF_CELLS)
def test_somebody_who_meets_others_is_found_by_colour_where_they_moved(right, down):
    motion, body = MotionField(SIZE), somebody(seen=0)  # motion of what is seen gives no hint
    rgb = moved(body.rgb, right / 2, down / 2)
    carried = carried_bodies({3: body}, rgb, motion.grid, motion, alone=())[3]
    assert carried.whole == pytest.approx(moved(body.whole, right / 2, down / 2), abs=1e-5)
    assert carried.speed.tolist() == pytest.approx([0.1 * right, 0.1 * down])  # a fifth of their motion


def test_of_moves_that_fit_as_well_the_usual_one_is_taken():
    motion, body = MotionField(SIZE), somebody(seen=0)
    plain = Body(np.full_like(body.rgb, 90), body.whole, body.seen, np.array([2.0, -1.0]))
    carried = carried_bodies({3: plain}, plain.rgb, motion.grid, motion, alone=())[3]
    assert carried.whole == pytest.approx(moved(body.whole, 2, -1), abs=1e-5)


def test_somebody_alone_goes_where_the_motion_says():
    motion, body = MotionField(SIZE), somebody(seen=1)
    place = motion.grid - np.float32([3, 2])
    carried = carried_bodies({3: body}, moved(body.rgb, 3, 2), place, motion, alone={3})[3]
    assert carried.whole == pytest.approx(moved(body.whole, 3, 2), abs=1e-5)
    assert carried.rgb == pytest.approx(moved(body.rgb, 3, 2), abs=1e-3)
