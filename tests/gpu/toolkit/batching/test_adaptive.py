"""Check that the batch size follows memory and latency, and that no frame is lost in a shortage."""

from __future__ import annotations

import weakref
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vitascope.errors import DeviceMemoryError, EngineError
from vitascope.gpu import AdaptiveBatchSizer
from vitascope.gpu.memory.shortage import is_out_of_memory


class Memory:
    """Simulates a GPU on which weights take some memory, and each frame of a batch some more."""

    def __init__(self, *, weights=2.0, frame=0.5, total=10.0):
        self.weights, self.frame, self.total = weights, frame, total
        self.batch_size = 0
        self.asked = 0

    def get_stats(self):
        self.asked += 1
        used = self.weights + self.frame * self.batch_size
        return SimpleNamespace(allocated_vram_gb=used, total_vram_gb=self.total)


def settle(sizer, memory, *, steps=40, latency_ms=None):
    sizes = []
    for _ in range(steps):
        memory.batch_size = sizer.batch_size
        sizes.append(sizer.adjust_batch_size(latency_ms and latency_ms(sizer.batch_size)))
    return sizes


def test_it_grows_to_what_memory_holds_and_stays_there():
    memory = Memory()
    sizes = settle(
        AdaptiveBatchSizer(initial_batch_size=4, target_utilization=0.85, max_batch_size=64, monitor=memory),
        memory,
    )
    assert sizes[-20:] == [13] * 20  # 2 + 13 * 0.5 = 8.5 of 10
    assert max(sizes) == 13


def test_the_guide_s_call_without_an_initial_size():
    assert AdaptiveBatchSizer(max_batch_size=2).batch_size == 2
    assert AdaptiveBatchSizer().batch_size == 4


@pytest.mark.parametrize(("most", "size"), [(99, 8), (8, 8), (3, 3), (0, 2)])
def test_a_bound_that_comes_later_is_kept_to(most, size):
    memory = Memory(frame=0.01)
    sizer = AdaptiveBatchSizer(8, max_batch_size=8, min_batch_size=2, monitor=memory)
    sizer.at_most(most)
    assert sizer.batch_size == size
    assert settle(sizer, memory)[-1] == size


def test_it_shrinks_when_others_take_the_memory():
    memory = Memory()
    sizer = AdaptiveBatchSizer(8, max_batch_size=8, monitor=memory)
    settle(sizer, memory)
    assert sizer.batch_size == 8
    memory.weights = 6.0
    assert settle(sizer, memory)[-1] == 5
    memory.weights = 2.0
    assert settle(sizer, memory)[-1] == 8


@given(
    weights=st.floats(0, 8), frame=st.floats(0.001, 4), most=st.integers(1, 100), target=st.floats(0.1, 1.0)
)
def test_it_settles_within_the_target_wherever_one_frame_does(weights, frame, most, target):
    memory = Memory(weights=weights, frame=frame)
    sizer = AdaptiveBatchSizer(1, target, most, monitor=memory)
    last = settle(sizer, memory, steps=120)[-1]
    assert 1 <= last <= most
    assert last == 1 or weights + last * frame <= target * 10 + 1e-5 * frame
    best = min(most, max(int((target * 10 - weights) / frame + 1e-9), 1))
    assert last >= best - 1


def test_latency_bounds_it():
    memory = Memory(frame=0.0)
    sizer = AdaptiveBatchSizer(1, max_batch_size=64, target_latency_ms=20, monitor=memory)
    sizes = settle(sizer, memory, latency_ms=lambda size: 5 + size)
    assert sizes[-1] == 14  # the last step is 14 * 20 / 19, again 14: latency is taken as proportional
    assert max(sizes) <= 16
    assert settle(sizer, memory, latency_ms=lambda size: 10 * size)[-1] == 2


def fails_above(most, error=DeviceMemoryError):
    calls = []

    def infer(batch):
        calls.append(list(batch))
        if len(batch) > most:
            raise error("CUDA out of memory")
        return [frame * 10 for frame in batch]

    return infer, calls


@pytest.mark.parametrize("error", [DeviceMemoryError, MemoryError, torch.OutOfMemoryError, RuntimeError])
def test_no_frame_is_lost_when_memory_runs_out(error):
    told = []
    infer, calls = fails_above(5, error)
    sizer = AdaptiveBatchSizer(
        4, max_batch_size=32, monitor=Memory(frame=0.0), on_shortage=lambda error, size: told.append(size)
    )
    assert sizer.process(iter(range(50)), infer) == [n * 10 for n in range(50)]
    # 8 fails; half of it works; 6, between them, fails; 5 remains.
    assert [len(call) for call in calls[:7]] == [4, 8, 4, 4, 6, 3, 3]
    assert told == [4, 3]
    assert sizer.batch_size == 5
    assert sizer.shortage_count == 2


@given(
    frames=st.integers(0, 60),
    first=st.integers(1, 16),
    limits=st.lists(st.integers(1, 20), min_size=1),
    pad=st.booleans(),
)
def test_each_frame_gets_its_result_whatever_fits_when(frames, first, limits, pad):
    done = []

    def infer(batch):
        if len(batch) > limits[len(done) % len(limits)]:
            raise DeviceMemoryError("too little")
        done.append(len(batch))
        assert not pad or len(batch) == sizer.batch_size
        return np.array(batch) * 10

    sizer = AdaptiveBatchSizer(first, max_batch_size=16, monitor=Memory(frame=0.0))
    assert sizer.process(range(frames), infer, pad=pad) == [n * 10 for n in range(frames)]


def test_a_short_last_batch_is_filled_up_on_request():
    infer, calls = fails_above(4)
    sizer = AdaptiveBatchSizer(4, max_batch_size=4, monitor=Memory(frame=0.0))
    assert sizer.process([1, 2, 3, 4, 5], infer, pad=True) == [10, 20, 30, 40, 50]
    assert calls == [[1, 2, 3, 4], [5, 5, 5, 5]]


def test_a_single_frame_that_does_not_fit_is_an_error_and_so_is_any_other():
    infer, _ = fails_above(0)
    with pytest.raises(DeviceMemoryError):
        AdaptiveBatchSizer(4, monitor=Memory()).process([1, 2], infer)
    infer, calls = fails_above(0, ValueError)
    with pytest.raises(ValueError, match="out of memory"):
        AdaptiveBatchSizer(4, monitor=Memory()).process([1, 2], infer)
    assert len(calls) == 1
    with pytest.raises(EngineError, match="returned 1 rows for a batch of 2"):
        AdaptiveBatchSizer(4, monitor=Memory()).process([1, 2], lambda batch: [0])


def test_a_failed_call_s_arrays_are_let_go_before_it_is_repeated():
    held = []

    def infer(batch):
        assert not held or held[-1]() is None
        scratch = np.zeros(1000)
        held.append(weakref.ref(scratch))
        if len(batch) > 1:
            raise MemoryError
        return [scratch[0] for _ in batch]

    assert AdaptiveBatchSizer(4, monitor=Memory(frame=0.0)).process(range(4), infer) == [0.0] * 4


def test_a_size_that_failed_is_tried_again_after_a_while():
    memory = Memory(frame=0.0)
    sizer = AdaptiveBatchSizer(8, max_batch_size=8, monitor=memory)
    sizer.shrink(DeviceMemoryError("too little"), 8)
    assert settle(sizer, memory, steps=250)[-1] == 7
    assert settle(sizer, memory, steps=10)[-1] == 8


def test_one_that_does_not_grow_asks_nobody():
    memory = Memory()
    infer, _ = fails_above(4)
    sizer = AdaptiveBatchSizer(8, max_batch_size=8, growing=False, monitor=memory)
    sizer.process(range(64), infer)
    assert sizer.batch_size == 4
    assert memory.asked == 0


def test_what_says_that_memory_ran_out():
    assert is_out_of_memory(RuntimeError("cuBLAS failed: CUBLAS_STATUS_ALLOC_FAILED"))
    assert not is_out_of_memory(RuntimeError("shapes differ"))
    assert not is_out_of_memory(KeyError("out of memory"))


@pytest.mark.parametrize(
    "wrong",
    [
        {"initial_batch_size": 0},
        {"initial_batch_size": 5, "max_batch_size": 4},
        {"min_batch_size": 5, "max_batch_size": 4},
        {"target_utilization": 0},
        {"target_utilization": 85},
        {"target_latency_ms": 0},
        {"initial_batch_size": 4.5},
    ],
)
def test_figures_out_of_range_are_refused(wrong):
    with pytest.raises(ValueError):
        AdaptiveBatchSizer(**wrong)
