"""Tests of running a shot in both directions."""

from __future__ import annotations

import numpy as np
import pytest

from lever_network import EYE, LongTrail, TrailNetwork, frame_of, last_steps
from vitascope.config.compute import InferenceSettings
from vitascope.frames import StereoLayout
from vitascope.gpu import AdaptiveBatchSizer
from vitascope.models.network import MatteEstimate
from vitascope.segmentation.matting import scene_cuts
from vitascope.segmentation.matting.levers import bidirectional, motion_smoothing, smaller_people
from vitascope.segmentation.matting.levers.bidirectional import BACKWARD_SCALE, EDGE_SCALE
from vitascope.segmentation.matting.shot_windows import FOLLOWING_FRAMES, WINDOW_FRAMES
from vitascope.segmentation.matting.stereo_agreement import StereoAgreement
from vitascope.segmentation.matting.stream import MattingOptions, StreamMatting

USUAL, BACK, NEAR, LARGE = (96, 144), (64, 96), (48, 72), (120, 180)


@pytest.fixture(autouse=True)
def nothing_comes_after(monkeypatch):
    """Turn off the steps after the merge of the directions; they have their own tests."""
    monkeypatch.setattr(smaller_people, "_LARGE", 2.0)
    monkeypatch.setattr(motion_smoothing, "mean_along_motion", lambda alpha, *_: alpha)
    monkeypatch.setattr(motion_smoothing, "missed_parts", lambda seen, *_: np.zeros_like(seen[:, :, 3]))


class Opinion(TrailNetwork):
    """Answers with an alpha that depends only on the width of the picture."""

    def __init__(self, **answers):
        super().__init__(size=USUAL)
        self.answers = answers

    def infer(self, images, state):
        self.calls.append(tuple(images.shape))
        state.seen = np.zeros((images.shape[1], images.shape[3] // 2, images.shape[4] // 2), np.float32)
        alpha = self.answers[{USUAL: "ahead", BACK: "back", NEAR: "back", LARGE: "edges"}[images.shape[3:]]]
        plane = np.full((images.shape[1], 1, *images.shape[3:]), alpha, np.float32)
        return [MatteEstimate(gain=0 * plane, offset=plane.copy()) for _ in images]


def mattes(
    frames,
    network,
    *,
    batch=1,
    waits=True,
    layout=StereoLayout.MONO,
    eyes=1,
    cuts=0.0,
    sizer=None,
    **inference,
):
    matting = StreamMatting(
        network,
        size=(EYE[0], EYE[1] * eyes),
        layout=layout,
        options=MattingOptions(
            scene_cut_threshold=cuts,
            warm_up_frames=0,
            inference=InferenceSettings(**{"bidirectional": True, **inference}),
        ),
        waits=waits,
        sizer=sizer,
    )
    matted = []
    for first in range(0, len(frames), batch):
        matted += matting.infer(
            [matting.find_cuts(matting.prepare([frame])) for frame in frames[first : first + batch]]
        )
    matted += matting.infer_rest()
    assert [one.frame.index for one in matted] == [frame.index for frame in frames]
    return np.stack([matting.refine(one).alpha for one in matted]).astype(float) / 255, matting.report()


def walk(count, *, step=12):
    return [frame_of([(0, step * index, 40, 24)], index=index) for index in range(count)]


def two_shots():
    """Make ten dark frames, then ten with bright stripes."""
    dark = [frame_of([(0, 150, 0, 20)], index=index) for index in range(10)]
    stripes = np.where(np.arange(EYE[1]) // 12 % 2, 230, 170).astype(np.uint8)
    bright = [
        frame.with_planes(
            (np.broadcast_to(stripes, EYE), *(np.full_like(plane, 60) for plane in frame.planes[1:]))
        )
        for frame in (frame_of([], index=10 + index) for index in range(10))
    ]
    return dark + bright


def test_the_way_back_knows_what_comes():
    """Check that the backward pass sees a person one frame before they come in.

    The network's memory shows half of what was bright one frame ago.
    """
    alphas, report = mattes(walk(6), TrailNetwork())
    one_way, _ = mattes(walk(6), TrailNetwork(), bidirectional=False)
    ahead = alphas[2, 60, 50]  # bright in frame 3
    assert one_way[2, 60, 50] == 0
    assert ahead > 0.03
    assert alphas[2, 60, 30] > 0.95
    # The eye has no more samples than the network's picture, so there is no larger look for edges.
    assert report.network_share == pytest.approx(2, rel=0.01)


def test_pictures_on_the_way_back_are_smaller_and_those_of_edges_larger():
    network = Opinion(ahead=0.0, back=0.0, edges=0.0)
    mattes(walk(3), network)
    assert tuple(side * BACKWARD_SCALE for side in USUAL) == BACK
    assert tuple(side * EDGE_SCALE for side in USUAL) == LARGE
    assert [(shape[0], shape[3:]) for shape in network.calls] == [(3, USUAL), (3, BACK), (3, LARGE)]


@pytest.mark.parametrize(("share", "size"), [(0.1, BACK), (0.15, BACK), (0.25, NEAR), (1.0, NEAR)])
def test_pictures_on_the_way_back_are_smaller_still_where_somebody_is_near(share, size, monkeypatch):
    monkeypatch.setattr(bidirectional, "NEAR_SIDE", max(NEAR))
    network = HalfOpinion(share=share, ahead=1.0, back=1.0, edges=1.0)
    mattes(walk(3), network)
    assert [shape[3:] for shape in network.calls] == [USUAL, size, LARGE]


class Comes(Opinion):
    """Sees a person on the left, wider in bright pictures.

    In the backward pass it sees them everywhere, except in its smallest pictures, where it sees nobody.
    """

    def __init__(self):
        super().__init__(ahead=0.0, back=1.0, edges=0.0)

    def infer(self, images, state):
        estimates, width = super().infer(images, state), images.shape[4]
        for seen, one in zip(images, estimates, strict=True):
            if images.shape[3:] == NEAR:
                one.offset[:] = 0
            if images.shape[3:] != BACK:
                near = round(width * (0.3 if seen.mean() > 0.5 else 0.1))
                place = np.s_[:near] if images.shape[3:] == USUAL else np.s_[width - near :]  # mirrored
                one.offset[..., place] = 1
        return estimates


@pytest.mark.parametrize("comes", [True, False])
def test_who_comes_near_or_goes_changes_the_pictures_on_the_way_back_little_by_little(comes, monkeypatch):
    monkeypatch.setattr(bidirectional, "NEAR_SIDE", max(NEAR))
    frames = [
        frame_of([(0, 0, 0, EYE[1])] if (n >= WINDOW_FRAMES + 4) == comes else [], index=n)
        for n in range(2 * WINDOW_FRAMES)
    ]
    alphas, _ = mattes(frames, Comes())
    seen = alphas[:, 60, 150] if comes else alphas[::-1, 60, 150]
    assert seen[0] > 0.95
    assert seen[-1] < 0.05
    assert np.abs(np.diff(seen)).max() < 0.1


class Sides(Opinion):
    """Records the columns of its pictures by size, and what it remembers; sees nobody."""

    def __init__(self):
        super().__init__(ahead=0.0, back=0.0, edges=0.0)
        self.columns, self.memory = {}, {}

    def infer(self, images, state):
        size = images.shape[3:]
        self.columns[size], self.memory[size] = images[0, 0].mean(axis=(0, 1)), state.seen
        estimates = super().infer(images, state)
        state.seen[..., : state.seen.shape[2] // 4] = 1  # of the last picture
        return estimates


def test_pictures_on_both_ways_back_are_mirrored_and_so_is_their_memory():
    network = Sides()
    mattes([frame_of([(0, 0, 60, 60)], index=index) for index in range(3)], network)
    ahead, back, large = (network.columns[size] for size in (USUAL, BACK, LARGE))
    assert ahead[:20].mean() > ahead[-20:].mean() + 0.1
    assert back[-20:].mean() > back[:20].mean() + 0.1
    assert large[-20:].mean() > large[:20].mean() + 0.1
    remembered = network.memory[LARGE]
    assert remembered[..., -10:].min() > 0.99
    assert remembered[..., :10].max() < 0.01


def test_somebody_near_in_an_eye_without_more_samples():
    frames = [frame_of([(0, 0, 0, 128)], index=index) for index in range(4)]
    alphas, report = mattes(frames, TrailNetwork())
    assert report.network_share == pytest.approx(1 + BACKWARD_SCALE**2, rel=0.01)
    assert alphas[:, :, :120].min() > 0.95
    assert alphas[:, :, 140:].max() < 0.05


def test_what_is_seen_in_mirrored_pictures_is_told_at_its_place():
    """Check that a result from mirrored pictures is mirrored back.

    The network judges each sample by itself, so both must agree.
    """
    frames = [frame_of([(0, 24, 40, 24)], index=index) for index in range(4)]
    alphas, _ = mattes(frames, TrailNetwork(size=USUAL))
    one_way, _ = mattes(frames, TrailNetwork(size=USUAL), bidirectional=False)
    assert abs(alphas - one_way).mean() < 0.01


class Hair(Opinion):
    """Sees a person on the left, and hair in pictures of some sizes: beside the person, or elsewhere."""

    def __init__(self, sizes, *, share, at=None):
        super().__init__(ahead=1.0, back=1.0, edges=1.0)
        self.sizes, self.share, self.at = sizes, share, share if at is None else at

    def infer(self, images, state):
        estimates = super().infer(images, state)
        size = images.shape[3:]
        edge, begin, end = (round(size[1] * at) for at in (self.share, self.at, self.at + 1 / 24))
        for one in estimates:
            # Both ways back get mirrored pictures.
            gain, offset = (plane if size == USUAL else plane[..., ::-1] for plane in (one.gain, one.offset))
            offset[..., edge:] = 0
            if size in self.sizes:
                gain[..., begin:end], offset[..., begin:end] = 1.0, 0.5 - images.mean()
        return estimates


@pytest.mark.parametrize(
    ("sizes", "share", "least", "most"),
    [
        ((BACK,), 0.5, 0.4, 0.6),
        ((USUAL,), 0.5, 0.4, 0.6),
        ((LARGE,), 0.5, 0, 0.1),  # seen in larger pictures alone: it may be gravel
        ((), 0.5, 0, 0.02),
        ((BACK,), 1 / 6, 0, 0.2),  # nobody near
    ],
)
def test_hair_beside_somebody_near_is_taken_from_who_sees_it(sizes, share, least, most):
    alphas, _ = mattes([frame_of([], index=index) for index in range(8)], Hair(sizes, share=share))
    beside = alphas[:, EYE[0] // 2, round(EYE[1] * (share + 1 / 48))]
    assert least <= beside.min() <= beside.max() <= most


def test_what_looks_like_hair_far_from_who_is_near_is_none():
    alphas, _ = mattes([frame_of([], index=index) for index in range(8)], Hair((USUAL,), share=0.5, at=0.8))
    assert alphas[:, EYE[0] // 2, round(EYE[1] * (0.8 + 1 / 48))].max() < 0.2


@pytest.mark.parametrize(("edges_mean", "shares"), [(0.5, (0.2, 0.3, 0.5)), (0.2, (0.8, 0.2, 0.0))])
def test_hair_is_taken_from_the_finer_of_two_answers_where_the_one_for_edges_misses_it(edges_mean, shares):
    def cells(*values):
        return [np.full((1, 1, 1, 1), value, np.float32) for value in values]

    found = bidirectional._with_hair(
        cells(0.2, 0.3, 0.5), cells(0.5, 0.4, edges_mean), cells(0.2, 0.1, 0.3), cells(1, 1, 1)
    )
    assert [float(one.item()) for one in found] == pytest.approx(shares, abs=1e-3)


@pytest.mark.parametrize(
    ("ahead", "back", "edges", "least", "most"),
    [
        (1.0, 1.0, 0.0, 0.99, 1),
        (0.0, 1.0, 1.0, 0.98, 1),
        (1.0, 0.0, 1.0, 0.98, 1),
        (1.0, 0.0, 0.0, 0.96, 1),
        (1.0, 0.5, 0.0, 0.98, 1),
        (0.6, 0.0, 0.0, 0, 0.1),
        (0.5, 0.5, 0.5, 0.49, 0.51),
    ],
)
def test_the_surer_direction_counts_and_somebody_more_than_nobody(ahead, back, edges, least, most):
    alphas, _ = mattes(walk(2), Opinion(ahead=ahead, back=back, edges=edges))
    assert least <= alphas.min() <= alphas.max() <= most


def test_where_directions_differ_the_larger_pictures_have_a_word():
    with_it, _ = mattes(walk(2), Opinion(ahead=0.8, back=0.0, edges=0.8))
    against, _ = mattes(walk(2), Opinion(ahead=0.8, back=0.0, edges=0.0))
    assert with_it.min() > against.max() + 0.1


class Told(Opinion):
    """Remembers a person everywhere; records what it remembers before it sees larger pictures."""

    told = None

    def infer(self, images, state):
        if images.shape[3:] == LARGE:
            self.told = state.seen
        estimates = super().infer(images, state)
        state.seen = np.ones_like(state.seen)
        return estimates


@pytest.mark.parametrize(
    ("ahead", "back", "told"), [(1.0, 1.0, 1), (0.0, 0.0, 1), (1.0, 0.0, 0), (0.0, 1.0, 0), (0.8, 0.7, 0.7)]
)
def test_larger_pictures_are_judged_without_a_memory_of_what_the_directions_differ_in(ahead, back, told):
    network = Told(ahead=ahead, back=back, edges=0.0)
    mattes(walk(3), network)
    assert network.told == pytest.approx(np.full_like(network.told, told), abs=1e-5)


class Moments(Opinion):
    """Sees a person, some cells wide, in the middle of larger pictures, in some frames only."""

    def __init__(self, frames, *, sure=1.0, ahead_from=None, cells=2):
        super().__init__(ahead=0.0, back=0.0, edges=0.0)
        self.frames, self.sure, self.ahead_from, self.cells = frames, sure, ahead_from, cells

    def infer(self, images, state):
        estimates = super().infer(images, state)
        if images.shape[3:] == USUAL and self.ahead_from is not None:
            for one in estimates[self.ahead_from :]:
                one.offset[:] = 1
        if images.shape[3:] != LARGE:
            return estimates
        half = LARGE[1] // 24 * self.cells // 2
        # From the last frame to the first, in one call.
        for frame, one in zip(range(len(images) - 1, -1, -1), estimates, strict=True):
            if frame in self.frames:
                one.offset[..., LARGE[1] // 2 - half : LARGE[1] // 2 + half] = self.sure
        return estimates


MIDDLE = np.s_[..., EYE[1] // 2 - 4 : EYE[1] // 2 + 4]


@pytest.mark.parametrize(
    ("frames", "sure", "least", "most"),
    [(range(7), 1.0, 0.98, 1), (None, 1.0, 0, 0.2), (range(7), 0.8, 0, 0.05)],
)
@pytest.mark.parametrize("at", [0, 3, 6])
def test_somebody_whom_larger_pictures_alone_show_is_there_if_they_are_sure_and_last(
    frames, sure, least, most, at
):
    alphas, _ = mattes(walk(7), Moments([at] if frames is None else frames, sure=sure))
    seen = alphas[at][MIDDLE]
    assert least <= seen.min() <= seen.max() <= most


@pytest.mark.parametrize(("cells", "is_there"), [(2, True), (4, False), (24, False)])
def test_somebody_whom_larger_pictures_alone_show_is_small(cells, is_there):
    """Check that only small people are believed from the larger pictures alone.

    Large ones may be the background between two people who part.
    """
    alphas, _ = mattes(walk(7), Moments(range(7), cells=cells))
    assert (alphas[3][MIDDLE].min() > 0.98) == is_there
    assert is_there or alphas[3].max() < 0.2


@pytest.mark.parametrize(("ahead_from", "is_there"), [(3, True), (6, True), (7, False), (None, False)])
def test_somebody_who_is_met_a_moment_later_is_there_before(ahead_from, is_there):
    """Check that larger pictures are believed if the forward pass sees the person later.

    It finds small people late. Larger pictures need only be fairly sure.
    """
    alphas, _ = mattes(walk(12), Moments(range(12), sure=0.85, ahead_from=ahead_from))
    assert (alphas[0][MIDDLE].min() > 0.7) == is_there
    assert is_there or alphas[0][MIDDLE].max() < 0.1


class Strip(Opinion):
    """Sees something two cells high in larger pictures alone, with these alphas from cell to cell."""

    def __init__(self, cells):
        super().__init__(ahead=0.0, back=0.0, edges=0.0)
        self.alpha = np.repeat(cells, 15).reshape(-1, 2).mean(axis=1)  # a cell is 7.5 samples wide

    def infer(self, images, state):
        estimates = super().infer(images, state)
        if images.shape[3:] == LARGE:
            first = LARGE[1] // 2 - 15
            for one in estimates:
                one.offset[..., 60:75, first : first + len(self.alpha)] = self.alpha
        return estimates


@pytest.mark.parametrize(
    ("cells", "is_there"),
    [
        ([1.0] * 8, True),  # people far away in a row
        ([0.75, 1.0, 1.0, 0.75] * 2, False),  # a motorcycle
        ([0.0, 1.0, 1.0, 0.75], True),  # a small person
    ],
)
def test_what_larger_pictures_alone_show_wider_than_somebody_small_is_sure_on_average(cells, is_there):
    alphas, _ = mattes(walk(7), Strip(cells))
    rows = slice(round(63 / LARGE[0] * EYE[0]), round(72 / LARGE[0] * EYE[0]))
    seen = alphas[3][rows, EYE[1] // 2 - 4 : EYE[1] // 2 + 4]
    assert (seen.min() > 0.9) == is_there, seen
    assert is_there or seen.max() < 0.5, seen


def test_nobody_lasts_in_a_shot_of_one_frame():
    alphas, _ = mattes(walk(1), Moments([0]))
    assert alphas[MIDDLE].max() <= 0.2


def test_in_a_shots_first_frames_that_the_way_there_sees_nobody_counts_less():
    """Check that "nobody" from the forward pass counts less in the first frames.

    A person half seen in the backward pass is believed there. A person who leaves is only seen in the forward
    pass, and stays.
    """
    alphas, _ = mattes(walk(WINDOW_FRAMES + 6), Opinion(ahead=0.0, back=0.8, edges=0.0))
    means = alphas.mean(axis=(1, 2))
    assert means[0] > means[1] > means[2] > means[3] + 0.02
    assert means[3:] == pytest.approx(means[3], abs=0.01)  # also after the window
    alphas, _ = mattes(walk(6), Opinion(ahead=0.8, back=0.0, edges=0.0))
    means = alphas.mean(axis=(1, 2))
    assert means == pytest.approx(means[0], abs=0.01)


def test_the_first_frames_are_those_of_each_shot():
    alphas, _ = mattes(two_shots(), Opinion(ahead=0.0, back=0.8, edges=0.0), cuts=0.35)
    means = alphas.mean(axis=(1, 2))
    assert means[10:14] == pytest.approx(means[:4], abs=0.01)
    assert means[9] < means[10] - 0.02


class HalfOpinion(Opinion):
    """Gives its answers in the left part of the picture only."""

    def __init__(self, *, share, **answers):
        super().__init__(**answers)
        self.share = share

    def infer(self, images, state):
        estimates = super().infer(images, state)
        seen = round(images.shape[4] * self.share)
        for one in estimates:
            if images.shape[3:] == USUAL:
                one.offset[..., seen:] = 0
            else:  # mirrored
                one.offset[..., : images.shape[4] - seen] = 0
        return estimates


def test_the_edge_of_somebody_whom_one_direction_sees_is_theirs_too():
    """Check that a person seen in one direction keeps their edge.

    A cell with little of them in it is as sure of them as its neighbours.
    """
    alphas, _ = mattes(walk(2), HalfOpinion(share=31.25 / 96, ahead=1.0, back=0.0, edges=0.0))
    seen = round(EYE[1] * 31.25 / 96)
    assert alphas[..., : seen - 4].min() > 0.95
    assert alphas[..., seen + 4 :].max() < 0.05


class Column(Opinion):
    """Sees a person in the forward pass alone: some cells wide, from the middle on, in some frames."""

    def __init__(self, *, cells, frames):
        super().__init__(ahead=1.0, back=0.0, edges=0.0)
        self.cells, self.frames = cells, frames

    def infer(self, images, state):
        estimates = super().infer(images, state)
        if images.shape[3:] == USUAL:
            middle, cell = USUAL[1] // 2, USUAL[1] // 24
            for at, one in enumerate(estimates):
                one.offset[..., :middle] = one.offset[..., middle + self.cells * cell :] = 0
                if at not in self.frames:
                    one.offset[:] = 0
        return estimates


@pytest.mark.parametrize(
    ("cells", "frames", "is_whole"),
    [(4, range(7), True), (3, range(7), True), (2, range(7), False), (4, [3], False)],
)
def test_somebody_whom_the_way_there_alone_shows_is_whole_if_they_are_solid_and_last(cells, frames, is_whole):
    """Check that a person whom only the forward pass sees is whole if they are solid and last several frames.

    This is somebody near the camera who leaves.
    """
    alphas, _ = mattes(walk(7), Column(cells=cells, frames=frames))
    columns = slice(EYE[1] // 2 + 4, EYE[1] // 2 + 8)
    assert (alphas[3, 20:-20, columns].mean() > 0.99) == is_whole


def test_edges_count_where_they_agree():
    alphas, _ = mattes(walk(2), Opinion(ahead=0.9, back=0.9, edges=0.96))
    assert 0.92 < alphas.min() <= alphas.max() < 0.95
    alphas, _ = mattes(walk(2), Opinion(ahead=0.9, back=0.9, edges=0.4))
    assert alphas.min() > 0.89


def test_the_way_back_does_not_know_what_the_way_there_saw():
    """Check that the backward pass starts without the memory of the forward pass.

    A person who left is in none of its first frames, but the forward pass still remembers them.
    """
    network = TrailNetwork()
    frames = [*walk(3), *(frame_of([], index=index) for index in range(3, 9))]
    alphas, _ = mattes(frames, network)
    one_way, _ = mattes(frames, TrailNetwork(), bidirectional=False)
    assert alphas[3, 60, 30] < one_way[3, 60, 30]


@pytest.mark.parametrize("inference", [{}, {"skip_static": 0.002}])
@pytest.mark.parametrize("count", [1, 26, 45])
def test_mattes_do_not_depend_on_how_frames_come_in_batches(count, inference):
    frames = walk(count, step=4)
    whole, _ = mattes(frames, LongTrail(), batch=count, **inference)
    for batch in (1, 7, 16):
        cut, _ = mattes(frames, LongTrail(), batch=batch, **inference)
        np.testing.assert_array_equal(cut, whole)


def test_nothing_is_known_of_the_next_shot():
    alphas, _ = mattes(two_shots(), LongTrail(), cuts=0.35)
    assert alphas[:10, :, :140].max() == 0
    assert alphas[10:, :, 13:23].min() > 0.9


def test_a_long_shot_is_seen_in_stretches():
    network = TrailNetwork()
    count = 2 * WINDOW_FRAMES + 3
    mattes(walk(count, step=2), network)
    # The first window has all following frames, the second three, the last none.
    assert sum(shape[0] for shape in network.calls) == 2 * count + FOLLOWING_FRAMES + 3


def test_two_eyes_are_seen_in_all_sizes_and_agree_last(monkeypatch):
    steps = last_steps(monkeypatch)
    network = Opinion(ahead=1.0, back=1.0, edges=1.0)
    frames = [frame_of([(0, 8, 40, 24), (1, 8, 40, 24)], index=index, eyes=2) for index in range(3)]
    alphas, _ = mattes(frames, network, layout=StereoLayout.SIDE_BY_SIDE, eyes=2)
    assert alphas.min() > 0.98
    assert {shape[3:] for shape in network.calls} == {USUAL, BACK, LARGE}
    assert steps == ["smoothed", *[(2, 3, *EYE)] * 3]  # fewer than twice the samples


def test_what_two_eyes_are_half_sure_of_they_agree_about():
    class Divided(Opinion):
        def infer(self, images, state):
            estimates = super().infer(images, state)
            for one in estimates:
                one.offset[1] -= 0.3
            return estimates

    frames = []
    for index in range(3):
        frame = frame_of([(0, 8, 40, 24)], index=index, eyes=2, noise=20)
        left = frame.planes[0][:, : EYE[1]]  # the right eye sees the same; its texture matches
        frames.append(frame.with_planes((np.hstack([left, left]), *frame.planes[1:])))
    apart = {}
    for agreement in (False, True):
        alphas, _ = mattes(
            frames,
            Divided(ahead=0.8, back=0.8, edges=0.8),
            layout=StereoLayout.SIDE_BY_SIDE,
            eyes=2,
            stereo_agreement=agreement,
        )
        left, right = np.split(alphas, 2, axis=2)
        apart[agreement] = np.abs(left - right)[:, 20:-20, 20:-20].mean()
    assert apart[False] > 0.25
    assert apart[True] < 0.02


def test_eyes_for_which_memory_runs_out_agree_in_fewer_frames_at_once(monkeypatch):
    inner, tried, said = StereoAgreement.agree, [], []

    def scarce(self, estimates, images):
        tried.append(len(estimates))
        if len(estimates) > 2:
            raise MemoryError("no room")
        return inner(self, estimates, images)

    rows = [(0, 8, 40, 24), (1, 8, 40, 24)]
    frames = [frame_of(rows, index=index, eyes=2) for index in range(11)]
    layout = {"layout": StereoLayout.SIDE_BY_SIDE, "eyes": 2, "batch": 11}
    expected, _ = mattes(frames, LongTrail(), **layout)
    monkeypatch.setattr(StereoAgreement, "agree", scarce)
    sizer = AdaptiveBatchSizer(
        16, max_batch_size=16, growing=False, on_shortage=lambda error, count: said.append(count)
    )
    alphas, _ = mattes(frames, LongTrail(), sizer=sizer, **layout)
    np.testing.assert_array_equal(alphas, expected)
    assert tried == [4, 2, 2, 2, 2, 2, 1]
    assert said == [2]


@pytest.mark.parametrize(
    "other", [{"waits": False}, {"region": "crop"}, {"scales": (0.5, 1.0)}, {"early_exit": "smaller"}]
)
def test_a_shot_is_seen_one_way_live_and_where_parts_and_sizes_are(other):
    network, plain = TrailNetwork(), TrailNetwork()
    alphas, _ = mattes(walk(5), network, **other)
    expected, _ = mattes(walk(5), plain, bidirectional=False, **other)
    np.testing.assert_array_equal(alphas, expected)
    assert network.calls == plain.calls


def test_a_network_without_memory_is_asked_once():
    network = TrailNetwork(recurrent=False)
    mattes(walk(4), network)
    assert len(network.calls) == 4


def test_an_error_leaves_no_search_for_motion_behind(monkeypatch):
    cancelled = []

    def missing(*_, **__):
        raise ValueError("the network is gone")

    monkeypatch.setattr(bidirectional.Bidirectional, "_as_one", missing)
    monkeypatch.setattr(motion_smoothing.Motion, "cancel", lambda motion: cancelled.append(len(motion.moves)))
    with pytest.raises(ValueError, match="the network is gone"):
        mattes(walk(5), TrailNetwork())
    assert cancelled == [4]


def test_on_the_cpu_motion_is_looked_for_beside_every_look_back(monkeypatch):
    steps = []
    watch, back = motion_smoothing.MotionSmoothing.watch, bidirectional.Bidirectional._seen_far_back

    def watching(*given):
        steps.append("motion")
        return watch(*given)

    def looking(*given, **wishes):
        steps.append("back")
        return back(*given, **wishes)

    monkeypatch.setattr(motion_smoothing.MotionSmoothing, "watch", watching)
    monkeypatch.setattr(bidirectional.Bidirectional, "_seen_far_back", looking)
    mattes(walk(WINDOW_FRAMES + 5, step=1), TrailNetwork())
    assert steps == ["motion", "back"] * 2


@pytest.mark.parametrize(
    ("back", "much_new", "is_restored"), [(0.6, 1.0, False), (0.0, 1.0, True), (0.0, -1.0, False)]
)
def test_missed_parts_are_restored_where_looks_differ_and_nothing_large_passes(
    back, much_new, is_restored, monkeypatch
):
    monkeypatch.setattr(scene_cuts, "MUCH_NEW", much_new)

    def made(change):
        monkeypatch.setattr(
            motion_smoothing, "missed_parts", lambda seen, *_: np.full_like(seen[:, :, 3], change)
        )
        network = Opinion(ahead=0.6, back=back, edges=0.6)
        return mattes(walk(5, step=1), network, cuts=0.35)[0]

    before = made(0.0)
    assert made(0.25) - before == pytest.approx(np.full_like(before, 0.25 * is_restored), abs=0.01)


@pytest.mark.parametrize("agreement", [False, True])
def test_each_eye_is_smoothed(monkeypatch, agreement):
    calls = []
    monkeypatch.setattr(motion_smoothing, "mean_along_motion", lambda alpha, *_: calls.append(1) or alpha)
    frames = [frame_of([(0, 12, 40, 24)], index=index, eyes=2) for index in range(3)]
    mattes(
        frames,
        TrailNetwork(size=USUAL),
        layout=StereoLayout.SIDE_BY_SIDE,
        eyes=2,
        stereo_agreement=agreement,
    )
    assert calls
