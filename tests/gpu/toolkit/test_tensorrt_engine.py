"""Tests of TensorRTEngine with a fake TensorRT and GPU: what is built, stored, loaded and refused."""

from __future__ import annotations

import sys
from importlib import import_module

import numpy as np
import pytest

from fake_cupy import fake_cupy
from fake_tensorrt import fake_tensorrt
from vitascope import device as device_module
from vitascope.device import Device
from vitascope.errors import DeviceError, EngineError, MissingDependencyError, UsageError
from vitascope.gpu import TensorRTEngine

X = np.arange(6, dtype=np.float32).reshape(2, 3)
SHAPES = {"x": {"min": (1, 3), "opt": (2, 3), "max": (16, 3)}}

pytestmark = pytest.mark.choosing_devices


@pytest.fixture
def use(monkeypatch):
    """Replace TensorRT with a fake one, on a fake GPU."""

    def install(**behaviour):
        cupy = fake_cupy()
        cupy.ascontiguousarray = lambda array: array if array.flags.c_contiguous else cupy.asarray(array)
        monkeypatch.setitem(sys.modules, "cupy", cupy)
        trt = fake_tensorrt(**behaviour)
        monkeypatch.setitem(sys.modules, "tensorrt", trt)
        monkeypatch.setattr(
            device_module, "_gpu_device", lambda index: Device("cuda", f"Fake GPU (GPU {index})", index)
        )
        return trt

    return install


def test_a_network_is_built_for_batches_and_inferred(use, doubling):
    trt = use()
    with TensorRTEngine(workspace_gb=2.0) as engine:
        assert engine.build_engine_from_onnx(doubling, SHAPES) is None
        np.testing.assert_array_equal(engine.run({"x": X})["negative"], -X)
        result = engine.infer(X[:1])
        assert type(result) is np.ndarray
        np.testing.assert_array_equal(result, 2 * X[:1])
        assert engine.device.label == "Fake GPU (GPU 0)"
        with pytest.raises(EngineError, match=r"built for \[1, 3\] to \[16, 3\]"):
            engine.infer(np.zeros((17, 3), np.float32))
    (build,) = trt.builds
    assert build.workspace == 2_000_000_000
    assert build.profiles == [{"x": ((1, 3), (2, 3), (16, 3))}]


def test_arrays_on_the_gpu_stay_there(use, doubling):
    use()
    cupy = sys.modules["cupy"]
    with TensorRTEngine() as engine:
        engine.build_engine_from_onnx(doubling, SHAPES)
        result = engine.infer(cupy.asarray(X))
        assert type(result).__module__ == "cupy"
        np.testing.assert_array_equal(np.asarray(result), 2 * X)


def test_the_work_goes_to_the_stream_that_is_named(use, doubling):
    trt = use()
    with TensorRTEngine() as engine:
        engine.build_engine_from_onnx(doubling, SHAPES)
        engine.run({"x": sys.modules["cupy"].asarray(X)}, stream=4711)
    assert trt.streams[-1] == 4711


def test_benchmark_runs_the_usual_size(use, doubling):
    trt = use()
    with TensorRTEngine() as engine:
        engine.build_engine_from_onnx(doubling, SHAPES)
        results = engine.benchmark(num_iterations=3, warmup=1)
    assert results["batch_size"] == 2
    assert results["precision"] == "tf32"
    assert results["avg_latency_ms"] > 0
    assert len(trt.streams) == 1 + 3 + 3
    assert len(set(trt.streams)) == 1  # all on one stream, not the default one
    assert trt.streams[0] != 0


def test_a_kept_file_is_tensorrts_own_and_loads_with_its_sizes(use, doubling, tmp_path):
    trt = use()
    path = tmp_path / "model_fp16.trt"
    with TensorRTEngine() as engine:
        assert engine.build_engine_from_onnx(doubling, SHAPES, path) == path
    assert path.read_bytes().startswith(b"PLAN")  # without a header of ours, as trtexec reads it
    with TensorRTEngine() as again:
        again.load_engine(path)
        np.testing.assert_array_equal(again.run({"x": X})["twice"], 2 * X)
        assert again.input_shapes["x"].largest == (16, 3)
        assert again.benchmark(2, warmup=0)["batch_size"] == 2
    assert len(trt.builds) == 1


def test_an_engine_of_another_build_is_refused_with_tensorrts_reason(use, tmp_path):
    use()
    path = tmp_path / "old.trt"
    path.write_bytes(b"of another version")
    with pytest.raises(
        EngineError, match=r"old\.trt: TensorRT 11\.4\.0\.106 cannot load it: plan of another build"
    ):
        TensorRTEngine().load_engine(path)


def test_built_engines_are_found_again(use, doubling, tmp_path):
    trt = use()
    for _ in range(2):
        with TensorRTEngine(cache_dir=tmp_path / "cache") as engine:
            engine.build_engine_from_onnx(doubling, SHAPES)
    with TensorRTEngine(cache_dir=tmp_path / "cache", allow_tf32=False) as engine:
        engine.build_engine_from_onnx(doubling, SHAPES)
    assert len(trt.builds) == 2


@pytest.mark.parametrize(("mode", "precision"), [("fp16_mode", "fp16"), ("int8_mode", "int8")])
def test_precisions_are_made_by_nvidias_converter(use, doubling, monkeypatch, mode, precision):
    use()
    asked = []

    def converted(model, wanted, *, calibration=None):
        asked.append((wanted, calibration))
        return model

    monkeypatch.setattr("vitascope.gpu.engines.trt_plan.with_precision", converted)
    calibration = {"x": X} if precision == "int8" else None
    with TensorRTEngine(**{mode: True}) as engine:
        engine.build_engine_from_onnx(doubling, SHAPES, calibration=calibration)
        assert engine.precision == precision
        assert precision in engine.name
    assert asked == [(precision, calibration)]


def test_from_pytorch_goes_through_onnx(use):
    torch = pytest.importorskip("torch")
    pytest.importorskip("onnxscript")
    import_module("torch._dynamo")  # load it before the fakes, which lack what it looks for

    trt = use()
    module = torch.nn.Linear(3, 2).eval()
    with TensorRTEngine() as engine:
        engine.build_engine_from_pytorch(module, {"input": {"min": (1, 3), "opt": (2, 3), "max": (16, 3)}})
        with torch.inference_mode():
            wanted = module(torch.from_numpy(X)).numpy()
        np.testing.assert_allclose(engine.infer(X), wanted, atol=1e-6)
        tensor = engine.infer(torch.from_numpy(X))
        assert isinstance(tensor, torch.Tensor)
    assert trt.builds[0].profiles == [{"input": ((1, 3), (2, 3), (16, 3))}]


def test_a_processor_is_refused_with_what_to_take_instead(use):
    use()
    with pytest.raises(DeviceError, match="OnnxEngine or InductorEngine"):
        TensorRTEngine(device="cpu")


def test_without_a_gpu_auto_is_an_error_too(use, monkeypatch):
    use()

    def none(index):
        raise DeviceError("no NVIDIA GPU was found")

    monkeypatch.setattr(device_module, "_gpu_device", none)
    with pytest.raises(DeviceError, match="no NVIDIA GPU"):
        TensorRTEngine()


def test_without_tensorrt_its_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorrt", None)
    with pytest.raises(MissingDependencyError, match="pip install tensorrt"):
        TensorRTEngine(fp16_mode=True)


def test_shapes_of_another_networks_inputs_are_refused(use, doubling):
    use()
    with pytest.raises(UsageError, match="'y'; the network takes x"):
        TensorRTEngine().build_engine_from_onnx(doubling, {**SHAPES, "y": (1, 3)})
