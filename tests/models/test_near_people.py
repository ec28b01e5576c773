"""Check that computing large levels near people alone changes nothing, also for people who come in."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest

from vitascope.models.network import FollowingState
from vitascope.models.rvm.blocked_decoder import NO_CROPS
from vitascope.models.rvm.near_people import (
    _MIDDLE_WHOLE_FRAMES,
    _WHOLE_FRAMES,
    NearPeople,
    _changed,
    _pooled,
    _shares,
)
from vitascope.models.rvm.rvm import RvmNetwork

pytestmark = pytest.mark.fetched_model

HEIGHT, WIDTH, SIDE = 192, 320, 96
DARK_SIZE = DARK_HEIGHT, DARK_WIDTH, DARK_SIDE = 256, 448, 128
"""For dark pictures, in which smaller people are hardly visible."""
SECOND_COMES = _WHOLE_FRAMES + 3
NEWCOMER_FRAMES = 3
"""Counted from somebody's first frame, within which they are found."""


@pytest.fixture(scope="module")
def networks(rvm_model_path):
    with_all = RvmNetwork(rvm_model_path, threads=1)
    near = RvmNetwork(rvm_model_path, threads=1, near_people=True)
    yield with_all, near
    with_all.close()
    near.close()


def frames(count, size=(HEIGHT, WIDTH, SIDE)):
    """Make two eyes of a grey room: one person walks right, and another comes in at the other end."""
    height, width, side = size
    photograph = cv2.imread(str(Path(__file__).parents[2] / "examples" / "astronaut.jpg"))[..., ::-1]
    person = cv2.resize(photograph, (side, side), interpolation=cv2.INTER_AREA) / np.float32(255)
    ramp = np.linspace(0.3, 0.5, width, dtype=np.float32)
    pictures = np.empty((count, 2, 3, height, width), np.float32)
    pictures[:] = ramp
    for index, eyes in enumerate(pictures):
        for eye, shift in zip(eyes, (0, 5), strict=True):
            places = [16 + 2 * index + shift]
            if index >= SECOND_COMES:
                places.append(width - side - 16 + shift)
            for left in places:
                eye[:, height - side :, left : left + side] = person.transpose(2, 0, 1)
    return pictures


def alpha_of(estimate, picture):
    grey = picture.mean(axis=1)
    return (estimate.gain[:, -1] * grey + estimate.offset[:, -1]).clip(0, 1)


def mattes(network, pictures, *, follow):
    state, found = network.new_state(), []
    if follow:
        assert isinstance(state, FollowingState)
        state.follow_people()
    for first in range(0, len(pictures), 2):
        part = pictures[first : first + 2]
        found += [
            alpha_of(one, picture) for one, picture in zip(network.infer(part, state), part, strict=True)
        ]
    return found


@pytest.mark.parametrize("size", [(HEIGHT, WIDTH), (HEIGHT + 6, WIDTH + 14), (HEIGHT - 1, WIDTH + 9)])
def test_it_gives_what_all_of_it_gives_and_computes_less(networks, monkeypatch, size):
    with_all, near = networks
    height, width = size
    pictures = frames(SECOND_COMES + 3, (*size, SIDE))
    shares, choose = [], NearPeople._windows

    def watched(tiles, known):
        shown, kept = choose(tiles, known)
        rows, columns = tiles.shape[2:]
        shares.append((shown.bottom - shown.top) * (shown.right - shown.left) / (rows * columns))
        return shown, kept

    monkeypatch.setattr(NearPeople, "_windows", staticmethod(watched))
    expected = mattes(with_all, pictures, follow=False)
    found = mattes(near, pictures, follow=True)
    assert shares[:_WHOLE_FRAMES] == [1.0] * _WHOLE_FRAMES
    assert max(shares[_WHOLE_FRAMES:SECOND_COMES]) < 0.7
    for number, (mine, theirs) in enumerate(zip(found, expected, strict=True)):
        assert np.abs(mine - theirs).mean() < 0.5 / 255, number
    for mine, theirs in zip(found[:_WHOLE_FRAMES], expected, strict=False):
        assert np.abs(mine - theirs).max() < 1e-3
    # People who come in are there at once.
    newcomer = np.s_[:, height - SIDE :, width - SIDE - 16 :]
    assert expected[SECOND_COMES][newcomer].mean() > 0.2
    assert abs(found[SECOND_COMES][newcomer].mean() - expected[SECOND_COMES][newcomer].mean()) < 0.02


def test_the_level_at_an_eighth_is_computed_in_a_window_once_memory_is_sure(networks, monkeypatch):
    _, near = networks
    pictures = frames(_MIDDLE_WHOLE_FRAMES + 1)
    pictures[SECOND_COMES:] = pictures[SECOND_COMES - 1]
    state, sizes = near.new_state(), []
    state.follow_people()
    near.infer(pictures[:1], state)
    engine = near._near._engines["middle", 1, NO_CROPS]
    run = engine.run

    def watched(inputs):
        sizes.append(inputs["r3i"].shape[2:])
        return run(inputs)

    monkeypatch.setattr(engine, "run", watched)
    near.infer(pictures[1:], state)
    whole = HEIGHT // 8, WIDTH // 8
    assert sizes[:-1] == [whole] * (_MIDDLE_WHOLE_FRAMES - 1)
    assert sizes[-1][0] * sizes[-1][1] < 0.9 * whole[0] * whole[1]
    assert state.tensors[2].shape[2:] == whole


def test_streams_that_do_not_let_it_are_computed_whole(networks):
    with_all, near = networks
    pictures = frames(2)
    for mine, theirs in zip(
        mattes(near, pictures, follow=False), mattes(with_all, pictures, follow=False), strict=True
    ):
        np.testing.assert_array_equal(mine, theirs)


def test_what_is_known_of_people_ends_with_the_shot_and_with_other_features(networks):
    _, near = networks
    pictures, state = frames(2), near.new_state()
    state.follow_people()
    near.infer(pictures, state)
    assert state.people.frames == 2
    state.stretch((2 * HEIGHT, 2 * WIDTH))
    assert state.people is None
    state = near.new_state()
    state.follow_people()
    near.infer(pictures, state)
    state.reset()
    assert state.people is None
    assert not state.follows_people


def darkened(pictures, gain):
    """Darken in codes of 8 bits, as in a video."""
    return np.round(pictures * (255 * gain)) / np.float32(255)


@pytest.mark.parametrize("gain", [1.0, 0.3, 0.1, 0.06, 0.04])
def test_who_comes_in_changes_tiles_of_dark_pictures(gain):
    pictures = darkened(frames(SECOND_COMES + 1, DARK_SIZE), gain)
    changed = _changed(*(_pooled(picture, 16) for picture in pictures[SECOND_COMES - 1 :]))
    rows, columns = np.nonzero(changed[:, DARK_WIDTH // 2 // 16 :])
    assert min(np.ptp(rows), np.ptp(columns)) >= DARK_SIDE // 16 - 2  # a window holds everything between them


@pytest.mark.parametrize("gain", [1.0, 0.3, 0.1])  # in darker ones this network finds nobody
def test_who_comes_in_is_found_in_dark_pictures(networks, gain):
    with_all, near = networks
    pictures = darkened(frames(SECOND_COMES + NEWCOMER_FRAMES, DARK_SIZE)[:, :1], gain)
    expected = mattes(with_all, pictures, follow=False)[-1]
    found = mattes(near, pictures, follow=True)[-1]
    newcomer = np.s_[:, DARK_HEIGHT - DARK_SIDE :, DARK_WIDTH - DARK_SIDE - 16 :]
    assert expected[newcomer].mean() > 0.1
    assert abs(found[newcomer].mean() - expected[newcomer].mean()) < 0.02


def test_who_comes_in_unseen_is_found_at_the_next_whole_frame(networks, monkeypatch):
    with_all, near = networks
    monkeypatch.setattr(
        "vitascope.models.rvm.near_people._changed",
        lambda tiles, before: np.zeros(tiles.shape[2:], np.bool_),
    )
    whole_every = 16  # shorter than in reality, to save time
    monkeypatch.setattr("vitascope.models.rvm.near_people._WHOLE_EVERY", whole_every)
    pictures = frames(whole_every + 1)[:, :1]
    pictures[:, :, :, :, : WIDTH // 2] = pictures[0, :, :, :, : WIDTH // 2]  # the other stays away from him
    expected, found = mattes(with_all, pictures, follow=False), mattes(near, pictures, follow=True)
    newcomer = np.s_[:, HEIGHT - SIDE :, WIDTH - SIDE - 16 :]
    assert found[whole_every - 1][newcomer].mean() < 0.1 < 0.2 < expected[whole_every - 1][newcomer].mean()
    assert found[whole_every][newcomer].mean() > 0.8 * expected[whole_every][newcomer].mean()


@pytest.mark.parametrize("size", [(1, 1), (8, 16), (7, 33), (270, 480)])
def test_means_of_squares_are_those_of_the_network(size):
    """Check rounding up and ignoring what is missing, as in ``AveragePool``."""
    picture = np.random.default_rng(0).random((1, 3, *size), dtype=np.float32)
    expected = picture
    for _ in range(3):
        rows, columns = (range(0, side, 2) for side in expected.shape[2:])
        counts = np.ones(expected.shape[2:], np.float32)
        expected, counts = (
            np.add.reduceat(np.add.reduceat(one, rows, axis=-2), columns, axis=-1)
            for one in (expected, counts)
        )
        expected = expected / counts
    np.testing.assert_allclose(_pooled(picture, 8), expected, atol=1e-6)


def test_noise_of_two_codes_does_not_change_dark_tiles():
    random = np.random.default_rng(1)
    first, second = (
        _pooled(0.02 + random.normal(0, 2 / 255, (2, 3, HEIGHT, WIDTH)).astype(np.float32), 16)
        for _ in range(2)
    )
    assert not _changed(first, second).any()


def test_a_stream_that_goes_on_elsewhere_gives_what_it_would_have_given(networks):
    _, near = networks
    pictures, stop = frames(_WHOLE_FRAMES + 6), _WHOLE_FRAMES + 2
    whole, second = near.new_state(), near.new_state()
    whole.follow_people()
    near.infer(pictures[:stop], whole)
    second.restore([array.copy() for array in whole.arrays()])
    second.follow_people()
    for one, other in zip(
        near.infer(pictures[stop:], whole), near.infer(pictures[stop:], second), strict=True
    ):
        np.testing.assert_array_equal(one.gain, other.gain)
        np.testing.assert_array_equal(one.offset, other.offset)
    assert whole.people.frames == second.people.frames == len(pictures)


@pytest.fixture(scope="module")
def on_two_threads(rvm_model_path):
    near = RvmNetwork(rvm_model_path, threads=2, near_people=True)
    yield near
    near.close()


@pytest.mark.parametrize("eyes", [1, 2])
def test_eyes_side_by_side_give_what_they_give_together(networks, on_two_threads, eyes):
    pictures = frames(_MIDDLE_WHOLE_FRAMES + 2)[:, :eyes]
    states = [network.new_state() for network in (networks[1], on_two_threads)]
    answers = []
    for network, state in zip((networks[1], on_two_threads), states, strict=True):
        state.follow_people()
        answers.append(network.infer(pictures, state))
    for together, apart in zip(*answers, strict=True):
        np.testing.assert_array_equal(apart.gain, together.gain)
        np.testing.assert_array_equal(apart.offset, together.offset)
    for one, other in zip(*(state.arrays() for state in states), strict=True):
        np.testing.assert_array_equal(other, one)
    # One eye has all threads, two have one each.
    assert ("fine", 2 // eyes, NO_CROPS) in on_two_threads._near._engines


@pytest.mark.parametrize(
    ("pictures", "threads", "lengths"),
    [(2, 1, [2]), (2, 2, [1, 1]), (1, 8, [1]), (4, 2, [2, 2]), (4, 3, [2, 2]), (4, 8, 4 * [1]), (3, 2, [3])],
)
def test_pictures_are_shared_evenly(pictures, threads, lengths):
    shares = _shares(pictures, threads)
    assert [len(range(pictures)[share]) for share in shares] == lengths
    assert [number for share in shares for number in range(pictures)[share]] == list(range(pictures))


@pytest.fixture(scope="module", params=[1, 2])
def begun(request, networks, on_two_threads):
    """Make a network with these threads, and a stream's memory after enough pictures for people to be followed."""
    near = networks[1] if request.param == 1 else on_two_threads
    state = near.new_state()
    state.follow_people()
    near.infer(frames(_WHOLE_FRAMES + 1), state)
    return near, [array.copy() for array in state.arrays()]


@pytest.mark.parametrize("count", [1, 3])
def test_a_call_that_fails_leaves_the_stream_where_it_was(begun, monkeypatch, count):
    near, before = begun
    pictures = frames(_WHOLE_FRAMES + 1 + count)[_WHOLE_FRAMES + 1 :]
    failed, other = near.new_state(), near.new_state()
    for state in (failed, other):
        state.restore([array.copy() for array in before])
        state.follow_people()
    engine = near._near._engines["fine", 1, NO_CROPS]
    run, calls = engine.run, []

    def fail(inputs):
        calls.append(inputs)
        if len(calls) == min(count, 2):
            raise RuntimeError("no memory")
        return run(inputs)

    with monkeypatch.context() as broken, pytest.raises(RuntimeError):
        broken.setattr(engine, "run", fail)
        near.infer(pictures, failed)
    assert failed.people is not None
    for kept, was in zip(failed.arrays(), before, strict=True):
        np.testing.assert_array_equal(kept, was)
    for one, another in zip(near.infer(pictures, failed), near.infer(pictures, other), strict=True):
        np.testing.assert_array_equal(alpha_of(one, pictures[0]), alpha_of(another, pictures[0]))
