"""PyTorch modules that are built and run in milliseconds, and their inputs."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

SIDE = 16
SHAPES = {"input": {"min": (1, 3, SIDE, SIDE), "opt": (4, 3, SIDE, SIDE), "max": (16, 3, SIDE, SIDE)}}


def tiny_network(seed=0):
    """Build convolutions of both kinds, batch norm and a linear layer: [N, 3, 16, 16] to [N, 16]."""
    torch.manual_seed(seed)
    network = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 32, 1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 16),
    )
    network[1].running_mean.uniform_(-0.2, 0.2)
    network[1].running_var.uniform_(0.5, 1.5)
    return network.eval()


def pictures(count=4, seed=0):
    return np.random.default_rng(seed).random((count, 3, SIDE, SIDE), dtype=np.float32)


def expected(network, arrays):
    with torch.inference_mode():
        return network(torch.from_numpy(arrays)).numpy()


class TwoHeads(nn.Module):
    """Two inputs, and outputs by name."""

    def forward(self, a, b):
        return {"sum": a + b, "difference": a - b}
