"""Check that profiled stages behave as before, and that spans contain their work, but not their waits."""

from __future__ import annotations

import time

import pytest

from vitascope.errors import PipelineError
from vitascope.gpu.pipeline.pipeline import Pipeline
from vitascope.gpu.pipeline.queues import QueueLimits
from vitascope.gpu.pipeline.stages import Batched, Group, Map, Sink, Source
from vitascope.gpu.profiling.pipeline_profile import profiled_stages
from vitascope.gpu.profiling.profiler import Profiler

ONE = QueueLimits(items=1)


class Doubling:
    """A grouper that works during iteration."""

    def accumulate(self, item):
        for _ in range(2):
            time.sleep(0.001)
            yield item

    def flush(self):
        yield -1


def counts(profiler):
    return {name: row.count for name, row in profiler.by_name().items()}


def test_results_are_the_same_and_every_piece_of_work_has_a_span():
    def stages(taken, finished):
        return [
            Source("decode", range(10)),
            Map("preprocess", lambda n: n + 1, workers=3),
            Group("double", Doubling()),
            Group("infer", Batched(lambda batch: [n * n for n in batch], size=4)),
            Sink("encode", taken.append, finish=lambda: finished.append(True)),
        ]

    plain, plain_ends = [], []
    Pipeline(stages(plain, plain_ends)).run()
    profiler, taken, ends = Profiler(), [], []
    report = Pipeline(profiled_stages(stages(taken, ends), profiler)).run()
    assert (taken, ends) == (plain, plain_ends)
    assert counts(profiler) == {
        "decode": 11,  # one more request at the end
        "preprocess": 10,
        # For each item the call, two results and the end; then the same for the rest.
        "double": 10 * 4 + 3,
        "infer": 21 + 1,
        "encode": 21,
        "encode: finish": 1,
    }
    assert [stage.items for stage in report.stages] == [10, 10, 10, 21, 21]
    assert profiler.by_name()["double"].total_seconds >= 0.02


def test_waiting_is_outside():
    profiler = Profiler()
    stages = [
        Source("decode", range(20), output=ONE),
        Map("infer", lambda n: n, output=ONE),
        Sink("encode", lambda n: time.sleep(0.005)),
    ]
    report = Pipeline(profiled_stages(stages, profiler)).run()
    rows = profiler.by_name()
    assert report.queues[1].put_wait_seconds > 0.05
    assert rows["infer"].total_seconds < 0.5 * report.queues[1].put_wait_seconds
    assert rows["encode"].total_seconds >= 0.1
    for stage in report.stages:
        assert rows[stage.name].total_seconds <= stage.busy_seconds


def test_a_source_is_still_closed_in_its_own_thread():
    import threading

    closed = []

    def numbers():
        try:
            n = 0
            while True:
                n += 1
                yield n
        finally:
            closed.append(threading.current_thread().name)

    profiler = Profiler()
    pipeline = Pipeline(profiled_stages([Source("decode", numbers()), Map("infer", lambda n: n)], profiler))
    for result in pipeline.stream():
        if result == 5:
            break
    assert closed == ["vitascope-decode"]


def test_a_failure_is_the_same_and_its_span_has_it():
    def fail(n):
        if n == 3:
            raise KeyError("boom")
        return n

    profiler = Profiler()
    stages = [Source("decode", range(10)), Map("infer", fail), Sink("encode", lambda n: None)]
    with pytest.raises(PipelineError, match="stage 'infer', item 3"):
        Pipeline(profiled_stages(stages, profiler)).run()
    assert [span.name for span in profiler.spans() if span.error == "KeyError"] == ["infer"]
