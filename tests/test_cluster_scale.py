"""Tests of the simulated queue, in cases whose end can be computed by hand."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def scale(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    for name in ("row_stamp", "cluster_scale"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    import cluster_scale

    return cluster_scale


def costs_of(scale, **changes):
    return replace(scale.Costs(start=5.0, open=1.0, frame=0.1, film=0.0, begin=0.0, join=0.0), **changes)


@pytest.mark.parametrize(("makers", "rounds"), [(1, 12), (3, 4), (5, 3), (12, 1), (40, 1)])
def test_short_videos_go_round_by_round(scale, makers, rounds):
    run = scale.simulate([20] * 12, makers, costs_of(scale), stretches_of=lambda _: 1)
    assert run.seconds == pytest.approx(5 + rounds * 3.0)
    assert run.makers_busy == pytest.approx(12 * 3.0 / (makers * run.seconds))


def test_stretches_pay_their_warm_up_and_what_lies_behind(scale):
    run = scale.simulate([400], 1, costs_of(scale), stretches_of=lambda _: 4, warm_up=50)
    assert run.seconds == pytest.approx(5 + 4 * 1.0 + 0.1 * (400 + 3 * 50 + 3 * scale.FRAMES_AFTER))
    shared = scale.simulate([400], 4, costs_of(scale), stretches_of=lambda _: 4, warm_up=50)
    assert shared.seconds == pytest.approx(5 + 1.0 + 0.1 * (100 + 50 + scale.FRAMES_AFTER))


def test_where_joining_takes_longest_it_decides(scale):
    run = scale.simulate([400] * 3, 100, costs_of(scale, join=0.05), stretches_of=lambda _: 4, warm_up=0)
    assert run.seconds > 3 * 400 * 0.05
    assert run.driver_busy > 0.7


def test_a_store_holds_all_back_together(scale):
    slow = costs_of(scale, frame_bytes=1e6, store_bytes_per_second=20e6)
    run = scale.simulate([20] * 10, 10, slow, stretches_of=lambda _: 1)
    assert run.seconds == pytest.approx(5 + 200 * 1e6 / 20e6, rel=0.5)
    assert run.seconds > 5 + 3.0


def test_what_is_lost_is_made_again(scale):
    often = costs_of(scale, losses_per_hour=600.0, back=2.0)
    run = scale.simulate([20] * 30, 3, often, stretches_of=lambda _: 1)
    assert run.lost > 0
    assert run.seconds > 5 + 10 * 3.0
    assert scale.simulate([20] * 30, 3, often, stretches_of=lambda _: 1) == run


def test_a_fit_gives_back_what_pieces_took(scale):
    pieces = [(n, 0.5 + 0.02 * n) for n in (10, 40, 90, 200)]
    driver = {"film": 0.0, "begin": 0.0, "join": 0.0}
    costs = scale.fitted(pieces, driver)
    assert (costs.open, costs.frame) == pytest.approx((0.5, 0.02))
    assert costs.spread == pytest.approx((1.0,) * 4)
    falling = scale.fitted([(10, 5.0), (100, 1.0)], driver)
    assert falling.frame == 0.0
    assert falling.open == 3.0
