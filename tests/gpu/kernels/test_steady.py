from __future__ import annotations

import numpy as np

from pictures import random_frame, solid_frame
from vitascope.frames import PIXEL_FORMATS
from vitascope.gpu.kernels.steady import AlphaSmoother

FMT = PIXEL_FORMATS["yuv420p"]


def test_a_boiling_matte_on_a_still_picture_calms_down():
    frame = random_frame(FMT, (24, 32))
    rng = np.random.default_rng(0)
    smoother = AlphaSmoother(0.8)
    noisy = [np.clip(128 + rng.normal(0, 30, (24, 32)), 0, 255).astype(np.uint8) for _ in range(30)]
    smooth = [smoother.smooth(frame, alpha) for alpha in noisy]
    assert np.std(smooth[10:], axis=0).mean() < 0.5 * np.std(noisy[10:], axis=0).mean()


def test_where_the_picture_moves_the_matte_is_new():
    dark, light = solid_frame(FMT, (24, 32), (0.1,) * 3), solid_frame(FMT, (24, 32), (0.9,) * 3)
    smoother = AlphaSmoother(0.9)
    smoother.smooth(dark, np.zeros((24, 32), np.uint8))
    assert (smoother.smooth(light, np.full((24, 32), 255, np.uint8)) == 255).all()


def test_reset_forgets():
    frame = solid_frame(FMT, (24, 32), (0.5,) * 3)
    smoother = AlphaSmoother(0.9)
    smoother.smooth(frame, np.zeros((24, 32), np.uint8))
    smoother.reset()
    assert (smoother.smooth(frame, np.full((24, 32), 255, np.uint8)) == 255).all()


def test_deep_video_keeps_its_alpha_dtype():
    frame = random_frame(PIXEL_FORMATS["p010le"], (10, 10))
    smoother = AlphaSmoother(0.5)
    for _ in range(2):
        out = smoother.smooth(frame, np.full((10, 10), 40_000, np.uint16))
    assert out.dtype == np.uint16
    assert (out == 40_000).all()
