"""Tests of stored mattes: reused whole or in part, and never beyond what they are valid for."""

from __future__ import annotations

import json

import numpy as np
import pytest

from vitascope.errors import OutputError
from vitascope.gpu.memory.disk_cache import CacheManager
from vitascope.models.network import MatteEstimate, NetworkInput
from vitascope.segmentation.matting.cache import MatteCache, stretch_key

WANTED = NetworkInput((8, 12), "NCHW", (0.1, 0.2, 0.3))


def matte(number):
    offset = np.random.default_rng(number).random((1, 1, 8, 12), np.float32)
    return MatteEstimate(gain=np.full_like(offset, 0.5), offset=offset)


def opened(folder, *, end=None, keeps_memory=False, gigabytes=1.0, key="k"):
    entries = CacheManager(disk_cache_gb=gigabytes, folder=folder)
    return MatteCache(
        entries, key, end_seconds=end, capacity_bytes=int(gigabytes * 1e9), keeps_memory=keeps_memory
    )


def fill(cache, frames, *, cuts=(), memory_after=(), finish=True, first=0):
    for number in range(first, frames):
        memory = [np.full(3, number, np.float32)] if number + 1 in memory_after else None
        cache.keep(matte(number), starts_shot=number in cuts, wanted=WANTED, memory=memory)
    if finish:
        cache.finish(is_whole=True)


def check(cache, frames):
    for number in range(frames):
        kept, expected = cache.take(number), matte(number)
        assert kept is not None
        assert np.array_equal(kept.gain * 0.5 + kept.offset, expected.gain * 0.5 + expected.offset)


def test_a_second_run_has_everything(tmp_path):
    first = opened(tmp_path)
    assert (first.known_frames, first.network_input) == (0, None)
    fill(first, 100, cuts=(0, 40, 99))
    second = opened(tmp_path)
    assert second.is_complete
    assert second.known_frames == 100
    assert second.network_input == WANTED
    assert [number for number in range(101) if second.starts_shot(number)] == [0, 40, 99]
    assert second.covers(99)
    assert not second.covers(100)
    check(second, 100)
    assert opened(tmp_path, key="another").known_frames == 0


def test_a_shorter_stretch_is_covered_and_a_longer_one_goes_on(tmp_path):
    fill(opened(tmp_path, end=4.0), 100)
    assert opened(tmp_path, end=3.0).is_complete
    assert opened(tmp_path, end=4.0).is_complete
    longer = opened(tmp_path, end=None)
    assert not longer.is_complete
    assert longer.known_frames == 100
    fill(longer, 150, first=100)
    whole = opened(tmp_path)
    assert whole.is_complete
    check(whole, 150)


def test_with_a_memory_a_run_goes_on_from_where_there_is_one(tmp_path):
    broken_off = opened(tmp_path, keeps_memory=True)
    fill(broken_off, 90, memory_after=(50,), finish=False)
    again = opened(tmp_path, keeps_memory=True)
    assert again.known_frames == 50
    assert not again.is_complete
    assert [array.tolist() for array in again.memory()] == [[49.0] * 3]
    fill(again, 120, first=50, memory_after=(80, 110), finish=False)
    third = opened(tmp_path, keeps_memory=True)
    assert third.known_frames == 110
    assert third.memory()[0][0] == 109
    check(third, 110)


def test_a_memory_has_no_arrays_of_a_larger_one_before_it(tmp_path):
    broken_off = opened(tmp_path, keeps_memory=True)
    for number in range(3):
        memory = [np.full(3, number, np.float32)] * (3 - number)
        broken_off.keep(matte(number), starts_shot=False, wanted=WANTED, memory=memory)
    assert [array.tolist() for array in opened(tmp_path, keeps_memory=True).memory()] == [[2.0] * 3]


def test_without_a_memory_a_broken_run_leaves_its_records(tmp_path):
    fill(opened(tmp_path), 90, finish=False)
    again = opened(tmp_path)
    assert again.known_frames == 64
    assert again.memory() == []
    check(again, 64)


def test_what_is_damaged_or_gone_is_told(tmp_path):
    fill(opened(tmp_path), 100)
    CacheManager(folder=tmp_path).put("k/record/32", np.zeros(5, np.uint8))
    cache = opened(tmp_path)
    assert cache.take(31) is not None
    assert cache.take(32) is None
    assert cache.take(64) is not None
    CacheManager(folder=tmp_path).put("k/record/0", np.zeros(5, np.uint8))
    assert opened(tmp_path).known_frames == 0


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        json.dumps({"frames": 3}).encode(),
        b'{"network": {}, "x": 1}',
        pytest.param(b"[" * 100_000, id="nested"),
    ],
)
def test_a_manifest_of_something_else_is_no_manifest(tmp_path, content):
    CacheManager(folder=tmp_path).put("k/manifest", content)
    cache = opened(tmp_path)
    assert cache.known_frames == 0
    fill(cache, 40)
    assert opened(tmp_path).is_complete


def test_a_film_that_does_not_fit_keeps_its_beginning(tmp_path):
    cache = opened(tmp_path, gigabytes=70e3 / 1e9)
    fill(cache, 1000)
    assert cache.notes == ["the cache is full after 64 frames; raise processing.cache_size_gb to store more"]
    again = opened(tmp_path, gigabytes=70e3 / 1e9)
    assert again.known_frames == 64
    assert not again.is_complete
    check(again, 64)


def test_a_disk_that_fails_costs_the_cache_and_not_the_run(tmp_path, monkeypatch):
    cache = opened(tmp_path)

    def fail(*_):
        raise OutputError("no space left")

    monkeypatch.setattr(CacheManager, "put", fail)
    fill(cache, 100)
    assert cache.notes == ["no space left; continued without the cache"]


def test_keys_tell_everything_apart():
    keys = {
        stretch_key("film", size=1, name="a"),
        stretch_key("film", size=2, name="a"),
        stretch_key("other", size=1, name="a"),
        stretch_key("film", size=1, name="b"),
    }
    assert len(keys) == 4
    assert stretch_key("film", name="a", size=1) in keys
