"""Tests of images as video: order, patterns, mixed formats, and exact RGB colours."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import av
import cv2
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clips import moving_disc, write_clip
from vitascope.errors import CorruptInputError, InputError, UsageError
from vitascope.media.reading.images import find_images, natural_key
from vitascope.media.reading.reader import open_video, probe


def write_image(path: Path, rgb: npt.NDArray[np.generic]) -> Path:
    assert cv2.imwrite(str(path), np.ascontiguousarray(rgb[..., ::-1]))
    return path


def noise(
    height: int = 48, width: int = 64, *, seed: int = 0, dtype: type = np.uint8
) -> npt.NDArray[np.generic]:
    largest = np.iinfo(dtype).max
    rgb = np.random.default_rng(seed).integers(0, largest, (height, width, 3), dtype=dtype, endpoint=True)
    rgb[0, :8] = np.array([[c >> 2 & 1, c >> 1 & 1, c & 1] for c in range(8)], dtype) * largest
    return rgb


def bt709_full(rgb: npt.NDArray[np.generic], depth: int) -> list[npt.NDArray[np.float64]]:
    """Convert by H.273, equations 41 to 43, for KR = 0.2126, KB = 0.0722, full range."""
    largest = (1 << depth) - 1
    r, g, b = np.moveaxis(rgb.astype(np.float64) * largest / np.iinfo(rgb.dtype).max, -1, 0)
    y = 0.2126 * r + 0.7152 * g + 0.0722 * b
    middle = 1 << (depth - 1)
    planes = (y, (b - y) / 1.8556 + middle, (r - y) / 1.5748 + middle)
    return [np.clip(plane, 0, largest) for plane in planes]


def grey_level(path: Path, level: int, size: tuple[int, int] = (32, 16)) -> Path:
    return write_image(path, np.full((size[1], size[0], 3), level, np.uint8))


@pytest.mark.parametrize("size", [(64, 48), (63, 47), (1, 1)])
def test_rgb_is_bt709_full_range_to_the_nearest_code(tmp_path: Path, size: tuple[int, int]) -> None:
    rgb = noise()[: size[1], : size[0]]
    with open_video(write_image(tmp_path / "a.png", rgb)) as reader:
        (frame,) = list(reader)
    assert frame.format.name == "yuv444p"
    assert (frame.color.matrix, frame.color.full_range, frame.color.matrix_code) == ("bt709", True, 1)
    assert (frame.color.primaries, frame.color.transfer) == (1, 13)
    for plane, exact in zip(frame.planes, bt709_full(rgb, 8), strict=True):
        assert np.abs(plane - exact).max() <= 0.75
    if size == (64, 48):
        assert all(abs(np.mean(p - e)) < 0.02 for p, e in zip(frame.planes, bt709_full(rgb, 8), strict=True))


def test_rgb_agrees_with_swscale(tmp_path: Path) -> None:
    rgb = moving_disc(96, 64)(0)
    expected = av.VideoFrame.from_ndarray(rgb, format="rgb24").reformat(
        format="yuv444p", dst_colorspace="ITU709", dst_color_range="JPEG"
    )
    with open_video(write_image(tmp_path / "a.png", rgb)) as reader:
        planes = np.stack(next(reader).planes).astype(int)
    assert np.abs(planes - expected.to_ndarray()).max() <= 1


def test_deep_rgb_keeps_its_depth(tmp_path: Path) -> None:
    rgb = noise(dtype=np.uint16)
    with open_video(write_image(tmp_path / "a.png", rgb)) as reader:
        frame = next(reader)
    assert frame.format.name == "yuv444p12le"
    for plane, exact in zip(frame.planes, bt709_full(rgb, 12), strict=True):
        assert plane.max() <= 4095
        assert np.abs(plane - exact).max() <= 0.75


def test_grey_becomes_luma(tmp_path: Path) -> None:
    grey = noise()[:9, :7, 0]
    cv2.imwrite(str(tmp_path / "a.png"), grey)
    with open_video(tmp_path / "a.png") as reader:
        frame = next(reader)
    assert frame.format.name == "yuv420p"
    assert frame.color.full_range
    np.testing.assert_array_equal(frame.planes[0], grey)
    assert [plane.shape for plane in frame.planes[1:]] == [(5, 4), (5, 4)]
    assert all((plane == 128).all() for plane in frame.planes[1:])


def test_jpeg_is_full_range_bt601_centred(tmp_path: Path) -> None:
    with open_video(write_image(tmp_path / "a.jpg", moving_disc(96, 64)(0))) as reader:
        frame = next(reader)
    color = frame.color
    assert (frame.format.name, color.matrix, color.full_range, color.chroma_location) == (
        "yuv420p", "bt601", True, "center",
    )  # fmt: skip
    luma = moving_disc(96, 64)(0) @ [0.299, 0.587, 0.114]
    assert np.abs(frame.planes[0] - luma).mean() < 2


@pytest.mark.parametrize("suffix", ["png", "jpg", "bmp", "tiff", "ppm", "webp"])
def test_one_image_is_a_video_of_one_frame(tmp_path: Path, suffix: str) -> None:
    path = write_image(tmp_path / f"picture 100%d.{suffix}", moving_disc(31, 17)(0))
    info = probe(path)
    assert (info.width, info.height, info.container, info.frame_count_estimate) == (31, 17, "images", 1)
    assert info.duration_seconds == pytest.approx(0.04)
    with open_video(path) as reader:
        assert len(list(reader)) == 1
        assert reader.info == info


def test_avif_is_a_picture(tmp_path: Path) -> None:
    with open_video(write_clip(tmp_path / "a.avif", codec="libsvtav1", frame_count=1)) as reader:
        assert len(list(reader)) == 1
        assert reader.info.container == "images"


def test_avif_that_moves_is_refused(tmp_path: Path) -> None:
    """Check the refusal; only the first picture was read, silently."""
    path = write_clip(tmp_path / "a.avif", codec="libsvtav1", frame_count=3)
    with pytest.raises(InputError, match=r"a\.avif: an animated AVIF, which cannot be read; convert it"):
        open_video(path)


def test_transparency_is_left_out(tmp_path: Path) -> None:
    rgba = np.dstack([noise(8, 8), np.full((8, 8), 7, np.uint8)])
    cv2.imwrite(str(tmp_path / "a.png"), rgba[..., [2, 1, 0, 3]])
    with open_video(tmp_path / "a.png") as reader:
        frame = next(reader)
    for plane, exact in zip(frame.planes, bt709_full(rgba[..., :3], 8), strict=True):
        assert np.abs(plane - exact).max() <= 0.75


def test_gif_is_a_video_in_rgb(tmp_path: Path) -> None:
    gif = write_clip(tmp_path / "a.gif", codec="gif", pixel_format="rgb8", frame_count=3)
    with open_video(gif) as reader:
        frames = list(reader)
    with av.open(str(gif)) as container:
        expected = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    assert reader.info.container == "gif"
    for frame, rgb in zip(frames, expected, strict=True):
        for plane, exact in zip(frame.planes, bt709_full(rgb, 8), strict=True):
            assert np.abs(plane - exact).max() <= 0.75


def test_folder_is_read_in_natural_order(tmp_path: Path) -> None:
    for n in (1, 2, 10, 9, 100):
        grey_level(tmp_path / f"img{n}.png", n)
    grey_level(tmp_path / ".hidden.png", 200)
    (tmp_path / "notes.txt").write_text("not an image")
    (tmp_path / "img3.png.part").write_bytes(b"")
    (tmp_path / "inner.png").mkdir()
    with open_video(tmp_path) as reader:
        frames = list(reader)
    assert [int(frame.planes[0][0, 0]) for frame in frames] == [1, 2, 9, 10, 100]
    assert [frame.pts for frame in frames] == [0, 1, 2, 3, 4]
    assert {frame.time_base for frame in frames} == {Fraction(1, 25)}
    assert {frame.duration for frame in frames} == {1}
    assert reader.info.container == "images"
    assert reader.info.frame_count_estimate == 5
    assert reader.info.path == tmp_path


def test_printf_pattern_and_glob(tmp_path: Path) -> None:
    for n in range(8, 12):
        grey_level(tmp_path / f"img_{n:04d}.png", n)
    grey_level(tmp_path / "img_7.png", 7)
    grey_level(tmp_path / "other_0001.png", 99)

    def levels(pattern: str) -> list[int]:
        with open_video(tmp_path / pattern, image_frame_rate=Fraction(30000, 1001)) as reader:
            frames = list(reader)
        assert all(frame.time_base == Fraction(1001, 30000) for frame in frames)
        return [int(frame.planes[0][0, 0]) for frame in frames]

    assert levels("img_%04d.png") == [8, 9, 10, 11]
    assert levels("img_%d.png") == [7, 8, 9, 10, 11]
    assert levels("img_*.png") == [7, 8, 9, 10, 11]
    assert levels("img_00[01]?.png") == [8, 9, 10, 11]


def test_mixed_formats_take_the_first_ones_layout(tmp_path: Path) -> None:
    write_image(tmp_path / "1.png", np.full((16, 32, 3), 80, np.uint8))
    write_image(tmp_path / "2.jpg", np.full((16, 32, 3), 80, np.uint8))
    write_image(tmp_path / "3.bmp", np.full((16, 32, 3), 80, np.uint8))
    with open_video(tmp_path) as reader:
        frames = list(reader)
    assert {frame.format.name for frame in frames} == {"yuv444p"}
    for frame in frames:
        assert abs(int(frame.planes[0][8, 16]) - 80) <= 1


def test_trim_of_images(tmp_path: Path) -> None:
    for n in range(20):
        grey_level(tmp_path / f"{n}.png", n)
    with open_video(tmp_path, image_frame_rate=10, start_seconds=0.5, end_seconds=0.8) as reader:
        frames = list(reader)
    assert [(frame.index, frame.pts, int(frame.planes[0][0, 0])) for frame in frames] == [
        (0, 5, 5), (1, 6, 6), (2, 7, 7),
    ]  # fmt: skip


def test_size_change_is_an_error(tmp_path: Path) -> None:
    grey_level(tmp_path / "1.png", 10)
    grey_level(tmp_path / "2.png", 10, size=(34, 16))
    with (
        open_video(tmp_path) as reader,
        pytest.raises(InputError, match=r"from 32x16 to 34x16 at .*; leave those"),
    ):
        list(reader)


def test_damaged_image_is_skipped_and_time_goes_on(tmp_path: Path) -> None:
    for n in range(4):
        grey_level(tmp_path / f"{n}.png", n)
    (tmp_path / "1.png").write_bytes(b"")
    with open_video(tmp_path) as reader:
        assert [frame.pts for frame in reader] == [0, 2, 3]
    assert reader.corrupt_count == 1
    with open_video(tmp_path, max_corrupt_frames=0) as reader, pytest.raises(CorruptInputError):
        list(reader)


@pytest.mark.parametrize("name", ["missing_%03d.png", "missing_*.png", "nowhere/img_%d.png"])
def test_patterns_without_files(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match=r"no (file|image) matches") as error:
        open_video(tmp_path / name)
    assert str(tmp_path / name) in str(error.value)


def test_impossible_frame_rate(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="frame rate of 0"):
        open_video(grey_level(tmp_path / "a.png", 1), image_frame_rate=0)


def test_existing_file_wins_over_its_pattern(tmp_path: Path) -> None:
    path = grey_level(tmp_path / "img_%d.png", 5)
    grey_level(tmp_path / "img_1.png", 6)
    assert find_images(path) is None
    with open_video(path) as reader:
        assert [int(frame.planes[0][0, 0]) for frame in reader] == [5]


@given(st.lists(st.integers(0, 10**12), unique=True, max_size=30))
def test_natural_order_is_numeric(numbers: list[int]) -> None:
    names = sorted((f"img{n}.png" for n in numbers), key=natural_key)
    assert names == [f"img{n}.png" for n in sorted(numbers)]


@given(st.lists(st.text(), max_size=20))
def test_natural_key_is_total(names: list[str]) -> None:
    assert sorted(sorted(names, key=natural_key)) == sorted(names)
    assert all((natural_key(a) == natural_key(b)) == (a == b) for a in names for b in names)
