"""Check that the five networks have the published tensors and shapes, and compute the paper's special steps."""

from __future__ import annotations

import math

import pytest
import torch
from portrait_networks import keypoints, randomised, relative_error
from torch import Tensor, nn

from vitascope.models.liveportrait.motion import KEYPOINTS, MotionExtractor
from vitascope.models.liveportrait.published import (
    MOTIONS,
    AppearanceExtractor,
    SpadeGenerator,
    WarpingNetwork,
    candidate_features,
    coordinate_grid,
    lip_perceptron,
    stitching_perceptron,
    warp_volume,
)


@pytest.mark.parametrize(
    ("make", "tensors", "millions"),
    [
        (AppearanceExtractor, 107, 0.84),
        (MotionExtractor, 212, 28.12),
        (WarpingNetwork, 97, 45.53),
        (SpadeGenerator, 182 - 2 * 18, 55.37),
    ],
)
def test_tensor_and_parameter_counts_are_the_published_ones(
    make: type[nn.Module], tensors: int, millions: float
) -> None:
    network = make()
    assert len(network.state_dict()) == tensors
    assert sum(parameter.numel() for parameter in network.parameters()) / 1e6 == pytest.approx(
        millions, abs=0.006
    )


def test_appearance_is_a_volume() -> None:
    assert randomised(AppearanceExtractor())(torch.rand(2, 3, 64, 64)).shape == (2, 32, 16, 16, 16)


def test_motion_is_named_and_its_angles_lie_in_their_range() -> None:
    network = randomised(MotionExtractor())
    motion = MotionExtractor.motion_of(network(torch.rand(2, 3, 64, 64)))
    assert motion.keypoints.shape == motion.expression.shape == (2, KEYPOINTS, 3)
    assert motion.scale.shape == (2, 1)
    assert motion.translation.shape == motion.pose_degrees.shape == (2, 3)
    assert float(motion.pose_degrees.abs().max()) <= 97.5


def test_one_certain_bin_is_its_angle() -> None:
    network = randomised(MotionExtractor())
    for layer, bin_index in (("fc_pitch", 0), ("fc_yaw", 40), ("fc_roll", 65)):
        linear = getattr(network.detector, layer)
        linear.weight.zero_()
        linear.bias.zero_()
        linear.bias[bin_index] = 100
    motion = MotionExtractor.motion_of(network(torch.rand(1, 3, 64, 64)))
    torch.testing.assert_close(motion.pose_degrees, torch.tensor([[-97.5, 40 * 3 - 97.5, 65 * 3 - 97.5]]))


def test_grid_runs_from_minus_one_to_one_and_names_x_first() -> None:
    grid = coordinate_grid(2, 3, 5, like=torch.zeros(1))
    assert grid.shape == (2, 3, 5, 3)
    torch.testing.assert_close(grid[0, 0, :, 0], torch.tensor([-1, -0.5, 0, 0.5, 1]))
    torch.testing.assert_close(grid[0, :, 0, 1], torch.tensor([-1.0, 0, 1]))
    torch.testing.assert_close(grid[:, 0, 0, 2], torch.tensor([-1.0, 1]))


def sampled_by_hand(volume: Tensor, position: Tensor) -> Tensor:
    """Sample [C] from [C, D, H, W] trilinearly at x, y, z in -1..1, in plain arithmetic."""
    sizes = volume.shape[1:][::-1]
    at = [((float(p) + 1) * n - 1) / 2 for p, n in zip(position, sizes, strict=True)]
    total = torch.zeros(volume.shape[0])
    for corner in range(8):
        index, share = [], 1.0
        for axis, place in enumerate(at):
            step = corner >> axis & 1
            index.append(math.floor(place) + step)
            fraction = place - math.floor(place)
            share *= fraction if step else 1 - fraction
        if all(0 <= i < n for i, n in zip(index, sizes, strict=True)):
            x, y, z = index
            total += share * volume[:, z, y, x]
    return total


def test_candidates_are_heatmaps_and_shifted_samples() -> None:
    driving, source = keypoints()
    compressed = torch.randn(1, 4, 3, 5, 7)
    made = candidate_features(compressed, driving, source).view(MOTIONS, 5, 3, 5, 7)
    grid = coordinate_grid(3, 5, 7, like=compressed)
    assert float(made[0, 0].abs().max()) == 0
    for motion, (z, y, x) in ((0, (1, 2, 3)), (1, (0, 0, 0)), (5, (2, 4, 6)), (21, (1, 3, 2))):
        here = grid[z, y, x]
        if motion:
            d, s = driving[0, motion - 1], source[0, motion - 1]
            heat = math.exp(-50 * float((here - d).square().sum())) - math.exp(
                -50 * float((here - s).square().sum())
            )
            assert float(made[motion, 0, z, y, x]) == pytest.approx(heat, abs=1e-6)
            here = here - d + s
        torch.testing.assert_close(
            made[motion, 1:, z, y, x], sampled_by_hand(compressed[0], here), rtol=1e-4, atol=1e-5
        )


def test_a_volume_that_follows_one_motion_is_moved_by_it() -> None:
    driving, source = keypoints()
    volume = torch.randn(1, 2, 3, 5, 7)
    weights = torch.zeros(1, MOTIONS, 3, 5, 7)
    weights[:, 3] = 1
    bent = warp_volume(volume, weights, driving, source).view(2, 3, 5, 7)
    here = coordinate_grid(3, 5, 7, like=volume)[1, 2, 4] + source[0, 2] - driving[0, 2]
    torch.testing.assert_close(bent[:, 1, 2, 4], sampled_by_hand(volume[0], here), rtol=1e-4, atol=1e-5)


def test_generator_paints_eight_times_its_features_size() -> None:
    picture = randomised(SpadeGenerator())(torch.randn(1, 256, 4, 4))
    assert picture.shape == (1, 3, 32, 32)
    assert 0 <= float(picture.min()) <= float(picture.max()) <= 1


def test_perceptrons_join_what_they_are_given() -> None:
    driving, source = keypoints(3)
    stitch = randomised(stitching_perceptron())
    assert stitch(source, driving).shape == (3, 65)
    assert (
        relative_error(
            stitch(source, driving), stitch(torch.cat((source.flatten(1), driving.flatten(1)), dim=1))
        )
        == 0
    )
    assert randomised(lip_perceptron())(source, torch.rand(3, 2)).shape == (3, 63)
