from __future__ import annotations

import cv2
import numpy as np
import pytest

from cuda_sources import architectures, assert_compiles, needs_nvcc
from pictures import FORMATS, random_frame, solid_frame
from vitascope.frames import PIXEL_FORMATS
from vitascope.gpu.kernels.color import alpha_dtype, yuv_from_rgb
from vitascope.gpu.kernels.foreground import colors_size, decontaminate, local_colors
from vitascope.gpu.kernels.region import Region

ORANGE, BLUE = (0.9, 0.5, 0.1), (0.1, 0.2, 0.8)


def disc_alpha(frame):
    y, x = np.mgrid[0 : frame.height, 0 : frame.width]
    distance = np.hypot(y - frame.height / 2, x - frame.width / 2)
    dtype = alpha_dtype(frame)
    return (np.clip((frame.height / 3 - distance) / 6 + 0.5, 0, 1) * np.iinfo(dtype).max).astype(dtype)


def constant(rgb, eyes=1):
    """Make a uniform colour."""
    return np.broadcast_to(np.float32(rgb)[None, :, None, None], (eyes, 3, 4, 4)).copy()


def over(alpha, person, scene):
    """Compute what a camera sees: [3, h, w]."""
    return (
        alpha * np.float32(person)[:, None, None] + (1 - alpha) * np.float32(scene)[:, None, None]
    ).astype(np.float32)


def soft_disc(size, radius=0.3, softness=6.0):
    y, x = np.mgrid[0 : size[0], 0 : size[1]]
    distance = np.hypot(y - size[0] / 2, x - size[1] / 2)
    return np.clip((radius * size[0] - distance) / softness + 0.5, 0, 1).astype(np.float32)


def given(alpha):
    """Make coefficients that give alpha, whatever the picture shows."""
    return np.zeros((1, 1, *alpha.shape), np.float32), alpha[None, None].astype(np.float32)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("size", [(48, 64), (47, 61)])
def test_what_was_mixed_of_two_colours_becomes_the_persons_and_the_rest_stays(name, size):
    frame = solid_frame(PIXEL_FORMATS[name], size, BLUE)
    alpha = disc_alpha(frame)
    share = alpha / np.iinfo(alpha.dtype).max
    matrix, shift = yuv_from_rgb(frame.color, frame.format)
    orange, blue = (matrix @ np.array(color) + shift for color in (ORANGE, BLUE))
    step = 1 << frame.format.sample_shift
    luma = (np.rint((orange[0] * share + blue[0] * (1 - share)) / step) * step).astype(frame.planes[0].dtype)
    frame = frame.with_planes((luma, *frame.planes[1:]))
    whole = [Region(0, 0, size[1], size[0])]
    out = decontaminate(frame, alpha, regions=whole, person=constant(ORANGE), scene=constant(BLUE))
    partial = (share > 0) & (share < 1)
    assert partial.any()
    assert np.abs(out.planes[0][partial] - orange[0]).max() <= 2 * step
    np.testing.assert_array_equal(out.planes[0][~partial], frame.planes[0][~partial])


@pytest.mark.parametrize("name", FORMATS)
def test_chroma_is_the_persons_as_far_as_its_own_alpha_says(name):
    frame = random_frame(PIXEL_FORMATS[name], (40, 40))
    half = np.full((40, 40), np.iinfo(alpha_dtype(frame)).max // 2 + 1, alpha_dtype(frame))
    out = decontaminate(
        frame, half, regions=[Region(0, 0, 40, 40)], person=constant(ORANGE), scene=constant(BLUE)
    )
    matrix, shift = yuv_from_rgb(frame.color, frame.format)
    orange, blue = (matrix @ np.array(color) + shift for color in (ORANGE, BLUE))
    step = 1 << frame.format.sample_shift
    peak = (2**frame.format.bit_depth - 1) * step
    for plane, made, channel in zip(frame.planes, out.planes, (0, 1, 2), strict=False):
        if plane.ndim == 3:
            plane, made = plane[..., 0], made[..., 0]
        expected = orange[channel] + 0.5 * (plane - 0.5 * (orange[channel] + blue[channel]))
        assert np.abs(made - np.clip(expected, 0, peak)).max() <= 2 * step + peak / 255


def test_colours_that_explain_the_picture_wholly_change_nothing():
    frame = solid_frame(PIXEL_FORMATS["yuv444p"], (40, 40), ORANGE)
    out = decontaminate(
        frame,
        disc_alpha(frame),
        regions=[Region(0, 0, 40, 40)],
        person=constant(ORANGE),
        scene=constant(ORANGE),
    )
    for source, result in zip(frame.planes, out.planes, strict=True):
        assert np.abs(result.astype(int) - source).max() <= 1


def test_the_input_is_not_written_to():
    frame = random_frame(PIXEL_FORMATS["yuv420p"], (40, 40))
    before = [plane.copy() for plane in frame.planes]
    whole = [Region(0, 0, 40, 40)]
    decontaminate(frame, disc_alpha(frame), regions=whole, person=constant(ORANGE), scene=constant(BLUE))
    for plane, copy in zip(frame.planes, before, strict=True):
        np.testing.assert_array_equal(plane, copy)


def test_each_eye_has_its_own_colours():
    frame = solid_frame(PIXEL_FORMATS["yuv444p"], (32, 64), (0.5, 0.5, 0.5))
    alpha = np.full((32, 64), 1, np.uint8)  # almost nothing of the picture belongs to the person
    person = np.concatenate([constant((0, 0, 0)), constant((1, 1, 1))])
    eyes = [Region(0, 0, 32, 32), Region(32, 0, 32, 32)]
    out = decontaminate(frame, alpha, regions=eyes, person=person, scene=constant((0.5, 0.5, 0.5), 2))
    assert (out.planes[0][:, :32] <= 17).all()
    assert (out.planes[0][:, 32:] >= 234).all()


@pytest.mark.parametrize("size", [(72, 96), (45, 61), (8, 8), (3, 5), (1, 1)])
def test_of_two_flat_colours_both_are_found_along_the_edge(size):
    alpha = soft_disc(size)
    person, scene = local_colors(over(alpha, ORANGE, BLUE)[None], *given(alpha))
    np.testing.assert_array_equal(person[:, 3], 0)
    np.testing.assert_array_equal(scene[0, 3], alpha)
    edge = (alpha > 0.1) & (alpha < 0.9)
    share = alpha[edge]
    seen = over(alpha, ORANGE, BLUE)[:, edge]
    found = person[0, :3, edge].T + share * (
        seen - share * person[0, :3, edge].T - (1 - share) * scene[0, :3, edge].T
    )
    if edge.any() and min(size) > 40:
        assert np.abs(found - np.float32(ORANGE)[:, None]).mean() < 0.05
        assert np.abs(seen - np.float32(ORANGE)[:, None]).mean() > 0.2


def test_local_colours_are_those_of_the_formula_read_from_the_paper():
    """Check plain loops over the same windows."""
    rng = np.random.default_rng(0)
    height, width = 30, 44
    alpha = soft_disc((height, width), softness=9)
    picture = rng.random((3, height, width), np.float32)
    person, scene = local_colors(picture[None], *given(alpha))
    cells = [
        [(slice(8 * row, 8 * row + 8), slice(8 * column, 8 * column + 8)) for column in range(6)]
        for row in range(4)
    ]

    def wide(values):
        sums = np.array([[values[where].sum() for where in row] for row in cells])
        # Five cells in each direction.
        spread = np.array(
            [[sums[max(y - 5, 0) : y + 6, max(x - 5, 0) : x + 6].sum() for x in range(6)] for y in range(4)]
        )
        return cv2.resize(spread, None, fx=8, fy=8, interpolation=cv2.INTER_LINEAR)[:height, :width]

    def narrow(values):
        padded = np.pad(values.astype(np.float64), 4)
        return np.array([[padded[y : y + 9, x : x + 9].sum() for x in range(width)] for y in range(height)])

    rest = 1 - alpha
    mixed = (narrow(alpha) > 1e-3) & (narrow(rest) > 1e-3)
    for channel, plane in enumerate(picture):
        near, behind = wide(plane * alpha) / wide(alpha), wide(plane * rest) / wide(rest)
        first = near + alpha * (plane - alpha * near - rest * behind)
        expected = narrow(alpha * first) / np.maximum(narrow(alpha), 1e-9)
        clear = mixed & (narrow(alpha) > 20)
        assert np.abs(person[0, channel] - expected)[clear].max() < 0.02
        assert np.abs(scene[0, channel] - behind)[mixed].max() < 0.02


@pytest.mark.parametrize("place", [(0, 0), (70, 130), (140, 260), (61, 3)])
def test_what_lies_far_away_changes_no_colours_near_people(place):
    """Only the area around people is computed."""
    rng = np.random.default_rng(2)
    picture, alpha = rng.random((3, 180, 300), np.float32), np.zeros((180, 300), np.float32)
    where = slice(place[0], place[0] + 40), slice(place[1], place[1] + 40)
    alpha[where] = soft_disc((40, 40))
    made = local_colors(picture[None], *given(alpha))
    down, across = np.mgrid[0:180, 0:300]
    # Five cells further than the means that a sample reads, and four samples.
    is_far = np.maximum(abs(down - place[0] - 20), abs(across - place[1] - 20)) > 20 + 7 * 8 + 4
    elsewhere = local_colors(np.where(is_far, 1 - picture, picture)[None], *given(alpha))
    for color, other in zip(made, elsewhere, strict=True):
        np.testing.assert_allclose(color[..., ~is_far], other[..., ~is_far], atol=1e-5)
        np.testing.assert_array_equal(color[0, :3, is_far], picture[:, is_far].T)
    assert (made[0][0, :3] != picture).any()


@pytest.mark.parametrize("name", ["yuv420p", "nv12", "yuv422p10le"])
@pytest.mark.parametrize("place", [(0, 0), (0, 51), (37, 0), (36, 50), (17, 22)])
def test_people_in_a_part_of_the_picture_get_the_colours_of_their_place(name, place):
    """Check hard edges, where only chroma is mixed; the result equals that with partial alpha in other places."""
    frame = random_frame(PIXEL_FORMATS[name], (47, 61))
    rng = np.random.default_rng(1)
    colors = {key: rng.random((1, 3, 20, 26), np.float32) for key in ("person", "scene")}
    alpha = np.zeros((47, 61), alpha_dtype(frame))
    person = slice(place[0], place[0] + 10), slice(place[1], place[1] + 10)
    alpha[person] = rng.choice([0, np.iinfo(alpha.dtype).max // 3, np.iinfo(alpha.dtype).max], (10, 10))[
        : alpha[person].shape[0], : alpha[person].shape[1]
    ]
    around = alpha.copy()
    for corner in ((0, 0), (0, -1), (-1, 0), (-1, -1)):
        around[corner] = around[corner] or 1
    whole = [Region(0, 0, 61, 47)]
    made = decontaminate(frame, alpha, regions=whole, **colors)
    other = decontaminate(frame, around, regions=whole, **colors)
    step_y, step_x = 1 << frame.format.chroma_shift_y, 1 << frame.format.chroma_shift_x
    for slot, (plane, expected) in enumerate(zip(made.planes, other.planes, strict=True)):
        steps = (step_y, step_x) if slot else (1, 1)
        inside = np.ones(plane.shape[:2], bool)
        for rows in (slice(None, 4 // steps[0]), slice(-4 // steps[0], None)):
            for columns in (slice(None, 4 // steps[1]), slice(-4 // steps[1], None)):
                inside[rows, columns] = False
        np.testing.assert_array_equal(plane[inside], expected[inside])
    assert any((one != two).any() for one, two in zip(made.planes, frame.planes, strict=True))


def test_far_from_an_edge_colours_are_the_pictures_own():
    rng = np.random.default_rng(0)
    alpha = np.zeros((40, 60), np.float32)
    alpha[:, :30] = 1
    picture = rng.random((1, 3, 40, 60), np.float32)
    person, scene = local_colors(picture, *given(alpha))
    for made in (person, scene):
        np.testing.assert_array_equal(made[0, :3, :, :24], picture[0, :, :, :24])
        np.testing.assert_array_equal(made[0, :3, :, 36:], picture[0, :, :, 36:])


def test_nobody_and_shapes_that_do_not_fit():
    picture = np.random.default_rng(0).random((2, 3, 9, 9), np.float32)
    zeros = np.zeros((2, 1, 9, 9), np.float32)
    for made in local_colors(picture, zeros, zeros):
        np.testing.assert_array_equal(made[:, :3], picture)
    out = np.ones((2, 2, 4, 9, 9), np.float32)
    assert all(np.shares_memory(made, out) for made in local_colors(picture, zeros, zeros, out=out))
    np.testing.assert_array_equal(out[:, :, 3], 0)
    with pytest.raises(ValueError, match="expected"):
        local_colors(picture, zeros[:1], zeros[:1])


def test_colours_beside_large_coefficients_reach_as_far_as_in_smaller_pictures():
    """Check coefficients of the eyes' own size, in whose samples the means would reach half as far."""
    large = soft_disc((1500, 2048), softness=150)
    small = cv2.resize(large, colors_size(large.shape)[::-1], interpolation=cv2.INTER_AREA)
    assert small.shape == (750, 1024)
    picture = over(small, ORANGE, BLUE)[None]
    expected = local_colors(picture, *given(small))
    out = np.empty((2, 1, 4, *large.shape), np.float32)
    made = local_colors(picture, *given(large), out=out)
    for one, other, own in zip(made, expected, given(large), strict=True):
        assert np.shares_memory(one, out)
        np.testing.assert_array_equal(one[:, 3:], own)
        shown = [cv2.resize(plane, large.shape[::-1]) for plane in other[0, :3]]
        assert np.abs(one[0, :3] - shown).max() < 0.02
    with pytest.raises(ValueError, match="expected"):
        local_colors(over(large, ORANGE, BLUE)[None], *given(large))


@pytest.mark.parametrize(
    ("size", "shown"),
    [((1024, 1024), (1024, 1024)), ((9, 300), (9, 300)), ((1, 4096), (1, 1024)), ((2064, 1161), (1024, 576))],
)
def test_pictures_in_which_colours_are_looked_for(size, shown):
    assert colors_size(size) == shown


@needs_nvcc
@pytest.mark.parametrize("architecture", architectures("foreground.cu"))
def test_the_source_compiles_to_ptx(tmp_path, architecture):
    several = [{}, {"COLOR": "__half", "COEFFICIENT": "__half"}, {"COLOR": "__half"}]
    assert_compiles(
        tmp_path, "foreground.cu", architecture, ["gather_cells", "spread_cells", "near_colors"], several
    )


@pytest.mark.cuda
@pytest.mark.parametrize("size", [(288, 512), (45, 61), (1, 1), (9, 300), (90, 1500)])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_colours_of_the_gpu_are_the_references(size, dtype):
    import cupy

    rng = np.random.default_rng(0)
    picture = rng.random((2, 3, *colors_size(size)), np.float32).astype(dtype)
    disc = soft_disc(size)
    gain = (rng.random((2, 1, *size), np.float32) * 0.2).astype(dtype)
    offset = np.stack([disc, disc[::-1]])[:, None].astype(dtype)
    expected = local_colors(picture, gain, offset)
    made = local_colors(*(cupy.asarray(array) for array in (picture, gain, offset)))
    for one, other in zip(made, expected, strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_allclose(one.get().astype(np.float32), other.astype(np.float32), atol=2e-3)
