from __future__ import annotations

import numpy as np
import pytest
from skimage import data

from vitascope.gpu.kernels.histogram import color_histogram
from vitascope.segmentation.matting.scene_cuts import SceneCutDetector


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


def test_histograms_made_elsewhere_decide_the_same():
    rng = np.random.default_rng(0)
    film = [ASTRONAUT, ASTRONAUT + rng.normal(0, 0.01, ASTRONAUT.shape), COFFEE, COFFEE[::-1], ASTRONAUT]
    film = [rgb.astype(np.float32) for rgb in film]
    one_by_one, from_histograms = SceneCutDetector(0.35), SceneCutDetector(0.35)
    reused = np.empty(64, np.float32)  # as a caller's page-locked buffer
    for rgb in film:
        reused[...] = color_histogram(rgb, layout="NHWC")
        assert from_histograms.is_cut_histogram(reused) == one_by_one.is_cut(rgb)


def test_a_threshold_of_zero_never_cuts_on_histograms():
    detector = SceneCutDetector(0)
    histograms = [color_histogram(rgb, layout="NHWC") for rgb in (ASTRONAUT, COFFEE)]
    assert not any(detector.is_cut_histogram(histogram) for histogram in histograms)


@pytest.mark.cuda
def test_a_batch_on_the_gpu_decides_the_same():
    import cupy

    film = np.stack([ASTRONAUT, ASTRONAUT, COFFEE, COFFEE, ASTRONAUT])
    detector = SceneCutDetector(0.35)
    histograms = color_histogram(cupy.asarray(film), layout="NHWC").get()
    assert [detector.is_cut_histogram(histogram) for histogram in histograms] == [
        False,
        False,
        True,
        False,
        True,
    ]
