"""Packing frames for an encoder: a plain copy where the layout is the encoder's own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from written_films import make_frame, make_info

from vitascope.media.encoder_frames import FramePacker
from vitascope.media.encoding import choose_encoding


class NoReformatter:
    def reformat(self, *_: object, **__: object) -> None:
        raise AssertionError("swscale was asked to convert")


@pytest.mark.parametrize(
    ("format_name", "path", "width", "height"),
    [
        ("yuv420p", "a.mp4", 98, 66),
        ("nv12", "a.mp4", 98, 66),
        ("yuv422p10le", "a.mkv", 98, 66),
        ("yuv444p", "a.mp4", 97, 65),
        ("yuv420p10le", "a.mp4", 98, 66),
    ],
)
def test_the_encoders_own_layout_is_copied_as_it_is(
    monkeypatch: pytest.MonkeyPatch, format_name: str, path: str, width: int, height: int
) -> None:
    monkeypatch.setattr("vitascope.media.encoder_frames.VideoReformatter", NoReformatter)
    info = make_info(width, height, format_name=format_name)
    frame = make_frame(info, 0)
    encoding = choose_encoding(Path(path), source_format=info.format).for_size(width, height)
    assert encoding.pixel_format == format_name
    packed = FramePacker(encoding.pixel_format, color=info.color, full_range=False).pack(frame)
    for plane, expected in zip(packed.planes, frame.planes, strict=True):
        rows = np.frombuffer(plane, info.format.dtype).reshape(expected.shape[0], -1)
        np.testing.assert_array_equal(rows[:, : expected[0].size].reshape(expected.shape), expected)
