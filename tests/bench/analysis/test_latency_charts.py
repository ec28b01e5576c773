"""Drawings of latency, and axes: everything measured is inside, where it belongs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from measured_cells import cell_of, key_of, results_of
from vitascope.bench.analysis.latency_charts import latency_chart, trade_off_chart
from vitascope.bench.analysis.log_axes import log_axis
from vitascope.bench.analysis.report import analyse, text_report
from vitascope.gpu.profiling.drawing import Line, Rectangle, Words


@given(st.lists(st.floats(1e-3, 1e15), min_size=1, max_size=20))
def test_an_axis_holds_its_values_and_ends_on_marks(values):
    axis = log_axis(values, str)
    assert all(-1e-3 <= axis.share(value) <= 1 + 1e-3 for value in values)
    assert axis.marks[0] == axis.low < axis.high == axis.marks[-1]
    assert 2 <= len(axis.marks) <= 20
    shares = [axis.share(mark) for mark in axis.marks]
    assert shares == sorted(shares)


def curves(drawing):
    return [mark.points for mark in drawing.marks if isinstance(mark, Line) and mark.color != "#e3e6ea"]


def test_latency_is_a_rising_curve_for_each_cell():
    cells = [
        cell_of(key_of(batch=batch), (100.0, 101.0), frame_times=list(np.linspace(low, 3 * low, 200)))
        for batch, low in ((1, 10.0), (4, 60.0))
    ]
    drawing = latency_chart("Latency", cells)
    quick, slow = curves(drawing)
    for curve in (quick, slow):
        xs, ys = zip(*curve, strict=True)
        assert list(xs) == sorted(xs)
        assert list(ys) == sorted(ys, reverse=True)
    assert max(x for x, _ in quick) < max(x for x, _ in slow)
    tips = [mark.tip for mark in drawing.marks if isinstance(mark, Rectangle)]
    row = cells[0].row("latency")
    assert f"1080p, batch 1, fp16: 50% within {row.p50:.1f} ms, n 200" in tips
    words = [mark.text for mark in drawing.marks if isinstance(mark, Words)]
    assert f"p50 {row.p50:.0f}, p95 {row.p95:.0f}, p99 {row.p99:.0f} ms" in words


def test_speed_against_latency_goes_by_batch():
    cells = [
        cell_of(key_of(batch=batch), (fps,) * 3, frame_times=[wait] * 9)
        for batch, fps, wait in ((8, 200.0, 80.0), (1, 100.0, 10.0), (4, 180.0, 40.0))
    ]
    drawing = trade_off_chart("Trade", {"1080p fp16": cells})
    (curve,) = curves(drawing)
    xs, ys = zip(*curve, strict=True)
    assert list(xs) == sorted(xs)
    assert list(ys) == sorted(ys, reverse=True)
    numbers = [
        mark.text for mark in drawing.marks if isinstance(mark, Words) and mark.text in ("1", "4", "8")
    ]
    assert numbers == ["1", "4", "8"]


def test_what_speed_costs_is_said():
    cells = [
        cell_of(key_of(batch=1), (100.0,) * 3, frame_times=[10.0] * 9),
        cell_of(key_of(batch=8), (200.0,) * 3, frame_times=[80.0] * 9),
    ]
    told = text_report(analyse([results_of(*cells)]))
    assert "answers soonest" not in told  # a section with a drawing is not for the terminal
    (section,) = [
        one for one in analyse([results_of(*cells)]).sections if one.title == "Speed against latency"
    ]
    assert section.sentences == (
        "1080p, batch 8, fp16: 200.0 fps, 95% of frames within 120.0 ms; "
        "1080p, batch 1, fp16 answers soonest: 100.0 fps, within 50.0 ms",
    )
    worse = cell_of(key_of(batch=8), (50.0,) * 3, frame_times=[160.0] * 9)
    (section,) = [
        one for one in analyse([results_of(cells[0], worse)]).sections if one.title == "Speed against latency"
    ]
    assert section.sentences[0].endswith("nothing measured at 1080p is faster or answers sooner")


def test_one_cell_of_each_size_trades_nothing():
    cells = [cell_of(key_of(size), (100.0,) * 3) for size in ("1080p", "4K")]
    titles = [one.title for one in analyse([results_of(*cells)]).sections]
    assert "Latency of each frame" in titles
    assert "Speed against latency" not in titles


def test_one_cell_is_drawn():
    cell = cell_of(key_of(), (100.0,))
    assert latency_chart("L", [cell]).to_bgr().std() > 5
    assert trade_off_chart("T", {"one": [cell]}).to_bgr().std() > 5
    assert log_axis([3.0], str).marks == pytest.approx((2.0, 5.0))
