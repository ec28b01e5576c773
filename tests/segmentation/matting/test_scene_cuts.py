from __future__ import annotations

from itertools import chain

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from skimage import data

from vitascope.segmentation.matting.batch import tile_means
from vitascope.segmentation.matting.scene_cuts import LOOK_AHEAD_FRAMES, Change, SceneCutDetector

SIZE = 27, 48


def tiles(image):
    """Shrink a picture to [3, 27, 48], 0..1."""
    return np.moveaxis(
        cv2.resize(image.astype(np.float32) / 255, SIZE[::-1], interpolation=cv2.INTER_AREA), -1, 0
    )


def pan(image, frames, *, speed, first=0):
    """Simulate a camera that moves to the right by ``speed`` samples, of 300, a frame."""
    return [tiles(image[100:270, round(first + speed * at) :][:, :300]) for at in range(frames)]


PLACES = [data.astronaut(), data.coffee(), data.chelsea(), data.rocket()]
FIRST, SECOND, THIRD, _ = (pan(place, 12, speed=1) for place in PLACES)


def flash(picture, strength=3.0):
    """Light a picture from the right, and overexpose it there."""
    return np.clip(picture * (1 + strength * np.linspace(0.2, 1, picture.shape[-1])), 0, 1).astype(np.float32)


def cuts(film, *, threshold=0.05, gathered=1):
    """Return the numbers of the frames that begin a shot."""
    detector = SceneCutDetector(threshold)
    batches = [np.stack(film[first : first + gathered]) for first in range(0, len(film), gathered)]
    starts = [start for batch in batches for decided in detector.see(batch) for start in decided]
    starts += detector.finish()
    assert len(starts) == len(film)
    return [number for number, change in enumerate(starts) if change.starts_shot]


def test_the_first_picture_is_no_cut_and_other_places_are():
    assert cuts([*FIRST, *SECOND, *THIRD]) == [12, 24]


def test_places_of_the_same_colours_are_told_apart():
    mirrored = [picture[:, ::-1, ::-1] for picture in FIRST]
    assert cuts([*FIRST, *mirrored]) == [12]


@pytest.mark.parametrize("frames", [1, 2, LOOK_AHEAD_FRAMES])
def test_a_flash_is_no_cut(frames):
    film = [*FIRST]
    film[5 : 5 + frames] = [flash(picture) for picture in film[5 : 5 + frames]]
    assert cuts(film) == []


def test_a_blank_frame_and_black_are_no_cut_but_another_place_after_black_is():
    black, white = np.zeros_like(FIRST[0]), np.ones_like(FIRST[0])
    assert cuts([*FIRST[:6], white, *FIRST[6:]]) == []
    assert cuts([*FIRST[:6], *[black] * 5, *FIRST[6:]]) == []
    assert cuts([*FIRST, *[black] * 5, *SECOND]) == [17]


def test_motion_noise_and_lamps_are_no_cut():
    rng = np.random.default_rng(0)
    fast = pan(PLACES[1], 20, speed=14)
    noisy = [
        np.clip(picture + rng.normal(0, 0.02, picture.shape), 0, 1).astype(np.float32) for picture in fast
    ]
    assert cuts(fast) == cuts(noisy) == []
    assert cuts([*FIRST[:6], *(0.4 * picture for picture in FIRST[6:])]) == []


def test_a_cut_in_a_pan_is_found():
    assert cuts([*pan(PLACES[1], 12, speed=14), *pan(PLACES[0], 12, speed=14)]) == [12]


def test_somebody_who_is_suddenly_elsewhere_is_a_cut_and_somebody_who_walks_is_none():
    def at(column):
        picture = FIRST[0].copy()
        picture[:, 8:, column : column + 8] = SECOND[0][:, 8:, 8:16]
        return picture

    assert cuts([at(4)] * 8 + [at(30)] * 8) == [8]
    assert cuts([at(2 * step) for step in range(16)]) == []


def test_a_dissolve_begins_one_shot_while_it_lasts():
    share = np.clip((np.arange(50, dtype=np.float32) - 18) / 14, 0, 1)
    film = [FIRST[0] * (1 - part) + SECOND[0] * part for part in share]
    (start,) = cuts(film)
    assert 18 < start < 36


def test_flashes_one_upon_the_other_are_no_cut_though_the_camera_moves():
    film = pan(PLACES[2], 20, speed=6)
    half = film[9].copy()
    half[:, :14] = 1
    film[9:13] = [half, *([np.ones_like(half)] * 3)]
    assert cuts(film) == []


def test_lamps_one_after_the_other_are_no_dissolve():
    clipped = [np.clip(2.4 * picture - 0.4, 0, 1) for picture in FIRST]
    film = [*FIRST, *(np.clip(1.5 * picture - 0.1, 0, 1) for picture in FIRST), *clipped, *clipped]
    assert cuts(film) == []


def test_a_fade_through_black_begins_one_shot():
    down, up = np.linspace(1, 0, 8, dtype=np.float32), np.linspace(0, 1, 8, dtype=np.float32)
    film = [*FIRST, *(FIRST[-1] * share for share in down), *(SECOND[0] * share for share in up), *SECOND]
    (start,) = cuts(film)
    assert 16 < start < 26


def test_somebody_darker_who_is_suddenly_there_is_a_cut_and_no_lamp():
    there = FIRST[0].copy()
    there[:, 6:, 14:26] *= 0.1 * (1 + SECOND[0][:, 6:, 14:26])
    assert cuts([FIRST[0]] * 8 + [there] * 8) == [8]


def test_a_camera_that_is_swung_about_from_the_start_is_no_cut():
    rng = np.random.default_rng(0)
    image = data.gravel()
    shaken = [tiles(np.dstack([image[y : y + 270, x : x + 480]] * 3)) for x, y in rng.integers(0, 32, (8, 2))]
    assert cuts(shaken) == []


@pytest.mark.parametrize("gathered", [1, 5, 30])
def test_much_is_new_where_something_large_passes_and_not_in_a_pan(gathered):
    passing = [picture.copy() for picture in pan(PLACES[1], 24, speed=1)]
    for number, picture in enumerate(passing):
        place = slice(max(9 * number - 90, 0), max(9 * number - 72, 0))
        picture[:, :, place] = FIRST[0][:, :, place]
    detector, told = SceneCutDetector(0.05), []
    for first in range(0, len(passing), gathered):
        told += chain.from_iterable(detector.see(np.stack(passing[first : first + gathered])))
    told = [change is Change.MUCH_IS_NEW for change in [*told, *detector.finish()]]
    assert len(told) == len(passing)
    assert not any(told[:9])
    assert any(told[9:16])
    assert not any(told[18:])


def test_a_threshold_of_zero_never_cuts():
    assert cuts([*FIRST, *SECOND], threshold=0) == []


def test_a_high_threshold_wants_more_of_the_picture():
    assert cuts([*FIRST, *SECOND], threshold=0.95) == []


def test_only_a_frame_that_looks_new_waits_and_not_for_long():
    detector = SceneCutDetector(0.05)
    decided = list(map(len, detector.see(np.stack([*FIRST, *SECOND]))))
    assert decided[:12] == [1] * 12
    assert decided[12 : 13 + LOOK_AHEAD_FRAMES] == [0] * LOOK_AHEAD_FRAMES + [LOOK_AHEAD_FRAMES + 1]
    assert decided[13 + LOOK_AHEAD_FRAMES :] == [1] * (11 - LOOK_AHEAD_FRAMES)


@pytest.mark.parametrize("size", [(1, 1), (2, 48), (5, 9), (48, 27), (48, 48)])
def test_any_size_of_picture_will_do(size):
    rng = np.random.default_rng(0)
    film = [np.repeat(rng.random((1, 3, *size), np.float32), 6, axis=0) for _ in range(2)]
    assert cuts([picture for shot in film for picture in shot]) in ([], [6])


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(0, 4), min_size=1, max_size=24), st.integers(0, 9))
def test_every_frame_is_decided_once_whatever_comes(order, seed):
    rng = np.random.default_rng(seed)
    pictures = [*(shot[0] for shot in (FIRST, SECOND, THIRD)), np.zeros_like(FIRST[0])]
    pictures.append(rng.random(FIRST[0].shape, np.float32))
    found = cuts([pictures[number] for number in order])
    assert 0 not in found


@pytest.mark.parametrize("gathered", [2, 7, 16, 64])
def test_decisions_do_not_depend_on_how_frames_are_gathered(gathered):
    share = np.linspace(0, 1, 14, dtype=np.float32)[:, None, None, None]
    dissolve = (1 - share) * THIRD[0] + share * FIRST[0]
    film = [
        *FIRST,
        *SECOND[:5],
        flash(SECOND[5]),
        *SECOND[5:],
        *pan(PLACES[2], 30, speed=0),
        *dissolve,
        *pan(PLACES[0], 30, speed=0),
    ]
    assert cuts(film, gathered=gathered) == cuts(film)


@pytest.mark.cuda
def test_tiles_of_the_gpu_decide_the_same():
    import cupy

    rng = np.random.default_rng(0)
    places = [cv2.resize(place, (256, 144)).astype(np.float32) / 255 for place in PLACES[:3]]
    film = np.stack([np.roll(place, at, axis=1) for place in places for at in range(8)])
    film = (
        np.clip(film + rng.normal(0, 0.01, film.shape), 0, 1)
        .astype(np.float32)
        .transpose(0, 3, 1, 2)[:, None]
    )
    on_gpu = tile_means(cupy.asarray(film)).get()
    np.testing.assert_allclose(on_gpu, tile_means(film), atol=1e-3)
    assert cuts(on_gpu) == cuts(tile_means(film)) == [8, 16]
