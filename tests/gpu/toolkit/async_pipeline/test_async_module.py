"""Tests of a torch module as a pipeline's network: its results, and when it is recorded, with fake graphs."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import nn

from vitascope.device import Device
from vitascope.errors import DeviceMemoryError, EngineError
from vitascope.gpu.toolkit import async_model
from vitascope.gpu.toolkit import torch_module as async_module
from vitascope.gpu.toolkit.async_model import open_model
from vitascope.gpu.toolkit.torch_module import ModuleNetwork

CPU, GPU = Device("cpu", "cpu", 0), Device("cuda", "fake", 0)
BATCH = np.arange(24, dtype=np.float32).reshape(2, 3, 2, 2)


class Pair(NamedTuple):
    picture: object
    more: object


class Nested(nn.Module):
    def forward(self, x):
        return {"pair": Pair(x * 2, [x.mean((1, 2, 3)), x.to(torch.bfloat16)]), "name": 3}


def test_any_arrangement_of_tensors_comes_out_as_it_went_in() -> None:
    found = ModuleNetwork(Nested(), CPU, cuda_graphs=True)(BATCH)
    assert found["name"] == 3
    assert isinstance(found["pair"], Pair)
    np.testing.assert_array_equal(found["pair"].picture, BATCH * 2)
    mean, back = found["pair"].more
    np.testing.assert_allclose(mean, BATCH.mean((1, 2, 3)))
    assert back.dtype == torch.float32  # NumPy and CuPy do not know bfloat16


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_a_module_gets_its_own_precision_and_no_gradients(dtype) -> None:
    class Echo(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(1, dtype=dtype))
            self.train()

        def forward(self, x):
            assert x.dtype == dtype
            assert not self.training
            return x * self.weight

    network = ModuleNetwork(Echo(), CPU, cuda_graphs=True)
    assert network.dtype == ("float16" if dtype == torch.float16 else "float32")
    assert not network(BATCH.astype(network.dtype)).requires_grad
    network.close()
    with pytest.raises(EngineError, match="was closed"):
        network(BATCH.astype(network.dtype))


class StandIn:
    """Replaces the used part of ``TorchEngine``; a recorded call fails on demand."""

    made: list[StandIn]
    error: Exception | None = None

    def __init__(self, module, *, cuda_graph, device, **more) -> None:
        assert device == "cuda:0"
        self.module, self.cuda_graph = module, cuda_graph
        self.calls, self.shapes, self.is_closed = 0, set(), False
        self.made.append(self)

    @property
    def plan_count(self):
        return len(self.shapes)

    def run_tensors(self, inputs):
        self.calls += 1
        if self.cuda_graph and self.error is not None:
            raise self.error
        if self.cuda_graph and inputs[0].shape in self.shapes:
            return (inputs[0] * 2,)  # replayed: the module does not run
        self.shapes.add(inputs[0].shape)
        return self.module(*inputs)

    def close(self):
        self.is_closed = True


@pytest.fixture
def engines(monkeypatch):
    made: list[StandIn] = []
    monkeypatch.setattr(StandIn, "made", made, raising=False)
    monkeypatch.setattr(StandIn, "error", None)
    monkeypatch.setattr(async_module, "TorchEngine", StandIn)
    monkeypatch.setattr(async_module, "to_kind", lambda batch, *_, **__: torch.from_numpy(batch))
    return made


class Twice(nn.Module):
    def forward(self, x):
        return {"out": x * 2}


def test_a_shape_is_recorded_when_it_is_met_a_second_time(engines) -> None:
    network = ModuleNetwork(Twice(), GPU, cuda_graphs=True)
    graphs, plain = engines
    for batch in (BATCH, BATCH[:1], BATCH, BATCH, BATCH[:1]):
        np.testing.assert_array_equal(network(batch)["out"], batch * 2)
    assert (plain.calls, graphs.calls, graphs.plan_count) == (2, 3, 2)
    network.close()
    assert graphs.is_closed
    assert plain.is_closed


def test_without_cuda_graphs_nothing_is_recorded(engines) -> None:
    network = ModuleNetwork(Twice(), GPU, cuda_graphs=False)
    (plain,) = engines
    for _ in range(3):
        network(BATCH)
    assert not plain.cuda_graph
    assert plain.calls == 3


def test_many_shapes_do_not_pile_up(engines, monkeypatch) -> None:
    monkeypatch.setattr(async_module, "_MOST_SHAPES", 3)
    network = ModuleNetwork(Twice(), GPU, cuda_graphs=True)
    for side in range(1, 9):
        network(np.zeros((1, 3, side, side), np.float32))
    assert len(network._forms) == 3


def test_when_all_graphs_are_taken_further_shapes_run_as_they_are(engines, monkeypatch) -> None:
    monkeypatch.setattr(async_module, "_MOST_GRAPHS", 2)
    network = ModuleNetwork(Twice(), GPU, cuda_graphs=True)
    graphs, plain = engines
    for _ in range(4):
        for side in (1, 2, 3):
            batch = np.full((1, 3, side, side), side, np.float32)
            np.testing.assert_array_equal(network(batch)["out"], batch * 2)
    assert {shape[-1] for shape in graphs.shapes} == {1, 2}
    assert (graphs.calls, plain.calls) == (6, 3 + 3)  # each first call, and all calls of the third shape


def test_switches_stay_the_users() -> None:
    module = nn.Conv2d(3, 4, 1)
    seen = []
    module.register_forward_hook(lambda *_: seen.append(torch.backends.cudnn.deterministic))
    with torch.backends.cudnn.flags(enabled=True, deterministic=True):
        ModuleNetwork(module, CPU, cuda_graphs=True)(BATCH)
    assert seen == [True]


def test_a_module_that_cannot_be_recorded_says_what_to_do(engines, monkeypatch) -> None:
    network = ModuleNetwork(Twice(), GPU, cuda_graphs=True)
    network(BATCH)
    monkeypatch.setattr(StandIn, "error", EngineError("module: inference failed: capturing"))
    with pytest.raises(EngineError, match=r"capturing; .* set cuda_graphs to False"):
        network(BATCH)
    monkeypatch.setattr(StandIn, "error", DeviceMemoryError("too little"))
    with pytest.raises(DeviceMemoryError, match=r"^too little$"):
        network(BATCH)


@pytest.mark.parametrize(("cuda_graphs", "rows"), [(True, [1, 2, 4, 4, 6, 6]), (False, [1, 2, 3, 4, 5, 6])])
def test_batches_are_filled_up_so_that_few_sizes_are_recorded(
    engines, monkeypatch, cuda_graphs, rows
) -> None:
    monkeypatch.setattr(async_model, "select_device", lambda *_, **__: GPU)
    model = open_model(Twice(), device="cuda", device_id=0, batch_size=6, cuda_graphs=cuda_graphs)
    pictures = list(np.random.default_rng(0).random((6, 3, 2, 2), np.float32))
    for count in range(1, 7):
        batch, found = model.gather(pictures[:count], label="frames")
        assert (found, len(batch)) == (rows[count - 1], rows[count - 1])
        output = model.compute(batch, label="frames")
        parts = model.take_apart(output, rows=found, count=count, label="frames")
        np.testing.assert_array_equal([part["out"] for part in parts], np.stack(pictures[:count]) * 2)
    model.close()
    assert all(engine.is_closed for engine in engines)


def test_on_a_cpu_batches_stay_as_they_are() -> None:
    model = open_model(nn.Identity(), device="cpu", device_id=0, batch_size=6)
    assert model.gather([BATCH[0]] * 5, label="frames")[1] == 5


@pytest.mark.cuda
def test_a_recorded_module_gives_what_the_module_gives() -> None:
    import cupy

    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 2, 1))
    network = ModuleNetwork(module, GPU, cuda_graphs=True)
    batches = [cupy.random.default_rng(n).random((4, 3, 32, 32), cupy.float32) for n in range(4)]
    kept = [network(batch) for batch in batches]
    with torch.inference_mode():
        wanted = [module(torch.as_tensor(batch, device="cuda")) for batch in batches]
    for ours, theirs in zip(kept, wanted, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-2, atol=1e-2)
    assert network._graphs is not None
    assert network._graphs.plan_count == 1
    network.close()


@pytest.mark.cuda
def test_a_module_that_waits_for_the_gpu_needs_cuda_graphs_off() -> None:
    import cupy

    class Waits(nn.Module):
        def forward(self, x):
            return x * x.mean().item()

    batch = cupy.ones((1, 3, 4, 4), cupy.float32)
    network = ModuleNetwork(Waits(), GPU, cuda_graphs=True)
    network(batch)
    with pytest.raises(EngineError, match="set cuda_graphs to False"):
        network(batch)
    plain = ModuleNetwork(Waits(), GPU, cuda_graphs=False)
    for _ in range(2):
        assert float(plain(batch).sum()) == pytest.approx(48)
