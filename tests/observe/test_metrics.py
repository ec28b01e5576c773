from __future__ import annotations

import threading
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families
from scripted_figures import FIGURES, LIMITS, ScriptedGpu, ScriptedLiveRun, ScriptedQueue, finished_pipeline

from vitascope import __version__
from vitascope.errors import DeviceError, InputError, MissingDependencyError
from vitascope.gpu.pipeline.pipeline import Pipeline
from vitascope.gpu.pipeline.report import Latency, LatencyHistogram
from vitascope.gpu.pipeline.stages import Sink, Source
from vitascope.observe import job_counts
from vitascope.observe.job_counts import BUCKET_BOUNDS_SECONDS, FAMILIES, Readings
from vitascope.observe.metrics import Metrics, live_metrics


def samples_of(metrics):
    """Return the value of each sample, by its name and label values in the order of the labels' names."""
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(metrics.text())
        for sample in family.samples
    }


def test_before_any_job_nothing_was_counted_and_every_family_is_there():
    metrics = Metrics()
    found = samples_of(metrics)
    assert found["vitascope_build_info", __version__] == 1
    assert found["vitascope_jobs_total", "done"] == found["vitascope_errors_total", "InputError"] == 0
    assert found["vitascope_job_running",] == 0
    assert found["vitascope_resident_memory_bytes",] > 1e6
    exported = {line.split()[2] for line in metrics.text().splitlines() if line.startswith("# TYPE")}
    assert exported == {family.name for family in FAMILIES}


def test_names_follow_the_convention():
    assert len({family.name for family in FAMILIES}) == len(FAMILIES)
    for family in FAMILIES:
        assert family.name.startswith("vitascope_")
        assert family.name.endswith("_total") == (family.kind == "counter")
        assert family.help.endswith(".")
        if family.kind == "histogram":
            assert family.name.endswith("_seconds")


def test_a_pipeline_is_read_when_somebody_looks():
    gate, metrics = threading.Event(), Metrics()
    pipeline = Pipeline(
        [Source("decode", range(7)), Sink("encode", lambda n: gate.wait(10) if n == 3 else None)]
    )
    metrics.follow(pipeline, expected_frames=7)
    running = threading.Thread(target=pipeline.run)
    running.start()
    while pipeline.snapshot().items < 3:
        threading.Event().wait(0.001)
    found = samples_of(metrics)
    assert found["vitascope_frames_total",] == found["vitascope_job_frames",] == 3
    assert found["vitascope_job_running",] == 1
    assert found["vitascope_job_expected_frames",] == 7
    gate.set()
    running.join()
    metrics.job_ended("done", damaged_frames=2)
    found = samples_of(metrics)
    assert found["vitascope_frames_total",] == 7
    assert found["vitascope_stage_items_total", "encode"] == 7
    assert found["vitascope_jobs_total", "done"] == 1
    assert found["vitascope_damaged_frames_total",] == 2
    assert found["vitascope_job_running",] == 0
    assert ("vitascope_job_frames",) not in found, "no job, no progress"
    assert ("vitascope_queue_items", "decode > encode") not in found


def test_counts_go_on_from_job_to_job():
    metrics = Metrics()
    for _ in range(3):
        metrics.follow(finished_pipeline(5))
        metrics.job_ended("done")
    metrics.follow(finished_pipeline(2))
    found = samples_of(metrics)
    assert found["vitascope_frames_total",] == 17
    assert found["vitascope_frame_latency_seconds_count",] == 17
    assert found["vitascope_stage_latency_seconds_count", "track"] == 17


def test_a_count_that_seems_to_fall_stays():
    class Flickering:
        def __init__(self):
            self.pipelines = [finished_pipeline(6), finished_pipeline(4)]

        def snapshot(self):
            return self.pipelines.pop(0).snapshot()

    metrics = Metrics()
    metrics.follow(Flickering())
    assert samples_of(metrics)["vitascope_frames_total",] == 6
    found = samples_of(metrics)
    assert found["vitascope_frames_total",] == 6
    assert found["vitascope_frame_latency_seconds_bucket", "+Inf"] == 6


def test_errors_are_counted_by_kind_and_foreign_ones_together():
    metrics = Metrics()
    metrics.job_ended("failed", error=InputError("/home/me/secret.mp4 is empty"))
    metrics.job_ended("failed", error=ZeroDivisionError())
    metrics.job_ended("skipped")
    found = samples_of(metrics)
    assert found["vitascope_errors_total", "InputError"] == found["vitascope_errors_total", "other"] == 1
    assert found["vitascope_jobs_total", "failed"] == 2
    assert "secret" not in metrics.text()


@given(st.lists(st.floats(0, 500, allow_nan=False), max_size=60))
def test_a_histogram_counts_every_duration_below_its_bounds(durations):
    histogram = LatencyHistogram()
    histogram.add_many(durations)
    latency = LatencyHistogram.summary([histogram])
    assert sum(latency.octave_counts) == latency.count == len(durations)
    readings = Readings()
    readings.distribution("x", latency)
    total, *buckets = readings.counts["x", ()]
    assert total == pytest.approx(sum(durations), abs=1e-6)
    cumulative = np.cumsum(buckets)
    assert cumulative[-1] == len(durations)
    for bound, below in zip(BUCKET_BOUNDS_SECONDS, cumulative[:-1], strict=True):
        # A duration at the bound may be on either side of it through rounding.
        assert sum(d < bound * (1 - 1e-9) for d in durations) <= below
        assert below <= sum(d <= bound * (1 + 1e-9) for d in durations)


def test_percentiles_of_the_buckets_are_those_of_the_report():
    histogram = LatencyHistogram()
    for n in range(1, 1001):
        histogram.add(n / 1e4)
    latency = LatencyHistogram.summary([histogram])
    counts = Counter(dict(enumerate(latency.octave_counts)))
    octave = next(n for n in range(33) if sum(counts[i] for i in range(n + 1)) >= 950)
    assert 2**octave <= latency.p95_seconds * 1e6 <= 2 ** (octave + 1)


def test_stages_and_queues_are_bounded():
    pipeline = finished_pipeline(1)
    report = pipeline.snapshot()
    (stage, *_), (queue, *_) = report.stages, report.queues

    class Wide:
        def snapshot(self):
            from dataclasses import replace

            stages = tuple(replace(stage, name=f"stage {n}") for n in range(500))
            queues = tuple(replace(queue, name=f"queue {n}") for n in range(500))
            return replace(report, stages=stages, queues=queues)

    metrics = Metrics()
    metrics.follow(Wide())
    found = samples_of(metrics)
    names = {key[1] for key in found if key[0] == "vitascope_stage_items_total"}
    assert len(names) == 65
    assert "other" in names
    assert sum(found["vitascope_stage_items_total", name] for name in names) == 500 * stage.items


def test_gpus_are_looked_at_and_closed():
    gpu = ScriptedGpu()
    with Metrics(gpus={1: gpu}) as metrics:
        found = samples_of(metrics)
        assert found["vitascope_gpu_memory_bytes", "1"] == FIGURES.memory_used_bytes
        assert found["vitascope_gpu_memory_limit_bytes", "1"] == LIMITS.memory_bytes
        assert found["vitascope_gpu_busy_ratio", "1", "kernels"] == pytest.approx(0.87)
        assert ("vitascope_gpu_busy_ratio", "1", "encoder") not in found, "the driver does not tell"
        assert found["vitascope_gpu_power_watts", "1"] == 310.5
        assert found["vitascope_gpu_temperature_celsius", "1"] == 71
        assert found["vitascope_gpu_sm_clock_hertz", "1"] == pytest.approx(1.905e9)
        assert found["vitascope_gpu_throttled", "1"] == 1
        assert gpu.closed == 0
    assert gpu.closed == 1


def test_a_job_does_not_wait_for_a_driver_that_takes_its_time():
    asked, answers = threading.Event(), threading.Event()

    class Slow(ScriptedGpu):
        def figures(self):
            asked.set()
            assert answers.wait(30)
            return super().figures()

    with Metrics(gpus={0: Slow()}) as metrics:
        look = threading.Thread(target=metrics.look)
        look.start()
        assert asked.wait(5)
        ends = threading.Thread(target=metrics.job_ended, args=("done",), daemon=True)
        ends.start()
        ends.join(5)
        is_held_up = ends.is_alive()
        answers.set()
        look.join()
    assert not is_held_up


def test_of_several_gpus_none_stays_open_when_one_is_missing(monkeypatch):
    opened = []

    def look(number):
        if number == 2:
            raise DeviceError("NVML knows no GPU 2")
        opened.append(ScriptedGpu())
        return opened[-1]

    monkeypatch.setattr(job_counts, "NvmlGpu", look)
    metrics = Metrics()
    with pytest.raises(DeviceError):
        metrics.watch_gpus([0, 1, 2])
    assert [gpu.closed for gpu in opened] == [1, 1]
    assert "gpu=" not in metrics.text()
    metrics.watch_gpus([0])
    assert 'vitascope_gpu_memory_bytes{gpu="0"}' in metrics.text()


def test_a_live_run():
    run = ScriptedLiveRun()
    metrics = live_metrics(run)
    found = samples_of(metrics)
    assert found["vitascope_frames_total",] == 5
    assert found["vitascope_captured_frames_total",] == 9
    assert found["vitascope_repeated_frames_total",] == 2
    assert found["vitascope_faceless_frames_total",] == 1
    assert found["vitascope_dropped_frames_total", "camera"] == 4
    assert found["vitascope_dropped_frames_total", "sink window"] == 1
    assert found["vitascope_sink_up", "window"] == 1
    assert found["vitascope_sink_up", "ndi"] == 0
    assert found["vitascope_frame_latency_seconds_count",] == 5
    run.sink_sent = 1  # it was restarted
    assert samples_of(metrics)["vitascope_sink_frames_total", "window"] == 4


def test_many_may_look_at_once():
    metrics = Metrics()
    metrics.follow(finished_pipeline(5))
    texts, threads = [], []
    for _ in range(8):
        threads.append(threading.Thread(target=lambda: texts.append(metrics.text())))
        threads[-1].start()
    for thread in threads:
        thread.join()
    assert len(texts) == 8
    assert all("vitascope_frames_total 5.0" in text for text in texts)


def test_without_prometheus_client(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "prometheus_client", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'vitascope\[metrics\]'"):
        Metrics()


def test_an_empty_latency_counts_nothing():
    readings = Readings()
    readings.distribution("x", Latency())
    assert not readings.counts["x", ()].any()


def test_a_live_run_beside_a_job():
    gate, metrics = threading.Event(), Metrics()
    job = Pipeline([Source("decode", range(8)), Sink("encode", lambda n: gate.wait(10) if n == 3 else None)])
    metrics.follow(job, expected_frames=8)
    running = threading.Thread(target=job.run)
    running.start()
    while job.snapshot().items < 3:
        threading.Event().wait(0.001)
    metrics.follow_live(ScriptedLiveRun())
    found = samples_of(metrics)
    assert found["vitascope_frames_total",] == 3 + 5
    assert found["vitascope_frame_latency_seconds_count",] == 3 + 5
    assert found["vitascope_captured_frames_total",] == 9
    assert found["vitascope_job_frames",] == 3, "the job's, whose frames are expected"
    gate.set()
    running.join()
    metrics.job_ended("done")
    found = samples_of(metrics)
    assert found["vitascope_frames_total",] == 8 + 5
    assert found["vitascope_stage_items_total", "encode"] == 8
    assert found["vitascope_job_running",] == found["vitascope_sink_up", "window"] == 1, (
        "the live run goes on"
    )
    metrics.live_ended()
    found = samples_of(metrics)
    assert found["vitascope_frames_total",] == 8 + 5
    assert found["vitascope_job_running",] == 0
    assert ("vitascope_sink_up", "window") not in found
    metrics.live_ended()  # one that failed before it was followed
    metrics.follow_live(ScriptedLiveRun())
    assert samples_of(metrics)["vitascope_frames_total",] == 8 + 5 + 5


def test_a_queue_is_told_by_node_and_never_by_video():
    metrics = Metrics()
    metrics.follow_queue(ScriptedQueue())
    metrics.job_ended("done")
    found = samples_of(metrics)
    assert found["vitascope_videos", "waiting"] == found["vitascope_videos", "running"] == 2
    assert found["vitascope_place_frames_total", "node a"] == 10
    assert found["vitascope_place_tries_total", "node b", "failed"] == 1
    assert found["vitascope_place_busy", "node b"] == 2
    assert found["vitascope_job_expected_frames",] == 50
    metrics.queue_ended()
    found = samples_of(metrics)
    assert ("vitascope_videos", "waiting") not in found
    assert found["vitascope_place_frames_total", "node a"] == 10
    assert found["vitascope_jobs_total", "done"] == 1
