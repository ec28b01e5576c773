from __future__ import annotations

import sys
from functools import partial

import numpy as np
import pytest

from fake_cupy import FakeArray, fake_cupy
from fake_onnx_runtime import fake_onnx_runtime
from fake_tensorrt import fake_tensorrt
from vitascope.errors import MissingDependencyError
from vitascope.gpu.engines import onnx_runtime
from vitascope.gpu.engines.selection import TOLERANCES, Candidate, GpuOptions, Machine, choose_engine, compare
from vitascope.models.host_network import HostNetwork
from vitascope.models.network import engine_notes
from vitascope.models.network_check import network_runner, random_pictures
from vitascope.models.rvm.rvm import RvmNetwork, rvm_candidates

pytestmark = pytest.mark.fetched_model


@pytest.fixture
def choose(monkeypatch, rvm_model_path, tmp_path):
    """Choose an engine for the real network on a fake GPU."""
    monkeypatch.setitem(sys.modules, "cupy", fake_cupy())
    onnx_runtime._register_rtx_plugin.cache_clear()

    def open_network(engines):
        return RvmNetwork(rvm_model_path, downsample_ratio=1.0, threads=2, open_engines=engines)

    def run(wanted="auto", precision="tf32", cuda_graph=False, most_frames=4, most_eyes=2):
        return choose_engine(
            rvm_candidates(
                open_network,
                GpuOptions(cache_dir=tmp_path / "engines", precision=precision, cuda_graph=cuda_graph),
                most_frames=most_frames,
                most_eyes=most_eyes,
            ),
            wanted=wanted,
            reference=network_runner(open_network(None), on_gpu=False),
            make_inputs=random_pictures(size=(48, 64)),
            model="ab" * 32,
            machine=Machine.of_gpu(0),
            cache_dir=tmp_path / "verdicts",
        )

    return run


@pytest.fixture
def no_tensorrt(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorrt", None)


def matte_two_steps(network):
    pictures = np.random.default_rng(0).random((2, 2, 3, 48, 64), dtype=np.float32)
    estimates = network.infer(sys.modules["cupy"].asarray(pictures), network.new_state())
    assert all(isinstance(estimate.gain, FakeArray) for estimate in estimates)
    return np.stack([np.array(estimate.gain) for estimate in estimates])


def test_the_base_install_runs_on_the_cpu_and_names_what_is_missing(choose, no_tensorrt):
    chosen = choose()
    assert isinstance(chosen.engine, HostNetwork)
    assert chosen.name == "processor"
    *skipped, used = chosen.reasons
    for reason, package in zip(
        skipped, ("tensorrt", "onnxruntime-gpu tensorrt", "onnxruntime-ep-nv", "onnxruntime-gpu"), strict=True
    ):
        assert f"pip install {package}" in reason
    assert used.startswith("onnxruntime ")
    assert "CPU, 2 threads" in used
    assert matte_two_steps(chosen.engine).shape == (2, 2, 4, 48, 64)


def test_tensorrt_that_is_asked_for_and_missing_is_an_error(choose, no_tensorrt):
    with pytest.raises(MissingDependencyError, match="pip install tensorrt"):
        choose("tensorrt")


def test_onnx_runtime_on_the_gpu_that_is_asked_for_and_missing_is_an_error(choose):
    with pytest.raises(MissingDependencyError) as caught:
        choose("onnxruntime")
    assert "pip install onnxruntime-gpu" in str(caught.value)
    assert "pip install onnxruntime-ep-nv" in str(caught.value)


def test_half_precision_without_its_converter_is_skipped_with_the_package(choose, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorrt", fake_tensorrt())
    monkeypatch.setitem(sys.modules, "modelopt", None)
    chosen = choose(precision="mixed")
    assert "nvidia-modelopt" in chosen.reasons[0]
    assert isinstance(chosen.engine, HostNetwork)


def test_tensorrt_gets_profiles_for_every_input_and_passes_its_check(choose, monkeypatch):
    trt = fake_tensorrt()
    monkeypatch.setitem(sys.modules, "tensorrt", trt)
    chosen = choose()
    assert chosen.name == "tensorrt"
    assert chosen.engine.engine_name == "tensorrt 11.4.0.106 (tf32)"
    encoder, decoder = trt.builds
    assert encoder.profiles == [{"small_rgb": ((1, 3, 16, 16), (8, 3, 288, 512), (8, 3, 1024, 1024))}]
    assert decoder.profiles[0]["r4i"] == ((1, 64, 1, 1), (2, 64, 18, 32), (2, 64, 64, 64))
    on_gpu = matte_two_steps(chosen.engine)
    monkeypatch.setitem(sys.modules, "tensorrt", None)
    np.testing.assert_allclose(on_gpu, matte_two_steps(choose().engine), atol=1e-4)


def test_engines_of_another_version_are_built_anew_and_the_network_says_so(choose, monkeypatch):
    for version in ("11.3.0", "11.4.0"):
        trt = fake_tensorrt(version=version)
        monkeypatch.setitem(sys.modules, "tensorrt", trt)
        network = choose("tensorrt").engine
        assert len(trt.builds) == 2
    assert engine_notes(network) == ("the stored engine was built by TensorRT 11.3.0; rebuilt by 11.4.0",)
    assert engine_notes(choose("tensorrt").engine) == ()


def test_an_engine_for_single_pictures_takes_the_checks_frames_too(choose, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorrt", fake_tensorrt())
    assert choose("tensorrt", most_frames=1, most_eyes=1).name == "tensorrt"


@pytest.mark.parametrize("cuda_graph", [False, True])
def test_onnx_runtime_on_cuda_keeps_everything_on_the_gpu(choose, monkeypatch, no_tensorrt, cuda_graph):
    ort = fake_onnx_runtime(available=("CUDAExecutionProvider", "CPUExecutionProvider"))
    monkeypatch.setattr(onnx_runtime, "ort", ort)
    chosen = choose("onnxruntime", cuda_graph=cuda_graph)
    providers = [session.requested[0][0] for session in ort.sessions]
    graph = ", CUDA graph" if cuda_graph else ""
    assert chosen.engine.engine_name == f"onnxruntime 1.31.1 (CUDA, tf32{graph})"
    assert providers.count("CUDAExecutionProvider") == 2
    first = matte_two_steps(chosen.engine)
    for _ in range(2):
        np.testing.assert_array_equal(matte_two_steps(chosen.engine), first)


@pytest.mark.parametrize("fault", ["forgets", "swaps colours", "skips a step"])
def test_the_check_notices_what_half_precision_would_not_explain(rvm_model_path, fault):
    network = RvmNetwork(rvm_model_path, downsample_ratio=1.0)
    inputs = random_pictures(size=(96, 160))()
    expected = network_runner(network, on_gpu=False)(inputs)
    infer = network.infer

    def faulty(images, state):
        if fault == "forgets":
            return [infer(step[None], network.new_state())[0] for step in images]
        if fault == "swaps colours":
            return infer(np.ascontiguousarray(images[:, :, ::-1]), state)
        return infer(images[[0, 0, 2]], state)

    network.infer = faulty
    outputs = network_runner(network, on_gpu=False)(inputs)
    assert not compare(outputs, expected, TOLERANCES["fp16"]).passed


@pytest.mark.cuda
def test_a_torch_network_is_a_candidate_like_any_other(rvm_model_path, tmp_path):
    """Check that its verdict is stored, and that one with other results is named and skipped."""
    pytest.importorskip("torch")
    from torch_rvm import TorchRvm

    reference = RvmNetwork(rvm_model_path, downsample_ratio=1.0)
    counts = []

    def candidate(name, precision, **fault):
        def open_network():
            counts.append(TorchRvm(rvm_model_path, precision=precision, **fault))
            return counts[-1]

        return Candidate(
            name=name,
            precision=precision,
            open=open_network,
            describe=lambda network: f"{name}, {network.engine_name}",
            runner=partial(network_runner, on_gpu=True),
        )

    for _ in range(2):
        chosen = choose_engine(
            [candidate("forgetful", "mixed", forgets=True), candidate("torch", "mixed")],
            reference=network_runner(reference, on_gpu=False),
            make_inputs=random_pictures(),
            model="ab" * 32,
            machine=Machine.of_gpu(0),
            cache_dir=tmp_path,
        )
        assert chosen.name == "torch"
        assert chosen.reasons[0].startswith("forgetful is not used")
    assert [network.calls for network in counts] == [1, 1, 0, 0]
    assert len(list(tmp_path.iterdir())) == 2
