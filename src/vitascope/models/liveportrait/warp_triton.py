"""The operations between W's convolutions as Triton kernels; ``TorchWarpOps`` is their reference.

Voxel i of n along an axis has the position -1 + 2 i / (n - 1); a position p samples at ((p + 1) n - 1) / 2, linearly
between the eight voxels around it, zero outside: ``F.grid_sample`` with ``align_corners=False``.
"""

# Triton compiles kernels from their source; their parameters are pointers and constants that mypy cannot type.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, type-arg, misc"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from vitascope.models.liveportrait.fast import COLUMNS, TorchWarpOps
from vitascope.models.liveportrait.published import MOTIONS


@triton.jit
def _corner(data, index, inside, lanes, channels: tl.constexpr):
    """Channels [V, C] of voxels; zero outside."""
    return tl.load(data + index[:, None] * channels + lanes[None, :], mask=inside[:, None], other=0.0).to(
        tl.float32
    )


@triton.jit
def _sampled(
    data, px, py, pz, depth: tl.constexpr, height: tl.constexpr, width: tl.constexpr, channels: tl.constexpr
):
    """Trilinear samples [V, C] at positions in -1..1."""
    lanes = tl.arange(0, channels)
    ix = ((px + 1) * width - 1) * 0.5
    iy = ((py + 1) * height - 1) * 0.5
    iz = ((pz + 1) * depth - 1) * 0.5
    x0 = tl.floor(ix)
    y0 = tl.floor(iy)
    z0 = tl.floor(iz)
    fx = ix - x0
    fy = iy - y0
    fz = iz - z0
    x0 = x0.to(tl.int32)
    y0 = y0.to(tl.int32)
    z0 = z0.to(tl.int32)
    total = tl.zeros((px.shape[0], channels), tl.float32)
    for dz in tl.static_range(2):
        for dy in tl.static_range(2):
            for dx in tl.static_range(2):
                x = x0 + dx
                y = y0 + dy
                z = z0 + dz
                inside = (x >= 0) & (x < width) & (y >= 0) & (y < height) & (z >= 0) & (z < depth)
                share = (fx if dx else 1 - fx) * (fy if dy else 1 - fy) * (fz if dz else 1 - fz)
                total += share[:, None] * _corner(data, (z * height + y) * width + x, inside, lanes, channels)
    return total


@triton.jit
def candidates_kernel(
    compressed, driving, source, out,
    depth: tl.constexpr, height: tl.constexpr, width: tl.constexpr,
    keypoints: tl.constexpr, made: tl.constexpr, voxels: tl.constexpr,
):  # fmt: skip
    """Compute one motion for a run of voxels; the last program of the axis zeroes the padding."""
    count = depth * height * width
    batch = tl.program_id(2)
    motion = tl.program_id(1)
    voxel = tl.program_id(0) * voxels + tl.arange(0, voxels)
    exists = voxel < count
    x = -1 + 2.0 * (voxel % width) / (width - 1)
    y = -1 + 2.0 * (voxel // width % height) / (height - 1)
    z = -1 + 2.0 * (voxel // (width * height)) / (depth - 1)
    row = out + (batch * count + voxel).to(tl.int64) * made
    lanes = tl.arange(0, 4)
    if motion <= keypoints:
        heat = tl.zeros((voxels,), tl.float32)
        sx = x
        sy = y
        sz = z
        if motion > 0:
            at = (batch * keypoints + motion - 1) * 3
            kx = tl.load(driving + at)
            ky = tl.load(driving + at + 1)
            kz = tl.load(driving + at + 2)
            lx = tl.load(source + at)
            ly = tl.load(source + at + 1)
            lz = tl.load(source + at + 2)
            near = (x - kx) * (x - kx) + (y - ky) * (y - ky) + (z - kz) * (z - kz)
            far = (x - lx) * (x - lx) + (y - ly) * (y - ly) + (z - lz) * (z - lz)
            heat = tl.exp(-50.0 * near) - tl.exp(-50.0 * far)
            sx = x + lx - kx
            sy = y + ly - ky
            sz = z + lz - kz
        samples = _sampled(compressed + batch * count * 4, sx, sy, sz, depth, height, width, 4)
        tl.store(row + motion * 5, heat.to(out.dtype.element_ty), mask=exists)
        tl.store(
            row[:, None] + motion * 5 + 1 + lanes[None, :],
            samples.to(out.dtype.element_ty),
            mask=exists[:, None],
        )
    else:
        for lane in tl.static_range(5 * keypoints + 5, made):
            tl.store(row + lane, tl.zeros((voxels,), out.dtype.element_ty), mask=exists)


@triton.jit
def bend_kernel(
    volume, parts, driving, source, out,
    depth: tl.constexpr, height: tl.constexpr, width: tl.constexpr,
    keypoints: tl.constexpr, columns: tl.constexpr, channels: tl.constexpr, voxels: tl.constexpr,
):  # fmt: skip
    """Process a run of voxels within one row."""
    motions: tl.constexpr = keypoints + 1
    count = depth * height * width
    runs = tl.cdiv(width, voxels)
    batch = tl.program_id(1)
    line = tl.program_id(0) // runs  # depth and row
    column = tl.program_id(0) % runs * voxels + tl.arange(0, voxels)
    exists = column < width
    lane = tl.arange(0, 32)
    is_motion = lane < motions
    logits = tl.where(is_motion[None, :], tl.zeros((voxels, 32), tl.float32), float("-inf"))
    for shift in tl.static_range(columns):
        from_column = column + shift - columns // 2
        inside = (from_column >= 0) & (from_column < width)
        at = (batch * count + line * width + from_column).to(tl.int64) * (columns * motions) + shift * motions
        logits += tl.load(
            parts + at[:, None] + lane[None, :], mask=inside[:, None] & is_motion[None, :], other=0.0
        ).to(tl.float32)
    weights = tl.exp(logits - tl.max(logits, axis=1)[:, None])
    weights = weights / tl.sum(weights, axis=1)[:, None]
    is_moving = is_motion & (lane > 0)
    at = (batch * keypoints + lane - 1) * 3
    px = -1 + 2.0 * column / (width - 1)
    py = -1 + 2.0 * (line % height) / (height - 1) + tl.zeros((voxels,), tl.float32)
    pz = -1 + 2.0 * (line // height) / (depth - 1) + tl.zeros((voxels,), tl.float32)
    step = tl.load(source + at, mask=is_moving, other=0.0) - tl.load(driving + at, mask=is_moving, other=0.0)
    px += tl.sum(weights * step[None, :], axis=1)
    step = tl.load(source + at + 1, mask=is_moving, other=0.0) - tl.load(
        driving + at + 1, mask=is_moving, other=0.0
    )
    py += tl.sum(weights * step[None, :], axis=1)
    step = tl.load(source + at + 2, mask=is_moving, other=0.0) - tl.load(
        driving + at + 2, mask=is_moving, other=0.0
    )
    pz += tl.sum(weights * step[None, :], axis=1)
    samples = _sampled(volume + batch * count * channels, px, py, pz, depth, height, width, channels)
    pixel = (batch * height + line % height) * width + column
    target = out + pixel.to(tl.int64) * (depth * channels) + line // height * channels
    lanes = tl.arange(0, channels)
    tl.store(target[:, None] + lanes[None, :], samples.to(out.dtype.element_ty), mask=exists[:, None])


_VOXELS = 64
"""Voxels per program; a row of the volume has 64."""


class TritonWarpOps(TorchWarpOps):
    """Triton kernels on the current CUDA stream, registered with PyTorch: ``torch.compile`` and graphs pass through."""

    def candidates(self, compressed: Tensor, driving: Tensor, source: Tensor, channels: int) -> Tensor:
        """See ``TorchWarpOps``."""
        made: Tensor = _candidates(compressed, driving, source, channels)
        return made

    def bend(self, volume: Tensor, parts: Tensor, driving: Tensor, source: Tensor) -> Tensor:
        """See ``TorchWarpOps``."""
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
