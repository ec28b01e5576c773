"""Watched pipelines: a run that must finish, a source that records its closing, and threads that must end."""

from __future__ import annotations

import faulthandler
import itertools
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pytest

from left_threads import left_threads
from vitascope.gpu.pipeline.queues import QueueLimits
from waiting import PATIENCE_SECONDS

ONE = QueueLimits(items=1)


class BoomError(Exception):
    pass


def our_threads() -> list[str]:
    return left_threads("vitascope-")


def watched(action: Callable[[], Any]) -> Any:
    """Run an action in a thread that must finish; a deadlock fails the test with the stacks of all threads."""
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


class ClosingSource:
    """Counts up without end (or to ``count``); records where its generator was closed."""

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
