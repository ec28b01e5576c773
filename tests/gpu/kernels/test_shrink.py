from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pictures import FORMATS, random_frame, solid_frame, strided
from vitascope.frames import PIXEL_FORMATS, ColorSpec
from vitascope.gpu.kernels.region import Region
from vitascope.gpu.kernels.shrink import shrink_frame, shrunk_regions


def whole(frame):
    return [Region(0, 0, frame.width, frame.height)]


def window_weights(start, step, count, first, length):
    """Return the share of each sample in each window: row o has window o, and borders repeat.

    The samples are ``length`` ones, from ``first`` on.
    """
    weights = np.zeros((count, length))
    for output in range(count):
        begin, end = start + output * step, start + (output + 1) * step
        for sample in range(int(np.floor(begin)), int(np.ceil(end))):
            part = min(sample + 1, end) - max(sample, begin)
            weights[output, min(max(sample - first, 0), length - 1)] += part / step
    return weights


def exact(plane, own, start, step, count):
    """Compute the definition in float64; starts and steps are (x, y) in plane coordinates, counts (width, height)."""
    patch = plane[own.rows, own.columns].astype(np.float64)
    rows = window_weights(start[1], step[1], count[1], own.y, own.height)
    columns = window_weights(start[0], step[0], count[0], own.x, own.width)
    return np.einsum("or,rc...,pc->op...", rows, patch, columns)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("location", ["left", "center", "topleft"])
@pytest.mark.parametrize(
    ("source", "size"), [((48, 64), (30, 40)), ((17, 31), (6, 10)), ((40, 36), (40, 10)), ((15, 9), (6, 8))]
)
def test_every_sample_is_the_mean_of_its_window(name, location, source, size):
    fmt = PIXEL_FORMATS[name]
    frame = strided(random_frame(fmt, source, color=ColorSpec(chroma_location=location)))
    small = shrink_frame(frame, regions=whole(frame), size=size)
    assert small.format is fmt
    assert (small.height, small.width) == size
    step = (source[1] / size[1], source[0] / size[0])
    word = 1 << fmt.sample_shift
    luma = exact(frame.planes[0], Region(0, 0, source[1], source[0]), (0, 0), step, (size[1], size[0]))
    assert np.abs(small.planes[0] / word - luma / word).max() <= 0.501
    chroma_size = fmt.chroma_size(source[1], source[0])
    cosited = (
        fmt.chroma_shift_x and location != "center",
        fmt.chroma_shift_y and location == "topleft",
    )
    # A cosited sample's centre is at j + 1/4 between the blocks' edges, but at j + 1/2 of its own plane.
    start = tuple((0.25 * s + 0.25) - 0.5 * s if c else 0.0 for s, c in zip(step, cosited, strict=True))
    for plane, made in zip(frame.planes[1:], small.planes[1:], strict=True):
        expected = exact(plane, Region(0, 0, *chroma_size), start, step, fmt.chroma_size(size[1], size[0]))
        assert np.abs(made / word - expected / word).max() <= 0.501


def test_a_cosited_chroma_edge_stays_where_it_is_in_luma():
    """Check a ramp: chroma that equals luma at every site must still do so in the smaller picture."""
    fmt = PIXEL_FORMATS["yuv420p"]
    for location, offset in (("left", 0.0), ("center", 0.5)):
        frame = solid_frame(fmt, (32, 480), (0, 0, 0), color=ColorSpec(chroma_location=location))
        luma = np.tile(np.arange(480) / 2, (32, 1))
        chroma = np.tile((np.arange(240) * 2 + offset) / 2, (16, 1))
        frame = frame.with_planes(
            (np.rint(luma).astype(np.uint8), *(np.rint(chroma).astype(np.uint8) for _ in range(2)))
        )
        small = shrink_frame(frame, regions=whole(frame), size=(8, 120))
        sites = np.arange(60) * 2 + offset
        at_sites = np.interp(sites, np.arange(120), small.planes[0][4])
        assert np.abs(small.planes[1][2] - at_sites)[1:-1].max() <= 1.01


@pytest.mark.parametrize("eyes", ["side by side", "top bottom"])
@pytest.mark.parametrize("location", ["left", "topleft"])
def test_no_eye_sees_the_other(eyes, location):
    frame = random_frame(PIXEL_FORMATS["nv12"], (64, 96), color=ColorSpec(chroma_location=location))
    if eyes == "side by side":
        regions = [Region(0, 0, 48, 64), Region(48, 0, 48, 64)]
    else:
        regions = [Region(0, 0, 96, 32), Region(0, 32, 96, 32)]
    small = shrink_frame(frame, regions=regions, size=(20, 36))
    other = tuple(plane.copy() for plane in frame.planes)
    second = regions[1]
    other[0][second.rows, second.columns] = 7
    other[1][second.y // 2 :, second.x // 2 :] = 9
    changed = shrink_frame(frame.with_planes(other), regions=regions, size=(20, 36))
    share = shrunk_regions(regions, frame_size=(64, 96), size=(20, 36))[0]
    np.testing.assert_array_equal(
        changed.planes[0][share.rows, share.columns], small.planes[0][share.rows, share.columns]
    )
    half = (slice(0, share.height // 2), slice(0, share.width // 2))
    np.testing.assert_array_equal(changed.planes[1][half], small.planes[1][half])


@pytest.mark.parametrize("name", ["yuv420p", "p010le"])
def test_the_same_size_is_the_same_picture(name):
    frame = random_frame(PIXEL_FORMATS[name], (18, 30))
    same = shrink_frame(frame, regions=whole(frame), size=(18, 30))
    for plane, made in zip(frame.planes, same.planes, strict=True):
        np.testing.assert_array_equal(made, plane)


def test_an_eye_of_odd_width_may_take_a_sample_more():
    frame = random_frame(PIXEL_FORMATS["yuv420p"], (16, 30))
    regions = [Region(0, 0, 15, 16), Region(15, 0, 15, 16)]
    same = shrink_frame(frame, regions=regions, size=(16, 30))
    expected = exact(frame.planes[0], regions[0], (0, 0), (15 / 16, 1), (16, 16))
    assert np.abs(same.planes[0][:, :16] - expected).max() <= 0.501


@given(width=st.integers(4, 9000), target=st.integers(2, 4500), odd=st.booleans())
def test_shares_of_two_eyes_meet_and_are_even(width, target, odd):
    width, target = width * 2 + odd, min(target, width) // 2 * 2
    half = width // 2
    regions = [Region(0, 0, half, 10), Region(half, 0, width - half, 10)]
    try:
        left, right = shrunk_regions(regions, frame_size=(10, width), size=(4, target))
    except ValueError as error:
        assert "is left" in str(error)
        return
    assert left.x == 0
    assert left.x + left.width == right.x
    assert right.x + right.width == target
    assert left.width % 2 == right.width % 2 == 0


@pytest.mark.parametrize(
    ("regions", "size", "complaint"),
    [
        ([Region(0, 0, 20, 16)], (7, 10), "even"),
        ([Region(0, 0, 20, 16)], (18, 10), "at most"),
        ([Region(0, 0, 20, 16)], (0, 10), "at most"),
        ([Region(0, 0, 10, 16)], (8, 10), "cover"),
        ([Region(0, 0, 2, 16), Region(2, 0, 18, 16)], (8, 6), "is left"),
    ],
)
def test_what_does_not_fit_is_refused(regions, size, complaint):
    frame = random_frame(PIXEL_FORMATS["nv12"], (16, 20))
    with pytest.raises(ValueError, match=complaint):
        shrink_frame(frame, regions=regions, size=size)
