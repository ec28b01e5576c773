"""Tests of the curves of running jobs."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from scripted_figures import ScriptedGpu, ScriptedLiveRun, finished_pipeline
from tensorboard_reader import curves_of

from left_threads import left_threads
from vitascope.errors import OutputError
from vitascope.observe.job_counts import JobCounts, Readings
from vitascope.observe.tensorboard import ScalarRecorder, scalars_of


def test_speed_and_mean_are_those_of_the_time_between_two_looks():
    before, now = Readings(), Readings()
    before.count("vitascope_frames_total", 100)
    now.count("vitascope_frames_total", 160)
    before.counts["vitascope_frame_latency_seconds", ()] = np.array([5.0, 100.0])
    now.counts["vitascope_frame_latency_seconds", ()] = np.array([8.0, 160.0])
    scalars = scalars_of(now, before, seconds=2.0)
    assert scalars["frames_per_second"] == 30.0
    assert scalars["frame_latency_seconds/mean"] == pytest.approx(0.05)


def test_nothing_is_divided_by_no_frames():
    assert scalars_of(Readings(), Readings(), seconds=1.0) == {"frames_per_second": 0.0}


def test_a_job_has_speed_latency_queues_drops_and_memory():
    counts = JobCounts(gpus={0: ScriptedGpu()})
    before = counts.look()
    pipeline = finished_pipeline(50)
    counts.follow(pipeline)
    scalars = scalars_of(counts.look(), before, seconds=1.0)
    assert scalars["frames_per_second"] == 50
    assert scalars["frame_latency_seconds/p99"] == pipeline.snapshot().latency.p99_seconds
    assert scalars["queue_items/capture > track"] == 0
    assert scalars["dropped_frames_total/capture > track"] == 0
    assert scalars["gpu_memory_bytes/0"] == 6 << 30
    assert scalars["gpu_busy_ratio/0/kernels"] == pytest.approx(0.87)
    assert scalars["resident_memory_bytes"] > 1e6
    assert 0 <= scalars["stage_busy_ratio/track"] <= 1
    assert not any("build_info" in tag or "limit" in tag for tag in scalars)
    counts.job_ended("done")
    assert scalars_of(counts.look(), before, seconds=1.0)["frame_latency_seconds/p99"] > 0, "of the last job"


def test_a_live_run_has_its_drops():
    counts = JobCounts()
    counts.follow_live(ScriptedLiveRun())
    scalars = scalars_of(counts.look(), Readings(), seconds=1.0)
    assert scalars["dropped_frames_total/camera"] == 4
    assert scalars["dropped_frames_total/sink window"] == 1


def test_a_recorder_looks_again_and_again_and_once_more_at_the_end(tmp_path):
    counts, looked = JobCounts(), threading.Event()
    looks = []

    def look():
        looks.append(counts.look())
        if len(looks) == 4:
            looked.set()
        return looks[-1]

    with ScalarRecorder(look, tmp_path, interval_seconds=0.01) as recorder:
        assert looked.wait(10)
        counts.follow(finished_pipeline(7))
        counts.job_ended("done")
    assert recorder.folder.parent == tmp_path
    assert left_threads("vitascope-scalars") == []
    speeds = curves_of(recorder.folder)["frames_per_second"]
    assert len(speeds) == len(looks) - 1
    assert speeds[-1][1] == 7, "the step is the number of frames"
    assert [step for _, step, _ in speeds] == sorted(step for _, step, _ in speeds)


def failing_later():
    """A look that only works once."""
    yield Readings()
    raise OutputError("the disk is full")


def test_a_failure_is_told_at_the_end_and_ends_no_run(tmp_path):
    looks = failing_later()
    done = []
    with (
        pytest.raises(OutputError, match="the disk is full"),
        ScalarRecorder(lambda: next(looks), tmp_path, interval_seconds=0.01) as recorder,
    ):
        recorder._watch._thread.join(10)
        done.append("the whole run")
    assert done == ["the whole run"]


def test_a_failure_of_the_run_itself_comes_first(tmp_path):
    looks = failing_later()
    with (
        pytest.raises(ZeroDivisionError),
        ScalarRecorder(lambda: next(looks), tmp_path, interval_seconds=0.01) as recorder,
    ):
        recorder._watch._thread.join(10)
        raise ZeroDivisionError
