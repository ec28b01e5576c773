"""From passes to figures: what counts, and batches that did not fit."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clips import write_clip
from measured_cells import key_of
from vitascope.bench.measured_run import MeasuredSegmenter
from vitascope.bench.suite import Rounds, cell_of_runs, measure_rounds, too_short
from vitascope.config import load_settings
from vitascope.errors import InputError
from vitascope.segmentation.report import GpuReport

KEY = key_of(batch=1, precision="fp32")


@pytest.fixture(scope="module")
def passes(tmp_path_factory):
    film = write_clip(tmp_path_factory.mktemp("cells") / "in.mp4", frame_count=16)
    with MeasuredSegmenter(loaded=load_settings(profile="fast")) as segmenter:
        runs, load = measure_rounds(segmenter, film, kind="key", rounds=Rounds(fewest=2, most=3, seconds=0.0))
        yield segmenter, runs, load


def test_as_many_rounds_as_must_be_when_time_is_short(passes):
    assert len(passes[1]) == 2


def test_the_figures_are_those_of_the_runs(passes):
    segmenter, runs, load = passes
    cell = cell_of_runs(KEY, segmenter, runs, load)
    assert cell.row("throughput").samples == pytest.approx(
        [run.frames_per_second(1) for run in runs], rel=1e-5
    )
    infer = [stage for stage in runs[0].pipeline.stages if stage.name == "infer"]
    assert cell.row("stage/infer").samples[0] == pytest.approx(infer[0].busy_seconds * 1e3 / 16, rel=1e-5)
    assert cell.row("latency").n == 32
    assert cell.row("gpu/network") is None
    assert cell.load is load


def test_spans_of_a_gpu_become_rows_and_evidence(passes):
    segmenter, runs, load = passes
    spans = {"preprocess": 0.016, "network": 0.16, "composite": 0.032}
    on_gpu = [replace(run, gpu=GpuReport(spans, 3_000_000_000)) for run in runs]
    cell = cell_of_runs(KEY, segmenter, on_gpu, load)
    assert cell.median("gpu/network") == pytest.approx(10.0)
    assert cell.median("gpu/preprocess") == pytest.approx(1.0)
    assert cell.median("peak_vram") == pytest.approx(3000.0)


def test_a_batch_that_was_made_smaller_is_no_measurement(passes):
    segmenter, runs, load = passes
    note = "the GPU has too little memory: 9 GB wanted; went on with 8 frames a call"
    shrunk = [runs[0], replace(runs[1], notes=(note,))]
    cell = cell_of_runs(KEY, segmenter, shrunk, load)
    assert cell.status == "failed"
    assert cell.reason == note
    assert cell.rows == ()


def test_too_few_frames(passes, tmp_path):
    segmenter, runs, load = passes
    with pytest.raises(InputError, match="only 16 frames came out"):
        cell_of_runs(replace(KEY, batch=16), segmenter, runs, load)
    assert too_short(tmp_path, frame_count=8, batch=4) is None
    assert too_short(tmp_path, frame_count=7, batch=1) is not None
    assert "batches of 8 need 16" in too_short(tmp_path, frame_count=15, batch=8)
