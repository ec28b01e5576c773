"""``ModelQuantizer``: networks in fewer bits, for PyTorch modules and ONNX networks alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

from vitascope.errors import DeviceError, UsageError
from vitascope.gpu.toolkit.quantization import onnx_networks
from vitascope.gpu.toolkit.quantization.calibration import CalibrationMethod, FloatArray, named_frames
from vitascope.gpu.toolkit.quantization.gate import (
    Comparable,
    Comparison,
    Gated,
    GateVerdict,
    QuantizationLimits,
    compare_networks,
    is_module,
    judge,
)

__all__ = ["ModelQuantizer"]

ModelT = TypeVar("ModelT")
Frames = Mapping[str, Any] | Sequence[Any] | FloatArray

_FP8_CAPABILITY = (8, 9)
"""Ada and Hopper; NVIDIA, "CUDA C++ Programming Guide", table of features by compute capability."""


class ModelQuantizer:
    """Turns a network into a smaller one. Nothing is changed in place, and nothing is kept from call to call.

    Each method takes a PyTorch module and gives a module, or an ONNX network (path or bytes) and gives its bytes.
    """

    @staticmethod
    def quantize_fp16(model: Any) -> Any:
        """Weights and activations in half precision: half the size.

        Args:
            model: A module: the copy takes and gives FP16. An ONNX network: its inputs and outputs keep their types.

        Raises:
            UsageError: It is neither.
            EngineError: The network cannot be converted.
        """
        if is_module(model):
            from vitascope.gpu.toolkit.quantization.torch_layers import half_module

            return half_module(model)
        return onnx_networks.half_network(_network(model))

    @staticmethod
    def quantize_int8(
        model: Any,
        calibration: Frames,
        *,
        method: CalibrationMethod = "percentile",
        percentile: float = 99.99,
        per_channel: bool = True,
        target: Literal["cpu", "gpu"] = "cpu",
        skip: Sequence[str] = (),
    ) -> Any:
        """Static INT8: weights and activations of convolutions and matrix products, scales from calibration.

        Args:
            model: A module or an ONNX network, in FP32.
            calibration: What it is typically fed, along the first axis, one array for each input: some dozens of
                pictures from real frames, prepared as the network gets them.
            method: How the range of an activation is chosen: ``entropy``, ``percentile`` (the nearest to FP32 on the
                networks that were measured, ``benchmarks/quantization.py``) or ``minmax``.
            percentile: For that method: share of magnitudes that are kept, in per cent.
            per_channel: One weight scale for each output channel, instead of one for a whole layer.
            target: For ONNX networks; ``gpu`` writes what TensorRT takes. Modules run on both.
            skip: Layers (of a module) or nodes (of an ONNX network) that stay as they are, by name.

        Raises:
            UsageError: Frames, names or words do not fit.
            EngineError: The network cannot be quantised.
        """
        if not 0 < percentile <= 100:
            raise UsageError(f"percentile is {percentile}, expected more than 0 and at most 100")
        _check_method(method)
        if target not in ("cpu", "gpu"):
            raise UsageError(f"target is {target!r}, expected cpu or gpu")
        if is_module(model):
            from vitascope.gpu.toolkit.quantization.torch_layers import quantized_module

            names = tuple(calibration) if isinstance(calibration, Mapping) else ("input",)
            return quantized_module(
                model,
                named_frames(calibration, names),
                number="int8",
                method=method,
                percentile=percentile,
                per_channel=per_channel,
                skip=skip,
            )
        return onnx_networks.static_network(
            _network(model),
            calibration,
            method=method,
            percentile=percentile,
            per_channel=per_channel,
            target=target,
            skip=skip,
        )

    @staticmethod
    def quantize_dynamic(model: Any, *, per_channel: bool = True) -> Any:
        """INT8 weights, and activations scaled by what they are at run time: no calibration, less speed.

        Raises:
            UsageError: It is neither a module nor an ONNX network.
            EngineError: The network cannot be quantised.
        """
        if is_module(model):
            from vitascope.gpu.toolkit.quantization.torch_layers import quantized_module

            return quantized_module(model, None, number="int8", per_channel=per_channel)
        return onnx_networks.dynamic_network(_network(model), per_channel=per_channel)

    @staticmethod
    def quantize_fp8(
        model: Any,
        calibration: Frames | None = None,
        *,
        method: CalibrationMethod = "minmax",
        device_id: int = 0,
        skip: Sequence[str] = (),
    ) -> Any:
        """Linear layers and 1x1 convolutions of a module in FP8 (e4m3), which Ada, Hopper and newer GPUs multiply.

        Larger convolutions stay as they are: PyTorch has no FP8 convolution.

        Args:
            model: A module.
            calibration: As for ``quantize_int8``; None scales activations by what they are at run time.
            method: How the range of an activation is chosen. FP8 keeps its precision over a wide range, so its largest
                value is the natural end.
            device_id: Number of the GPU that it shall run on.
            skip: Layers that stay as they are, by name.

        Raises:
            DeviceError: There is no such GPU, or it has no FP8.
            UsageError: It is no module, or frames or names do not fit.
        """
        if not is_module(model):
            raise UsageError("FP8 is for PyTorch modules; ONNX networks take quantize_fp16 or quantize_int8")
        _check_method(method)
        import torch

        if not torch.cuda.is_available() or device_id >= torch.cuda.device_count():
            raise DeviceError(
                f"FP8 needs an NVIDIA GPU, and there is no GPU {device_id} that PyTorch can use"
            )
        capability = torch.cuda.get_device_capability(device_id)
        if capability < _FP8_CAPABILITY:
            name = torch.cuda.get_device_name(device_id)
            raise DeviceError(
                f"{name} has compute capability {capability[0]}.{capability[1]}; FP8 needs 8.9 (Ada, 2022) or newer"
            )
        from vitascope.gpu.toolkit.quantization.torch_layers import quantized_module

        frames = None
        if calibration is not None:
            names = tuple(calibration) if isinstance(calibration, Mapping) else ("input",)
            frames = named_frames(calibration, names)
        return quantized_module(model, frames, number="fp8", method=method, only_products=True, skip=skip)

    @staticmethod
    def measure_model_size(model: Any) -> int:
        """Bytes of a network's weights: parameters and buffers of a module, constants of an ONNX network.

        Raises:
            UsageError: It is neither.
            EngineError: The network cannot be read.
        """
        if is_module(model):
            tensors = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
            return sum(int(tensor.numel() * tensor.element_size()) for tensor in tensors.values())
        return onnx_networks.weight_bytes(_network(model))

    @staticmethod
    def compare(
        reference: Comparable,
        quantized: Comparable,
        frames: Frames,
        *,
        outputs: Sequence[str] | None = None,
        iterations: int = 10,
        threads: int = 0,
    ) -> Comparison:
        """Accuracy and speed of a quantised network beside its reference; see ``compare_networks``."""
        return compare_networks(
            reference, quantized, frames, outputs=outputs, iterations=iterations, threads=threads
        )

    @staticmethod
    def accept(
        comparison: Comparison, limits: QuantizationLimits | None = None, *, size_ratio: float | None = None
    ) -> GateVerdict:
        """Hold a comparison against limits; without any, against the defaults of ``QuantizationLimits``."""
        return judge(comparison, limits or QuantizationLimits(), size_ratio=size_ratio)

    @staticmethod
    def gate(
        reference: ModelT,
        quantized: ModelT,
        frames: Frames,
        limits: QuantizationLimits | None = None,
        *,
        outputs: Sequence[str] | None = None,
        iterations: int = 10,
        threads: int = 0,
    ) -> Gated[ModelT]:
        """The quantised network where its error and its speed keep to the limits, else the reference; and why.

        Args:
            reference: See ``compare``.
            quantized: See ``compare``.
            frames: Others than those of the calibration.
            limits: What is asked; the defaults of ``QuantizationLimits`` when omitted.
            outputs: See ``compare``.
            iterations: See ``compare``.
            threads: See ``compare``.
        """
        limits = limits or QuantizationLimits()
        comparison = compare_networks(
            reference, quantized, frames, outputs=outputs, iterations=iterations, threads=threads
        )
        ratio = None
        if limits.size_ratio is not None:
            size = ModelQuantizer.measure_model_size
            ratio = size(reference) / max(size(quantized), 1)
        verdict = judge(comparison, limits, size_ratio=ratio)
        return Gated(quantized if verdict else reference, comparison, verdict)


def _check_method(method: str) -> None:
    if method not in get_args(CalibrationMethod):
        raise UsageError(f"method is {method!r}, expected one of {', '.join(get_args(CalibrationMethod))}")


def _network(model: Any) -> Path | bytes:
    if isinstance(model, bytes):
        return model
    if isinstance(model, str | PathLike):
        return Path(model)
    raise UsageError(
        f"a PyTorch module or an ONNX network (path or bytes) is expected, got {type(model).__name__}"
    )
