"""Serialised ONNX networks: read them, extract parts, and convert their arithmetic and sizes.

TensorRT 11 has no precision switches: a network computes in the types in which it is written. So fp16 is a network
with fp16 tensors, and int8 one with explicit quantise and dequantise operators, which ONNX Runtime can also run.
Inputs and outputs keep their types. NVIDIA's Model Optimizer (``nvidia-modelopt``) converts, called as documented
(0.47: ``modelopt.onnx.autocast``, ``modelopt.onnx.quantization``). Contract tests cover the calls; the package itself
has not been run.
"""

from __future__ import annotations

import importlib
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from vitascope.errors import EngineError, MissingDependencyError
from vitascope.gpu.engines.engine import Precision, ShapeRange, shapes_from_json, shapes_to_json

if TYPE_CHECKING:
    import onnx

_KEY = "vitascope.input_shapes"
# Operators of ONNX and of ONNX Runtime (com.microsoft) that quantisers write.
_INTEGER_OPERATORS = frozenset({
    "ConvInteger", "DynamicQuantizeLinear", "DynamicQuantizeMatMul", "MatMulInteger",
    "MatMulIntegerToFloat", "QLinearConv", "QLinearMatMul", "QuantizeLinear",
})  # fmt: skip


def load_network(source: Path | bytes) -> Any:
    """Load the ``onnx.ModelProto`` of a file or of serialised bytes, including weights stored beside the file.

    Raises:
        EngineError: It cannot be read, or is not an ONNX network.
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
    """Read a file's network as serialised bytes, with all weights.

    Raises:
        EngineError: As ``load_network``; or it exceeds the 2 GB of one message.
    """
    if isinstance(source, bytes):
        return source
    try:
        return bytes(load_network(source).SerializeToString())
    except ValueError as error:
        raise EngineError(f"{source}: larger than 2 GB with its weights, the limit of one message") from error


def with_kept_shapes(network: bytes, ranges: Mapping[str, ShapeRange]) -> bytes:
    """The network, with the sizes it is meant for stored in its metadata."""
    if not ranges:
        return network
    model = load_network(network)
    for index in reversed(range(len(model.metadata_props))):
        if model.metadata_props[index].key == _KEY:
            del model.metadata_props[index]
    model.metadata_props.add(key=_KEY, value=shapes_to_json(ranges))
    return bytes(model.SerializeToString())


def low_precision_of(network: bytes) -> Literal["int8", "fp16"] | None:
    """The arithmetic of a network, by its operators' input types; None for FP32.

    Weights that are only stored small and widened before use (``Cast``, ``DequantizeLinear``) do not count.
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
    """Read the sizes stored by ``with_kept_shapes``; empty if there are none."""
    texts = [one.value for one in load_network(network).metadata_props if one.key == _KEY]
    return shapes_from_json(texts[0]) if texts else {}


Calibration = Mapping[str, npt.NDArray[np.floating[Any]]]
"""Typical values for each input (such as pictures), along the first axis."""


def with_precision(
    model: Path | bytes,
    precision: Precision,
    *,
    calibration: Calibration | None = None,
) -> bytes:
    """Convert an fp32 network.

    Args:
        model: Path of an ``.onnx`` file, or its serialised bytes.
        precision: ``mixed`` keeps operations in fp32 that the converter finds sensitive, ``fp16`` converts
            everything, ``int8`` quantises convolutions and matrix products and computes the rest in fp16. ``fp32``
            and ``tf32`` return the network unchanged.
        calibration: For ``int8``: typical inputs, whose value ranges set the scales.

    Returns:
        The serialised network.

    Raises:
        MissingDependencyError: ``nvidia-modelopt`` is not installed.
        EngineError: ``int8`` without calibration, or the converter failed.
    """
    if precision in ("fp32", "tf32"):
        return _read(model) if isinstance(model, Path) else model
    if precision == "int8" and not calibration:
        # Without data, the converter calibrates on random numbers, and its scales are useless.
        raise EngineError(
            "an int8 network needs calibration data, a few dozen typical inputs: "
            "vitascope.gpu.ModelQuantizer.quantize_int8 makes one, and its file runs on every engine as it is"
        )
    converter = _converter("quantization" if precision == "int8" else "autocast.convert")
    with tempfile.TemporaryDirectory(prefix="vitascope-") as scratch:
        source = _as_file(model, Path(scratch))
        try:
            if precision == "int8":
                return _quantized(converter, source, calibration)
            if precision == "mixed":
                converted = converter.convert_to_mixed_precision(
                    onnx_path=str(source), low_precision_type="fp16", keep_io_types=True
                )
            else:
                import onnx  # takes 0.1 s, and only this conversion needs it

                converted = converter.convert_to_f16(
                    onnx.load(str(source)), low_precision_type="fp16", keep_io_types=True
                )
        except Exception as error:  # the converter documents no error types
            raise EngineError(
                f"the network cannot be converted to {precision}: {str(error).strip().partition(chr(10))[0]}"
            ) from error
        return bytes(converted.SerializeToString())


def _converter(module: str) -> Any:
    try:
        return importlib.import_module(f"modelopt.onnx.{module}")
    except ImportError as error:
        raise MissingDependencyError(
            "fp16, mixed and int8 networks are made by NVIDIA's Model Optimizer: pip install 'nvidia-modelopt[onnx]'"
        ) from error


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise EngineError(f"{path}: cannot be read ({(error.strerror or str(error)).lower()})") from error


def _as_file(model: Path | bytes, scratch: Path) -> Path:
    if isinstance(model, Path):
        return model
    path = scratch / "network.onnx"
    path.write_bytes(model)
    return path


def _quantized(converter: Any, source: Path, calibration: Calibration | None) -> bytes:
    with tempfile.TemporaryDirectory(prefix="vitascope-") as scratch:
        target = Path(scratch) / "int8.onnx"
        converter.quantize(
            str(source),
            quantize_mode="int8",
            calibration_data=dict(calibration or {}),
            calibration_method="entropy",
            high_precision_dtype="fp16",
            output_path=str(target),
        )
        return target.read_bytes()


def ancestors(graph: onnx.GraphProto, outputs: Sequence[str], *, stop: set[str]) -> list[onnx.NodeProto]:
    """The nodes that the outputs depend on, in graph order, stopping at the tensors in ``stop``."""
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
    """A stand-alone network of some nodes of a model; tensors are float32 [N, C, H, W] with free sizes."""
    from onnx import TensorProto, helper

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
