from __future__ import annotations

import numpy as np
import pytest

from vitascope.errors import EngineError
from vitascope.gpu.engines import OnnxRuntimeEngine, ShapeRange


def test_runs_and_names_its_outputs(doubling):
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    with OnnxRuntimeEngine(doubling, threads=1) as engine:
        result = engine.run({"x": x})
        assert set(result) == {"twice", "negative"}
        np.testing.assert_array_equal(result["twice"], 2 * x)
        assert list(engine.run({"x": x}, ["negative"])) == ["negative"]
        assert engine.name.endswith("(CPU, 1 thread)")


def test_spec_keeps_symbolic_shapes(doubling, tmp_path):
    path = tmp_path / "doubling.onnx"
    path.write_bytes(doubling)
    with OnnxRuntimeEngine(path) as engine:
        (tensor,) = engine.spec.inputs
        assert (tensor.name, tensor.dtype, tensor.shape) == ("x", np.float32, ("batch", 3))


@pytest.mark.parametrize(
    "inputs",
    [{}, {"y": np.zeros((1, 3), np.float32)}, {"x": np.zeros((1, 4), np.float32)}, {"x": np.zeros((1, 3))}],
)
def test_wrong_inputs_are_one_line(doubling, inputs, capfd):
    with OnnxRuntimeEngine(doubling) as engine, pytest.raises(EngineError) as caught:
        engine.run(inputs)
    assert "\n" not in str(caught.value)
    assert capfd.readouterr().err == ""


def test_a_file_that_is_no_network_is_an_engine_error(tmp_path, capfd):
    path = tmp_path / "notes.onnx"
    path.write_text("not a network")
    for missing_or_text in (path, tmp_path / "missing.onnx"):
        with pytest.raises(EngineError, match="cannot load"):
            OnnxRuntimeEngine(missing_or_text)
    assert capfd.readouterr().err == ""


def test_a_cpu_engine_takes_no_stream(doubling):
    with OnnxRuntimeEngine(doubling) as engine, pytest.raises(EngineError, match="stream"):
        engine.run({"x": np.zeros((1, 3), np.float32)}, stream=7)


def test_a_closed_engine_says_so_and_closes_twice(doubling):
    engine = OnnxRuntimeEngine(doubling)
    engine.close()
    engine.close()
    with pytest.raises(EngineError, match="closed"):
        engine.run({"x": np.zeros((1, 3), np.float32)})


def test_an_unknown_output_is_named(doubling):
    with OnnxRuntimeEngine(doubling) as engine, pytest.raises(EngineError, match="'thrice'"):
        engine.run({"x": np.zeros((1, 3), np.float32)}, ["thrice"])


@pytest.mark.parametrize(
    "arguments",
    [
        {"stream": 5},
        {"cuda_graph": True},
        {"precision": "fp16"},
        {"profiles": {"x": ShapeRange.exactly([1, 3])}},
    ],
)
def test_what_only_a_gpu_has_is_refused_on_the_cpu(doubling, arguments):
    with pytest.raises(EngineError):
        OnnxRuntimeEngine(doubling, **arguments)
