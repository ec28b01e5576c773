"""Tests of one run of the pipeline, with and without an encoder, and of how much a clock sees."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

import pytest

from clips import write_clip
from left_threads import left_threads
from vitascope.bench import suite
from vitascope.bench.measured_run import MeasuredSegmenter
from vitascope.bench.results import ResultsFile, load_results
from vitascope.bench.suite import FEWEST_FRAMES, PipelineOptions, bench_pipeline, slice_rates
from vitascope.config import load_settings
from vitascope.errors import InputError, UsageError
from vitascope.gpu.pipeline.pipeline import Pipeline
from waiting import eventually

FAST = PipelineOptions(profile="fast")


@pytest.fixture(scope="module")
def film(tmp_path_factory):
    return write_clip(tmp_path_factory.mktemp("bench") / "in.mp4", frame_count=40)


@pytest.fixture(scope="module")
def run(film):
    with MeasuredSegmenter(loaded=load_settings(profile="fast")) as segmenter:
        return segmenter.measure(film, kind="key")


def test_the_clock_sees_every_frame_once(run):
    assert run.frame_count == len(run.left_seconds) == len(run.done_seconds) == 40
    assert list(run.done_seconds) == sorted(run.done_seconds)
    assert all(latency > 0 for latency in run.latencies_ms())
    assert run.done_seconds[-1] <= run.wall_seconds
    assert run.finish_seconds > 0


def test_figures_of_a_run_agree_with_its_clock(run):
    done = [0.5 + 0.01 * n for n in range(40)]
    steady = replace(run, done_seconds=tuple(done), left_seconds=tuple(done), wall_seconds=done[-1])
    assert steady.frames_per_second(1) == pytest.approx(100)
    assert steady.frame_times_ms(4) == pytest.approx([10.0] * 9)
    assert slice_rates(steady, slices=11, batch=1) == pytest.approx([100.0] * 10)
    assert slice_rates(steady, slices=11, batch=16) == pytest.approx([100.0])
    # Frames of a batch come together, so the batch counts.
    bursts = replace(steady, done_seconds=tuple(0.04 * (n // 4 + 1) for n in range(40)))
    assert bursts.frame_times_ms(4) == pytest.approx([10.0] * 9)
    assert slice_rates(bursts, slices=3, batch=4) == pytest.approx([100.0] * 2)


def test_with_an_encoder(film, tmp_path):
    results = bench_pipeline(replace(FAST, video=film))
    (cell,) = results.cells
    assert cell.status == "measured"
    assert cell.frames == 40
    assert cell.key.output == "key"
    assert cell.row("stage/encode").p50 > 0
    assert cell.row("throughput").n == 10
    ResultsFile(tmp_path / "r.json", results)
    assert load_results(tmp_path / "r.json") == results


def test_without_one(film):
    (cell,) = bench_pipeline(replace(FAST, video=film, discard=True)).cells
    assert cell.key.output == "key, discarded"
    assert cell.row("stage/encode") is None
    assert cell.row("stage/finish") is None
    assert cell.row("stage/postprocess").p50 > 0  # pictures were made


def test_a_film_of_its_own(monkeypatch):
    monkeypatch.setattr(suite, "_SIZE", (256, 128))
    monkeypatch.setattr(suite, "_CLIP_FRAMES", 12)
    (cell,) = bench_pipeline(replace(FAST, discard=True, stereo=True)).cells
    assert cell.key.clip == "synthetic"
    assert cell.key.stereo == "side-by-side"
    assert cell.frames == 12


def test_it_ends_when_its_time_is_up(tmp_path, monkeypatch):
    film = write_clip(tmp_path / "long.mp4", width=256, height=144, frame_count=600)
    short = ("processing.max_queue_size=1",)
    stop = Pipeline.stop

    def stop_once_measured(pipeline):
        eventually(
            lambda: pipeline.snapshot().items >= FEWEST_FRAMES
        )  # a busy machine may have too little time
        stop(pipeline)

    monkeypatch.setattr(Pipeline, "stop", stop_once_measured)
    (cell,) = bench_pipeline(replace(FAST, video=film, discard=True, seconds=0.4, assignments=short)).cells
    assert 8 <= cell.frames < 600
    assert not left_threads("vitascope-limit")


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), 1e9])
def test_impossible_times(film, seconds):
    with pytest.raises(UsageError, match="a run takes"):
        bench_pipeline(replace(FAST, video=film, seconds=seconds))


def test_films_that_do_not_do(tmp_path):
    short = write_clip(tmp_path / "short.mp4", frame_count=3)
    with pytest.raises(InputError, match="has 3 frames"):
        bench_pipeline(replace(FAST, video=short))
    with pytest.raises(InputError, match=r"missing\.mp4"):
        bench_pipeline(replace(FAST, video=tmp_path / "missing.mp4"))
    with pytest.raises(UsageError, match="synthetic"):
        bench_pipeline(replace(FAST, video=short, stereo=True))


def test_a_run_of_few_batches_says_how_large_they_were(film):
    (cell,) = bench_pipeline(replace(FAST, video=film, assignments=("model.batch_size=16",))).cells
    assert (cell.frames, cell.key.batch) == (40, 16)
    assert cell.row("throughput").n > 1, "timed frame by frame"


def test_damage_that_was_skipped_is_counted(tmp_path):
    whole = write_clip(tmp_path / "whole.ts", frame_count=48, codec_options={"g": "12"})
    content = bytearray(whole.read_bytes())
    for start in range(len(content) // 3, len(content) // 3 + 2000):
        content[start] ^= 0x5A
    film = tmp_path / "damaged.ts"
    film.write_bytes(content)
    (cell,) = bench_pipeline(replace(FAST, video=film, discard=True)).cells
    assert cell.damaged_count > 0
    (cell,) = bench_pipeline(replace(FAST, video=whole, discard=True)).cells
    assert cell.damaged_count == 0


@pytest.mark.parametrize("discard", [True, False])
def test_a_time_that_is_over_before_the_first_frame(film, discard, monkeypatch):
    at_once = nullcontext(lambda started: started.pipeline.stop())
    monkeypatch.setattr(suite, "stopping_after", lambda _: at_once)
    hurried = replace(FAST, video=film, discard=discard, advice_when_slow="be patient")
    with pytest.raises(InputError, match=r"only 0 frames came out in .* at least 8: be patient$"):
        bench_pipeline(hurried)
