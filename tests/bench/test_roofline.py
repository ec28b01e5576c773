"""Tests of counting a network's work: single operators by hand, a whole network by the shapes that ONNX infers."""

from __future__ import annotations

import importlib
import sys
from math import prod
from pathlib import Path

import numpy as np
import onnx
import pytest

from vitascope.bench.network_probe import trace_network
from vitascope.gpu.engines.onnx_runtime import OperatorCall
from vitascope.models.selfie.selfie import SelfieNetwork


@pytest.fixture
def roofline(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    return importlib.import_module("roofline")


def call(kind, inputs, outputs, *, parameters=0):
    """Count one call with float32 tensors; the last ``parameters`` inputs are the network's own."""
    sizes = [4 * prod(shape) for shape in inputs]
    cut = len(inputs) - parameters
    return OperatorCall(
        kind=kind,
        name="it",
        seconds=1e-3,
        input_shapes=tuple(inputs),
        output_shapes=tuple(outputs),
        activation_bytes=sum(sizes[:cut]),
        parameter_bytes=sum(sizes[cut:]),
        output_bytes=sum(4 * prod(shape) for shape in outputs),
    )


@pytest.mark.parametrize(
    ("operator", "flops"),
    [
        # 8 x 16 x 16 results of 3 x 3 x 3 multiply-adds
        (call("Conv", [(1, 3, 16, 16), (8, 3, 3, 3)], [(1, 8, 16, 16)], parameters=1), 2 * 2048 * 27),
        # one channel a group: 9 multiply-adds
        (call("Conv", [(1, 8, 16, 16), (8, 1, 3, 3)], [(1, 8, 16, 16)], parameters=1), 2 * 2048 * 9),
        # each of 4 x 8 x 8 samples goes to 2 x 2 samples of 6 channels
        (call("ConvTranspose", [(1, 4, 8, 8), (4, 6, 2, 2)], [(1, 6, 16, 16)], parameters=1), 2 * 256 * 24),
        (call("MatMul", [(5, 7), (7, 3)], [(5, 3)]), 2 * 5 * 7 * 3),
        (call("MatMul", [(2, 5, 7), (7, 3)], [(2, 5, 3)]), 2 * 2 * 5 * 7 * 3),
        (call("Gemm", [(5, 7), (3, 7), (3,)], [(5, 3)], parameters=2), 2 * 5 * 7 * 3),
        (call("Relu", [(1, 8, 16, 16)], [(1, 8, 16, 16)]), 2048),
        (call("GlobalAveragePool", [(1, 8, 16, 16)], [(1, 8, 1, 1)]), 2048),
        (call("Resize", [(1, 8, 8, 8), (4,)], [(1, 8, 16, 16)], parameters=1), 2048),
        (call("Reshape", [(1, 8, 16, 16), (2,)], [(8, 256)], parameters=1), 0),
    ],
)
def test_arithmetic(roofline, operator, flops):
    assert roofline.flops_of(operator) == flops


def test_bytes_as_if_all_that_can_be_fused_were(roofline):
    def nbytes(*calls):
        return roofline.count_work(calls, frames=1)[1]

    conv = call("Conv", [(1, 3, 16, 16), (8, 3, 3, 3)], [(1, 8, 16, 16)], parameters=1)
    assert nbytes(conv) == 4 * (768 + 216 + 2048)
    relu = call("Relu", [(1, 8, 16, 16)], [(1, 8, 16, 16)])
    assert nbytes(conv, relu) == 4 * (768 + 216 + 2048)
    residual = call("Add", [(1, 8, 16, 16), (1, 8, 16, 16)], [(1, 8, 16, 16)])
    assert nbytes(residual) == 4 * 2048
    gate = call("Mul", [(1, 8, 16, 16), (1, 8, 1, 1)], [(1, 8, 16, 16)])
    assert nbytes(gate) == 4 * 8
    assert nbytes(call("Concat", [(1, 8, 4, 4), (1, 8, 4, 4)], [(1, 16, 4, 4)])) == 0


def test_work_is_for_one_frame(roofline):
    conv = call("Conv", [(4, 3, 16, 16), (8, 3, 3, 3)], [(4, 8, 16, 16)], parameters=1)
    flops, nbytes = roofline.count_work([conv], frames=1)
    assert roofline.count_work([conv], frames=4) == (flops / 4, nbytes / 4)


@pytest.mark.parametrize(
    ("rate", "intensity", "bound"),
    [
        (50e12, 20, "memory"),  # 62 % of 80 TFLOP/s, left of the ridge at 200 FLOPs a byte
        (600e12, 600, "compute"),
        (100e12, 600, "neither"),
        (10e12, 20, "neither"),
    ],
)
def test_what_bounds_a_network(roofline, rate, intensity, bound):
    roof = roofline.Roof(bytes_per_second=4e12, flops_per_second=800e12)
    assert roof.attainable(20) == 80e12
    assert roof.attainable(1000) == 800e12
    assert roof.bound(rate, intensity) == bound


def test_a_small_network_is_measured_and_drawn(roofline, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(roofline, "COPY_BYTES", 1 << 22)
    monkeypatch.setattr(roofline, "SIDE", 128)
    picture = tmp_path / "roofline.png"
    words = ["--model", "selfie", "--batch", "2", "--set", "gpu.device=cpu", "--png", str(picture)]
    monkeypatch.setattr(sys, "argv", ["roofline.py", *words])
    roofline.main()
    row = capsys.readouterr().out.splitlines()[2].split()
    assert row[:5] == ["selfie,", "batch", "2,", "fp32", row[4]]
    assert 0.06 < float(row[5]) < 0.15  # GFLOP
    assert 5 < float(row[6]) < 50  # MB
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_convolutions_of_a_whole_network_agree_with_shapes_that_onnx_infers(roofline, model_store):
    path = model_store.path("selfie")
    graph = onnx.shape_inference.infer_shapes(onnx.load(str(path)), strict_mode=True).graph
    shapes = {
        value.name: [axis.dim_value for axis in value.type.tensor_type.shape.dim]
        for value in (*graph.input, *graph.value_info, *graph.output)
    }
    shapes |= {tensor.name: list(tensor.dims) for tensor in graph.initializer}
    expected = sum(
        2 * prod(shapes[node.output[0]]) * prod(shapes[node.input[1]][1:])
        for node in graph.node
        if node.op_type == "Conv"
    )

    def opened():
        return SelfieNetwork(path, model_store.path("selfie-landscape"), gate=False, choice="general")

    pictures = np.zeros((3, 1, 256, 256, 3), np.float32)
    sessions = trace_network(opened, pictures, calls=2, warm_ups=1, optimised=False)
    convolutions = [one for session in sessions for one in session if one.kind == "Conv"]
    assert roofline.count_work(convolutions, frames=2 * 3)[0] == pytest.approx(expected)
