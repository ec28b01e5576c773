"""A pipeline that is stopped after so many seconds of work; opening files and networks does not count."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from vitascope.gpu.pipeline.pipeline import Pipeline
from vitascope.segmentation.segmenter import Started

__all__ = ["stopping_after"]


@contextmanager
def stopping_after(seconds: float) -> Iterator[Callable[[Started], None]]:
    """What a segmenter's ``on_start`` takes, so that the run ends in good order when its time is over.

    Args:
        seconds: From the first frame; a shorter film ends earlier.
    """
    timers: list[threading.Timer] = []

    def start_clock(started: Started) -> None:
        assert isinstance(started.pipeline, Pipeline)  # the work is not shared among processes
        timer = threading.Timer(seconds, started.pipeline.stop)
        timer.name = "vitascope-limit"
        timers.append(timer)
        timer.start()

    try:
        yield start_clock
    finally:
        for timer in timers:
            timer.cancel()
            timer.join()
