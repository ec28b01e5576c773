"""Tests of the engine's calls of TensorRT and of its cache, with a fake library and no GPU."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from fake_cupy import fake_cupy
from fake_tensorrt import fake_tensorrt
from vitascope.errors import DeviceMemoryError, EngineError, MissingDependencyError
from vitascope.gpu.engines import ShapeRange
from vitascope.gpu.engines.trt_plan import TrtPlan

X = np.arange(6, dtype=np.float32).reshape(2, 3)
PROFILES = {"x": ShapeRange((1, 3), (2, 3), (4, 3))}


@pytest.fixture
def use(monkeypatch, cupy):
    """Replace TensorRT with a fake one, on a fake GPU."""

    def install(*, gpu="Fake GPU", **behaviour):
        monkeypatch.setitem(sys.modules, "cupy", fake_cupy(name=gpu))
        trt = fake_tensorrt(**behaviour)
        monkeypatch.setitem(sys.modules, "tensorrt", trt)
        return trt

    return install


def on_gpu(array):
    return sys.modules["cupy"].asarray(array)


def test_runs_on_the_callers_stream_with_cupy_memory(use, doubling):
    trt = use()
    with TrtPlan(doubling, profiles=PROFILES) as engine:
        assert engine.spec.device == "cuda"
        assert engine.spec.inputs[0].shape == (None, 3)
        assert engine.name == "tensorrt 11.4.0.106 (tf32)"
        job = sys.modules["cupy"].cuda.Stream()
        with job:
            results = engine.run({"x": on_gpu(X)}, ["negative"])
        np.testing.assert_array_equal(results["negative"], -X)
        assert list(results) == ["negative"]
        again = engine.run({"x": on_gpu(X[:1])}, stream=4711)
        np.testing.assert_array_equal(again["twice"], 2 * X[:1])
    assert trt.streams == [job.ptr, 4711]
    with pytest.raises(EngineError, match="closed"):
        engine.run({"x": on_gpu(X)})


def test_the_network_is_strongly_typed_with_profiles_and_limits(use, doubling):
    trt = use()  # the fake's create_network refuses other flags
    TrtPlan(doubling, profiles=PROFILES, precision="fp32", workspace_bytes=2**28)
    TrtPlan(doubling, profiles=PROFILES, precision="tf32")
    first, second = trt.builds
    assert first.profiles == [{"x": ((1, 3), (2, 3), (4, 3))}]
    assert first.workspace == 2**28
    assert first.cleared == ["tf32"]
    assert second.cleared == []
    assert second.workspace is None


def test_the_parser_learns_where_weights_outside_of_the_file_lie(use, doubling, tmp_path):
    trt = use()
    path = tmp_path / "network.onnx"
    path.write_bytes(doubling)
    TrtPlan(path, profiles=PROFILES)
    TrtPlan(doubling, profiles=PROFILES)
    assert trt.paths == [str(path), None]


def test_a_free_dimension_without_a_profile_is_named(use, doubling):
    use()
    with pytest.raises(EngineError, match="input 'x' has free dimensions and no profile"):
        TrtPlan(doubling)


def test_sizes_outside_the_profile_are_refused_with_tensorrts_reason(use, doubling):
    use()
    engine = TrtPlan(doubling, profiles=PROFILES)
    with pytest.raises(EngineError, match=r"\[5, 3\].*outside of its profile"):
        engine.run({"x": on_gpu(np.zeros((5, 3), np.float32))})


def test_a_kept_engine_is_not_built_again(use, doubling, tmp_path):
    trt = use()
    for _ in range(2):
        engine = TrtPlan(doubling, profiles=PROFILES, cache_dir=tmp_path)
        np.testing.assert_array_equal(engine.run({"x": on_gpu(X)})["twice"], 2 * X)
        assert engine.notes == ()
    assert len(trt.builds) == 1
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".engine", ".timing"]


def test_other_sizes_arithmetic_or_gpu_make_another_engine(use, doubling, tmp_path):
    use()
    TrtPlan(doubling, profiles=PROFILES, cache_dir=tmp_path)
    TrtPlan(doubling, profiles=PROFILES, cache_dir=tmp_path, precision="fp32")
    TrtPlan(doubling, profiles={"x": ShapeRange.exactly((2, 3))}, cache_dir=tmp_path)
    use(gpu="Another GPU")
    TrtPlan(doubling, profiles=PROFILES, cache_dir=tmp_path)
    assert len(list(tmp_path.glob("*.engine"))) == 4


def test_an_engine_of_another_version_is_rebuilt_and_said_so(use, doubling, tmp_path):
    use(version="10.9.0")
    TrtPlan(doubling, profiles=PROFILES, cache_dir=tmp_path)
    trt = use(version="11.4.0")
    engine = TrtPlan(doubling, profiles=PROFILES, cache_dir=tmp_path)
    assert len(trt.builds) == 1
    assert engine.notes == ("the stored engine was built by TensorRT 10.9.0; rebuilt by 11.4.0",)
    assert TrtPlan(doubling, profiles=PROFILES, cache_dir=tmp_path).notes == ()
    assert len(list(tmp_path.glob("*.engine"))) == 1


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: b"",
        lambda content: content[:-1],
        lambda content: b"[]\n" + content,
        lambda content: b"[" * 100_000 + b"\n" + content,
        lambda content: content[:-3] + b"xyz",
        lambda content: b"\xff" + content,
    ],
)
def test_a_damaged_engine_is_removed_and_rebuilt(use, doubling, tmp_path, damage):
    trt = use()
    TrtPlan(doubling, profiles=PROFILES, cache_dir=tmp_path)
    (kept,) = tmp_path.glob("*.engine")
    intact = kept.read_bytes()
    kept.write_bytes(damage(intact))
    engine = TrtPlan(doubling, profiles=PROFILES, cache_dir=tmp_path)
    assert "was damaged; removed and rebuilt" in engine.notes[0]
    assert len(trt.builds) == 2
    assert kept.read_bytes() == intact


def test_an_engine_that_tensorrt_refuses_is_removed_and_rebuilt(use, doubling, tmp_path):
    use()
    TrtPlan(doubling, profiles=PROFILES, cache_dir=tmp_path)
    trt = use(refuses_plans=True)
    engine = TrtPlan(doubling, profiles=PROFILES, cache_dir=tmp_path)
    assert "refused (plan of another build); removed" in engine.notes[0]
    assert len(trt.builds) == 1


def test_timings_are_handed_to_the_next_build(use, doubling, tmp_path):
    trt = use()
    for precision in ("fp32", "tf32"):
        TrtPlan(doubling, profiles=PROFILES, cache_dir=tmp_path, precision=precision)
    assert trt.given_timings == [b"", b"timed"]


def test_refused_timings_are_removed_and_measured_anew(use, doubling, tmp_path):
    use()
    TrtPlan(doubling, profiles=PROFILES, cache_dir=tmp_path)
    trt = use(refuses_timings=True)
    engine = TrtPlan(doubling, profiles=PROFILES, cache_dir=tmp_path, precision="fp32")
    assert trt.given_timings == [b"timed", b""]
    assert "rejected the stored timings" in engine.notes[0]


def test_a_folder_that_cannot_be_written_costs_only_the_cache(use, doubling, tmp_path):
    use()
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    engine = TrtPlan(doubling, profiles=PROFILES, cache_dir=blocked / "cache")
    assert all("cannot be" in note for note in engine.notes)
    assert engine.notes
    np.testing.assert_array_equal(engine.run({"x": on_gpu(X)})["twice"], 2 * X)


def test_no_half_written_file_is_left_behind(use, doubling, tmp_path, monkeypatch):
    use()
    monkeypatch.setattr(
        "os.fsync", lambda handle: (_ for _ in ()).throw(OSError(28, "No space left on device"))
    )
    engine = TrtPlan(doubling, profiles=PROFILES, cache_dir=tmp_path)
    assert "No space left on device" in engine.notes[0]
    assert list(tmp_path.iterdir()) == []


def test_without_tensorrt_the_install_command_is_named(doubling, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorrt", None)
    with pytest.raises(MissingDependencyError, match="pip install tensorrt"):
        TrtPlan(doubling)


def test_an_old_tensorrt_is_refused(use, doubling):
    use(version="8.6.1")
    with pytest.raises(MissingDependencyError, match=r"8\.6\.1 is too old.*--upgrade"):
        TrtPlan(doubling)


def test_a_file_that_is_no_network_is_an_engine_error(use, tmp_path):
    use()
    path = tmp_path / "notes.onnx"
    path.write_text("not a network")
    with pytest.raises(EngineError, match=r"notes\.onnx: TensorRT cannot read it: not an ONNX file"):
        TrtPlan(path)
    with pytest.raises(EngineError, match=r"missing\.onnx: cannot be read"):
        TrtPlan(tmp_path / "missing.onnx")


@pytest.mark.parametrize(
    ("reason", "error"),
    [("no implementation for Relu", EngineError), ("CUDA error: out of memory", DeviceMemoryError)],
)
def test_a_failed_build_gives_tensorrts_own_reason(use, doubling, reason, error):
    use(build_error=reason)
    with pytest.raises(error, match=reason):
        TrtPlan(doubling, profiles=PROFILES)


def test_memory_of_the_host_is_refused(use, doubling):
    use()
    engine = TrtPlan(doubling, profiles=PROFILES)
    with pytest.raises(EngineError, match="host memory"):
        engine.run({"x": X})
