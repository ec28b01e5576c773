"""A PyTorch module in half precision that takes and gives what it did before."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from vitascope.gpu.engines.torch_export import weights_dtype

__all__ = ["HalfPrecision"]


class HalfPrecision(nn.Module):
    """A copy of a module with FP16 weights and activations; pictures lie channels-last inside.

    Inputs and outputs keep their types. Channels-last is the layout of cuDNN's tensor-core convolutions (NVIDIA,
    "Convolutional Layers User's Guide", section "Tensor Layouts").

    Args:
        module: Not changed.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self._given = weights_dtype(module)
        half: Any = copy.deepcopy(module).eval().half()  # untyped in torch
        self.inner: nn.Module = half.to(memory_format=torch.channels_last)

    def forward(self, *inputs: Tensor) -> Any:
        """The module's results, floating point in the type of its weights."""
        return _mapped(self.inner(*(_as_half(tensor) for tensor in inputs)), self._given)


def _as_half(tensor: Tensor) -> Tensor:
    if not tensor.is_floating_point():
        return tensor
    half = tensor.half()
    return half.contiguous(memory_format=torch.channels_last) if tensor.ndim == 4 else half


def _mapped(results: Any, dtype: torch.dtype) -> Any:
    if isinstance(results, Tensor):
        return results.to(dtype).contiguous() if results.is_floating_point() else results
    if isinstance(results, dict):
        return {name: _mapped(result, dtype) for name, result in results.items()}
    return tuple(_mapped(result, dtype) for result in results)
