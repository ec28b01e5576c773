"""Tests of repeating a video: real trends, apparent ones, and a real run."""

from __future__ import annotations

import threading
from dataclasses import replace

import numpy as np
import pytest

from clips import write_clip
from left_threads import left_threads
from scripted_soaks import MB, soak_of
from vitascope.bench import soak as soak_module
from vitascope.bench.measured_run import ALONE
from vitascope.bench.soak import Soak, soak
from vitascope.config import load_settings
from vitascope.errors import InputError, UsageError
from vitascope.segmentation.writing import FramesUntilDamage


def test_a_steady_run_has_no_trends():
    found = soak_of()
    assert found.too_short is None
    assert found.memory_growth("host") is None
    assert found.latency_growth() is None
    assert found.pace_growth() is None
    assert found.latency() == pytest.approx((0.04, 0.04))
    assert found.memory("host") == pytest.approx((400 * MB, 400 * MB), rel=0.01)
    assert found.memory("gpu") is None
    assert found.memory_growth("gpu") is None
    assert found.lost_count == 0


def test_a_leak_is_found_with_its_slope():
    growth = soak_of(400 * MB + np.linspace(0, 100 * MB, 200)).memory_growth("host")
    assert growth is not None
    assert growth.slope == pytest.approx(100 * MB / 1000, rel=0.1)


@pytest.mark.parametrize(
    "sizes",
    [
        400 * MB - 150 * MB * np.exp(-np.linspace(0, 12, 200)),  # allocators fill up at first
        np.where(np.arange(200) < 90, 300 * MB, 400 * MB),  # one jump
        400 * MB + 20 * MB * np.sin(np.linspace(0, 60, 200)),  # up and down
        400 * MB - np.linspace(0, 100 * MB, 200),
    ],
    ids=["warm-up", "a jump", "a wave", "shrinking"],
)
def test_growth_that_stops_is_no_leak(sizes):
    assert soak_of(sizes).memory_growth("host") is None


def test_frames_that_come_later_and_later():
    found = soak_of(latency=lambda share: 0.04 + 0.04 * share)
    growth = found.latency_growth()
    assert growth is not None
    assert growth.total == pytest.approx(0.03, rel=0.2)
    early, late = found.latency()
    assert late > 1.3 * early
    assert found.pace_growth() is None


def test_a_run_that_becomes_slower():
    assert soak_of(rate=lambda share: 30 - 10 * share).pace_growth() is not None
    assert soak_of(rate=lambda share: 30 + 10 * share).pace_growth() is None


def test_few_passes_say_nothing_of_trends_but_a_long_time_does():
    many = soak_of()
    few = replace(many, rests=many.rests[:10], seconds=20.0)
    assert few.too_short == "10 passes over the video in 20 s; a trend needs 64, or an hour"
    assert replace(few, seconds=4000.0).too_short is None
    assert replace(few, seconds=4000.0).memory("host") == many.memory("host"), "looks at all times stand in"


def test_a_pass_that_lost_frames():
    assert replace(soak_of(), pass_frames=(24, 24, 22, 23)).lost_count == 3


def test_nothing_was_seen():
    empty = Soak(seconds=5.0, pass_frames=(), damaged_count=0, dropped_count=0, looks=(), rests=())
    assert (empty.frame_count, empty.lost_count) == (0, 0)
    assert (
        empty.memory("host")
        is empty.latency()
        is empty.latency_growth()
        is empty.memory_growth("host")
        is None
    )


@pytest.fixture
def settings():
    return load_settings(profile="fast", flags=ALONE)


def test_a_real_film_is_run_until_the_time_is_over(tmp_path, settings, monkeypatch):
    monkeypatch.setattr(soak_module, "_SHORTEST_SECONDS", 2.0)
    found = soak(settings, write_clip(tmp_path / "in.mp4", frame_count=6), seconds=2.0)
    assert 2.0 <= found.seconds < 60.0
    assert found.pass_frames
    assert set(found.pass_frames) == {6}
    assert found.frame_count >= sum(found.pass_frames)
    assert (found.damaged_count, found.dropped_count, found.lost_count) == (0, 0, 0)
    assert len(found.rests) == len(found.pass_frames)
    assert found.rests[-1].resident_bytes > 1e7
    frames = [look.frames for look in found.looks]
    assert frames == sorted(frames)
    assert found.latency()[1] > 0
    assert left_threads("vitascope-soak") + left_threads("vitascope-limit") == []


def test_what_cannot_be_run(tmp_path, settings):
    with pytest.raises(InputError):
        soak(settings, tmp_path / "missing.mp4", seconds=5.0)
    assert not left_threads("vitascope-soak")


@pytest.mark.parametrize("seconds", [0.0, 4.9, 1e9, float("nan")])
def test_times_that_are_out_of_range(tmp_path, settings, seconds):
    with pytest.raises(UsageError, match="5 s to 30 days"):
        soak(settings, tmp_path / "in.mp4", seconds=seconds)


def test_a_pass_whose_time_is_over_before_its_first_frame_is_none(tmp_path, settings, monkeypatch):
    film = write_clip(tmp_path / "in.mp4", frame_count=6)
    give = FramesUntilDamage.__iter__
    passes = []

    def second_is_late(frames):
        passes.append(frames)
        return give(frames) if len(passes) == 1 else stuck_until_the_time_is_over()

    def stuck_until_the_time_is_over():
        while left_threads("vitascope-limit"):
            threading.Event().wait(0.01)
        yield from ()

    monkeypatch.setattr(FramesUntilDamage, "__iter__", second_is_late)
    monkeypatch.setattr(soak_module, "_SHORTEST_SECONDS", 2.0)
    found = soak(settings, film, seconds=2.0)
    assert found.pass_frames == (6,)
    assert (found.frame_count, found.lost_count, found.dropped_count) == (6, 0, 0)


def test_a_part_of_the_film_without_pictures_is_an_error(tmp_path):
    film = write_clip(tmp_path / "in.mp4", frame_count=6)
    late = load_settings(profile="fast", flags={**ALONE, "video.start_seconds": 3})
    with pytest.raises(InputError, match="no frame between 3 s and the end"):
        soak(late, film, seconds=5.0)
