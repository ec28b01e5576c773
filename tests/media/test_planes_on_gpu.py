"""Tests of the events of a decoder's pictures, with a fake CuPy that keeps a diary."""

from __future__ import annotations

import sys

import pytest

from fake_cupy import fake_cupy
from vitascope.media import planes
from vitascope.media.planes import ReadyEvents


@pytest.fixture
def cupy(monkeypatch):
    module = fake_cupy()
    module.cuda.Stream.null = module.cuda.get_current_stream()
    module.cuda.Stream.record = lambda stream, event: event.record(stream)
    monkeypatch.setitem(sys.modules, "cupy", module)
    monkeypatch.setattr(planes, "_READY_EVENTS", 4)
    return module


def test_events_are_recorded_on_the_stream_that_ffmpeg_copies_on(cupy):
    ready = ReadyEvents(1)
    event = ready.record()
    assert cupy.diary == [("record", 0, event.number)]
    assert cupy.device == 0  # unchanged


def test_an_event_is_used_again_only_once_it_is_the_oldest(cupy):
    ready = ReadyEvents(0)
    numbers = [ready.record().number for _ in range(10)]
    assert len(set(numbers)) == 4
    assert numbers == (numbers[:4] * 3)[:10]
    # A frame's event is that of its own picture or a later one of the same stream, never of an earlier one.
    assert [entry[2] for entry in cupy.diary] == numbers
