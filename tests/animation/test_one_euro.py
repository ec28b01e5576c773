"""Tests of the 1€ filter against the promises of its paper."""

from __future__ import annotations

import math

import numpy as np

from vitascope.animation.motion import OneEuroFilter, cutoff_of_window


def test_a_window_of_one_lets_everything_through():
    smooth = OneEuroFilter(min_cutoff_hz=cutoff_of_window(1), beta=0.0)
    values = np.random.default_rng(0).normal(size=(20, 3))
    for index, value in enumerate(values):
        assert np.allclose(smooth(value, seconds=index / 30), value, atol=1e-6)


def test_still_values_lose_their_noise_and_larger_windows_more():
    noise = np.random.default_rng(1).normal(size=600)
    left = {}
    for window in (3, 12):
        smooth = OneEuroFilter(min_cutoff_hz=cutoff_of_window(window), beta=0.0)
        out = np.array([smooth(np.array([v]), seconds=i / 30)[0] for i, v in enumerate(noise)])
        left[window] = out[100:].std()
    assert left[12] < left[3] < 0.8


def test_a_cutoff_is_the_frequency_of_half_the_power():
    cutoff = 2.0
    smooth = OneEuroFilter(min_cutoff_hz=cutoff, beta=0.0)
    seconds = np.arange(0, 20, 1 / 500)
    wave = np.sin(2 * math.pi * cutoff * seconds)
    out = np.array([smooth(np.array([v]), seconds=t)[0] for t, v in zip(seconds, wave, strict=True)])
    assert abs(out[5000:].max() - math.sqrt(0.5)) < 0.02


def test_fast_motion_lags_less_with_beta():
    ramp = np.concatenate((np.zeros(30), np.linspace(0, 10, 30), np.full(30, 10.0)))
    lags = []
    for beta in (0.0, 2.0):
        smooth = OneEuroFilter(min_cutoff_hz=1.0, beta=beta)
        out = [smooth(np.array([v]), seconds=i / 30)[0] for i, v in enumerate(ramp)]
        lags.append(abs(np.array(out) - ramp).max())
    assert lags[1] < 0.4 * lags[0]


def test_reset_forgets_and_time_that_stands_does_no_harm():
    smooth = OneEuroFilter(min_cutoff_hz=1.0, beta=0.0)
    smooth(np.array([0.0]), seconds=0.0)
    assert np.isfinite(smooth(np.array([5.0]), seconds=0.0)).all()
    smooth.reset()
    assert smooth(np.array([7.0]), seconds=9.0)[0] == 7.0
