"""Tests of PyTorch networks on a GPU: CUDA graphs, streams, compiled packages."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from vitascope.errors import DeviceMemoryError, EngineError
from vitascope.gpu.engines import TensorSpec
from vitascope.gpu.engines.torch_engine import TorchEngine

pytestmark = [
    pytest.mark.cuda,
    # torch's own code warns inside the compiler; ours must not.
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"),
]

HALF, FLOAT = np.dtype(np.float16), np.dtype(np.float32)
INPUTS = (TensorSpec("x", HALF, ("n", 8, "h", "w")), TensorSpec("state", FLOAT, ("n", 1)))
OUTPUTS = (TensorSpec("y", HALF, ("n", 16, "h", "w")), TensorSpec("after", FLOAT, ("n", 1)))


class Small(torch.nn.Module):
    """Adds a convolution to the state, and returns the state's running sum."""

    def __init__(self):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.register_buffer("weight", torch.randn(16, 8, 3, 3, generator=generator).half() / 8)

    def forward(self, x, state):
        y = torch.relu(torch.nn.functional.conv2d(x, self.weight, padding=1))
        return y + state[:, :, None, None].half(), state + x.float().mean((1, 2, 3))[:, None]


def engine(**options):
    return TorchEngine(Small(), inputs=INPUTS, outputs=OUTPUTS, device="cuda:0", label="small", **options)


def arrays(size=(17, 31), count=2):
    import cupy

    rng = np.random.default_rng(count)
    return {
        "x": cupy.asarray(rng.random((count, 8, *size)).astype(np.float16)),
        "state": cupy.asarray(rng.random((count, 1), dtype=np.float32)),
    }


def expected(inputs):
    x, state = (torch.from_numpy(inputs[name].get()) for name in ("x", "state"))
    network = Small()
    network.weight = network.weight.float()
    with torch.inference_mode():
        y, after = network(x.float(), state)
    return {"y": y.numpy(), "after": after.numpy()}


def assert_right(results, inputs):
    wanted = expected(inputs)
    np.testing.assert_allclose(results["y"].get().astype(np.float32), wanted["y"], atol=4e-3)
    np.testing.assert_allclose(results["after"].get(), wanted["after"], atol=1e-5)


MODES = [
    {"mode": "eager", "cuda_graph": False},
    {"mode": "eager"},
    {"mode": "compile"},
    {"mode": "compile", "effort": "max-autotune"},
]


@pytest.mark.parametrize("options", MODES, ids=lambda options: " ".join(map(str, options.values())))
def test_every_mode_gives_the_same_and_prints_no_measurements(options, capfd):
    with engine(**options) as running:
        for count in (2, 1, 2):
            inputs = arrays(count=count)
            assert_right(running.run(inputs), inputs)
        assert running.plan_count == 2
        assert running.spec.device == "cuda"
        assert torch.cuda.get_device_name() in running.name
    printed = capfd.readouterr()
    assert printed.out == ""
    assert "AUTOTUNE" not in printed.err


@pytest.mark.slow
def test_a_package_is_built_once_and_runs_in_a_graph(tmp_path, capfd):
    for notes in (1, 0):
        with engine(mode="aot", fingerprint="one", cache_dir=tmp_path) as running:
            for _ in range(2):
                assert_right(running.run(arrays()), arrays())
            assert len(running.notes) == notes
    assert capfd.readouterr() == ("", "")


def test_results_are_not_the_graphs_memory():
    with engine() as running:
        first, inputs = running.run(arrays()), arrays()
        kept = first["y"].get()
        inputs["x"] *= 0
        running.run(inputs)
        np.testing.assert_array_equal(first["y"].get(), kept)


def test_work_is_ordered_on_the_stream_it_is_given():
    import cupy

    with engine() as running:
        inputs = arrays(size=(64, 64))
        running.run(inputs)
        stream = cupy.cuda.Stream(non_blocking=True)
        late = {name: cupy.zeros_like(array) for name, array in inputs.items()}
        with stream:
            busy = cupy.ones(1 << 26, np.float32)
            for _ in range(50):
                busy = cupy.sin(busy)
            for name, array in inputs.items():
                late[name][...] = array
        results = running.run(late, stream=stream.ptr)
        stream.synchronize()
        assert_right(results, inputs)


def test_the_default_stream_is_taken():
    with engine() as running:
        assert_right(running.run(arrays(), stream=0), arrays())


def test_host_arrays_and_strides_are_refused():
    inputs = arrays()
    with engine() as running:
        with pytest.raises(EngineError, match="host memory"):
            running.run({**inputs, "x": inputs["x"].get()})
        with pytest.raises(EngineError, match="C-contiguous"):
            running.run({**inputs, "x": inputs["x"].swapaxes(2, 3).copy().swapaxes(2, 3)})


def test_a_missing_gpu_is_an_engine_error():
    with pytest.raises(EngineError, match="cuda:99"):
        TorchEngine(Small(), inputs=INPUTS, outputs=OUTPUTS, device="cuda:99")


def test_too_little_memory_is_an_error_with_numbers_and_not_the_end():
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    large = arrays(size=(1024, 1024), count=8)
    with engine() as running:
        torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + 2**26) / total)
        try:
            with pytest.raises(DeviceMemoryError, match=r"Tried to allocate .*iB"):
                running.run(large)
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0)
        assert_right(running.run(arrays()), arrays())
