"""Tests of reports: targets that pass or fail, recommendations based on figures, and self-contained files."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from dataclasses import replace

import cv2
import numpy as np
import pytest

from measured_cells import LAPTOP, VERDICT, cell_of, key_of, results_of, with_operators
from vitascope.bench.recommendations import recommend
from vitascope.bench.report import analyse, html_report, markdown_report, text_report, write_reports
from vitascope.bench.results import Cell, Operations, Row
from vitascope.bench.targets import check_targets
from vitascope.errors import InputError, OutputError
from vitascope.gpu.profiling.utilisation import GpuLimits


def around(fps, n=7):
    return [fps * (1 + 0.004 * (k - n // 2)) for k in range(n)]


def suite_of(*more):
    return results_of(
        cell_of(key_of("1080p", 1, "fp32"), around(110)),
        cell_of(key_of("1080p", 4, "fp32"), around(119)),
        cell_of(key_of("1080p", 1, "fp16"), around(150)),
        cell_of(key_of("1080p", 4, "fp16"), around(200)),
        cell_of(key_of("4K", 1, "fp16"), around(28)),
        cell_of(key_of("8K", 4, "fp16"), around(31)),
        Cell(
            key=key_of("8K", 32, "fp16"), status="failed", reason="the GPU has too little memory: 9 GB wanted"
        ),
        *more,
    )


def statuses(results, **options):
    return {(one.target.name, one.target.limit): one for one in check_targets(results, **options)}


def test_targets_of_the_documents():
    found = statuses(suite_of())
    assert found["1080p, batch 1", 60].status() == "pass"
    assert found["1080p, batch 4", 120].value == 200  # the faster precision
    assert found["4K, batch 1", 30].status() == "fail"
    assert found["4K, batch 2", 30].cell.key.batch == 1  # the largest batch up to two
    assert found["1080p, the best batch", 150].status() == "pass"
    assert found["8K, the best batch", 30].status() == "pass"
    assert found["6K, the best batch", 60].status() == "not measured"
    assert found["VR stereo 4K, batch 4 for each eye", 60].status() == "not measured"
    assert found["1080p, time for a frame, P99", 25].status() == "pass"
    assert found["GPU utilisation at 1080p", 85].status() == "fail"
    assert found["GPU utilisation at 1080p", 90].value == 72
    assert found["CPU utilisation at 1080p", 70].value == pytest.approx(100 * 3 / 16)
    latency = found["VR mode: 1080p, batch up to 2, P95 from decoder to encoder, queues included", 50]
    assert (latency.cell.key.batch, latency.status()) == (1, "pass")
    assert [found["VR mode: 1080p, batch up to 2", fps].value for fps in (60, 90)] == [150, 150]
    assert found["throughput mode: 1080p, batch up to 16", 150].value == 200
    assert found["throughput mode: 1080p, batch up to 16", 200].status() == "pass"
    assert found["GPU memory, share", 80].status() == "not measured"


def test_limits_look_at_the_worst_cell():
    limits = GpuLimits(
        name="x",
        memory_bytes=24_000_000_000,
        power_watts=None,
        slowdown_celsius=None,
        sm_clock_mhz=None,
        pcie_bytes_per_second=None,
    )
    full = cell_of(key_of("4K", 32), around(40), vram_mb=21_000.0)
    full = replace(full, load=replace(full.load, memory_used_bytes_max=21_000_000_000, limits=limits))
    found = statuses(suite_of(full))
    assert found["GPU memory, share", 80].value == pytest.approx(87.5)
    assert found["GPU memory, share", 80].status() == "fail"
    assert found["GPU memory", 19_200].cell == full


def test_stereo_is_measured_apart():
    stereo = cell_of(key_of("4K", 4, stereo="side-by-side"), around(61))
    found = statuses(suite_of(stereo))
    assert found["VR stereo 4K, batch 4 for each eye", 60].status() == "pass"
    assert found["4K, batch 1", 30].status() == "fail"


def test_the_users_own_targets():
    found = statuses(suite_of(), performance={"target_fps": 100.0, "max_latency_ms": 60.0})
    assert found["performance.target_fps at 1080p", 100].status() == "pass"
    assert found["performance.target_fps at 4K", 100].status() == "fail"
    assert found["performance.max_latency_ms at 1080p, P95 from decoder to encoder", 60].status() == "pass"
    assert not [name for name, _ in statuses(suite_of()) if "performance" in name]


def test_an_impossible_target_is_answered_with_what_can_be_had():
    told = text_report(analyse([suite_of()], performance={"target_fps": 190.0}))
    assert "at 4K: 190 frames/s is out of reach with what was measured; 28 is possible" in told
    assert "at 1080p: 190" not in told


def test_the_load_of_a_gpu_is_a_table():
    told = text_report(analyse([suite_of()]))
    table = told[told.index("Load of the GPU") :].splitlines()
    assert re.split(r"\s{2,}", table[4])[:3] == ["1080p, batch 1, fp32", "72", "-"]
    cell = cell_of(key_of(), around(100))
    plain = replace(cell, load=replace(cell.load, gpu_percent=None))
    assert "Load of the GPU" not in text_report(analyse([results_of(plain)]))


def test_the_stage_breakdown_has_the_copies_to_the_gpu_and_back():
    cell = cell_of(key_of(), around(100))
    parts = {"network": 1.25, "host to device": 0.5, "device to host": 0.125}
    rows = (*cell.rows, *(Row.of(f"gpu/{name}", "ms", [ms]) for name, ms in parts.items()))
    told = text_report(analyse([results_of(replace(cell, rows=rows))]))
    table = told[told.index("on the GPU's clock, by part") :].splitlines()
    assert re.split(r"\s{2,}", table[2]) == ["cell", "host to device", "network", "device to host"]
    assert re.split(r"\s{2,}", table[4]) == ["1080p, batch 4, fp16", "0.500", "1.250", "0.125"]
    assert "by part" not in text_report(analyse([results_of(cell)]))


def test_recommendations_are_in_the_figures():
    found = recommend(suite_of())
    gains = [one.gain for one in found]
    assert gains == sorted(gains, reverse=True)
    by_change = {one.change: one for one in found}
    precision = by_change["gpu.precision=fp16"]
    assert precision.gain == pytest.approx(200 / 119, rel=0.01)
    assert precision.certainty == "measured"
    assert "alpha differs by 0.0010" in precision.why
    batch = by_change["model.batch_size=4"]
    assert batch.gain == pytest.approx(200 / 150, rel=0.01)
    memory = by_change["model.batch_size=4 or less at 8K in fp16"]
    assert memory.gain == 1.0
    assert "no faster, but safer" in memory.lines()
    assert by_change[VERDICT.advice].certainty == "high"
    assert sum(one.change == VERDICT.advice for one in found) == 1  # once, not for each cell


def test_a_recommendation_is_a_heading_with_its_reasons_below():
    analysis = analyse([suite_of()])
    why = "why: 1080p, fp16: 200.0 fps instead of 150.0 with batch 1"
    assert f"\nmodel.batch_size=4\n  expected: 1.33x as fast (measured)\n  {why}" in text_report(analysis)
    assert "\nto try one: vitascope segment in.mp4 -o out.mp4 --set gpu.precision=fp16; " in text_report(
        analysis
    )
    marked = "- **model.batch_size=4**  \n  expected: 1.33x as fast (measured)  \n  why: "
    assert marked in markdown_report(analysis, pictures={})
    page = html_report(analysis)
    assert "<li><strong>model.batch_size=4</strong><br/>expected: 1.33x as fast (measured)<br/>why: " in page


def test_no_setting_no_example():
    assert "to try one" not in text_report(analyse([results_of(cell_of(key_of(), [100.0]))]))


def test_noise_is_no_recommendation():
    draws = np.random.default_rng(3)
    rates = [list(100 * np.exp(draws.normal(0, 0.1, 5))) for _ in range(2)]
    results = results_of(cell_of(key_of(batch=1), rates[0]), cell_of(key_of(batch=4), rates[1]))
    assert not [one for one in recommend(results) if one.certainty == "measured"]


def test_stumbling_is_said():
    times = [5.0] * 97 + [30.0] * 3
    found = recommend(results_of(cell_of(key_of(), around(190), frame_times=times)))
    assert "30.00 ms for one in a hundred" in " ".join(one.why for one in found)


def test_single_rows_and_runs_that_failed_are_analysed():
    lonely = results_of(cell_of(key_of(), [100.0]))
    assert "100.0" in text_report(analyse([lonely]))
    failed = results_of(Cell(key=key_of(), status="failed", reason="out of memory"), finished=False)
    told = text_report(analyse([failed]))
    assert "the run was interrupted" in told
    assert "it did not finish" in told
    assert "failed: out of memory" in told
    assert "nothing could be measured; the reasons are listed below, cell by cell" in told
    with pytest.raises(InputError, match="have no cell"):
        analyse([results_of()])


def test_cells_that_lack_figures_for_the_same_reason_share_a_sentence():
    skipped = [
        Cell(key=key_of(size, precision="fp16"), status="skipped", reason="no GPU") for size in ("4K", "8K")
    ]
    told = text_report(analyse([results_of(cell_of(key_of(), around(100)), *skipped)]))
    assert "\n4K, batch 4, fp16; 8K, batch 4, fp16: skipped: no GPU\n" in told


def test_a_cell_without_times_is_not_analysed():
    cell = cell_of(key_of(), around(100))
    cell = replace(cell, rows=tuple(row for row in cell.rows if row.name != "latency"))
    with pytest.raises(InputError, match=r"cells\.1\.rows: it was measured, and has no 'latency'"):
        analyse([results_of(cell_of(key_of("4K"), around(30)), cell)])


def test_machines_stand_side_by_side_and_are_not_averaged():
    told = text_report(analyse([suite_of(), results_of(cell_of(key_of("4K", 1), around(9)), machine=LAPTOP)]))
    table = told.split("\n\n")[0].splitlines()
    row = next(line for line in table if line.startswith("4K, batch 1"))
    assert re.split(r"\s{2,}", row) == ["4K, batch 1, fp16", "28.0 fps", "9.0 fps"]
    row = next(line for line in table if line.startswith("1080p, batch 4, fp32"))
    assert row.endswith(" -")


def test_runs_of_other_settings_are_said_to_be_others():
    cells = (cell_of(key_of(), around(100)), Cell(key=key_of("8K"), status="skipped", reason="no memory"))
    one = results_of(*cells, settings={"model.name": "rvm", "gpu.device": "cuda"})
    other = results_of(*cells, machine=LAPTOP, settings={"model.name": "selfie", "gpu.device": "cpu"})
    told = text_report(analyse([one, other])).split("\n\n")[0]
    assert "say little about the machines: model.name (1. NVIDIA H200 rvm, 2. Ryzen selfie)" in told
    assert "gpu.device" not in told
    assert "8K" not in told  # a row of dashes
    assert "not the same" not in text_report(analyse([one, one]))


def test_the_first_three_lines_say_how_fast_what_limits_and_what_to_do():
    fast = replace(cell_of(key_of("1080p"), [1200.0] * 5), verdict=None)
    slow = replace(cell_of(key_of("8K"), [0.5] * 5), verdict=None)
    run = results_of(cell_of(key_of("4K"), [42.0] * 5), fast, slow)
    told = text_report(analyse([run])).splitlines()
    assert told[2] == (
        "how fast: 4K 42 fps with batch 4 in fp16 (an hour of 30 fps video: 43 minutes); "
        "1080p 1200 fps with batch 4 in fp16 (an hour of 30 fps video: 2 minutes); "
        "8K 0.5 fps with batch 4 in fp16 (an hour of 30 fps video: 60.0 hours)"
    )
    assert told[3] == f"what limits: {VERDICT.title} (4K); no verdict (1080p, 8K)"
    assert told[4] == f"what to do: {VERDICT.advice} (1.40x as fast)"
    assert told[5] == ""
    broken_off = text_report(analyse([results_of(fast, finished=False)])).splitlines()
    assert "what to do: the measurements suggest no change" in broken_off
    assert broken_off[5].startswith("the run was interrupted")


def test_targets_for_a_gpu_are_a_comparison_on_a_cpu():
    cell = replace(cell_of(key_of(precision="fp32"), around(9)), device="CPU (8 cores)")
    run = results_of(cell, machine=LAPTOP)
    found = statuses(run, performance={"target_fps": 100.0})
    assert found["1080p, batch 4", 60].status() == "for comparison"
    assert found["performance.target_fps at 1080p", 100].status() == "fail"
    told = text_report(analyse([run]))
    assert "for comparison: a target for a GPU, measured on a CPU" in told
    assert "for comparison" not in text_report(analyse([suite_of()]))


def test_operators_are_folded_tables_once_for_each_batch_and_precision():
    cells = [
        with_operators(cell_of(key_of(resolution, batch), (100.0, 101.0)))
        for resolution in ("1080p", "4K")
        for batch in (1, 4)
    ]
    analysis = analyse([results_of(*cells)])
    folded = [section for section in analysis.sections if section.is_folded]
    assert [section.title for section in folded] == [
        f"Operators by {what}, batch {batch}, fp16, network 512x288"
        for batch in (1, 4)
        for what in ("time", "memory")
    ]
    assert folded[0].sentences == ("onnxruntime: 2 operators, 1.000 ms a frame; Conv 60%, Resize 40%",)
    assert folded[0].rows[0] == ("Conv_1", "Conv", "4x16x144x256", "1", "0.6000", "60.0%", "12.000")
    assert "Operators" not in text_report(analysis)
    marked = markdown_report(analysis, pictures={})
    assert "| Conv_1 | Conv | 4x16x144x256 |" in marked
    page = html_report(analysis)
    for text in (marked, page):
        assert text.count("<details>") == text.count("</details>") == 4
        assert f"<summary>{folded[0].title}</summary>" in text


def test_operators_that_nobody_told_are_said():
    cell = replace(
        cell_of(key_of(), (100.0, 101.0)), operations=Operations(source="x", missing="needs PyTorch")
    )
    assert "fp16: needs PyTorch" in text_report(analyse([results_of(cell)]))


def test_heat_is_said():
    cell = cell_of(key_of(), around(100))
    hot = replace(cell, load=replace(cell.load, throttled_share=0.4))
    assert "slowed itself down by heat" in text_report(analyse([results_of(hot)]))


def test_the_page_needs_no_network_and_escapes_what_others_wrote():
    key = key_of(resolution="<script>x</script>")
    page = html_report(analyse([suite_of(cell_of(key, around(50)))]))
    assert "<script" not in page
    # Drawings refer to marks and clips of their own.
    assert not re.search(r"""(src|href)\s*=(?!"#)|@import|url\((?!#)""", page)
    assert 'name="viewport"' in page
    assert "@media print" in page
    assert '<td class="pass">pass</td>' in page
    assert '<td class="fail">fail</td>' in page
    body = page.partition("<body>")[2].partition("</body>")[0]
    drawings = [
        mark.tag for mark in ET.fromstring(f"<body>{body}</body>").iter() if mark.tag.endswith("}svg")
    ]
    assert len(drawings) == 6


def test_drawings_say_when_cells_are_left_out():
    cells = [cell_of(key_of(batch=batch), around(100)) for batch in range(1, 51)]
    sections = {section.title: section for section in analyse([results_of(*cells)]).sections}
    assert sections["Work for a frame, by stage"].sentences == ("the first 48 of 50 cells",)
    assert sections["Time for a frame"].sentences[1:] == ("the first 48 of 50 cells",)


def test_markdown_tables_have_as_many_cells_as_heads():
    text = markdown_report(analyse([suite_of()]), pictures={})
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert len(rows) > 20
    assert {line.count("|") for line in rows} == {7, 11, 16}


def test_figures_stand_to_the_right_and_words_to_the_left():
    page = html_report(analyse([suite_of()]))
    assert '<td class="word">1080p, batch 4, fp16</td>' in page
    for figure in ("200 frames/s", ">= 60 frames/s", "&lt; 20 ms", "-", "0.0010", "72"):
        assert f"<td>{figure.replace('>', '&gt;')}</td>" in page


def test_files(tmp_path):
    written = write_reports(analyse([suite_of()]), tmp_path / "new")
    names = [path.name for path in written]
    assert names[:2] == ["benchmark_report.html", "benchmark_report.md"]
    for path in written[2:]:
        picture = cv2.imread(str(path))
        assert picture.std() > 5
        assert f"]({path.name})" in written[1].read_text()
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError):
        write_reports(analyse([suite_of()]), tmp_path / "file")
