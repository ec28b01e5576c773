"""``WarpOps`` on a GPU, registered with PyTorch, so that ``torch.compile`` and graphs pass through them."""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from vitascope.models.liveportrait.fast_warping import COLUMNS
from vitascope.models.liveportrait.warp_kernels import bend_kernel, candidates_kernel
from vitascope.models.liveportrait.warping import MOTIONS

__all__ = ["TritonWarpOps"]

_VOXELS = 64
"""Voxels of a program; a row of the volume is 64."""


class TritonWarpOps:
    """See ``WarpOps``; Triton kernels on the current CUDA stream."""

    def candidates(self, compressed: Tensor, driving: Tensor, source: Tensor, channels: int) -> Tensor:
        """See ``WarpOps``."""
        made: Tensor = _candidates(compressed, driving, source, channels)
        return made

    def bend(self, volume: Tensor, parts: Tensor, driving: Tensor, source: Tensor) -> Tensor:
        """See ``WarpOps``."""
        bent: Tensor = _bend(volume, parts, driving, source)
        return bent


@torch.library.custom_op("vitascope::liveportrait_candidates", mutates_args=())
def _candidates(compressed: Tensor, driving: Tensor, source: Tensor, channels: int) -> Tensor:
    batch, _, depth, height, width = compressed.shape
    compressed = compressed.contiguous(memory_format=torch.channels_last_3d)
    out = _empty_candidates(compressed, channels)
    runs = triton.cdiv(depth * height * width, _VOXELS)
    candidates_kernel[(runs, MOTIONS + (channels > 5 * MOTIONS), batch)](
        compressed, driving.contiguous(), source.contiguous(), out,
        depth, height, width, MOTIONS - 1, channels, _VOXELS,
    )  # fmt: skip
    return out


@_candidates.register_fake
def _(compressed: Tensor, driving: Tensor, source: Tensor, channels: int) -> Tensor:
    del driving, source
    return _empty_candidates(compressed, channels)


def _empty_candidates(compressed: Tensor, channels: int) -> Tensor:
    batch, _, *size = compressed.shape
    return torch.empty(
        (batch, channels, *size),
        dtype=compressed.dtype,
        device=compressed.device,
        memory_format=torch.channels_last_3d,
    )


@torch.library.custom_op("vitascope::liveportrait_bend", mutates_args=())
def _bend(volume: Tensor, parts: Tensor, driving: Tensor, source: Tensor) -> Tensor:
    batch, channels, depth, height, width = volume.shape
    volume = volume.contiguous(memory_format=torch.channels_last_3d)
    parts = parts.contiguous(memory_format=torch.channels_last_3d)
    out = _empty_pictures(volume)
    voxels = min(_VOXELS, triton.next_power_of_2(width))
    bend_kernel[(depth * height * triton.cdiv(width, voxels), batch)](
        volume, parts, driving.contiguous(), source.contiguous(), out,
        depth, height, width, MOTIONS - 1, COLUMNS, channels, voxels,
    )  # fmt: skip
    return out


@_bend.register_fake
def _(volume: Tensor, parts: Tensor, driving: Tensor, source: Tensor) -> Tensor:
    del parts, driving, source
    return _empty_pictures(volume)


def _empty_pictures(volume: Tensor) -> Tensor:
    batch, channels, depth, height, width = volume.shape
    return torch.empty(
        (batch, depth * channels, height, width),
        dtype=volume.dtype,
        device=volume.device,
        memory_format=torch.channels_last,
    )
