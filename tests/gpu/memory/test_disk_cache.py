"""Check that arrays come back by key, and that the cache stays below its limit."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from kept_arrays import file_of, kib, noise

from vitascope.gpu.memory.disk_cache import CacheManager, DamagedEntryError, pack_array, unpack_array

PLAIN = st.one_of(
    arrays.scalar_dtypes(),
    arrays.array_dtypes(max_size=3),
    st.just(np.dtype([("a", "u1"), ("b", "f8", (2,))], align=True)),
)


# --- what is put comes back ----------------------------------------------------------------------------------------


@given(
    name=st.text(st.characters(), max_size=9),
    array=arrays.arrays(PLAIN, arrays.array_shapes(min_dims=0, min_side=0)),
)
@settings(max_examples=100, deadline=None)
def test_any_plain_array_survives_its_file(name: str, array: np.ndarray) -> None:
    content = b"".join(pack_array(name, array))
    back = unpack_array(name, content)
    assert (back.dtype, back.shape) == (array.dtype, array.shape)
    assert back.tobytes() == array.tobytes()
    assert not back.flags.writeable


@given(data=st.data(), flat=st.booleans())
@settings(max_examples=100, deadline=None)
def test_any_change_of_a_file_is_noticed(data: st.DataObject, flat: bool) -> None:
    array = np.zeros(9000, np.uint8) if flat else noise(0, 300)
    content = bytearray(b"".join(pack_array("key", array)))
    where = data.draw(st.integers(0, len(content) - 1))
    content[where] ^= data.draw(st.integers(1, 255))
    with pytest.raises(DamagedEntryError):
        unpack_array("key", bytes(content))
    with pytest.raises(DamagedEntryError):
        unpack_array("key", bytes(content[:where]))


def test_views_of_any_order_come_back_dense(cache: CacheManager) -> None:
    picture = noise(1, 600).reshape(20, 30)
    for number, view in enumerate([picture[::2, ::-3], picture.T, np.asfortranarray(picture), picture[3, 4]]):
        cache.put(str(number), view)
        back = cache.get(str(number))
        np.testing.assert_array_equal(back, view)
        assert back.shape == np.shape(view)
        assert back.flags.c_contiguous


def test_bytes_come_back_as_bytes_of_an_array(cache: CacheManager) -> None:
    for content in (b"", b"abc", bytearray(b"abc"), memoryview(b"abc")):
        cache.put("k", content)
        assert cache.get("k").tobytes() == bytes(content)


def test_flat_arrays_are_packed_and_noise_is_not(cache: CacheManager) -> None:
    cache.put("flat", np.zeros((512, 512), np.float32))
    assert cache.stats().disk_bytes < 16 * 1024
    cache.clear()
    cache.put("noise", noise(0, 20_000))
    assert 20_000 < cache.stats().disk_bytes < 20_300


def test_the_last_one_put_counts(cache: CacheManager) -> None:
    cache.put("k", noise(1))
    cache.put("k", noise(2, 77))
    np.testing.assert_array_equal(cache.get("k"), noise(2, 77))
    assert cache.stats().disk_entries == 1


@pytest.mark.parametrize("key", ["", "../../etc/passwd", "a/b\\c", "\x00", "x" * 5000, "\ud800", "ключ"])
def test_any_string_is_a_key(cache: CacheManager, key: str) -> None:
    cache.put(key, noise(1))
    np.testing.assert_array_equal(cache.get(key), noise(1))
    assert cache.get(key + "2") is None
    assert cache.folder in file_of(cache).parents


def test_another_process_and_another_day_find_it(cache: CacheManager) -> None:
    cache.put("k", noise(1))
    cache.close()
    with CacheManager(folder=cache.folder) as later:
        np.testing.assert_array_equal(later.get("k"), noise(1))
        assert later.stats().hit_rate == 1


@pytest.mark.parametrize(
    "refused", [np.array([object()]), np.array(["a"], np.dtypes.StringDType()), np.array([(1, None)], "i4,O")]
)
def test_what_would_need_pickle_is_refused(cache: CacheManager, refused: np.ndarray) -> None:
    with pytest.raises(ValueError, match="only plain values"):
        cache.put("k", refused)
    assert cache.get("k") is None


@pytest.mark.parametrize("refused", [[1, 2], None, "text", np.ma.masked_array([1], [True])])
def test_only_arrays_are_kept(cache: CacheManager, refused: object) -> None:
    with pytest.raises(TypeError, match="not "):
        cache.put("k", refused)
    for call in (cache.get, lambda key: cache.put(key, np.zeros(1))):
        with pytest.raises(TypeError, match="key is a string, not int"):
            call(17)


def test_a_pickle_in_the_folder_is_never_loaded(cache: CacheManager) -> None:
    class Bomb:
        def __reduce__(self) -> tuple[object, ...]:
            return (os.abort, ())

    cache.put("k", noise(1))
    file_of(cache).write_bytes(pickle.dumps(Bomb()))
    assert cache.get("k") is None


# --- how much is kept ----------------------------------------------------------------------------------------------


def test_what_was_not_used_for_longest_goes_first(cache: CacheManager) -> None:
    for n in range(50):
        cache.put(str(n), noise(n))
    assert cache.get("0") is not None
    for n in range(50, 70):
        cache.put(str(n), noise(n))
    assert cache.get("0") is not None
    assert cache.get("1") is None
    assert cache.get("69") is not None
    stats = cache.stats()
    assert stats.disk_bytes <= 64 * 1024
    assert stats.evicted == 70 - stats.disk_entries


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 2000), st.booleans()), max_size=40))
@settings(max_examples=20, deadline=None)
def test_neither_cap_is_ever_exceeded(
    tmp_path_factory: pytest.TempPathFactory, puts: list[tuple[int, int, bool]]
) -> None:
    folder = tmp_path_factory.mktemp("cap")
    kept: dict[str, np.ndarray] = {}
    with CacheManager(disk_cache_gb=4e-6, memory_cache_gb=3e-6, folder=folder) as cache:
        for seed, size, to_disk in puts:
            key, array = str(seed), noise(size, size)
            assert cache.put(key, array, to_disk=to_disk)
            kept[key] = array
            stats = cache.stats()
            on_disk = [path.stat().st_size for path in folder.rglob("*.vsarray")]
            assert (stats.disk_entries, stats.disk_bytes) == (len(on_disk), sum(on_disk))
            assert stats.disk_bytes <= 4000
            assert stats.memory_bytes <= 3000
            np.testing.assert_array_equal(cache.get(key), array)
        for key, array in kept.items():
            if (found := cache.get(key)) is not None:
                np.testing.assert_array_equal(found, array)
    assert not list(folder.rglob("*.part"))


def test_an_array_larger_than_the_cap_is_not_kept_nor_is_its_predecessor(cache: CacheManager) -> None:
    cache.put("k", noise(1))
    assert not cache.put("k", noise(1, 100_000))
    assert cache.get("k") is None
    assert cache.stats().too_large == 1


def test_a_smaller_cap_removes_at_once(cache: CacheManager) -> None:
    for n in range(40):
        cache.put(str(n), noise(n))
    with CacheManager(disk_cache_gb=kib(8), folder=cache.folder) as smaller:
        assert smaller.stats().disk_bytes <= 8 * 1024
        assert smaller.get("39") is not None


def test_memory_alone(tmp_path: Path) -> None:
    folder = tmp_path / "never"
    with CacheManager(memory_cache_gb=kib(4), enable_disk_cache=False, folder=folder) as cache:
        picture = noise(1)
        cache.put("k", picture)
        picture[:] = 0
        np.testing.assert_array_equal(cache.get("k"), noise(1))
        for n in range(5):
            cache.put(str(n), noise(n))
        assert cache.get("k") is None
        assert cache.get("4") is not None
        assert cache.stats().memory_entries == 4
    assert not folder.exists()
    with pytest.raises(ValueError, match="closed"):
        cache.get("k")


def test_the_disk_is_left_out_on_request(tmp_path: Path) -> None:
    with CacheManager(memory_cache_gb=kib(2), folder=tmp_path) as cache:
        cache.put("k", noise(1), to_disk=False)
        assert cache.stats().disk_entries == 0
        cache.put("other", noise(2))
        cache.put("third", noise(3))
        assert cache.get("other", use_disk=False) is not None
        assert cache.get("k") is None
        # An entry in memory alone must not be answered with older content from disk.
        cache.put("other", noise(4), to_disk=False)
        cache.put("5", noise(5))
        cache.put("6", noise(6))
        assert cache.get("other") is None


def test_a_hit_on_disk_is_in_memory_afterwards(cache: CacheManager) -> None:
    cache.put("k", noise(1))
    with CacheManager(memory_cache_gb=1e-3, folder=cache.folder) as later:
        assert later.get("k") is not None
        assert later.get("k", use_disk=False) is not None
        assert (later.stats().disk_hits, later.stats().memory_hits) == (1, 1)


@pytest.mark.parametrize("size", [-1.0, float("nan"), float("inf")])
def test_sizes_are_checked(tmp_path: Path, size: float) -> None:
    with pytest.raises(ValueError, match="disk_cache_gb"):
        CacheManager(disk_cache_gb=size, folder=tmp_path)


def test_clear_forgets_everything(cache: CacheManager) -> None:
    cache.put("k", noise(1))
    cache.clear()
    assert cache.get("k") is None
    assert cache.stats().disk_bytes == 0
    cache.put("k", noise(1))
    assert cache.get("k") is not None
