"""Check that the default video to measure is always the same, always moves, and shows a person."""

from __future__ import annotations

import numpy as np
import pytest

from vitascope.bench.synthetic_clip import make_clip
from vitascope.media.reading.reader import open_video, probe


def luma(path):
    with open_video(path) as reader:
        return [np.asarray(frame.planes[0]).copy() for frame in reader]


def test_no_frame_equals_another_and_none_is_flat(tmp_path):
    frames = luma(make_clip(tmp_path / "a.mp4", width=160, height=90, frame_count=10))
    assert len(frames) == 10
    assert min(frame.std() for frame in frames) > 15
    for one in range(10):
        for other in range(one):
            assert np.abs(frames[one].astype(int) - frames[other]).mean() > 1


def test_two_machines_see_the_same(tmp_path):
    first, second = (
        luma(make_clip(tmp_path / name, width=160, height=90, frame_count=3)) for name in ("a.mp4", "b.mp4")
    )
    assert all(np.array_equal(one, other) for one, other in zip(first, second, strict=True))


def test_two_eyes_see_the_same_thing_from_two_places(tmp_path):
    path = make_clip(tmp_path / "a.mp4", width=320, height=90, frame_count=2, stereo=True)
    frame = luma(path)[0].astype(int)
    left, right = frame[:, :160], frame[:, 160:]
    assert np.abs(left - right).mean() > 0.5
    assert np.corrcoef(left.ravel(), right.ravel())[0, 1] > 0.8


@pytest.mark.parametrize(("width", "codec"), [(4096, "h264"), (4098, "hevc")])
def test_wide_films_are_what_hardware_decoders_take(tmp_path, width, codec):
    info = probe(make_clip(tmp_path / "a.mp4", width=width, height=64, frame_count=1))
    assert info.codec == codec
    assert (info.width, info.height) == (width, 64)
