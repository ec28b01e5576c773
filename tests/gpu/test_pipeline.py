from __future__ import annotations

import faulthandler
import gc
import itertools
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vitascope.errors import InputError, PipelineError, VitascopeError
from vitascope.gpu.pipeline import Pipeline, describe_item
from vitascope.gpu.queues import QueueLimits
from vitascope.gpu.stages import Batched, Group, Map, Sink, Source, Stage

PATIENCE_SECONDS = 20.0
ONE = QueueLimits(items=1)


class BoomError(Exception):
    pass


def our_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("vitascope-")]


@pytest.fixture(autouse=True)
def no_thread_outlives_its_pipeline():
    yield
    assert our_threads() == []


def watched(action: Callable[[], Any]) -> Any:
    """Run in a thread that must finish; a deadlock fails the test with the stacks of all threads."""
    outcome: dict[str, Any] = {}

    def attempt() -> None:
        try:
            outcome["result"] = action()
        except BaseException as error:
            outcome["error"] = error

    thread = threading.Thread(target=attempt, daemon=True)
    thread.start()
    thread.join(PATIENCE_SECONDS)
    if thread.is_alive():
        faulthandler.dump_traceback(file=sys.__stderr__, all_threads=True)
        pytest.fail("deadlock")
    if "error" in outcome:
        raise outcome["error"]
    return outcome["result"]


def eventually(condition: Callable[[], bool]) -> None:
    give_up_at = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < give_up_at, "never became true"
        time.sleep(0.001)


class ClosingSource:
    """Counts up without end (or to ``count``) and remembers that its generator was closed, and where."""

    def __init__(self, count: int | None = None) -> None:
        self.count = count
        self.given = 0
        self.closed_in: str | None = None

    def __iter__(self) -> Iterator[int]:
        try:
            for n in itertools.count() if self.count is None else range(self.count):
                self.given = n + 1
                yield n
        finally:
            self.closed_in = threading.current_thread().name


def batches(items: Sequence[Any]) -> Iterable[Any]:
    return list(items)


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
    assert [stage.latency.count for stage in report.stages] == [10, 10, 3, 3]  # a group has one a burst
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
    """Every item ``times`` times, as a generator; the last of all once more at the end."""

    def __init__(self, times: int) -> None:
        self.times = times
        self.last: list[Any] = []

    def accumulate(self, item: Any, /) -> Iterator[Any]:
        self.last = [item]
        for _ in range(self.times):
            yield item

    def flush(self) -> Iterable[Any]:
        return self.last


def build(plan: Sequence[tuple[str, int, int]]) -> tuple[list[Stage], Callable[[list[Any]], list[Any]]]:
    """Stages of a plan, and what they do to a whole list."""
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


@settings(deadline=None, max_examples=60)
@given(plan=STAGES, count=st.integers(0, 40), room=st.integers(1, 4))
def test_nothing_is_lost_or_reordered_under_wait(plan, count, room):
    stages, expected = build(plan)
    seen: list[int] = []
    source = Source("source", range(count), output=QueueLimits(items=room))
    watched(Pipeline([source, *stages, Sink("sink", seen.append)]).run)
    assert seen == expected(list(range(count)))


@settings(deadline=None, max_examples=60)
@given(plan=STAGES, room=st.integers(1, 4), fail_in=st.integers(0, 6), fail_at=st.integers(0, 20))
def test_a_failure_anywhere_ends_an_endless_run(plan, room, fail_in, fail_at):
    stages, _ = build([step if step[:2] != ("repeat", 0) else ("map", 2, 1) for step in plan])
    counter = itertools.count()

    def fail(item: int) -> int:
        if next(counter) >= fail_at:
            raise BoomError
        return item

    stages.insert(min(fail_in, len(stages)), Map("failing", fail, workers=1 + fail_in % 3))
    source = ClosingSource()
    with pytest.raises(PipelineError, match="stage 'failing'"):
        watched(
            Pipeline(
                [Source("source", source, output=QueueLimits(items=room)), *stages, Sink("sink", int)]
            ).run
        )
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
    assert "96% of what camera gave was dropped" in report.bottleneck.evidence


def test_workers_run_at_once_and_keep_order_when_the_first_is_last():
    others_done = threading.Semaphore(0)

    def work(n: int) -> int:
        if n == 0:  # needs the other two workers to run, and to finish before it
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
    # All threads wait for a second item now; none may still hold the first.
    gc.disable()
    try:
        eventually(lambda: frames[0]() is None)
    finally:
        gc.enable()
        checked.set()
    runner.join(PATIENCE_SECONDS)


# --- open, finish, close ---------------------------------------------------------------------------------------


def test_callbacks_run_on_the_threads_of_their_stage():
    calls: list[tuple[str, str]] = []

    def note(what: str) -> Callable[..., Any]:
        def record(*args: Any) -> Any:
            calls.append((what, threading.current_thread().name))
            return args[0] if args else None

        return record

    def frames() -> Iterator[int]:
        yield note("work")(1)

    watched(
        Pipeline(
            [
                Source("decode", frames(), open=note("open"), close=note("close")),
                Map("resize", note("work"), workers=2, open=note("open"), close=note("close")),
                Sink("encode", note("work"), finish=note("finish"), open=note("open"), close=note("close")),
            ]
        ).run
    )
    by_thread: dict[str, list[str]] = {}
    for what, thread in calls:
        by_thread.setdefault(thread, []).append(what)
    assert by_thread["vitascope-decode"] == ["open", "work", "close"]
    assert by_thread["vitascope-encode"] == ["open", "work", "finish", "close"]
    resize = [by_thread["vitascope-resize-0"], by_thread["vitascope-resize-1"]]
    assert sorted(resize) == [["open", "close"], ["open", "work", "close"]]


def test_a_failed_run_closes_but_does_not_finish():
    calls: list[str] = []
    opened = threading.Barrier(3)

    def fail(n: int) -> int:
        if n == 5:
            opened.wait(PATIENCE_SECONDS)
            raise BoomError
        return n

    group = Batched(lambda batch: calls.append("batch") or batch, size=100)
    with pytest.raises(PipelineError):
        watched(
            Pipeline(
                [
                    Source("s", ClosingSource()),
                    Map("m", fail),
                    Group(
                        "g",
                        group,
                        open=lambda: opened.wait(PATIENCE_SECONDS),
                        close=lambda: calls.append("close g"),
                    ),
                    Sink(
                        "k",
                        int,
                        open=lambda: opened.wait(PATIENCE_SECONDS),
                        finish=lambda: calls.append("finish"),
                        close=lambda: calls.append("close k"),
                    ),
                ]
            ).run
        )
    assert sorted(calls) == ["close g", "close k"]


def test_close_is_not_called_where_open_failed():
    closed: list[str] = []

    def refuse() -> None:
        raise BoomError

    with pytest.raises(PipelineError, match="stage 'k', opening"):
        watched(
            Pipeline(
                [
                    Source("s", ClosingSource()),
                    Sink("k", int, open=refuse, close=lambda: closed.append("k")),
                ]
            ).run
        )
    assert closed == []


# --- fault injection -------------------------------------------------------------------------------------------

PLACES = [
    "source",
    "source close",
    "map",
    "accumulate",
    "accumulate generator",
    "sink",
    "size_of",
    "flush",
    "finish",
    *(
        f"{callback} {stage}"
        for callback in ("open", "close")
        for stage in ("decode", "map", "group", "encode")
    ),
]
AT_THE_END = ("flush", "finish", "close")


@pytest.mark.parametrize("fill", ["starved", "partial", "full"])
@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("place", PLACES)
def test_a_failure_in_any_place_at_any_fill_ends_the_run(place, workers, fill):
    source_seconds, sink_seconds = {"starved": (0.002, 0), "partial": (0, 0), "full": (0, 0.002)}[fill]
    room = {"starved": 4, "partial": 3, "full": 1}[fill]
    closed: list[str] = []

    def boom_if(here: bool) -> None:
        if here:
            raise BoomError(place)

    def decode() -> Iterator[int]:
        try:
            for n in range(12) if place.startswith(AT_THE_END) else itertools.count():
                boom_if(place == "source" and n == 7)
                time.sleep(source_seconds)
                yield n
        finally:
            closed.append("decode")
            boom_if(place == "source close")

    def work(n: int) -> int:
        boom_if(place == "map" and n == 7)
        boom_if(place == "source close" and n == 7)  # so that there is something to close
        return n

    class Pairs:
        def accumulate(self, n: int, /) -> Iterable[int]:
            boom_if(place == "accumulate" and n == 7)
            return self.generate(n)

        def generate(self, n: int) -> Iterator[int]:
            try:
                yield n
                boom_if(place == "accumulate generator" and n == 7)
            finally:
                closed.append("group")

        def flush(self) -> Iterable[int]:
            boom_if(place == "flush")
            return ()

    def encode(n: int) -> None:
        boom_if(place == "sink" and n == 7)
        time.sleep(sink_seconds)

    def size_of(n: int) -> int:
        boom_if(place == "size_of" and n == 7)
        return 1

    def callbacks(stage: str) -> dict[str, Callable[[], None]]:
        return {
            "open": lambda: boom_if(place == f"open {stage}"),
            "close": lambda: boom_if(place == f"close {stage}"),
        }

    limits = QueueLimits(items=room, size_of=size_of)
    pipeline = Pipeline(
        [
            Source("decode", decode(), output=limits, **callbacks("decode")),
            Map("map", work, workers=workers, output=limits, **callbacks("map")),
            Group("group", Pairs(), output=limits, **callbacks("group")),
            Sink("encode", encode, finish=lambda: boom_if(place == "finish"), **callbacks("encode")),
        ]
    )
    with pytest.raises(PipelineError) as caught:
        watched(pipeline.run)
    assert all(isinstance(cause, BoomError) for cause in caught.value.exceptions)
    stage = {
        "source": "'decode', reading after 7 items",
        "source close": "'map', item 7: 7",
        "map": "'map', item 7: 7",
        "accumulate": "'group', item 7: 7",
        "accumulate generator": "'group', item 7: 7",
        "sink": "'encode', item 7: 7",
        "size_of": "'decode', reading after 8 items",
        "flush": "'group', finishing after 12 items",
        "finish": "'encode', finishing after 12 items",
    }.get(place) or f"'{place.split()[1]}', {'opening' if place.startswith('open') else 'closing'}"
    assert stage in caught.value.exceptions[0].__notes__[0]
    assert str(caught.value).startswith(f"stage {stage}")
    if place == "source close":
        assert len(caught.value.exceptions) == 2
        assert "'decode', reading" in caught.value.exceptions[1].__notes__[0]
    if place != "open decode":
        # A generator that was never started has nothing to close.
        assert closed.count("decode") <= 1
        assert "decode" in closed or pipeline.snapshot().stages[0].items == 0
    assert our_threads() == []
    assert pipeline.snapshot().finished


def test_every_cause_is_collected_the_first_one_first():
    running = threading.Barrier(3)

    def fail(n: int) -> int:
        running.wait(PATIENCE_SECONDS)
        raise BoomError("work")

    def also_fail() -> None:
        raise InputError("close")

    stages = [
        Source("s", range(2)),
        Map("m", fail, workers=2, close=also_fail),
        Sink("k", int, open=lambda: running.wait(PATIENCE_SECONDS), close=also_fail),
    ]
    with pytest.raises(PipelineError) as caught:
        watched(Pipeline(stages).run)
    causes = caught.value.exceptions
    assert isinstance(causes[0], BoomError)
    assert sorted(type(cause).__name__ for cause in causes) == ["BoomError"] * 2 + ["InputError"] * 3
    assert all(len(cause.__notes__) == 1 for cause in causes)
    assert str(caught.value).startswith(f"{causes[0].__notes__[0]}: work (and 4 more)")
    assert "\n" not in str(caught.value)
    matched, rest = caught.value.split(BoomError)
    assert isinstance(matched, PipelineError) and isinstance(rest, PipelineError)
    assert rest.exit_code == 3


def test_the_note_describes_the_item_as_asked_and_the_exit_code_is_the_first_causes():
    def fail(item: object) -> None:
        raise InputError("damaged\n  packet")

    pipeline = Pipeline([Source("s", ["x"]), Sink("k", fail)], describe=lambda item: f"frame\n {item}")
    with pytest.raises(PipelineError, match=r"^stage 'k', item 0: frame x: damaged packet") as caught:
        watched(pipeline.run)
    assert caught.value.exceptions[0].__notes__ == ["stage 'k', item 0: frame x"]
    assert caught.value.exit_code == 3


def test_a_description_that_fails_does_not_hide_the_failure():
    def fail(item: object) -> None:
        raise BoomError

    def describe(item: object) -> str:
        raise ValueError("no name")

    with pytest.raises(
        PipelineError, match=r"int, whose description failed: ValueError\('no name'\): BoomError"
    ):
        watched(Pipeline([Source("s", [1]), Sink("k", fail)], describe=describe).run)


def test_describe_item_is_one_short_line():
    assert describe_item(7) == "7"
    assert "\n" not in describe_item(np.zeros((100, 100)))
    assert len(describe_item([np.zeros((100, 100))] * 50)) < 1000


def test_a_program_exit_inside_a_stage_is_not_wrapped():
    def leave(item: object) -> None:
        raise SystemExit(3)

    with pytest.raises(SystemExit) as caught:
        watched(Pipeline([Source("s", ClosingSource()), Sink("k", leave)]).run)
    assert caught.value.code == 3
    assert caught.value.__notes__ == ["stage 'k', item 0: 0"]


def test_a_program_exit_keeps_the_failures_beside_it_as_its_cause():
    def leave(item: object) -> None:
        raise SystemExit(3)

    def fail() -> None:
        raise BoomError

    with pytest.raises(SystemExit) as caught:
        watched(Pipeline([Source("s", [1]), Sink("k", leave, close=fail)]).run)
    assert isinstance(caught.value.__cause__, PipelineError)
    assert isinstance(caught.value.__cause__.exceptions[0], BoomError)


def test_a_thread_that_does_not_stop_is_reported_by_name():
    stuck, entered = threading.Event(), threading.Event()

    def hang(n: int) -> int:
        entered.set()
        assert stuck.wait(PATIENCE_SECONDS)
        return n

    def fail(n: int) -> None:
        assert entered.wait(PATIENCE_SECONDS)
        raise BoomError

    first = iter([True])
    stages = [
        Source("s", range(100)),
        Map("infer", lambda n: n if next(first, False) else hang(n)),
        Sink("k", fail),
    ]
    with pytest.raises(PipelineError) as caught:
        watched(Pipeline(stages, stop_timeout_seconds=0.05).run)
    left_behind = caught.value.exceptions[1]
    assert isinstance(left_behind, VitascopeError)
    assert "thread vitascope-infer did not stop within 0.05 s and was left behind" in str(left_behind)
    assert left_behind.__notes__ == ["stage 'infer', item 1: 1"]
    stuck.set()
    eventually(lambda: our_threads() == [])


def test_threads_that_started_are_joined_when_another_cannot_start(monkeypatch):
    source = ClosingSource()
    start = threading.Thread.start

    def refuse_sinks(thread: threading.Thread) -> None:
        if thread.name == "vitascope-k":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse_sinks)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        watched(Pipeline([Source("s", source), Map("m", lambda n: n), Sink("k", int)]).run)
    assert our_threads() == []


# --- stopping --------------------------------------------------------------------------------------------------


def test_stop_lets_what_was_read_through():
    source, seen, calls = ClosingSource(), [], []

    def consume(n: int) -> None:
        seen.append(n)
        if n == 20:
            pipeline.stop()

    pipeline = Pipeline(
        [
            Source("s", source),
            Map("m", lambda n: n, workers=2),
            Group("g", Batched(batches, size=3)),
            Sink("k", consume, finish=lambda: calls.append("finish")),
        ]
    )
    report = watched(pipeline.run)
    assert seen == list(range(len(seen)))
    assert report.stages[0].items == len(seen)  # what was read and not handed over is what the generator kept
    assert source.given - len(seen) in (0, 1)
    assert calls == ["finish"]
    assert (report.finished, report.stopped) == (True, True)
    assert source.closed_in == "vitascope-s"


def test_stop_without_draining_gives_up():
    source, calls = ClosingSource(), []

    def consume(n: int) -> None:
        if n == 20:
            pipeline.stop(drain=False)

    pipeline = Pipeline(
        [
            Source("s", source),
            Sink("k", consume, finish=lambda: calls.append("finish"), close=lambda: calls.append("close")),
        ]
    )
    report = watched(pipeline.run)
    assert calls == ["close"]
    assert (report.items, report.stopped) == (21, True)
    assert source.closed_in == "vitascope-s"


@pytest.mark.parametrize("drain", [True, False])
def test_stop_before_the_run_and_after_it(drain):
    pipeline = Pipeline([Source("s", ClosingSource()), Sink("k", int)])
    pipeline.stop(drain=drain)
    assert watched(pipeline.run).items == 0
    ended = Pipeline([Source("s", range(3)), Sink("k", int)])
    watched(ended.run)
    ended.stop(drain=drain)
    assert (ended.snapshot().items, ended.snapshot().stopped) == (3, False)


def test_stop_wakes_a_stream_that_waits():
    release = threading.Event()

    def camera() -> Iterator[int]:
        yield 0
        assert release.wait(PATIENCE_SECONDS)

    pipeline = Pipeline([Source("s", camera())])
    stopper = threading.Timer(0.02, lambda: (pipeline.stop(drain=False), release.set()))
    stopper.start()
    assert watched(lambda: list(pipeline.stream())) == [0]
    stopper.join(PATIENCE_SECONDS)


@pytest.mark.parametrize("leave_after", [1, 2, 30])
def test_a_consumer_that_breaks_stops_everything(leave_after):
    source = ClosingSource()
    pipeline = Pipeline([Source("s", source), Map("m", lambda n: n, workers=2)])

    def consume() -> int:
        for n in pipeline.stream():
            if n + 1 == leave_after:
                break
        assert our_threads() == []
        return n

    assert watched(consume) == leave_after - 1
    assert source.closed_in == "vitascope-s"
    report = pipeline.snapshot()
    assert (report.items, report.finished, report.stopped) == (leave_after, True, True)
    assert report.stages[-1].name == "consumer"


def test_a_consumer_that_crashes_sees_its_own_exception_and_no_thread_is_left():
    source = ClosingSource()

    def consume() -> None:
        for n in Pipeline([Source("s", source, output=ONE), Map("m", lambda n: n, output=ONE)]).stream():
            if n == 3:
                raise BoomError("mine")

    with pytest.raises(BoomError, match="mine"):
        watched(consume)
    assert our_threads() == []
    assert source.closed_in == "vitascope-s"


def test_a_stream_that_is_closed_by_hand_or_never_started():
    source = ClosingSource()
    with closing(Pipeline([Source("s", source)]).stream()) as items:
        assert [next(items), next(items)] == [0, 1]
        assert our_threads() == ["vitascope-s"]
    assert our_threads() == []
    assert source.closed_in == "vitascope-s"
    Pipeline([Source("s", ClosingSource())]).stream().close()
    Pipeline([Source("s", ClosingSource())]).stream()


def test_a_failure_while_a_consumer_leaves_is_not_lost():
    def fail() -> None:
        raise BoomError

    items = Pipeline([Source("s", ClosingSource(), close=fail)]).stream()
    assert next(items) == 0
    with pytest.raises(PipelineError, match="stage 's', closing"):
        watched(items.close)


def test_a_stage_that_fails_reaches_the_consumer():
    def fail(n: int) -> int:
        if n == 3:
            raise BoomError
        return n

    items = Pipeline([Source("s", ClosingSource()), Map("m", fail)]).stream()
    with pytest.raises(PipelineError, match="stage 'm', item 3: 3"):
        watched(lambda: list(items))


@pytest.fixture
def interruptible():
    """For tests that must run in the main thread: a deadlock ends the process with all stacks."""
    faulthandler.dump_traceback_later(60, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


def press_control_c() -> None:
    signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)


@pytest.mark.skipif(sys.platform == "win32", reason="signals cannot be sent to a thread")
@pytest.mark.parametrize("fill", ["starved", "full"])
def test_control_c_joins_everything_and_goes_on_as_keyboard_interrupt(interruptible, fill):
    source, calls = ClosingSource(), []
    pressed = threading.Event()

    def consume(n: int) -> None:
        if n == 5:
            press_control_c()
            pressed.set()
        time.sleep(0.002 if fill == "full" else 0)

    def decode() -> Iterator[int]:
        for n in source:
            if fill == "starved" and n > 5:
                pressed.wait(PATIENCE_SECONDS)
            yield n

    pipeline = Pipeline(
        [
            Source("s", decode(), output=ONE),
            Map("m", lambda n: n, workers=2, output=ONE),
            Sink("k", consume, finish=lambda: calls.append("finish"), close=lambda: calls.append("close")),
        ]
    )
    with pytest.raises(KeyboardInterrupt) as caught:
        pipeline.run()
    assert caught.value.__cause__ is None
    assert our_threads() == []
    assert calls == ["close"]
    assert source.closed_in == "vitascope-s"
    assert (pipeline.snapshot().finished, pipeline.snapshot().stopped) == (True, True)


@pytest.mark.skipif(sys.platform == "win32", reason="signals cannot be sent to a thread")
def test_control_c_keeps_what_failed_on_the_way_as_its_cause(interruptible):
    def fail() -> None:
        raise BoomError

    def consume(n: int) -> None:
        if n == 5:
            press_control_c()
        time.sleep(0.001)

    with pytest.raises(KeyboardInterrupt) as caught:
        Pipeline([Source("s", ClosingSource()), Sink("k", consume, close=fail)]).run()
    assert isinstance(caught.value.__cause__, PipelineError)


@pytest.mark.skipif(sys.platform == "win32", reason="signals cannot be sent to a thread")
def test_control_c_while_a_stream_waits(interruptible):
    waiting, release = threading.Event(), threading.Event()

    def camera() -> Iterator[int]:
        yield 0
        assert waiting.wait(PATIENCE_SECONDS)
        eventually(lambda: pipeline.snapshot().queues[0].get_wait_seconds > seconds_before)
        press_control_c()
        assert release.wait(PATIENCE_SECONDS)

    pipeline = Pipeline([Source("s", camera())])
    items = pipeline.stream()
    assert next(items) == 0
    seconds_before = pipeline.snapshot().queues[0].get_wait_seconds
    timer = threading.Timer(0.1, release.set)  # a driver that returns at last
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        waiting.set()
        next(items)
    timer.join(PATIENCE_SECONDS)
    assert our_threads() == []


def run_to_the_end(stages: Sequence[Stage]) -> None:
    Pipeline([*stages, Sink("k", int)]).run()


def run_into_a_failure(stages: Sequence[Stage]) -> None:
    def fail(n: int) -> None:
        raise BoomError

    with pytest.raises(PipelineError):
        Pipeline([*stages, Sink("k", fail)]).run()


def leave_a_stream(stages: Sequence[Stage]) -> None:
    for _ in Pipeline(stages).stream():
        break


def stop_from_a_stage(stages: Sequence[Stage]) -> None:
    pipeline = Pipeline([*stages, Sink("k", lambda _: pipeline.stop(drain=False))])
    pipeline.run()


def test_a_thousand_runs_leave_no_thread():
    before = threading.active_count()

    def cycle() -> None:
        for n in range(1000):
            way = (run_to_the_end, run_into_a_failure, leave_a_stream, stop_from_a_stage)[n % 4]
            way([Source("s", ClosingSource(3)), Map("m", lambda n: n)])
            assert our_threads() == []

    watched(cycle)
    assert threading.active_count() == before


# --- measuring -------------------------------------------------------------------------------------------------


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
    # What goes on at the moment is in the figures: work of the stage that hangs, waits of those around it.
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


# --- what is refused -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stages", "match"),
    [
        ([], "begins with a Source"),
        ([Sink("k", int)], "begins with a Source"),
        ([Source("a", []), Source("b", [])], "Source 'b' cannot stand there"),
        ([Source("a", []), Sink("k", int), Map("m", int)], "Sink 'k' cannot stand there"),
        ([Source("a", []), Map("a", int)], "a name of its own"),
        ([Source("a", []), Stage("b"), Sink("k", int)], "Stage 'b' cannot stand there"),
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
    with pytest.raises(ValueError, match="at least 1 worker, not 0"):
        Map("m", int, workers=0)
    with pytest.raises(ValueError, match="at least 1 item, not 0"):
        Batched(batches, size=0)


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
