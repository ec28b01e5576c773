"""Batch norms folded into the convolutions before them, and channels padded to what tensor cores take by eight."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - the name that PyTorch's own documentation uses
from torch import Tensor, nn

__all__ = ["fold", "padded_channels", "with_channels"]

_Convolution = nn.Conv2d | nn.Conv3d
_Norm = nn.BatchNorm2d | nn.BatchNorm3d


def fold(convolution: _Convolution, norm: _Norm) -> Any:
    """A convolution that does what ``norm(convolution(x))`` does in evaluation; of the same class."""
    assert norm.running_mean is not None and norm.running_var is not None  # always tracked in these networks
    gain = norm.weight / torch.sqrt(norm.running_var + norm.eps)
    weight = convolution.weight * gain.view(-1, *[1] * (convolution.weight.ndim - 1))
    bias = norm.bias - gain * norm.running_mean
    if convolution.bias is not None:
        bias = bias + gain * convolution.bias
    return _like(convolution, weight, bias)


def padded_channels(count: int) -> int:
    """The next multiple of 8."""
    return -(-count // 8) * 8


def with_channels(convolution: _Convolution, inputs: int, outputs: int) -> Any:
    """The convolution with zeros for channels that are not there; new outputs are zero."""
    more_inputs = inputs - convolution.in_channels
    more_outputs = outputs - convolution.out_channels
    pads = (0, 0) * (convolution.weight.ndim - 2) + (0, more_inputs, 0, more_outputs)
    weight = F.pad(convolution.weight, pads)
    bias = None if convolution.bias is None else F.pad(convolution.bias, (0, more_outputs))
    return _like(convolution, weight, bias)


def _like(convolution: _Convolution, weight: Tensor, bias: Tensor | None) -> Any:
    make: Any = type(convolution)
    made = make(
        weight.shape[1],
        weight.shape[0],
        tuple(weight.shape[2:]),
        padding=convolution.padding,
        bias=bias is not None,
    )
    made.weight = nn.Parameter(weight.detach(), requires_grad=False)
    if bias is not None:
        made.bias = nn.Parameter(bias.detach(), requires_grad=False)
    return made
