"""Implicit keypoints: how pose and expression make them, and how a driver's change of both moves a portrait's."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from vitascope.models.liveportrait.motion import RawMotion

__all__ = ["MotionGains", "driven_motion", "placed_keypoints", "rotation_of"]


@dataclass(frozen=True, slots=True)
class MotionGains:
    """How much of the driver's change the portrait makes; 1 is all of it."""

    pose: float = 1.0
    """Turning, moving and coming closer."""
    expression: float = 1.0


def rotation_of(pose_degrees: Tensor) -> Tensor:
    """Rotations for row vectors.

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
    """Keypoints as the warping network takes them: turned, deformed, scaled and moved.

    Args:
        motion: Of a batch of faces.
        rotation: [B, 3, 3] instead of the one that ``motion.pose_degrees`` says.

    Returns:
        [B, 21, 3]; depth is not moved.
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
    """The portrait's keypoints, moved by what the driver changed since its neutral.

    Args:
        portrait: Of the portrait.
        neutral: Of the driver's neutral picture.
        driving: Of the driver now.
        gains: How much of it.

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
