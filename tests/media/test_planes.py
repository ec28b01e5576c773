"""Check that every pixel format of FFmpeg has a nearest one of ours, and keeps its values."""

from __future__ import annotations

import av
import numpy as np
import pytest
from av.video.format import VideoFormat, names

from vitascope.frames import PIXEL_FORMATS
from vitascope.media.planes import PlaneReader, has_alpha, layout_of

HARDWARE = frozenset(
    {
        "amf", "cuda", "d3d11", "d3d11va_vld", "d3d12", "drm_prime", "dxva2_vld", "mediacodec", "mmal", "ohcodec",
        "opencl", "qsv", "vaapi", "vdpau", "videotoolbox_vld", "vulkan",
    }
)  # fmt: skip
CONVERTED = [
    "nv16", "nv24", "nv21", "yuyv422", "uyvy422", "yuv411p", "yuv410p", "yuv440p", "yuva420p", "yuva444p10le",
    "yuvj420p", "yuvj422p", "yuvj440p", "p016le", "p210le", "yuv420p9le", "yuv422p16le", "yuv444p14le", "y210le",
    "vuya", "ayuv64le", "yuv420p10be", "p010le", "nv12",
]  # fmt: skip


@pytest.mark.parametrize("name", sorted(PIXEL_FORMATS))
def test_our_formats_pass_through(name: str) -> None:
    layout = layout_of(name)
    assert (layout.format, layout.way, layout.intermediate) == (PIXEL_FORMATS[name], "view", None)


def test_every_format_has_a_nearest_that_loses_no_chroma_and_no_depth() -> None:
    for name in sorted(set(names) - HARDWARE):
        layout, source = layout_of(name), VideoFormat(name, 64, 64)
        target = VideoFormat(layout.format.name, 64, 64)
        depth = max(component.bits for component in source.components)
        assert layout.format.bit_depth >= min(depth, 12), name
        if layout.way in ("view", "yuv"):
            assert target.chroma_width(64) >= source.chroma_width(64), name
            assert target.chroma_height(64) >= source.chroma_height(64), name


def ramp(width: int, height: int) -> av.VideoFrame:
    """Make a frame that is smooth in every plane, so that resampling chroma changes little."""
    y, x = np.mgrid[:height, :width]
    planes = [16 + x * 200 // width, 60 + y * 120 // height, 190 - x * 120 // width]
    frame = av.VideoFrame(width, height, "yuv444p")
    for plane, values in zip(frame.planes, planes, strict=True):
        padded = np.zeros((height, plane.line_size), np.uint8)
        padded[:, :width] = values
        plane.update(padded.tobytes())
    frame.color_range = 1
    return frame


@pytest.mark.parametrize("name", CONVERTED)
@pytest.mark.parametrize("size", [(64, 48), (62, 46)])
def test_yuv_values_come_through(name: str, size: tuple[int, int]) -> None:
    source = ramp(*size)
    converted = source.reformat(format=name)
    target = layout_of(name).format
    planes = PlaneReader().read(converted, target=target)
    full = name.startswith("yuvj")
    expected = source.reformat(
        format="yuv444p", src_color_range=1, dst_color_range=2 if full else 1
    ).to_ndarray()
    chroma = [planes[1][..., 0], planes[1][..., 1]] if target.semi_planar else list(planes[1:])
    for found, exact in zip([planes[0], *chroma], expected, strict=True):
        values = (found >> target.sample_shift) / 2 ** (target.bit_depth - 8)
        shift_x = 0 if found is planes[0] else target.chroma_shift_x
        shift_y = 0 if found is planes[0] else target.chroma_shift_y
        sampled = exact[:: 1 << shift_y, :: 1 << shift_x].astype(float)
        inner = np.abs(values[: sampled.shape[0], : sampled.shape[1]] - sampled)[2:-2, 2:-2]
        # yuv410p has a sixteenth of the chroma; the rest is rounding and the location of samples on the ramp.
        assert inner.max() <= (12 if name in ("yuv410p", "yuv411p") else 5), (name, inner.max())


def test_bottom_up_pictures_are_turned() -> None:
    upright = ramp(33, 21)
    graph = av.filter.Graph()
    source = graph.add_buffer(width=33, height=21, format=upright.format, time_base=1)
    flip, sink = graph.add("vflip"), graph.add("buffersink")
    graph.link_nodes(source, flip, sink).configure()
    graph.vpush(upright)
    flipped = graph.vpull()
    assert flipped.planes[0].line_size < 0
    planes = PlaneReader().read(flipped, target=PIXEL_FORMATS["yuv444p"])
    np.testing.assert_array_equal(np.stack(planes), upright.to_ndarray()[:, ::-1])


@pytest.mark.parametrize(
    ("name", "middle"), [("gray", 128), ("gray10le", 512), ("gray12le", 2048), ("ya8", 128)]
)
def test_grey_gets_neutral_chroma(name: str, middle: int) -> None:
    frame = ramp(31, 9).reformat(format=name)
    planes = PlaneReader().read(frame, target=layout_of(name).format)
    assert [plane.shape for plane in planes] == [(9, 31), (5, 16), (5, 16)]
    assert (planes[1] == middle).all()
    assert (planes[2] == middle).all()


def test_change_of_pixel_format_is_converted_to_the_first() -> None:
    source = ramp(64, 48).reformat(format="yuv420p")
    deep = source.reformat(format="yuv420p10le")
    planes = PlaneReader().read(deep, target=PIXEL_FORMATS["yuv420p"])
    np.testing.assert_array_equal(planes[0], PlaneReader().read(source, target=PIXEL_FORMATS["yuv420p"])[0])


def test_rgb_in_a_stream_of_another_layout_is_still_bt709_full() -> None:
    grey_and_blue = np.zeros((4, 8, 3), np.uint8)
    grey_and_blue[:, :4], grey_and_blue[:, 4:] = 80, (0, 0, 255)
    frame = av.VideoFrame.from_ndarray(grey_and_blue, format="rgb24")
    planes = PlaneReader().read(frame, target=PIXEL_FORMATS["yuv420p"])
    assert [plane.shape for plane in planes] == [(4, 8), (2, 4), (2, 4)]
    assert abs(int(planes[0][0, 0]) - 80) <= 1
    assert abs(int(planes[0][0, 7]) - round(0.0722 * 255)) <= 1
    assert planes[1][0, 3] >= 254


def test_grey_in_a_stream_of_another_layout_keeps_its_values() -> None:
    frame = ramp(32, 8).reformat(format="gray")
    planes = PlaneReader().read(frame, target=PIXEL_FORMATS["yuv444p"])
    np.testing.assert_array_equal(planes[0], frame.to_ndarray())
    assert (planes[1] == 128).all()


def test_rgb_limits_to_its_depth() -> None:
    """Check clipping: pure blue's Cb and pure red's Cr are one code above the largest."""
    for name, depth in (("gbrp10le", 10), ("rgb48le", 12)):
        rgb = np.zeros((2, 4, 3), np.uint16)
        rgb[:, :2, 2] = rgb[:, 2:, 0] = 65535
        frame = av.VideoFrame.from_ndarray(rgb, format="rgb48le").reformat(format=name)
        planes = PlaneReader().read(frame, target=PIXEL_FORMATS[f"yuv444p{depth}le"])
        assert planes[1].max() == planes[2].max() == (1 << depth) - 1


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        *((name, True) for name in ("yuva420p", "argb", "rgba64le", "gbrap", "ya8")),
        *((name, False) for name in ("yuv420p", "rgb24", "0rgb", "gray", "nv12", "pal8")),
    ],
)
def test_pixel_formats_with_alpha_are_known(name, expected):
    assert has_alpha(name) == expected
