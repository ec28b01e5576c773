"""Tests of the pictures that a network with memory sees before its answers count."""

from __future__ import annotations

import numpy as np
import pytest
from skimage import data

from lever_network import TrailNetwork
from vitascope.models.network import StatelessState
from vitascope.models.rvm.rvm import RvmNetwork
from vitascope.segmentation.matting.look_ahead import SETTLING_SIDE, settle


class Watched(TrailNetwork):
    """Records the sizes and means of its pictures."""

    def __init__(self):
        super().__init__()
        self.shown = []

    def infer(self, images, state):
        self.shown.append((images.shape[3:], images.dtype, float(images.mean())))
        return super().infer(images, state)


@pytest.mark.parametrize(
    ("size", "small"),
    [((216, 384), (216, 384)), ((432, 768), (216, 384)), ((1001, 334), (384, 128)), ((9, 4000), (1, 384))],
)
@pytest.mark.parametrize("eyes", [1, 2])
def test_a_large_picture_is_shrunk_and_the_memory_is_the_large_ones(size, small, eyes):
    network = Watched()
    state = network.new_state()
    picture = np.full((1, eyes, 3, *size), 0.75, np.float32)
    settle(network, picture, state, calls=3)
    assert [shape for shape, _, _ in network.shown] == [small] * 3
    assert all(mean == pytest.approx(0.75, abs=1e-3) for _, _, mean in network.shown)
    assert state.seen.shape == (eyes, -(-size[0] // 2), -(-size[1] // 2))


def test_the_precision_of_the_picture_is_kept():
    network = Watched()
    settle(network, np.ones((1, 1, 3, 500, 500), np.float16), network.new_state(), calls=1)
    assert network.shown[0][1] == np.float16


def test_without_calls_nothing_is_remembered():
    network = Watched()
    state = network.new_state()
    settle(network, np.ones((1, 1, 3, 500, 500), np.float32), state, calls=0)
    assert (network.shown, state.seen) == ([], None)


def test_a_memory_that_lies_nowhere_is_shown_the_picture_as_it_is():
    shown = []

    class Network:
        def infer(self, images, state):
            shown.append(images.shape)

    settle(Network(), np.ones((1, 1, 3, 500, 500), np.float32), StatelessState(), calls=2)
    assert shown == [(1, 1, 3, 500, 500)] * 2


@pytest.mark.fetched_model
def test_a_suit_beside_a_helmet_is_whole_at_once(rvm_model_path):
    """Check the astronaut's chest: without settling, the network leaves it out of the first frames of a shot."""
    picture = np.ascontiguousarray(data.astronaut().transpose(2, 0, 1)[None, None], np.float32) / 255
    picture = np.repeat(np.repeat(picture, 2, axis=3), 2, axis=4)[..., :768, :768]
    network = RvmNetwork(rvm_model_path, downsample_ratio=1.0, threads=2)
    try:
        chest = {}
        for calls in (0, 3):
            state = network.new_state()
            settle(network, picture, state, calls=calls)
            (estimate,) = network.infer(picture, state)
            grey = picture[0, 0].mean(axis=0)
            alpha = np.clip(estimate.gain[0, 3] * grey + estimate.offset[0, 3], 0, 1)
            chest[calls] = float(alpha[620:760, 300:480].mean())
    finally:
        network.close()
    assert max(picture.shape[3:]) > SETTLING_SIDE
    assert chest[3] > 0.97
    assert chest[0] < chest[3]
