"""The networks together on a processor, and what opening them refuses."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from portrait_networks import keypoints, randomised

from vitascope.device import select_device
from vitascope.errors import ModelError
from vitascope.models.liveportrait.appearance import AppearanceExtractor
from vitascope.models.liveportrait.generator import SpadeGenerator
from vitascope.models.liveportrait.motion import MotionExtractor
from vitascope.models.liveportrait.networks import CHECKPOINTS, LivePortraitNetworks
from vitascope.models.liveportrait.retargeting import lip_perceptron, stitching_perceptron
from vitascope.models.liveportrait.warping import WarpingNetwork


def test_a_picture_goes_through_all_of_them() -> None:
    parts = (
        randomised(AppearanceExtractor()),
        randomised(MotionExtractor()),
        randomised(WarpingNetwork()),
        randomised(SpadeGenerator()),
        randomised(stitching_perceptron()),
        randomised(lip_perceptron()),
    )
    picture = torch.rand(1, 3, 128, 128)  # half as large as in earnest, for time
    driving, source = keypoints()
    with LivePortraitNetworks(parts, device=select_device("cpu"), mode="eager") as networks:
        volume = networks.appearance(picture)
        assert volume.shape == (1, 32, 16, 32, 32)
        torch.testing.assert_close(volume, parts[0](picture), rtol=1e-4, atol=1e-4)
        motion = networks.motion(picture)
        torch.testing.assert_close(
            motion.pose_degrees, MotionExtractor.motion_of(parts[1](picture)).pose_degrees
        )
        stitched = networks.stitched(source, driving)
        delta = parts[4](source, driving)
        wanted = driving + delta[:, :63].view(1, 21, 3)
        wanted[..., :2] += delta[:, None, 63:]
        torch.testing.assert_close(stitched, wanted)
        assert networks.closed_lips(source, 0.2).shape == (1, 21, 3)
        painted = networks.paint(volume, driving, source)
        assert painted.shape == (1, 3, 256, 256)
        torch.testing.assert_close(painted, parts[3](parts[2](volume, driving, source)), rtol=1e-3, atol=1e-4)
        assert "fp32" in networks.name


def test_a_folder_without_weights_names_what_is_missing(tmp_path: Path) -> None:
    (tmp_path / "base_models").mkdir()
    (tmp_path / CHECKPOINTS["motion"]).write_bytes(b"")
    with pytest.raises(ModelError, match="need base_models/appearance") as caught:
        LivePortraitNetworks.open(tmp_path, device=select_device("cpu"))
    assert "motion_extractor" not in str(caught.value)


def test_damaged_weights_are_named(tmp_path: Path) -> None:
    for name in CHECKPOINTS.values():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"not a checkpoint")
    with pytest.raises(ModelError, match="appearance_feature_extractor"):
        LivePortraitNetworks.open(tmp_path, device=select_device("cpu"))


def test_another_networks_weights_are_refused(tmp_path: Path) -> None:
    for name in CHECKPOINTS.values():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        torch.save(stitching_perceptron().state_dict(), tmp_path / name)
    with pytest.raises(ModelError, match=r"appearance_feature_extractor\.pth: Error"):
        LivePortraitNetworks.open(tmp_path, device=select_device("cpu"))
