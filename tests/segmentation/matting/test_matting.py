from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pictures import random_frame, solid_frame
from scripted import BrightnessNetwork
from vitascope.frames import PIXEL_FORMATS, StereoLayout
from vitascope.gpu.kernels.edges import EdgeOptions
from vitascope.segmentation.matting.stream import MattingOptions, StreamMatting

FMT = PIXEL_FORMATS["yuv420p"]
DARK, LIGHT = (0.1, 0.1, 0.1), (0.9, 0.9, 0.9)


def half_light(size=(64, 96)):
    """Make a frame that is dark on the left and light on the right."""
    frame = solid_frame(FMT, size, DARK)
    luma = frame.planes[0].copy()
    luma[:, size[1] // 2 :] = 220
    return frame.with_planes((luma, *frame.planes[1:]))


def place(seed):
    """Make a textured picture that differs for each seed."""
    return random_frame(FMT, (64, 96), seed=seed)


def stream(network, *, layout=StereoLayout.MONO, rotation=0, size=(64, 96), waits=True, **options):
    options = MattingOptions(**{"scene_cut_threshold": 0.05, "warm_up_frames": 0, **options})
    return StreamMatting(
        network, size=size, layout=layout, rotation_degrees=rotation, options=options, waits=waits
    )


def run(matting, frames):
    matted = matting.infer([matting.find_cuts(matting.prepare([frame])) for frame in frames])
    return [matting.refine(one) for one in [*matted, *matting.infer_rest()]]


@pytest.mark.parametrize("network_layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("normalise", [False, True])
def test_alpha_lands_where_the_network_saw_a_person(network_layout, normalise):
    network = BrightnessNetwork(layout=network_layout, normalise=normalise)
    (matte,) = run(stream(network), [half_light()])
    assert matte.alpha.shape == (64, 96)
    assert (matte.alpha[:, :44] < 8).all()
    assert (matte.alpha[:, 52:] > 247).all()
    assert matte.foreground is matte.frame


def test_both_eyes_are_one_call_with_an_answer_each():
    network = BrightnessNetwork()
    frame = half_light((64, 192))  # side by side: the left eye is dark, the right one light
    (matte,) = run(stream(network, layout=StereoLayout.SIDE_BY_SIDE, size=(64, 192)), [frame])
    assert network.calls == [(1, 2)]
    assert (matte.alpha[:, :96] == 0).all()
    assert (matte.alpha[:, 96:] == 255).all()


def test_a_turned_video_is_shown_upright_and_its_alpha_is_turned_back():
    network = BrightnessNetwork()
    matting = stream(network, rotation=90, size=(64, 96))
    assert matting.network_input.size == (48, 32)
    (matte,) = run(matting, [half_light()])
    assert matte.alpha.shape == (64, 96)
    assert (matte.alpha[:, 60:] > 247).all()
    assert (matte.alpha[:, :36] < 8).all()


def test_a_scene_cut_splits_the_batch_and_resets_the_state():
    network = BrightnessNetwork(recurrent=True)
    matting = stream(network)
    shots = [solid_frame(FMT, (64, 96), DARK)] * 2 + [solid_frame(FMT, (64, 96), LIGHT)] * 3
    run(matting, shots)
    assert network.calls == [(2, 1), (3, 1)]
    assert len(matting.cut_pts) == 1
    assert network.states[0].resets == 1
    assert network.states[0].seen == 3


@pytest.mark.parametrize("sizes", [(1,) * 14, (3, 7, 4), (14,)])
def test_how_frames_are_gathered_changes_neither_cuts_nor_mattes(sizes):
    first, second = place(1), place(2)
    flash = solid_frame(FMT, (64, 96), LIGHT)
    film = [first, first, first, flash, first, first, *[second] * 3, flash, *[second] * 4]
    network = BrightnessNetwork(recurrent=True)
    matting = stream(network)
    film = iter(film)
    matted = [
        one
        for size in sizes
        for one in matting.infer([matting.find_cuts(matting.prepare([next(film)])) for _ in range(size)])
    ]
    assert [one.shot for one in matted] == [0] * 6 + [1] * 8
    assert (network.states[0].resets, network.states[0].seen) == (1, 8)


def test_a_live_run_gives_every_frame_at_once_and_begins_a_shot_when_it_is_certain():
    network = BrightnessNetwork(recurrent=True)
    matting = stream(network, waits=False)
    film = [place(1)] * 3 + [place(2)] * 6
    matted = [matting.infer([matting.find_cuts(matting.prepare([frame]))]) for frame in film]
    assert [len(one) for one in matted] == [1] * 9
    assert [one.shot for (one,) in matted] == [0] * 6 + [1] * 3
    assert matting.infer_rest() == []


def test_without_a_threshold_nothing_is_a_cut():
    network = BrightnessNetwork(recurrent=True)
    run(stream(network, scene_cut_threshold=0), [solid_frame(FMT, (64, 96), c) for c in (DARK, LIGHT)])
    assert network.calls == [(2, 1)]


def test_a_recurrent_network_warms_up_on_the_first_picture_of_each_shot():
    network = BrightnessNetwork(recurrent=True)
    matting = stream(network, warm_up_frames=3)
    dark, light = solid_frame(FMT, (64, 96), DARK), solid_frame(FMT, (64, 96), LIGHT)
    mattes = run(matting, [dark, dark, light])
    assert network.calls == [(1, 1)] * 3 + [(2, 1)] + [(1, 1)] * 3 + [(1, 1)]
    assert len(mattes) == 3
    forgetful = BrightnessNetwork(recurrent=False)
    run(stream(forgetful, warm_up_frames=3), [dark, dark])
    assert forgetful.calls == [(2, 1)]


def test_every_stream_has_a_state_of_its_own():
    network = BrightnessNetwork(recurrent=True)
    first, second = stream(network), stream(network)
    run(first, [half_light()] * 2)
    run(second, [half_light()])
    assert [state.seen for state in network.states] == [2, 1]


def test_edge_options_reach_the_alpha():
    plain = run(stream(BrightnessNetwork()), [half_light()])[0].alpha
    grown = run(stream(BrightnessNetwork(), edges=EdgeOptions(grow_px=6)), [half_light()])[0].alpha
    assert (grown > 127).sum() > (plain > 127).sum() + 64 * 4


def test_temporal_smoothing_remembers_until_a_cut():
    frames = [solid_frame(FMT, (64, 96), (0.49,) * 3), solid_frame(FMT, (64, 96), (0.52,) * 3)]
    plain = run(stream(BrightnessNetwork()), frames)[1].alpha
    smooth = run(stream(BrightnessNetwork(), temporal_smoothing=0.9), frames)[1].alpha
    assert plain.mean() == 255
    assert smooth.mean() < 200
    cut = [solid_frame(FMT, (64, 96), DARK), solid_frame(FMT, (64, 96), LIGHT)]
    assert run(stream(BrightnessNetwork(), temporal_smoothing=0.9), cut)[1].alpha.mean() == 255


def half_of(still, other):
    """Make a frame with a uniform left half and another picture on the right."""
    left, right = solid_frame(FMT, (64, 48), (still,) * 3), other
    planes = tuple(np.hstack(pair) for pair in zip(left.planes, right.planes, strict=True))
    return replace(left, planes=planes)


def test_a_cut_ends_the_smoothing_where_the_frame_that_began_the_shot_was_dropped():
    before = half_of(0.49, random_frame(FMT, (64, 48), seed=1))
    first = second = half_of(0.52, random_frame(FMT, (64, 48), seed=2))
    matting = stream(BrightnessNetwork(), temporal_smoothing=0.9)
    matted = matting.infer([matting.find_cuts(matting.prepare([frame])) for frame in (before, first, second)])
    matted += matting.infer_rest()
    assert len(matting.cut_pts) == 1
    matting.refine(matted[0])
    assert matting.refine(matted[2]).alpha[:, :40].mean() == 255


def test_deep_video_has_deep_alpha():
    frame = solid_frame(PIXEL_FORMATS["yuv420p10le"], (64, 96), LIGHT)
    (matte,) = run(stream(BrightnessNetwork()), [frame])
    assert matte.alpha.dtype == np.uint16
    assert (matte.alpha == 65535).all()
