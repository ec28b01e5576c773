"""Tests of verdicts and advice for an encoder whose slowness only shows after the last frame."""

from __future__ import annotations

from dataclasses import replace

import pytest

from measured_cells import VERDICT, cell_of, key_of, results_of
from vitascope.bench.recommendations import FASTER_ENCODER, encoder_end, limit_of, recommend
from vitascope.bench.report import analyse, text_report
from vitascope.bench.results import Cell
from vitascope.gpu.profiling.bottleneck import Finding

DECODE = replace(
    VERDICT,
    kind="decode_bound",
    stage="decode",
    title="reading and decoding the input sets the pace",
    advice="decode on the GPU, in several sessions at once, or give the decoder more threads",
    expected_gain=2.0,
)


def cell_with(
    before_ms: float, after_ms: float | None, *, verdict: Finding | None = DECODE, **fields
) -> Cell:
    stages = {"decode": before_ms} if after_ms is None else {"decode": before_ms, "finish": after_ms}
    whole = before_ms + (after_ms or 0)
    cell = cell_of(key_of("4K"), [1e3 / whole] * 5, frame_times=[before_ms] * 9, stages=stages)
    return replace(cell, verdict=verdict, **fields)


def test_most_of_the_time_at_the_end_is_the_encoders():
    cell = cell_with(8.8, 14.9, frames=600)
    assert encoder_end(cell) == pytest.approx((8.8, 14.9))
    limit = limit_of(cell)
    assert (limit.kind, limit.stage, limit.confidence) == ("encode_bound", "encode", "high")
    assert limit.expected_gain == pytest.approx(23.7 / (8.8 + 14.9 / 2))
    assert "14.9 ms a frame, 63% of the time" in limit.evidence[0]
    assert DECODE.title in limit.evidence[1]


def test_a_film_of_few_frames_is_judged_with_care():
    limit = limit_of(cell_with(8.8, 14.9, frames=96))
    assert (limit.kind, limit.confidence) == ("encode_bound", "medium")
    assert "a video of 96 frames may be too short" in limit.evidence[0]


def test_a_shorter_end_stays_as_long_as_it_is_when_something_else_gets_faster():
    limit = limit_of(cell_with(2.5, 1.5))
    assert (limit.kind, limit.stage) == ("decode_bound", "decode")
    assert limit.expected_gain == pytest.approx(4.0 / (1.5 + 2.5 / 2))
    assert "38% of the time" in limit.evidence[-1]


@pytest.mark.parametrize("after_ms", [None, 0.0, 0.2])
def test_a_short_end_or_none_changes_nothing(after_ms):
    assert limit_of(cell_with(2.5, after_ms)) == DECODE


@pytest.mark.parametrize("verdict", [None, VERDICT, replace(DECODE, urgent=True)])
def test_verdicts_that_stand(verdict):
    assert limit_of(cell_with(2.5, 9.0, verdict=verdict)) is verdict


def test_a_cell_without_figures():
    cell = Cell(key=key_of(), status="failed", reason="out of memory")
    assert encoder_end(cell) is None
    assert limit_of(cell) is None


def test_advice_names_settings():
    (one,) = [one for one in recommend(results_of(cell_with(8.8, 14.9))) if one.gain > 1]
    assert one.change == FASTER_ENCODER
    two = {one.change: one.gain for one in recommend(results_of(cell_with(2.5, 1.5, decoder="nvdec (h264)")))}
    assert [change.partition(":")[0] for change in two] == ["gpu.decoder_sessions=4", FASTER_ENCODER]
    assert two[FASTER_ENCODER] == pytest.approx(4.0 / 3.25)
    several = recommend(results_of(cell_with(2.5, 0.0, decoder="nvdec (h264); 4 sessions")))
    assert several[0].change == DECODE.advice


def test_advice_for_the_processor_names_settings():
    slow = replace(
        DECODE, kind="cpu_bound", stage="infer", advice="make infer cheaper, or move it to the GPU"
    )
    assert "model.input_size" in recommend(results_of(cell_with(9, 0, verdict=slow)))[0].change
    fed = replace(slow, stage="preprocess", advice="give preprocess another worker or more threads")
    assert recommend(results_of(cell_with(9, 0, verdict=fed)))[0].change.endswith(": model.num_workers")
    tight = replace(slow, kind="latency_bound", advice="let the queue infer > postprocess hold more")
    assert "processing.max_queue_size" in recommend(results_of(cell_with(9, 0, verdict=tight)))[0].change
    dear = replace(slow, stage="preprocess", advice="make preprocess cheaper, or move it to the GPU")
    assert recommend(results_of(cell_with(9, 0, verdict=dear)))[0].change == dear.advice


@pytest.mark.parametrize(
    ("settings", "said", "left_out"),
    [
        ({"output.speed": "fast"}, "narrower", "output.speed"),
        ({"output.preset": "ultrafast", "gpu.encoder": "cpu"}, "gpu.encoder=auto", "output.speed"),
        ({"gpu.encoder": "nvenc"}, "output.speed=fast", "nvenc"),
        ({"gpu.encoder": "nvenc", "output.speed": "fast"}, "narrower", "output.speed"),
    ],
)
def test_advice_leaves_out_what_the_run_was_told(settings, said, left_out):
    (one,) = recommend(results_of(cell_with(8.8, 14.9), settings=settings))
    assert said in one.change
    assert left_out not in one.change


def test_the_same_advice_stands_once_with_its_largest_gain():
    cells = [
        replace(cell_with(8.8, 14.9), key=key_of("4K")),
        replace(cell_with(2.5, 3.0), key=key_of("1080p")),
    ]
    steady = replace(DECODE, kind="cpu_bound", stage="preprocess", advice="wait", expected_gain=1.3)
    cells.append(replace(cell_with(5, 0, verdict=steady), key=key_of("8K")))
    found = recommend(results_of(*cells))
    assert [one.change for one in found] == [FASTER_ENCODER, "wait"]
    assert found[0].gain == pytest.approx(23.7 / (8.8 + 14.9 / 2))


def test_the_report_counts_the_encoders_end():
    told = text_report(analyse([results_of(cell_with(8.8, 14.9))]))
    table = told[told.index("\nSpeed\n") :]
    assert "encode-bound" in table
    assert "decode-bound" not in table
