"""Tests of groups that do not hold items back forever, and of halts that a pipeline reports."""

from __future__ import annotations

import threading

import pytest
from watched_runs import BoomError, watched

from vitascope.errors import PipelineError
from vitascope.gpu.pipeline.pipeline import Pipeline
from vitascope.gpu.pipeline.stages import Batched, Group, Map, Sink, Source, TimedGrouper

pytestmark = pytest.mark.usefixtures("no_thread_outlives_its_pipeline")


class Patient:
    """Releases what it holds when nothing came for a moment."""

    def __init__(self):
        self.held = []
        self.lapses = 0

    def accumulate(self, item):
        self.held.append(item)
        return ()

    def flush(self):
        held, self.held = self.held, []
        return [tuple(held)] if held else ()

    def due_seconds(self):
        return 0.005 if self.held else None

    def lapse(self):
        self.lapses += 1
        return self.flush()


def test_what_is_held_goes_on_when_nothing_comes():
    arrived = threading.Event()

    def items():
        yield 1
        yield 2
        assert arrived.wait(10)  # the held items were passed on although the source paused
        yield 3

    grouper, taken = Patient(), []

    def consume(group):
        taken.append(group)
        arrived.set()

    assert isinstance(grouper, TimedGrouper)
    report = watched(
        Pipeline([Source("items", items()), Group("gather", grouper), Sink("take", consume)]).run
    )
    assert [item for group in taken for item in group] == [1, 2, 3]
    assert grouper.lapses >= 1
    gather = report.stages[1]
    assert gather.items == 3
    assert gather.latency.count == len(taken)


def test_nothing_held_means_no_lapse():
    grouper = Patient()
    watched(Pipeline([Source("items", ()), Group("gather", grouper), Sink("take", print)]).run)
    assert grouper.lapses == 0


def test_a_failing_lapse_ends_the_run_and_says_where():
    class Failing(Patient):
        def lapse(self):
            raise BoomError("boom")

    gate = threading.Event()

    def items():
        yield 1
        gate.wait(10)

    pipeline = Pipeline(
        [Source("items", items()), Group("gather", Failing()), Sink("take", print)], on_halt=gate.set
    )
    with pytest.raises(PipelineError, match="stage 'gather', with what it had gathered, after 1 items: boom"):
        watched(pipeline.run)


def test_on_halt_releases_a_source_that_waits_for_others():
    gate = threading.Event()

    def items():
        yield 1
        assert gate.wait(10)

    def boom(item):
        raise BoomError("boom")

    pipeline = Pipeline([Source("items", items()), Map("work", boom), Sink("take", print)], on_halt=gate.set)
    with pytest.raises(PipelineError, match="boom"):
        watched(pipeline.run)


def test_on_halt_is_not_called_for_a_run_that_ends():
    told = []
    watched(Pipeline([Source("items", [1]), Sink("take", print)], on_halt=lambda: told.append(1)).run)
    assert told == []


def test_a_batch_that_is_not_full_goes_when_its_first_item_has_waited():
    arrived = threading.Event()

    def items():
        yield from range(3)  # a full batch, and one item that waits
        assert arrived.wait(10)
        yield 3

    taken = []

    def consume(batch):
        taken.append(batch)
        if batch == (2,):
            arrived.set()

    grouper = Batched(lambda batch: [tuple(batch)], size=2, timeout_seconds=0.005)
    watched(Pipeline([Source("items", items()), Group("gather", grouper), Sink("take", consume)]).run)
    assert taken == [(0, 1), (2,), (3,)]


def test_without_a_timeout_a_batch_waits_until_it_is_full():
    grouper = Batched(lambda batch: [len(batch)], size=2)
    assert grouper.due_seconds() is None
    assert list(grouper.accumulate(1)) == []
    assert grouper.due_seconds() is None
    assert list(grouper.accumulate(1)) == [2]
    timed = Batched(lambda batch: [len(batch)], size=2, timeout_seconds=60.0)
    assert timed.due_seconds() is None  # nothing waits
    timed.accumulate(1)
    assert 0 < timed.due_seconds() <= 60
