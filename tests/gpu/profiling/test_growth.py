"""Tests of detecting steady growth among noise, jumps and caches that fill."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vitascope.gpu.memory.growth import steady_growth

X = np.arange(200.0)


def noise(seed=0, size=1.0):
    return np.random.default_rng(seed).normal(0, size, len(X))


@pytest.mark.parametrize("slope", [0.5, 2.0, 100.0])
def test_steady_growth_is_measured(slope):
    growth = steady_growth(X, slope * X + noise(), least=10)
    assert growth.slope == pytest.approx(slope, rel=0.05)
    assert growth.total == pytest.approx(slope * 149, rel=0.05)
    assert growth.score > 5


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("flat", np.full(len(X), 7.0)),
        ("noise", noise(size=50)),
        ("falling", -2.0 * X),
        ("a cache that fills", 100 * (1 - np.exp(-X / 10))),
        ("one jump", np.where(X > 120, 500.0, 0.0) + noise()),
        ("a saw-tooth", (X % 20) * 10),
        ("too little", 0.001 * X),
    ],
)
def test_what_is_no_leak(name, values):
    assert steady_growth(X, values, least=10) is None, name


def test_a_leak_under_a_saw_tooth_is_found():
    assert steady_growth(X, 3.0 * X + (X % 7) * 10, least=10).slope == pytest.approx(3.0, rel=0.15)


def test_too_few_measurements_say_nothing():
    assert steady_growth(X[:8], 10 * X[:8], least=1) is None
    assert steady_growth([], [], least=1) is None


def test_long_series_are_thinned():
    x = np.arange(20_000.0)
    assert steady_growth(x, 2 * x, least=1).slope == pytest.approx(2.0)


@settings(deadline=None)
@given(st.lists(st.floats(-1e9, 1e9), max_size=60))
def test_any_series_has_an_answer(values):
    growth = steady_growth(range(len(values)), values, least=1.0)
    assert growth is None or (growth.total >= 1.0 and growth.slope > 0)
