from __future__ import annotations

import av
import numpy as np
import pytest
from av.video.reformatter import Interpolation

from pictures import FORMATS, ODD_SIZES, random_frame, semi_planar_twin, solid_frame, strided
from vitascope.frames import PIXEL_FORMATS, ColorSpec
from vitascope.gpu.kernels.preprocess import preprocess
from vitascope.gpu.kernels.region import Region


def whole(frame):
    return [Region(0, 0, frame.width, frame.height)]


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("size", ODD_SIZES)
def test_a_colour_keeps_its_value_in_every_format_and_size(name, size):
    frame = solid_frame(PIXEL_FORMATS[name], size, (0.8, 0.4, 0.2))
    rgb = preprocess(frame, regions=whole(frame), size=(5, 9))
    assert rgb.shape == (1, 3, 5, 9)
    assert rgb.flags.c_contiguous
    np.testing.assert_allclose(rgb, np.broadcast_to([[[0.8]], [[0.4]], [[0.2]]], (1, 3, 5, 9)), atol=0.006)


@pytest.mark.parametrize("matrix_and_sws", [("bt601", 5), ("bt709", 1)])
def test_agrees_with_swscale_and_a_plain_mean(matrix_and_sws):
    matrix, sws = matrix_and_sws
    # Use muted codes: swscale wraps around where RGB leaves 0..255.
    frame = random_frame(PIXEL_FORMATS["yuv444p"], (32, 48), color=ColorSpec(matrix))
    frame = frame.with_planes(tuple(96 + plane // 5 for plane in frame.planes))
    video_frame = av.VideoFrame(48, 32, "yuv444p")
    for target, plane in zip(video_frame.planes, frame.planes, strict=True):
        rows = np.zeros((32, target.line_size), np.uint8)
        rows[:, :48] = plane
        target.update(rows.tobytes())
    # Without full chroma interpolation, swscale drops every other chroma sample, even in 4:4:4.
    exact = Interpolation.BILINEAR | Interpolation.FULL_CHR_H_INT | Interpolation.ACCURATE_RND
    rgb = video_frame.reformat(
        format="rgb24",
        src_colorspace=sws,
        dst_colorspace=sws,
        src_color_range=1,
        dst_color_range=2,
        interpolation=exact,
    ).to_ndarray()
    ours = preprocess(frame, regions=whole(frame), size=(32, 48))[0].transpose(1, 2, 0)
    assert np.abs(ours * 255 - rgb).max() <= 2.0  # swscale rounds twice in fixed point


@pytest.mark.parametrize("name", ["yuv420p", "yuv420p10le"])
@pytest.mark.parametrize("size", [(16, 24), (17, 31)])
def test_semi_planar_and_planar_agree(name, size):
    planar = random_frame(PIXEL_FORMATS[name], size)
    twin = semi_planar_twin(planar)
    for target in ((8, 12), (40, 40)):
        np.testing.assert_allclose(
            preprocess(planar, regions=whole(planar), size=target),
            preprocess(twin, regions=whole(twin), size=target),
            atol=2e-5,
        )


def test_padded_rows_change_nothing():
    frame = random_frame(PIXEL_FORMATS["yuv420p"], (30, 50))
    np.testing.assert_array_equal(
        preprocess(frame, regions=whole(frame), size=(8, 12)),
        preprocess(strided(frame), regions=whole(frame), size=(8, 12)),
    )


def test_each_eye_is_the_crop_of_its_region():
    frame = random_frame(PIXEL_FORMATS["yuv444p"], (20, 64))
    left, right = Region(0, 0, 32, 20), Region(32, 0, 32, 20)
    both = preprocess(frame, regions=[left, right], size=(10, 16))
    for eye, region in zip(both, (left, right), strict=True):
        crop = frame.with_planes(
            tuple(np.ascontiguousarray(p[region.rows, region.columns]) for p in frame.planes)
        )
        np.testing.assert_array_equal(eye, preprocess(crop, regions=whole(crop), size=(10, 16))[0])


@pytest.mark.parametrize("degrees", [90, 180, 270])
def test_rotation_makes_the_picture_upright(degrees):
    frame = random_frame(PIXEL_FORMATS["yuv444p"], (24, 40))
    upright = (40, 24) if degrees != 180 else (24, 40)
    turned = preprocess(frame, regions=whole(frame), size=upright, rotation_degrees=degrees)[0]
    plain = preprocess(frame, regions=whole(frame), size=(24, 40))[0]
    np.testing.assert_array_equal(turned, np.rot90(plain, k=-degrees // 90, axes=(1, 2)))


def test_mean_std_and_layout():
    frame = random_frame(PIXEL_FORMATS["yuv420p"], (12, 16))
    plain = preprocess(frame, regions=whole(frame), size=(6, 8))
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    normalised = preprocess(frame, regions=whole(frame), size=(6, 8), mean=mean, std=std, layout="NHWC")
    np.testing.assert_allclose(normalised, (plain.transpose(0, 2, 3, 1) - mean) / std, atol=1e-5)


def test_writes_into_out_and_refuses_another_shape():
    frame = random_frame(PIXEL_FORMATS["yuv420p"], (12, 16))
    out = np.empty((1, 3, 6, 8), np.float32)
    assert preprocess(frame, regions=whole(frame), size=(6, 8), out=out) is out
    with pytest.raises(ValueError, match="expected float32"):
        preprocess(frame, regions=whole(frame), size=(6, 9), out=out)


def test_cosited_chroma_is_not_shifted():
    """Check a vertical colour edge on a chroma boundary, with chroma cosited with even columns."""
    fmt = PIXEL_FORMATS["yuv420p"]
    red = np.tile(
        np.arange(64) * 3.0, (8, 1)
    )  # V is linear in space: 6 i at site i, which is on luma column 2 i
    frame = solid_frame(fmt, (8, 64), (0.5, 0.5, 0.5))
    cosited = np.tile((np.arange(32) * 6 + 20).astype(np.uint8), (4, 1))
    frame = frame.with_planes((frame.planes[0], frame.planes[1], cosited))
    small = preprocess(frame, regions=whole(frame), size=(4, 16))[0, 0]
    expected_v = (red + 20).reshape(8, 16, 4).mean(axis=(0, 2))  # mean V under each output sample
    expected = 0.5 + 2 * (1 - 0.2126) * (expected_v - 128) / 224
    np.testing.assert_allclose(small[2, 2:-2], np.clip(expected, 0, 1)[2:-2], atol=0.004)


@pytest.mark.parametrize("location", ["left", "topleft", "center"])
@pytest.mark.parametrize("name", ["yuv420p", "nv12"])
def test_an_eye_never_sees_the_other(name, location):
    frame = random_frame(PIXEL_FORMATS[name], (16, 64), color=ColorSpec(chroma_location=location))
    left, right = Region(0, 0, 32, 16), Region(32, 0, 32, 16)
    other = frame.with_planes(tuple(plane.copy() for plane in frame.planes))
    other.planes[0][:, 32:] = 0
    for plane in other.planes[1:]:
        plane[:, 16:] = 0
    for size in ((8, 16), (40, 80)):
        np.testing.assert_array_equal(
            preprocess(frame, regions=[left], size=size), preprocess(other, regions=[left], size=size)
        )
    assert (
        preprocess(frame, regions=[right], size=(8, 16)) != preprocess(other, regions=[right], size=(8, 16))
    ).any()
