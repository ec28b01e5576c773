"""W: the appearance volume, bent from the portrait's keypoints to the driver's."""

from __future__ import annotations

import itertools

import torch
import torch.nn.functional as F  # noqa: N812 - the name that PyTorch's own documentation uses
from torch import Tensor, nn

from vitascope.models.liveportrait.appearance import VOLUME_CHANNELS, VOLUME_DEPTH
from vitascope.models.liveportrait.blocks import ConvNorm2d, ConvNorm3d, coordinate_grid
from vitascope.models.liveportrait.motion import KEYPOINTS

__all__ = ["MOTIONS", "WarpingNetwork", "candidate_features", "warp_volume"]

MOTIONS = KEYPOINTS + 1
"""One for each keypoint, and the background, which stays."""
_VARIANCE = 0.01
_COMPRESSED = 4
_CANDIDATES = MOTIONS * (_COMPRESSED + 1)
_ENCODER = (_CANDIDATES, 64, 128, 256, 512, 1024)
_DECODER = ((1024, 512), (1024, 256), (512, 128), (256, 64), (128, 32))
_FEATURES = 32 + _CANDIDATES


class WarpingNetwork(nn.Module):
    """Volume and keypoints to features for the generator. 97 tensors, 46 million parameters, 171 GMAC."""

    def __init__(self) -> None:
        super().__init__()
        self.dense_motion_network = _DenseMotion()
        self.third = ConvNorm2d(VOLUME_CHANNELS * VOLUME_DEPTH, 256, negative_slope=0.01)
        self.fourth = nn.Conv2d(256, 256, 1)

    def forward(self, volume: Tensor, driving: Tensor, source: Tensor) -> Tensor:
        """Bend.

        Args:
            volume: [B, 32, 16, 64, 64], the portrait's appearance, of this network's dtype.
            driving: Float32 [B, 21, 3], keypoints x, y, z to bend to; -1..1 spans the crop. They, and the
                positions made of them, stay float32 whatever the dtype is.
            source: Float32 [B, 21, 3], keypoints of the portrait.

        Returns:
            [B, 256, 64, 64].
        """
        weights, occlusion = self.dense_motion_network(volume, driving, source)
        bent = warp_volume(volume.float(), weights.float(), driving, source).to(volume.dtype)
        result: Tensor = self.fourth(self.third(bent)) * occlusion
        return result


class _DenseMotion(nn.Module):
    """Which of the candidate motions each voxel follows, and what the bent volume does not cover."""

    def __init__(self) -> None:
        super().__init__()
        self.hourglass = _Hourglass()
        self.mask = nn.Conv3d(_FEATURES, MOTIONS, 7, padding=3)
        self.compress = nn.Conv3d(VOLUME_CHANNELS, _COMPRESSED, 1)
        self.norm = nn.BatchNorm3d(_COMPRESSED)
        self.occlusion = nn.Conv2d(_FEATURES * VOLUME_DEPTH, 1, 7, padding=3)

    def forward(self, volume: Tensor, driving: Tensor, source: Tensor) -> tuple[Tensor, Tensor]:
        """Weights [B, 22, 16, 64, 64] that sum to 1, and occlusion [B, 1, 64, 64] in 0..1."""
        compressed = F.relu(self.norm(self.compress(volume)))
        candidates = candidate_features(compressed.float(), driving, source).to(volume.dtype)
        features = self.hourglass(candidates)
        occlusion = self.occlusion(features.flatten(1, 2)).sigmoid()
        return self.mask(features).softmax(1), occlusion


class _Hourglass(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Module()
        self.encoder.down_blocks = nn.ModuleList(
            ConvNorm3d(before, after, halves=True) for before, after in itertools.pairwise(_ENCODER)
        )
        self.decoder = nn.Module()
        self.decoder.up_blocks = nn.ModuleList(
            ConvNorm3d(before, after, doubles=True) for before, after in _DECODER
        )
        self.decoder.conv = nn.Conv3d(_FEATURES, _FEATURES, 3, padding=1)
        self.decoder.norm = nn.BatchNorm3d(_FEATURES)

    def forward(self, x: Tensor) -> Tensor:
        skips = [x]
        for block in self.encoder.down_blocks:  # type: ignore[union-attr]  # a ModuleList, which nn.Module hides
            skips.append(block(skips[-1]))
        x = skips.pop()
        for block in self.decoder.up_blocks:  # type: ignore[union-attr]
            x = torch.cat((block(x), skips.pop()), dim=1)
        return F.relu(self.decoder.norm(self.decoder.conv(x)))  # type: ignore[operator]


def candidate_features(compressed: Tensor, driving: Tensor, source: Tensor) -> Tensor:
    """For each motion: where its keypoint went, and the volume moved along.

    Args:
        compressed: [B, 4, D, H, W].
        driving: [B, 21, 3].
        source: [B, 21, 3].

    Returns:
        [B, 22 * 5, D, H, W]: for each motion a heatmap (driving less source, none for the background) and the four
        channels, sampled trilinearly at the voxel moved by source less driving.
    """
    batch, channels, *size = compressed.shape
    grid = coordinate_grid(*size, like=compressed)
    moved = grid + _shifts(driving, source)[:, :, None, None, None]  # [B, 22, D, H, W, 3]
    samples = F.grid_sample(
        compressed.repeat_interleave(MOTIONS, dim=0), moved.flatten(0, 1), align_corners=False
    ).view(batch, MOTIONS, channels, *size)
    heat = _heatmap(grid, driving) - _heatmap(grid, source)
    heat = torch.cat((torch.zeros_like(heat[:, :1]), heat), dim=1)
    return torch.cat((heat[:, :, None], samples), dim=2).flatten(1, 2)


def warp_volume(volume: Tensor, weights: Tensor, driving: Tensor, source: Tensor) -> Tensor:
    """Move every voxel by the weighted sum of the motions.

    Args:
        volume: [B, 32, D, H, W].
        weights: [B, 22, D, H, W], sum 1.
        driving: [B, 21, 3].
        source: [B, 21, 3].

    Returns:
        [B, 32 * D, H, W].
    """
    grid = coordinate_grid(*volume.shape[2:], like=volume)
    shift = torch.einsum("bmdhw,bmc->bdhwc", weights, _shifts(driving, source))
    bent = F.grid_sample(volume, grid + shift, align_corners=False)
    return bent.flatten(1, 2)


def _shifts(driving: Tensor, source: Tensor) -> Tensor:
    """[B, 22, 3]: where a motion takes its samples from, against the voxel itself; the background from there."""
    return F.pad(source - driving, (0, 0, 1, 0))


def _heatmap(grid: Tensor, keypoints: Tensor) -> Tensor:
    """A Gaussian about each keypoint: [B, 21, D, H, W]."""
    distance = grid - keypoints[:, :, None, None, None]
    return torch.exp(-0.5 / _VARIANCE * distance.square().sum(-1))
