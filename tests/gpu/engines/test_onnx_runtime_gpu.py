"""Tests of the engine's calls of ONNX Runtime on a GPU, with a fake library and no GPU."""

from __future__ import annotations

import sys
import types

import numpy as np
import pytest

from fake_onnx_runtime import fake_onnx_runtime
from vitascope.errors import DeviceMemoryError, EngineError, MissingDependencyError
from vitascope.gpu.engines import OnnxRuntimeEngine, ShapeRange, onnx_runtime
from vitascope.gpu.kernels.cuda_module import is_on_gpu

X = np.arange(6, dtype=np.float32).reshape(2, 3)
CUDA, TENSORRT = "CUDAExecutionProvider", "TensorrtExecutionProvider"
RTX = "NvTensorRTRTXExecutionProvider"


@pytest.fixture
def use(monkeypatch, cupy):
    """Put a fake ONNX Runtime in place of the real one."""

    def install(**behaviour):
        module = fake_onnx_runtime(**behaviour)
        monkeypatch.setattr(onnx_runtime, "ort", module)
        onnx_runtime._register_rtx_plugin.cache_clear()
        return module

    yield install
    onnx_runtime._register_rtx_plugin.cache_clear()


def test_outputs_stay_on_the_gpu_and_are_right(use, cupy, doubling):
    ort = use()
    with OnnxRuntimeEngine(doubling, provider="cuda", device_id=1) as engine:
        x = cupy.asarray(X)
        results = engine.run({"x": x}, ["negative", "twice"])
        assert engine.spec.device == "cuda"
    assert list(results) == ["negative", "twice"]
    assert all(is_on_gpu(array) for array in results.values())
    np.testing.assert_array_equal(results["twice"], 2 * X)
    np.testing.assert_array_equal(results["negative"], -X)
    (binding,) = ort.sessions[0].bindings
    assert binding.inputs == {"x": ("cuda", 1, x.data.ptr)}
    assert binding.outputs == {"negative": ("cuda", 1, None), "twice": ("cuda", 1, None)}


def test_the_host_never_waits_and_the_streams_wait_for_each_other(use, cupy, doubling):
    ort = use()
    engine = OnnxRuntimeEngine(doubling, provider="cuda")
    stream = int(ort.sessions[0].requested[0][1]["user_compute_stream"])
    assert stream not in (0, cupy.cuda.get_current_stream().ptr)
    job = cupy.cuda.Stream()
    with job:
        engine.run({"x": cupy.asarray(X)})
    (before, first), (waits, _) = cupy.diary[:2], cupy.diary[2:]
    assert before[:2] == ("record", job.ptr)
    assert first == ("wait", stream, before[2])
    assert waits[:2] == ("record", stream)
    assert cupy.diary[3] == ("wait", job.ptr, waits[2])
    assert len(cupy.diary) == 4
    assert ort.sessions[0].runs[0][1].entries["disable_synchronize_execution_providers"] == "1"


def test_the_jobs_own_stream_needs_no_events(use, cupy, doubling):
    ort = use()
    job = cupy.cuda.Stream()
    engine = OnnxRuntimeEngine(doubling, provider="cuda", stream=job.ptr)
    assert ort.sessions[0].requested[0][1]["user_compute_stream"] == str(job.ptr)
    engine.run({"x": cupy.asarray(X)}, stream=job.ptr)
    with job:
        engine.run({"x": cupy.asarray(X)})
    assert cupy.diary == []
    engine.close()
    assert cupy.diary == [("synchronize", job.ptr)]


@pytest.mark.parametrize("provider", ["cuda", "tensorrt"])
def test_a_captured_graph_keeps_its_buffers_and_has_one_id_for_each_shape(use, cupy, doubling, provider):
    ort = use()
    engine = OnnxRuntimeEngine(doubling, provider=provider, cuda_graph=True)
    asked = dict(ort.sessions[0].requested)
    assert asked[CUDA]["enable_cuda_graph"] == ("1" if provider == "cuda" else "0")
    if provider == "tensorrt":
        assert asked[TENSORRT]["trt_cuda_graph_enable"] == "1"
    kept = []
    for factor in (1, 2, 3):
        kept.append(engine.run({"x": cupy.asarray(factor * X)})["twice"])
    for rows in (1, 1):
        np.testing.assert_array_equal(engine.run({"x": cupy.asarray(X[:rows])})["negative"], -X[:rows])
    for factor, twice in zip((1, 2, 3), kept, strict=True):
        np.testing.assert_array_equal(twice, 2 * factor * X)  # a later replay leaves earlier results alone
    runs = ort.sessions[0].runs
    assert [options.entries["gpu_graph_id"] for _, options in runs] == ["-1", "1", "1", "-1", "2"]
    assert runs[1][0] is runs[2][0]
    assert all(address is not None for _, _, address in runs[1][0].outputs.values())


def test_shapes_beyond_the_most_graphs_run_without_one(use, cupy, doubling, monkeypatch):
    monkeypatch.setattr(onnx_runtime, "_MOST_GRAPHS", 1)
    ort = use()
    engine = OnnxRuntimeEngine(doubling, provider="cuda", cuda_graph=True)
    for rows in (1, 2, 2, 1):
        engine.run({"x": cupy.asarray(X[:rows])})
    graphs = [options.entries["gpu_graph_id"] for _, options in ort.sessions[0].runs]
    assert graphs == ["-1", "-1", "-1", "1"]


def test_options_reach_the_cuda_provider(use, doubling):
    ort = use()
    OnnxRuntimeEngine(
        doubling, provider="cuda", device_id=2, precision="fp32", cudnn_benchmark=False, deterministic=True
    )
    OnnxRuntimeEngine(doubling, provider="cuda", precision="tf32")
    first, second = ort.sessions
    (name, options), (fallback, _) = first.requested
    assert (name, fallback) == (CUDA, "CPUExecutionProvider")
    assert options["device_id"] == "2"
    assert options["use_tf32"] == "0"
    assert options["cudnn_conv_algo_search"] == "HEURISTIC"
    assert first.options.use_deterministic_compute
    assert first.enable_fallback == 0
    assert first.options.entries["session.record_ep_graph_assignment_info"] == "1"
    assert second.requested[0][1]["use_tf32"] == "1"
    assert second.requested[0][1]["cudnn_conv_algo_search"] == "EXHAUSTIVE"


def test_tensorrt_keeps_engines_and_timings_and_gets_profiles(use, doubling, tmp_path):
    ort = use()
    cache = tmp_path / "engines"
    profiles = {"x": ShapeRange((1, 3), (2, 3), (8, 3))}
    engine = OnnxRuntimeEngine(doubling, provider="tensorrt", cache_dir=cache, profiles=profiles)
    (name, options), (second, _), _ = ort.sessions[0].requested
    assert (name, second) == (TENSORRT, CUDA)
    assert cache.is_dir()
    assert options["trt_engine_cache_enable"] == options["trt_timing_cache_enable"] == "1"
    assert options["trt_engine_cache_path"] == options["trt_timing_cache_path"] == str(cache)
    assert options["trt_profile_min_shapes"] == "x:1x3"
    assert options["trt_profile_opt_shapes"] == "x:2x3"
    assert options["trt_profile_max_shapes"] == "x:8x3"
    assert engine.name == "onnxruntime 1.31.1 (TensorRT, fp32)"


def rtx_plugin():
    plugin = types.ModuleType("onnxruntime_ep_nv_tensorrt_rtx")
    plugin.get_ep_name = lambda: RTX
    plugin.get_library_path = lambda: "/lib/rtx.so"
    return plugin


def test_the_rtx_plugin_is_registered_once_and_takes_its_device(use, cupy, doubling, monkeypatch, tmp_path):
    ort = use(rtx_devices=2)
    monkeypatch.setitem(sys.modules, "onnxruntime_ep_nv_tensorrt_rtx", rtx_plugin())
    for _ in range(2):
        engine = OnnxRuntimeEngine(doubling, provider="tensorrt-rtx", device_id=1, cache_dir=tmp_path)
    assert ort.registered == [(RTX, "/lib/rtx.so")]
    ((name, options),) = ort.sessions[0].requested
    assert name == RTX
    assert options["has_user_compute_stream"] == "1"
    assert int(options["user_compute_stream"]) > 0
    assert options["nv_runtime_cache_path"] == str(tmp_path)
    np.testing.assert_array_equal(engine.run({"x": cupy.asarray(X)})["twice"], 2 * X)


def test_an_rtx_plugin_without_a_device_for_this_gpu_says_which_gpus_it_takes(use, doubling, monkeypatch):
    use(rtx_devices=0)
    monkeypatch.setitem(sys.modules, "onnxruntime_ep_nv_tensorrt_rtx", rtx_plugin())
    with pytest.raises(EngineError, match=r"offers 0 GPUs.*not A100, H100 or H200"):
        OnnxRuntimeEngine(doubling, provider="tensorrt-rtx")


@pytest.mark.parametrize(
    ("provider", "package"),
    [
        ("cuda", "pip install onnxruntime-gpu"),
        ("tensorrt", "pip install onnxruntime-gpu tensorrt"),
        ("tensorrt-rtx", "pip install onnxruntime-ep-nv-tensorrt-rtx-cu13"),
    ],
)
def test_a_missing_provider_names_its_package(use, doubling, provider, package):
    use(available=("CPUExecutionProvider",))
    with pytest.raises(MissingDependencyError) as caught:
        OnnxRuntimeEngine(doubling, provider=provider)
    assert package in str(caught.value)


def test_a_provider_that_was_dropped_is_an_error(use, doubling):
    use(started=("CPUExecutionProvider",))
    with pytest.raises(EngineError, match="could not start its CUDA execution provider"):
        OnnxRuntimeEngine(doubling, provider="cuda")


def test_a_network_that_would_run_on_the_cpu_as_a_whole_is_an_error(use, doubling):
    use(assigned=("CPUExecutionProvider",))
    with pytest.raises(EngineError, match="supports none of the network's operators"):
        OnnxRuntimeEngine(doubling, provider="cuda")


def test_arrays_that_cannot_be_bound_are_refused_before_their_address_is_used(use, cupy, doubling):
    ort = use()
    engine = OnnxRuntimeEngine(doubling, provider="cuda")
    wide = cupy.asarray(np.zeros((2, 6), np.float32))
    for x, complaint in (
        (X, "host memory"),
        (cupy.asarray(X.astype(np.float64)), "float64"),
        (cupy.asarray(np.zeros((2, 4), np.float32)), r"\[2, 4\]"),
        (wide[:, ::2], "C-contiguous"),
    ):
        with pytest.raises(EngineError, match=complaint):
            engine.run({"x": x})
    with pytest.raises(EngineError, match="expected"):
        engine.run({})
    assert ort.sessions[0].runs == []


def test_a_cache_that_cannot_be_created_is_an_engine_error(use, doubling, tmp_path):
    use()
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    with pytest.raises(EngineError, match="cannot be kept in"):
        OnnxRuntimeEngine(doubling, provider="tensorrt", cache_dir=blocked / "cache")


def test_the_default_stream_is_refused(use, doubling):
    use()
    with pytest.raises(EngineError, match="default stream"):
        OnnxRuntimeEngine(doubling, provider="cuda", stream=0)


def test_memory_that_runs_out_is_told_apart_and_says_how_much_is_free(use, cupy, doubling):
    use(
        failing_run=RuntimeError("Non-zero status code: Failed to allocate memory for requested buffer\nmore")
    )
    engine = OnnxRuntimeEngine(doubling, provider="cuda")
    with pytest.raises(DeviceMemoryError, match=r"3\.0 of 80\.0 GiB free"):
        engine.run({"x": cupy.asarray(X)})


def test_without_cupy_the_package_is_named(doubling, monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(MissingDependencyError, match=r"vitascope\[cuda\]"):
        OnnxRuntimeEngine(doubling, provider="cuda")
