"""LivePortrait's networks with random weights, small pictures, and keypoints."""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import Tensor, nn

Network = TypeVar("Network", bound=nn.Module)


def randomised(network: Network) -> Network:
    """Set moments and gates to values like a trained network's, other than 0 and 1."""
    for name, buffer in network.named_buffers():
        if name.endswith("running_mean"):
            buffer.normal_(0, 0.1)
        if name.endswith("running_var"):
            buffer.uniform_(0.5, 1.5)
    for name, parameter in network.named_parameters():
        if "grn" in name:
            nn.init.normal_(parameter, 0, 0.2)
    return network.eval().requires_grad_(False)


def keypoints(batch: int = 1) -> tuple[Tensor, Tensor]:
    """Make driving and source keypoints, one of them outside the volume."""
    source = torch.rand(batch, 21, 3) - 0.5
    driving = source + torch.randn(batch, 21, 3) * 0.1
    driving[:, 4] = 1.4
    return driving, source


def relative_error(got: Tensor, wanted: Tensor) -> float:
    return float((got.float() - wanted.float()).abs().max() / wanted.float().abs().max())
