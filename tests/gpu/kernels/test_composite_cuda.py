"""Tests of the composite CUDA kernel against its references."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from cuda_twins import frame_on_cpu as on_cpu
from cuda_twins import frame_on_gpu as on_gpu
from cuda_twins import plane_on_gpu as copied

from pictures import ODD_SIZES, random_frame
from vitascope.frames import PIXEL_FORMATS, ColorSpec
from vitascope.gpu.kernels.color import alpha_dtype
from vitascope.gpu.kernels.composite import (
    blur_background,
    clear_transparent,
    matte_frame,
    over_color,
    over_frame,
    render,
    render_alpha,
    tint,
)
from vitascope.gpu.kernels.composite_launch import MatteOnly, OnColor, OnFrame, Tint
from vitascope.gpu.kernels.foreground import decontaminate
from vitascope.gpu.kernels.guided import refine_alpha
from vitascope.gpu.kernels.region import Region

NAMES = ["nv12", "p010le"]
LOCATIONS = ["left", "center", "topleft"]
SIZES = [*ODD_SIZES, (16, 8), (70, 272), (40, 528)]
KEY = (120, 255, 155)


def picture(name, size, location="left", seed=0):
    return random_frame(PIXEL_FORMATS[name], size, color=ColorSpec(chroma_location=location), seed=seed)


def regions_of(frame, layout="mono"):
    width, height = frame.width, frame.height
    if layout == "side-by-side" and width > 1:
        half = width - width // 2
        return [Region(0, 0, half, height), Region(half, 0, width - half, height)]
    if layout == "top-bottom" and height > 1:
        half = height - height // 2
        return [Region(0, 0, width, half), Region(0, half, width, height - half)]
    return [Region(0, 0, width, height)]


def coefficients_of(eyes, size=(5, 6), seed=3):
    rng = np.random.default_rng(seed)
    gain, offset = rng.uniform(-2, 2, (eyes, 4, *size)), rng.uniform(-0.5, 1.5, (eyes, 4, *size))
    gain[:, :3] *= 0.1
    offset[:, :3] *= 0.1
    return gain.astype(np.float32), offset.astype(np.float32)


def random_alpha(frame, seed=1):
    """Make random alpha, a third fully kept and a third fully removed."""
    peak = np.iinfo(alpha_dtype(frame)).max
    alpha = np.random.default_rng(seed).integers(-peak, 2 * peak, (frame.height, frame.width))
    return np.clip(alpha, 0, peak).astype(alpha_dtype(frame))


def assert_within_a_code(actual, expected, *, exceptions=0.0, largest=2):
    """Check errors; a share of ``exceptions`` may be larger, where alpha rounds a tie the other way."""
    assert actual.format == expected.format
    assert actual.color == expected.color
    assert actual.ready is None
    for plane, wanted in zip(actual.planes, expected.planes, strict=True):
        assert plane.dtype == wanted.dtype
        assert plane.flags.c_contiguous
        error = np.abs(plane.get().astype(int) - wanted) >> actual.format.sample_shift
        assert error.max(initial=0) <= (largest if exceptions else 1)
        assert (error > 1).mean() <= exceptions


@pytest.mark.cuda
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("location", LOCATIONS)
@pytest.mark.parametrize("pad", [0, 3])
def test_alpha_agrees_with_the_reference(name, size, location, pad):
    import cupy

    frame = picture(name, size, location)
    gain, offset = (planes[:, 3] for planes in coefficients_of(1))
    expected = refine_alpha(frame, regions=regions_of(frame), gain=gain, offset=offset)
    actual = refine_alpha(
        on_gpu(frame, pad=pad),
        regions=regions_of(frame),
        gain=cupy.asarray(gain),
        offset=cupy.asarray(offset),
    )
    assert actual.dtype == expected.dtype
    assert np.abs(actual.get().astype(int) - expected).max() <= (1 if name == "nv12" else 2)


@pytest.mark.cuda
@pytest.mark.parametrize("layout", ["side-by-side", "top-bottom"])
@pytest.mark.parametrize("size", [(34, 66), (33, 47), (2, 2), (64, 800)])
@pytest.mark.parametrize("degrees", [0, 90, 180, 270])
@pytest.mark.parametrize("small", [(3, 4), (90, 130)])
def test_alpha_of_two_eyes_turned_and_of_fine_coefficients(layout, size, degrees, small):
    import cupy

    frame = picture("nv12", size)
    regions = regions_of(frame, layout)
    gain, offset = (planes[:, 3] for planes in coefficients_of(len(regions), small))
    options = {"regions": regions, "rotation_degrees": degrees}
    expected = refine_alpha(frame, gain=gain, offset=offset, **options)
    actual = refine_alpha(on_gpu(frame), gain=cupy.asarray(gain), offset=cupy.asarray(offset), **options)
    assert np.abs(actual.get().astype(int) - expected).max() <= 1


@pytest.mark.cuda
@pytest.mark.parametrize("location", ["left", "center"])
def test_outside_the_regions_alpha_is_nothing(location):
    import cupy

    frame = on_gpu(picture("nv12", (24, 64), location))
    ones = cupy.ones((1, 3, 3), cupy.float32)
    alpha = refine_alpha(frame, regions=[Region(5, 3, 20, 9)], gain=ones * 0, offset=ones).get()
    expected = np.zeros((24, 64), np.uint8)
    expected[3:12, 5:25] = 255
    np.testing.assert_array_equal(alpha, expected)


@pytest.mark.cuda
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("location", LOCATIONS)
@pytest.mark.parametrize("pad", [0, 3])
def test_a_given_alpha_is_painted_as_the_reference_does(name, size, location, pad):
    frame, behind = picture(name, size, location), picture(name, size, location, seed=9)
    alpha = random_alpha(frame)
    gpu, gpu_alpha = on_gpu(frame, pad=pad), copied(alpha, pad=pad)
    assert_within_a_code(over_color(gpu, gpu_alpha, KEY), over_color(frame, alpha, KEY))
    assert_within_a_code(over_frame(gpu, gpu_alpha, on_gpu(behind)), over_frame(frame, alpha, behind))
    assert_within_a_code(tint(gpu, gpu_alpha, KEY, opacity=0.4), tint(frame, alpha, KEY, opacity=0.4))
    for full_range, depth in itertools.product((False, True), (8, 10, None)):
        assert_within_a_code(
            matte_frame(gpu, gpu_alpha, full_range=full_range, bit_depth=depth),
            matte_frame(frame, alpha, full_range=full_range, bit_depth=depth),
        )


@pytest.mark.cuda
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", [(33, 66), (40, 48), (17, 31)])
@pytest.mark.parametrize("location", LOCATIONS)
def test_the_kept_keep_their_codes_and_the_rest_is_the_colour(name, size, location):
    frame = picture(name, size, location)
    peak = np.iinfo(alpha_dtype(frame)).max
    kept = np.random.default_rng(0).random((11, 17)).repeat(4, axis=0).repeat(4, axis=1) > 0.5
    alpha = (kept[: size[0], : size[1]] * peak).astype(alpha_dtype(frame))
    made, source = on_cpu(over_color(on_gpu(frame), copied(alpha), KEY)), frame
    expected = over_color(frame, alpha, KEY)
    np.testing.assert_array_equal(made.planes[0], expected.planes[0])
    sites = kept[: size[0] : 2, : size[1] : 2]
    np.testing.assert_array_equal(made.planes[1][sites], source.planes[1][sites])


@pytest.mark.cuda
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("location", LOCATIONS)
@pytest.mark.parametrize("size", [(70, 272), (37, 61), (64, 512)])
@pytest.mark.parametrize("layout", ["mono", "side-by-side", "top-bottom"])
@pytest.mark.parametrize("planar", [False, True])
def test_render_agrees_with_the_reference(name, location, size, layout, planar):
    import cupy

    frame, behind = picture(name, size, location), picture(name, size, location, seed=9)
    regions = regions_of(frame, layout)
    gain, offset = coefficients_of(len(regions))
    options = {"regions": regions, "planar": planar}
    small = {"gain": gain, "offset": offset}
    gpu_small = {key: cupy.asarray(planes) for key, planes in small.items()}
    gpu, gpu_behind = on_gpu(frame), on_gpu(behind)
    # Use the GPU's own alpha: if it rounds a tie the other way (254 or 255), a sample may differ.
    alpha = refine_alpha(
        gpu, regions=regions, gain=gpu_small["gain"][:, 3], offset=gpu_small["offset"][:, 3]
    ).get()
    for paint, gpu_paint, decontaminates in (
        (OnColor(KEY), OnColor(KEY), False),
        (OnColor(KEY), OnColor(KEY), True),
        (OnFrame(behind), OnFrame(gpu_behind), False),
        (OnFrame(behind), OnFrame(gpu_behind), True),
        (Tint(KEY, 0.5), Tint(KEY, 0.5), False),
        (MatteOnly(full_range=False), MatteOnly(full_range=False), False),
        (MatteOnly(full_range=True, bit_depth=8), MatteOnly(full_range=True, bit_depth=8), False),
    ):
        actual = render(gpu, paint=gpu_paint, decontaminate=decontaminates, **gpu_small, **options)
        if not decontaminates:
            assert_within_a_code(actual, render_alpha(frame, alpha, paint=paint, **options))
            continue
        foreground = decontaminate(frame, alpha, regions=regions, person=gain[:, :3], scene=offset[:, :3])
        # The last bit of a float decides between 254 and 255: the foreground, or the sample's own code.
        assert_within_a_code(
            actual, render_alpha(foreground, alpha, paint=paint, **options), exceptions=1e-3, largest=255
        )


@pytest.mark.cuda
@pytest.mark.parametrize("rows", [4, 30, 64])
@pytest.mark.parametrize("location", LOCATIONS)
@pytest.mark.parametrize("paint", [OnColor(KEY), Tint(KEY, 0.5), MatteOnly(full_range=False)])
def test_a_person_amid_nothing_and_strips_of_any_length(monkeypatch, rows, location, paint):
    """Check that strips without arithmetic, where alpha is all 0 or 1, do not show."""
    import cupy

    from vitascope.gpu.kernels import composite_launch as composite_cuda
    from vitascope.gpu.kernels.composite_launch import LaunchPlans

    monkeypatch.setattr(composite_cuda, "_PLANS", LaunchPlans())  # stored plans have strips already
    monkeypatch.setattr(composite_cuda, "_strip_rows", lambda *_, **__: rows)
    frame = picture("nv12", (220, 1104), location)
    y, x = np.mgrid[0:22, 0:110]
    offset = np.clip(6 - np.hypot((x - 60) / 2, y - 11), -0.1, 1.2).astype(np.float32)[None, None]
    gain = np.where((offset > 0) & (offset < 1), -0.3, 0).astype(np.float32)
    options = {"regions": regions_of(frame), "paint": paint}
    actual = render(on_gpu(frame), gain=cupy.asarray(gain), offset=cupy.asarray(offset), **options)
    assert_within_a_code(actual, render(frame, gain=gain, offset=offset, **options), exceptions=1e-4)


@pytest.mark.cuda
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("location", LOCATIONS)
@pytest.mark.parametrize("size", [(64, 272), (47, 61), (1, 1), (2, 3)])
@pytest.mark.parametrize("layout", ["mono", "side-by-side"])
def test_decontamination_agrees_with_the_reference(name, location, size, layout):
    import cupy

    frame = picture(name, size, location)
    regions = regions_of(frame, layout)
    alpha = random_alpha(frame)
    gain, offset = (planes[:, :3] for planes in coefficients_of(len(regions)))
    expected = decontaminate(frame, alpha, regions=regions, person=gain, scene=offset)
    actual = decontaminate(
        on_gpu(frame), copied(alpha), regions=regions, person=cupy.asarray(gain), scene=cupy.asarray(offset)
    )
    assert_within_a_code(actual, expected)


@pytest.mark.cuda
@pytest.mark.parametrize("location", LOCATIONS)
@pytest.mark.parametrize("decontaminates", [False, True])
def test_one_eye_knows_nothing_of_the_other(location, decontaminates):
    import cupy

    frame = picture("nv12", (24, 64), location)
    other = frame.with_planes(tuple(plane.copy() for plane in frame.planes))
    other.planes[0][:, 32:] = 255 - other.planes[0][:, 32:]
    other.planes[1][:, 16:] = 255 - other.planes[1][:, 16:]
    gain, offset = (cupy.asarray(planes) for planes in coefficients_of(2))
    options = {
        "regions": regions_of(frame, "side-by-side"),
        "paint": OnColor(KEY),
        "decontaminate": decontaminates,
        "gain": gain,
    }
    first = render(on_gpu(frame), offset=offset, **options)
    changed = offset.copy()
    changed[1] += 0.3
    second = render(on_gpu(other), offset=changed, **options)
    for one, two in zip(first.planes, second.planes, strict=True):
        half = one.shape[1] // 2
        np.testing.assert_array_equal(one[:, :half].get(), two[:, :half].get())
        assert (one[:, half:].get() != two[:, half:].get()).any()


@pytest.mark.cuda
@pytest.mark.parametrize("layout", ["channels last", "every other cell", "half floats"])
def test_coefficients_may_lie_anyhow(layout):
    import cupy

    frame = picture("nv12", (48, 80))
    gain, offset = coefficients_of(1, (6, 10))
    if layout == "half floats":
        gain, offset = gain.astype(np.float16), offset.astype(np.float16)
    options = {"regions": regions_of(frame), "paint": OnColor(KEY), "decontaminate": True}
    expected = render(frame, gain=gain.astype(np.float32), offset=offset.astype(np.float32), **options)

    def laid_out(planes):
        if layout == "channels last":
            return cupy.asarray(np.ascontiguousarray(planes.transpose(0, 2, 3, 1))).transpose(0, 3, 1, 2)
        wide = cupy.full((1, 4, 12, 20), cupy.nan, planes.dtype)
        wide[:, :, ::2, ::2] = cupy.asarray(planes)
        return wide[:, :, ::2, ::2]

    actual = render(on_gpu(frame), gain=laid_out(gain), offset=cupy.asarray(offset), **options)
    assert_within_a_code(actual, expected, exceptions=2e-3)


@pytest.mark.cuda
def test_a_result_lies_in_one_allocation():
    import cupy

    frame = on_gpu(picture("nv12", (48, 80)))
    ones = cupy.ones((1, 1, 3, 3), cupy.float32)
    options = {"regions": regions_of(frame), "gain": ones, "offset": ones, "paint": OnColor(KEY)}
    for planar in (False, True):
        planes = render(frame, planar=planar, **options).planes
        assert planes[1].data.ptr - planes[0].data.ptr == 48 * 80
        assert not planar or planes[2].data.ptr - planes[1].data.ptr == 24 * 40


@pytest.mark.cuda
def test_blur_and_clearing_run_on_the_gpu():
    frame = picture("nv12", (64, 96))
    alpha = np.zeros((64, 96), np.uint8)
    alpha[20:40, 30:60] = 255
    alpha[18:20, 30:60] = 100
    blurred = blur_background(on_gpu(frame), copied(alpha), sigma=5.0)
    for plane, wanted in zip(blurred.planes, blur_background(frame, alpha, sigma=5.0).planes, strict=True):
        assert np.abs(plane.get().astype(int) - wanted).max() <= 3  # the blur itself may be 2 off
    cleared = clear_transparent(on_gpu(frame), copied(alpha), margin_px=4)
    assert_within_a_code(cleared, clear_transparent(frame, alpha, margin_px=4))


@pytest.mark.cuda
def test_what_does_not_fit_is_refused():
    import cupy

    frame = picture("nv12", (8, 16))
    ones = cupy.ones((1, 4, 3, 3), cupy.float32)
    options = {"regions": regions_of(frame), "paint": OnColor(KEY)}
    planar = random_frame(PIXEL_FORMATS["yuv420p"], (8, 16))
    with pytest.raises(ValueError, match="NV12 and P010"):
        render(on_gpu(planar), gain=ones, offset=ones, **options)
    with pytest.raises(ValueError, match="expected uint8"):
        render_alpha(on_gpu(frame), cupy.zeros((8, 16), cupy.uint16), **options)
    with pytest.raises(ValueError, match="expected \\[1, planes"):
        render(on_gpu(frame), gain=ones[:, :, :2], offset=ones, **options)
    with pytest.raises(ValueError, match="float16 or float32"):
        render(on_gpu(frame), gain=ones.astype(cupy.float64), offset=ones, **options)
    with pytest.raises(ValueError, match="expected the size and format"):
        behind = OnFrame(on_gpu(picture("nv12", (8, 18))))
        render(on_gpu(frame), gain=ones, offset=ones, regions=regions_of(frame), paint=behind)
    thirds = [Region(0, 0, 4, 8), Region(4, 0, 4, 8), Region(8, 0, 8, 8)]
    with pytest.raises(ValueError, match="one or two regions"):
        render(on_gpu(frame), gain=ones, offset=ones, regions=thirds, paint=OnColor(KEY))
