"""Tests of what a pipeline measures about itself, during and after a run."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest
from watched_runs import ONE, BoomError, watched

from vitascope.errors import PipelineError
from vitascope.gpu.pipeline.pipeline import Pipeline
from vitascope.gpu.pipeline.queues import QueueLimits
from vitascope.gpu.pipeline.stages import Batched, Group, Map, Sink, Source
from waiting import PATIENCE_SECONDS, eventually

pytestmark = pytest.mark.usefixtures("no_thread_outlives_its_pipeline")


@pytest.mark.parametrize("slow", ["decode", "infer", "encode"])
def test_the_slow_stage_is_named_with_its_evidence(slow):
    def work(stage: str) -> Callable[[int], int]:
        def step(n: int) -> int:
            time.sleep(0.004 if stage == slow else 0)
            return n

        return step

    report = watched(
        Pipeline(
            [
                Source("decode", map(work("decode"), range(50)), output=QueueLimits(items=2)),
                Map("infer", work("infer"), output=QueueLimits(items=2)),
                Sink("encode", work("encode")),
            ]
        ).run
    )
    verdict = report.bottleneck
    assert verdict.stage == slow
    assert verdict.evidence.startswith(f"{slow} was busy ")
    assert ("decode waited" in verdict.evidence) == (slow == "infer")
    assert 0 < verdict.score <= 1


def test_a_slow_consumer_of_a_stream_is_the_bottleneck():
    pipeline = Pipeline([Source("s", range(30)), Map("m", lambda n: n, output=ONE)])
    for _ in pipeline.stream():
        time.sleep(0.004)
    report = pipeline.snapshot()
    assert report.bottleneck.stage == "consumer"
    assert report.stages[-1].items == 30
    assert report.queues[-1].name == "m > consumer"


def test_waiting_is_not_busy_and_sleeping_is_not_computing():
    release, entered = threading.Event(), threading.Event()

    def work(n: int) -> int:
        if n == 0:
            entered.set()
            assert release.wait(PATIENCE_SECONDS)
        return n

    stages = [Source("s", range(5), output=ONE), Map("m", work, output=ONE), Sink("k", int)]
    pipeline = Pipeline(stages)
    runner = threading.Thread(target=pipeline.run)
    runner.start()
    assert entered.wait(PATIENCE_SECONDS)
    eventually(
        lambda: pipeline.snapshot().wall_seconds > 0.05 and pipeline.snapshot().queues[0].put_wait_seconds > 0
    )
    earlier = pipeline.snapshot()
    eventually(lambda: pipeline.snapshot().wall_seconds > earlier.wall_seconds + 0.05)
    live = pipeline.snapshot()
    release.set()
    runner.join(PATIENCE_SECONDS)
    assert not earlier.finished
    # Figures include the present: work of the stage that hangs, and waits of those around it.
    assert live.stages[1].busy_seconds > earlier.stages[1].busy_seconds > 0
    assert live.queues[0].put_wait_seconds > earlier.queues[0].put_wait_seconds > 0
    assert live.queues[1].get_wait_seconds > earlier.queues[1].get_wait_seconds > 0
    assert live.bottleneck.stage == "m"
    final = pipeline.snapshot()
    assert final.finished
    assert final == pipeline.snapshot()
    assert final.stages[1].cpu_seconds < final.stages[1].busy_seconds
    assert final.stages[2].busy_seconds < final.stages[1].busy_seconds
    assert final.stages[1].load <= 1


def test_a_stage_that_failed_is_not_busy_any_more():
    busy: list[float] = []

    def fail(n: int) -> None:
        raise BoomError

    def look_twice() -> None:
        for _ in range(2):
            busy.append(pipeline.snapshot().stages[1].busy_seconds)
            time.sleep(0.001)

    pipeline = Pipeline([Source("s", [1]), Sink("k", fail, close=look_twice)])
    with pytest.raises(PipelineError):
        watched(pipeline.run)
    assert busy == [pipeline.snapshot().stages[1].busy_seconds] * 2
    assert busy[0] > 0


def test_snapshots_of_a_running_pipeline_only_grow():
    pipeline = Pipeline([Source("s", range(3000)), Map("m", lambda n: n, workers=2), Sink("k", int)])
    assert pipeline.snapshot().bottleneck is None
    assert (pipeline.snapshot().wall_seconds, pipeline.snapshot().items) == (0.0, 0)
    runner = threading.Thread(target=pipeline.run)
    runner.start()
    counts = []
    while not (report := pipeline.snapshot()).finished:
        counts.append(report.items)
        assert all(0 <= stage.load <= 1 for stage in report.stages)
        time.sleep(0.001)
    runner.join(PATIENCE_SECONDS)
    assert counts == sorted(counts)
    assert pipeline.snapshot().items == 3000


def test_computing_shows_as_processor_time():
    def compute(n: int) -> int:
        return sum(i * i for i in range(20_000))

    report = watched(Pipeline([Source("s", range(20)), Map("m", compute), Sink("k", int)]).run)
    assert report.stages[1].cpu_seconds > report.stages[0].cpu_seconds
    assert report.cores_busy > 0


def test_a_grouped_result_is_as_old_as_its_oldest_part():
    def slowly() -> Iterator[int]:
        for n in range(4):
            time.sleep(0.01)
            yield n

    batched = Pipeline(
        [Source("s", slowly()), Group("g", Batched(lambda batch: [batch], size=4)), Sink("k", len)]
    )
    report = watched(batched.run)
    assert report.latency.count == 1
    assert report.latency.p50_seconds >= 0.03  # sleep never returns early
