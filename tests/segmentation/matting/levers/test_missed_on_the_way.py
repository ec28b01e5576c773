"""Tests of people hidden by larger ones, in a single pass over a video."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lever_network import EYE, Proud, TrailNetwork, frame_of
from pictures import solid_frame
from vitascope.config.compute import InferenceSettings
from vitascope.frames import PIXEL_FORMATS, StereoLayout
from vitascope.gpu.interchange import to_numpy
from vitascope.gpu.kernels.region import Region
from vitascope.models.network import NetworkInput
from vitascope.segmentation.matting import shots
from vitascope.segmentation.matting.batch import Batch
from vitascope.segmentation.matting.levers import missed_on_the_way
from vitascope.segmentation.matting.levers.missed_on_the_way import MissedOnTheWay
from vitascope.segmentation.matting.rim_people import RimPeople
from vitascope.segmentation.matting.scene_cuts import Change
from vitascope.segmentation.matting.shots import EyeViews, StreamNetwork
from vitascope.segmentation.matting.stream import MattingOptions, StreamMatting
from vitascope.vr.projection import Equirectangular

LARGE = (0, 16, 30, 90)
SMALL = (0, 164, 60, 14)
WIDTH = EYE[1]
PERIOD = 16


@pytest.fixture(autouse=True)
def small_pictures_are_large_enough(monkeypatch):
    monkeypatch.setattr(missed_on_the_way, "CLOSE_UP_SIDE", 64)
    monkeypatch.setattr(missed_on_the_way, "LOOK_EVERY_FRAMES", PERIOD)


def matting_of(
    network,
    *,
    layout=StereoLayout.MONO,
    eyes=1,
    size=EYE,
    lens=None,
    look_ahead_frames=8,
    waits=True,
    **inference,
):
    return StreamMatting(
        network,
        size=(size[0], size[1] * eyes),
        layout=layout,
        lens=lens,
        options=MattingOptions(
            scene_cut_threshold=0.0,
            warm_up_frames=0,
            look_ahead_frames=look_ahead_frames,
            inference=InferenceSettings(**{"stereo_agreement": False, **inference}),
        ),
        waits=waits,
    )


def mattes(frames, network=None, *, batches=None, **options):
    matting = matting_of(Proud() if network is None else network, **options)
    matted, at = [], 0
    for count in batches or [1] * len(frames):
        matted += matting.infer([matting.find_cuts(matting.prepare(frames[at : at + count]))])
        at += count
    matted += matting.infer_rest()
    return np.stack([to_numpy(matting.refine(one).alpha) for one in matted]).astype(float) / 255


def film(*spots, count=12):
    return [frame_of(spots, index=index) for index in range(count)]


@pytest.mark.parametrize("count", [1, 2, 12, 20])
def test_somebody_small_beside_somebody_large_is_found(count):
    frames = film(LARGE, SMALL, count=count)
    alphas = mattes(frames)
    truth = mattes(frames, TrailNetwork())
    assert alphas[:, 67, 171].min() > 0.95
    beside = alphas[:, :, 140:].sum(axis=(1, 2)) / truth[:, :, 140:].sum(axis=(1, 2))
    assert np.abs(beside - 1).max() < 0.1
    around = np.ones(alphas.shape[1:], bool)
    around[58:76, 162:180] = False  # smaller pictures have softer edges
    assert np.abs(alphas - truth)[:, around].max() < 0.02
    assert mattes(frames, missed_people=False)[:, 67, 171].max() == 0


def test_both_eyes_are_looked_at():
    spots = LARGE, (1, *LARGE[1:]), (1, *SMALL[1:])
    frames = [frame_of(spots, index=index, eyes=2) for index in range(9)]
    alphas = mattes(frames, layout=StereoLayout.SIDE_BY_SIDE, eyes=2)
    assert alphas[:, 67, WIDTH + 171].min() > 0.95
    assert alphas[:, 67, 171].max() == 0


def shown(frames):
    """Count the frames that the network got, in usual and in smaller pictures."""
    network = Proud()
    mattes(frames, network, look_ahead_frames=1)
    usual = sum(shape[0] for shape in network.calls if shape[3:] == EYE)
    return usual, sum(shape[0] for shape in network.calls) - usual


def test_frames_are_shown_once_more_only_where_somebody_is_missed():
    assert shown(film(SMALL)) == (12, 0)
    assert shown(film(LARGE)) == (12, 1)  # the first frame
    assert shown(film(LARGE, SMALL)) == (12, 13)


@pytest.mark.parametrize("lens", [None, Equirectangular(180, 180)])
def test_usual_pictures_are_made_once(monkeypatch, lens):
    """Check that usual pictures are made once: for a large video this takes half as long as the network."""
    sizes, make = [], EyeViews.make

    def counted(views, frames, wanted, **options):
        sizes.extend([wanted.size] * len(frames))
        return make(views, frames, wanted, **options)

    monkeypatch.setattr(EyeViews, "make", counted)
    size = (128, 128)
    frames = [frame_of([(0, 0, 20, 80), (0, 104, 56, 16)], index=at, size=size) for at in range(12)]
    alphas = mattes(frames, Proud(size=size), size=size, lens=lens)
    assert alphas[:, 64, 112].min() > 0.9
    assert sizes.count(size) == 12
    assert len(sizes) == 2 * 12 + 2  # two were checked for missed people


def test_live_nobody_is_looked_for():
    assert mattes(film(LARGE, SMALL), waits=False)[:, 67, 171].max() == 0


def test_who_comes_is_found_at_the_next_look_and_looked_for_until_nobody_is_missed():
    comes, goes = 9, 2 * PERIOD + 4
    frames = [
        frame_of([LARGE, SMALL] if comes <= at < goes else [LARGE], index=at) for at in range(6 * PERIOD)
    ]
    alphas = mattes(frames)[:, 67, 171]
    assert alphas[PERIOD:goes].min() > 0.95
    assert alphas[:PERIOD].max() == 0
    assert alphas[goes:].max() == 0
    _, smaller = shown(frames)
    # Each period begins with a check of one frame, except the third and fourth: people were missed before
    # them.
    assert smaller == 4 + 3 * PERIOD


@settings(max_examples=10, deadline=None)
@given(
    cuts=st.sets(st.integers(1, 39)),
    come=st.integers(0, 30),
    stay=st.integers(1, 40),
    ahead=st.sampled_from([0, 1, 5, 8, 12]),
)
@example(cuts={5, 10, 15, 20, 25, 30, 35}, come=3, stay=30, ahead=1)
def test_mattes_do_not_depend_on_batches(cuts, come, stay, ahead):
    frames = [frame_of([LARGE, SMALL] if come <= at < come + stay else [LARGE], index=at) for at in range(40)]
    bounds = [0, *sorted(cuts), 40]
    batches = [end - begin for begin, end in pairwise(bounds)]
    together = mattes(frames, batches=batches, look_ahead_frames=ahead)
    np.testing.assert_array_equal(together, mattes(frames, look_ahead_frames=ahead))


@pytest.mark.parametrize("begin", [0, PERIOD - 4, PERIOD - 1])
def test_who_is_missed_at_the_rim_is_found_where_they_are_once_pictures_are_bent(monkeypatch, begin):
    monkeypatch.setattr(shots, "LOOK_EVERY_FRAMES", PERIOD)
    are_bent = iter([False, True])
    monkeypatch.setattr(RimPeople, "would_be_seen", lambda *_: next(are_bent))
    size, small = (128, 128), (0, 104, 56, 16)
    frames = [frame_of([(0, 0, 20, 80), small], index=index, size=size) for index in range(begin, PERIOD + 8)]
    alphas = mattes(frames, Proud(size=size), size=size, lens=Equirectangular(180, 180))
    assert not list(are_bent)
    truth = frame_of([small], size=size).planes[0] > 128
    beside = slice(small[1] - 3, None)
    assert np.abs(alphas[:, :, beside].sum(axis=(1, 2)) / truth.sum() - 1).max() < 0.1
    assert np.abs(alphas - truth)[:, :, beside].max() < 0.7  # smaller pictures have softer edges


def test_fisheye_pictures_that_are_small_are_not_shown_smaller(monkeypatch):
    """Check a picture made of a whole, wide eye."""
    network = Proud(size=(64, 64))
    frames = [frame_of([(0, 8, 20, 90)], index=index, size=(128, 256)) for index in range(3)]
    mattes(frames, network, size=(128, 256), lens=Equirectangular(360, 180))
    assert {shape[3:] for shape in network.calls} == {(64, 64)}


def lever():
    network = Proud()
    stream = StreamNetwork(
        network,
        wanted=NetworkInput(EYE, "NCHW"),
        eye_size=EYE,
        views=EyeViews([Region(0, 0, WIDTH, EYE[0])], 0),
        warm_up_frames=0,
        look_ahead_frames=0,
    )
    return stream, MissedOnTheWay(stream, stream.shots())


def alphas_of(lever, stream, frames, *, begins):
    images = stream.views.make(frames, stream.wanted)
    changes = [Change(begins), *[Change.SMALL] * (len(frames) - 1)]
    return np.stack([one.offset for one in lever.estimate(Batch(frames, images, changes))])


@pytest.mark.parametrize("cut", [1, 5, 8, 13, PERIOD, PERIOD + 3])
@pytest.mark.parametrize("spots", [[LARGE, SMALL], [LARGE], [SMALL]])
def test_another_run_goes_on_where_one_ended(cut, spots):
    frames = film(*spots, count=2 * PERIOD)
    stream, whole = lever()
    expected = alphas_of(whole, stream, frames, begins=True)
    stream, first = lever()
    alphas_of(first, stream, frames[: max(cut, 8)], begins=True)
    memory = first.memory()
    stream, second = lever()
    assert second.remember(memory)
    rest = alphas_of(second, stream, frames[max(cut, 8) :], begins=False)
    np.testing.assert_array_equal(rest, expected[max(cut, 8) :])


def test_a_run_that_saw_nothing_has_nothing_to_go_on_from():
    _, one = lever()
    assert not one.memory()
    assert not one.remember([])


@pytest.mark.parametrize(("side", "helps"), [(48, False), (64, False), (96, True)])
def test_small_pictures_are_not_shown_smaller(side, helps):
    assert MissedOnTheWay.may_help(NetworkInput((side // 2, side), "NCHW")) == helps


@pytest.mark.cuda
def test_a_gpu_finds_whom_the_cpu_finds():
    import cupy

    alphas = []
    for move in (np.asarray, cupy.asarray):
        dark = solid_frame(PIXEL_FORMATS["nv12"], EYE, (0.1, 0.1, 0.1))
        frames = [
            replace(dark.with_planes((move(frame.planes[0]), *map(move, dark.planes[1:]))), index=frame.index)
            for frame in film(LARGE, SMALL, count=20)
        ]
        alphas.append(mattes(frames, batches=[8, 4, 8]))
    assert np.abs(alphas[1] - alphas[0]).max() < 0.02
    assert alphas[1][:, 67, 171].min() > 0.95
