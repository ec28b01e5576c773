from __future__ import annotations

import numpy as np
import pytest

from pictures import FORMATS, random_frame, semi_planar_twin
from vitascope.frames import PIXEL_FORMATS
from vitascope.gpu.kernels.composite import matte_frame, over_color, over_frame, render, render_alpha, tint
from vitascope.gpu.kernels.composite_launch import MatteOnly, OnColor, OnFrame, Tint
from vitascope.gpu.kernels.foreground import decontaminate
from vitascope.gpu.kernels.guided import refine_alpha
from vitascope.gpu.kernels.region import Region, cut, each_eye

KEY = (120, 255, 155)


def eyes_of(frame):
    half = frame.width // 2
    return [Region(0, 0, half, frame.height), Region(half, 0, frame.width - half, frame.height)]


def random_coefficients(eyes, size=(5, 6), seed=3):
    rng = np.random.default_rng(seed)
    gain, offset = rng.uniform(-2, 2, (eyes, 4, *size)), rng.uniform(-0.5, 1.5, (eyes, 4, *size))
    gain[:, :3] *= 0.1
    offset[:, :3] *= 0.1
    return gain.astype(np.float32), offset.astype(np.float32)


def assert_same(actual, expected):
    assert actual.format == expected.format
    assert actual.color == expected.color
    for plane, wanted in zip(actual.planes, expected.planes, strict=True):
        np.testing.assert_array_equal(plane, wanted)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("decontaminates", [False, True])
def test_render_is_its_parts_in_order(name, decontaminates):
    frame = random_frame(PIXEL_FORMATS[name], (20, 48))
    behind = random_frame(PIXEL_FORMATS[name], (20, 48), seed=9)
    regions = eyes_of(frame)
    gain, offset = random_coefficients(2)
    alpha = refine_alpha(frame, regions=regions, gain=gain[:, 3], offset=offset[:, 3])
    foreground = frame
    if decontaminates:
        foreground = decontaminate(frame, alpha, regions=regions, person=gain[:, :3], scene=offset[:, :3])
    options = {"regions": regions, "gain": gain, "offset": offset, "decontaminate": decontaminates}
    assert_same(
        render(frame, paint=OnColor(KEY), **options),
        each_eye(foreground, alpha, regions, lambda eye, own, _: over_color(eye, own, KEY)),
    )
    assert_same(
        render(frame, paint=OnFrame(behind), **options),
        each_eye(
            foreground, alpha, regions, lambda eye, own, region: over_frame(eye, own, cut(behind, region))
        ),
    )


def test_a_tint_and_a_matte_show_the_picture_and_alpha():
    frame = random_frame(PIXEL_FORMATS["yuv420p10le"], (20, 48))
    regions = eyes_of(frame)
    gain, offset = random_coefficients(2)
    alpha = refine_alpha(frame, regions=regions, gain=gain[:, 3], offset=offset[:, 3])
    options = {"regions": regions, "gain": gain[:, 3:], "offset": offset[:, 3:]}
    assert_same(
        render(frame, paint=Tint(KEY, 0.4), **options),
        each_eye(frame, alpha, regions, lambda eye, own, _: tint(eye, own, KEY, opacity=0.4)),
    )
    assert_same(
        render(frame, paint=MatteOnly(full_range=True, bit_depth=8), **options),
        matte_frame(frame, alpha, full_range=True, bit_depth=8),
    )


@pytest.mark.parametrize("paint", [OnColor(KEY), Tint(KEY, 0.5), MatteOnly(full_range=False)])
@pytest.mark.parametrize("depth", ["yuv420p", "yuv420p10le"])
def test_planar_results_hold_the_same_codes(paint, depth):
    planar_frame = random_frame(PIXEL_FORMATS[depth], (18, 22))
    frame = semi_planar_twin(planar_frame)
    gain, offset = random_coefficients(1)
    options = {"regions": [Region(0, 0, 22, 18)], "gain": gain, "offset": offset, "paint": paint}
    semi, planar = render(frame, **options), render(frame, planar=True, **options)
    assert semi.format == frame.format
    assert planar.format.name == depth
    shift = frame.format.sample_shift
    np.testing.assert_array_equal(planar.planes[0] << shift, semi.planes[0])
    np.testing.assert_array_equal(np.stack(planar.planes[1:], axis=-1) << shift, semi.planes[1])
    for plane, wanted in zip(planar.planes, render(planar_frame, **options).planes, strict=True):
        assert np.abs(plane.astype(int) - wanted).max() <= 1  # each is within one code of the exact value


@pytest.mark.parametrize("paint", ["color", "frame"])
def test_what_is_painted_in_p010_is_whole_codes(paint):
    frame = random_frame(PIXEL_FORMATS["p010le"], (18, 22))
    alpha = np.random.default_rng(0).integers(0, 65536, (18, 22), dtype=np.uint16)
    behind = random_frame(PIXEL_FORMATS["p010le"], (18, 22), seed=5)
    made = over_color(frame, alpha, KEY) if paint == "color" else over_frame(frame, alpha, behind)
    for plane in made.planes:
        assert (plane & 63 == 0).all()


def test_an_eight_bit_matte_of_p010_is_nv12():
    frame = random_frame(PIXEL_FORMATS["p010le"], (8, 12))
    gain, offset = np.zeros((1, 1, 2, 2), np.float32), np.ones((1, 1, 2, 2), np.float32)
    options = {"regions": [Region(0, 0, 12, 8)], "gain": gain, "offset": offset}
    made = render(frame, paint=MatteOnly(full_range=False, bit_depth=8), **options)
    assert made.format.name == "nv12"
    assert (made.planes[0] == 235).all()
    assert (made.planes[1] == 128).all()


def test_a_finished_alpha_is_painted_as_it_is():
    frame = random_frame(PIXEL_FORMATS["nv12"], (8, 32))
    alpha = np.random.default_rng(1).integers(0, 256, (8, 32), dtype=np.uint8)
    made = render_alpha(frame, alpha, regions=eyes_of(frame), paint=OnColor(KEY))
    assert_same(made, each_eye(frame, alpha, eyes_of(frame), lambda eye, own, _: over_color(eye, own, KEY)))


@pytest.mark.parametrize("paint", [Tint(KEY, 0.5), MatteOnly(full_range=False)])
def test_nothing_is_decontaminated_that_is_not_shown(paint):
    frame = random_frame(PIXEL_FORMATS["nv12"], (8, 12))
    gain, offset = random_coefficients(1)
    with pytest.raises(ValueError, match="no foreground"):
        render(
            frame, regions=[Region(0, 0, 12, 8)], gain=gain, offset=offset, paint=paint, decontaminate=True
        )


def test_decontamination_needs_the_foregrounds_coefficients():
    frame = random_frame(PIXEL_FORMATS["nv12"], (8, 12))
    gain, offset = (planes[:, 3:] for planes in random_coefficients(1))
    with pytest.raises(ValueError, match="4, height, width"):
        render(
            frame,
            regions=[Region(0, 0, 12, 8)],
            gain=gain,
            offset=offset,
            paint=OnColor(KEY),
            decontaminate=True,
        )


def test_a_background_of_another_size_is_refused_in_stereo_too():
    frame = random_frame(PIXEL_FORMATS["nv12"], (8, 32))
    behind = random_frame(PIXEL_FORMATS["nv12"], (8, 16))  # as large as one eye
    gain, offset = random_coefficients(2)
    with pytest.raises(ValueError, match="expected the size and format"):
        render(frame, regions=eyes_of(frame), gain=gain, offset=offset, paint=OnFrame(behind))
