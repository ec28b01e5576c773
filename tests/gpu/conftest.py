"""Fixtures for tests that run whole pipelines."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from onnx import TensorProto, helper
from watched_runs import our_threads


@pytest.fixture
def no_thread_outlives_its_pipeline() -> Iterator[None]:
    yield
    assert our_threads() == []


@pytest.fixture
def doubling() -> bytes:
    """Build a network that maps ``x`` [batch, 3] to ``twice`` and ``negative``."""
    nodes = [helper.make_node("Add", ["x", "x"], ["twice"]), helper.make_node("Neg", ["x"], ["negative"])]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3])
    outputs = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 3]) for name in ("twice", "negative")
    ]
    graph = helper.make_graph(nodes, "doubling", [x], outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return model.SerializeToString()
