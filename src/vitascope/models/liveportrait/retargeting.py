"""S, and the networks that open and close eyes and lips: small perceptrons on keypoints."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn

from vitascope.models.liveportrait.motion import KEYPOINTS

__all__ = ["KeypointPerceptron", "eye_perceptron", "lip_perceptron", "stitching_perceptron"]


class KeypointPerceptron(nn.Module):
    """Linear layers with ReLU between them."""

    def __init__(self, *widths: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for before, after in itertools.pairwise(widths):
            layers += [nn.Linear(before, after), nn.ReLU()]
        self.mlp = nn.Sequential(*layers[:-1])

    def forward(self, *parts: Tensor) -> Tensor:
        """Parts [B, …] side by side to [B, outputs]."""
        result: Tensor = self.mlp(torch.cat([part.flatten(1) for part in parts], dim=1))
        return result


def stitching_perceptron() -> KeypointPerceptron:
    """Source and driving keypoints to 63 keypoint deltas and a shift in x and y, so that the neck stays attached."""
    return KeypointPerceptron(6 * KEYPOINTS, 128, 128, 64, 3 * KEYPOINTS + 2)


def lip_perceptron() -> KeypointPerceptron:
    """Source keypoints, the lips' openness and the wanted one, to 63 keypoint deltas."""
    return KeypointPerceptron(3 * KEYPOINTS + 2, 128, 128, 64, 3 * KEYPOINTS)


def eye_perceptron() -> KeypointPerceptron:
    """Source keypoints, both eyes' openness and the wanted one, to 63 keypoint deltas."""
    return KeypointPerceptron(3 * KEYPOINTS + 3, 256, 256, 128, 128, 64, 3 * KEYPOINTS)
