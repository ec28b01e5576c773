"""Check that a person is recognised in other light, and another person is not."""

import numpy as np
import pytest

from vitascope.segmentation.people.appearance import Appearance, color_codes

SIZE = (60, 30)


def dressed(head, top, legs, *, light=1.0, seed=0):
    """Draw a person in three colours; also returns their mask."""
    picture = np.random.default_rng(seed).normal(0, 6, (*SIZE, 3))
    for rows, color in ((slice(0, 12), head), (slice(12, 36), top), (slice(36, 60), legs)):
        picture[rows] += color
    mask = np.zeros(SIZE, np.float32)
    mask[:, 8:22] = 1
    return np.clip(picture * light, 0, 255).astype(np.uint8), mask


def looks(*clothes, **how):
    one = Appearance()
    picture, mask = dressed(*clothes, **how)
    one.learn(color_codes(picture), mask)
    return one


RED = ((180, 130, 110), (200, 40, 40), (40, 40, 60))
BLUE = ((120, 90, 80), (40, 60, 190), (200, 190, 170))


@pytest.mark.parametrize("light", [0.85, 1.15])
def test_the_same_person_in_other_light_is_alike_and_another_is_not(light):
    red = looks(*RED)
    assert red.similarity(looks(*RED, light=light, seed=1)) > 0.72
    assert red.similarity(looks(*BLUE, seed=1)) < 0.45


def test_order_of_colours_counts():
    upside_down = looks(RED[2], RED[1], RED[0])
    assert looks(*RED).similarity(upside_down) < looks(*RED).similarity(looks(*RED, seed=3)) - 0.1


def test_a_cell_is_likelier_whose_colour_it_has():
    picture, _ = dressed(*RED, seed=5)
    codes = color_codes(picture)
    red, blue = (one.log_likelihood(codes, (0, 60)) for one in (looks(*RED), looks(*BLUE)))
    assert (red > blue).mean() > 0.95


def test_nothing_learned_is_blank_and_likens_nobody():
    blank = Appearance()
    blank.learn(color_codes(dressed(*RED)[0]), np.zeros(SIZE, np.float32))
    assert blank.is_blank
    assert blank.similarity(looks(*RED)) == 0


def test_colours_of_a_part_of_the_picture_are_as_likely_as_in_all_of_it():
    random = np.random.default_rng(4)
    codes = color_codes(random.integers(0, 256, (20, 10, 3), np.uint8))
    looks = Appearance()
    looks.learn(codes, np.ones((20, 10), np.float32))
    part = looks.log_likelihood(codes[6:12], (2, 19), top=6)
    np.testing.assert_array_equal(part, looks.log_likelihood(codes, (2, 19))[6:12])
