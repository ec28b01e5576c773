"""Tests of packed alpha against the formula of its layout, and against what is read back."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vitascope.frames import PIXEL_FORMATS, ColorSpec, Frame, StereoLayout
from vitascope.vr.packing import AlphaPacker, pack_discs, packed_size, tile_size, unpack_discs
from vitascope.vr.projection import Equirectangular, Fisheye
from vitascope.vr.stereo import eye_regions

SIDE = 160


def grey_frame(height: int, width: int, name: str = "yuv420p", *, full_range: bool = False) -> Frame:
    fmt = PIXEL_FORMATS[name]
    middle = (1 << (fmt.bit_depth - 1)) << fmt.sample_shift
    chroma_width, chroma_height = fmt.chroma_size(width, height)
    chroma = (chroma_height, chroma_width, 2) if fmt.semi_planar else (chroma_height, chroma_width)
    planes = (
        np.full((height, width), middle, fmt.dtype),
        *(np.full(chroma, middle, fmt.dtype) for _ in range(1 if fmt.semi_planar else 2)),
    )
    return Frame(planes, fmt, ColorSpec("bt709", full_range), 0, 0, Fraction(1, 30))


def smooth_tiles(side: int, dtype: npt.DTypeLike = np.uint8) -> npt.NDArray[np.uint8]:
    """Make alpha that is equal in every block of 4:2:0, so that chroma loses nothing."""
    height, width = tile_size(side)
    peak = np.iinfo(dtype).max
    ramp = np.linspace(0, peak, width // 2)[None].repeat(height // 2, 0)
    left = np.repeat(np.repeat(np.rint(ramp), 2, 0), 2, 1)
    return np.stack([left, left.T[:height, :width] if height == width else left[::-1]]).astype(dtype)


def as_shares(tiles: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    """Convert codes to 0..1."""
    return tiles.astype(np.float32) / 255


def test_discs_lie_where_the_layout_says() -> None:
    """Check every sample against the formula: the wrapped distance to a centre, and alpha at its fisheye place."""
    frame = grey_frame(SIDE, 2 * SIDE, "yuv444p", full_range=True)
    height, width = tile_size(SIDE)
    tiles = np.random.default_rng(1).integers(0, 256, (2, height, width), dtype=np.uint8)
    pack_discs(frame, as_shares(tiles))
    red = np.rint(frame.to_rgb(dtype="float32")[..., 0] * 255)
    y, x = np.mgrid[0:SIDE, 0 : 2 * SIDE]
    met = np.zeros((SIDE, 2 * SIDE), bool)
    for tile, centre in zip(tiles, (SIDE, 0), strict=True):
        across = (x - centre + SIDE) % (2 * SIDE) - SIDE
        down = (y + SIDE // 2) % SIDE - SIDE // 2
        column, row = across + width // 2, down + height // 2
        inside = np.hypot((across + 0.5) / (width / 2), (down + 0.5) / (height / 2)) <= 1
        met |= inside
        assert np.abs(red[inside] - tile[row[inside], column[inside]]).max() <= 1
    assert (frame.planes[0][~met] == 128).all()  # nothing else changes


@pytest.mark.parametrize("name", ["yuv420p", "yuv422p", "yuv444p", "nv12", "yuv420p10le", "p010le"])
@pytest.mark.parametrize("color", ["red", "grey"])
@pytest.mark.parametrize("full_range", [False, True])
def test_what_is_packed_is_read_back(name: str, color, full_range: bool) -> None:
    frame = grey_frame(SIDE, 2 * SIDE, name, full_range=full_range)
    tiles = smooth_tiles(SIDE)
    pack_discs(frame, as_shares(tiles), color=color)
    read = unpack_discs(frame)
    height, width = tile_size(SIDE)
    y, x = np.mgrid[0:height, 0:width]
    distance = np.hypot((x + 0.5) / width * 2 - 1, (y + 0.5) / height * 2 - 1)
    assert (read[:, distance > 1] == 0).all()
    # At the rim, shared chroma also belongs to the neighbouring picture.
    error = np.abs(read * 255 - tiles)[:, distance < 0.9]
    shares_chroma = color == "red" and "444" not in name
    assert error.mean() <= 0.6
    assert error.max() <= (3.5 if shares_chroma else 1)


@pytest.mark.parametrize("level", [0, 1, 77, 128, 254, 255])
@pytest.mark.parametrize("name", ["yuv420p", "p010le"])
def test_even_alpha_is_read_back_within_a_code(name: str, level: int) -> None:
    frame = grey_frame(SIDE, 2 * SIDE, name)
    pack_discs(frame, as_shares(np.full((2, *tile_size(SIDE)), level, np.uint8)))
    read = unpack_discs(frame)[:, 10:-10, 20:-20] * 255
    assert np.abs(read - level).max() <= 1


@settings(max_examples=25, deadline=None)
@given(side=st.integers(8, 300).map(lambda half: 2 * half))
def test_discs_do_not_touch_the_eyes(side: int) -> None:
    frame = grey_frame(side, 2 * side, "yuv444p")
    pack_discs(frame, np.ones((2, *tile_size(side)), np.float32))
    y, x = np.mgrid[0:side, 0 : 2 * side]
    eye = np.hypot((x % side + 0.5) / side * 2 - 1, (y + 0.5) / side * 2 - 1) <= 1
    assert (frame.planes[0][eye] == 128).all()


@pytest.mark.parametrize(
    ("layout", "size", "made"),
    [
        (StereoLayout.SIDE_BY_SIDE, (128, 256), (128, 256)),
        (StereoLayout.TOP_BOTTOM, (256, 128), (128, 256)),
        (StereoLayout.SIDE_BY_SIDE, (128, 128), (128, 256)),  # half side by side: squeezed eyes
        (StereoLayout.SIDE_BY_SIDE, (129, 255), (128, 256)),
    ],
)
@pytest.mark.parametrize("lens", [Equirectangular(180, 180), Fisheye(190)])
def test_a_frame_of_any_layout_is_packed(layout, size, made, lens) -> None:
    height, width = size
    frame = grey_frame(height, width)
    regions = eye_regions(width, height, layout)
    alpha = np.zeros((height, width), np.uint8)
    for region in regions:  # a person in the middle of each eye
        alpha[
            region.y + region.height // 4 : region.y + region.height * 3 // 4,
            region.x + region.width // 4 : region.x + region.width * 3 // 4,
        ] = 255
    packer = AlphaPacker(regions, [lens, lens])
    assert packed_size(regions) == made
    packed = packer.pack(frame, alpha)
    assert (packed.height, packed.width) == made
    read = unpack_discs(packed)
    tile_height, tile_width = tile_size(made[0])
    middle = (
        slice(tile_height // 2 - 4, tile_height // 2 + 4),
        slice(tile_width // 2 - 4, tile_width // 2 + 4),
    )
    assert (read[:, middle[0], middle[1]] > 0.98).all()
    assert (read[:, tile_height // 2, 2] < 0.02).all()
    # The middle of each eye shows the picture; places that the lens does not show are black.
    assert packed.planes[0][made[0] // 2, made[0] // 2] == 128
    rim = packed.planes[0][made[0] // 2, 1]
    assert rim == (16 if isinstance(lens, Equirectangular) else 128)


@pytest.mark.parametrize("name", ["yuv420p", "nv12"])
@pytest.mark.parametrize("width", [320, 322])
@pytest.mark.parametrize("layout", [StereoLayout.SIDE_BY_SIDE, StereoLayout.TOP_BOTTOM])
@pytest.mark.parametrize("lens", [Equirectangular(180, 180), Fisheye(190)])
def test_no_colour_of_one_eye_is_read_for_the_other(name, width, layout, lens) -> None:
    """Check a seam that cuts a chroma block: one eye's chroma is low, the other's high, and black in the middle."""
    size = (160, width) if layout is StereoLayout.SIDE_BY_SIDE else (width, 160)
    frame = grey_frame(*size, name)
    along = 1 if layout is StereoLayout.SIDE_BY_SIDE else 0
    for plane in frame.planes[1:]:
        low, high = np.split(plane, [-(-plane.shape[along] // 2)], axis=along)
        low[:], high[:] = 40, 240
    packer = AlphaPacker(eye_regions(size[1], size[0], layout), [lens, lens])
    packed = packer.pack(frame, np.zeros(size, np.uint8))
    left, right = np.hsplit(packed.planes[1], 2)
    assert left.min() == 40
    assert left.max() <= 128
    assert right.max() == 240
    assert right.min() >= 128


def test_a_person_aside_lies_aside_in_the_disc() -> None:
    """Check 45 degrees to the right in an equirectangular eye, a quarter of a 190 degree disc from its middle."""
    side = 400
    alpha = np.zeros((side, 2 * side), np.uint8)
    alpha[side // 2 - 8 : side // 2 + 8, side * 3 // 4 - 8 : side * 3 // 4 + 8] = 255
    regions = eye_regions(2 * side, side, StereoLayout.SIDE_BY_SIDE)
    packer = AlphaPacker(regions, [Equirectangular(180, 180)] * 2)
    read = unpack_discs(packer.pack(grey_frame(side, 2 * side, "yuv444p"), alpha))
    height, width = tile_size(side)
    y, x = np.mgrid[0:height, 0:width]
    weight = read[0]
    assert read[1].max() < 0.02
    assert (weight * (x + 0.5)).sum() / weight.sum() == pytest.approx(width * (0.5 + 45 / 190), abs=0.2)
    assert (weight * (y + 0.5)).sum() / weight.sum() == pytest.approx(height / 2, abs=0.2)


@pytest.mark.parametrize("size", [(64, 64), (65, 130), (8, 16)])
def test_a_picture_without_room_is_refused(size) -> None:
    with pytest.raises(ValueError, match="holds no two fisheye eyes"):
        pack_discs(grey_frame(*size), np.zeros((2, 4, 4), np.float32))
