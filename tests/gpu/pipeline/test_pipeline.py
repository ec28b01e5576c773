"""Check that all items come out, and that invalid pipelines are refused."""

from __future__ import annotations

import gc
import itertools
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from watched_runs import BoomError, ClosingSource, batches, our_threads, watched

from vitascope.errors import PipelineError, UsageError
from vitascope.gpu.pipeline.pipeline import Pipeline
from vitascope.gpu.pipeline.queues import QueueLimits
from vitascope.gpu.pipeline.stages import Batched, Group, Map, Sink, Source, Stage, Together
from waiting import PATIENCE_SECONDS, eventually

pytestmark = pytest.mark.usefixtures("no_thread_outlives_its_pipeline")


# --- what goes in comes out ------------------------------------------------------------------------------------


def test_items_pass_every_stage_in_order_and_the_report_counts_them():
    seen: list[int] = []
    report = watched(
        Pipeline(
            [
                Source("decode", range(10)),
                Map("double", lambda n: 2 * n),
                Group("infer", Batched(lambda batch: [sum(batch)], size=4)),
                Sink("encode", seen.append),
            ]
        ).run
    )
    assert seen == [0 + 2 + 4 + 6, 8 + 10 + 12 + 14, 16 + 18]
    assert [(stage.name, stage.items) for stage in report.stages] == [
        ("decode", 10),
        ("double", 10),
        ("infer", 10),
        ("encode", 3),
    ]
    assert [queue.name for queue in report.queues] == ["decode > double", "double > infer", "infer > encode"]
    assert [queue.count for queue in report.queues] == [10, 10, 3]
    assert [stage.latency.count for stage in report.stages] == [10, 10, 3, 3]  # for a group, one a burst
    assert (report.items, report.finished, report.stopped) == (3, True, False)
    assert report.items_per_second == pytest.approx(3 / report.wall_seconds)
    assert 0 < report.latency.p50_seconds <= report.latency.max_seconds <= report.wall_seconds


def test_none_and_falsy_items_are_items():
    items = [None, 0, "", (), False]
    assert list(Pipeline([Source("s", items), Map("m", lambda item: item)]).stream()) == items


@pytest.mark.parametrize("count", [0, 1])
def test_an_empty_or_single_item_source_finishes_every_stage(count):
    calls: list[object] = []
    report = watched(
        Pipeline(
            [
                Source("s", range(count)),
                Map("m", lambda n: n, workers=3),
                Group("g", Batched(batches, size=5)),
                Sink(
                    "k",
                    calls.append,
                    finish=lambda: calls.append("finish"),
                    close=lambda: calls.append("close"),
                ),
            ]
        ).run
    )
    assert calls == [*range(count), "finish", "close"]
    assert (report.bottleneck is None) == (count == 0)


def test_source_alone_prefetches_for_a_stream():
    assert list(Pipeline([Source("s", range(5), output=QueueLimits(items=2))]).stream()) == [0, 1, 2, 3, 4]


STAGES = st.lists(
    st.one_of(
        st.tuples(st.just("map"), st.integers(1, 4), st.integers(1, 4)),
        st.tuples(st.just("batch"), st.integers(1, 7), st.integers(1, 4)),
        st.tuples(st.just("repeat"), st.integers(0, 3), st.integers(1, 4)),
    ),
    max_size=5,
)


class Repeated:
    """Yields every item ``times`` times, the first two together, and the last item once more at the end."""

    def __init__(self, times: int) -> None:
        self.times = times
        self.last: list[Any] = []

    def accumulate(self, item: Any, /) -> Iterator[Any]:
        self.last = [item]
        yield Together([item] * min(self.times, 2))
        for _ in range(self.times - 2):
            yield item

    def flush(self) -> Iterable[Any]:
        return self.last


def build(plan: Sequence[tuple[str, int, int]]) -> tuple[list[Stage], Callable[[list[Any]], list[Any]]]:
    """Build stages from a plan, and a function that does the same to a whole list."""
    stages: list[Stage] = []
    steps: list[Callable[[list[Any]], list[Any]]] = []
    for n, (kind, number, room) in enumerate(plan):
        limits = QueueLimits(items=room, nbytes=20, size_of=lambda item: int(item) % 30)
        if kind == "map":
            stages.append(Map(f"{n}", lambda item: item + 1, workers=number, output=limits))
            steps.append(lambda items: [item + 1 for item in items])
        elif kind == "batch":
            stages.append(Group(f"{n}", Batched(batches, size=number), output=limits))
            steps.append(lambda items: items)
        else:
            stages.append(Group(f"{n}", Repeated(number), output=limits))
            steps.append(lambda items, k=number: [item for item in items for _ in range(k)] + items[-1:])

    def expected(items: list[Any]) -> list[Any]:
        for step in steps:
            items = step(items)
        return items

    return stages, expected


def awaited_in(stages: Sequence[Stage], *, first_alone: bool) -> str | None:
    """Return a stage that the first item reaches for certain."""
    return next(stage.name for stage in stages if not isinstance(stage, Map)) if first_alone else None


@settings(deadline=None, max_examples=60)
@given(
    plan=STAGES,
    count=st.integers(0, 40),
    room=st.integers(1, 4),
    wake=st.integers(1, 6),
    first_alone=st.booleans(),
)
def test_nothing_is_lost_or_reordered_under_wait(plan, count, room, wake, first_alone):
    stages, expected = build(plan)
    seen: list[int] = []
    stages.append(Sink("sink", seen.append))
    source = Source(
        "source",
        range(count),
        output=QueueLimits(items=room, wake_items=wake),
        first_alone_until=awaited_in(stages, first_alone=first_alone),
    )
    watched(Pipeline([source, *stages]).run)
    assert seen == expected(list(range(count)))


@settings(deadline=None, max_examples=60)
@given(
    plan=STAGES,
    room=st.integers(1, 4),
    fail_in=st.integers(0, 6),
    fail_at=st.integers(0, 20),
    first_alone=st.booleans(),
)
def test_a_failure_anywhere_ends_an_endless_run(plan, room, fail_in, fail_at, first_alone):
    stages, _ = build([step if step[:2] != ("repeat", 0) else ("map", 2, 1) for step in plan])
    counter = itertools.count()

    def fail(item: int) -> int:
        if next(counter) >= fail_at:
            raise BoomError
        return item

    stages.insert(min(fail_in, len(stages)), Map("failing", fail, workers=1 + fail_in % 3))
    stages.append(Sink("sink", int))
    source = ClosingSource()
    first = Source(
        "source",
        source,
        output=QueueLimits(items=room),
        first_alone_until=awaited_in(stages, first_alone=first_alone),
    )
    with pytest.raises(PipelineError, match="stage 'failing'"):
        watched(Pipeline([first, *stages]).run)
    assert source.closed_in in (None, "vitascope-source")
    assert our_threads() == []


def test_drop_oldest_gives_a_slow_consumer_the_newest():
    taken: list[int] = []
    first_taken, all_given = threading.Event(), threading.Event()

    def camera() -> Iterator[int]:
        yield 0
        assert first_taken.wait(PATIENCE_SECONDS)
        yield from range(1, 100)
        all_given.set()

    def slow(n: int) -> None:
        taken.append(n)
        first_taken.set()
        assert all_given.wait(PATIENCE_SECONDS)

    live = QueueLimits(items=3, overflow="drop_oldest")
    report = watched(Pipeline([Source("camera", camera(), output=live), Sink("show", slow)]).run)
    assert taken == [0, 97, 98, 99]
    assert (report.queues[0].count, report.queues[0].dropped) == (100, 96)
    assert report.queues[0].put_wait_seconds == 0
    assert report.bottleneck.stage == "show"
    assert "96% of the items from camera were dropped" in report.bottleneck.evidence


def test_workers_run_at_once_and_keep_order_when_the_first_is_last():
    others_done = threading.Semaphore(0)

    def work(n: int) -> int:
        if n == 0:  # this needs the other two workers to run, and to finish first
            assert others_done.acquire(timeout=PATIENCE_SECONDS)
            assert others_done.acquire(timeout=PATIENCE_SECONDS)
        else:
            others_done.release()
        return n

    pipeline = Pipeline([Source("s", range(20)), Map("m", work, workers=3)])
    assert watched(lambda: list(pipeline.stream())) == list(range(20))
    assert pipeline.snapshot().stages[1].items == 20


def test_stages_overlap():
    meet = threading.Barrier(3)

    def work(n: int) -> int:
        if n == 0:
            meet.wait(PATIENCE_SECONDS)
        return n

    def later(n: int) -> Iterator[int]:
        for i in range(5):
            if i == 2:  # item 0 is in "b", item 1 in "a"
                meet.wait(PATIENCE_SECONDS)
            yield i

    a = Map("a", lambda n: meet.wait(PATIENCE_SECONDS) if n == 1 else n)
    assert len(watched(lambda: list(Pipeline([Source("s", later(5)), a, Map("b", work)]).stream()))) == 5


def test_byte_limit_uses_nbytes_of_the_items():
    limits = QueueLimits(items=100, nbytes=3000)
    frames = (np.zeros(1000, np.uint8) for _ in range(20))
    report = watched(
        Pipeline([Source("s", frames, output=limits), Sink("k", lambda _: time.sleep(0.001))]).run
    )
    assert 1000 <= report.queues[0].nbytes_max <= 3000
    assert report.queues[0].occupancy_max <= 3


def test_an_item_is_let_go_once_it_left():
    left, checked = threading.Event(), threading.Event()
    frames: list[weakref.ref[np.ndarray]] = []

    def decode() -> Iterator[np.ndarray]:
        frame = np.zeros(8)
        frames.append(weakref.ref(frame))
        yield frame
        del frame
        assert checked.wait(PATIENCE_SECONDS)

    def consume(frame: np.ndarray) -> None:
        left.set()

    passing = Group("g", Batched(batches, size=1))
    pipeline = Pipeline(
        [Source("s", decode()), Map("m", lambda x: x, workers=2), passing, Sink("k", consume)]
    )
    runner = threading.Thread(target=pipeline.run)
    runner.start()
    assert left.wait(PATIENCE_SECONDS)
    # All threads now wait for a second item; none may still hold the first.
    gc.disable()
    try:
        eventually(lambda: frames[0]() is None)
    finally:
        gc.enable()
        checked.set()
    runner.join(PATIENCE_SECONDS)


# --- what is refused -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stages", "match"),
    [
        ([], "begins with a Source"),
        ([Sink("k", int)], "begins with a Source"),
        ([Source("a", []), Source("b", [])], "Source 'b' is in the wrong place"),
        ([Source("a", []), Sink("k", int), Map("m", int)], "Sink 'k' is in the wrong place"),
        ([Source("a", []), Map("a", int)], "a unique name"),
        ([Source("a", []), Stage("b"), Sink("k", int)], "Stage 'b' is in the wrong place"),
        ([Source("a", [], first_alone_until="b"), Sink("k", int)], "no stage 'b' follows 'a'"),
        ([Source("a", [], first_alone_until="a"), Sink("k", int)], "no stage 'a' follows 'a'"),
        (
            [
                Source("a", [], first_alone_until="k"),
                Group("g", Batched(batches, size=2)),
                Sink("k", int),
            ],
            "'g' may keep the first item from 'k'",
        ),
    ],
)
def test_stages_that_form_no_pipeline_are_refused(stages, match):
    with pytest.raises(ValueError, match=match):
        Pipeline(stages)


def test_impossible_stages_are_refused():
    with pytest.raises(ValueError, match="needs a name"):
        Map("", int)
    with pytest.raises(ValueError, match="needs a name other than 'consumer'"):
        Sink("consumer", int)
    with pytest.raises(ValueError, match=r"^workers of stage 'm' is 0, expected a whole number, at least 1"):
        Map("m", int, workers=0)
    with pytest.raises(ValueError, match=r"^size is 0, expected a whole number, at least 1"):
        Batched(batches, size=0)
    with pytest.raises(ValueError, match=r"^first_size is 0, expected a whole number, at least 1"):
        Batched(batches, size=4, first_size=0)


async def awaited(item: object) -> object:
    return item


@pytest.mark.parametrize(
    ("stages", "said"),
    [
        (Source("a", []), "a pipeline takes a list of Source, Map, Group and Sink, not Source"),
        ([Source("a", []), print], "a pipeline takes a list of .*, not builtin_function_or_method"),
        ([Source("a", [], output=16), Sink("b", print)], "output of stage 'a' is 16, expected QueueLimits"),
        (
            [Source("a", []), Group("g", batches), Sink("b", print)],
            "the grouper of stage 'g' is a function, .*Batched",
        ),
        ([Source("a", []), Map("m", awaited), Sink("b", print)], "the work of stage 'm' is a coroutine"),
    ],
)
def test_what_is_given_in_place_of_stages_is_named(stages, said):
    with pytest.raises(UsageError, match=said):
        Pipeline(stages)


def test_a_first_batch_of_another_size():
    grouper = Batched(lambda batch: [tuple(batch)], size=3, first_size=1)
    out = [batch for item in range(6) for batch in grouper.accumulate(item)]
    assert [*out, *grouper.flush()] == [(0,), (1, 2, 3), (4, 5)]
    assert list(grouper.flush()) == []


def test_run_needs_a_sink_and_stream_needs_none():
    with pytest.raises(ValueError, match=r"run\(\) needs a Sink"):
        Pipeline([Source("s", [])]).run()
    with pytest.raises(ValueError, match=r"stream\(\) takes the place of the Sink 'k'"):
        Pipeline([Source("s", []), Sink("k", int)]).stream()


def test_a_pipeline_runs_once():
    pipeline = Pipeline([Source("s", range(3)), Sink("k", int)])
    pipeline.run()
    with pytest.raises(RuntimeError, match="runs once"):
        pipeline.run()
    assert pipeline.snapshot().items == 3
