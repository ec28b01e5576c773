"""Tests of the networks together on a CPU, and of what opening them refuses."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from portrait_networks import keypoints, randomised

from vitascope.device import select_device
from vitascope.errors import ModelError
from vitascope.models.liveportrait.folder import CHECKPOINTS
from vitascope.models.liveportrait.motion import MotionExtractor, RawMotion
from vitascope.models.liveportrait.networks import LivePortraitNetworks
from vitascope.models.liveportrait.published import (
    AppearanceExtractor,
    PublishedNetworks,
    SpadeGenerator,
    WarpingNetwork,
    lip_perceptron,
    stitching_perceptron,
)


def random_networks() -> PublishedNetworks:
    return PublishedNetworks(
        randomised(AppearanceExtractor()),
        randomised(MotionExtractor()),
        randomised(WarpingNetwork()),
        randomised(SpadeGenerator()),
        randomised(stitching_perceptron()),
        randomised(lip_perceptron()),
    )


@pytest.mark.usefixtures("narrow")
def test_pictures_go_through_all_of_them_together_as_each_alone() -> None:
    parts = random_networks()
    pictures = torch.rand(2, 3, 64, 64)  # a quarter of the real size, to save time
    driving, source = keypoints(2)
    with LivePortraitNetworks(parts, device=select_device("cpu"), mode="eager") as networks:
        volumes = networks.appearance(pictures)
        assert volumes.shape == (2, 32, 16, 16, 16)
        motion = networks.motion(pictures)
        stitched = networks.stitched(source, driving)
        painted = networks.paint(volumes, driving, source)
        assert painted.shape == (2, 3, 128, 128)
        assert networks.closed_lips(source, 0.2).shape == (2, 21, 3)
        assert "fp32" in networks.name
    last = slice(1, 2)
    torch.testing.assert_close(volumes[last], parts[0](pictures[last]), rtol=1e-4, atol=1e-4)
    alone = MotionExtractor.motion_of(parts[1](pictures[last]))
    torch.testing.assert_close(motion.keypoints[last], alone.keypoints, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(motion.pose_degrees[last], alone.pose_degrees, rtol=1e-4, atol=1e-4)
    delta = parts[4](source[last], driving[last])
    wanted = driving[last] + delta[:, :63].view(1, 21, 3)
    wanted[..., :2] += delta[:, None, 63:]
    torch.testing.assert_close(stitched[last], wanted)
    torch.testing.assert_close(
        painted[last],
        parts[3](parts[2](volumes[last], driving[last], source[last])),
        rtol=1e-3,
        atol=1e-4,
    )


@pytest.mark.cuda
def test_on_a_gpu_batches_give_what_single_pictures_give() -> None:
    pictures = torch.rand(3, 3, 256, 256)
    driving, source = (points.cuda() for points in keypoints(3))
    with LivePortraitNetworks(random_networks(), device=select_device("cuda"), mode="eager") as networks:
        volumes, motion = networks.appearance(pictures), networks.motion(pictures)
        painted = networks.paint(volumes, driving, source)
        for index in range(3):
            one = slice(index, index + 1)
            single = networks.motion(pictures[one])
            torch.testing.assert_close(single.keypoints, motion.keypoints[one], rtol=1e-3, atol=1e-4)
            alone = networks.paint(volumes[one], driving[one], source[one])
            assert float((alone - painted[one]).abs().max()) < 0.02  # FP16, with sums in another order


def test_motions_are_joined_and_cut() -> None:
    motion = RawMotion(*(torch.randn(3, *shape) for shape in ((21, 3), (21, 3), (1,), (3,), (3,))))
    again = RawMotion.joined([motion.first(2), motion])
    assert torch.equal(again.pose_degrees, torch.cat((motion.pose_degrees[:2], motion.pose_degrees)))
    assert again.keypoints.shape == again.expression.shape == (5, 21, 3)
    assert again.scale.shape == (5, 1)
    assert again.translation.shape == (5, 3)


def test_a_folder_without_weights_names_what_is_missing(tmp_path: Path) -> None:
    (tmp_path / "base_models").mkdir()
    (tmp_path / CHECKPOINTS["motion"]).write_bytes(b"")
    with pytest.raises(ModelError, match="lack base_models/appearance") as caught:
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
