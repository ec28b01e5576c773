"""Tests of activation ranges from histograms, against closed forms."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vitascope.errors import UsageError
from vitascope.gpu.toolkit.quantization.calibration import MagnitudeHistogram, named_frames


def histogram(*arrays):
    one = MagnitudeHistogram()
    for array in arrays:
        one.add(np.asarray(array, np.float32))
    return one


@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=50), st.integers(1, 5))
@settings(max_examples=50, deadline=None)
def test_minmax_is_the_largest_magnitude_in_whatever_order_it_came(values, parts):
    array = np.asarray(values, np.float32)
    largest = np.abs(array).max()
    threshold = histogram(*np.array_split(array, parts)).threshold("minmax")
    if largest < 1e-30:
        assert threshold == 1.0
    else:
        assert largest * (1 - 1e-3) <= threshold <= largest * (1 + 4e-3)


def test_a_percentile_is_that_of_the_values():
    values = np.random.default_rng(0).random(100_000)
    one = histogram(*np.array_split(values, 7))
    for percentile in (50, 90, 99.9):
        assert one.threshold("percentile", percentile=percentile) == pytest.approx(
            np.percentile(values, percentile), abs=2e-3
        )


def test_entropy_keeps_a_full_range_and_cuts_a_lonely_tail():
    random = np.random.default_rng(0)
    uniform = random.random(100_000)
    assert histogram(uniform).threshold("entropy") > 0.9
    lonely = np.append(np.abs(random.standard_normal(100_000)), 200.0)
    assert 2 < histogram(lonely).threshold("entropy") < 40
    assert histogram(lonely).threshold("minmax") == pytest.approx(200, rel=1e-2)


def test_entropy_of_a_few_values_keeps_them_all():
    assert histogram([0.1, 0.2, 5.0]).threshold("entropy") == pytest.approx(5, rel=1e-3)


def test_zeros_alone_have_a_scale_of_one():
    for method in ("minmax", "percentile", "entropy"):
        assert histogram(np.zeros(10)).threshold(method) == 1.0


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_refused(value):
    with pytest.raises(UsageError, match="not finite"):
        histogram([1.0, value])


def test_frames_are_given_by_name_or_alone():
    array = np.zeros((3, 2), np.float32)
    assert named_frames(array, ["x"])["x"] is array
    assert named_frames([array[0], array[1]], ["x"])["x"].shape == (2, 2)
    assert list(named_frames({"b": array, "a": array}, ["a", "b"])) == ["a", "b"]
    for frames, names in ((array, ["a", "b"]), ({"a": array, "b": array[:1]}, ["a", "b"]), ({"a": 3}, ["a"])):
        with pytest.raises(UsageError):
            named_frames(frames, names)
