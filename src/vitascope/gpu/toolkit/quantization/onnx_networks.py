"""Quantise ONNX networks with ONNX Runtime's own tools (onnxruntime.ai, "Quantize ONNX Models").

Static INT8 networks wrap integer operators in QuantizeLinear and DequantizeLinear (Q/DQ), a format shared by
ONNX Runtime, on the CPU and on CUDA, and TensorRT.
"""

from __future__ import annotations

import io
import logging
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any, Literal

import numpy as np

from vitascope.errors import EngineError, UsageError
from vitascope.gpu.engines.onnx_network import load_network
from vitascope.gpu.toolkit.quantization.calibration import (
    CalibrationMethod,
    FloatArray,
    adds_byte_products_exactly,
    entropy_bins,
    named_frames,
)

QUANTIZED_OPERATORS = ("Conv", "ConvTranspose", "Gemm", "MatMul")
"""Operators that hold the weights. The others stay in FP32: they are cheap, and mattes are sensitive to them."""

# The first opset whose DequantizeLinear supports a scale per channel (onnx.ai, "DequantizeLinear").
_CHANNEL_SCALES = 13
_ENTROPY_BINS = 4096


def static_network(
    model: Path | bytes,
    frames: Mapping[str, Any] | Sequence[Any] | FloatArray,
    *,
    method: CalibrationMethod = "percentile",
    percentile: float = 99.99,
    per_channel: bool = True,
    target: Literal["cpu", "gpu"] = "cpu",
    skip: Sequence[str] = (),
) -> bytes:
    """Quantise a network to INT8, with scales from calibration.

    Args:
        model: Path of an ``.onnx`` file, or its serialised bytes; FP32.
        frames: Typical inputs, along the first axis: by input name, or one array.
        method: How to choose an activation's range; see ``calibration``.
        percentile: For ``percentile``: share of values to keep, in per cent.
        per_channel: Use one weight scale per output channel.
        target: ``cpu``: unsigned activations with a zero point, fastest on x86, and 7-bit weights if the CPU
            does not sum byte products exactly. ``gpu``: signed activations without zero points, the only kind
            TensorRT takes ("Working with Quantized Types").
        skip: Names of nodes to keep in FP32.

    Raises:
        UsageError: The frames do not match the inputs.
        EngineError: It is not an ONNX network, or ONNX Runtime cannot quantise it.
    """
    from onnxruntime.quantization import QDQQuantizer, QuantType

    loaded = load_network(model)
    reader = _Frames(named_frames(frames, _input_names(loaded)), loaded)
    if unknown := sorted(set(skip) - {node.name for node in loaded.graph.node}):
        raise UsageError(f"skip names {unknown[0]!r}, which is not a node of the network")
    symmetric = target == "gpu"

    def quantize(source: Path, result: Path) -> None:
        import onnx

        prepared = onnx.shape_inference.infer_shapes(onnx.load(str(source)))
        quantizer = QDQQuantizer(
            prepared,
            per_channel,
            not (symmetric or adds_byte_products_exactly()),
            QuantType.QInt8,
            QuantType.QInt8 if symmetric else QuantType.QUInt8,
            _tensor_ranges(source, reader, method, percentile),
            [],
            list(skip),
            list(QUANTIZED_OPERATORS),
            {"ActivationSymmetric": symmetric, "WeightSymmetric": True, "QuantizeBias": False},
        )
        quantizer.quantize_model()
        quantizer.model.save_model_to_file(str(result))

    return _converted(loaded, quantize, what="INT8")


def _tensor_ranges(source: Path, reader: _Frames, method: CalibrationMethod, percentile: float) -> Any:
    """Find the range of every quantised activation with ONNX Runtime's calibrators.

    For ``entropy`` only its histograms are used, and the range is ours: with its defaults its own search
    tries only the full range, and with more bins the selfie network's matte is off by 12 to 36 codes of 255.
    """
    from onnxruntime.quantization import CalibrationMethod as Method
    from onnxruntime.quantization.calibrate import TensorsData, create_calibrator

    methods = {"entropy": Method.Percentile, "percentile": Method.Percentile, "minmax": Method.MinMax}
    options: dict[str, Any] = {}
    if method == "percentile":
        options["percentile"] = percentile
    elif method == "entropy":
        options |= {"symmetric": False, "num_bins": _ENTROPY_BINS}  # histograms from -t to t
    calibrator = create_calibrator(
        source,
        list(QUANTIZED_OPERATORS),
        augmented_model_path=str(source.with_name("augmented.onnx")),
        calibrate_method=methods[method],
        extra_options=options,
    )
    calibrator.collect_data(reader)
    if method != "entropy":
        return calibrator.compute_data()
    ranges = {}
    for name, (counts, edges, low, high, _) in calibrator.collector.histogram_dict.items():
        # Both halves together give the magnitudes.
        half = len(counts) // 2
        magnitudes = counts[half:] + counts[:half][::-1]
        if not magnitudes.any():
            ranges[name] = (low, high)
            continue
        most = np.float32(entropy_bins(magnitudes) * (edges[-1] / half))
        ranges[name] = (np.maximum(low, -most), np.minimum(high, most))
    return TensorsData(Method.MinMax, ranges)


def dynamic_network(model: Path | bytes, *, per_channel: bool = True) -> bytes:
    """Quantise weights to INT8 and scale activations at run time: no calibration, but slower.

    Raises:
        EngineError: It is not an ONNX network, or ONNX Runtime cannot quantise it.
    """
    from onnxruntime.quantization import QuantType, quantize_dynamic

    def quantize(source: Path, result: Path) -> None:
        # ONNX Runtime's ConvInteger and MatMulInteger require unsigned weights if activations are unsigned.
        quantize_dynamic(
            str(source),
            str(result),
            op_types_to_quantize=["Conv", "Gemm", "MatMul"],
            per_channel=per_channel,
            weight_type=QuantType.QUInt8,
        )

    return _converted(load_network(model), quantize, what="INT8")


def half_network(model: Path | bytes) -> bytes:
    """Convert weights and activations to FP16; inputs and outputs keep their types.

    Raises:
        EngineError: It is not an ONNX network, or cannot be converted.
    """
    from onnxruntime.transformers.float16 import convert_float_to_float16

    loaded = load_network(model)
    try:
        with _quiet():
            return bytes(convert_float_to_float16(loaded, keep_io_types=True).SerializeToString())
    except Exception as error:  # the tool documents no error types
        raise EngineError(f"the network cannot be converted to FP16: {_first_line(error)}") from error


def weight_bytes(model: Path | bytes) -> int:
    """Size of a network's weights in bytes: initialisers and Constant values of all its graphs."""
    return _graph_bytes(load_network(model).graph)


def _graph_bytes(graph: Any) -> int:
    from onnx import numpy_helper

    total = sum(numpy_helper.to_array(tensor).nbytes for tensor in graph.initializer)
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                total += numpy_helper.to_array(attribute.t).nbytes
            if attribute.HasField("g"):
                total += _graph_bytes(attribute.g)
    return int(total)


def _input_names(model: Any) -> list[str]:
    weights = {tensor.name for tensor in model.graph.initializer}
    return [value.name for value in model.graph.input if value.name not in weights]


class _Frames:
    """``onnxruntime.quantization.CalibrationDataReader`` over arrays, one entry at a time.

    A network with a fixed batch size gets that many entries at a time.
    """

    def __init__(self, frames: Mapping[str, FloatArray], model: Any) -> None:
        from onnx import helper

        self._frames = {}
        batch = 1
        for value in model.graph.input:
            if value.name in frames:
                dtype = helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
                self._frames[value.name] = np.ascontiguousarray(frames[value.name], dtype)
                dims = value.type.tensor_type.shape.dim
                batch = max(batch, dims[0].dim_value if dims else 1)
        self._batch, self._next = batch, 0
        self._count = min(len(array) for array in self._frames.values())
        if self._count < batch:
            raise UsageError(
                f"the network takes {batch} entries at a time, and calibration has {self._count}"
            )

    def get_next(self) -> dict[str, FloatArray] | None:
        """Get the next entry; None after the last."""
        if self._next + self._batch > self._count:
            return None
        part = slice(self._next, self._next + self._batch)
        self._next += self._batch
        return {name: array[part] for name, array in self._frames.items()}

    def rewind(self) -> None:
        """Start again."""
        self._next = 0

    def set_range(self, start_index: int, end_index: int) -> None:
        """Read a part only; the tool calls this when it works in strides."""
        self._next, self._count = start_index, end_index

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[dict[str, FloatArray]]:
        while (entry := self.get_next()) is not None:
            yield entry


def _converted(model: Any, convert: Any, *, what: str) -> bytes:
    """Run a file-based tool after its prerequisites: inferred shapes, BatchNorm folded into convolutions."""
    import onnx
    from onnxruntime.quantization import quant_pre_process

    with tempfile.TemporaryDirectory(prefix="vitascope-") as scratch, _quiet():
        whole, source, result = (
            Path(scratch) / f"{name}.onnx" for name in ("whole", "prepared", "quantized")
        )
        try:
            # Given a model in memory, the tool would look for weights in files that it does not write.
            onnx.save(_with_opset(model, _CHANNEL_SCALES), str(whole))
            quant_pre_process(str(whole), str(source), skip_symbolic_shape=True)
            _forget_shapes_of_weights(source)
            convert(source, result)
            return bytes(onnx.load(str(result)).SerializeToString())
        except UsageError:
            raise
        except Exception as error:  # the tools document no error types
            raise EngineError(f"the network cannot be quantised to {what}: {_first_line(error)}") from error


def _with_opset(model: Any, version: int) -> Any:
    """Convert the network to at least this opset."""
    from onnx import version_converter

    own = next((one.version for one in model.opset_import if one.domain in ("", "ai.onnx")), 0)
    return model if own >= version else version_converter.convert_version(model, version)


def _forget_shapes_of_weights(path: Path) -> None:
    """Drop the file's declared weight shapes: the tool transposes some weights, which makes them wrong."""
    import onnx

    model = onnx.load(str(path))
    weights = {tensor.name for tensor in model.graph.initializer}
    kept = [value for value in model.graph.value_info if value.name not in weights]
    del model.graph.value_info[:]
    model.graph.value_info.extend(kept)
    onnx.save(model, str(path))


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the tools, which print progress and log advice through the root logger."""
    logger = logging.getLogger()
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with redirect_stdout(io.StringIO()):
            yield
    finally:
        logger.setLevel(level)
