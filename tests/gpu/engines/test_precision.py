from __future__ import annotations

import sys
import types
from pathlib import Path

import numpy as np
import onnx
import pytest

from vitascope.errors import EngineError, MissingDependencyError
from vitascope.gpu.engines.onnx_network import with_precision

PICTURES = {"x": np.ones((5, 3), np.float32)}


@pytest.fixture
def modelopt(monkeypatch):
    """Simulate NVIDIA's converter by its documented interface; it records the request in the file's producer."""
    calls = []

    def marked(model, how):
        model.producer_name = how
        return model

    def to_mixed(*, onnx_path, low_precision_type, keep_io_types):
        calls.append(("mixed", low_precision_type, keep_io_types))
        return marked(onnx.load(onnx_path), "mixed")

    def to_f16(model, *, low_precision_type, keep_io_types):
        calls.append(("fp16", low_precision_type, keep_io_types))
        return marked(model, "fp16")

    def quantize(onnx_path, *, output_path, **options):
        calls.append(("int8", options))
        onnx.save(marked(onnx.load(onnx_path), "int8"), output_path)

    autocast = types.ModuleType("modelopt.onnx.autocast.convert")
    autocast.convert_to_mixed_precision, autocast.convert_to_f16 = to_mixed, to_f16
    quantization = types.ModuleType("modelopt.onnx.quantization")
    quantization.quantize = quantize
    for module in (autocast, quantization, *map(types.ModuleType, ("modelopt", "modelopt.onnx"))):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(sys.modules, "modelopt.onnx.autocast", types.ModuleType("modelopt.onnx.autocast"))
    return calls


@pytest.mark.parametrize("as_file", [True, False])
def test_fp32_and_tf32_are_the_network_as_it_is(doubling, tmp_path, as_file):
    path = tmp_path / "network.onnx"
    path.write_bytes(doubling)
    for precision in ("fp32", "tf32"):
        assert with_precision(path if as_file else doubling, precision) == doubling


@pytest.mark.parametrize("precision", ["mixed", "fp16"])
@pytest.mark.parametrize("as_file", [True, False])
def test_half_precision_keeps_the_types_of_inputs_and_outputs(
    modelopt, doubling, tmp_path, precision, as_file
):
    path = tmp_path / "network.onnx"
    path.write_bytes(doubling)
    converted = with_precision(path if as_file else doubling, precision)
    assert modelopt == [(precision, "fp16", True)]
    assert onnx.load_from_string(converted).producer_name == precision
    assert path.read_bytes() == doubling


def test_int8_is_calibrated_on_what_is_given(modelopt, doubling):
    converted = with_precision(doubling, "int8", calibration=PICTURES)
    assert onnx.load_from_string(converted).producer_name == "int8"
    ((_, options),) = modelopt
    assert options == {
        "quantize_mode": "int8",
        "calibration_data": PICTURES,
        "calibration_method": "entropy",
        "high_precision_dtype": "fp16",
    }


@pytest.mark.parametrize("calibration", [None, {}])
def test_int8_without_data_is_refused_because_the_converter_would_take_random_numbers(
    modelopt, doubling, calibration
):
    with pytest.raises(EngineError, match="calibration data"):
        with_precision(doubling, "int8", calibration=calibration)
    assert modelopt == []


@pytest.mark.parametrize("precision", ["mixed", "fp16", "int8"])
def test_without_the_converter_its_package_is_named(doubling, monkeypatch, precision):
    monkeypatch.setitem(sys.modules, "modelopt", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'nvidia-modelopt\[onnx\]'"):
        with_precision(doubling, precision, calibration=PICTURES)


def test_a_converter_that_fails_is_an_engine_error_and_leaves_no_files(
    modelopt, doubling, monkeypatch, tmp_path
):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    module = sys.modules["modelopt.onnx.autocast.convert"]

    def fail(**arguments):
        assert Path(arguments["onnx_path"]).is_file()
        raise ValueError("unsupported operator\nlong trace")

    monkeypatch.setattr(module, "convert_to_mixed_precision", fail)
    with pytest.raises(EngineError, match=r"to mixed: unsupported operator$"):
        with_precision(doubling, "mixed")
    assert list(tmp_path.iterdir()) == []
