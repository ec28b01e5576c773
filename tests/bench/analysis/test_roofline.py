"""Parts of cells under their roofs: bound by memory, by arithmetic, or by neither, in numbers, words and a drawing."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from measured_cells import ceilings_of, cell_of, key_of, results_of, with_work
from vitascope.bench.analysis.report import analyse, markdown_report, text_report
from vitascope.bench.analysis.roofline import Roofs, roof_points, roofline_chart, roofs_of
from vitascope.bench.results import Operations, PartWork
from vitascope.gpu.profiling.drawing import Line, Rectangle

# 4 TB/s and 800 TFLOP/s meet at 200 FLOPs a byte.
CEILINGS = (ceilings_of("cpu", copy=20e9, fp32=200e9), ceilings_of(copy=4e12, fp16=800e12, fp32=60e12))


def run_of(*cells):
    return results_of(*cells, ceilings=CEILINGS)


def network_point(**work):
    points = roof_points(run_of(with_work(cell_of(key_of(), (100.0, 101.0)), **work)))
    return next(point for point in points if point.work.part == "network")


def test_both_roofs():
    roofs = Roofs("cuda", "fp16", bytes_per_second=4e12, flops_per_second=800e12)
    assert roofs.ridge == 200
    assert roofs.attainable(100) == 400e12
    assert roofs.attainable(1000) == 800e12


def test_what_is_achieved():
    point = network_point(network_ms=1.0, flops=20e9, nbytes=1e9)
    assert point.bytes_per_second == pytest.approx(1e12)
    assert point.flops_per_second == pytest.approx(20e12)
    assert point.intensity == 20
    assert point.copy_share == pytest.approx(0.25)
    assert point.compute_share == pytest.approx(0.025)
    assert point.roof_share == pytest.approx(0.25)  # left of the ridge the roof is the copy's


@pytest.mark.parametrize(
    ("work", "bound"),
    [
        ({"network_ms": 0.4, "flops": 20e9, "nbytes": 1e9}, "memory"),  # 2.5 of 4 TB/s, 20 FLOPs a byte
        ({"network_ms": 1.0, "flops": 600e9, "nbytes": 1e9}, "compute"),  # 600 of 800 TFLOP/s, 600 a byte
        ({"network_ms": 5.0, "flops": 600e9, "nbytes": 1e9}, "neither"),
        ({"network_ms": 5.0, "flops": 20e9, "nbytes": 1e9}, "neither"),
        ({"network_ms": 0.4, "flops": None, "nbytes": 1e9}, "memory"),  # bytes alone tell, too
    ],
)
def test_what_bounds_it(work, bound):
    assert network_point(**work).bound == bound


def test_each_part_has_the_ceilings_of_its_device_and_precision():
    run = run_of(
        with_work(cell_of(key_of(), (100.0, 101.0)), precision="mixed"),
        with_work(cell_of(key_of(batch=8), (100.0, 101.0)), precision="fp32"),
    )
    found = [(point.work.part, point.roofs.flops_per_second) for point in roof_points(run)]
    assert found == [
        ("preprocess", 200e9),
        ("network", 800e12),
        ("preprocess", 200e9),
        ("network", 60e12),
    ]
    assert roofs_of(CEILINGS, device="cuda", precision="tf32") is None
    assert roofs_of((), device="cpu", precision="fp32") is None


def test_a_part_without_time_work_or_ceilings_makes_no_point():
    cell = with_work(cell_of(key_of(), (100.0, 101.0)), precision="int8")
    assert [point.work.part for point in roof_points(run_of(cell))] == ["preprocess"]
    uncounted = replace(
        cell, work=(PartWork(part="network", device="cuda", precision="fp16", row="network", note="why"),)
    )
    assert roof_points(run_of(uncounted)) == []
    told = text_report(analyse([run_of(uncounted)]))
    assert "1080p, batch 4, fp16, network: why" in told
    assert roof_points(results_of(cell)) == []


def test_the_report_has_ceilings_shares_and_a_verdict():
    cells = [
        with_work(cell_of(key_of(batch=batch), (100.0, 101.0)), network_ms=ms)
        for batch, ms in ((1, 2), (4, 0.4))
    ]
    told = text_report(analyse([run_of(*cells)]))
    assert re.search(r"the GPU +matmul/fp16 +800 TFLOP/s", told)
    assert re.search(
        r"1080p, batch 4, fp16 +network +memory +62.5% +0.400 +5 +20 +1000 +2500 +62.5% +50000 +6.2%", told
    )
    (sentence,) = [line for line in told.splitlines() if line.startswith("network in fp16 on the GPU")]
    assert "12% to 62% of its roof (20 FLOP a byte; the ridge is at 200)" in sentence
    assert "1 neither" in sentence
    assert "1 memory" in sentence
    assert "memory-bound: moving less makes it faster" in sentence
    (sentence,) = [
        line for line in told.splitlines() if line.startswith("preprocess in fp32 on the processor")
    ]
    assert "neither memory- nor compute-bound" in sentence


def test_caches_are_named_where_more_than_all_is_reached():
    told = text_report(analyse([run_of(with_work(cell_of(key_of(), (100.0, 101.0)), network_ms=0.1))]))
    assert "above 100% where caches held" in told


def test_results_without_ceilings_have_no_roofline():
    told = text_report(analyse([results_of(with_work(cell_of(key_of(), (100.0, 101.0))))]))
    assert "Ceilings" not in told
    assert "bounds each part" not in told
    assert "Operators by time" in told


def test_the_drawing_puts_marks_under_their_roofs():
    cells = [
        with_work(cell_of(key_of(batch=batch), (100.0, 101.0)), network_ms=ms)
        for batch, ms in ((1, 2), (4, 0.4))
    ]
    points = roof_points(run_of(*cells))
    drawing = roofline_chart("Roofline", points)
    marks = [mark for mark in drawing.marks if isinstance(mark, Rectangle) and mark.tip]
    assert len(marks) == len(points) == 4
    roofs = [mark for mark in drawing.marks if isinstance(mark, Line) and len(mark.points) == 3]
    assert len(roofs) == 2
    for mark in marks:
        assert 96 <= mark.x + 4 <= 740
        assert 50 <= mark.y + 4 <= 388
    # Both networks have the same FLOPs a byte; the faster one lies higher, and below the slope of its roof.
    slow, fast = (mark for mark in marks if "network" in mark.tip)
    assert slow.x == fast.x
    assert fast.y < slow.y
    (left, low), (ridge, top), _ = max(roofs, key=lambda line: line.points[1][0]).points
    roof_here = low + (fast.x + 4 - left) / (ridge - left) * (top - low)
    assert fast.y + 4 > roof_here
    # 62.5 % of the roof: a fifth of a decade below it.
    decade = (low - top) / 2.301 if low != top else 0
    assert fast.y + 4 - roof_here < decade


def test_operators_are_tables_once_for_each_batch_and_precision():
    cells = [
        with_work(cell_of(key_of(resolution, batch), (100.0, 101.0)))
        for resolution in ("1080p", "4K")
        for batch in (1, 4)
    ]
    analysis = analyse([run_of(*cells)])
    titles = [section.title for section in analysis.sections if section.title.startswith("Operators")]
    assert titles == [
        f"Operators by {what}, batch {batch}, fp16, network 512x288"
        for batch in (1, 4)
        for what in ("time", "memory")
    ]
    told = text_report(analysis)
    assert re.search(r"Conv_1 +Conv +4x16x144x256 +1 +0.6000 +60.0% +12.000", told)
    assert "onnxruntime: 2 operators, 1.000 ms a frame; Conv 60%, Resize 40%" in told
    assert "| Conv_1 | Conv | 4x16x144x256 |" in markdown_report(analysis, pictures={})


def test_bytes_that_were_counted_come_without_times():
    cell = with_work(cell_of(key_of(), (100.0, 101.0)))
    counted = [replace(row, ms=0.0, share=0.0) for row in cell.operations.by_memory]
    cell = replace(cell, operations=replace(cell.operations, by_memory=tuple(counted)))
    sections = {section.title.split(",")[0]: section for section in analyse([run_of(cell)]).sections}
    moved = sections["Operators by memory"]
    assert moved.heads == ("operator", "kind", "result", "MB a frame")
    assert [row[0] for row in moved.rows] == [row.name for row in counted]
    assert "kernels do not say" in moved.sentences[0]
    assert "ms a frame" in sections["Operators by time"].heads


def test_operators_that_nobody_told_are_said():
    cell = replace(
        with_work(cell_of(key_of(), (100.0, 101.0))),
        operations=Operations(source="x", missing="needs PyTorch"),
    )
    assert "fp16: needs PyTorch" in text_report(analyse([run_of(cell)]))
