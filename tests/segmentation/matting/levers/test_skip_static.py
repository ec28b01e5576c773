"""Check that frames are only skipped where nothing moved, and never for long."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lever_network import EYE, FMT, TrailNetwork, frame_of
from pictures import random_frame
from vitascope.config.compute import InferenceSettings
from vitascope.frames import StereoLayout
from vitascope.segmentation.matting.levers.static import MOST_REUSES
from vitascope.segmentation.matting.stream import MattingOptions, StreamMatting


def mattes(frames, *, threshold, call=4, cuts=0.0, eyes=1, network=None):
    network = network or TrailNetwork(recurrent=False)
    matting = StreamMatting(
        network,
        size=(EYE[0], EYE[1] * eyes),
        layout=StereoLayout.SIDE_BY_SIDE if eyes == 2 else StereoLayout.MONO,
        options=MattingOptions(
            scene_cut_threshold=cuts, warm_up_frames=0, inference=InferenceSettings(skip_static=threshold)
        ),
    )
    alphas = []
    for first in range(0, len(frames), call):
        prepared = [matting.find_cuts(matting.prepare([frame])) for frame in frames[first : first + call]]
        alphas += [matting.refine(estimated).alpha for estimated in matting.infer(prepared)]
    alphas += [matting.refine(estimated).alpha for estimated in matting.infer_rest()]
    return np.stack(alphas), matting.report(), network


def test_still_frames_with_noise_keep_their_matte():
    frames = [frame_of([(0, 60, 40, 32)], index=n, noise=1) for n in range(20)]
    alphas, report, network = mattes(frames, threshold=0.01)
    assert report.reused_frames == 19
    assert sum(shape[0] for shape in network.calls) == 1
    assert report.network_share == pytest.approx(1 / 20)
    assert (alphas[:, 45:68, 65:88] > 250).all()


def test_nothing_is_left_out_unless_asked():
    frames = [frame_of([(0, 60, 40, 32)], index=n) for n in range(4)]
    assert mattes(frames, threshold=0.0)[1].reused_frames == 0


def test_a_change_is_seen_in_its_own_frame():
    frames = [
        frame_of([(0, 60, 40, 32)] if n < 7 else [(0, 60, 40, 32), (0, 150, 8, 8)], index=n)
        for n in range(12)
    ]
    alphas, report, _ = mattes(frames, threshold=0.01)
    assert alphas[6, 12, 154] == 0
    assert (alphas[7:, 12, 154] == 255).all()
    assert report.reused_frames == 10


@given(every=st.integers(1, 12), call=st.integers(1, 7))
@settings(max_examples=15, deadline=None)
def test_a_slow_mover_is_never_frozen(every, call):
    """Check that mattes lag no more than the threshold allows, at one sample of 192 every few frames."""
    frames = [frame_of([(0, 20 + n // every, 40, 32)], index=n) for n in range(40)]
    plain, _, _ = mattes(frames, threshold=0.0, call=call)
    skipped, _, _ = mattes(frames, threshold=0.05, call=call)
    behind = (plain != skipped).any(axis=1).sum(axis=1)  # columns that differ
    assert behind.max() <= 4


def test_the_first_frame_of_a_shot_is_asked_for():
    frames = [frame_of([(0, 60, 40, 32)], index=n) for n in range(4)]
    cut = [random_frame(FMT, EYE)] * 2
    network = TrailNetwork(recurrent=True)
    _, report, _ = mattes([*frames, *cut], threshold=1.0, cuts=0.05, network=network)
    assert report.reused_frames == 4
    assert sum(shape[0] for shape in network.calls) == 2


def test_both_eyes_count():
    frames = [frame_of([(0, 60, 40, 32), (1, 50 + 4 * (n >= 5), 40, 32)], index=n, eyes=2) for n in range(8)]
    assert mattes(frames, threshold=0.01, eyes=2)[1].reused_frames == 6


def test_nothing_is_kept_for_ever():
    frames = [frame_of([(0, 60, 40, 32)], index=n) for n in range(2 * MOST_REUSES + 3)]
    assert mattes(frames, threshold=0.5)[1].reused_frames == 2 * MOST_REUSES


def test_a_memory_does_not_see_what_is_left_out():
    """Check that frames that reach the network give what they would give in a video of their own."""
    steps = [0, 0, 0, 30, 30, 60, 60, 60]
    frames = [frame_of([(0, 20 + x, 40, 32)], index=n) for n, x in enumerate(steps)]
    skipped, _, _ = mattes(frames, threshold=0.01, network=TrailNetwork())
    alone, _, _ = mattes([frames[0], frames[3], frames[5]], threshold=0.0, network=TrailNetwork())
    assert np.array_equal(skipped[[0, 3, 5]], alone)
    assert np.array_equal(skipped[[1, 4, 7]], alone)
