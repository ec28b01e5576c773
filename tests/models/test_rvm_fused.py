"""Tests of RVM on the fused kernels, around its engine: calls, a stream's memory, refusals.

The kernels need a GPU.
"""

from __future__ import annotations

import sys
from types import SimpleNamespace

import numpy as np
import pytest
from rvm_torch_cases import drifting_pictures

from fake_cupy import FakeArray, fake_cupy
from vitascope.errors import EngineError, MissingDependencyError, ModelError
from vitascope.models.rvm import fused_network
from vitascope.models.rvm.fused_network import RvmFusedNetwork
from vitascope.models.rvm.state import state_sizes

CHANNELS = (16, 20, 40, 64)


class CountingEngine:
    """Gain is the picture's first channel; each frame adds one to every state."""

    capability, gpu_name, multiprocessors, notes, plan_count = 90, "Fake GPU", 132, [], 0
    gpu_bytes = 80 << 30

    def __init__(self, record, **given):
        self.given, self.calls, self.closed = given, [], False

    def input_shapes(self, sizes):
        steps, eyes, height, width = sizes
        states = {
            f"r{level}": (eyes, *size, channels)
            for level, (size, channels) in enumerate(
                zip(state_sizes((height, width)), CHANNELS, strict=True), start=1
            )
        }
        return {"pictures": (steps * eyes, 3, height, width), **states}

    def run(self, sizes, inputs):
        self.calls.append(sizes)
        shapes = self.input_shapes(sizes)
        assert {name: array.shape for name, array in inputs.items()} == shapes
        assert all(array.flags.c_contiguous for array in inputs.values())
        gain = inputs["pictures"][:, :1].copy().view(FakeArray)
        states = {name: inputs[name] + sizes[0] for name in shapes if name != "pictures"}
        return {"gain": gain, "offset": gain * 0, **states}

    def close(self):
        self.closed = True


@pytest.fixture
def cupy(monkeypatch):
    fake = fake_cupy()
    monkeypatch.setitem(sys.modules, "cupy", fake)
    return fake


@pytest.fixture
def network(cupy, monkeypatch, tmp_path):
    monkeypatch.setattr(fused_network, "PlanEngine", CountingEngine)
    monkeypatch.setattr(fused_network, "triton_version", lambda: "3.6.0")
    (tmp_path / "rvm.onnx").write_bytes(b"read for its sha256 alone")
    return RvmFusedNetwork(tmp_path / "rvm.onnx", most_frames=8, cache_dir=tmp_path)


def pictures_of(steps, eyes=1, size=(32, 48)):
    return drifting_pictures(steps, eyes, size, dtype="float16").view(FakeArray)


def test_frames_go_in_powers_of_two_and_the_state_goes_on(network):
    pictures, state = pictures_of(13, eyes=2), network.new_state()
    estimates = network.infer(pictures, state)
    assert network._engine.calls == [(8, 2, 32, 48), (4, 2, 32, 48), (1, 2, 32, 48)]
    assert len(estimates) == 13
    for estimate, picture in zip(estimates, pictures, strict=True):
        assert estimate.gain.shape == (2, 1, 32, 48)
        np.testing.assert_array_equal(estimate.gain[:, 0], picture[:, 0])
    assert [tensor.shape for tensor in state.tensors] == [
        (2, channels, *size) for channels, size in zip(CHANNELS, state_sizes((32, 48)), strict=True)
    ]
    assert all((tensor == 13).all() for tensor in state.tensors)
    network.infer(pictures[:2], state)
    assert all((tensor == 15).all() for tensor in state.tensors)


def test_large_pictures_go_in_shorter_batches_where_memory_is_short(network, cupy):
    bytes_of_a_frame = 131 * 2 * 32 * 48
    for most, calls in ((8, [8, 4, 1]), (7, [4, 4, 4, 1]), (1, [1] * 13), (0.5, [1] * 13)):
        limit = round(8 * most * bytes_of_a_frame)
        cupy.get_default_memory_pool = lambda limit=limit: SimpleNamespace(get_limit=lambda: limit)
        network._engine.calls.clear()
        assert len(network.infer(pictures_of(13, eyes=2), network.new_state())) == 13
        assert [call[0] for call in network._engine.calls] == calls
    network._engine.gpu_bytes = 8 * 2 * bytes_of_a_frame
    cupy.get_default_memory_pool = lambda: SimpleNamespace(get_limit=lambda: 0)  # no limit
    network._engine.calls.clear()
    network.infer(pictures_of(3, eyes=2), network.new_state())
    assert [call[0] for call in network._engine.calls] == [2, 1]


def test_pictures_of_the_host_give_arrays_of_the_host(network):
    (estimate,) = network.infer(np.asarray(pictures_of(1)), network.new_state())
    assert type(estimate.gain) is np.ndarray
    assert estimate.gain.dtype == np.float32


def test_a_call_that_fails_leaves_the_stream_where_it_was(network, monkeypatch):
    state = network.new_state()
    network.infer(pictures_of(1), state)
    before, run = state.tensors, network._engine.run

    def fail_the_second(sizes, inputs):
        if sizes[0] == 1:
            raise EngineError("broken")
        return run(sizes, inputs)

    monkeypatch.setattr(network._engine, "run", fail_the_second)
    with pytest.raises(EngineError, match="broken"):
        network.infer(pictures_of(3), state)
    assert state.tensors is before


def test_what_was_not_prepared_for_it_is_a_model_error(network):
    state = network.new_state()
    with pytest.raises(ModelError, match="float32, expected float16"):
        network.infer(np.zeros((1, 1, 3, 32, 32), np.float32), state)
    for shape in ((1, 3, 32, 32), (0, 1, 3, 32, 32), (1, 1, 4, 32, 32)):
        with pytest.raises(ModelError, match="frames, eyes"):
            network.infer(np.zeros(shape, np.float16), state)
    with pytest.raises(ModelError, match="own state"):
        network.infer(np.zeros((1, 1, 3, 32, 32), np.float16), object())
    network.infer(pictures_of(1), state)
    with pytest.raises(ModelError, match="another size"):
        network.infer(pictures_of(1, size=(32, 64)), state)


def test_parts_of_a_stream_have_a_state_of_their_own(network):
    from vitascope.gpu.kernels.region import Region

    state = network.new_state()
    network.infer(pictures_of(1), state)
    part = state.window([Region(16, 0, 32, 32)])
    network.infer(pictures_of(1, size=(32, 32)), part)
    state.put([Region(16, 0, 32, 32)], part)
    assert {float(value) for value in np.unique(state.tensors[0])} == {1.0, 2.0}


def test_reports_name_compiler_gpu_and_arithmetic(network):
    assert network.engine_name == "triton 3.6.0 (Fake GPU, CUDA graphs), fp16"
    assert network.input_for((1080, 1920)).dtype == "float16"
    assert network.notes == ()
    network.close()
    assert network._engine.closed


def test_old_gpus_are_refused(network, monkeypatch, tmp_path):
    monkeypatch.setattr(CountingEngine, "capability", 75)
    with pytest.raises(EngineError, match=r"capability 8.0, Fake GPU has 7.5; use --backend torch"):
        RvmFusedNetwork(tmp_path / "rvm.onnx")


def test_without_triton_it_says_what_to_install(cupy, tmp_path, monkeypatch):
    def missing(name):
        raise PackageNotFoundError

    from importlib import metadata
    from importlib.metadata import PackageNotFoundError

    monkeypatch.setattr(metadata, "version", missing)
    with pytest.raises(MissingDependencyError, match=r"pip install 'vitascope\[cuda\]'"):
        RvmFusedNetwork(tmp_path / "rvm.onnx")


def test_another_file_or_other_code_has_another_key(network, tmp_path):
    (tmp_path / "other.onnx").write_bytes(b"another")
    other = RvmFusedNetwork(tmp_path / "other.onnx")
    same = RvmFusedNetwork(tmp_path / "rvm.onnx")
    assert network._engine.given["key"] == same._engine.given["key"] != other._engine.given["key"]
