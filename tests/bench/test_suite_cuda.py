"""Tests of the suite and the whole pipeline on a real GPU."""

from __future__ import annotations

from dataclasses import replace

import pytest

from vitascope.bench import suite
from vitascope.bench.suite import PipelineOptions, Rounds, SuiteOptions, bench_pipeline, run_suite

pytestmark = [pytest.mark.cuda, pytest.mark.whole_gpu]

ON_GPU = ("gpu.device=cuda",)


def test_cells_on_a_gpu(tmp_path, monkeypatch):
    monkeypatch.setattr(suite, "_RESOLUTIONS", {"1080p": (1920, 1080)})
    monkeypatch.setattr(suite, "_BATCHES", (1, 8))
    monkeypatch.setattr(suite, "_MOST_GPU_FRAMES", 96)
    monkeypatch.setattr(suite, "_ROUNDS", Rounds(fewest=3, most=3, seconds=0))
    options = SuiteOptions(model="rvm", assignments=ON_GPU)
    results, _ = run_suite(options, output_dir=tmp_path, on_cell=lambda cell, *_: print(cell))
    assert [cell.status for cell in results.cells] == ["measured"] * 4, [
        cell.reason for cell in results.cells
    ]
    for cell in results.cells:
        assert cell.model == "rvm"
        assert {"gpu/preprocess", "gpu/network", "gpu/composite"} <= {row.name for row in cell.rows}
        assert cell.row("stage/download") is not None
        assert cell.median("peak_vram") > 100
    for cell in results.cells:
        assert cell.median("network") > 0
        assert cell.operations.by_time, cell.operations.missing
    half = [cell for cell in results.cells if cell.key.precision == "fp16"]
    assert all(0 < cell.alpha_error < 0.02 for cell in half)
    assert results.machine.gpus[0].driver


def test_pictures_that_are_discarded(monkeypatch):
    options = PipelineOptions(discard=True, assignments=(*ON_GPU, "model.name=rvm"))
    (cell,) = bench_pipeline(options).cells
    (encoded,) = bench_pipeline(replace(options, discard=False)).cells
    print(cell, encoded)
    assert cell.frames == encoded.frames == 480
    assert cell.row("stage/encode") is None
    assert encoded.row("stage/encode") is not None
