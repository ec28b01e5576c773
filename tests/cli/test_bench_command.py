"""Tests of ``vitascope bench`` from the command line."""

from __future__ import annotations

import json
import sys
from dataclasses import replace

import pytest
from command_line import run

from clips import write_clip
from vitascope.bench.results import Row, load_results


def test_run_and_analyze(measured, capsys, tmp_path):
    assert run("bench", "analyze", measured, "-o", tmp_path, "--set", "performance.target_fps=0.001") == 0
    printed = capsys.readouterr().out
    assert "1080p, batch 4, fp32" in printed
    (row,) = [line for line in printed.splitlines() if line.startswith("performance.target_fps")]
    assert row.split()[3] == "pass"
    assert f"written: {tmp_path / 'benchmark_report.html'}" in printed
    assert (tmp_path / "benchmark_report.html").read_text().startswith("<!")
    assert (tmp_path / "benchmark_report_1.png").is_file()


def test_a_report_without_matplotlib_is_text_and_says_what_to_install(
    measured, capsys, tmp_path, monkeypatch
):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert run("bench", "analyze", measured, "-o", tmp_path) == 5
    captured = capsys.readouterr()
    assert "pip install 'vitascope[bench]'" in captured.err
    assert "1080p, batch 4, fp32" in captured.out
    assert "written: " not in captured.out
    assert list(tmp_path.iterdir()) == []


def slowed(path, tmp_path, factor):
    """Return the same results with every round slower."""
    results = load_results(path)
    cells = []
    for cell in results.cells:
        rate = cell.row("throughput")
        # Simulate a steady machine, so that only the factor shows.
        before = Row.of("throughput", "frames/s", [100.0, 100.5, 99.5])
        after = Row.of("throughput", "frames/s", [sample / factor for sample in before.samples])
        assert rate is not None
        cells.append(replace(cell, rows=(after, *cell.rows[1:])))
    from vitascope.bench.results import ResultsFile

    changed = tmp_path / f"{factor}.json"
    ResultsFile(changed, replace(results, cells=tuple(cells)))
    return changed


def test_compare_exits_with_1_on_a_regression_alone(measured, tmp_path, capsys):
    same, slow = slowed(measured, tmp_path, 1.0), slowed(measured, tmp_path, 1.12)
    assert run("bench", "compare", same, same) == 0
    assert "no regression" in capsys.readouterr().out
    assert run("bench", "compare", same, slow) == 1
    printed = capsys.readouterr().out
    assert printed.splitlines()[-1].startswith("regression: ")
    assert "percentile bootstrap" in printed
    assert run("bench", "compare", same, slow, "--tolerance", "0.2") == 0
    capsys.readouterr()
    assert run("bench", "compare", same, slow, "--json") == 1
    found = json.loads(capsys.readouterr().out)
    assert found["regression"] is True
    assert found["overall"]["slowdown"] == pytest.approx(1.12)


def test_pipeline(tmp_path, capsys):
    film = write_clip(tmp_path / "in.mp4", frame_count=24)
    words = ("bench", "pipeline", film, "--discard", "--profile", "fast")
    assert run(*words, "-o", tmp_path / "out") == 0
    printed = capsys.readouterr().out
    assert "24 frames, key, discarded: selfie" in printed
    assert " fps (p5 " in printed
    assert "do this: " in printed
    assert load_results(tmp_path / "out" / "benchmark_results.json").kind == "pipeline"


def test_what_does_not_exist(tmp_path, capsys, measured):
    (tmp_path / "text.json").write_text("text")
    assert run("bench", "run", "--only", "weather") == 2
    assert run("bench", "analyze", tmp_path / "missing.json") == 3
    assert run("bench", "analyze", tmp_path / "text.json") == 3
    assert run("bench", "compare", measured, tmp_path / "text.json") == 3
    assert run("bench", "pipeline", tmp_path / "missing.mp4") == 3
    assert run("bench", "run", "--input", tmp_path / "missing.mp4", "-o", tmp_path / "out") == 3
    assert len(capsys.readouterr().err.strip().splitlines()) == 6


def test_a_portrait_is_measured(face_model, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VITASCOPE_HOME", str(face_model.parents[1]))
    assert run("bench", "animate", "--duration", "0.5", "--set", "animation.calibrate=false") == 0
    printed = capsys.readouterr().out
    assert "fps; mesh at 512x512" in printed
    assert "null: " in printed
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "inf"])
def test_a_duration_is_a_time(seconds, capsys):
    assert run("bench", "animate", "--duration", seconds) == 2
    assert "--duration" in capsys.readouterr().err
