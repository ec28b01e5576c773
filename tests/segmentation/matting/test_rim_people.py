"""Check that people at the rim of a VR180 eye are shown in bent pictures, and that nothing changes for others."""

from __future__ import annotations

import numpy as np
import pytest

from lever_network import TrailNetwork
from pictures import solid_frame
from vitascope.config.compute import InferenceSettings
from vitascope.errors import DeviceMemoryError
from vitascope.frames import PIXEL_FORMATS, StereoLayout
from vitascope.gpu import AdaptiveBatchSizer
from vitascope.gpu.interchange import to_numpy
from vitascope.segmentation.matting.close_ups import LOOK_EVERY_FRAMES
from vitascope.segmentation.matting.fisheye import FisheyeViews
from vitascope.segmentation.matting.rim_people import RimPeople
from vitascope.segmentation.matting.shots import ShotInference
from vitascope.segmentation.matting.stereo_agreement import StereoAgreement
from vitascope.segmentation.matting.stream import MattingOptions, StreamMatting
from vitascope.vr.projection import Equirectangular, Fisheye

HALF = Equirectangular(180, 180)
SIDE = 96
AHEAD, AT_RIM = (5.0, -10.0), (75.0, 20.0)
FMT = PIXEL_FORMATS["yuv420p"]


class Shown(TrailNetwork):
    """Records the pictures that it gets."""

    def __init__(self, **options):
        super().__init__(size=(SIDE, SIDE), **options)
        self.pictures = []

    def infer(self, images, state):
        self.pictures += list(to_numpy(images).copy())
        return super().infer(images, state)


def eye_with(*people, eyes=1):
    """Make [1, E, 3, h, w] with a bright person, ten degrees to all sides of each azimuth and elevation."""
    y, x = np.meshgrid(*[(np.arange(SIDE) + 0.5) / SIDE * 180 - 90] * 2, indexing="ij")
    eye = np.full((SIDE, SIDE), 0.1, np.float32)
    for azimuth, elevation in people:
        eye[(abs(x - azimuth) <= 10) & (abs(y + elevation) <= 10)] = 0.9
    return np.broadcast_to(eye, (1, eyes, 3, SIDE, SIDE)).copy()


def views_of(network, lens=HALF):
    return FisheyeViews.of_network(lens, network, (1024, 1024))


def shots_of(network, *, calls=1, sizer=None):
    usual = views_of(network)
    return ShotInference(
        network, warm_up_frames=calls, fisheye=usual, people=RimPeople(usual, None), sizer=sizer
    )


def are_bent(network, images):
    """Check for each of the network's last pictures whether it is the bent one."""
    usual = views_of(network)
    found = []
    for picture, image in zip(network.pictures[-len(images) :], images, strict=True):
        straight, bent = (views.show(image[None])[0] for views in (usual, usual.bent))
        assert np.array_equal(picture, straight) != np.array_equal(picture, bent)
        found.append(np.array_equal(picture, bent))
    return found


@pytest.mark.parametrize(
    ("people", "expected"),
    [
        ([], False),
        ([AHEAD], False),
        ([(40, 30)], False),
        ([AT_RIM], True),
        ([(10, -80)], True),
        ([AT_RIM, (-75, 0)], True),
        ([AHEAD, AT_RIM], False),
        ([AHEAD, AT_RIM, (-75, 0), (75, -20)], True),
    ],
)
@pytest.mark.parametrize("are_seen", [False, True])
def test_most_of_the_people_stand_at_the_rim_or_not_however_they_are_shown(people, expected, are_seen):
    rim = RimPeople(views_of(Shown()), None)
    rim.are_seen = are_seen
    alpha = rim.views.show(eye_with(*people))[0, :, 0]
    assert rim.would_be_seen(alpha) == expected


@pytest.mark.parametrize(
    ("azimuth", "begins", "stays"), [(64.0, False, False), (67.0, False, True), (70.0, True, True)]
)
def test_bent_pictures_stay_until_clearly_fewer_stand_at_the_rim(azimuth, begins, stays):
    rim = RimPeople(views_of(Shown()), None)
    for are_seen, expected in ((False, begins), (True, stays)):
        rim.are_seen = are_seen
        assert rim.would_be_seen(rim.views.show(eye_with((azimuth, 0.0)))[0, :, 0]) == expected


def test_who_stands_at_the_rim_of_one_eye_counts_with_the_other():
    rim = RimPeople(views_of(Shown()), None)
    ahead, aside, nobody = (rim.views.show(eye_with(*who))[0, :, 0] for who in ([AHEAD], [AT_RIM], []))
    assert rim.would_be_seen(np.concatenate([nobody, aside]))
    assert not rim.would_be_seen(np.concatenate([ahead, aside]))


def test_shots_of_people_ahead_are_what_they_are_without_the_choice():
    images = np.concatenate([eye_with(AHEAD), eye_with((0, 0)), eye_with((-20, 30)), eye_with()])
    starts = [True, False, True, False]
    network = Shown()
    usual = ShotInference(network, warm_up_frames=1, fisheye=views_of(network)).run(images, starts)
    for one, other in zip(usual, shots_of(Shown()).run(images, starts), strict=True):
        np.testing.assert_array_equal(one.gain, other.gain)
        np.testing.assert_array_equal(one.offset, other.offset)


def test_a_shot_of_people_at_the_rim_is_shown_bent_from_its_beginning():
    network, images = Shown(), np.concatenate([eye_with(AT_RIM)] * 3)
    answers = shots_of(network).run(images, [True, False, False])
    assert are_bent(network, images) == [True] * 3
    usual = views_of(network)
    always = ShotInference(Shown(), warm_up_frames=1, fisheye=usual.bent)
    for one, other in zip(answers, always.run(images, [True, False, False]), strict=True):
        np.testing.assert_array_equal(one.offset, other.offset)  # nothing of the straight one is remembered
    alpha = np.concatenate([answer.offset for answer in answers])[:, 0]
    assert np.abs(alpha - (images[:, 0, 0] > 0.5)).mean() < 0.01


def test_each_shot_is_looked_at_by_itself():
    network = Shown()
    shots = shots_of(network)
    images = np.concatenate([eye_with(who) for who in (AT_RIM, AT_RIM, AHEAD, AHEAD, AT_RIM)])
    for index, starts in enumerate([True, False, True, False, True]):
        shots.run(images[index : index + 1], [starts], indices=[index])
        assert are_bent(network, images[index : index + 1]) == [index not in (2, 3)]


@pytest.mark.parametrize("batch", [1, 7, 200])
def test_who_comes_to_the_rim_is_seen_bent_from_the_next_look_on_whatever_the_batches(batch):
    network, period = Shown(), LOOK_EVERY_FRAMES
    count = 3 * period
    images = np.concatenate(
        [eye_with(AT_RIM if period // 2 < index < 2 * period - 2 else AHEAD) for index in range(count)]
    )
    shots = shots_of(network)
    for first in range(0, count, batch):
        end = min(first + batch, count)
        shots.run(images[first:end], [index == 0 for index in range(first, end)], indices=range(first, end))
    assert are_bent(network, images) == [False] * period + [True] * period + [False] * period


def test_a_later_run_goes_on_with_the_pictures_of_the_earlier_one():
    for place, bent in ((AT_RIM, True), (AHEAD, False)):
        shots = shots_of(Shown())
        shots.run(eye_with(place), [True])
        network = Shown()
        later = shots_of(network)
        assert later.remember(shots.memory())
        images = eye_with((40, 30))
        (answer,) = later.run(images, [False], indices=[1])
        assert are_bent(network, images) == [bent]
        (expected,) = shots.run(images, [False], indices=[1])
        np.testing.assert_array_equal(answer.offset, expected.offset)
    assert not shots_of(Shown()).remember([])
    assert shots_of(Shown()).memory() == []


def test_a_beginning_for_which_memory_runs_out_is_made_anew():
    class Tight(Shown):
        """Fails once, when the shot begins with bent pictures."""

        failures = iter([DeviceMemoryError("no room")])

        def infer(self, images, state):
            if len(self.pictures) == 1:
                for failure in self.failures:
                    raise failure
            return super().infer(images, state)

    images = np.concatenate([eye_with(AT_RIM)] * 2)
    wanted = shots_of(Shown()).run(images, [False, False])
    sizer = AdaptiveBatchSizer(2, max_batch_size=2, min_batch_size=1, growing=False)
    for one, other in zip(wanted, shots_of(Tight(), sizer=sizer).run(images, [False, False]), strict=True):
        np.testing.assert_array_equal(one.offset, other.offset)


def test_eyes_are_brought_together_in_the_pictures_that_are_shown():
    usual = views_of(Shown())
    agreement = StereoAgreement.of_eyes(*usual.as_pictures, right_eye_first=True)
    rim = RimPeople(usual, agreement)
    assert (rim.views, rim.agreement) == (usual, agreement)
    rim.are_seen = True
    assert rim.views == usual.bent
    assert rim.agreement == StereoAgreement.of_eyes(*usual.bent.as_pictures, right_eye_first=True)


def test_only_equirectangular_eyes_that_one_picture_shows_have_a_rim():
    network = Shown()
    assert RimPeople.may_need(views_of(network))
    assert not RimPeople.may_need(views_of(network, Equirectangular(360, 180)))
    assert not RimPeople.may_need(views_of(network, Fisheye(190)))


def film_of(place, count, *, pixel_format=FMT):
    """Make frames of two eyes side by side."""
    frame = solid_frame(pixel_format, (SIDE, 2 * SIDE), (0.1, 0.1, 0.1))
    eye = (eye_with(place)[0, 0, 0] > 0.5) * np.uint8(204) + np.uint8(16)
    return [frame.with_planes((np.hstack([eye, eye]), *frame.planes[1:])) for _ in range(count)]


def matting(network, *, bidirectional=False):
    options = MattingOptions(
        scene_cut_threshold=0,
        inference=InferenceSettings(bidirectional=bidirectional, stereo_agreement=False),
    )
    return StreamMatting(
        network, size=(SIDE, 2 * SIDE), layout=StereoLayout.SIDE_BY_SIDE, options=options, lens=HALF
    )


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize(("place", "bent"), [(AHEAD, False), (AT_RIM, True)])
def test_a_film_of_people_at_the_rim_is_shown_bent_in_every_direction(place, bent, bidirectional):
    network = Shown()
    stream = matting(network, bidirectional=bidirectional)
    frames = film_of(place, 3)
    batch = stream.find_cuts(stream.prepare(frames))
    images = batch.images.copy()
    matted = [*stream.infer([batch]), *stream.infer_rest()]
    shown = [one.reshape(2, 3, SIDE, SIDE) for one in network.pictures if one.shape[-2:] == (SIDE, SIDE)]
    network.pictures = shown[-3:]
    if bidirectional:
        there, back = shown[-9:-6], shown[-3:]  # between them the backward pass warms up its memory
        network.pictures = [one[..., ::-1] for one in reversed(back)]  # mirrored
        assert are_bent(network, images) == [bent] * 3
        network.pictures = there
    assert are_bent(network, images) == [bent] * 3
    alpha = stream.refine(matted[-1]).alpha / 255
    assert np.abs(alpha - (frames[0].planes[0] > 128)).mean() < 0.02


@pytest.mark.cuda
@pytest.mark.parametrize("place", [AHEAD, AT_RIM])
def test_a_gpu_shows_the_pictures_that_the_cpu_does(place):
    import cupy

    pictures, alphas = [], []
    for move in (np.asarray, cupy.asarray):
        network = Shown()
        stream = matting(network)
        film = film_of(place, 3, pixel_format=PIXEL_FORMATS["nv12"])
        frames = [frame.with_planes(tuple(map(move, frame.planes))) for frame in film]
        matted = [*stream.infer([stream.find_cuts(stream.prepare(frames))]), *stream.infer_rest()]
        pictures.append(np.stack(network.pictures[-3:]))
        alphas.append(np.stack([to_numpy(stream.refine(one).alpha).astype(np.float32) for one in matted]))
    np.testing.assert_allclose(pictures[1], pictures[0], atol=0.02)
    assert np.abs(alphas[1] - alphas[0]).mean() < 1  # of 255
    assert alphas[0].max() > 200


def test_a_network_without_memory_sees_no_bent_pictures():
    network = Shown(recurrent=False)
    stream = matting(network)
    batch = stream.find_cuts(stream.prepare(film_of(AT_RIM, 1)))
    images = batch.images.copy()
    stream.infer([batch])
    assert are_bent(network, images) == [False]
