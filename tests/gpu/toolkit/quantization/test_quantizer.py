"""Tests of ModelQuantizer on modules and ONNX networks: right, smaller, calibrated, never in place."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from vitascope.errors import DeviceError, EngineError, UsageError
from vitascope.gpu import ModelQuantizer
from vitascope.gpu.engines import OnnxRuntimeEngine
from vitascope.gpu.toolkit.quantization import onnx_networks
from vitascope.gpu.toolkit.quantization.calibration import adds_byte_products_exactly

CHANNELS = 64
INT8_METHODS = ("entropy", "percentile", "minmax")


def convolutions(*, opset=17, batch="batch", loudest=1.0):
    """Build two convolutions of 3 -> 64 -> 64 channels over pictures of 16 x 16, serialised.

    The first channel of each has weights ``loudest`` times as large.
    """
    random = np.random.default_rng(0)

    def weight(name, shape):
        values = random.standard_normal(shape) * (2 / np.prod(shape[1:])) ** 0.5
        values[0] *= loudest
        return numpy_helper.from_array(values.astype(np.float32), name)

    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["a"], name="first", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Conv", ["b", "w2"], ["y"], name="second", pads=[1, 1, 1, 1]),
    ]
    weights = [weight("w1", (CHANNELS, 3, 3, 3)), weight("w2", (CHANNELS, CHANNELS, 3, 3))]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, 3, 16, 16])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [batch, CHANNELS, 16, 16])
    graph = helper.make_graph(nodes, "convolutions", [x], [y], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    return model.SerializeToString()


def frames(count=6, seed=0):
    return np.random.default_rng(seed).random((count, 3, 16, 16), dtype=np.float32)


def initializers(network):
    return {one.name: numpy_helper.to_array(one) for one in onnx.load_from_string(network).graph.initializer}


def operators(network):
    return [node.op_type for node in onnx.load_from_string(network).graph.node]


@pytest.fixture(scope="module")
def network():
    return convolutions()


@pytest.mark.parametrize("method", INT8_METHODS)
def test_static_int8_is_near_and_almost_four_times_smaller(network, method):
    quantized = ModelQuantizer.quantize_int8(network, frames(), method=method)
    size = ModelQuantizer.measure_model_size
    assert size(network) / size(quantized) >= 3.5
    comparison = ModelQuantizer.compare(network, quantized, frames(3, seed=1), iterations=1)
    assert 0 < comparison.relative_error < (0.08 if method == "entropy" else 0.04)
    assert {"QuantizeLinear", "DequantizeLinear"} <= set(operators(quantized))


def test_one_loud_channel_does_not_drown_the_others():
    """Check scales for each channel: with one scale, quiet channels have a twentieth of the integers."""
    loud = convolutions(loudest=20)
    exact = initializers(loud)["w2"]
    errors = []
    for per_channel in (True, False):
        held = initializers(
            ModelQuantizer.quantize_int8(loud, frames(), per_channel=per_channel, method="minmax")
        )
        assert held["w2_scale"].shape == ((CHANNELS,) if per_channel else ())
        values = held["w2_quantized"] * held["w2_scale"].reshape(-1, 1, 1, 1)
        errors.append(np.abs(values - exact)[1:].mean() / np.abs(exact)[1:].mean())
    assert errors[0] < (0.01 if adds_byte_products_exactly() else 0.02)  # weights of 8 bits, or 7
    assert errors[1] > 5 * errors[0]


@pytest.mark.parametrize(("exact", "most"), [(True, 127), (False, 64)])
def test_weights_fit_what_the_processor_adds_up(network, monkeypatch, exact, most):
    monkeypatch.setattr(onnx_networks, "adds_byte_products_exactly", lambda: exact)
    weights = initializers(ModelQuantizer.quantize_int8(network, frames(), method="minmax"))["w1_quantized"]
    assert np.abs(weights.astype(int)).max() == most
    for_a_gpu = ModelQuantizer.quantize_int8(network, frames(), method="minmax", target="gpu")
    assert np.abs(initializers(for_a_gpu)["w1_quantized"].astype(int)).max() == 127


def test_for_a_gpu_activations_are_signed_and_have_no_zero_point(network):
    """Check that quantisation is symmetric, as TensorRT requires ("Working with Quantized Types")."""
    model = onnx.load_from_string(ModelQuantizer.quantize_int8(network, frames(), target="gpu"))
    points = [numpy_helper.to_array(one) for one in model.graph.initializer if "zero_point" in one.name]
    assert points
    assert all(point.dtype in (np.int8, np.int32) and not point.any() for point in points)
    on_cpu = onnx.load_from_string(ModelQuantizer.quantize_int8(network, frames()))
    points = [numpy_helper.to_array(one) for one in on_cpu.graph.initializer if "zero_point" in one.name]
    assert any(point.dtype == np.uint8 for point in points)


def test_entropy_cuts_off_what_minmax_keeps(network):
    """Check an outlier in the calibration: the range that loses least information excludes it."""
    loud = frames(16)
    loud[0, 0, 0, 0] = 40.0

    def input_scale(method, **options):
        return float(
            initializers(ModelQuantizer.quantize_int8(network, loud, method=method, **options))["x_scale"]
        )

    assert input_scale("minmax") == pytest.approx(40 / 255, rel=1e-3)
    assert input_scale("entropy") < 0.5 * input_scale("minmax")
    assert input_scale("percentile", percentile=99.0) < 0.5 * input_scale("minmax")


def test_what_is_skipped_stays(network):
    quantized = ModelQuantizer.quantize_int8(network, frames(), skip=["second"])
    weights = {one.name: one.data_type for one in onnx.load_from_string(quantized).graph.initializer}
    assert weights["w2"] == TensorProto.FLOAT
    assert "w1_quantized" in weights
    with pytest.raises(UsageError, match="'third', which is not a node"):
        ModelQuantizer.quantize_int8(network, frames(), skip=["third"])


def test_networks_of_older_operators_are_brought_forward():
    old = convolutions(opset=11)
    quantized = ModelQuantizer.quantize_int8(old, frames(), method="minmax")
    assert ModelQuantizer.compare(old, quantized, frames(2), iterations=1).relative_error < 0.04


def test_a_network_with_a_fixed_batch_is_calibrated_by_that_many():
    fixed = convolutions(batch=2)
    quantized = ModelQuantizer.quantize_int8(fixed, frames(5), method="minmax")
    with OnnxRuntimeEngine(fixed) as reference, OnnxRuntimeEngine(quantized) as engine:
        wanted = reference.run({"x": frames(2)})["y"]
        assert np.abs(engine.run({"x": frames(2)})["y"] - wanted).mean() < 0.04 * np.abs(wanted).mean()
    with pytest.raises(UsageError, match="2 entries at a time, and calibration has 1"):
        ModelQuantizer.quantize_int8(fixed, frames(1))


def test_dynamic_needs_no_calibration(network):
    quantized = ModelQuantizer.quantize_dynamic(network)
    assert "ConvInteger" in operators(quantized)
    size = ModelQuantizer.measure_model_size
    assert size(network) / size(quantized) >= 3.5
    assert ModelQuantizer.compare(network, quantized, frames(2), iterations=1).relative_error < 0.1


def test_fp16_halves_and_keeps_the_types_outside(network):
    half = ModelQuantizer.quantize_fp16(network)
    size = ModelQuantizer.measure_model_size
    assert size(network) / size(half) == pytest.approx(2, rel=0.01)
    with OnnxRuntimeEngine(half) as engine:
        assert engine.spec.inputs[0].dtype == engine.spec.outputs[0].dtype == np.float32
    assert ModelQuantizer.compare(network, half, frames(2), iterations=1).relative_error < 2e-3


def test_paths_are_taken_and_left_as_they_were(network, tmp_path):
    path = tmp_path / "network.onnx"
    path.write_bytes(network)
    assert ModelQuantizer.measure_model_size(str(path)) == ModelQuantizer.measure_model_size(network)
    for quantize in (
        ModelQuantizer.quantize_fp16,
        ModelQuantizer.quantize_dynamic,
        lambda one: ModelQuantizer.quantize_int8(one, frames(2), method="minmax"),
    ):
        assert isinstance(quantize(path), bytes)
    assert path.read_bytes() == network


def test_the_size_is_that_of_the_weights(network):
    assert ModelQuantizer.measure_model_size(network) == 4 * (CHANNELS * 3 * 9 + CHANNELS * CHANNELS * 9)


def test_nothing_is_printed_and_nothing_is_left_in_the_temporary_folder(
    network, tmp_path, monkeypatch, capfd
):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    ModelQuantizer.quantize_int8(network, frames(2))
    ModelQuantizer.quantize_dynamic(network)
    assert capfd.readouterr() == ("", "")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("calibration", "reason"),
    [
        ({}, "for nothing; the network takes x"),
        ({"y": frames()}, "is for y; the network takes x"),
        (np.zeros((0, 3, 16, 16), np.float32), "at least one"),
        (np.full((2, 3, 16, 16), np.nan, np.float32), "not finite"),
    ],
)
def test_calibration_that_does_not_fit_is_refused(network, calibration, reason):
    with pytest.raises(UsageError, match=reason):
        ModelQuantizer.quantize_int8(network, calibration)


def test_calibration_of_another_size_is_an_engine_error(network):
    with pytest.raises(EngineError, match="cannot be quantised"):
        ModelQuantizer.quantize_int8(network, np.zeros((2, 5, 16, 16), np.float32))


@pytest.mark.parametrize("percentile", [0, -1, 101, float("nan")])
def test_a_percentile_is_a_share(network, percentile):
    with pytest.raises(UsageError, match="percentile"):
        ModelQuantizer.quantize_int8(network, frames(), method="percentile", percentile=percentile)


@pytest.mark.parametrize("option", [{"method": "mse"}, {"target": "tpu"}])
def test_words_are_those_that_are_known(network, option):
    (word,) = option
    with pytest.raises(UsageError, match=f"{word} is "):
        ModelQuantizer.quantize_int8(network, frames(), **option)


@pytest.mark.parametrize("thing", [3, None, object()])
def test_what_is_no_network_is_refused(thing):
    for call in (
        ModelQuantizer.quantize_fp16,
        ModelQuantizer.quantize_dynamic,
        ModelQuantizer.measure_model_size,
        ModelQuantizer.quantize_fp8,
        lambda one: ModelQuantizer.quantize_int8(one, frames()),
    ):
        with pytest.raises(UsageError):
            call(thing)


def test_a_file_that_is_no_network_is_named(tmp_path):
    path = tmp_path / "notes.onnx"
    path.write_text("not a network")
    with pytest.raises(EngineError, match=r"notes\.onnx: cannot be read as an ONNX network"):
        ModelQuantizer.quantize_fp16(path)
    with pytest.raises(EngineError, match=r"missing\.onnx"):
        ModelQuantizer.measure_model_size(tmp_path / "missing.onnx")


def test_fp8_without_a_gpu_says_so():
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(DeviceError, match="FP8 needs an NVIDIA GPU"):
        ModelQuantizer.quantize_fp8(torch.nn.Linear(32, 32))
