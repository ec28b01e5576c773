"""Tests of scenery that is taken for a person in some frames of a window."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitascope.frames import Frame
from vitascope.gpu.interchange import to_cupy, to_numpy
from vitascope.models.network import MatteEstimate, NetworkInput
from vitascope.segmentation.matting.batch import Batch
from vitascope.segmentation.matting.levers.scenery import Scenery, in_doubt, kept_shares
from vitascope.segmentation.matting.scene_cuts import Change

SIZE = HEIGHT, WIDTH = 90, 160
SHOWN = NetworkInput((4 * HEIGHT, 4 * WIDTH), "NCHW")
WALKER, BIKE = np.s_[20:80], np.s_[40:60, 100:130]


@pytest.fixture(scope="module")
def threads():
    with ThreadPoolExecutor(2) as threads:
        yield threads


def places(seed=3):
    """Make a detailed picture of scenery, larger than the frames."""
    picture = np.random.default_rng(seed).random((HEIGHT // 4 + 10, WIDTH // 4 + 10, 3), np.float32)
    return 0.3 + 0.7 * cv2.resize(picture, (WIDTH + 40, HEIGHT + 40), interpolation=cv2.INTER_CUBIC).clip(
        0, 1
    )


def walk(count=12, *, pan=(0.0, 0.0), noise=0.0, seed=3):
    """Make frames of a dark person who walks across, while the camera moves by ``pan`` samples a frame."""
    random, place = np.random.default_rng(seed), places(seed)
    pictures, alphas = [], np.zeros((count, *SIZE), np.float32)
    for at in range(count):
        move = np.float32([[1, 0, -20 - at * pan[1]], [0, 1, -20 - at * pan[0]]])
        picture = cv2.warpAffine(place, move, (WIDTH, HEIGHT), borderMode=cv2.BORDER_REFLECT)
        left = 10 + at * 100 // count
        picture[WALKER, left : left + 20] = 0
        alphas[at][WALKER, left : left + 20] = 1
        pictures.append(picture + random.normal(0, noise, picture.shape).astype(np.float32))
    return np.stack(pictures), alphas


def shares_of(pictures, alphas, threads, *, move=np.asarray):
    seen = np.concatenate([pictures.transpose(0, 3, 1, 2), alphas[:, None]], axis=1)
    return kept_shares(move(np.ascontiguousarray(seen)), threads=threads)


def bike_at(at, pan):
    return np.s_[
        40 - round(at * pan[0]) : 60 - round(at * pan[0]), 130 - round(at * pan[1]) : 150 - round(at * pan[1])
    ]


@pytest.mark.parametrize("pan", [(0.0, 0.0), (0.4, 1.3), (-0.5, -0.8)])
def test_scenery_in_some_frames_is_nobody_along_the_cameras_motion(threads, pan):
    pictures, alphas = walk(pan=pan, noise=0.01)
    truth = alphas.copy()
    for at in (1, 2, 3):
        alphas[at][bike_at(at, pan)] = 0.8
    kept = alphas * shares_of(pictures, alphas, threads)
    for at in (1, 2, 3):
        assert kept[at][bike_at(at, pan)][3:-3, 3:-3].max() < 0.05
    assert np.abs(kept - truth).mean() < 0.15 * np.abs(alphas - truth).mean()
    assert kept[truth > 0].mean() > 0.98


def test_who_stands_still_in_most_frames_stays(threads):
    pictures, alphas = walk()
    alphas[2:][:, *BIKE] = 1
    assert np.array_equal(shares_of(pictures, alphas, threads)[:, *BIKE], np.ones((12, 20, 30)))


def test_a_veil_has_little_to_say(threads):
    """Check that half-transparent answers hardly vote: a person stays where three frames are sure of them."""
    pictures, alphas = walk()
    alphas[:, *BIKE] = 0.5
    alphas[:2, *BIKE] = 0
    alphas[3:6, *BIKE] = 1
    assert shares_of(pictures, alphas, threads)[3:6, *BIKE][:, 4:-4, 4:-4].min() > 0.4


def test_who_comes_into_view_looks_otherwise(threads):
    pictures, alphas = walk()
    pictures[8:, *BIKE] = (pictures[8:, *BIKE] + 0.5) % 1
    alphas[8:, *BIKE] = 1
    assert shares_of(pictures, alphas, threads)[8:, *BIKE].min() > 0.99


def test_who_wears_a_plain_walls_colour_stays(threads):
    pictures, alphas = walk()
    pictures[:, 30:70, 90:140] = 0.5
    alphas[8:, *BIKE] = 1
    assert shares_of(pictures, alphas, threads)[8:, *BIKE][:, 4:-4, 4:-4].min() > 0.99


@pytest.mark.parametrize("count", [1, 3])
def test_short_windows_keep_everybody(threads, count):
    pictures, alphas = walk(count)
    assert np.array_equal(shares_of(pictures, alphas, threads), np.ones_like(alphas))


@given(count=st.integers(1, 6), height=st.integers(1, 40), width=st.integers(1, 40), seed=st.integers(0, 99))
def test_shares_are_shares(threads, count, height, width, seed):
    random = np.random.default_rng(seed)
    pictures = random.random((count, height, width, 3), np.float32)
    pictures[1:] = pictures[0] + random.normal(0, 0.01, pictures[1:].shape).astype(np.float32)
    alphas = cv2.resize(random.random((4, 5, count), np.float32), (width, height)).reshape(
        height, width, count
    )
    kept = shares_of(pictures, np.moveaxis(alphas, -1, 0), threads)
    assert kept.shape == (count, height, width)
    assert kept.dtype == np.float32
    assert np.isfinite(kept).all()
    assert kept.min() >= 0
    assert kept.max() <= 1


def test_a_window_is_in_doubt_where_looks_differ():
    means = [np.full((4, 1, 1, 3, 5), mean, np.float32) for mean in (0.2, 0.3, 0.6)]
    assert not in_doubt(means).item()
    means[2][1, 0, 0, 2, 3] = 0.75
    assert in_doubt(means).item()
    assert in_doubt(means).shape == (1,)
    assert not in_doubt(means[:2]).item()


def window(*, bikes=(), move=np.asarray):
    pictures, alphas = walk()
    for at in bikes:
        alphas[at][BIKE] = 0.8
    images = np.stack([cv2.resize(one, SHOWN.size[::-1]) for one in pictures]).transpose(0, 3, 1, 2)[:, None]
    offsets = np.stack([cv2.resize(one, (5 * WIDTH, 5 * HEIGHT)) for one in alphas])[:, None, None]
    estimates = [MatteEstimate(gain=move(0 * one), offset=move(one)) for one in offsets]
    frames: list[Frame] = [None] * len(alphas)
    return Batch(frames, move(np.ascontiguousarray(images)), [Change.SMALL] * len(alphas)), estimates


def test_mattes_without_scenery_are_the_same_ones(threads):
    batch, estimates = window()
    assert Scenery(SHOWN, threads).cleared(batch, estimates) is estimates
    batch, estimates = window(bikes=(4, 5))
    cleared = Scenery(SHOWN, threads).cleared(batch, estimates)
    assert [one is other for one, other in zip(cleared, estimates, strict=True)] == [True] * 4 + [
        False
    ] * 2 + [True] * 6
    assert cleared[4].offset[0, 0, 225:275, 525:625].max() < 0.05
    assert estimates[4].offset[0, 0, 225:275, 525:625].min() > 0.7  # unchanged


@pytest.mark.cuda
@pytest.mark.parametrize("pan", [(0.0, 0.0), (-0.5, -0.8)])
def test_shares_of_a_gpu_are_the_cpus(threads, pan):
    pictures, alphas = walk(pan=pan, noise=0.01)
    for at in (1, 2, 3):
        alphas[at][bike_at(at, pan)] = 0.8
    expected, made = (
        to_numpy(shares_of(pictures, alphas, threads, move=move)) for move in (np.asarray, to_cupy)
    )
    assert expected.min() < 0.05
    # Places that are just similar enough on one device may not be on the other.
    assert (np.abs(made - expected) > 0.02).mean() < 2e-3


@pytest.mark.cuda
def test_a_gpu_takes_out_what_the_cpu_takes_out(threads):
    cleared = [
        Scenery(SHOWN, threads).cleared(*window(bikes=(4, 5), move=move)) for move in (np.asarray, to_cupy)
    ]
    for one, other in zip(*cleared, strict=True):
        assert np.abs(one.offset - to_numpy(other.offset)).max() < 0.02


def test_a_picture_that_shrinks_to_a_point_is_no_cameras_motion(threads):
    """Check that a singular motion is ignored: corners that all lead to one place cannot be aligned."""
    dots = np.zeros((6, *SIZE, 3), np.float32)
    dots[0, 5:85:8, 5:155:8] = 1
    dots[1:, 44:47, 79:82] = 1
    alphas = np.zeros((6, *SIZE), np.float32)
    alphas[:, :3, :3] = 1
    assert np.isfinite(shares_of(dots, alphas, threads)).all()


def test_a_part_of_somebody_that_is_missed_in_most_frames_is_no_scenery(threads):
    """Check that a missed part of a person stays: a shirt behind an arm always looks the same, too."""
    noise = np.random.default_rng(0).normal(0, 0.005, (12, *SIZE, 3)).astype(np.float32)
    pictures, alphas = walk(1)[0] + noise, np.zeros((12, *SIZE), np.float32)
    alphas[:, 30:, 60:90] = 1  # stands still
    alphas[2:, 45:71, 66:84] = 0
    assert shares_of(pictures, alphas, threads)[:2, 30:, 60:90].min() > 0.99
