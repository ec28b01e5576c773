"""Check that the first item may have the cores alone until a slow stage is done, and that nothing waits in vain."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
from watched_runs import BoomError, batches, watched

from left_threads import left_threads
from vitascope.errors import PipelineError
from vitascope.gpu.pipeline.pipeline import Pipeline
from vitascope.gpu.pipeline.stages import Batched, Group, Map, Sink, Source
from waiting import PATIENCE_SECONDS, eventually

pytestmark = pytest.mark.usefixtures("no_thread_outlives_its_pipeline")

LONG_ENOUGH_TO_RUN_AHEAD_SECONDS = 0.1


class Asked:
    """Counts up, and counts the requests for items."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.times = 0

    def __iter__(self) -> Iterator[int]:
        for n in range(self.count):
            self.times += 1
            yield n


@pytest.fixture
def held():
    """Return a stage's work that blocks until it is released."""
    return Held()


class Held:
    def __init__(self) -> None:
        self.has_begun, self.may_go = threading.Event(), threading.Event()

    def work(self, n: int) -> int:
        self.has_begun.set()
        assert self.may_go.wait(PATIENCE_SECONDS)
        return n


@pytest.mark.parametrize("alone", [True, False])
def test_the_second_item_is_asked_for_when_the_stage_is_done_with_the_first(held, alone):
    items, seen = Asked(20), []
    pipeline = Pipeline(
        [
            Source("decode", items, first_alone_until="infer" if alone else None),
            Map("prepare", lambda n: n, workers=3),
            Group("infer", Batched(lambda batch: [held.work(n) for n in batch], size=4, first_size=1)),
            Sink("encode", seen.append),
        ]
    )
    runner = threading.Thread(target=pipeline.run)
    runner.start()
    assert held.has_begun.wait(PATIENCE_SECONDS)
    if not alone:
        eventually(lambda: items.times > 10)
    time.sleep(LONG_ENOUGH_TO_RUN_AHEAD_SECONDS)
    if alone:
        assert items.times == 1
    held.may_go.set()
    runner.join(PATIENCE_SECONDS)
    assert seen == list(range(20))


def test_a_stage_that_gathers_is_done_with_the_first_item_when_it_wants_more():
    seen: list[int] = []
    stages = [
        Source("decode", range(10), first_alone_until="infer"),
        Group("infer", Batched(batches, size=4)),
        Sink("encode", seen.append),
    ]
    watched(Pipeline(stages).run)
    assert seen == list(range(10))


@pytest.mark.parametrize("drain", [True, False])
def test_a_run_that_is_stopped_while_the_first_item_is_alone_ends(held, drain):
    items, seen = Asked(20), []
    pipeline = Pipeline(
        [
            Source("decode", items, first_alone_until="infer"),
            Map("infer", held.work),
            Sink("encode", seen.append),
        ]
    )
    runner = threading.Thread(target=pipeline.run)
    runner.start()
    assert held.has_begun.wait(PATIENCE_SECONDS)
    pipeline.stop(drain=drain)
    eventually(lambda: not left_threads("vitascope-decode"))
    held.may_go.set()
    runner.join(PATIENCE_SECONDS)
    assert items.times == 1
    assert seen == ([0] if drain else [])


@pytest.mark.parametrize("place", ["prepare", "infer", "open infer", "encode"])
def test_a_failure_while_the_first_item_is_alone_ends_the_run(place):
    def fail_in(here: str) -> None:
        if here == place:
            raise BoomError

    def passing(here: str, n: int) -> int:
        fail_in(here)
        return n

    stages = [
        Source("decode", Asked(20), first_alone_until="encode"),
        Map("prepare", lambda n: passing("prepare", n), workers=2),
        Map("infer", lambda n: passing("infer", n), open=lambda: fail_in("open infer")),
        Sink("encode", lambda n: passing("encode", n)),
    ]
    with pytest.raises(PipelineError, match=place.split()[-1]):
        watched(Pipeline(stages).run)
