"""W as it is run: channels last, batch norm folded, and the work around its convolutions in two kernels.

Three steps differ in form from the published network, not in value:

- Candidates are written as the hourglass reads them, [voxel, channel] with the channels padded by zeros to a multiple
  of eight, instead of repeating, sampling and joining 22 volumes.
- The 7x7x7 convolution that weighs the motions has 22 outputs, too few to fill tensor cores. Its seven columns become
  outputs of their own: a 7x7x1 convolution with 154, whose seven shifted parts are added where they are used.
- The occlusion's 7x7 convolution has one output. Its 49 taps become the columns of a matrix product, and their sum over
  the neighbours is an inverse ``im2col``.
"""

from __future__ import annotations

from typing import Protocol

import torch
import torch.nn.functional as F  # noqa: N812 - the name that PyTorch's own documentation uses
from torch import Tensor, nn

from vitascope.models.liveportrait.appearance import VOLUME_CHANNELS, VOLUME_DEPTH
from vitascope.models.liveportrait.blocks import ConvNorm3d
from vitascope.models.liveportrait.folding import fold, padded_channels, with_channels
from vitascope.models.liveportrait.warping import MOTIONS, WarpingNetwork, candidate_features, warp_volume

__all__ = ["COLUMNS", "FastWarping", "TorchWarpOps", "WarpOps"]

COLUMNS = 7
"""Columns of the kernel that weighs the motions."""
_TAPS = 49


class WarpOps(Protocol):
    """What lies between the convolutions."""

    def candidates(self, compressed: Tensor, driving: Tensor, source: Tensor, channels: int) -> Tensor:
        """As ``warping.candidate_features``, zeros up to ``channels``, channels last.

        Args:
            compressed: [B, 4, D, H, W], channels last.
            driving: Float32 [B, 21, 3].
            source: Float32 [B, 21, 3].
            channels: At least 110.

        Returns:
            [B, channels, D, H, W] of the dtype of ``compressed``.
        """
        ...

    def bend(self, volume: Tensor, parts: Tensor, driving: Tensor, source: Tensor) -> Tensor:
        """Add the columns' parts, make weights of the sums, and warp the volume by them.

        Args:
            volume: [B, 32, D, H, W], channels last.
            parts: [B, 7 * 22, D, H, W], channels last: channel ``column * 22 + motion`` at x belongs to the logit of
                ``motion`` at x - (column - 3).
            driving: Float32 [B, 21, 3].
            source: Float32 [B, 21, 3].

        Returns:
            [B, D * 32, H, W], channels last, depth by depth.
        """
        ...


class TorchWarpOps:
    """PyTorch's operators, on any device."""

    def candidates(self, compressed: Tensor, driving: Tensor, source: Tensor, channels: int) -> Tensor:
        """See ``WarpOps``."""
        made = candidate_features(compressed.float(), driving, source).to(compressed.dtype)
        made = F.pad(made, (0, 0, 0, 0, 0, 0, 0, channels - made.shape[1]))
        return made.contiguous(memory_format=torch.channels_last_3d)

    def bend(self, volume: Tensor, parts: Tensor, driving: Tensor, source: Tensor) -> Tensor:
        """See ``WarpOps``."""
        batch, _, depth, height, width = parts.shape
        edge = COLUMNS // 2
        wide = F.pad(parts.float(), (edge, edge)).view(
            batch, COLUMNS, MOTIONS, depth, height, width + 2 * edge
        )
        logits = sum(wide[:, column, ..., column : column + width] for column in range(COLUMNS))
        assert isinstance(logits, Tensor)
        bent = warp_volume(volume.float(), logits.softmax(1), driving, source)
        by_depth = bent.view(batch, VOLUME_CHANNELS, depth, height, width).transpose(1, 2).flatten(1, 2)
        return by_depth.to(volume.dtype).contiguous(memory_format=torch.channels_last)


class FastWarping(nn.Module):
    """``WarpingNetwork`` with the same arguments and result.

    Args:
        network: Its weights are copied.
        ops: What runs between the convolutions.
        dtype: Of the convolutions; keypoints and sample positions stay float32.
    """

    _occlusion_taps: Tensor
    _occlusion_bias: Tensor

    def __init__(self, network: WarpingNetwork, ops: WarpOps, *, dtype: torch.dtype) -> None:
        super().__init__()
        self._ops = ops
        self._dtype = dtype
        dense = network.dense_motion_network
        hourglass = dense.hourglass
        candidates = dense.compress.out_channels * MOTIONS + MOTIONS
        self._channels = padded_channels(candidates)
        features = padded_channels(dense.mask.in_channels)
        self.compress = fold(dense.compress, dense.norm)
        self.down = nn.ModuleList(
            _folded(block)
            for block in hourglass.encoder.down_blocks  # type: ignore[union-attr]
        )
        self.down[0] = with_channels(self.down[0], self._channels, self.down[0].out_channels)  # type: ignore[arg-type]
        self.up = nn.ModuleList(
            _folded(block)
            for block in hourglass.decoder.up_blocks  # type: ignore[union-attr]
        )
        last = fold(hourglass.decoder.conv, hourglass.decoder.norm)  # type: ignore[arg-type]
        self.features = with_channels(last, features, features)
        self.weigh = _by_columns(dense.mask, features)
        assert dense.occlusion.bias is not None
        self.register_buffer(
            "_occlusion_taps", _tap_matrix(dense.occlusion, dense.mask.in_channels, features)
        )
        self.register_buffer("_occlusion_bias", dense.occlusion.bias.detach().clone())
        self.third = fold(network.third.conv, network.third.norm)
        shape = (-1, VOLUME_CHANNELS, VOLUME_DEPTH, 3, 3)
        by_depth = self.third.weight.view(*shape).transpose(1, 2).flatten(1, 2)
        self.third.weight = nn.Parameter(by_depth.contiguous(), requires_grad=False)
        self.fourth = nn.Conv2d(256, 256, 1)
        self.fourth.load_state_dict(network.fourth.state_dict())
        self.to(dtype)
        for convolution in self.modules():
            if isinstance(convolution, nn.Conv3d):
                convolution.to(memory_format=torch.channels_last_3d)  # type: ignore[call-overload]
            elif isinstance(convolution, nn.Conv2d):
                convolution.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, volume: Tensor, driving: Tensor, source: Tensor) -> Tensor:
        """See ``WarpingNetwork.forward``; the volume in channels-last memory spares a copy.

        Args:
            volume: [B, 32, 16, 64, 64] of this network's dtype.
            driving: Float32 [B, 21, 3].
            source: Float32 [B, 21, 3].
        """
        volume = volume.contiguous(memory_format=torch.channels_last_3d)
        compressed = F.relu(self.compress(volume))
        skips = [self._ops.candidates(compressed, driving, source, self._channels)]
        for block in self.down:
            skips.append(_halved(F.relu(block(skips[-1]))))
        x = skips.pop()
        for block in self.up:
            x = torch.cat((F.relu(block(_doubled(x))), skips.pop()), dim=1)
        features = F.relu(self.features(x))
        bent = self._ops.bend(volume, self.weigh(features), driving, source)
        result: Tensor = self.fourth(F.leaky_relu(self.third(bent), 0.01)) * self._occlusion(features)
        return result

    def _occlusion(self, features: Tensor) -> Tensor:
        """[B, C, D, H, W] to [B, 1, H, W]."""
        batch, channels, depth, height, width = features.shape
        voxels = features.permute(0, 2, 3, 4, 1).reshape(batch, depth, height * width, channels)
        taps = torch.matmul(voxels, self._occlusion_taps).float().sum(1)  # [B, H * W, 49]
        total = F.fold(taps.transpose(1, 2), (height, width), 7, padding=3)
        return (total + self._occlusion_bias.float()).sigmoid().to(features.dtype)


def _folded(block: ConvNorm3d) -> nn.Conv3d:
    folded: nn.Conv3d = fold(block.conv, block.norm)
    return folded


def _by_columns(mask: nn.Conv3d, inputs: int) -> nn.Conv3d:
    """7x7x7 with 22 outputs as 7x7x1 with 7 * 22."""
    motions = mask.out_channels
    made = nn.Conv3d(inputs, COLUMNS * motions, (7, 7, 1), padding=(3, 3, 0))
    weight = F.pad(mask.weight.detach(), (0, 0, 0, 0, 0, 0, 0, inputs - mask.in_channels))
    columns = weight.unbind(-1)  # each [22, C, 7, 7]
    made.weight = nn.Parameter(torch.cat(columns)[..., None], requires_grad=False)
    bias = torch.zeros(COLUMNS * motions)
    assert mask.bias is not None
    # Of the middle column, which every voxel has.
    bias[COLUMNS // 2 * motions : (COLUMNS // 2 + 1) * motions] = mask.bias.detach()
    made.bias = nn.Parameter(bias, requires_grad=False)
    return made


def _tap_matrix(occlusion: nn.Conv2d, channels: int, padded: int) -> Tensor:
    """[D, C, 49]; mirrored, because ``F.fold`` carries a value from a place to its neighbours."""
    weight = occlusion.weight.detach().view(channels, VOLUME_DEPTH, 7, 7).flip(-1, -2)
    return F.pad(weight.permute(1, 0, 2, 3).flatten(2), (0, 0, 0, padded - channels)).contiguous()


def _halved(x: Tensor) -> Tensor:
    return F.avg_pool3d(x, (1, 2, 2))


def _doubled(x: Tensor) -> Tensor:
    return F.interpolate(x, scale_factor=(1, 2, 2))
