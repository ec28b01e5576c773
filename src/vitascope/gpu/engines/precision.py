"""An ONNX network in another arithmetic, by NVIDIA's own converter (``nvidia-modelopt``).

TensorRT 11 has no precision switches: a network computes in the types that it is written in. So fp16 is a network of
fp16 tensors, and int8 one with explicit quantise and dequantise operators; the same file then serves ONNX Runtime too.
Inputs and outputs keep their types.

The converters are called as NVIDIA documents them (Model Optimizer 0.47: ``modelopt.onnx.autocast``,
``modelopt.onnx.quantization``); contract tests exercise this file, the package itself has not been run.
"""

from __future__ import annotations

import importlib
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from vitascope.errors import EngineError, MissingDependencyError
from vitascope.gpu.engines.engine import Precision

__all__ = ["Calibration", "with_precision"]

Calibration = Mapping[str, npt.NDArray[np.floating[Any]]]
"""For each input, pictures (or whatever it takes) of typical use, along the first axis."""


def with_precision(
    model: Path | bytes,
    precision: Precision,
    *,
    calibration: Calibration | None = None,
) -> bytes:
    """Convert an fp32 network.

    Args:
        model: Path of an ``.onnx`` file, or its serialised bytes.
        precision: ``mixed`` leaves in fp32 what the converter finds sensitive, ``fp16`` converts everything, ``int8``
            quantises convolutions and matrix products and computes the rest in fp16. ``fp32`` and ``tf32`` are the
            network as it is.
        calibration: What an ``int8`` network is typically fed; its value ranges set the scales.

    Returns:
        The serialised network.

    Raises:
        MissingDependencyError: ``nvidia-modelopt`` is not installed.
        EngineError: ``int8`` without calibration, or the converter failed.
    """
    if precision in ("fp32", "tf32"):
        return _read(model) if isinstance(model, Path) else model
    if precision == "int8" and not calibration:
        # Without data the converter calibrates on random numbers, and scales fit nothing.
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
        except Exception as error:  # the converter promises no error types
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
