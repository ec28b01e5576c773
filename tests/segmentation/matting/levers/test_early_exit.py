"""Tests of early exit: a small network is used while it agrees with the full one."""

from __future__ import annotations

import numpy as np
import pytest

from lever_network import EYE, FMT, TrailNetwork, frame_of
from pictures import random_frame
from scripted import BrightnessNetwork
from vitascope.config.compute import InferenceSettings
from vitascope.errors import UsageError
from vitascope.frames import StereoLayout
from vitascope.models.network import MatteEstimate, NetworkInput
from vitascope.segmentation.matting.levers.early_exit import disagreement, doubt, shown
from vitascope.segmentation.matting.stream import MattingOptions, StreamMatting


class FirstNetwork(BrightnessNetwork):
    """Sees what ``TrailNetwork`` sees in a small picture; later its alpha is multiplied by ``answer``."""

    def __init__(self, *, fails_from=10_000, answer=0.0):
        super().__init__(layout="NHWC", normalise=True)
        self.fails_from, self.answer, self.shown = fails_from, answer, 0

    def infer(self, images, state):
        self.calls.append(images.shape[:2])
        estimates = []
        for picture in images:
            rgb = picture * np.array(self.std) + np.array(self.mean)
            alpha = np.clip((rgb.mean(axis=-1) - 0.4) * 5, 0, 1).astype(np.float32)
            estimates.append(
                MatteEstimate(alpha=alpha * self.answer if self.shown >= self.fails_from else alpha)
            )
            self.shown += 1
        return estimates


def mattes(frames, *, first=None, network=None, call=4, cuts=0.0, **options):
    network = network or TrailNetwork(recurrent=False)
    options = {"early_exit": "selfie", "early_exit_confidence": 0.7, **options}
    matting = StreamMatting(
        network,
        size=EYE,
        layout=StereoLayout.MONO,
        options=MattingOptions(
            scene_cut_threshold=cuts, warm_up_frames=0, inference=InferenceSettings(**options)
        ),
        first_network=first,
    )
    alphas = []
    for start in range(0, len(frames), call):
        prepared = [matting.find_cuts(matting.prepare([frame])) for frame in frames[start : start + call]]
        alphas += [matting.refine(estimated).alpha for estimated in matting.infer(prepared)]
    alphas += [matting.refine(estimated).alpha for estimated in matting.infer_rest()]
    return np.stack(alphas), matting.report(), network


FRAMES = [frame_of([(0, 20 + 2 * n, 30, 64)], index=n) for n in range(24)]


def full_looks(network):
    return sum(shape[0] for shape in network.calls if shape[3:] == EYE)


def test_the_full_network_rests_while_the_first_is_right():
    alphas, report, network = mattes(FRAMES, first=FirstNetwork())
    plain, _, _ = mattes(FRAMES, early_exit="off")
    assert full_looks(network) == 2  # frames 0 and 12
    assert report.early_frames == 22
    assert np.abs(alphas.astype(int) - plain).mean() < 2


def test_a_first_network_that_is_unsure_is_not_believed():
    first = FirstNetwork(fails_from=5, answer=0.5)
    alphas, report, network = mattes(FRAMES, first=first, recheck_frames=1000)
    plain, _, _ = mattes(FRAMES, early_exit="off")
    assert report.early_frames == 4
    assert full_looks(network) == 20
    assert np.array_equal(alphas[5:], plain[5:])


def test_a_first_network_that_misses_somebody_is_found_out_at_the_next_comparison():
    alphas, report, _network = mattes(FRAMES, first=FirstNetwork(fails_from=4), recheck_frames=8)
    plain, _, _ = mattes(FRAMES, early_exit="off")
    assert report.early_frames == 7
    assert np.array_equal(alphas[8:], plain[8:])


def test_the_first_frame_of_a_shot_is_compared():
    elsewhere = random_frame(FMT, EYE)
    elsewhere = elsewhere.with_planes(
        (16 + elsewhere.planes[0] // 4, *FRAMES[0].planes[1:])
    )  # clearly nobody
    film = [*FRAMES[:5], elsewhere, elsewhere]
    _, _, network = mattes(film, first=FirstNetwork(), cuts=0.05, recheck_frames=1000)
    assert full_looks(network) == 2


def test_the_same_network_on_a_smaller_picture():
    _, report, network = mattes(FRAMES, early_exit="smaller")
    assert {shape[3:] for shape in network.calls} == {EYE, (64, 96)}
    assert report.early_frames == 22
    assert report.network_share == pytest.approx(2 / 24, abs=1e-3)
    with pytest.raises(
        UsageError, match=r"early_exit=smaller: scripted takes pictures of one size only; use selfie"
    ):
        mattes(FRAMES, network=BrightnessNetwork(), early_exit="smaller")


def test_doubt_is_of_areas_not_of_edges():
    crisp = np.zeros((1, 40, 40), np.float32)
    crisp[0, 10:30, 10:30] = 1
    crisp[0, 10:30, 9] = crisp[0, 10:30, 30] = 0.5
    assert doubt(crisp) == 0
    veil = crisp.copy()
    veil[0, 12:22, 12:22] = 0.5
    assert doubt(veil) == pytest.approx(64 / 300)
    assert doubt(np.full((1, 9, 9), 0.5, np.float32)) == pytest.approx(100.0)


def test_disagreement_is_that_of_the_worst_place():
    ours = np.zeros((1, 20, 20), np.float32)
    ours[0, :10] = 1
    theirs = np.kron(ours, np.ones((1, 2, 2), np.float32))
    assert disagreement(ours, theirs) < 0.05  # bilinear at the edge
    assert disagreement(np.zeros_like(ours), theirs) == pytest.approx(1)
    person = np.zeros((1, 96, 160), np.float32)
    person[0, 16:, 32:112] = 1
    lost_a_hand = person.copy()
    lost_a_hand[0, 32:48, 32:48] = 0
    assert disagreement(lost_a_hand, person) == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_pictures_are_translated_from_one_network_to_another(layout):
    rgb = np.random.default_rng(1).random((2, 1, 3, 8, 12), np.float32)
    wanted = NetworkInput((8, 12), "NCHW")
    other = NetworkInput((4, 6), layout, (0.1, 0.2, 0.3), (0.5, 0.6, 0.7), "float16")
    made = shown(rgb, wanted, other)
    assert made.dtype == np.float16
    assert made.shape == (2, 1, *other.picture_shape())
    planes = made if layout == "NCHW" else np.moveaxis(made, -1, 2)
    expected = rgb.reshape(2, 1, 3, 4, 2, 6, 2).mean(axis=(4, 6))
    expected = (expected - np.reshape(other.mean, (3, 1, 1))) / np.reshape(other.std, (3, 1, 1))
    assert np.abs(planes - expected).max() < 2e-3
