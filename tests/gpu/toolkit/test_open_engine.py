"""Check that open_engine returns the best engine that works and passes the check, or the requested one."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch")

from tiny_modules import SHAPES, expected, pictures, tiny_network
from vitascope.errors import DeviceError, EngineError, MissingDependencyError, UsageError
from vitascope.gpu import InductorEngine, OnnxEngine, open_engine

X = np.arange(6, dtype=np.float32).reshape(2, 3)


def test_an_onnx_network_opens_without_more(doubling, tmp_path):
    path = tmp_path / "doubling.onnx"
    path.write_bytes(doubling)
    for model in (path, str(path), doubling):
        reasons = []
        with open_engine(model, on_reason=reasons.append) as engine:
            assert isinstance(engine, OnnxEngine)
            np.testing.assert_array_equal(engine.run({"x": X})["twice"], 2 * X)
        assert len(reasons) == 1
        assert "onnxruntime" in reasons[0]
        assert "differs from the CPU's by 0" in reasons[0]


def test_a_module_runs_on_the_engine_that_is_named():
    network = tiny_network()
    with open_engine(network, "inductor", input_shapes=SHAPES, device="cpu") as engine:
        assert isinstance(engine, InductorEngine)
        np.testing.assert_allclose(engine.infer(pictures(3)), expected(network, pictures(3)), atol=1e-5)


def test_auto_goes_on_where_a_package_is_missing(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "onnxscript", None)
    reasons = []
    with open_engine(tiny_network(), input_shapes=SHAPES, on_reason=reasons.append) as engine:
        assert isinstance(engine, InductorEngine)
    assert "onnxruntime is not used" in reasons[0]
    assert "onnxscript" in reasons[0]
    with pytest.raises(MissingDependencyError, match="onnxscript"):
        open_engine(tiny_network(), "onnxruntime", input_shapes=SHAPES)


def test_an_engine_that_computes_wrongly_is_refused_and_freed(monkeypatch):
    closed = []
    run, close = InductorEngine.run, InductorEngine.close
    monkeypatch.setattr(
        InductorEngine,
        "run",
        lambda self, *a, **k: {name: array + 1 for name, array in run(self, *a, **k).items()},
    )
    monkeypatch.setattr(InductorEngine, "close", lambda self: closed.append(1) or close(self))
    with pytest.raises(EngineError, match="failed its check on CPU"):
        open_engine(tiny_network(), "inductor", input_shapes=SHAPES, device="cpu")
    assert closed


def test_a_verdict_is_kept_and_another_network_gets_its_own(tmp_path):
    for seed in (0, 0, 1):
        open_engine(
            tiny_network(seed), "inductor", input_shapes=SHAPES, device="cpu", cache_dir=tmp_path
        ).close()
    assert len(list(tmp_path.glob("*.verdict.json"))) == 2


def test_int8_is_held_against_its_own_tolerance():
    with open_engine(
        tiny_network(),
        "inductor",
        input_shapes=SHAPES,
        device="cpu",
        int8_mode=True,
        calibration={"input": pictures(8)},
    ) as engine:
        assert engine.precision == "int8"


def test_what_does_not_fit_is_said(doubling):
    with pytest.raises(UsageError, match="runs PyTorch modules"):
        open_engine(doubling, "inductor")
    with pytest.raises(UsageError, match="input_shapes"):
        open_engine(tiny_network())
    with pytest.raises(EngineError, match="no engine is called 'openvino'"):
        open_engine(doubling, "openvino")  # type: ignore[arg-type]
    with pytest.raises(DeviceError, match="OnnxEngine or InductorEngine"):
        open_engine(doubling, "tensorrt", device="cpu")


def test_without_pytorch_what_needs_none_works(doubling, tmp_path):
    """Run in a separate process, as torch is loaded in this one."""
    import subprocess
    import sys

    path = tmp_path / "doubling.onnx"
    path.write_bytes(doubling)
    program = f"""
import sys
sys.modules["torch"] = None
import numpy as np
from vitascope.errors import MissingDependencyError
from vitascope.gpu import InductorEngine, ModelQuantizer, OnnxEngine, TensorRTEngine, open_engine
with open_engine({str(path)!r}, device="cpu") as engine:
    assert engine.run({{"x": np.ones((1, 3), np.float32)}})["twice"].sum() == 6
assert ModelQuantizer.measure_model_size({str(path)!r}) == 0
assert isinstance(ModelQuantizer.quantize_fp16({str(path)!r}), bytes)
try:
    InductorEngine(device="cpu")
except MissingDependencyError as error:
    print(error)
"""
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout == "PyTorch is not installed: pip install 'vitascope[torch]'\n"
