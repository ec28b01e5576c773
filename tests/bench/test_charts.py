"""Check that charts contain every measurement, in its place, with a tooltip."""

from __future__ import annotations

import re
from itertools import pairwise

import cv2
import numpy as np
import pytest

from measured_cells import cell_of, key_of, results_of
from vitascope.bench.charts import (
    frame_time_chart,
    latency_chart,
    scaling_chart,
    stage_chart,
    trade_off_chart,
    waterfall_chart,
)
from vitascope.bench.report import analyse, text_report

Figure = pytest.importorskip("matplotlib.figure").Figure


def drawn(chart):
    """Return the axes after layout."""
    figure = Figure()
    chart.draw(figure)
    (axes,) = figure.axes
    return axes


def curves(axes):
    return [line.get_xydata() for line in axes.lines if len(line.get_xydata()) > 1]


def tips(chart):
    return re.findall(r"<title>(.*?)</title>", chart.to_svg())


def test_a_frames_way_is_drawn_stage_below_stage():
    cell = cell_of(key_of(), (100.0,), stages={"decode": 1.0, "matte": 6.0, "encode": 3.0})
    chart = waterfall_chart("way", [cell])
    axes = drawn(chart)
    for above, below in pairwise(axes.patches):
        assert below.get_x() == pytest.approx(above.get_x() + above.get_width())
        assert below.get_y() > above.get_y()
    assert axes.patches[1].get_width() == pytest.approx(6 * axes.patches[0].get_width())
    assert axes.yaxis_inverted()  # the first on top
    assert " 6.00 ms, 60%" in [text.get_text() for text in axes.texts]
    assert tips(chart) == [
        "1080p, batch 4, fp16: decode 1.000 ms",
        "1080p, batch 4, fp16: matte 6.000 ms",
        "1080p, batch 4, fp16: encode 3.000 ms",
    ]


def test_stages_stand_beside_one_another():
    cells = [cell_of(key_of(batch=batch), (100.0,), stages={"decode": 1.0, "matte": 6.0}) for batch in (1, 4)]
    axes = drawn(stage_chart("stages", cells))
    bars = [bar for bar in axes.patches if bar.get_width()]
    assert [bar.get_x() for bar in bars] == [0, 1, 0, 1]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["decode", "matte"]
    assert " 7.00 ms" in [text.get_text() for text in axes.texts]


def test_frame_times_reach_from_the_5th_to_the_99th_percentile():
    cell = cell_of(key_of(), (100.0,), frame_times=[float(ms) for ms in range(1, 101)])
    row = cell.row("frame_time")
    axes = drawn(frame_time_chart("times", [cell]))
    pale, dark = axes.patches
    assert (pale.get_x(), pale.get_x() + pale.get_width()) == pytest.approx((row.p5, row.p99))
    assert (dark.get_x(), dark.get_x() + dark.get_width()) == pytest.approx((row.p5, row.p95))
    assert list(axes.lines[0].get_xdata()) == [row.p50] * 2
    low, high = axes.get_xlim()
    assert low == 0
    assert high > row.p99 * 1.2  # room for the label


def test_speed_by_batch_is_a_curve_for_each_name():
    axes = drawn(scaling_chart("speed", {"1080p": [(4, 200.0), (1, 100.0)], "4K": [(1, 30.0)]}))
    (curve,) = curves(axes)
    assert curve.tolist() == [[1, 100], [4, 200]]
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    assert list(axes.get_xticks()) == [1, 4]


def test_latency_is_a_rising_curve_for_each_cell():
    cells = [
        cell_of(key_of(batch=batch), (100.0, 101.0), frame_times=list(np.linspace(low, 3 * low, 200)))
        for batch, low in ((1, 10.0), (4, 60.0))
    ]
    chart = latency_chart("Latency", cells)
    axes = drawn(chart)
    quick, slow = curves(axes)
    for curve in (quick, slow):
        assert (np.diff(curve, axis=0) >= 0).all()
    assert quick[:, 0].max() < slow[:, 0].max()
    row = cells[0].row("latency")
    assert f"1080p, batch 1, fp16: 50% within {row.p50:.1f} ms, n 200" in tips(chart)
    legend = [text.get_text() for text in axes.get_legend().get_texts()]
    assert legend[0].endswith(f"p50 {row.p50:.0f}, p95 {row.p95:.0f}, p99 {row.p99:.0f} ms")


def test_speed_against_latency_goes_by_batch():
    cells = [
        cell_of(key_of(batch=batch), (fps,) * 3, frame_times=[wait] * 9)
        for batch, fps, wait in ((8, 200.0, 80.0), (1, 100.0, 10.0), (4, 180.0, 40.0))
    ]
    axes = drawn(trade_off_chart("Trade", {"1080p fp16": cells}))
    (curve,) = curves(axes)
    assert (np.diff(curve, axis=0) > 0).all()
    assert [text.get_text() for text in axes.texts] == ["1", "4", "8"]


def test_labels_that_would_lie_on_one_another_are_left_out():
    cells = {
        precision: [
            cell_of(
                key_of(batch=batch, precision=precision), (fps * gain,) * 3, frame_times=[batch * 10.0] * 9
            )
            for batch, fps in ((1, 100.0), (32, 900.0))
        ]
        for precision, gain in (("fp32", 1.0), ("fp16", 1.01))
    }
    axes = drawn(trade_off_chart("Trade", cells))
    assert [text.get_text() for text in axes.texts] == ["1", "32"]


def test_what_speed_costs_is_said():
    cells = [
        cell_of(key_of(batch=1), (100.0,) * 3, frame_times=[10.0] * 9),
        cell_of(key_of(batch=8), (200.0,) * 3, frame_times=[80.0] * 9),
    ]
    told = text_report(analyse([results_of(*cells)]))
    assert "has the least latency" not in told  # a section with a drawing is not printed
    (section,) = [
        one for one in analyse([results_of(*cells)]).sections if one.title == "Speed against latency"
    ]
    assert section.sentences == (
        "1080p, batch 8, fp16: 200.0 fps, 95% of frames within 120.0 ms; "
        "1080p, batch 1, fp16 has the least latency: 100.0 fps, within 50.0 ms",
    )
    worse = cell_of(key_of(batch=8), (50.0,) * 3, frame_times=[160.0] * 9)
    (section,) = [
        one for one in analyse([results_of(cells[0], worse)]).sections if one.title == "Speed against latency"
    ]
    assert section.sentences[0].endswith("nothing measured at 1080p is faster or has less latency")


def test_one_cell_of_each_size_trades_nothing():
    cells = [cell_of(key_of(size), (100.0,) * 3) for size in ("1080p", "4K")]
    titles = [one.title for one in analyse([results_of(*cells)]).sections]
    assert "Latency of each frame" in titles
    assert "Speed against latency" not in titles


@pytest.mark.parametrize("make", [latency_chart, frame_time_chart, stage_chart, waterfall_chart])
def test_one_cell_is_drawn(make):
    picture = cv2.imdecode(np.frombuffer(make("one", [cell_of(key_of(), (100.0,))]).to_png(), np.uint8), 1)
    assert picture.shape[1] == 1200
    assert picture.std() > 5


def test_one_point_is_drawn():
    assert trade_off_chart("T", {"one": [cell_of(key_of(), (100.0,))]}).to_png()
    assert scaling_chart("T", {"one": [(4, 33.3)]}).to_png()
