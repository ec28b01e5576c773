"""Tests of one matte from pictures of several sizes."""

from __future__ import annotations

import numpy as np
import pytest

from lever_network import EYE, TrailNetwork, frame_of
from scripted import BrightnessNetwork
from vitascope.config.compute import InferenceSettings
from vitascope.errors import UsageError
from vitascope.frames import StereoLayout
from vitascope.models.network import MatteEstimate
from vitascope.segmentation.matting.stream import MattingOptions, StreamMatting


class SizeNetwork(TrailNetwork):
    """Returns an alpha that depends on the width of the picture, as a plane or as coefficients."""

    def __init__(self, *, plain):
        super().__init__(recurrent=False)
        self.plain = plain

    def infer(self, images, state):
        self.calls.append(tuple(images.shape))
        alpha = np.full((images.shape[1], *images.shape[3:]), images.shape[4] / 1000, np.float32)
        if self.plain:
            return [MatteEstimate(alpha=alpha) for _ in images]
        return [MatteEstimate(gain=0 * alpha[:, None], offset=alpha[:, None]) for _ in images]


def mattes(frames, network, scales):
    matting = StreamMatting(
        network,
        size=EYE,
        layout=StereoLayout.MONO,
        options=MattingOptions(
            scene_cut_threshold=0, warm_up_frames=0, inference=InferenceSettings(scales=scales)
        ),
    )
    estimates = matting.infer([matting.find_cuts(matting.prepare([frame])) for frame in frames])
    return np.stack([matting.refine(estimated).alpha for estimated in estimates]), matting.report()


@pytest.mark.parametrize("plain", [False, True])
def test_the_mean_of_all_sizes_is_given(plain):
    network = SizeNetwork(plain=plain)
    alphas, report = mattes([frame_of([(0, 40, 40, 40)])], network, (0.5, 1.0, 1.5))
    assert [shape[3:] for shape in network.calls] == [(64, 96), EYE, (192, 288)]
    assert np.abs(alphas - 255 * (96 + 192 + 288) / 3000).max() < 2
    assert report.network_share == pytest.approx(0.25 + 1 + 2.25)


def test_one_size_that_is_far_outside_does_not_outvote_the_others():
    class Extreme(SizeNetwork):
        def infer(self, images, state):
            (estimate,) = super().infer(images, state)
            offset = np.full_like(estimate.offset, -5.0 if images.shape[4] < 192 else 1.2)
            return [MatteEstimate(gain=np.full_like(offset, 0.3), offset=offset)]

    alphas, _ = mattes([frame_of([(0, 40, 40, 40)])], Extreme(plain=False), (0.5, 1.0))
    assert np.abs(alphas.astype(int) - 128).max() < 24


def test_each_size_has_a_memory_of_its_own():
    frames = [frame_of([(0, 20 + 8 * n, 40, 32)], index=n) for n in range(6)]
    both, _ = mattes(frames, TrailNetwork(), (1.0, 2.0))
    one, _ = mattes(frames, TrailNetwork(), (1.0,))
    assert np.abs(both.astype(int) - one).mean() < 4


def test_a_network_of_one_size_cannot():
    with pytest.raises(UsageError, match=r"inference.scales: scripted takes pictures of one size only$"):
        mattes([frame_of([])], BrightnessNetwork(), (1.0, 2.0))
