from __future__ import annotations

import numpy as np
from skimage import data

from vitascope.segmentation.scene_cuts import SceneCutDetector


def picture(image):
    return (image[:128, :128].astype(np.float32)) / 255


ASTRONAUT, COFFEE = picture(data.astronaut()), picture(data.coffee())


def test_the_first_picture_is_no_cut_and_another_shot_is():
    detector = SceneCutDetector(0.35)
    assert [detector.is_cut(rgb) for rgb in (ASTRONAUT, ASTRONAUT, COFFEE, COFFEE)] == [
        False,
        False,
        True,
        False,
    ]


def test_motion_and_noise_are_no_cut():
    detector = SceneCutDetector(0.35)
    rng = np.random.default_rng(0)
    for step in range(10):
        moved = np.roll(ASTRONAUT, 9 * step, axis=1)
        assert not detector.is_cut(np.clip(moved + rng.normal(0, 0.02, moved.shape), 0, 1).astype(np.float32))


def test_a_threshold_of_zero_never_cuts():
    detector = SceneCutDetector(0)
    assert not any(detector.is_cut(rgb) for rgb in (ASTRONAUT, COFFEE, ASTRONAUT))
