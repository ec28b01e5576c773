from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import cv2
import numpy as np
import pytest

from pictures import FORMATS, random_frame, solid_frame
from vitascope.frames import PIXEL_FORMATS, ColorSpec
from vitascope.gpu.kernels.fit import fit_frame
from vitascope.gpu.kernels.preprocess import preprocess
from vitascope.gpu.kernels.region import Region
from vitascope.gpu.kernels.rgb import planes_from_rgb


def soft_frame(fmt, size, *, color=None, seed=0):
    """Make a frame of slowly changing colours that RGB can hold."""
    rng = np.random.default_rng(seed)
    small = rng.uniform(0.2, 0.8, (5, 7, 3)).astype(np.float32)
    rgb = np.moveaxis(cv2.resize(small, (size[1], size[0]), interpolation=cv2.INTER_CUBIC), -1, 0)
    frame = random_frame(fmt, size, color=color)
    return frame.with_planes(planes_from_rgb(np.ascontiguousarray(rgb), fmt=fmt, color=frame.color))


def tolerance_of(fmt):
    """Allow two codes of 8 bits: at the border RGB repeats outputs, and planes repeat samples."""
    return (1 << fmt.sample_shift) * 2 ** (fmt.bit_depth - 7)


def by_way_of_rgb(picture, like, region, crop):
    rgb = np.zeros((3, like.height, like.width), np.float32)
    rgb[:, region.rows, region.columns] = preprocess(picture, regions=[crop], size=region.size)[0]
    return planes_from_rgb(rgb, fmt=like.format, color=like.color)


def whole(frame):
    return Region(0, 0, frame.width, frame.height)


@pytest.mark.parametrize("source", ["yuv420p", "yuv444p", "nv12", "p010le", "yuv422p10le"])
@pytest.mark.parametrize("target", FORMATS)
@pytest.mark.parametrize("sizes", [((90, 160), (90, 160)), ((60, 100), (90, 150)), ((180, 320), (90, 160))])
@pytest.mark.parametrize("full_range", [False, True])
def test_resized_codes_are_what_rgb_would_have_given(source, target, sizes, full_range):
    color = ColorSpec("bt709", full_range=full_range, chroma_location="left")
    other = ColorSpec("bt709", full_range=full_range, chroma_location="center")
    picture = soft_frame(PIXEL_FORMATS[source], sizes[0], color=color)
    like = random_frame(PIXEL_FORMATS[target], sizes[1], color=other)
    fitted = fit_frame(picture, like=like, regions=[whole(like)])
    tolerance = tolerance_of(like.format)
    for made, expected in zip(
        fitted.planes, by_way_of_rgb(picture, like, whole(like), whole(picture)), strict=True
    ):
        assert made.dtype == like.format.dtype
        assert not (made % (1 << like.format.sample_shift)).any()
        difference = np.abs(made.astype(int) - expected.astype(int))
        assert difference.max() <= tolerance


def test_a_picture_of_the_same_kind_and_size_is_copied():
    picture, like = (random_frame(PIXEL_FORMATS["yuv420p"], (32, 48), seed=seed) for seed in range(2))
    fitted = fit_frame(picture, like=like, regions=[whole(like)])
    for made, plane in zip(fitted.planes, picture.planes, strict=True):
        np.testing.assert_array_equal(made, plane)
        assert not np.shares_memory(made, plane)


@pytest.mark.parametrize("name", ["yuv420p", "nv12", "p010le", "yuv444p10le"])
def test_what_regions_leave_open_is_black(name):
    picture = soft_frame(PIXEL_FORMATS["yuv420p"], (32, 48))
    like = random_frame(PIXEL_FORMATS[name], (32, 64))
    fitted = fit_frame(picture, like=like, regions=[Region(0, 0, 32, 32)])
    black = solid_frame(like.format, (32, 64), (0, 0, 0))
    np.testing.assert_array_equal(fitted.planes[0][:, 32:], black.planes[0][:, 32:])
    half = 16 if like.format.chroma_shift_x else 32
    for made, expected in zip(fitted.planes[1:], black.planes[1:], strict=True):
        np.testing.assert_array_equal(made[:, half:], expected[:, half:])


@pytest.mark.parametrize(("matrix", "full_range"), [("bt601", False), ("bt709", True)])
def test_other_colour_goes_by_way_of_rgb(matrix, full_range):
    picture = solid_frame(
        PIXEL_FORMATS["yuv420p"], (32, 48), (0.8, 0.3, 0.2), color=ColorSpec(matrix, full_range)
    )
    like = random_frame(PIXEL_FORMATS["yuv420p"], (32, 48))
    fitted = fit_frame(picture, like=like, regions=[whole(like)])
    expected = solid_frame(like.format, (32, 48), (0.8, 0.3, 0.2))
    for made, plane in zip(fitted.planes, expected.planes, strict=True):
        assert np.abs(made.astype(int) - plane).max() <= 2


@pytest.mark.parametrize("turns", [(90, 0), (0, 90), (180, 180), (270, 90)])
def test_it_is_upright_when_the_frame_is_turned(turns):
    picture = soft_frame(PIXEL_FORMATS["yuv420p"], (40, 40))
    like = random_frame(PIXEL_FORMATS["yuv444p"], (40, 40))
    fitted = fit_frame(
        picture,
        like=like,
        regions=[whole(like)],
        picture_rotation_degrees=turns[0],
        rotation_degrees=turns[1],
    )
    # np.rot90 turns counter-clockwise.
    upright = np.rot90(fitted.planes[0], k=-turns[1] // 90)
    expected = np.rot90(picture.planes[0], k=-turns[0] // 90)
    assert np.abs(upright.astype(int) - expected).max() <= 2


@pytest.mark.cuda
@pytest.mark.parametrize("source", ["yuv420p", "nv12", "yuv420p10le", "yuv444p"])
@pytest.mark.parametrize("target", ["nv12", "p010le"])
@pytest.mark.parametrize("turns", [(0, 0), (90, 0), (0, 270)])
@pytest.mark.parametrize("eyes", [1, 2])
def test_on_the_gpu_it_is_the_same_picture(source, target, turns, eyes):
    import cupy
    from cuda_twins import frame_on_cpu, frame_on_gpu

    picture = soft_frame(PIXEL_FORMATS[source], (90, 160), color=ColorSpec(chroma_location="center"))
    like = random_frame(PIXEL_FORMATS[target], (100, 200))
    regions = [Region(200 // eyes * eye, 0, 200 // eyes, 100) for eye in range(eyes)]
    options = {"regions": regions, "picture_rotation_degrees": turns[0], "rotation_degrees": turns[1]}
    expected = fit_frame(picture, like=like, **options)
    fitted = fit_frame(picture, like=frame_on_gpu(like), **options)
    cupy.cuda.Device().synchronize()
    tolerance = tolerance_of(like.format)
    for made, plane in zip(frame_on_cpu(fitted).planes, expected.planes, strict=True):
        assert np.abs(made.astype(int) - plane.astype(int)).max() <= tolerance


@pytest.mark.cuda
@pytest.mark.parametrize(
    ("source", "target"),
    list(
        permutations(
            [
                ColorSpec(chroma_location="center"),
                ColorSpec("bt2020", chroma_location="center", primaries=9, transfer=16),
                ColorSpec("bt2020", chroma_location="center", primaries=9, transfer=18),
            ],
            2,
        )
    ),
)
def test_on_the_gpu_hdr_and_sdr_look_alike_too(source, target):
    import cupy
    from cuda_twins import frame_on_cpu, frame_on_gpu

    picture = soft_frame(PIXEL_FORMATS["yuv420p10le"], (90, 160), color=source)
    like = replace(random_frame(PIXEL_FORMATS["p010le"], (100, 200)), color=target)
    expected = fit_frame(picture, like=like, regions=[whole(like)])
    fitted = fit_frame(picture, like=frame_on_gpu(like), regions=[whole(like)])
    cupy.cuda.Device().synchronize()
    as_they_are = fit_frame(replace(picture, color=target), like=like, regions=[whole(like)])
    assert np.abs(as_they_are.planes[0].astype(int) - expected.planes[0].astype(int)).max() > 20 << 6
    for made, plane in zip(frame_on_cpu(fitted).planes, expected.planes, strict=True):
        assert np.abs(made.astype(int) - plane.astype(int)).mean() < tolerance_of(like.format)


@pytest.mark.cuda
def test_devices_must_fit():
    from cuda_twins import frame_on_gpu

    picture = random_frame(PIXEL_FORMATS["nv12"], (8, 8))
    with pytest.raises(ValueError, match="is not"):
        fit_frame(frame_on_gpu(picture), like=picture, regions=[whole(picture)])
    planar = frame_on_gpu(random_frame(PIXEL_FORMATS["yuv420p"], (8, 8)))
    with pytest.raises(ValueError, match="NV12 or P010"):
        fit_frame(picture, like=planar, regions=[whole(planar)])
