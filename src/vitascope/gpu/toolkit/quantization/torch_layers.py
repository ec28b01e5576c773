"""Convolutions and linear layers with 8-bit weights, integer or floating point.

The arithmetic is symmetric: ``value = integer * scale``, with one scale per output channel of the weights and one for
the activation (Jacob et al., "Quantization and Training of Neural Networks for Efficient Integer-Arithmetic-Only
Inference", CVPR 2018, with zero points of 0). Linear layers and 1x1 convolutions are matrix products, which a GPU's
tensor cores compute in 8 bits (``torch._int_mm``, ``torch._scaled_mm``). PyTorch has no such convolution for larger
kernels: these compute with the rounded values in floating point, so they are as accurate and as small, but not
faster.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, Protocol, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.nn import functional

from vitascope.errors import EngineError, UsageError
from vitascope.gpu.toolkit.quantization.calibration import CalibrationMethod, FloatArray, MagnitudeHistogram

Number = Literal["int8", "fp8"]

_DTYPES = {"int8": torch.int8, "fp8": torch.float8_e4m3fn}
LARGEST = {"int8": 127.0, "fp8": 448.0}
"""Largest magnitudes; e4m3 has no infinity (Micikevicius et al., "FP8 Formats for Deep Learning", 2022)."""

# cuBLASLt's rules for 8-bit products, as checked by torch._int_mm and torch._scaled_mm.
_FEWEST_ROWS, _MULTIPLE = 17, 16


class Convolution(Protocol):
    """``nn.Conv2d``, or a layer with the same attributes."""

    weight: Tensor
    bias: Tensor | None
    stride: Any
    padding: Any
    dilation: Any
    groups: int


class _EightBitWeights(nn.Module):
    """Base of both layers: 8-bit weights [out, ...] and their scales."""

    weight: Tensor
    weight_scale: Tensor
    input_scale: Tensor | None
    bias: Tensor | None

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor | None,
        *,
        number: Number,
        input_scale: float | None,
        per_channel: bool,
    ) -> None:
        super().__init__()
        self.number: Number = number
        values = weight.detach().float()
        rows = values.reshape(len(values), -1).abs()
        largest = rows.amax(1) if per_channel else rows.amax().expand(len(values))
        scale = (largest / LARGEST[number]).clamp_min(torch.finfo(torch.float32).tiny)
        self.register_buffer("weight", _rounded(values / scale.view(-1, *[1] * (values.ndim - 1)), number))
        self.register_buffer("weight_scale", scale)
        self.register_buffer("input_scale", None if input_scale is None else torch.tensor(input_scale))
        self.register_buffer("bias", None if bias is None else bias.detach().clone().float())

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Move to another device, keeping all types: ``half()`` would convert FP8 weights and scales to FP16."""
        kept = {name: buffer for name, buffer in self._buffers.items() if buffer is not None}
        move: Any = super()._apply  # untyped in torch
        move(fn, recurse)
        for name, buffer in kept.items():
            moved = self._buffers[name]
            assert moved is not None  # _apply keeps existing tensors
            self._buffers[name] = buffer.to(moved.device)
        return self

    def input_scale_of(self, x: Tensor) -> Tensor:
        """The calibrated scale, or one that fits these values."""
        if self.input_scale is not None:
            return self.input_scale.float()
        return (x.abs().amax().float() / LARGEST[self.number]).clamp_min(torch.finfo(torch.float32).tiny)

    def product(self, x: Tensor) -> Tensor:
        """Multiply x [rows, in] by the weights [out, in] in 8 bits; the result has x's dtype."""
        scale = self.input_scale_of(x)
        integers = _rounded(x.float() / scale, self.number)
        weights = self.weight.reshape(len(self.weight), -1).t()
        if self.number == "int8":
            sums = torch._int_mm(integers, weights).float() * scale
        else:
            one = torch.ones((), device=x.device)
            # The rows of a single picture that is not channels-last are columns in memory, which cuBLASLt accepts for
            # integers, but not for FP8.
            sums = torch._scaled_mm(
                integers.contiguous(), weights, scale_a=scale, scale_b=one, out_dtype=torch.bfloat16
            ).float()
        sums = sums * self.weight_scale.float()
        return (sums if self.bias is None else sums + self.bias.float()).to(x.dtype)

    def multiplies_in_8_bits(self, rows: int, x: Tensor) -> bool:
        """True if the hardware's 8-bit matrix product supports the layer at any batch size."""
        out, inner = len(self.weight), self.weight[0].numel()
        if not x.is_cuda or out % _MULTIPLE or inner % _MULTIPLE:
            return False
        return bool(statically_known_true(rows >= _FEWEST_ROWS))

    def rounded_input(self, x: Tensor) -> Tensor:
        """Round x to 8 bits, in x's dtype."""
        scale = self.input_scale_of(x)
        return (_rounded(x.float() / scale, self.number).float() * scale).to(x.dtype)

    def rounded_weight(self, dtype: torch.dtype) -> Tensor:
        """The weights rounded to 8 bits."""
        scale = self.weight_scale.float().view(-1, *[1] * (self.weight.ndim - 1))
        return (self.weight.float() * scale).to(dtype)

    def bias_as(self, dtype: torch.dtype) -> Tensor | None:
        return None if self.bias is None else self.bias.to(dtype)


class EightBitLinear(_EightBitWeights):
    """A linear layer in 8 bits.

    Args:
        layer: The layer to replace.
        number: ``int8`` or ``fp8`` (e4m3).
        input_scale: Scale from calibration; None scales each input by its own largest value.
        per_channel: One weight scale per output, instead of one for all.
    """

    def __init__(
        self,
        layer: nn.Linear,
        *,
        number: Number = "int8",
        input_scale: float | None,
        per_channel: bool = True,
    ) -> None:
        super().__init__(
            layer.weight, layer.bias, number=number, input_scale=input_scale, per_channel=per_channel
        )

    def forward(self, x: Tensor) -> Tensor:
        """Compute [..., in] to [..., out]."""
        rows = x.reshape(-1, x.shape[-1])
        if self.multiplies_in_8_bits(rows.shape[0], x):
            return self.product(rows).reshape(*x.shape[:-1], -1)
        return functional.linear(self.rounded_input(x), self.rounded_weight(x.dtype), self.bias_as(x.dtype))


class EightBitConv2d(_EightBitWeights):
    """A convolution in 8 bits; a 1x1 convolution without strides, groups and padding is a matrix product.

    Args:
        layer: The layer to replace.
        number: ``int8`` or ``fp8`` (e4m3).
        input_scale: Scale from calibration; None scales each input by its own largest value.
        per_channel: One weight scale per output channel, instead of one for all.
    """

    def __init__(
        self,
        layer: Convolution,
        *,
        number: Number = "int8",
        input_scale: float | None,
        per_channel: bool = True,
    ) -> None:
        super().__init__(
            layer.weight, layer.bias, number=number, input_scale=input_scale, per_channel=per_channel
        )
        self.stride, self.padding = layer.stride, layer.padding
        self.dilation, self.groups = layer.dilation, layer.groups
        self.is_product = is_matrix_product(layer)

    def forward(self, x: Tensor) -> Tensor:
        """Compute [N, in, H, W] to [N, out, h, w]."""
        count, channels, height, width = x.shape
        if self.is_product and self.multiplies_in_8_bits(count * height * width, x):
            # For channels-last pictures these are already rows; nothing is copied.
            rows = x.permute(0, 2, 3, 1).reshape(-1, channels)
            return self.product(rows).reshape(count, height, width, -1).permute(0, 3, 1, 2)
        return functional.conv2d(
            self.rounded_input(x),
            self.rounded_weight(x.dtype),
            self.bias_as(x.dtype),
            self.stride,
            self.padding,
            self.dilation,
            self.groups,
        )


def is_convolution(layer: nn.Module) -> bool:
    """True for ``nn.Conv2d``, and for layers that only store a convolution's weights."""
    if isinstance(layer, nn.Conv2d):
        return layer.padding_mode == "zeros"
    weight = getattr(layer, "weight", None)
    return (
        isinstance(weight, Tensor)
        and weight.ndim == 4
        and all(hasattr(layer, name) for name in ("bias", "stride", "padding", "dilation", "groups"))
        and not hasattr(layer, "output_padding")  # which transposed convolutions have
    )


def is_matrix_product(layer: Any) -> bool:
    """True if an 8-bit matrix product can compute it: a linear layer, or a plain 1x1 convolution."""
    if isinstance(layer, nn.Linear):
        return True
    return (
        is_convolution(layer)
        and tuple(layer.weight.shape[2:]) == (1, 1)
        and layer.stride in (1, (1, 1))
        and layer.padding in (0, (0, 0), "valid", "same")
        and layer.groups == 1
    )


def _rounded(values: Tensor, number: Number) -> Tensor:
    limited = values.clamp(-LARGEST[number], LARGEST[number])
    return (limited.round() if number == "int8" else limited).to(_DTYPES[number])


def half_module(model: nn.Module) -> nn.Module:
    """A copy with FP16 weights, inputs and outputs."""
    half: nn.Module = copy.deepcopy(model).eval().half()
    return half


def quantized_module(
    model: nn.Module,
    frames: Mapping[str, FloatArray] | None,
    *,
    number: Number,
    method: CalibrationMethod = "percentile",
    percentile: float = 99.99,
    per_channel: bool = True,
    only_products: bool = False,
    skip: Sequence[str] = (),
) -> nn.Module:
    """A copy with 8-bit weights in convolutions and linear layers.

    Args:
        model: The module; not changed.
        frames: Calibration data for each input, in order; None scales activations at run time (dynamic).
        number: ``int8`` or ``fp8``.
        method: See ``calibration``.
        percentile: For that method: share of magnitudes to keep, in per cent.
        per_channel: One weight scale per output channel.
        only_products: Leave alone layers that 8-bit matrix products cannot compute.
        skip: Names of layers to leave alone, as in ``named_modules``.

    Raises:
        UsageError: Nothing can be quantised, ``skip`` has an unknown name, or calibration found NaN or infinity.
        EngineError: The module does not accept the frames.
    """
    copied = copy.deepcopy(model).eval()
    layers = {
        name: layer
        for name, layer in copied.named_modules()
        if (isinstance(layer, nn.Linear) or is_convolution(layer))
        and (is_matrix_product(layer) or not only_products)
    }
    if unknown := sorted(set(skip) - set(dict(copied.named_modules()))):
        raise UsageError(f"skip names {unknown[0]!r}, which is not part of the module")
    layers = {name: layer for name, layer in layers.items() if name not in skip}
    if not layers:
        raise UsageError("the module has no convolution or linear layer that 8 bits could hold")
    scales: dict[str, float] = {}
    if frames is not None:
        observed = _observed(copied, layers, frames)
        scales = {
            name: histogram.threshold(method, percentile=percentile) / LARGEST[number]
            for name, histogram in observed.items()
        }
    for name, layer in layers.items():
        make: Any = EightBitLinear if isinstance(layer, nn.Linear) else EightBitConv2d
        new: nn.Module = make(layer, number=number, input_scale=scales.get(name), per_channel=per_channel)
        parent, _, child = name.rpartition(".")
        if not name:
            return new.eval()
        setattr(copied.get_submodule(parent), child, new)
    return copied


def _observed(
    model: nn.Module, layers: Mapping[str, nn.Module], frames: Mapping[str, FloatArray]
) -> dict[str, MagnitudeHistogram]:
    """Histograms of each layer's inputs while the frames pass through, one at a time."""
    histograms = {name: MagnitudeHistogram() for name in layers}

    def watch(name: str) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
        def note(_layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            histograms[name].add(inputs[0].detach().float().cpu().numpy())

        return note

    hooks = [layer.register_forward_pre_hook(watch(name)) for name, layer in layers.items()]
    try:
        with torch.inference_mode():
            for inputs in _one_by_one(frames, model):
                try:
                    model(*inputs)
                except UsageError:
                    raise
                except Exception as error:  # any error of the user's module
                    shapes = ", ".join(str(list(tensor.shape)) for tensor in inputs)
                    reason = str(error).strip().partition("\n")[0]
                    raise EngineError(
                        f"the module does not take calibration frames {shapes}: {reason}"
                    ) from error
    finally:
        for hook in hooks:
            hook.remove()
    return histograms


def _one_by_one(frames: Mapping[str, FloatArray], model: nn.Module) -> Iterator[list[Tensor]]:
    device = next((tensor.device for tensor in (*model.parameters(), *model.buffers())), torch.device("cpu"))
    arrays: list[Any] = list(frames.values())
    for index in range(len(arrays[0])):
        yield [
            torch.from_numpy(np.ascontiguousarray(array[index : index + 1])).to(device) for array in arrays
        ]
