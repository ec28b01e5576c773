"""Tests of the memory at the start of a shot, made from its first picture and from the next ones."""

from __future__ import annotations

from itertools import pairwise

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from skimage import data

from lever_network import EYE, LongTrail, TrailNetwork, TrailState, frame_of
from vitascope.config.compute import InferenceSettings
from vitascope.errors import DeviceMemoryError
from vitascope.frames import StereoLayout
from vitascope.gpu import AdaptiveBatchSizer
from vitascope.gpu.interchange import to_numpy
from vitascope.models.network import MatteEstimate
from vitascope.models.rvm.rvm import RvmNetwork
from vitascope.segmentation.matting.batch import Batch
from vitascope.segmentation.matting.estimates import small_alpha
from vitascope.segmentation.matting.look_ahead import LOOK_AHEAD_SIDE, SETTLING_SIDE, look_ahead
from vitascope.segmentation.matting.scene_cuts import Change
from vitascope.segmentation.matting.shots import ShotInference
from vitascope.segmentation.matting.stream import MattingOptions, StreamMatting
from vitascope.segmentation.people.kept import KeptPeople


class PastState(TrailState):
    """Remembers the numbers of the pictures seen."""

    def __init__(self):
        super().__init__()
        self.past = ()

    def reset(self):
        self.past = ()

    def take(self, state, share):
        pass


class PastNetwork(TrailNetwork):
    """Records what its memory held before each picture; fails if a call is too large."""

    def __init__(self, most=100):
        super().__init__()
        self.most, self.pasts = most, {}

    def new_state(self):
        return PastState()

    def infer(self, images, state):
        if len(images) > self.most:
            raise DeviceMemoryError(f"{len(images)} frames do not fit")
        answers = []
        for image in images:
            number = int(image.flat[0])
            self.pasts[number] = state.past
            state.past = (*state.past, number)
            plane = np.zeros((1, 1, 4, 4), np.float32)
            answers.append(MatteEstimate(gain=plane, offset=plane))
        return answers


def pasts(starts, *, look_ahead_frames, most=100, calls=1, warm_up=0):
    """Return what the network saw before each frame; each call of the stream gets whole beginnings."""
    network = PastNetwork(most)
    sizer = AdaptiveBatchSizer(100, max_batch_size=100, growing=False)
    shots = ShotInference(network, warm_up_frames=warm_up, look_ahead_frames=look_ahead_frames, sizer=sizer)
    images = np.arange(len(starts), dtype=np.float32).reshape(-1, 1, 1, 1, 1) * np.ones(
        (1, 1, 3, 4, 4), np.float32
    )
    begins = [n for n, starts_shot in enumerate(starts) if starts_shot or n == 0]
    allowed = [
        n
        for n in range(len(starts))
        if not any(b < n < b + look_ahead_frames and n not in begins for b in begins)
    ]
    cuts = sorted({0, *allowed[:: max(len(allowed) // calls, 1)], len(starts)})
    for first, end in pairwise(cuts):
        assert len(shots.run(images[first:end], starts[first:end])) == end - first
    return network.pasts


@given(
    starts=st.lists(st.booleans(), min_size=1, max_size=24),
    frames=st.integers(0, 9),
    most=st.integers(1, 24),
    calls=st.integers(1, 4),
)
def test_every_frame_sees_its_shots_first_frames_backwards_and_then_what_came_before(
    starts, frames, most, calls
):
    """Check calls of all sizes, and calls that do not fit into memory."""
    seen = pasts(starts, look_ahead_frames=frames, most=most, calls=calls)
    begins = [n for n, starts_shot in enumerate(starts) if starts_shot or n == 0]
    for number in range(len(starts)):
        begin = max(n for n in begins if n <= number)
        end = min([n for n in begins if n > begin] + [len(starts), begin + frames])
        back = tuple(range(begin, end))[::-1] if end - begin > 1 else ()
        assert seen[number] == (*back, *range(begin, number))


def test_frames_that_are_left_out_are_not_made_up_for_by_later_ones():
    network = PastNetwork()
    shots = ShotInference(network, warm_up_frames=0, look_ahead_frames=4)
    images = np.arange(4, dtype=np.float32).reshape(-1, 1, 1, 1, 1) * np.ones((1, 1, 3, 4, 4), np.float32)
    shots.run(images, [True, False, False, False], indices=[10, 13, 14, 20])
    assert network.pasts[0] == (1, 0)


class Sizes(TrailNetwork):
    def __init__(self, **options):
        super().__init__(**options)
        self.shown = []

    def infer(self, images, state):
        self.shown.append(images.shape)
        return super().infer(images, state)


def test_pictures_are_seen_small_and_the_memory_is_the_large_ones():
    network = Sizes()
    pictures = np.zeros((5, 2, 3, 288, 1024), np.float32)
    state, alpha = look_ahead(network, pictures, calls=2, most=3)
    assert network.shown == [
        *[(1, 2, 3, 108, SETTLING_SIDE)] * 2, (3, 2, 3, 144, LOOK_AHEAD_SIDE), (2, 2, 3, 144, LOOK_AHEAD_SIDE)
    ]  # fmt: skip
    assert state.seen.shape == (2, 144, 512)
    assert alpha.shape == (2, 144, LOOK_AHEAD_SIDE)


class Cramped(Sizes):
    """Fails if a call has more than one large picture."""

    def infer(self, images, state):
        if len(images) > 1 and images.shape[-1] > LOOK_AHEAD_SIDE:
            raise DeviceMemoryError(f"{len(images)} frames do not fit")
        return super().infer(images, state)


@pytest.mark.parametrize("make", [Sizes, Cramped])
def test_a_frame_amid_a_shot_in_which_much_is_new_is_seen_small_first(make):
    network = make()
    sizer = AdaptiveBatchSizer(100, max_batch_size=100, growing=False)
    shots = ShotInference(network, warm_up_frames=0, sizer=sizer, settles_again=True)
    pictures = np.zeros((8, 1, 3, 288, 1024), np.float32)
    frames = [frame_of([], index=index) for index in range(8)]
    changes = {0: Change.NEW_SHOT, 2: Change.MUCH_IS_NEW, 5: Change.NEW_SHOT, 6: Change.MUCH_IS_NEW}
    shots.estimate(Batch(frames, pictures, [changes.get(at, Change.SMALL) for at in range(8)]))
    widths = [width for count, *_, width in network.shown for _ in range(count)]
    assert widths == [1024] * 2 + [LOOK_AHEAD_SIDE] + [1024] * 4 + [LOOK_AHEAD_SIDE] + [1024] * 2
    assert shots.state.seen.shape == (1, 144, 512)


class Opinions(TrailNetwork):
    """Sees squares of given alpha: ``alone`` in a call of one picture, ``ahead`` in a call of several."""

    def __init__(self, alone, ahead):
        super().__init__()
        self.opinions = {True: alone, False: ahead}

    def infer(self, images, state):
        height, width = images.shape[3:]
        answers = []
        for _ in images:
            offset = np.zeros((1, 1, height, width), np.float32)
            for left, alpha in self.opinions[len(images) == 1].items():
                offset[..., height // 4 : height * 3 // 4, int(left * width) : int((left + 0.2) * width)] = (
                    alpha
                )
            # Its memory says in which kind of call it was made.
            state.seen = np.full((1, -(-height // 2), -(-width // 2)), float(len(images) == 1), np.float32)
            answers.append(MatteEstimate(gain=0 * offset, offset=offset))
        return answers


@pytest.mark.parametrize(
    ("alone", "ahead", "settled_at"),
    [
        ({0.1: 1.0}, {0.1: 1.0}, ()),
        ({}, {0.1: 1.0}, ()),  # only seen ahead, with certainty: believed
        ({}, {0.1: 0.6}, (0.2,)),  # not certain: there the first picture decides
        ({0.1: 1.0}, {}, (0.2,)),
        ({0.1: 0.7}, {}, ()),
        ({0.1: 1.0}, {0.6: 1.0}, (0.2,)),
        ({0.1: 0.7}, {0.6: 0.6}, (0.7,)),
    ],
)
def test_who_is_seen_by_one_way_alone_is_believed_if_that_one_is_sure(alone, ahead, settled_at):
    pictures = np.zeros((4, 1, 3, 96, 192), np.float32)
    state, _ = look_ahead(Opinions(alone, ahead), pictures, calls=3, most=4)
    row = state.seen[0, state.seen.shape[1] // 2]
    for place in (0.2, 0.7):
        assert row[int(place * len(row))] == pytest.approx(float(place in settled_at), abs=0.01)


def alphas(count, *, batch, frames, cuts=0.35, **inference):
    """Compute mattes, in batches, of a person who walks through three shots, the last of them short."""
    matting = StreamMatting(
        LongTrail(),
        size=EYE,
        layout=StereoLayout.MONO,
        options=MattingOptions(
            scene_cut_threshold=cuts,
            warm_up_frames=0,
            look_ahead_frames=frames,
            inference=InferenceSettings(**inference),
        ),
    )
    shown = []
    for index in range(count):
        large = 10 <= index < 27
        frame = frame_of([(0, 8 + 5 * index, 30, 40)], index=index)
        if large:  # in another place
            stripes = np.where(np.arange(EYE[1]) // 12 % 2, 150, 30).astype(np.uint8)
            luma = np.maximum(frame.planes[0], stripes)
            frame = frame.with_planes((luma, *(np.full_like(plane, 60) for plane in frame.planes[1:])))
        shown.append(frame)
    matted = []
    for first in range(0, count, batch):
        matted += matting.infer(
            [matting.find_cuts(matting.prepare([frame])) for frame in shown[first : first + batch]]
        )
    matted += matting.infer_rest()
    assert [one.frame.index for one in matted] == list(range(count))
    assert len(matting.cut_pts) == (2 if count > 27 else int(count > 10))
    return np.stack([matting.refine(one).alpha for one in matted]), [one.shot for one in matted]


@pytest.mark.parametrize("inference", [{}, {"skip_static": 0.002}, {"scales": (0.5, 1.0)}])
@pytest.mark.parametrize("count", [1, 5, 13, 30])
def test_mattes_do_not_depend_on_how_frames_come_in_batches(count, inference):
    whole, shots = alphas(count, batch=count, frames=8, **inference)
    for batch in (1, 3, 4, 16):
        cut, own_shots = alphas(count, batch=batch, frames=8, **inference)
        assert own_shots == shots
        np.testing.assert_array_equal(cut, whole)
    without, _ = alphas(count, batch=4, frames=0, **inference)
    assert count == 1 or (without != whole).any()


def passing(count, size):
    """Make frames of a scene in front of which something large passes."""
    scenes = (data.astronaut(), data.coffee())
    behind, before = (cv2.cvtColor(cv2.resize(one, size[::-1]), cv2.COLOR_RGB2GRAY) for one in scenes)
    for index in range(count):
        frame, place = (
            frame_of([], index=index, size=size),
            slice(max(70 * index - 400, 0), max(70 * index - 200, 0)),
        )
        luma = behind.copy()
        luma[:, place] = before[:, place]
        yield frame.with_planes((luma, *frame.planes[1:]))


def of_passing(options, *, batch, **given):
    """Compute mattes of such frames, in batches; also return the shapes of the network's calls."""
    size = (288, 720)
    network, frames = Sizes(size=size), list(passing(16, size))
    matting = StreamMatting(network, size=size, layout=StereoLayout.MONO, options=options, **given)
    matted = []
    for first in range(0, 16, batch):
        matted += matting.infer(
            [matting.find_cuts(matting.prepare([frame])) for frame in frames[first : first + batch]]
        )
    matted += matting.infer_rest()
    assert len(matting.cut_pts) == 0
    return np.stack([matting.refine(one).alpha for one in matted]), network.shown


@pytest.mark.parametrize(
    ("options", "waits", "is_seen_small"),
    [
        ({}, True, True),
        ({"look_ahead_frames": 0}, True, False),
        ({"scene_cut_threshold": 0}, True, False),
        ({"inference": InferenceSettings(bidirectional=True)}, True, False),
        ({}, False, False),
    ],
)
def test_what_passes_is_seen_small_first_in_films_seen_once(options, waits, is_seen_small):
    given = MattingOptions(**({"warm_up_frames": 0, "look_ahead_frames": 1} | options))
    whole, parts = (of_passing(given, batch=batch, waits=waits) for batch in (16, 3))
    np.testing.assert_array_equal(whole[0], parts[0])
    for _, shown in (whole, parts):
        assert any(shape[-1] == LOOK_AHEAD_SIDE for shape in shown) == is_seen_small


def test_who_is_kept_is_matted_as_without_keeping_where_something_passes():
    given = MattingOptions(warm_up_frames=0, look_ahead_frames=1)
    everybody, shown = of_passing(given, batch=3)
    kept, shown_to_keep = of_passing(given, batch=3, around=lambda inner, _: KeptPeople(inner, ()))
    np.testing.assert_array_equal(kept, everybody)
    assert sorted(shown_to_keep) == sorted(shown)
    assert any(shape[-1] == LOOK_AHEAD_SIDE for shape in shown)


def walk_in(count, size=(216, 384)):
    """Make pictures and alpha, [T, ...], of a photographed person who comes in from the right, in front of a wall."""
    person = data.astronaut()[:, 60:].astype(np.float32) / 255
    height, width = size
    small = cv2.resize(person, (height, height), interpolation=cv2.INTER_AREA)
    pictures = np.full((count, 1, 3, height, width), 0.35, np.float32)
    for step in range(count):
        x = width - 60 - 14 * step
        seen = small[:, : max(width - x, 0)]
        pictures[step, 0, :, :, x : x + seen.shape[1]] = seen.transpose(2, 0, 1)[..., : width - x]
    return pictures


@pytest.mark.fetched_model
def test_a_frame_is_matted_alike_whatever_calls_it_came_in(rvm_model_path):
    network = RvmNetwork(rvm_model_path, downsample_ratio=1.0, threads=2)
    pictures, found = walk_in(6, (112, 192)), []
    try:
        for most in (1, 4, 6):
            sizer = AdaptiveBatchSizer(most, max_batch_size=most, growing=False)
            shots = ShotInference(network, warm_up_frames=3, look_ahead_frames=4, sizer=sizer)
            estimates = shots.run(pictures, [True] + [False] * 5)
            found.append(np.stack([estimate.offset for estimate in estimates]))
    finally:
        network.close()
    for other in found[1:]:
        np.testing.assert_allclose(other, found[0], atol=2e-3)


@pytest.mark.cuda
@pytest.mark.fetched_model
@pytest.mark.parametrize("precision", ["fp32", "mixed"])
def test_a_shot_begins_and_settles_again_on_a_gpu_as_on_the_processor(rvm_model_path, precision):
    import cupy

    from vitascope.models.rvm.torch_network import RvmTorchNetwork

    pictures, alphas_of = walk_in(8, (432, 768)), {}
    networks = {
        "processor": RvmNetwork(rvm_model_path, downsample_ratio=1.0),
        "gpu": RvmTorchNetwork(rvm_model_path, device="cuda:0", precision=precision, downsample_ratio=1.0),
    }
    for name, network in networks.items():
        wanted = network.input_for((432, 768))
        shown = pictures.astype(wanted.dtype)
        shots = ShotInference(network, warm_up_frames=3, look_ahead_frames=8, settles_again=True)
        frames = [frame_of([], index=index) for index in range(8)]
        images = cupy.asarray(shown) if name == "gpu" else shown
        try:
            changes = [Change.NEW_SHOT, *[Change.SMALL] * 4, *[Change.MUCH_IS_NEW] * 3]
            estimates = shots.estimate(Batch(frames, images, changes))
            alphas_of[name] = np.stack(
                [
                    to_numpy(small_alpha(estimate, picture, wanted))
                    for estimate, picture in zip(estimates, cupy.asarray(shown), strict=True)
                ]
            )
        finally:
            network.close()
    assert np.abs(alphas_of["gpu"] - alphas_of["processor"]).mean() < 2e-3


@pytest.mark.cuda
@pytest.mark.parametrize("size", [(96, 192), (288, 1024)])
def test_opinions_are_weighed_on_a_gpu_as_on_the_processor(size):
    """Check arrays in the GPU's memory; the decision itself is made on the host."""
    import cupy

    class OnGpu(Opinions):
        def infer(self, images, state):
            assert isinstance(images, cupy.ndarray)
            return [
                MatteEstimate(gain=cupy.asarray(one.gain), offset=cupy.asarray(one.offset))
                for one in super().infer(images, state)
            ]

    pictures = np.random.default_rng(1).random((4, 1, 3, *size), np.float32)
    opinions = {0.1: 0.7}, {0.6: 0.6}
    ours, our_alpha = look_ahead(OnGpu(*opinions), cupy.asarray(pictures), calls=3, most=4)
    theirs, their_alpha = look_ahead(Opinions(*opinions), pictures, calls=3, most=4)
    np.testing.assert_allclose(our_alpha, their_alpha, atol=1e-5)
    np.testing.assert_allclose(ours.seen, theirs.seen, atol=1e-5)
    assert 0 < theirs.seen.mean() < 1
