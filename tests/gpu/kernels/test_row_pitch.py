"""Check that kernels require contiguous samples in rows, and never misread others."""

from __future__ import annotations

import numpy as np
import pytest
from cuda_twins import frame_on_gpu, plane_on_gpu
from hypothesis import given
from hypothesis import strategies as st

from pictures import random_frame
from vitascope.frames import PIXEL_FORMATS
from vitascope.gpu.kernels.blur import blur_without
from vitascope.gpu.kernels.composite import over_color
from vitascope.gpu.kernels.cuda_module import row_pitch
from vitascope.gpu.kernels.morphology import dilate_disc
from vitascope.gpu.kernels.preprocess import preprocess
from vitascope.gpu.kernels.region import Region
from vitascope.gpu.kernels.rgb import nv12_to_rgb
from vitascope.gpu.kernels.semi_planar import to_planar
from vitascope.gpu.kernels.shrink import shrink_frame
from vitascope.gpu.kernels.steady import AlphaSmoother

APART = "samples of a row must be contiguous"


@given(
    shape=st.lists(st.integers(1, 5), min_size=2, max_size=3),
    pad=st.integers(0, 4),
    itemsize=st.sampled_from([1, 2, 4]),
)
def test_rows_may_be_padded(shape, pad, itemsize):
    wide = np.zeros((shape[0], shape[1] + pad, *shape[2:]), f"V{itemsize}")
    view = wide[:, : shape[1]]
    expected = (shape[1] + pad) * int(np.prod(shape[2:]))
    assert row_pitch(view.shape, view.strides, itemsize=itemsize) == expected


@pytest.mark.parametrize(
    "view",
    [
        lambda array: array[:, ::2],
        lambda array: array[:, ::-1],
        lambda array: array[..., ::-1],
        lambda array: array.swapaxes(0, 1),
    ],
)
@pytest.mark.parametrize("shape", [(4, 6, 2), (5, 9)])
def test_samples_apart_are_refused(view, shape):
    plane = view(np.zeros(shape, np.uint16))
    with pytest.raises(ValueError, match=APART):
        row_pitch(plane.shape, plane.strides, itemsize=2)


def test_of_a_single_sample_nothing_lies_apart():
    column = np.zeros((5, 9), np.uint8)[:, 3:4]
    assert row_pitch(column.shape, column.strides, itemsize=1) == 9
    wide = np.zeros((5, 9, 2), np.uint8)[:, 3:4]
    assert row_pitch(wide.shape, wide.strides, itemsize=1) == 18


WHOLE = [Region(0, 0, 32, 16)]


@pytest.mark.cuda
@pytest.mark.parametrize(
    "run",
    [
        lambda frame, alpha: preprocess(frame, regions=WHOLE, size=(8, 8)),
        lambda frame, alpha: over_color(frame, alpha, (0, 255, 0)),
        lambda frame, alpha: nv12_to_rgb(frame),
        lambda frame, alpha: to_planar(frame),
        lambda frame, alpha: shrink_frame(frame, regions=WHOLE, size=(8, 16)),
        lambda frame, alpha: blur_without(frame.planes[0], alpha, 2.0, 2.0),
        lambda frame, alpha: AlphaSmoother(0.5).smooth(frame, alpha),
        lambda frame, alpha: dilate_disc(frame.planes[0], 3),
    ],
    ids=["preprocess", "composite", "rgb", "planar", "shrink", "blur", "steady", "morphology"],
)
def test_every_kernel_refuses_what_it_would_misread(run):
    frame = random_frame(PIXEL_FORMATS["nv12"], (16, 64))
    wide = frame_on_gpu(frame)
    narrow = random_frame(PIXEL_FORMATS["nv12"], (16, 32)).with_planes(
        (wide.planes[0][:, ::2], wide.planes[1][:, ::2])
    )
    alpha = plane_on_gpu(np.full((16, 32), 128, np.uint8))
    with pytest.raises(ValueError, match=APART):
        run(narrow, alpha)


@pytest.mark.cuda
def test_an_alpha_with_gaps_is_refused():
    frame = frame_on_gpu(random_frame(PIXEL_FORMATS["nv12"], (16, 32)))
    alpha = plane_on_gpu(np.full((16, 64), 128, np.uint8))[:, ::2]
    with pytest.raises(ValueError, match=APART):
        over_color(frame, alpha, (0, 255, 0))
    with pytest.raises(ValueError, match=APART):
        AlphaSmoother(0.5).smooth(frame, alpha)
    with pytest.raises(ValueError, match=APART):
        blur_without(frame.planes[0], alpha, 2.0, 2.0)
