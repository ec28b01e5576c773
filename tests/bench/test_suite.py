"""The suite end to end on tiny films: what it keeps, what it refuses, and that its figures are those of real runs."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from brightness_file import brightness_settings
from clips import write_clip
from left_over import left_by
from measured_cells import SHORT_PROBE, key_of
from vitascope.bench import suite
from vitascope.bench.measured_run import MeasuredSegmenter
from vitascope.bench.results import RESULTS_NAME, load_results
from vitascope.bench.suite import (
    Rounds,
    SuiteOptions,
    cell_of_runs,
    measure_rounds,
    plan_cells,
    run_suite,
    too_short,
)
from vitascope.config import load_settings
from vitascope.errors import DeviceMemoryError, InputError, UsageError
from vitascope.segmentation.report import GpuReport

QUICK = SuiteOptions(quick=True)
BRIGHTNESS = brightness_settings()
LIGHT = replace(
    QUICK, model=BRIGHTNESS["model.name"], assignments=(f"model.kind={BRIGHTNESS['model.kind']}",)
)
"""Settings of a trivial network, for tests of what the suite does with its measurements."""


@pytest.fixture
def tiny(monkeypatch):
    """Make a suite of one small video, batches of one and four, and two rounds."""
    monkeypatch.setattr(suite, "_QUICK_RESOLUTIONS", {"1080p": (256, 144)})
    monkeypatch.setattr(suite, "_QUICK_FRAMES", 12)
    monkeypatch.setattr(suite, "_FRAMES", 12)
    monkeypatch.setattr(suite, "_QUICK_VISITS", 1)
    monkeypatch.setattr(suite, "_QUICK_ROUNDS", Rounds(fewest=2, most=2, seconds=0))
    monkeypatch.setattr(suite, "_QUICK_PROBE", SHORT_PROBE)


def labels(results):
    return [(cell.key.batch, cell.key.precision, cell.status) for cell in results.cells]


def test_a_real_run(tiny, tmp_path):
    told = []
    results, path = run_suite(
        QUICK, output_dir=tmp_path / "new", on_cell=lambda cell, n, of: told.append((n, of))
    )
    assert path == tmp_path / "new" / RESULTS_NAME
    assert load_results(path) == results
    assert results.finished
    assert told == [(1, 4), (2, 4), (3, 4), (4, 4)]
    assert labels(results) == [
        (1, "fp32", "measured"),
        (4, "fp32", "measured"),
        (1, "fp16", "skipped"),
        (4, "fp16", "skipped"),
    ]
    assert "needs a GPU" in results.cells[2].reason
    first, four = results.measured
    assert first.model == "selfie"
    assert first.alpha_error is None
    assert four.alpha_error < 1e-4  # same arithmetic, different batches
    assert first.row("throughput").n == first.rounds == 2
    assert first.row("frame_time").n == 2 * 11  # twelve frames in each of two rounds, without the first ones
    assert four.row("frame_time").n == 2 * 2
    assert first.row("latency").n == 24
    names = {row.name for row in first.rows}
    assert names >= {"stage/decode", "stage/preprocess", "stage/infer", "stage/postprocess", "stage/encode"}
    assert 0 < first.row("stage/infer").p50 < 1000
    assert first.load.process_cores > 0
    assert first.verdict is not None
    for cell in results.measured:  # the network alone
        assert cell.row("network").n >= SHORT_PROBE.fewest_calls
        operations = cell.operations
        assert len(operations.by_time) == len(operations.by_memory) == 10
        assert sum(operations.share_by_kind.values()) == pytest.approx(1)
    assert results.machine.cores >= 1
    assert results.machine.versions["vitascope"]


def test_a_suite_leaves_nothing_in_memory(tiny, tmp_path):
    folders = iter(range(2))
    assert not left_by(lambda: run_suite(QUICK, output_dir=tmp_path / str(next(folders))))


def test_cells_are_visited_again_later(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(suite, "_QUICK_VISITS", 2)
    told = []
    results, path = run_suite(LIGHT, output_dir=tmp_path, on_cell=lambda cell, n, of: told.append((n, of)))
    assert told == [(n, 6) for n in range(1, 7)]  # skipped cells are not visited again
    assert load_results(path) == results
    for cell in results.measured:
        assert cell.row("throughput").n == cell.rounds == 4
        assert cell.row("network") is not None
        assert cell.row("peak_ram").n == 1
    assert results.measured[0].row("latency").n == 48


def test_a_later_visit_that_fails_takes_nothing_away(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(suite, "_QUICK_VISITS", 2)
    real, calls = suite.measure_rounds, []

    def first_alone(*arguments, **options):
        calls.append(arguments)
        if len(calls) > 2:
            raise DeviceMemoryError("the GPU has too little memory")
        return real(*arguments, **options)

    monkeypatch.setattr(suite, "measure_rounds", first_alone)
    results, _ = run_suite(LIGHT, output_dir=tmp_path)
    for cell in results.measured:
        assert cell.rounds == 2
        assert cell.notes[-1] == "a later visit was not measured: the GPU has too little memory"
    assert len(results.measured) == 2


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (DeviceMemoryError("the GPU has too little memory"), "the GPU has too little memory"),
        (RuntimeError("cudaErrorLaunchFailure:\nunspecified"), "cudaErrorLaunchFailure: unspecified"),
        (MemoryError(), "MemoryError"),
    ],
)
def test_a_network_that_cannot_be_looked_at_alone_leaves_the_cell(tiny, tmp_path, monkeypatch, error, reason):
    def fails(*_, **__):
        raise error

    monkeypatch.setattr(suite.NetworkProbe, "look", fails)
    results, _ = run_suite(replace(LIGHT, only="precision"), output_dir=tmp_path)
    (cell,) = results.measured
    assert cell.row("network") is None
    assert cell.operations is None
    assert cell.notes[-1] == f"the network alone was not measured: {reason}"


def test_a_killed_run_keeps_what_it_measured_and_is_resumed(tiny, tmp_path, monkeypatch):
    real = suite.measure_rounds
    calls = []

    def dies(*arguments, **options):
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return real(*arguments, **options)

    monkeypatch.setattr(suite, "measure_rounds", dies)
    with pytest.raises(KeyboardInterrupt, match="--resume continues"):
        run_suite(LIGHT, output_dir=tmp_path)
    kept = load_results(tmp_path / RESULTS_NAME)
    assert labels(kept) == [(1, "fp32", "measured")]
    assert not kept.finished

    results, _ = run_suite(LIGHT, output_dir=tmp_path, resume=True)
    assert results.cells[0] == kept.cells[0]
    assert len(results.cells) == 4
    assert len(calls) == 3  # only those that were missing
    with pytest.raises(UsageError, match="nothing to resume"):
        run_suite(LIGHT, output_dir=tmp_path, resume=True)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"workload": {"suite": "full"}}, "its request differ"),
        ({"settings": {"profile": "quality"}}, "its settings differ .*profile: quality, now balanced"),
        ({"cores": 999}, "another machine .cores: 999 against"),
        ({"version": "0.0.1"}, "its software differ .vitascope: 0.0.1, now"),
    ],
)
def test_only_the_same_is_resumed(tiny, tmp_path, monkeypatch, change, message):
    stop = pytest.MonkeyPatch()
    stop.setattr(suite, "_measure", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        run_suite(LIGHT, output_dir=tmp_path)
    stop.undo()
    plain = json.loads((tmp_path / RESULTS_NAME).read_text())
    if "cores" in change:
        plain["machine"]["cores"] = change["cores"]
    elif "version" in change:
        plain["machine"]["versions"]["vitascope"] = change["version"]
    else:
        plain |= change
    (tmp_path / RESULTS_NAME).write_text(json.dumps(plain))
    with pytest.raises(UsageError, match=message):
        run_suite(LIGHT, output_dir=tmp_path, resume=True)


def test_earlier_results_are_kept_beside(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(suite, "_QUICK_BATCHES", ())
    run_suite(LIGHT, output_dir=tmp_path)
    run_suite(LIGHT, output_dir=tmp_path)
    assert len(list(tmp_path.glob("benchmark_results-*.json"))) == 1
    (tmp_path / RESULTS_NAME).write_text("my diary")
    with pytest.raises(UsageError, match="move it away"):
        run_suite(LIGHT, output_dir=tmp_path)
    assert (tmp_path / RESULTS_NAME).read_text() == "my diary"


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (DeviceMemoryError("the GPU has too little memory: 9 GB wanted, 1 GB free"), "too little memory"),
        (MemoryError(), "host's memory is full"),
    ],
)
def test_a_cell_that_fails_is_kept_and_the_others_go_on(tiny, tmp_path, monkeypatch, error, reason):
    real = suite.measure_rounds

    def too_large(segmenter, *arguments, **options):
        if segmenter.settings.frames_per_call == 4:
            raise error
        return real(segmenter, *arguments, **options)

    monkeypatch.setattr(suite, "measure_rounds", too_large)
    monkeypatch.setattr(suite, "_QUICK_BATCHES", (4, 1))
    results, _ = run_suite(LIGHT, output_dir=tmp_path)
    assert [status for _, _, status in labels(results)[:2]] == ["failed", "measured"]
    assert reason in results.cells[0].reason


def test_wrong_mattes_are_not_timed(tiny, tmp_path, monkeypatch):
    real = suite.MeasuredSegmenter.alphas

    def wrong(segmenter, film, *, count):
        alphas = real(segmenter, film, count=count)
        return [1 - alpha for alpha in alphas] if segmenter.settings.frames_per_call == 4 else alphas

    monkeypatch.setattr(suite.MeasuredSegmenter, "alphas", wrong)
    results, _ = run_suite(LIGHT, output_dir=tmp_path)
    assert results.cells[0].status == "measured"
    assert results.cells[1].status == "failed"
    assert "alpha differs by" in results.cells[1].reason

    monkeypatch.setattr(
        suite.MeasuredSegmenter, "alphas", lambda *_, count, **__: [np.zeros((144, 256), np.float32)] * count
    )
    results, _ = run_suite(LIGHT, output_dir=tmp_path / "blind")
    assert "0.0% of the synthetic video for a person" in results.cells[0].reason


def test_a_film_of_ones_own(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(suite, "_QUICK_BATCHES", (1,))
    film = write_clip(tmp_path / "mine.mp4", frame_count=30)
    results, _ = run_suite(replace(LIGHT, video=film), output_dir=tmp_path)
    first = results.measured[0]
    assert first.key.clip == "mine.mp4"
    assert first.key.resolution == "96x64"
    assert first.frames == 12  # the first ones


def test_films_that_are_too_short(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(suite, "_QUICK_BATCHES", (1, 8))
    film = write_clip(tmp_path / "short.mp4", frame_count=9)
    results, _ = run_suite(replace(LIGHT, video=film), output_dir=tmp_path)
    assert [cell.status for cell in results.cells[:2]] == ["measured", "skipped"]
    assert "9 frames; batches of 8 need 16" in results.cells[1].reason
    with pytest.raises(InputError, match="has 3 frames; a measurement needs at least 8"):
        shortest = write_clip(tmp_path / "shortest.mp4", frame_count=3)
        run_suite(replace(LIGHT, video=shortest), output_dir=tmp_path / "no")
    with pytest.raises(InputError, match=r"missing\.mp4"):
        run_suite(replace(LIGHT, video=tmp_path / "missing.mp4"), output_dir=tmp_path / "no")


def plan(on_gpu=True, **options):
    chosen = SuiteOptions(**options)
    return plan_cells(chosen, chosen.loaded(), on_gpu=on_gpu)


def test_the_full_plan():
    *keys, eyes = plan()
    assert (eyes.resolution, eyes.batch, eyes.precision, eyes.stereo) == ("4K", 4, "fp16", "side-by-side")
    assert keys == plan(on_gpu=False)  # two eyes at 4K need a GPU
    assert len(keys) == 4 * 5 * 2
    assert list(dict.fromkeys(key.resolution for key in keys)) == ["1080p", "4K", "6K", "8K"]
    assert {key.batch for key in keys} == {1, 4, 8, 16, 32}
    assert {key.precision for key in keys} == {"fp32", "fp16"}
    assert {key.stereo for key in keys} == {"mono"}
    assert {key.stereo for key in plan(stereo=True)} == {"side-by-side"}


@pytest.mark.parametrize(
    ("only", "count", "varied"),
    [("resolution", 4, "resolution"), ("batch", 5, "batch"), ("precision", 2, "precision")],
)
def test_one_axis_alone(only, count, varied):
    keys = plan(only=only)
    assert len(keys) == count == len({getattr(key, varied) for key in keys})
    for name in {"resolution", "batch", "precision"} - {varied}:
        assert len({getattr(key, name) for key in keys}) == 1


def test_the_usual_precision_is_that_of_the_device():
    assert {key.precision for key in plan(only="batch")} == {"fp16"}
    assert {key.precision for key in plan(only="batch", on_gpu=False)} == {"fp32"}


def test_options_that_contradict_each_other(tmp_path):
    film = write_clip(tmp_path / "mine.mp4", frame_count=12)
    with pytest.raises(UsageError, match="a video has one size"):
        plan(video=film, only="resolution")
    with pytest.raises(UsageError, match="--stereo is for synthetic videos"):
        plan(video=film, stereo=True)


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
    note = "the GPU has too little memory: 9 GB wanted; continued with 8 frames per call"
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
