"""Parts of an ONNX network, as networks of their own."""

from __future__ import annotations

from collections.abc import Sequence

import onnx
from onnx import TensorProto, helper


def ancestors(graph: onnx.GraphProto, outputs: Sequence[str], *, stop: set[str]) -> list[onnx.NodeProto]:
    """The nodes that the outputs depend on, in graph order, not looking behind the tensors in ``stop``."""
    producer = {name: node for node in graph.node for name in node.output}
    wanted: set[str] = set()
    pending = list(outputs)
    while pending:
        name = pending.pop()
        if name in wanted or name in stop or name not in producer:
            continue
        wanted.add(name)
        pending.extend(producer[name].input)
    return [node for node in graph.node if any(name in wanted for name in node.output)]


def sub_network(
    model: onnx.ModelProto, nodes: list[onnx.NodeProto], inputs: Sequence[str], outputs: Sequence[str]
) -> bytes:
    """A stand-alone network of some of a model's nodes; tensors are float32 [N, C, H, W] of free sizes."""
    read = {name for node in nodes for name in node.input}
    weights = [tensor for tensor in model.graph.initializer if tensor.name in read]

    def tensors(names: Sequence[str]) -> list[onnx.ValueInfoProto]:
        free = ("n", "c", "h", "w")
        return [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, [f"{name}_{axis}" for axis in free])
            for name in names
        ]

    graph = helper.make_graph(nodes, "rvm", tensors(inputs), tensors(outputs), weights)
    cut = helper.make_model(graph, opset_imports=model.opset_import, ir_version=model.ir_version)
    return bytes(cut.SerializeToString())
