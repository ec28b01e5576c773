"""Check that crops around people give the same mattes as whole pictures, and miss nobody."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lever_network import EYE, TrailNetwork, frame_of
from scripted import BrightnessNetwork
from vitascope.config.compute import InferenceSettings
from vitascope.errors import UsageError
from vitascope.frames import StereoLayout
from vitascope.gpu.kernels.region import Region
from vitascope.segmentation.matting.levers.surroundings import (
    cover,
    largest_change_outside,
    people_boxes,
    rim,
    still_fits,
)
from vitascope.segmentation.matting.shots import coded_window
from vitascope.segmentation.matting.stream import MattingOptions, StreamMatting


def mattes(frames, *, network=None, eyes=1, call=4, **options):
    network = network or TrailNetwork()
    matting = StreamMatting(
        network,
        size=(EYE[0], EYE[1] * eyes),
        layout=StereoLayout.SIDE_BY_SIDE if eyes == 2 else StereoLayout.MONO,
        options=MattingOptions(
            scene_cut_threshold=0,
            warm_up_frames=0,
            # Eyes are only made to agree in whole pictures.
            inference=InferenceSettings(stereo_agreement=False, **options),
        ),
    )
    alphas = []
    for first in range(0, len(frames), call):
        prepared = [matting.find_cuts(matting.prepare([frame])) for frame in frames[first : first + call]]
        alphas += [matting.refine(estimated).alpha for estimated in matting.infer(prepared)]
    return np.stack(alphas), matting.report(), network


def walk(steps, *, eyes=1, x=20, speed=3):
    """Make a person who walks to the right, a little further left in the second eye."""
    spots = lambda n: [(eye, x + speed * n - 6 * eye, 40, 32) for eye in range(eyes)]  # noqa: E731
    return [frame_of(spots(n), index=n, eyes=eyes) for n in range(steps)]


@pytest.mark.parametrize("eyes", [1, 2])
@pytest.mark.parametrize("recurrent", [False, True])
def test_a_crop_gives_what_the_whole_picture_gives(eyes, recurrent):
    """Check that mattes are equal: the memory of a part is that part of the memory."""
    frames = walk(40, eyes=eyes)
    whole, _, _ = mattes(frames, eyes=eyes, network=TrailNetwork(recurrent=recurrent))
    cropped, report, network = mattes(
        frames, eyes=eyes, network=TrailNetwork(recurrent=recurrent), region="crop"
    )
    assert np.array_equal(whole, cropped)
    assert report.cropped_frames > 20
    assert report.network_share < 0.7
    assert all(height % 16 == 0 and width % 16 == 0 for *_, height, width in network.calls)


@given(
    speed=st.integers(0, 40), y=st.integers(-20, 110), side=st.integers(8, 60), recheck=st.integers(1, 20),
    margin=st.sampled_from([0.0, 0.25, 1.0]), call=st.integers(1, 9),
)  # fmt: skip
@settings(max_examples=25, deadline=None)
def test_nobody_is_cut_off_however_they_move(speed, y, side, recheck, margin, call):
    frames = [frame_of([(0, -30 + speed * n, y, side)], index=n) for n in range(12)]
    whole, _, _ = mattes(frames)
    cropped, _, _ = mattes(frames, region="crop", recheck_frames=recheck, region_margin=margin, call=call)
    assert np.array_equal(whole, cropped)


def test_who_comes_in_from_outside_is_seen_at_once():
    def spots(n):
        return [(0, 20, 40, 32)] + ([(0, 150, 20, 24)] if n >= 9 else [])

    frames = [frame_of(spots(n), index=n) for n in range(16)]
    whole, _, _ = mattes(frames)
    cropped, report, _ = mattes(frames, region="crop", recheck_frames=1000)
    assert np.array_equal(whole, cropped)
    assert cropped[9, 20:40, 152:170].min() == 255
    assert report.cropped_frames > 5


def test_an_empty_picture_is_not_shown_until_something_moves():
    frames = [frame_of([], index=n) for n in range(10)]
    frames += [frame_of([(0, 60, 40, 32)], index=n) for n in range(10, 14)]
    alphas, report, network = mattes(frames, region="crop", recheck_frames=1000, call=1)
    assert report.empty_frames == 9
    assert alphas[:10].max() == 0
    assert (alphas[10:, 45:65, 65:85] == 255).all()
    assert len(network.calls) < 8


def test_the_whole_picture_is_looked_at_again_in_time():
    frames = [frame_of([(0, 60, 40, 32)], index=n) for n in range(24)]
    _, report, network = mattes(frames, region="crop", recheck_frames=8, call=1)
    assert [index for index, shape in enumerate(network.calls) if shape[3:] == EYE] == [0, 8, 16]
    assert report.cropped_frames == 21


def test_people_who_fill_the_picture_are_not_cut():
    frames = [frame_of([(0, 4, 4, 180)], index=n) for n in range(8)]
    alphas, report, _ = mattes(frames, region="crop")
    assert report.cropped_frames == 0
    assert report.network_share == 1.0
    assert alphas.max() == 255


@pytest.mark.parametrize("eyes", [1, 2])
def test_a_zoom_shows_more_of_the_same_people(eyes):
    small = (EYE[0] // 2, EYE[1] // 2)
    frames = walk(30, eyes=eyes, speed=1)
    truth, _, _ = mattes(frames, eyes=eyes, network=TrailNetwork(recurrent=False))
    whole, _, _ = mattes(frames, eyes=eyes, network=TrailNetwork(recurrent=False, size=small))
    zoomed, report, network = mattes(
        frames, eyes=eyes, network=TrailNetwork(recurrent=False, size=small), region="zoom"
    )

    def error(alphas):
        return np.abs(alphas.astype(int) - truth).mean()

    assert error(zoomed) < 0.6 * error(whole)
    assert report.cropped_frames == 30
    assert all(shape[1] == eyes for shape in network.calls)


def test_a_zoom_begins_a_memory_anew_when_its_part_moves():
    network = TrailNetwork(size=(EYE[0] // 2, EYE[1] // 2))
    zoomed, _, _ = mattes(walk(30, speed=4), network=network, region="zoom")
    plain, _, _ = mattes(walk(30, speed=4), network=TrailNetwork(size=(EYE[0] // 2, EYE[1] // 2)))
    assert np.abs(zoomed.astype(int) - plain).mean() < 3


def test_what_a_network_cannot_do_is_refused():
    with pytest.raises(UsageError, match=r"inference.region=crop: scripted takes pictures of one size"):
        mattes([frame_of([])], network=BrightnessNetwork(), region="crop")
    network = TrailNetwork()
    network.new_state = BrightnessNetwork(recurrent=True).new_state
    with pytest.raises(UsageError, match="memory of trail cannot be cropped"):
        mattes([frame_of([])], network=network, region="crop")


def test_boxes_have_the_same_rows_in_both_eyes():
    alpha = np.zeros((2, 40, 60), np.float32)
    alpha[0, 10:20, 5:15] = 1
    alpha[1, 12:25, 30:35] = 1
    assert people_boxes(alpha) == [Region(5, 10, 10, 15), Region(30, 10, 5, 15)]
    assert people_boxes(np.zeros((2, 4, 4), np.float32)) is None
    alpha[1] = 0
    assert people_boxes(alpha) == [Region(5, 10, 10, 10), Region(0, 10, 60, 10)]


sides = st.integers(1, 400)


@given(height=sides, width=sides, data=st.data(), margin=st.floats(0, 2), eyes=st.sampled_from([1, 2]))
def test_parts_hold_their_boxes_on_the_grid_they_need(height, width, data, margin, eyes):
    y = data.draw(st.integers(0, height - 1))
    rows = data.draw(st.integers(1, height - y))
    boxes = []
    for _ in range(eyes):
        x = data.draw(st.integers(0, width - 1))
        boxes.append(Region(x, y, data.draw(st.integers(1, width - x)), rows))
    parts = cover(boxes, margin=margin, grid=(height, width), multiple=16)
    if parts is None:
        return
    assert len({(part.y, part.size) for part in parts}) == 1
    for part, box in zip(parts, boxes, strict=True):
        assert part.x % 16 == part.y % 16 == 0
        assert 0 <= part.x <= box.x and box.x + box.width <= part.x + part.width <= width
        assert 0 <= part.y <= box.y and box.y + box.height <= part.y + part.height <= height
    assert still_fits(parts, boxes, guard=0, grid=(height, width))


def test_the_rim_spares_the_edge_of_the_picture():
    inside = rim([Region(16, 16, 32, 16)], (16, 32), (64, 96))[0]
    assert inside.sum() == 2 * 32 + 2 * 14
    corner = rim([Region(0, 0, 32, 16)], (16, 32), (64, 96))[0]
    assert corner[-1].all() and corner[:, -1].all() and corner[:-1, :-1].sum() == 0


def test_change_outside_the_parts_alone_counts():
    before = np.zeros((6, 9, 16), np.float32)
    now = before.copy()
    now[3:, 4, 8] = 0.5  # inside, in the second eye
    parts = [Region(0, 0, 32, 18), Region(64, 24, 32, 32)]
    assert largest_change_outside(before, now, parts, (72, 128)) == 0
    now[0, 8, 15] = 0.3  # outside, in one channel of the first eye
    assert largest_change_outside(before, now, parts, (72, 128)) == pytest.approx(0.1)
    assert largest_change_outside(before, now, None, (72, 128)) == pytest.approx(0.5)


@pytest.mark.parametrize("rotation", [0, 90, 180, 270])
def test_a_part_of_the_upright_picture_is_found_in_the_coded_one(rotation):
    coded = np.arange(40 * 60).reshape(40, 60)
    upright = np.rot90(coded, -(rotation // 90))
    part = Region(8, 4, 16, 12)
    window = coded_window(Region(0, 0, 60, 40), part, upright.shape, rotation)
    cut = np.rot90(coded[window.rows, window.columns], -(rotation // 90))
    assert np.array_equal(cut, upright[part.rows, part.columns])
