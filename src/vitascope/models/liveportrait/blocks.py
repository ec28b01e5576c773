"""Building blocks that several of LivePortrait's networks share; names are those of the published checkpoints."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 - the name that PyTorch's own documentation uses
from torch import Tensor, nn

__all__ = ["ConvNorm2d", "ConvNorm3d", "Residual3d", "coordinate_grid"]


class ConvNorm2d(nn.Module):
    """Convolution, batch norm, (leaky) ReLU, and halving by average where ``halves``."""

    def __init__(self, inputs: int, outputs: int, *, halves: bool = False, negative_slope: float = 0) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.norm = nn.BatchNorm2d(outputs)
        self._halves = halves
        self._negative_slope = negative_slope

    def forward(self, x: Tensor) -> Tensor:
        """[B, C, H, W] to [B, C', H, W] or its half."""
        x = F.leaky_relu(self.norm(self.conv(x)), self._negative_slope)
        return F.avg_pool2d(x, 2) if self._halves else x


class ConvNorm3d(nn.Module):
    """Convolution 3x3x3, batch norm, ReLU; then half or, before, twice the height and width. Depth stays."""

    def __init__(self, inputs: int, outputs: int, *, halves: bool = False, doubles: bool = False) -> None:
        super().__init__()
        self.conv = nn.Conv3d(inputs, outputs, 3, padding=1)
        self.norm = nn.BatchNorm3d(outputs)
        self._halves = halves
        self._doubles = doubles

    def forward(self, x: Tensor) -> Tensor:
        """[B, C, D, H, W] to [B, C', D, H', W']."""
        if self._doubles:
            x = F.interpolate(x, scale_factor=(1, 2, 2))
        x = F.relu(self.norm(self.conv(x)))
        if self._halves:
            # As avg_pool3d over (1, 2, 2), which PyTorch does not know in FP16 on a processor.
            *outer, height, width = x.shape
            x = F.avg_pool2d(x.flatten(1, 2), 2).reshape(*outer, height // 2, width // 2)
        return x


class Residual3d(nn.Module):
    """Norm, ReLU, convolution, twice, beside the identity."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv3d(channels, channels, 3, padding=1)
        self.conv2 = nn.Conv3d(channels, channels, 3, padding=1)
        self.norm1 = nn.BatchNorm3d(channels)
        self.norm2 = nn.BatchNorm3d(channels)

    def forward(self, x: Tensor) -> Tensor:
        """[B, C, D, H, W], same out."""
        y = self.conv1(F.relu(self.norm1(x)))
        result: Tensor = x + self.conv2(F.relu(self.norm2(y)))
        return result


def coordinate_grid(depth: int, height: int, width: int, *, like: Tensor) -> Tensor:
    """Positions x, y, z of every voxel, each -1 to 1 from the first to the last: [D, H, W, 3].

    The published networks sample with ``align_corners=False``, by which -1 and 1 are the volume's faces and not the
    outer voxels' centres. The shift of up to half a voxel is part of what they learnt.
    """
    axes = [
        torch.linspace(-1, 1, count, device=like.device, dtype=like.dtype) for count in (depth, height, width)
    ]
    z, y, x = torch.meshgrid(*axes, indexing="ij")
    return torch.stack((x, y, z), dim=-1)
