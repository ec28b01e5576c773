"""M: a face's 21 keypoints and the head's pose. ConvNeXt V2 Tiny (Woo et al. 2023).

The keypoints are implicit: they are placed by pose and expression, and the change of a driver's pose and expression
moves a portrait's keypoints.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Self

import torch
import torch.nn.functional as F  # noqa: N812 - the name that PyTorch's own documentation uses
from torch import Tensor, nn

KEYPOINTS = 21
_DEPTHS = (3, 3, 9, 3)
_WIDTHS = (96, 192, 384, 768)
_POSE_BINS = 66
_EPSILON = 1e-6


@dataclass(frozen=True, slots=True)
class RawMotion:
    """M's outputs for one batch of faces, float32 on M's device."""

    keypoints: Tensor
    """[B, 21, 3]: canonical keypoints of this person, before rotation and translation."""
    expression: Tensor
    """[B, 21, 3]: deformation of the keypoints."""
    scale: Tensor
    """[B, 1]."""
    translation: Tensor
    """[B, 3]; the third is unused."""
    pose_degrees: Tensor
    """[B, 3]: pitch, yaw, roll."""

    def first(self, count: int) -> Self:
        """The first faces of the batch."""
        return type(self)(*(getattr(self, field.name)[:count] for field in fields(self)))

    @classmethod
    def joined(cls, motions: Sequence[RawMotion]) -> Self:
        """Concatenate batches."""
        return cls(*(torch.cat([getattr(motion, field.name) for motion in motions]) for field in fields(cls)))


class MotionExtractor(nn.Module):
    """Picture to motion. 212 tensors, 28 million parameters, 5.8 GMAC.

    It stays in FP32, as FP16 makes keypoints jitter.
    """

    def __init__(self) -> None:
        super().__init__()
        self.detector = _Detector()

    def forward(self, picture: Tensor) -> tuple[Tensor, ...]:
        """Extract.

        Args:
            picture: Float32 [B, 3, 256, 256], RGB 0..1.

        Returns:
            Keypoints [B, 63], expression [B, 63], scale [B, 1], translation [B, 3], pitch, yaw and roll [B] in degrees.
            ``motion_of`` names them.
        """
        result: tuple[Tensor, ...] = self.detector(picture)
        return result

    @staticmethod
    def motion_of(outputs: tuple[Tensor, ...]) -> RawMotion:
        """Name and reshape the outputs of ``forward``."""
        keypoints, expression, scale, translation, pitch, yaw, roll = outputs
        return RawMotion(
            keypoints.view(-1, KEYPOINTS, 3),
            expression.view(-1, KEYPOINTS, 3),
            scale,
            translation,
            torch.stack((pitch, yaw, roll), dim=-1),
        )


class _Detector(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.downsample_layers = nn.ModuleList(
            [nn.Sequential(nn.Conv2d(3, _WIDTHS[0], 4, stride=4), _ChannelNorm(_WIDTHS[0]))]
        )
        for before, after in itertools.pairwise(_WIDTHS):
            self.downsample_layers.append(
                nn.Sequential(_ChannelNorm(before), nn.Conv2d(before, after, 2, stride=2))
            )
        self.stages = nn.ModuleList(
            nn.Sequential(*(_Block(width) for _ in range(depth)))
            for depth, width in zip(_DEPTHS, _WIDTHS, strict=True)
        )
        width = _WIDTHS[-1]
        self.norm = nn.LayerNorm(width, eps=_EPSILON)
        self.fc_kp = nn.Linear(width, 3 * KEYPOINTS)
        self.fc_scale = nn.Linear(width, 1)
        self.fc_pitch = nn.Linear(width, _POSE_BINS)
        self.fc_yaw = nn.Linear(width, _POSE_BINS)
        self.fc_roll = nn.Linear(width, _POSE_BINS)
        self.fc_t = nn.Linear(width, 3)
        self.fc_exp = nn.Linear(width, 3 * KEYPOINTS)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        for downsample, stage in zip(self.downsample_layers, self.stages, strict=True):
            x = stage(downsample(x))
        x = self.norm(x.mean((2, 3)))
        return (
            self.fc_kp(x),
            self.fc_exp(x),
            self.fc_scale(x),
            self.fc_t(x),
            _degrees(self.fc_pitch(x)),
            _degrees(self.fc_yaw(x)),
            _degrees(self.fc_roll(x)),
        )


class _ChannelNorm(nn.LayerNorm):
    """Layer norm over the channels of [B, C, H, W]."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels, eps=_EPSILON)

    def forward(self, x: Tensor) -> Tensor:
        normed: Tensor = super().forward(x.permute(0, 2, 3, 1))
        return normed.permute(0, 3, 1, 2)


class _Block(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.dwconv = nn.Conv2d(channels, channels, 7, padding=3, groups=channels)
        self.norm = nn.LayerNorm(channels, eps=_EPSILON)
        self.pwconv1 = nn.Linear(channels, 4 * channels)
        self.grn = _GlobalResponseNorm(4 * channels)
        self.pwconv2 = nn.Linear(4 * channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.norm(self.dwconv(x).permute(0, 2, 3, 1))
        y = self.pwconv2(self.grn(F.gelu(self.pwconv1(y))))
        return x + y.permute(0, 3, 1, 2)


class _GlobalResponseNorm(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.zeros(1, 1, 1, channels))
        self.beta = nn.Parameter(torch.zeros(1, 1, 1, channels))

    def forward(self, x: Tensor) -> Tensor:
        """[B, H, W, C]."""
        energy: Tensor = torch.linalg.vector_norm(x, dim=(1, 2), keepdim=True)
        share = energy / (energy.mean(-1, keepdim=True) + _EPSILON)
        result: Tensor = self.gamma * (x * share) + self.beta + x
        return result


def _degrees(logits: Tensor) -> Tensor:
    """Expectation over bins of 3 degrees, starting at -97.5: [B, 66] to [B]."""
    bins = torch.arange(_POSE_BINS, device=logits.device, dtype=logits.dtype)
    mean: Tensor = (logits.softmax(-1) * bins).sum(-1)
    degrees: Tensor = mean * 3 - 97.5
    return degrees


@dataclass(frozen=True, slots=True)
class MotionGains:
    """Shares of the driver's change that the portrait follows; 1 is all of it."""

    pose: float = 1.0
    """Rotation, translation and scale."""
    expression: float = 1.0


def rotation_of(pose_degrees: Tensor) -> Tensor:
    """Rotation matrices for row vectors.

    Args:
        pose_degrees: [B, 3], pitch about x, yaw about y, roll about z.

    Returns:
        [B, 3, 3], the transpose of Rz Ry Rx.
    """
    (sx, sy, sz), (cx, cy, cz) = (
        part(torch.deg2rad(pose_degrees)).unbind(-1) for part in (torch.sin, torch.cos)
    )
    zero, one = torch.zeros_like(sx), torch.ones_like(sx)

    def matrix(*rows: Tensor) -> Tensor:
        return torch.stack(rows, dim=-1).view(-1, 3, 3)

    about_x = matrix(one, zero, zero, zero, cx, -sx, zero, sx, cx)
    about_y = matrix(cy, zero, sy, zero, one, zero, -sy, zero, cy)
    about_z = matrix(cz, -sz, zero, sz, cz, zero, zero, zero, one)
    return (about_z @ about_y @ about_x).transpose(1, 2)


def placed_keypoints(motion: RawMotion, rotation: Tensor | None = None) -> Tensor:
    """Keypoints for the warping network: rotated, deformed, scaled and translated.

    Args:
        motion: The motion of a batch of faces.
        rotation: [B, 3, 3], replaces that from ``motion.pose_degrees``.

    Returns:
        [B, 21, 3]; depth is not translated.
    """
    turned = motion.keypoints @ (rotation_of(motion.pose_degrees) if rotation is None else rotation)
    placed = motion.scale[:, None] * (turned + motion.expression)
    shift = motion.translation.clone()
    shift[:, 2] = 0
    result: Tensor = placed + shift[:, None]
    return result


def driven_motion(
    portrait: RawMotion, neutral: RawMotion, driving: RawMotion, gains: MotionGains | None = None
) -> Tensor:
    """The portrait's keypoints, moved by the driver's change since its neutral picture.

    Args:
        portrait: The portrait's motion.
        neutral: The motion of the driver's neutral picture.
        driving: The driver's motion now.
        gains: Shares of the change to follow; all of it when omitted.

    Returns:
        [B, 21, 3]. Driving with the neutral itself gives ``placed_keypoints(portrait)``.
    """
    gains = gains or MotionGains()
    change = (driving.pose_degrees - neutral.pose_degrees) * gains.pose + neutral.pose_degrees
    rotation = rotation_of(change) @ rotation_of(neutral.pose_degrees).transpose(1, 2)
    moved = RawMotion(
        keypoints=portrait.keypoints,
        expression=portrait.expression + gains.expression * (driving.expression - neutral.expression),
        scale=portrait.scale * (driving.scale / neutral.scale) ** gains.pose,
        translation=portrait.translation + gains.pose * (driving.translation - neutral.translation),
        pose_degrees=portrait.pose_degrees,
    )
    return placed_keypoints(moved, rotation @ rotation_of(portrait.pose_degrees))
