"""Check that a failure in any place ends the run, names the place and leaves no thread."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterable, Iterator

import numpy as np
import pytest
from watched_runs import BoomError, ClosingSource, our_threads, watched

from vitascope.errors import InputError, PipelineError, VitascopeError
from vitascope.gpu.pipeline.pipeline import Pipeline, describe_item
from vitascope.gpu.pipeline.queues import QueueLimits
from vitascope.gpu.pipeline.stages import Group, Map, Sink, Source
from waiting import PATIENCE_SECONDS, eventually

pytestmark = pytest.mark.usefixtures("no_thread_outlives_its_pipeline")


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
        boom_if(place == "source close" and n == 7)  # so that there is a source to close
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
        # A generator that never started has nothing to close.
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
        watched(Pipeline(stages, stop_timeout_seconds=1.0).run)  # the other threads end in less time
    left_behind = caught.value.exceptions[1]
    assert isinstance(left_behind, VitascopeError)
    assert "thread vitascope-infer did not stop within 1 s and was abandoned" in str(left_behind)
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
    with pytest.raises(VitascopeError, match="can't start new thread: too little memory"):
        watched(Pipeline([Source("s", source), Map("m", lambda n: n), Sink("k", int)]).run)
    assert our_threads() == []


def test_a_stage_without_memory_says_so():
    def starved(_: int) -> None:
        raise MemoryError("Unable to allocate 31.6 MiB")

    with pytest.raises(PipelineError, match=r"out of memory: Unable to allocate 31\.6 MiB; free some"):
        watched(Pipeline([Source("s", range(3)), Sink("k", starved)]).run)
