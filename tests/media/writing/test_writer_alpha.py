"""Tests of pictures with alpha, grey mattes, and PNG sequences."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from written_films import decode, encode, make_frame, make_info, plane

from vitascope.errors import OutputError
from vitascope.frames import ColorSpec
from vitascope.media.writing.encoding import choose_encoding
from vitascope.media.writing.writer import VideoWriter


@pytest.mark.parametrize(
    ("name", "decoder", "bits"),
    [("a.mov", None, 12), ("a.webm", "libvpx-vp9", 8), ("a.mkv", None, 8)],
)
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_alpha_comes_back(tmp_path: Path, name: str, decoder: str | None, bits: int, dtype: type) -> None:
    info = make_info(98, 66)
    path = tmp_path / name
    encoding = choose_encoding(path, source_format=info.format, with_alpha=True)
    opaque = np.iinfo(dtype).max
    alpha = np.zeros((66, 98), dtype)
    alpha[10:50, 20:70] = opaque
    alpha[50:60, 20:70] = opaque // 2
    with VideoWriter(path, info=info, encoding=encoding) as writer:
        for index in range(3):
            writer.write_with_alpha(make_frame(info, index), alpha)
    frames = decode(path, decoder)
    assert len(frames) == 3
    depth = frames[0].format.components[0].bits
    assert depth == bits
    got = plane(frames[2], 3, np.uint8 if depth == 8 else np.uint16) / ((1 << depth) - 1)
    assert np.abs(got - alpha / opaque).mean() < 0.004
    assert got[30, 40] == 1.0
    assert got[5, 5] == 0.0


def test_ffv1_alpha_is_lossless(tmp_path: Path) -> None:
    for format_name in ("yuv420p", "yuv422p10le", "yuv444p12le"):
        info = make_info(33, 17, format_name=format_name)
        path = tmp_path / f"{format_name}.mkv"
        encoding = choose_encoding(path, source_format=info.format, with_alpha=True)
        alpha = np.arange(33 * 17, dtype=np.uint8).reshape(17, 33)
        with VideoWriter(path, info=info, encoding=encoding) as writer:
            writer.write_with_alpha(make_frame(info, 0), alpha)
        frame = decode(path)[0]
        dtype = info.format.dtype.type
        for index in range(3):
            np.testing.assert_array_equal(plane(frame, index, dtype), make_frame(info, 0).planes[index])
        top = (1 << info.format.bit_depth) - 1
        np.testing.assert_array_equal(plane(frame, 3, dtype), np.rint(alpha / 255 * top))


def test_write_without_alpha_is_opaque(tmp_path: Path) -> None:
    info = make_info()
    path = tmp_path / "a.mkv"
    encode(path, info, pts=[0], encoding=choose_encoding(path, source_format=info.format, with_alpha=True))
    assert (plane(decode(path)[0], 3) == 255).all()


def test_alpha_needs_an_encoding_that_has_it(tmp_path: Path) -> None:
    info = make_info()
    encoding = choose_encoding(tmp_path / "a.mp4", source_format=info.format)
    with (
        pytest.raises(OutputError, match="no alpha plane"),
        VideoWriter(tmp_path / "a.mp4", info=info, encoding=encoding) as writer,
    ):
        writer.write_with_alpha(make_frame(info, 0), np.zeros((64, 96), np.uint8))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("target", ["cut", "cut/frame_%04d.png"])
def test_png_sequence(tmp_path: Path, target: str) -> None:
    info = make_info(33, 17)
    path = tmp_path / target
    alpha = np.linspace(0, 255, 33 * 17).astype(np.uint8).reshape(17, 33)
    encoding = choose_encoding(path, source_format=info.format, with_alpha=True)
    for _ in range(2):  # the second run replaces the first
        with VideoWriter(path, info=info, encoding=encoding) as writer:
            for index in range(3):
                writer.write_with_alpha(make_frame(info, index), alpha)
    names = sorted(file.name for file in (tmp_path / "cut").iterdir())
    pattern = "frame_%04d.png" if "%" in target else "%06d.png"
    assert names == [pattern % n for n in range(3)]
    assert [entry.name for entry in tmp_path.iterdir()] == ["cut"]
    picture = decode(tmp_path / "cut" / names[1])[0]
    assert picture.format.name == "rgba"
    rgba = picture.to_ndarray(format="rgba")
    np.testing.assert_array_equal(rgba[..., 3], alpha)
    y, cb, cr = (float(p[8, 8]) for p in make_frame(info, 1).planes)
    grey = (y - 16) * 255 / 219
    want = grey + 1.5748 * (cr - 128) * 255 / 224
    assert (
        abs(rgba[8, 16, 0] - ((float(make_frame(info, 1).planes[0][8, 16]) - 16) * 255 / 219 + want - grey))
        <= 2
    )
    assert cb < 128


def test_one_png_takes_one_frame(tmp_path: Path) -> None:
    info = make_info()
    path = tmp_path / "one.png"
    encode(path, info, pts=[0])
    assert decode(path)[0].width == 96
    with pytest.raises(OutputError, match="cannot hold a video"):
        encode(tmp_path / "two.png", info, pts=[0, 1])
    assert [entry.name for entry in tmp_path.iterdir()] == ["one.png"]


@pytest.mark.parametrize("name", ["m.mkv", "m.png"])
@pytest.mark.parametrize("format_name", ["yuv420p", "yuv420p10le", "p010le"])
def test_grey_is_stored_without_chroma(tmp_path: Path, name: str, format_name: str) -> None:
    info = make_info(
        format_name=format_name, color=ColorSpec(matrix="bt709", matrix_code=1, full_range=name == "m.mkv")
    )
    path = tmp_path / name
    codec: Any = "ffv1" if name == "m.mkv" else "auto"
    encode(
        path, info, pts=[0], encoding=choose_encoding(path, codec=codec, source_format=info.format, grey=True)
    )
    picture = decode(path)[0]
    assert picture.format.name.startswith("gray")
    depth = info.format.bit_depth
    luma = (make_frame(info, 0).planes[0] >> info.format.sample_shift).astype(float)
    bits = picture.format.components[0].bits
    got = plane(
        picture,
        0,
        np.uint8 if bits == 8 else np.dtype(">u2") if picture.format.name.endswith("be") else np.uint16,
    )
    if name == "m.mkv":
        np.testing.assert_array_equal(got, luma)
    else:
        want = (luma - (16 << depth - 8)) * ((1 << bits) - 1) / (219 << depth - 8)
        assert np.abs(got - want.clip(0)).max() <= 0.5 + 1e-6
