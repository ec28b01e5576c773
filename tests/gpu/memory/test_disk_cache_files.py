"""Check that the cache survives damaged files, full disks, crashes and emptied folders."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import numpy as np
import pytest
from kept_arrays import file_of, noise

from vitascope.errors import OutputError
from vitascope.gpu.memory.disk_cache import CacheManager


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("damage", [cut, empty, flip])
def test_a_damaged_entry_is_a_miss_and_goes(cache: CacheManager, damage) -> None:
    cache.put("k", noise(1))
    damage(file_of(cache))
    assert cache.get("k") is None
    stats = cache.stats()
    assert (stats.damaged, stats.misses, stats.disk_entries) == (1, 1, 0)
    assert not list(cache.folder.rglob("*.vsarray"))
    cache.put("k", noise(2))
    np.testing.assert_array_equal(cache.get("k"), noise(2))


def test_an_entry_of_another_name_is_not_taken_for_this_one(cache: CacheManager) -> None:
    cache.put("a", noise(1))
    content = file_of(cache).read_bytes()
    cache.put("b", noise(2))
    for path in cache.folder.rglob("*.vsarray"):
        path.write_bytes(content)
    assert cache.get("b") is None
    assert cache.get("a") is not None


def test_a_write_that_fails_leaves_the_earlier_entry(
    cache: CacheManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.put("k", noise(1))

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", full)
        with pytest.raises(OutputError, match="No space left"):
            cache.put("k", noise(2))
    np.testing.assert_array_equal(cache.get("k"), noise(1))
    assert not list(cache.folder.rglob("*.part"))


def test_the_folder_may_be_emptied_meanwhile(cache: CacheManager) -> None:
    cache.put("k", noise(1))
    shutil.rmtree(cache.folder)
    assert cache.get("k") is None
    assert cache.put("k", noise(2))
    assert cache.stats().disk_entries == 1


def test_what_a_crashed_writer_left_is_swept(cache: CacheManager) -> None:
    cache.put("k", noise(1))
    old, new = (file_of(cache).parent / name for name in ("old.part", "new.part"))
    for path in (old, new):
        path.write_bytes(b"half")
    os.utime(old, (time.time() - 7200,) * 2)
    (cache.folder / "lock").write_bytes(b"torn")
    with CacheManager(folder=cache.folder) as later:
        assert (old.exists(), new.exists()) == (False, True)
        assert later.stats().disk_entries == 1


def test_a_folder_that_cannot_be_made_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="file"):
        CacheManager(folder=tmp_path / "file")
