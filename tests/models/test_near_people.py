"""Large levels computed near people alone give what computing all of them gives, also of who comes in."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest

from vitascope.models.network import FollowingState
from vitascope.models.rvm.near_people import _WHOLE_FRAMES, NearPeople
from vitascope.models.rvm.rvm import RvmNetwork

pytestmark = pytest.mark.fetched_model

HEIGHT, WIDTH, SIDE = 256, 448, 128
SECOND_COMES = _WHOLE_FRAMES + 3


@pytest.fixture(scope="module")
def networks(rvm_model_path):
    with_all = RvmNetwork(rvm_model_path, threads=1)
    near = RvmNetwork(rvm_model_path, threads=1, near_people=True)
    yield with_all, near
    with_all.close()
    near.close()


def frames(count):
    """Two eyes of a grey room: somebody wanders to the right, and somebody else comes in at the other end."""
    photograph = cv2.imread(str(Path(__file__).parents[2] / "examples" / "astronaut.jpg"))[..., ::-1]
    person = cv2.resize(photograph, (SIDE, SIDE), interpolation=cv2.INTER_AREA) / np.float32(255)
    ramp = np.linspace(0.3, 0.5, WIDTH, dtype=np.float32)
    pictures = np.empty((count, 2, 3, HEIGHT, WIDTH), np.float32)
    pictures[:] = ramp
    for index, eyes in enumerate(pictures):
        for eye, shift in zip(eyes, (0, 5), strict=True):
            places = [16 + 2 * index + shift]
            if index >= SECOND_COMES:
                places.append(WIDTH - SIDE - 16 + shift)
            for left in places:
                eye[:, HEIGHT - SIDE :, left : left + SIDE] = person.transpose(2, 0, 1)
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


def test_it_gives_what_all_of_it_gives_and_computes_less(networks, monkeypatch):
    with_all, near = networks
    pictures = frames(SECOND_COMES + 3)
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
    # Who comes in is there at once.
    newcomer = np.s_[:, HEIGHT - SIDE :, WIDTH - SIDE - 16 :]
    assert expected[SECOND_COMES][newcomer].mean() > 0.2
    assert abs(found[SECOND_COMES][newcomer].mean() - expected[SECOND_COMES][newcomer].mean()) < 0.02


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
    state.restore(state.arrays())
    assert state.people is None
    near.infer(pictures, state)
    assert state.people.frames == 2
    state.reset()
    assert state.people is None
    assert not state.follows_people


def test_a_call_that_fails_leaves_the_stream_where_it_was(networks, monkeypatch):
    _, near = networks
    pictures, state = frames(2), near.new_state()
    state.follow_people()
    near.infer(pictures, state)
    before = [tensor.copy() for tensor in state.tensors]

    def fail(*_):
        raise RuntimeError("no memory")

    monkeypatch.setattr(near._near._fine, "run", fail)
    with pytest.raises(RuntimeError):
        near.infer(pictures, state)
    for kept, was in zip(state.tensors, before, strict=True):
        np.testing.assert_array_equal(kept, was)
