"""Tests of a stage's open, finish and close: the threads they run on, and when they do not run."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from watched_runs import BoomError, ClosingSource, watched

from vitascope.errors import PipelineError
from vitascope.gpu.pipeline.pipeline import Pipeline
from vitascope.gpu.pipeline.stages import Batched, Group, Map, Sink, Source
from waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.usefixtures("no_thread_outlives_its_pipeline")


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
