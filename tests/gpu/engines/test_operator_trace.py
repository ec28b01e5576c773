"""Tests of ONNX Runtime's profiles: operators of the network that ran, with its shapes, on request only."""

from __future__ import annotations

from time import monotonic_ns

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from vitascope.gpu.engines.onnx_runtime import OnnxRuntimeEngine, operator_traces, traces_wanted


@pytest.fixture(scope="module")
def network():
    """Build a convolution from 3 to 8 channels with a bias, followed by a ReLU."""
    weights = numpy_helper.from_array(np.ones((8, 3, 3, 3), np.float32), "w")
    bias = numpy_helper.from_array(np.ones(8, np.float32), "b")
    graph = helper.make_graph(
        [
            helper.make_node("Conv", ["x", "w", "b"], ["y"], name="conv", pads=[1, 1, 1, 1]),
            helper.make_node("Relu", ["y"], ["z"], name="relu"),
        ],
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, 16, 16])],
        [helper.make_tensor_value_info("z", TensorProto.FLOAT, ["n", 8, 16, 16])],
        [weights, bias],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    return model.SerializeToString()


def traced(network, folder, *, optimised, calls=1):
    with operator_traces(folder, optimised=optimised) as traces, OnnxRuntimeEngine(network) as engine:
        for _ in range(calls):
            engine.run({"x": np.zeros((2, 3, 16, 16), np.float32)})
    return traces


def test_a_network_as_its_file_has_it(network, tmp_path):
    (session,) = traced(network, tmp_path, optimised=False).calls()
    conv, relu = session
    assert (conv.kind, relu.kind) == ("Conv", "Relu")
    assert conv.input_shapes == ((2, 3, 16, 16), (8, 3, 3, 3), (8,))
    assert conv.output_shapes == ((2, 8, 16, 16),)
    assert conv.activation_bytes == 2 * 3 * 16 * 16 * 4
    assert conv.parameter_bytes == (8 * 3 * 3 * 3 + 8) * 4
    assert conv.output_bytes == relu.activation_bytes == 2 * 8 * 16 * 16 * 4
    assert conv.seconds >= 0


def test_an_optimised_network_is_fused(network, tmp_path):
    (session,) = traced(network, tmp_path, optimised=True).calls()
    assert "Relu" not in {call.kind for call in session}


def test_what_began_earlier_is_left_out(network, tmp_path):
    image = {"x": np.zeros((1, 3, 16, 16), np.float32)}
    with operator_traces(tmp_path, optimised=False) as traces, OnnxRuntimeEngine(network) as engine:
        engine.run(image)
        engine.run(image)
        since = monotonic_ns()
        engine.run(image)
        ended = monotonic_ns()
    assert [len(session) for session in traces.calls()] == [6]
    assert [len(session) for session in traces.calls(since_ns=since)] == [2]
    assert [len(session) for session in traces.calls(since_ns=ended)] == [0]


def test_each_session_has_its_own(network, tmp_path):
    with (
        operator_traces(tmp_path, optimised=False) as traces,
        OnnxRuntimeEngine(network) as one,
        OnnxRuntimeEngine(network) as other,
    ):
        one.run({"x": np.zeros((1, 3, 16, 16), np.float32)})
        other.run({"x": np.zeros((4, 3, 16, 16), np.float32)})
    first, second = traces.calls()
    assert first[0].output_shapes[0][0] == 1
    assert second[0].output_shapes[0][0] == 4


def test_nothing_is_traced_that_nobody_asked_for(network, tmp_path):
    with operator_traces(tmp_path):
        assert traces_wanted() is not None
    assert traces_wanted() is None
    with OnnxRuntimeEngine(network) as engine:
        engine.run({"x": np.zeros((1, 3, 16, 16), np.float32)})
    assert list(tmp_path.iterdir()) == []
