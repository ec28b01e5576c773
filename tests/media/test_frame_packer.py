"""Tests of packing frames for an encoder: one plain copy if the layout is the encoder's own."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace
from pathlib import Path

import av
import numpy as np
import pytest
from written_films import make_frame, make_info

from vitascope.media.planes import FramePacker
from vitascope.media.writing.encoding import choose_encoding


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
    monkeypatch.setattr("vitascope.media.planes.VideoReformatter", NoReformatter)
    info = make_info(width, height, format_name=format_name)
    frame = make_frame(info, 0)
    encoding = choose_encoding(Path(path), source_format=info.format).for_size(width, height)
    assert encoding.pixel_format == format_name
    packed = FramePacker(encoding.pixel_format, color=info.color, full_range=False).pack(frame)
    for plane, expected in zip(packed.planes, frame.planes, strict=True):
        rows = np.frombuffer(plane, info.format.dtype).reshape(expected.shape[0], -1)
        np.testing.assert_array_equal(rows[:, : expected[0].size].reshape(expected.shape), expected)


def one_picture(width: int, height: int, *, frozen: bool = True) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
    """Return the memory and planes of a yuv420p picture that arrived in one copy."""
    memory = np.arange(width * height * 3 // 2, dtype=np.uint8)
    luma = width * height
    planes = (
        np.ndarray((height, width), np.uint8, memory),
        np.ndarray((height // 2, width // 2), np.uint8, memory, luma),
        np.ndarray((height // 2, width // 2), np.uint8, memory, luma * 5 // 4),
    )
    for plane in planes:
        plane.flags.writeable = not frozen
    return memory, planes


def addresses(packed: av.VideoFrame) -> list[int]:
    return [plane.buffer_ptr for plane in packed.planes]


def test_one_frozen_picture_is_held_and_not_copied() -> None:
    info = make_info(98, 64)
    memory, planes = one_picture(98, 64)
    frame = replace(make_frame(info, 0), planes=planes)
    packed = FramePacker("yuv420p", color=info.color, full_range=False).pack(frame)
    assert addresses(packed) == [plane.ctypes.data for plane in planes]
    held = weakref.ref(memory)
    expected = memory.copy()
    del memory, planes, frame
    gc.collect()
    assert held() is not None
    got = [np.frombuffer(plane, np.uint8) for plane in packed.planes]
    np.testing.assert_array_equal(
        np.concatenate([rows[:size] for rows, size in zip(got, (98 * 64, 49 * 32, 49 * 32), strict=True)]),
        expected,
    )
    del packed, got
    gc.collect()
    assert held() is None


@pytest.mark.parametrize(
    ("width", "height", "frozen", "apart"),
    [(98, 64, False, False), (98, 66, True, False), (98, 64, True, True)],
    ids=["may be written", "rows that PyAV cannot count", "planes of their own"],
)
def test_anything_else_is_copied(width: int, height: int, frozen: bool, apart: bool) -> None:
    info = make_info(width, height)
    _, planes = one_picture(width, height, frozen=frozen)
    if apart:
        planes = (planes[0], planes[1], planes[2].copy())
        planes[2].flags.writeable = False
    packed = FramePacker("yuv420p", color=info.color, full_range=False).pack(
        replace(make_frame(info, 0), planes=planes)
    )
    assert not set(addresses(packed)) & {plane.ctypes.data for plane in planes}
    for plane, expected in zip(packed.planes, planes, strict=True):
        rows = np.frombuffer(plane, np.uint8).reshape(len(expected), -1)
        np.testing.assert_array_equal(rows[:, : expected.shape[1]], expected)
