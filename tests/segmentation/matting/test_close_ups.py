"""Check that people who fill the picture are shown smaller, and that nothing else changes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lever_network import TrailNetwork, TrailState
from vitascope.errors import DeviceMemoryError
from vitascope.gpu import AdaptiveBatchSizer
from vitascope.models.network import NetworkInput
from vitascope.segmentation.matting.close_ups import (
    CLOSE_UP_SIDE,
    LOOK_EVERY_FRAMES,
    CloseUps,
    largest_share,
)
from vitascope.segmentation.matting.shots import ShotInference

USUAL = NetworkInput((48, 768), "NCHW")
SMALL = (32, CLOSE_UP_SIDE)


def picture(share, *, eyes=1):
    """Make a picture in which every eye sees a person on the left who covers ``share`` of it."""
    images = np.zeros((1, eyes, 3, *USUAL.size), np.float32)
    images[..., : round(share * USUAL.size[1])] = 1
    return images


class Shown(TrailNetwork):
    """Records the sizes of its pictures, except those of a shot's beginning."""

    def sizes(self):
        return [shape[3:] for shape in self.calls if shape[3:] in (USUAL.size, SMALL)]


def shots_of(network, *, calls=1):
    return ShotInference(network, warm_up_frames=calls, people=CloseUps(USUAL))


@pytest.mark.parametrize(
    ("share", "size"), [(0.0, USUAL.size), (0.2, USUAL.size), (0.3, SMALL), (1.0, SMALL)]
)
def test_a_shot_of_somebody_who_fills_the_picture_is_shown_smaller(share, size):
    network = Shown()
    images = np.concatenate([picture(share)] * 3)
    answers = shots_of(network).run(images, [True, False, False])
    assert {*network.sizes()} == {size}
    assert {answer.size for answer in answers} == {USUAL.size}
    alpha = np.concatenate([answer.offset for answer in answers])[:, 0]
    assert np.abs(alpha - images[:, 0, 0]).mean() < 0.01


def person(*blocks):
    """Make alpha, 96 x 128, in which these blocks (top, bottom, left, right) are people."""
    alpha = np.zeros((1, 96, 128), np.float32)
    for top, bottom, left, right in blocks:
        alpha[:, top:bottom, left:right] = 1
    return alpha


def test_several_who_touch_are_no_close_up():
    one, two = person((30, 90, 30, 86)), person((30, 86, 20, 50), (60, 68, 50, 56), (30, 86, 56, 86))
    assert largest_share(two[0]) > largest_share(one[0]) > 0.25
    assert CloseUps.would_be_seen(one)
    assert not CloseUps.would_be_seen(two)
    one[:, 50:70, 48:68] = 0  # something that they hold
    assert largest_share(one[0]) < 0.25  # then it is too small a share
    one[:, 20:30, 30:86] = 1
    assert CloseUps.would_be_seen(one)
    assert CloseUps.would_be_seen(np.concatenate([two, one]))  # in one of the eyes
    assert CloseUps.would_be_seen(np.ones_like(one))
    assert not CloseUps.would_be_seen(np.zeros_like(one))


def test_each_shot_is_looked_at_by_itself():
    network = Shown()
    images = np.concatenate([picture(share) for share in (0.5, 0.5, 0.1, 0.1, 0.5)])
    shots_of(network).run(images, [True, False, True, False, True])
    assert network.sizes() == [SMALL, USUAL.size, SMALL]


def test_the_nearest_person_of_either_eye_counts():
    both = picture(0.1, eyes=2)
    both[0, 1] = picture(0.5)[0, 0]
    network = Shown()
    shots_of(network).run(both, [True])
    assert network.sizes() == [SMALL]


def test_several_people_who_do_not_touch_do_not_fill_it_together():
    alpha = np.zeros((10, 100), np.float32)
    alpha[:, :20] = alpha[:, 30:50] = alpha[:, 60:75] = 1
    assert largest_share(alpha) == pytest.approx(0.2)
    assert largest_share(np.zeros((3, 5), np.float32)) == 0


def test_who_comes_nearer_is_shown_smaller_and_who_goes_away_larger_again():
    near = [0.1] * 60 + [0.4] * 60 + [0.2] * 60 + [0.1] * 60
    network = Shown()
    shots = shots_of(network)
    for index, share in enumerate(near):
        shots.run(picture(share), [index == 0], indices=[index])
    changes = [
        n
        for n, (a, b) in enumerate(zip(network.sizes(), network.sizes()[1:], strict=False), start=1)
        if a != b
    ]
    assert changes == [LOOK_EVERY_FRAMES, 2 * LOOK_EVERY_FRAMES]


def test_frames_that_are_left_out_hide_nobody():
    network = Shown()
    shots = shots_of(network)
    for index in range(0, 100, 2):  # skips the last frame of each period
        shots.run(picture(0.1 if index < 10 else 0.5), [index == 0], indices=[index])
    assert network.sizes() == [USUAL.size] * 32 + [SMALL] * 18


@pytest.mark.parametrize("begin", [10, 100, 127])
def test_a_stretch_decides_as_the_whole(begin):
    shares = [0.4] * 70 + [0.2] * 130
    shown = {}
    for first in (0, begin):
        network = Shown()
        shots = shots_of(network)
        for index in range(first, len(shares)):
            shots.run(picture(shares[index]), [index == 0], indices=[index])
        shown[first] = network.sizes()
    assert shown[0][128:] == shown[begin][128 - begin :] == [USUAL.size] * 72


def test_a_call_that_is_made_again_for_want_of_memory_sees_the_same():
    class Small(Shown):
        """Takes two frames at most."""

        def infer(self, images, state):
            if len(images) > 2:
                raise DeviceMemoryError(f"{len(images)} frames do not fit")
            return super().infer(images, state)

    images = np.concatenate([picture(share) for share in [0.1] * 10 + [0.5] * 60])
    starts = [index in (0, 10) for index in range(70)]
    wanted = shots_of(Shown()).run(images, starts)
    sizer = AdaptiveBatchSizer(8, max_batch_size=8, min_batch_size=1, growing=False)
    network = Small()
    shots = ShotInference(network, warm_up_frames=1, sizer=sizer, people=CloseUps(USUAL))
    for one, other in zip(wanted, shots.run(images, starts), strict=True):
        np.testing.assert_array_equal(one.offset, other.offset)
    assert {*network.sizes()} == {USUAL.size, SMALL}


def test_a_beginning_for_which_memory_runs_out_is_made_anew():
    failures = iter([DeviceMemoryError("no room")])

    class Tight(TrailState):
        def stretch(self, size):
            if size == SMALL:
                for failure in failures:
                    raise failure
            super().stretch(size)

    class Network(Shown):
        def new_state(self):
            return Tight()

    wanted = shots_of(Shown()).run(picture(0.5), [False])
    sizer = AdaptiveBatchSizer(2, max_batch_size=2, min_batch_size=1, growing=False)
    shots = ShotInference(Network(), warm_up_frames=1, sizer=sizer, people=CloseUps(USUAL))
    images = np.concatenate([picture(0.5)] * 2)
    first, _ = shots.run(images, [False, False])
    np.testing.assert_array_equal(first.offset, wanted[0].offset)


@settings(max_examples=20, deadline=None)
@given(
    cuts=st.sets(st.integers(1, 119), max_size=3),
    edges=st.sets(st.integers(1, 119), max_size=8),
    shares=st.lists(st.sampled_from([0.1, 0.22, 0.5]), min_size=6, max_size=6),
)
def test_batches_change_nothing(cuts, edges, shares):
    images = np.concatenate([picture(shares[index // 20]) for index in range(120)])
    starts = [index == 0 or index in cuts for index in range(120)]
    whole = shots_of(Shown()).run(images, starts)
    shots, parts = shots_of(Shown()), []
    for first, end in zip([0, *sorted(edges)], [*sorted(edges), 120], strict=True):
        parts += shots.run(images[first:end], starts[first:end], indices=range(first, end))
    for one, other in zip(whole, parts, strict=True):
        np.testing.assert_array_equal(one.offset, other.offset)


def test_a_later_run_goes_on_with_the_size_of_the_earlier_one():
    shots = shots_of(Shown())
    shots.run(picture(0.5), [True])
    network = Shown()
    later = shots_of(network)
    assert later.remember(shots.memory())
    later.run(picture(0.1), [False], indices=[1])
    assert network.sizes() == [SMALL]


def test_without_a_first_look_pictures_are_the_usual_ones():
    network = Shown()
    shots_of(network, calls=0).run(picture(0.9), [True])
    assert network.sizes() == [USUAL.size]


def test_small_pictures_have_no_close_ups():
    assert CloseUps.may_need(USUAL)
    assert not CloseUps.may_need(NetworkInput((288, CLOSE_UP_SIDE), "NCHW"))
