"""Tests of parts of people that one frame misses and others show."""

from __future__ import annotations

import cv2
import numpy as np
import pytest

from vitascope.segmentation.matting.levers.motion_smoothing import missed_parts

COUNT, SIZE = 8, (60, 100)
ROWS = slice(10, 50)


def walk(*, speed=2, noise=0.0):
    """Make a person who walks past a wall: RGB and alpha, motion ahead and back, and where they are."""
    random = np.random.default_rng(1)
    wall, shirt = (
        cv2.GaussianBlur(random.random((*SIZE, 3), np.float32), (0, 0), 2).transpose(2, 0, 1)
        for _ in range(2)
    )
    seen = np.empty((COUNT, 1, 4, *SIZE), np.float32)
    ahead, back = np.zeros((2, COUNT - 1, 1, *SIZE, 2), np.float32)
    people = np.zeros((COUNT, *SIZE), bool)
    for at in range(COUNT):
        columns = slice(20 + speed * at, 50 + speed * at)
        people[at, ROWS, columns] = True
        seen[at, 0, :3] = np.where(people[at], np.roll(shirt, speed * at, axis=2), wall)
        seen[at, 0, 3] = people[at]
    seen[:, :, :3] += noise * random.standard_normal(seen[:, :, :3].shape)
    ahead[people[:-1, None], 0], back[people[1:, None], 0] = speed, -speed
    return seen, ahead, back, people


def part(at, *, thick=8, speed=2):
    """Return an arm of the person in a frame."""
    left = 30 + speed * at
    return np.s_[15:45, left : left + thick]


@pytest.mark.parametrize("wrong", [(0, 1), (7,), (3, 4)])
@pytest.mark.parametrize("noise", [0.0, 0.01])
def test_an_arm_that_some_frames_miss_is_found_in_them(wrong, noise):
    seen, ahead, back, people = walk(noise=noise)
    for at in wrong:
        seen[at, 0, 3][part(at)] = 0.1
    found = seen[:, 0, 3] + missed_parts(seen, ahead, back)[:, 0]
    for at in wrong:
        rows, columns = part(at)
        inside = np.s_[rows.start + 2 : rows.stop - 2, columns.start + 2 : columns.stop - 2]
        assert found[at][inside].min() > 0.8
    assert np.abs(found - people)[[at for at in range(COUNT) if at not in wrong]].max() < 0.01


def test_whom_few_frames_see_stays():
    seen, ahead, back, _ = walk()
    seen[0, 0, 3, 20:40, 70:85] = 0.9
    assert not missed_parts(seen, ahead, back).any()


def test_edges_stay():
    seen, ahead, back, _ = walk()
    seen[0, 0, 3][part(0, thick=2)] = 0.1
    assert not missed_parts(seen, ahead, back).any()


def test_frames_that_show_something_else_say_nothing():
    seen, ahead, back, _ = walk()
    seen[0, 0, 3][part(0)] = 0.1
    seen[0, 0, :3][:, *part(0)] += 0.3
    assert not missed_parts(seen, ahead, back).any()


def test_motion_that_does_not_lead_back_says_nothing():
    seen, ahead, back, _ = walk()
    seen[0, 0, 3][part(0)] = 0.1
    assert not missed_parts(seen, ahead, back + 8).any()


@pytest.mark.parametrize("count", [1, 3])
def test_few_frames_decide_nothing(count):
    seen, ahead, back, _ = walk()
    seen[0, 0, 3][part(0)] = 0.1
    change = missed_parts(seen[:count], ahead[: count - 1], back[: count - 1])
    assert change.shape == (count, 1, *SIZE)
    assert not change.any()


def test_each_eye_votes_for_itself():
    seen, ahead, back, _ = walk()
    seen[0, 0, 3][part(0)] = 0.1
    eyes = (seen, seen[::-1]), (ahead, back[::-1]), (back, ahead[::-1])  # a video and the same one backwards
    both = missed_parts(*(np.concatenate(each, axis=1) for each in eyes))
    np.testing.assert_array_equal(both[:, :1], missed_parts(seen, ahead, back))
    np.testing.assert_array_equal(both[::-1, 1:], both[:, :1])


@pytest.mark.cuda
def test_votes_are_the_processors():
    cupy = pytest.importorskip("cupy")
    seen, ahead, back, _ = walk(noise=0.01)
    for at in (0, 1):
        seen[at, 0, 3][part(at)] = 0.1
    made = cupy.asnumpy(missed_parts(*map(cupy.asarray, (seen, ahead, back))))
    expected = missed_parts(seen, ahead, back)
    assert np.abs(made - expected).mean() < 1e-3
    assert np.abs(made - expected).max() < 0.1
