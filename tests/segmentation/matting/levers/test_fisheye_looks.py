"""Tests of eyes shown as fisheye pictures, in all sizes and both directions."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from lever_network import TrailNetwork, last_steps
from pictures import solid_frame
from vitascope.config.compute import InferenceSettings
from vitascope.frames import PIXEL_FORMATS, StereoLayout
from vitascope.gpu.interchange import to_numpy
from vitascope.gpu.kernels.region import Region
from vitascope.models.network import NetworkInput
from vitascope.segmentation.matting.fisheye import FisheyeViews
from vitascope.segmentation.matting.levers.fisheye_looks import FisheyePictures
from vitascope.segmentation.matting.scene_cuts import Change
from vitascope.segmentation.matting.shot_windows import WINDOW_FRAMES
from vitascope.segmentation.matting.shots import EyeViews
from vitascope.segmentation.matting.stream import MattingOptions, StreamMatting
from vitascope.vr.projection import Equirectangular

HALF, WHOLE = Equirectangular(180, 180), Equirectangular(360, 180)
SIDE, EYE = 96, 192
SHOWN, BACK, LARGE = (96, 96), (64, 64), (120, 120)


def eye_with(places, lens):
    """Mark a bright person, twelve degrees to all sides of each azimuth and elevation: bool [EYE, width]."""
    width = round(EYE * lens.horizontal_fov_degrees / 180)
    y, x = np.meshgrid((np.arange(EYE) + 0.5) / EYE, (np.arange(width) + 0.5) / width, indexing="ij")
    azimuth, elevation = (x - 0.5) * lens.horizontal_fov_degrees, (0.5 - y) * 180
    bright = np.zeros((EYE, width), bool)
    for across, up in places:
        bright |= (abs(azimuth - across) <= 12) & (abs(elevation - up) <= 12)
    return bright


def film_of(places_of_frames, lens=HALF, *, pixel_format="yuv420p"):
    """Make frames of two eyes side by side, and masks of the people in them."""
    frames, people = [], []
    for index, places in enumerate(places_of_frames):
        eye = eye_with(places, lens)
        both = np.hstack([eye, eye])
        frame = solid_frame(PIXEL_FORMATS[pixel_format], both.shape, (0.1, 0.1, 0.1))
        luma = both * np.uint8(204) + np.uint8(16)
        frames.append(replace(frame.with_planes((luma, *frame.planes[1:])), index=index))
        people.append(both)
    return frames, np.stack(people)


def mattes(frames, network, lens=HALF, **inference):
    matting = StreamMatting(
        network,
        size=frames[0].planes[0].shape,
        layout=StereoLayout.SIDE_BY_SIDE,
        options=MattingOptions(
            scene_cut_threshold=0.0,
            warm_up_frames=0,
            inference=InferenceSettings(**{"bidirectional": True, **inference}),
        ),
        lens=lens,
    )
    matted = [one for frame in frames for one in matting.infer([matting.find_cuts(matting.prepare([frame]))])]
    matted += matting.infer_rest()
    return np.stack([to_numpy(matting.refine(one).alpha) for one in matted]).astype(float) / 255


@pytest.mark.parametrize(("lens", "count"), [(HALF, 1), (WHOLE, 2)])
def test_pictures_are_shown_in_all_sizes_smoothed_and_agree_last(monkeypatch, lens, count):
    steps = last_steps(monkeypatch)
    network = TrailNetwork(size=SHOWN)
    mattes(film_of([[(5, -10)]] * 3, lens)[0], network, lens)
    assert {shape[3:] for shape in network.calls} == {SHOWN, BACK, LARGE}
    assert {shape[1] for shape in network.calls} == {2 * count}
    # As fine as the eye, at most 1.6 times the largest look; for 200 degrees, 214 samples are as fine as the
    # eye.
    agreed = min(EYE if lens == HALF else 214, round(1.6 * LARGE[0]))
    assert steps == ["smoothed", *[(2 * count, 3, agreed, agreed)] * 3]


@pytest.mark.parametrize(("height", "side"), [(84, 93), (86, 96)])
def test_eyes_without_more_samples_are_seen_in_one_size(height, side):
    """Check small eyes.

    Their own small picture, 83.7 x 167.4 samples, is rounded to fewer columns than the eye has.
    """
    frames = [solid_frame(PIXEL_FORMATS["yuv420p"], (height, 4 * height), (0.1, 0.1, 0.1))] * 3
    frames = [replace(frame, index=index) for index, frame in enumerate(frames)]
    network = TrailNetwork(size=(side, side))
    mattes(frames, network, WHOLE)
    assert {shape[3:] for shape in network.calls} == {(side, side)}


@pytest.mark.parametrize(
    ("lens", "places"),
    [
        (HALF, [(30, 40)]),
        (HALF, [(-55, -30), (10, 15)]),
        (HALF, [(75, 20)]),  # at the rim, so in bent pictures
        (WHOLE, [(30, 40), (-150, 10)]),
        (WHOLE, [(92, 0)]),  # both pictures show them
    ],
)
def test_alpha_lies_on_people(lens, places):
    frames, people = film_of([places] * 3, lens)
    alphas = mattes(frames, TrailNetwork(size=SHOWN), lens)
    assert np.abs(alphas - people).mean() < 0.012
    assert alphas[people].mean() > 0.9


def test_the_way_back_knows_who_comes_in_fisheye_pictures_too():
    frames, people = film_of([[], [], [(0, 0)], [(0, 0)]])
    one_way = mattes(frames, TrailNetwork(size=SHOWN), bidirectional=False)
    both = mattes(frames, TrailNetwork(size=SHOWN))
    assert one_way[1].max() == 0
    assert both[1][people[2]].mean() > 0.03


def bent_lenses(monkeypatch):
    """Record for each set of pictures that the network gets whether they are bent."""
    bent, show = [], FisheyeViews.show

    def showing(views, images, **options):
        bent.append(views.bend > 0)
        return show(views, images, **options)

    monkeypatch.setattr(FisheyeViews, "show", showing)
    return bent


AHEAD, AT_RIM = [(5, -10)], [(75, 20)]


@pytest.mark.parametrize(("places", "expected"), [(AHEAD, {False}), (AT_RIM, {True}), ([], {False})])
def test_one_look_tells_which_pictures_a_shot_is_shown_in(monkeypatch, places, expected):
    frames, _ = film_of([places] * 4)
    bent = bent_lenses(monkeypatch)
    mattes(frames, TrailNetwork(size=SHOWN), stereo_agreement=False)
    assert bent[0] is False  # people are searched in the usual pictures
    assert set(bent[1:]) == expected


def test_pictures_change_with_the_next_window_and_the_next_shot(monkeypatch):
    """Check that bent pictures begin and end with a window or a shot.

    A person goes to the rim in the first window; after a cut they are straight ahead.
    """
    count = WINDOW_FRAMES
    frames, people = film_of([*[AHEAD] * 12, *[AT_RIM] * (2 * count - 12), *[AHEAD] * 9])
    starts = [index == 2 * count for index in range(len(frames))]

    def told(_, batch):
        batch.decided = [Change(starts[frame.index]) for frame in batch.frames]
        return batch

    monkeypatch.setattr(StreamMatting, "find_cuts", told)
    windows, back = [], FisheyeViews.take_back

    def taking(views, estimates):
        windows.extend([views.bend > 0] * len(estimates))
        return back(views, estimates)

    monkeypatch.setattr(FisheyeViews, "take_back", taking)
    alphas = mattes(frames, TrailNetwork(size=SHOWN), stereo_agreement=False)
    assert windows == [False] * count + [True] * count + [False] * 9
    assert np.abs(alphas - people).mean() < 0.02
    assert np.abs(alphas[2 * count :] - people[2 * count :]).mean() < 0.012


@pytest.mark.parametrize("bent", [False, True])
@pytest.mark.parametrize("scale", [0.5, 2 / 3, 1.25])
def test_pictures_of_another_size_show_the_same_places(bent, scale):
    usual = FisheyeViews.of_network(HALF, TrailNetwork(size=SHOWN), (EYE, EYE))
    views = usual.bent if bent else usual
    side = round(SIDE * scale)
    other = views.resized((side, side))
    assert other.eye.size == (side, side)
    assert other.as_pictures[0] == views.as_pictures[0]


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize(
    "part", [Region(0, 0, 120, 120), Region(24, 0, 48, 120), Region(96, 0, 24, 120), Region(7, 11, 5, 1)]
)
@pytest.mark.parametrize("lens", [HALF, WHOLE])
def test_a_part_of_the_pictures_is_what_the_whole_shows_there(layout, part, lens):
    frames, _ = film_of([[(5, -10), (-60, 30)]] * 2, lens)
    width = frames[0].planes[0].shape[1] // 2
    regions = [Region(0, 0, width, EYE), Region(width, 0, width, EYE)]
    views = FisheyeViews.of_network(lens, TrailNetwork(size=SHOWN), (EYE, width))
    views = replace(views, eye=replace(views.eye, layout=layout))
    pictures, wanted = FisheyePictures(EyeViews(regions, 0), views), NetworkInput(LARGE, layout)
    whole = pictures.make(frames, wanted)
    windows = pictures.windows([part] * pictures.eyes, LARGE)
    seen = pictures.make(frames, replace(wanted, size=(part.height, part.width)), windows=windows)
    inside = slice(part.y, part.y + part.height), slice(part.x, part.x + part.width)
    expected = whole[..., *inside] if layout == "NCHW" else whole[..., *inside, :]
    np.testing.assert_array_equal(seen, expected)
    assert seen.flags.c_contiguous


@pytest.mark.cuda
@pytest.mark.parametrize("places", [AHEAD, AT_RIM])
def test_a_gpu_gives_what_the_cpu_does(places):
    import cupy

    alphas = []
    for move in (np.asarray, cupy.asarray):
        frames, people = film_of([places] * 5, pixel_format="nv12")
        moved = [frame.with_planes(tuple(map(move, frame.planes))) for frame in frames]
        alphas.append(mattes(moved, TrailNetwork(size=SHOWN)))
    assert np.abs(alphas[1] - alphas[0]).mean() < 0.004
    assert np.abs(alphas[0] - people).mean() < 0.02
