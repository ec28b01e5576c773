"""Check that measurements find the best batch size, through noise and within limits."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vitascope.errors import DeviceMemoryError, EngineError
from vitascope.gpu import BatchSizeOptimizer, find_optimal_batch_size


class Machine:
    """Simulates a GPU with formulas for time and memory; its clock only moves while it computes."""

    def __init__(self, latency_ms, *, holds=1000, noise=(1.0,), frame=0.0):
        self.latency_ms, self.holds, self.noise, self.frame = latency_ms, holds, noise, frame
        self.seconds, self.rows, self.calls = 0.0, 0, []

    def __call__(self, batch):
        self.rows = len(batch)
        if self.rows > self.holds:
            raise DeviceMemoryError("too little")
        factor = self.noise[len(self.calls) % len(self.noise)]
        self.calls.append(self.rows)
        self.seconds += self.latency_ms(self.rows) * factor / 1e3
        return batch

    def get_stats(self):
        return SimpleNamespace(allocated_vram_gb=1 + self.frame * self.rows, total_vram_gb=10.0)

    def optimizer(self, **more):
        more.setdefault("device", "cpu")
        return BatchSizeOptimizer(self, np.zeros(3), timer=lambda: self.seconds, **more)


def test_the_smallest_size_that_is_as_fast_as_any():
    saturating = Machine(
        lambda size: 4 + max(size - 8, 0) * 0.5
    )  # 8 rows cost the same as one, then 0.5 ms each
    found = saturating.optimizer(max_batch_size=64).search()
    assert [one.batch_size for one in found.measurements] == [1, 2, 4, 8, 16, 32, 64]
    assert found.measurements[0].latency_ms == pytest.approx(4)
    assert found.batch_size == 8
    assert found.best.throughput_fps == pytest.approx(2000)
    assert found.reason == "2000.0/s in batches of 8"


def test_a_latency_limit_is_met_and_used_up():
    machine = Machine(lambda size: 2 + 0.5 * size)
    found = machine.optimizer(latency_limit_ms=12.1, tolerance=0.0).search()
    assert found.batch_size == 20
    assert (
        next(one for one in found.measurements if one.batch_size == 32).verdict == "above the latency limit"
    )
    assert "; 21 is above the latency limit" in found.reason


def test_memory_that_runs_out_bounds_the_search():
    machine = Machine(lambda size: 10 + 0.001 * size, holds=11)
    found = machine.optimizer(tolerance=0.0).search()
    assert found.batch_size == 11
    assert {one.batch_size for one in found.measurements if one.verdict == "out of memory"} == {12, 16}
    assert max(machine.calls) == 11


def test_memory_is_bounded_by_a_share_of_it():
    machine = Machine(lambda size: 10 + 0.001 * size, frame=0.5)
    optimizer = machine.optimizer(monitor=machine, max_memory_percent=0.9, tolerance=0.0)
    assert optimizer.find_optimal_batch_size() == 16  # 1 + 16 * 0.5 = 9 of 10


def test_not_even_one_is_an_error():
    with pytest.raises(DeviceMemoryError, match="not even one request fits"):
        Machine(lambda size: 1, holds=0).optimizer().search()
    with pytest.raises(EngineError, match=r"one request takes 5\.00 ms"):
        Machine(lambda size: 5).optimizer(latency_limit_ms=1).search()


def test_other_errors_are_not_hidden():
    def broken(batch):
        raise ValueError("no")

    with pytest.raises(ValueError, match="no") as caught:
        BatchSizeOptimizer(broken, np.zeros(3), device="cpu").search()
    assert caught.value.__notes__ == ["inference_fn failed with a batch of 1"]


@settings(max_examples=40)
@given(
    outlier=st.floats(1.0, 50.0),
    wobble=st.lists(st.floats(0.99, 1.01), min_size=11, max_size=20),
)
def test_a_call_now_and_then_that_takes_much_longer_changes_nothing(outlier, wobble):
    machine = Machine(lambda size: 3 + max(size - 8, 0) * 1.0, noise=[*wobble, outlier])
    found = machine.optimizer(max_batch_size=32, rounds=11, tolerance=0.06).search()
    assert found.batch_size == 8


def test_a_real_function_on_this_machine():
    found = BatchSizeOptimizer(
        lambda batch: batch @ batch.transpose(0, 2, 1),
        np.ones((16, 16), np.float32),
        max_batch_size=8,
        rounds=3,
        device="cpu",
    ).search()
    assert found.batch_size in (1, 2, 4, 8)
    assert all(one.latency_ms > 0 and one.latency_p95_ms >= one.latency_ms for one in found.measurements)


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_batch_size": 0},
        {"rounds": 0},
        {"latency_limit_ms": 0},
        {"max_memory_percent": 90},
        {"tolerance": 1},
    ],
)
def test_limits_out_of_range_are_refused(wrong):
    with pytest.raises(ValueError):
        BatchSizeOptimizer(np.negative, np.zeros(3), device="cpu", **wrong)


@pytest.mark.parametrize("kind", ["module", "callable"])
def test_the_batch_size_of_a_network_by_the_shape_of_its_input(kind):
    torch = pytest.importorskip("torch")
    seen = set()

    class Model(torch.nn.Module):
        def forward(self, pictures):
            seen.add(tuple(pictures.shape[1:]))
            return pictures * 2

    model = Model() if kind == "module" else lambda batch: (seen.add(batch.shape[1:]), batch * 2)[1]
    assert 1 <= find_optimal_batch_size(model, (3, 8, 8), max_batch_size=4, device="cpu") <= 4
    assert seen == {(3, 8, 8)}
    with pytest.raises(
        ValueError, match=r"max_memory_percent is 1\.5, expected a number above 0 and up to 1"
    ):
        find_optimal_batch_size(model, (3, 8, 8), 1.5, device="cpu")


def test_a_network_that_runs_out_of_memory_is_given_less():
    def model(batch):
        if len(batch) > 2:
            raise MemoryError("too little")
        return batch

    assert find_optimal_batch_size(model, (3, 8, 8), max_batch_size=64, device="cpu") <= 2
