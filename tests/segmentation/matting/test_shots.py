"""Tests of a network's memory from frame to frame: over cuts, small calls, and a GPU that runs out of memory."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lever_network import EYE, TrailNetwork, TrailState, frame_of
from vitascope.config.compute import InferenceSettings
from vitascope.errors import DeviceMemoryError
from vitascope.frames import StereoLayout
from vitascope.gpu import AdaptiveBatchSizer
from vitascope.models.network import MatteEstimate, NetworkInput
from vitascope.segmentation.matting.fisheye import FisheyeViews
from vitascope.segmentation.matting.shots import ShotInference, next_part
from vitascope.segmentation.matting.stream import MattingOptions, StreamMatting
from vitascope.vr.projection import Equirectangular


class HistoryState:
    """Holds the pictures seen since the last reset."""

    def __init__(self):
        self.seen = []

    def reset(self):
        self.seen = []


class HistoryNetwork:
    """Answers with the number of pictures that its state has seen; fails if a call is too large."""

    name = "history"

    def __init__(self, *, most=100, recurrent=True):
        self.recurrent, self.most = recurrent, most
        self.histories = []
        self.calls = []

    def new_state(self):
        return HistoryState()

    def infer(self, images, state):
        if len(images) > self.most:
            raise DeviceMemoryError(f"{len(images)} frames do not fit")
        self.calls.append(len(images))
        answers = []
        for image in images:
            self.histories.append((float(image.flat[0]), tuple(state.seen)))
            state.seen = [*state.seen, float(image.flat[0])]
            answers.append(MatteEstimate(alpha=np.full((1, 1, 1), len(state.seen), np.float32)))
        return answers


def histories(starts, *, most=100, most_frames=None, calls=1):
    """Return what the network had seen before each frame, and the reported shortages."""
    network = HistoryNetwork(most=most)
    said = []
    sizer = AdaptiveBatchSizer(
        most_frames or 100,
        max_batch_size=most_frames or 100,
        growing=False,
        on_shortage=lambda error, count: said.append(count),
    )
    shots = ShotInference(network, warm_up_frames=2, sizer=sizer)
    images = np.arange(len(starts), dtype=np.float32).reshape(-1, 1, 1, 1, 1)
    for part in np.array_split(np.arange(len(starts)), calls):
        if len(part):
            answers = shots.run(images[part], [starts[n] for n in part])
            assert len(answers) == len(part)
    return dict(network.histories), said


@given(
    starts=st.lists(st.booleans(), min_size=1, max_size=24),
    most_frames=st.integers(1, 24),
    most=st.integers(1, 24),
    calls=st.integers(1, 4),
)
def test_every_frame_sees_its_shot_and_nothing_else(starts, most_frames, most, calls):
    """Check that histories equal those of one large call, however calls are cut, and whatever did not fit."""
    expected, _ = histories(starts)
    actual, _ = histories(starts, most=most, most_frames=most_frames, calls=calls)
    assert actual == expected


def test_a_cut_within_a_call_that_does_not_fit():
    starts = [False] * 4 + [True] + [False] * 11
    seen, said = histories(starts, most=7)
    assert said == [6]
    assert seen[3.0] == (0.0, 0.0, 0.0, 1.0, 2.0)  # warmed up twice with the first picture
    assert seen[4.0] == (4.0, 4.0)
    assert seen[15.0] == (4.0, 4.0, *map(float, range(4, 15)))


def test_a_single_frame_that_does_not_fit_is_an_error():
    with pytest.raises(DeviceMemoryError, match="do not fit"):
        histories([False, False], most=0)


def test_without_a_sizer_a_shortage_is_an_error():
    shots = ShotInference(HistoryNetwork(most=2, recurrent=False), warm_up_frames=0)
    with pytest.raises(DeviceMemoryError):
        shots.run(np.zeros((3, 1, 1, 1, 1), np.float32), [False] * 3)


def test_parts_end_at_shots_and_at_the_bound():
    starts = [True, False, False, True, False]
    assert [next_part(starts, first, 2) for first in (0, 2, 3)] == [2, 3, 5]
    assert next_part(starts, 0, 100) == 3


@pytest.mark.parametrize("part", ["show", "take_back"])
def test_where_fisheye_pictures_do_not_fit_the_call_is_made_again_with_fewer(monkeypatch, part):
    """Check that a shortage of memory around the network costs no frame, and advances no state twice."""
    views = FisheyeViews(Equirectangular(180, 180), NetworkInput((8, 8), "NCHW"), (8, 8))
    inner, fails = getattr(FisheyeViews, part), [True]

    def scarce(self, given):
        if fails and (part == "take_back" or len(given) > 2):
            fails.clear()
            raise MemoryError("no room")
        return inner(self, given)

    monkeypatch.setattr(FisheyeViews, part, scarce)
    network, said = HistoryNetwork(), []
    sizer = AdaptiveBatchSizer(
        4, max_batch_size=4, growing=False, on_shortage=lambda error, count: said.append(count)
    )
    shots = ShotInference(network, warm_up_frames=0, sizer=sizer, fisheye=views)
    images = np.arange(8, dtype=np.float32).reshape(8, 1, 1, 1, 1) * np.ones((1, 1, 3, 8, 8), np.float32)
    answers = shots.run(images, [False] * 8)
    assert not fails
    assert said == [2]
    assert [answer.alpha.max() for answer in answers] == pytest.approx(range(1, 9))
    assert [seen for seen, _ in network.histories] == list(range(8))


class FollowingTrailState(TrailState):
    """Says whether people may be followed."""

    follows_people = False

    def reset(self):
        super().reset()
        self.follows_people = False

    def follow_people(self):
        self.follows_people = True


class FollowingTrail(TrailNetwork):
    """Records for each call its number of frames, and whether people may be followed in it."""

    def new_state(self):
        return FollowingTrailState()

    def infer(self, images, state):
        answers = super().infer(images, state)
        self.calls[-1] = len(images), isinstance(state, FollowingTrailState) and state.follows_people
        return answers


@pytest.mark.parametrize(
    ("inference", "follows"),
    [
        ({}, True),
        ({"region": "crop"}, False),
        ({"scales": (1, 1.5)}, False),
        ({"bidirectional": True}, False),
    ],
)
def test_people_are_followed_where_whole_pictures_are_seen_in_their_order(inference, follows):
    network = FollowingTrail()
    options = MattingOptions(
        warm_up_frames=1, look_ahead_frames=2, inference=InferenceSettings.model_validate(inference)
    )
    stream = StreamMatting(network, size=EYE, layout=StereoLayout.MONO, options=options)
    frames = [frame_of([(0, 40 + index, 30, 60)], index=index, noise=2) for index in range(5)]
    matted = [*stream.infer([stream.find_cuts(stream.prepare(frames))]), *stream.infer_rest()]
    assert len(matted) == 5
    assert any(may_follow for _, may_follow in network.calls) == follows
    if follows:
        assert network.calls[-1] == (5, True)
        assert not network.calls[0][1]  # the beginning of the shot is computed whole
