"""Tests of a run that another thread ends as Ctrl-C would."""

from __future__ import annotations

import itertools
import threading

import pytest

from vitascope.gpu.pipeline.pipeline import Pipeline
from vitascope.gpu.pipeline.stages import Map, Sink, Source


def endless(taken):
    return Pipeline([Source("count", itertools.count()), Map("same", lambda n: n), Sink("take", taken)])


def test_a_run_raises_what_ctrl_c_raises():
    begun = threading.Event()
    pipeline = endless(lambda _: begun.set())

    def interrupt():
        assert begun.wait(10)
        pipeline.interrupt()

    other = threading.Thread(target=interrupt)
    other.start()
    with pytest.raises(KeyboardInterrupt):
        pipeline.run()
    other.join()
    report = pipeline.snapshot()
    assert report.finished
    assert report.stopped
    assert not [thread for thread in threading.enumerate() if "count" in thread.name]


def test_also_before_it_runs():
    pipeline = endless(lambda _: None)
    pipeline.interrupt()
    with pytest.raises(KeyboardInterrupt):
        pipeline.run()


def test_after_the_end_it_is_too_late():
    pipeline = Pipeline([Source("count", range(3)), Sink("take", lambda _: None)])
    assert pipeline.run().items == 3
    pipeline.interrupt()
    assert not pipeline.snapshot().stopped
