from __future__ import annotations

import sys

import pytest
from onnx import TensorProto, helper

from fake_cupy import fake_cupy


@pytest.fixture
def cupy(monkeypatch):
    """A stand-in for CuPy, in its place."""
    module = fake_cupy()
    monkeypatch.setitem(sys.modules, "cupy", module)
    return module


@pytest.fixture
def doubling() -> bytes:
    """From ``x`` [batch, 3] to ``twice`` and ``negative``."""
    nodes = [helper.make_node("Add", ["x", "x"], ["twice"]), helper.make_node("Neg", ["x"], ["negative"])]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3])
    outputs = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 3]) for name in ("twice", "negative")
    ]
    graph = helper.make_graph(nodes, "doubling", [x], outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return model.SerializeToString()
