"""Tests of the time that a tune may take."""

from __future__ import annotations

import pytest

from vitascope.errors import UsageError
from vitascope.tune import optimizer as search_time
from vitascope.tune.optimizer import SearchTime, turns


@pytest.fixture
def clock(monkeypatch):
    seconds = [0.0]
    monkeypatch.setattr(search_time, "perf_counter", lambda: seconds[0])
    return seconds


def test_the_comparison_at_the_end_has_its_time(clock):
    time = SearchTime(100.0)
    clock[0] = 69.0
    assert not time.is_late(5.0)  # three turns of two runs of five seconds
    clock[0] = 71.0
    assert time.is_late(5.0)


def test_long_runs_are_compared_less_often():
    assert turns(1.0) > turns(60.0) >= 1


def test_without_a_limit_it_is_never_late(clock):
    time = SearchTime(None)
    clock[0] = 1e9
    assert not time.is_late(1.0)
    time.check(1e6)
    assert "at most" not in time.plan(2.0, trials=40, cells=288)


def test_what_does_not_fit_is_refused_with_what_it_takes(clock):
    time = SearchTime(100.0)
    time.check(10.0)
    with pytest.raises(UsageError, match=r"a run takes about 20 s here, and a search needs at least 120 s"):
        time.check(20.0, runs=1)


@pytest.mark.parametrize("seconds", [0.0, -1.0, 86_401.0, float("nan"), float("inf")])
def test_times_out_of_range(seconds):
    with pytest.raises(UsageError, match="at most a day"):
        SearchTime(seconds)


def test_the_plan_is_in_words():
    assert SearchTime(900.0).plan(3.71, trials=40, cells=288) == (
        "up to 40 runs of about 3.7 s each, out of 288 combinations of settings, in about 15 minutes at most; then "
        "the result against the current settings"
    )
    assert "in about 47 s at most" in SearchTime(47.0).plan(1.0, trials=14, cells=40)
