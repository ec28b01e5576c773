"""Tests of keypoints: turned, scaled and moved by the paper's equations, and driven by differences."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from vitascope.models.liveportrait.motion import (
    MotionGains,
    RawMotion,
    driven_motion,
    placed_keypoints,
    rotation_of,
)


def random_motion() -> RawMotion:
    return RawMotion(
        keypoints=torch.randn(2, 21, 3),
        expression=torch.randn(2, 21, 3) * 0.1,
        scale=torch.rand(2, 1) + 0.5,
        translation=torch.randn(2, 3),
        pose_degrees=torch.randn(2, 3) * 20,
    )


def by_axis(axis: int, degrees: float) -> Tensor:
    """Return the textbook rotation for column vectors."""
    s, c = math.sin(math.radians(degrees)), math.cos(math.radians(degrees))
    return torch.tensor(
        [
            [[1, 0, 0], [0, c, -s], [0, s, c]],
            [[c, 0, s], [0, 1, 0], [-s, 0, c]],
            [[c, -s, 0], [s, c, 0], [0, 0, 1]],
        ][axis]
    )


def test_rotation_is_pitch_then_yaw_then_roll_for_row_vectors() -> None:
    pitch, yaw, roll = 12.0, -34.0, 56.0
    wanted = (by_axis(2, roll) @ by_axis(1, yaw) @ by_axis(0, pitch)).T
    torch.testing.assert_close(
        rotation_of(torch.tensor([[pitch, yaw, roll]]))[0], wanted, rtol=1e-5, atol=1e-6
    )


def test_keypoints_are_turned_deformed_scaled_and_moved_in_the_picture_only() -> None:
    motion = random_motion()
    placed = placed_keypoints(motion)
    for face in range(2):
        rotation = rotation_of(motion.pose_degrees)[face]
        wanted = motion.scale[face] * (motion.keypoints[face] @ rotation + motion.expression[face])
        wanted[:, :2] += motion.translation[face, :2]
        torch.testing.assert_close(placed[face], wanted, rtol=1e-4, atol=1e-5)


def test_the_neutral_itself_drives_nothing() -> None:
    portrait, neutral = random_motion(), random_motion()
    torch.testing.assert_close(
        driven_motion(portrait, neutral, neutral), placed_keypoints(portrait), rtol=1e-4, atol=1e-5
    )


def test_a_driver_with_the_portraits_own_neutral_makes_its_own_keypoints() -> None:
    portrait, now = random_motion(), random_motion()
    now = RawMotion(portrait.keypoints, now.expression, now.scale, now.translation, now.pose_degrees)
    torch.testing.assert_close(
        driven_motion(portrait, portrait, now), placed_keypoints(now), rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("part", ["pose", "expression"])
def test_a_gain_of_zero_takes_its_part_away(part: str) -> None:
    portrait, neutral, now = random_motion(), random_motion(), random_motion()
    still = RawMotion(
        now.keypoints,
        neutral.expression if part == "expression" else now.expression,
        neutral.scale if part == "pose" else now.scale,
        neutral.translation if part == "pose" else now.translation,
        neutral.pose_degrees if part == "pose" else now.pose_degrees,
    )
    torch.testing.assert_close(
        driven_motion(portrait, neutral, now, MotionGains(**{part: 0.0})),
        driven_motion(portrait, neutral, still),
        rtol=1e-4,
        atol=1e-5,
    )
