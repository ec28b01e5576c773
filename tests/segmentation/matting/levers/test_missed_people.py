"""Tests of people hidden from a network by larger ones beside them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from lever_network import EYE, Proud, TrailNetwork, frame_of
from pictures import solid_frame
from vitascope.config.compute import InferenceSettings
from vitascope.frames import PIXEL_FORMATS, StereoLayout
from vitascope.gpu.interchange import to_numpy
from vitascope.segmentation.matting.levers.missed_people import (
    MissedPeople,
)
from vitascope.segmentation.matting.shot_windows import WINDOW_FRAMES
from vitascope.segmentation.matting.stream import MattingOptions, StreamMatting

LARGE = (0, 16, 30, 90)
SMALL = (0, 164, 60, 14)
WIDTH = EYE[1]


def mattes(frames, network=None, *, layout=StereoLayout.MONO, eyes=1, **inference):
    network = Proud() if network is None else network
    matting = StreamMatting(
        network,
        size=(EYE[0], EYE[1] * eyes),
        layout=layout,
        options=MattingOptions(
            scene_cut_threshold=0.0,
            warm_up_frames=0,
            inference=InferenceSettings(**{"bidirectional": True, "stereo_agreement": False, **inference}),
        ),
    )
    matted = (
        matting.infer([matting.find_cuts(matting.prepare([frame])) for frame in frames])
        + matting.infer_rest()
    )
    return np.stack([to_numpy(matting.refine(one).alpha) for one in matted]).astype(float) / 255


def film(*spots, count=6):
    return [frame_of(spots, index=index) for index in range(count)]


def test_somebody_small_beside_somebody_large_is_found():
    alphas = mattes(film(LARGE, SMALL))
    truth = mattes(film(LARGE, SMALL), TrailNetwork(), bidirectional=False)
    assert alphas[:, 67, 171].min() > 0.95
    assert np.abs(alphas - truth)[:, :, 140:].max() < 0.1
    assert mattes(film(LARGE, SMALL), bidirectional=False)[:, 67, 171].max() == 0


def test_both_eyes_are_looked_at():
    spots = LARGE, (1, *LARGE[1:]), (1, *SMALL[1:])
    frames = [frame_of(spots, index=index, eyes=2) for index in range(4)]
    alphas = mattes(frames, layout=StereoLayout.SIDE_BY_SIDE, eyes=2)
    assert alphas[:, 67, WIDTH + 171].min() > 0.95
    assert alphas[:, 67, 171].max() == 0


def frames_shown(frames):
    network = Proud()
    alphas = mattes(frames, network)
    return sum(shape[0] for shape in network.calls), alphas


def test_a_window_is_shown_once_more_only_where_somebody_is_missed():
    usual, _ = frames_shown(film(SMALL))
    beside, alphas = frames_shown(film(LARGE))
    assert beside == usual + 2  # its last and first frame
    assert alphas[:, :, 120:].max() == 0
    found, _ = frames_shown(film(LARGE, SMALL))
    assert found == usual + 2 + 3 * 6  # in two looks and in the larger pictures


class Inventive(Proud):
    """Sees a person with this alpha in a part of every picture without a large person."""

    def __init__(self, alpha, **options):
        super().__init__(**options)
        self.alpha = alpha

    def infer(self, images, state):
        answers = super().infer(images, state)
        rows, columns = images.shape[3:]
        for picture, one in zip(to_numpy(images), answers, strict=True):
            if (picture.mean(axis=(0, 1)) > 0.5).mean() < 0.1:
                one.offset[:, :, rows // 3 : 2 * rows // 3, columns // 4 : columns // 2 - 10] = self.alpha
        return answers


def test_scenery_of_which_a_look_is_not_sure_stays_out():
    assert mattes(film(LARGE), Inventive(0.78))[:, :, 120:].max() == 0
    assert mattes(film(LARGE, SMALL), Inventive(0.78))[:, 67, 171].min() > 0.95
    assert mattes(film(LARGE), Inventive(0.95, size=(96, 144)))[:, :, 110:].max() > 0.5


def test_two_looks_must_agree_where_no_smaller_pictures_can_be_had():
    """Check that two looks, one of them mirrored, must agree if there are no smaller pictures.

    Small videos have no more samples than a network sees.
    """
    assert mattes(film(LARGE), Inventive(0.95))[:, :, 120:].max() == 0


def test_somebody_who_is_there_for_a_moment_is_not_believed():
    frames = [*film(LARGE, count=5), frame_of([LARGE, SMALL], index=5)]
    assert mattes(frames)[:, 67, 171].max() == 0


@pytest.mark.parametrize("large", [range(6), range(6, 12), range(3, 9)])
def test_somebody_small_stays_while_somebody_large_is_there_for_a_part_of_a_window(large):
    """Check a large person in a part of a window: one who walks past the camera is at neither end of it."""
    frames = [frame_of([LARGE, SMALL] if at in large else [SMALL], index=at) for at in range(12)]
    assert mattes(frames)[:, 67, 171].min() > 0.8


def test_frames_in_which_nobody_is_missed_keep_their_mattes(monkeypatch):
    """Check that other mattes are not copied: those of a window would take hundreds of MB."""
    inner, kept = MissedPeople.complete, []

    def noted(self, batch, estimates, judged):
        completed = inner(self, batch, estimates, judged)
        kept.extend(one is other for one, other in zip(estimates, completed, strict=True))
        return completed

    monkeypatch.setattr(MissedPeople, "complete", noted)
    comes = [frame_of([LARGE, SMALL], index=index) for index in range(3, 12)]
    alphas = mattes([*film(LARGE, count=3), *comes])
    assert kept == [True] * 3 + [False] * 9
    assert alphas[:3, 67, 171].max() == 0
    assert alphas[3:, 67, 171].min() > 0.95


@pytest.mark.parametrize("count", [1, 2, 9, WINDOW_FRAMES + 3])
def test_shots_of_any_length(count):
    assert mattes(film(LARGE, SMALL, count=count))[:, 67, 171].min() > 0.95


def test_somebody_large_stays_whole_beside_who_is_found():
    alphas = mattes(film(LARGE, (0, 126, 60, 14)))
    without = mattes(film(LARGE))
    assert alphas[:, 67, 130:136].min() > 0.9
    assert np.abs(alphas - without)[:, :, :116].max() < 0.02
    assert alphas[:, 40:110, 20:102].min() > 0.95


@pytest.mark.cuda
def test_a_gpu_finds_whom_the_cpu_finds():
    import cupy

    alphas = []
    for move in (np.asarray, cupy.asarray):
        dark = solid_frame(PIXEL_FORMATS["nv12"], EYE, (0.1, 0.1, 0.1))
        frames = [
            replace(dark.with_planes((move(frame.planes[0]), *map(move, dark.planes[1:]))), index=frame.index)
            for frame in film(LARGE, SMALL)
        ]
        alphas.append(mattes(frames))
    assert np.abs(alphas[1] - alphas[0]).max() < 0.02
    assert alphas[1][:, 67, 171].min() > 0.95
