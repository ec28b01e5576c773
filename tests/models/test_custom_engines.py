"""Tests of users' files on a GPU's engines; GPU, TensorRT and ONNX Runtime's CUDA provider are fakes."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from onnx import helper
from tiny_networks import FREE, RED, alphas, pictures, save, weighted

from fake_cupy import fake_cupy
from fake_onnx_runtime import fake_onnx_runtime
from fake_tensorrt import fake_tensorrt
from vitascope.errors import MissingDependencyError, ModelError
from vitascope.gpu.engines import onnx_runtime
from vitascope.gpu.engines.selection import GpuOptions, Machine
from vitascope.models.custom.custom import CustomNetwork, choose_custom_network
from vitascope.models.host_network import HostNetwork


@pytest.fixture
def choose(monkeypatch, tmp_path):
    """Return a function that chooses on a fake GPU; TensorRT is missing unless a test adds it."""
    monkeypatch.setitem(sys.modules, "cupy", fake_cupy())
    monkeypatch.setitem(sys.modules, "tensorrt", None)
    onnx_runtime._register_rtx_plugin.cache_clear()

    def run(path, *, wanted="auto", kind="matte", most_pictures=4):
        return choose_custom_network(
            path,
            GpuOptions(cache_dir=tmp_path / "engines"),
            kind=kind,
            threads=1,
            wanted=wanted,
            most_pictures=most_pictures,
            model="ab" * 32,
            machine=Machine.of_gpu(0),
            cache_dir=tmp_path / "verdicts",
        )

    return run


def sigmoid_of_red(path: Path, shape) -> Path:
    nodes = [
        helper.make_node("Conv", ["picture", "kernel"], ["planes"]),
        helper.make_node("Sigmoid", ["planes"], ["alpha"]),
    ]
    kernel = {"kernel": np.asarray(RED, np.float32)[:, :, None, None]}
    return save(
        path, nodes, input_shape=shape, outputs={"alpha": [shape[0], 1, *shape[2:]]}, constants=kernel
    )


def mattes_on_gpu(network, images):
    return alphas(network, sys.modules["cupy"].asarray(images))


IMAGES = pictures(2, 2, 3, 288, 512)
EXPECTED = 1 / (1 + np.exp(-IMAGES[:, :, 0]))


def test_without_any_gpu_engine_pictures_come_down_to_the_cpu(choose, tmp_path):
    chosen = choose(sigmoid_of_red(tmp_path / "matte.onnx", FREE))
    assert isinstance(chosen.engine, HostNetwork)
    assert len(chosen.reasons) == 5
    assert chosen.reasons[0] == "tensorrt is not used: TensorRT is not installed: pip install tensorrt"
    np.testing.assert_allclose(mattes_on_gpu(chosen.engine, IMAGES), EXPECTED, atol=1e-6)


def test_tensorrt_is_built_for_every_size_that_the_network_is_asked_for(choose, monkeypatch, tmp_path):
    trt = fake_tensorrt()
    monkeypatch.setitem(sys.modules, "tensorrt", trt)
    chosen = choose(sigmoid_of_red(tmp_path / "matte.onnx", FREE))
    assert isinstance(chosen.engine, CustomNetwork)
    assert chosen.engine.engine_name == "tensorrt 11.4.0.106 (tf32)"
    (build,) = trt.builds
    assert build.profiles == [{"picture": ((1, 3, 32, 32), (4, 3, 288, 512), (4, 3, 512, 512))}]
    np.testing.assert_allclose(mattes_on_gpu(chosen.engine, IMAGES), EXPECTED, atol=1e-6)
    for region in ((1080, 1920), (3840, 3840), (1920, 1080), (10, 4000)):
        size = chosen.engine.input_for(region).size
        assert mattes_on_gpu(chosen.engine, pictures(1, 1, 3, *size)).shape == (1, 1, *size)


def test_a_size_written_in_the_file_stays(choose, monkeypatch, tmp_path):
    trt = fake_tensorrt()
    monkeypatch.setitem(sys.modules, "tensorrt", trt)
    chosen = choose(sigmoid_of_red(tmp_path / "matte.onnx", [1, 3, 24, 40]), wanted="tensorrt")
    assert trt.builds[0].profiles == []
    images = pictures(3, 1, 3, 24, 40)
    np.testing.assert_allclose(
        mattes_on_gpu(chosen.engine, images), 1 / (1 + np.exp(-images[:, :, 0])), atol=1e-6
    )


def test_the_cuda_provider_is_taken_when_it_is_there(choose, monkeypatch, tmp_path):
    ort = fake_onnx_runtime(available=("CUDAExecutionProvider", "CPUExecutionProvider"))
    monkeypatch.setattr(onnx_runtime, "ort", ort)
    chosen = choose(sigmoid_of_red(tmp_path / "matte.onnx", FREE), wanted="onnxruntime")
    assert chosen.engine.engine_name == "onnxruntime 1.31.1 (CUDA, tf32)"
    for _ in range(3):
        np.testing.assert_allclose(mattes_on_gpu(chosen.engine, IMAGES), EXPECTED, atol=1e-6)


def test_tensorrt_that_is_asked_for_and_missing_is_an_error(choose, tmp_path):
    with pytest.raises(MissingDependencyError, match="pip install tensorrt"):
        choose(sigmoid_of_red(tmp_path / "matte.onnx", FREE), wanted="tensorrt")


def test_a_missing_file_and_a_wrong_kind_are_model_errors_and_close_the_engine(choose, monkeypatch, tmp_path):
    with pytest.raises(ModelError, match="no such file"):
        choose(tmp_path / "missing.onnx")
    closed = []
    monkeypatch.setattr(onnx_runtime.OnnxRuntimeEngine, "close", lambda engine: closed.append(engine))
    path = weighted(
        tmp_path / "four.onnx", [[1, 0, 0]] * 4, input_shape=FREE, outputs={"planes": ["n", 4, "h", "w"]}
    )
    with pytest.raises(ModelError):
        choose(path, kind="yolo-seg")
    assert len(set(map(id, closed))) == 2  # the reference and the chosen one
