"""People whom larger ones beside them hide from a network."""

from __future__ import annotations

from dataclasses import replace

import cv2
import numpy as np
import pytest

from lever_network import EYE, TrailNetwork, frame_of
from pictures import solid_frame
from vitascope.config.compute import InferenceSettings
from vitascope.frames import PIXEL_FORMATS, StereoLayout
from vitascope.gpu.interchange import to_cupy, to_numpy
from vitascope.gpu.kernels.cuda_module import is_on_gpu
from vitascope.models.network import MatteEstimate
from vitascope.segmentation.matting.levers.missed_people import lasting, missed, spans_beside_large
from vitascope.segmentation.matting.shot_windows import WINDOW_FRAMES
from vitascope.segmentation.matting.stream import MattingOptions, StreamMatting

LARGE = (0, 16, 30, 90)
SMALL = (0, 164, 60, 14)
WIDTH = EYE[1]


class Proud(TrailNetwork):
    """Sees who is bright, but nobody beside somebody who covers a quarter of the picture. NumPy judges."""

    def __init__(self, **options):
        super().__init__(recurrent=True, **options)

    def infer(self, images, state):
        self.calls.append(tuple(images.shape))
        state.seen = np.zeros((images.shape[1], images.shape[3] // 2, images.shape[4] // 2), np.float32)
        answers = []
        for picture in to_numpy(images):
            alphas = []
            for bright in np.clip((picture.mean(axis=1) - 0.4) * 5, 0, 1):
                _, labels, boxes, _ = cv2.connectedComponentsWithStats((bright > 0.5).astype(np.uint8))
                areas = boxes[:, cv2.CC_STAT_AREA].copy()
                areas[0] = 0
                hidden = (areas < areas.max()) & (areas.max() > bright.size / 4)
                hidden[0] = False
                alphas.append(np.where(hidden[labels], 0, bright))
            offset = np.stack(alphas)[:, None].astype(np.float32)
            offset = to_cupy(offset) if is_on_gpu(images) else offset
            answers.append(MatteEstimate(gain=0 * offset, offset=offset))
        return answers


def mattes(frames, network=None, *, layout=StereoLayout.MONO, eyes=1, **inference):
    network = Proud() if network is None else network
    matting = StreamMatting(
        network,
        size=(EYE[0], EYE[1] * eyes),
        layout=layout,
        options=MattingOptions(
            scene_cut_threshold=0.0,
            warm_up_frames=0,
            inference=InferenceSettings(**{"bidirectional": True, "stereo_agreement": False, **inference}),
        ),
    )
    matted = matting.infer([matting.prepare([frame]) for frame in frames]) + matting.infer_rest()
    return np.stack([to_numpy(matting.refine(one).alpha) for one in matted]).astype(float) / 255


def film(*spots, count=6):
    return [frame_of(spots, index=index) for index in range(count)]


def test_somebody_small_beside_somebody_large_is_found():
    alphas = mattes(film(LARGE, SMALL))
    truth = mattes(film(LARGE, SMALL), TrailNetwork(), bidirectional=False)
    assert alphas[:, 67, 171].min() > 0.95
    assert np.abs(alphas - truth)[:, :, 140:].max() < 0.1
    assert mattes(film(LARGE, SMALL), bidirectional=False)[:, 67, 171].max() == 0


def test_both_eyes_are_looked_at():
    spots = LARGE, (1, *LARGE[1:]), (1, *SMALL[1:])
    frames = [frame_of(spots, index=index, eyes=2) for index in range(4)]
    alphas = mattes(frames, layout=StereoLayout.SIDE_BY_SIDE, eyes=2)
    assert alphas[:, 67, WIDTH + 171].min() > 0.95
    assert alphas[:, 67, 171].max() == 0


def test_nothing_more_is_shown_where_nobody_is_large():
    network = Proud()
    mattes(film(SMALL), network)
    assert {shape[4] for shape in network.calls} == {WIDTH}


def test_a_window_is_shown_once_more_only_where_somebody_is_missed():
    network = Proud()
    alphas = mattes(film(LARGE), network)
    beside = [shape[0] for shape in network.calls if shape[3] == EYE[0] and shape[4] < WIDTH]
    assert beside == [1, 1]  # its last frame, and its first
    assert alphas[:, :, 120:].max() == 0


def test_somebody_who_is_there_for_a_moment_is_not_believed():
    frames = [*film(LARGE, count=5), frame_of([LARGE, SMALL], index=5)]
    assert mattes(frames)[:, 67, 171].max() == 0


@pytest.mark.parametrize("count", [1, 2, 9, WINDOW_FRAMES + 3])
def test_shots_of_any_length(count):
    assert mattes(film(LARGE, SMALL, count=count))[:, 67, 171].min() > 0.95


class Cuts(Proud):
    """Sees nobody of somebody large in columns alone."""

    def infer(self, images, state):
        answers = super().infer(images, state)
        if images.shape[3] == EYE[0] and images.shape[4] < WIDTH:
            for one in answers:
                one.offset[..., :10] = 0
        return answers


def test_somebody_large_stays_whole_beside_who_is_found():
    close = film(LARGE, (0, 109, 60, 14))
    alphas = mattes(close, Cuts())
    without = mattes(close, bidirectional=False)
    assert alphas[:, 67, 112:120].min() > 0.9
    assert (alphas - without)[:, 40:110, 16:104].min() > -0.35  # as edges of two sizes differ
    assert alphas[:, 40:110, 20:102].min() > 0.95


@pytest.mark.cuda
def test_a_gpu_finds_whom_the_cpu_finds():
    import cupy

    alphas = []
    for move in (np.asarray, cupy.asarray):
        dark = solid_frame(PIXEL_FORMATS["nv12"], EYE, (0.1, 0.1, 0.1))
        frames = [
            replace(dark.with_planes((move(frame.planes[0]), *map(move, dark.planes[1:]))), index=frame.index)
            for frame in film(LARGE, SMALL)
        ]
        alphas.append(mattes(frames))
    assert np.abs(alphas[1] - alphas[0]).max() < 0.02
    assert alphas[1][:, 67, 171].min() > 0.95


def a_picture(*boxes, size=(540, 960)):
    alpha = np.zeros((1, *size), np.float32)
    for left, top, width, height in boxes:
        alpha[:, top : top + height, left : left + width] = 1
    return alpha


def spans_of(alphas):
    return spans_beside_large(alphas, step=32)


def test_spans_lie_beside_who_is_large_and_reach_into_them():
    assert spans_of(a_picture()) == []
    assert spans_of(a_picture((100, 100, 40, 200))) == []  # small
    assert spans_of(a_picture((400, 200, 200, 340))) == [(0, 480), (544, 960)]
    assert spans_of(a_picture((0, 0, 960, 540))) == []
    assert spans_of(a_picture((90, 100, 780, 440))) == []  # too little is left
    moving = np.concatenate([a_picture((300, 200, 200, 340)), a_picture((400, 200, 200, 340))])
    assert spans_of(moving) == [(0, 384), (544, 960)]


def somebody(left=50, *, alpha=1.0):
    picture = np.zeros((540, 200), np.float32)
    picture[100:300, left : left + 60] = alpha
    return picture


def test_spans_never_hold_somebody_large_whole():
    assert spans_of(a_picture((0, 0, 40, 360), size=(360, 640))) == [(32, 640)]
    assert spans_of(a_picture((0, 0, 40, 640), size=(640, 360))) == [(32, 360)]
    assert spans_of(a_picture((300, 0, 40, 360), size=(360, 640))) == [(0, 320), (320, 640)]


def test_nothing_is_shown_where_no_column_is_left_between_the_steps():
    """Two tall thin people in a small picture, 30 columns apart."""
    assert spans_of(a_picture((28, 0, 12, 128), (70, 0, 122, 128), size=(128, 192))) == [(0, 32)]
    for left in range(20, 60):
        people = (left - 12, 0, 12, 128), (left + 26, 0, 12, 128)
        assert all(end > first for first, end in spans_of(a_picture(*people, size=(128, 192))))


def test_who_lasts_is_told_one_by_one():
    wheres = np.zeros((9, 40, 60), bool)
    for at in range(9):
        wheres[at, 5:15, 2 * at : 2 * at + 10] = True  # walks
    wheres[4, 25:30, 5:10] = True  # a moment
    wheres[5:, 25:30, 40:45] = True  # comes in
    kept = lasting(wheres, 4)
    assert not any(one[25:30, 5:10].any() for one in kept)
    wheres[4, 25:30, 5:10] = False
    assert np.array_equal(kept, wheres)
    assert not any(one[25:30].any() for one in lasting(wheres, 5))


def missed_of(here, there, inner, **options):
    return missed(here, there, np.abs(2 * here - 1), inner, least_area=100, **options)


def test_who_is_missed():
    nobody, inner = np.zeros((540, 200), np.float32), (True, True)
    found = missed_of(somebody(), nobody, inner)
    assert np.array_equal(found, somebody() > 0)
    assert not missed_of(somebody(), somebody(), inner).any()  # seen elsewhere, too
    assert not missed_of(somebody(alpha=0.8), nobody, inner).any()  # not sure
    assert not missed_of(somebody(0), nobody, inner).any()  # may be a part of somebody
    assert not missed_of(somebody(140), nobody, inner).any()
    assert missed_of(somebody(0), nobody, (False, True)).any()  # the picture's own side
    speck = np.zeros((540, 200), np.float32)
    speck[10:19, 50:60] = 1
    assert not missed_of(speck, nobody, inner).any()


def test_who_was_missed_in_the_frame_behind_is_missed_where_they_are_seen_in_part():
    most = somebody() * (np.arange(540) < 250)[:, None]
    assert not missed_of(somebody(), most, (True, True)).any()
    assert missed_of(somebody(), most, (True, True), behind=somebody() > 0).any()
