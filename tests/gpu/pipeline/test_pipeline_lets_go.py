"""Check that a finished pipeline only holds its report."""

from __future__ import annotations

import gc
import weakref
from contextlib import closing

import pytest

from vitascope.errors import PipelineError
from vitascope.gpu.pipeline.pipeline import Pipeline
from vitascope.gpu.pipeline.queues import QueueLimits
from vitascope.gpu.pipeline.stages import Map, Sink, Source


class Heavy:
    """Represents a frame, or data of a stage."""


@pytest.fixture(autouse=True)
def no_search_for_cycles():
    gc.disable()
    yield
    gc.enable()


def items(seen):
    for _ in range(20):
        item = Heavy()
        seen.append(weakref.ref(item))
        yield item


def built(seen, work, *, last):
    owner = Heavy()
    seen.append(weakref.ref(owner))

    def keep(item):
        assert owner is not None
        return work(item)

    source = Source("make", items(seen), output=QueueLimits(items=2))
    return Pipeline([source, Map("work", keep, workers=2), *last], on_halt=lambda: owner)


def test_after_a_run():
    seen = []
    pipeline = built(seen, lambda item: item, last=[Sink("end", lambda item: None)])
    report = pipeline.run()
    assert not [ref for ref in seen if ref() is not None]
    assert report.finished
    assert pipeline.snapshot() == report
    assert [stage.name for stage in report.stages] == ["make", "work", "end"]


def test_after_a_stream_that_was_left():
    seen = []
    pipeline = built(seen, lambda item: item, last=[])
    with closing(pipeline.stream()) as stream:
        next(stream)
    assert not [ref for ref in seen if ref() is not None]
    assert len(pipeline.snapshot().queues) == 2


def test_after_a_failure_whose_error_is_gone():
    def work(item):
        raise ValueError("no")

    seen = []
    pipeline = built(seen, work, last=[Sink("end", lambda item: None)])
    with pytest.raises(PipelineError, match="no"):
        pipeline.run()
    assert not [ref for ref in seen if ref() is not None]


def test_an_ended_pipeline_can_be_stopped_and_runs_no_second_time():
    pipeline = built([], lambda item: item, last=[Sink("end", lambda item: None)])
    pipeline.run()
    pipeline.stop(drain=False)
    pipeline.interrupt()
    assert not pipeline.owns_current_thread()
    with pytest.raises(RuntimeError, match="runs once"):
        pipeline.run()
    with pytest.raises(RuntimeError, match="runs once"):
        pipeline.stream()
