"""Quantising PyTorch modules: observe what flows into their layers, then put 8-bit layers in the layers' place."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from vitascope.errors import EngineError, UsageError
from vitascope.gpu.quantization.calibration import CalibrationMethod, FloatArray, MagnitudeHistogram
from vitascope.gpu.quantization.torch_layers import (
    LARGEST,
    EightBitConv2d,
    EightBitLinear,
    Number,
    is_convolution,
    is_matrix_product,
)

__all__ = ["half_module", "quantized_module"]


def half_module(model: nn.Module) -> nn.Module:
    """A copy with FP16 weights, which takes and gives FP16."""
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
    """A copy whose convolutions and linear layers hold 8-bit weights.

    Args:
        model: Not changed.
        frames: Calibration data for each input, in order; None scales activations as they come (dynamic).
        number: ``int8`` or ``fp8``.
        method: See ``calibration``.
        percentile: For that method: share of magnitudes that are kept, in per cent.
        per_channel: One weight scale for each output channel.
        only_products: Leave alone what 8-bit matrix products cannot compute.
        skip: Names of layers to leave alone, as ``named_modules`` gives them.

    Raises:
        UsageError: Nothing could be quantised, a name in ``skip`` is none, or calibration met what is not finite.
        EngineError: The module does not take the frames.
    """
    copied = copy.deepcopy(model).eval()
    layers = {
        name: layer
        for name, layer in copied.named_modules()
        if (isinstance(layer, nn.Linear) or is_convolution(layer))
        and (is_matrix_product(layer) or not only_products)
    }
    if unknown := sorted(set(skip) - set(dict(copied.named_modules()))):
        raise UsageError(f"skip names {unknown[0]!r}, which is no part of the module")
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
    """Histograms of what each layer is fed while the frames go through, one at a time."""
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
                except Exception as error:  # whatever the user's module raises
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
