"""Arrays that a thread computes in, frame after frame."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np

from vitascope.gpu.memory.scratch import scratch_array


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
