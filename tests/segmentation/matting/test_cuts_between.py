"""Tests of finding cuts in a video of which only some frames are used."""

from __future__ import annotations

import weakref

import cv2
import numpy as np
import pytest
from skimage import data

from clips import write_clip
from vitascope.gpu.kernels.cuda_module import is_on_gpu
from vitascope.gpu.kernels.region import Region
from vitascope.media.reading.reader import open_video
from vitascope.segmentation.matting import cuts_between
from vitascope.segmentation.matting.cuts_between import CutsBetween

WIDTH, HEIGHT = 192, 108
LENGTHS = (8, 10, 7, 12, 9)
PLACES = [
    np.ascontiguousarray(cv2.resize(picture, (WIDTH, 2 * HEIGHT))[40 : 40 + HEIGHT])
    for picture in (data.astronaut(), data.coffee(), data.chelsea(), data.rocket(), data.retina())
]


@pytest.fixture(scope="module", params=["yuv420p", "yuv422p10le"])
def film(tmp_path_factory, request):
    """Write a video of short shots, each in one place."""
    shots = [picture for picture, length in zip(PLACES, LENGTHS, strict=True) for _ in range(length)]
    return write_clip(
        tmp_path_factory.mktemp("cuts") / "film.mkv",
        codec="ffv1",
        pixel_format=request.param,
        width=WIDTH,
        height=HEIGHT,
        frame_count=len(shots),
        paint=shots.__getitem__,
    )


def looks(film, step, *, cuda_device=None, **more):
    with open_video(film, cuda_device=cuda_device) as frames:
        cuts = CutsBetween(frames, step, **({"eye": Region(0, 0, WIDTH, HEIGHT), "threshold": 0.05} | more))
        return [(frame.index, cuts.change(frame).starts_shot) for frame in cuts]


@pytest.mark.parametrize("step", [2, 3, 5])
def test_a_cut_between_looks_begins_a_shot_with_the_next_one(film, step):
    cuts = np.cumsum(LENGTHS)[:-1]
    expected = [
        (index, bool(((index - step < cuts) & (cuts <= index)).any()))
        for index in range(0, sum(LENGTHS), step)
    ]
    assert looks(film, step) == expected


def test_half_a_frame_may_be_looked_at_and_nothing_is_found_where_that_is_not_wanted(film):
    of_an_eye = looks(film, 3, eye=Region(WIDTH // 2, 0, WIDTH // 2, HEIGHT))
    assert of_an_eye == looks(film, 3)
    assert not any(starts for _, starts in looks(film, 3, threshold=0.0))


def test_what_is_skipped_of_a_group_is_let_go_of_before_the_rest_is_given(film, monkeypatch):
    """Check that skipped frames are freed first: each takes up to 100 MB of a GPU."""
    monkeypatch.setattr(cuts_between, "_is_on_gpu", lambda _: True)
    monkeypatch.setattr(CutsBetween, "_tiles_on_gpu", CutsBetween._grey_tiles)
    read, held = [], []

    def frames(reader):
        for frame in reader:
            read.append(weakref.ref(frame.planes[0]))
            yield frame
            del frame

    with open_video(film) as reader:
        cuts = CutsBetween(frames(reader), 4, eye=Region(0, 0, WIDTH, HEIGHT), threshold=0.05)
        for frame in cuts:
            wanted = len(read[frame.index :: 4])
            held.append(sum(one() is not None for one in read) - wanted)
    assert max(held) <= 1  # the one read last


@pytest.mark.cuda
@pytest.mark.parametrize("step", [1, 3, 5])
def test_frames_of_the_gpu_are_looked_at_where_they_lie(tmp_path, step):
    shots = [picture for picture, length in zip(PLACES, LENGTHS, strict=True) for _ in range(length)]
    film = write_clip(
        tmp_path / "film.mp4",
        codec="libx264",
        pixel_format="yuv420p",
        width=WIDTH,
        height=HEIGHT,
        frame_count=len(shots),
        paint=shots.__getitem__,
    )
    with open_video(film, cuda_device=0) as frames:
        assert is_on_gpu(next(iter(frames)).planes[0])
    found = looks(film, step, cuda_device=0)
    assert found == looks(film, step)
    assert sum(starts for _, starts in found) == len(LENGTHS) - 1
