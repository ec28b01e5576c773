"""Arrays that a thread computes in, frame after frame."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np

from vitascope.gpu.memory.scratch import scratch_array


def test_a_use_has_one_array_until_it_asks_for_another():
    first = scratch_array("test", (3, 5))
    first[:] = 7
    assert scratch_array("test", (3, 5)) is first
    assert scratch_array("test of others", (3, 5)) is not first
    other = scratch_array("test", (3, 5), np.uint8)
    assert (other.shape, other.dtype, other.flags.c_contiguous) == ((3, 5), np.uint8, True)
    assert scratch_array("test", (4, 5), np.uint8).shape == (4, 5)


def test_threads_have_arrays_of_their_own():
    mine = scratch_array("test", (2, 2))
    with ThreadPoolExecutor(1) as thread:
        assert thread.submit(scratch_array, "test", (2, 2)).result() is not mine
