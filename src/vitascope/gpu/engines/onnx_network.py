"""Serialised ONNX networks: read with what lies beside them; what they compute in, and the sizes that they are for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from vitascope.errors import EngineError
from vitascope.gpu.engines.engine import ShapeRange
from vitascope.gpu.engines.input_shapes import shapes_from_json, shapes_to_json

__all__ = ["kept_shapes", "load_network", "low_precision_of", "read_network", "with_kept_shapes"]

_KEY = "vitascope.input_shapes"
# Of the ONNX operator set, and of ONNX Runtime's own (com.microsoft), as far as quantisers write them.
_INTEGER_OPERATORS = frozenset({
    "ConvInteger", "DynamicQuantizeLinear", "DynamicQuantizeMatMul", "MatMulInteger",
    "MatMulIntegerToFloat", "QLinearConv", "QLinearMatMul", "QuantizeLinear",
})  # fmt: skip


def load_network(source: Path | bytes) -> Any:
    """The ``onnx.ModelProto`` of a file or of its bytes, with weights that a file keeps beside it.

    Raises:
        EngineError: It cannot be read, or is no ONNX network.
    """
    import onnx  # takes 0.1 s

    try:
        return onnx.load_from_string(source) if isinstance(source, bytes) else onnx.load(str(source))
    except OSError as error:
        raise EngineError(f"{source!s}: cannot be read ({(error.strerror or str(error)).lower()})") from error
    except Exception as error:  # protobuf raises types without a common base
        label = "network" if isinstance(source, bytes) else str(source)
        raise EngineError(f"{label}: cannot be read as an ONNX network") from error


def read_network(source: Path | bytes) -> bytes:
    """The serialised network of a file, whole.

    Raises:
        EngineError: As ``load_network``; or it passes the 2 GB that one message holds.
    """
    if isinstance(source, bytes):
        return source
    try:
        return bytes(load_network(source).SerializeToString())
    except ValueError as error:
        raise EngineError(f"{source}: passes 2 GB with its weights, and cannot be one message") from error


def with_kept_shapes(network: bytes, ranges: Mapping[str, ShapeRange]) -> bytes:
    """The network with the sizes that it is meant for among its metadata."""
    if not ranges:
        return network
    model = load_network(network)
    for index in reversed(range(len(model.metadata_props))):
        if model.metadata_props[index].key == _KEY:
            del model.metadata_props[index]
    model.metadata_props.add(key=_KEY, value=shapes_to_json(ranges))
    return bytes(model.SerializeToString())


def low_precision_of(network: bytes) -> Literal["int8", "fp16"] | None:
    """What a network computes in, by what its operators are given; None for FP32.

    Weights that are merely kept small and widened before they are used (``Cast``, ``DequantizeLinear``) do not count.
    """
    from onnx import TensorProto

    graph = load_network(network).graph
    if any(node.op_type in _INTEGER_OPERATORS for node in graph.node):
        return "int8"
    half = {one.name for one in graph.initializer if one.data_type == TensorProto.FLOAT16}
    for value in (*graph.input, *graph.value_info):
        if value.type.tensor_type.elem_type == TensorProto.FLOAT16:
            half.add(value.name)
    for node in graph.node:
        if node.op_type == "Constant" and any(
            one.t.data_type == TensorProto.FLOAT16 for one in node.attribute
        ):
            half.update(node.output)
        elif node.op_type != "Cast" and half.intersection(node.input):
            return "fp16"
    return None


def kept_shapes(network: bytes) -> dict[str, ShapeRange]:
    """The sizes that ``with_kept_shapes`` kept; empty where there are none."""
    texts = [one.value for one in load_network(network).metadata_props if one.key == _KEY]
    return shapes_from_json(texts[0]) if texts else {}
