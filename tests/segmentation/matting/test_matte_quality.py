"""The metrics that mattes are measured with, on cases small enough to work out by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

FOLDER = Path(__file__).parents[3] / "benchmarks" / "matte_quality"
NONE, ALL = np.zeros((20, 30), np.float32), np.ones((20, 30), np.float32)


@pytest.fixture
def metrics(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    import metrics

    return metrics


@pytest.fixture
def disc():
    y, x = np.mgrid[:20, :30]
    return np.clip(8 - np.hypot(x - 15, y - 10), 0, 1).astype(np.float32)


def test_a_matte_equals_itself(metrics, disc):
    assert metrics.scores(disc, disc, before=(disc, disc)) == dict.fromkeys(metrics.METRICS, 0.0)


def test_differences(metrics, disc):
    assert metrics.sad(ALL, NONE) == pytest.approx(0.6)
    assert metrics.mse(ALL, NONE) == pytest.approx(1000)
    assert metrics.mse(disc / 2, disc) == pytest.approx(250 * float(np.square(disc).mean()), rel=1e-5)


def test_where_says_what_counts(metrics):
    left = np.zeros((20, 30), bool)
    left[:, :10] = True
    alpha = np.where(left, 0.5, 0).astype(np.float32)
    assert metrics.sad(alpha, NONE, left) == pytest.approx(0.1)
    assert metrics.mse(alpha, NONE, left) == pytest.approx(250)
    assert metrics.sad(alpha, NONE, ~left) == metrics.mse(alpha, NONE, np.zeros_like(left)) == 0


def test_a_softer_edge_is_a_gradient_error(metrics, disc):
    soft = np.clip((disc + np.roll(disc, 3, 1)) / 2, 0, 1)
    assert metrics.gradient_error(ALL, NONE) == pytest.approx(0, abs=1e-9)
    assert metrics.gradient_error(soft, disc) > metrics.gradient_error(np.roll(disc, 1, 1), disc) / 4 > 0


def test_a_part_that_hangs_on_nothing_is_a_connectivity_error(metrics, disc):
    apart = disc.copy()
    apart[2:5, 1:4] = 1
    assert metrics.connectivity_error(apart, disc) == pytest.approx(9 / 1000)


def test_flicker_is_change_that_the_truth_lacks(metrics):
    half = ALL / 2
    assert metrics.dtssd((NONE, NONE), (half, NONE)) == pytest.approx(50)
    assert metrics.dtssd((NONE, NONE), (half, half)) == 0
    assert metrics.dtssd((half, NONE), (half, NONE)) == 0


def test_the_band_lies_around_what_is_neither(metrics, disc):
    band = metrics.unknown_band(disc, 2)
    assert band[(disc > 0) & (disc < 1)].all()
    assert not band[10, 15]
    assert not band[0, 0]
    assert not metrics.unknown_band(NONE, 2).any()
