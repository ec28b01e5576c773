"""Tests of arrays whose memory is reused from frame to frame."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np

from vitascope.gpu.memory.host_arrays import RecycledArrays, scratch_array

SHAPE = (2, 3, 64, 64)


def test_a_use_has_one_memory_as_large_as_its_largest_array():
    first = scratch_array("test", (3, 5))
    assert (first.shape, first.dtype, first.flags.c_contiguous) == ((3, 5), np.float32, True)
    first[:] = 7
    assert np.shares_memory(scratch_array("test", (3, 5)), first)
    assert not np.shares_memory(scratch_array("test of others", (3, 5)), first)
    smaller = scratch_array("test", (4, 2, 2), np.uint8)
    assert (smaller.shape, smaller.dtype, smaller.flags.c_contiguous) == ((4, 2, 2), np.uint8, True)
    assert np.shares_memory(smaller, first)
    larger = scratch_array("test", (30, 5))
    assert not np.shares_memory(larger, first)
    assert np.shares_memory(scratch_array("test", (3, 5)), larger)


def test_what_is_very_large_is_not_held():
    large = (33 << 20,)
    assert not np.shares_memory(
        scratch_array("large", large, np.uint8), scratch_array("large", large, np.uint8)
    )


def test_threads_have_arrays_of_their_own():
    mine = scratch_array("test", (2, 2))
    with ThreadPoolExecutor(1) as thread:
        other = thread.submit(scratch_array, "test", (2, 2)).result()
    assert not np.shares_memory(other, mine)


def address(array):
    return array.__array_interface__["data"][0]


def test_memory_is_given_again_once_the_last_view_is_gone():
    arrays = RecycledArrays()
    first = arrays.empty(SHAPE)
    assert (first.shape, first.dtype, first.flags.c_contiguous, first.flags.writeable) == (
        SHAPE,
        np.float32,
        True,
        True,
    )
    where = address(first)
    part = first[1, :, ::2].reshape(3, -1, 64)[:1]
    part[:] = 5
    del first
    other = arrays.empty(SHAPE)  # a view of a view still exists
    assert address(other) != where
    other[:] = 0
    assert (part == 5).all()
    del part
    assert address(arrays.empty(SHAPE)) == where


def test_memory_of_another_size_goes():
    arrays = RecycledArrays()
    del_me = arrays.empty(SHAPE)
    del del_me
    held = arrays.empty(SHAPE, np.uint8)
    assert held.nbytes == np.prod(SHAPE)
    assert len(arrays._free) == 0


def test_few_arrays_wait():
    arrays = RecycledArrays()
    many = [arrays.empty(SHAPE) for _ in range(20)]
    many.clear()
    assert 1 <= len(arrays._free) <= 4


def test_threads_never_hold_the_same_memory():
    arrays = RecycledArrays()

    def write(number):
        for _ in range(200):
            array = arrays.empty(SHAPE)
            array[:] = number
            assert (array == number).all()
            del array

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(write, range(4)))
