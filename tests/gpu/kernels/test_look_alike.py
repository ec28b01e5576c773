from __future__ import annotations

import numpy as np
import pytest

from vitascope.frames import ColorSpec
from vitascope.gpu.kernels.look_alike import look_alike

SDR = ColorSpec("bt709", primaries=1, transfer=1)
P3 = ColorSpec("bt709", primaries=12, transfer=13)
PQ = ColorSpec("bt2020", primaries=9, transfer=16)
HLG = ColorSpec("bt2020", primaries=9, transfer=18)


def converted(rgb, source, target):
    convert = look_alike(source, target)
    planes = np.array(rgb, np.float32).reshape(3, 1, -1)
    result = convert(planes)
    assert result.dtype == np.float32
    assert result.shape == planes.shape
    return result.reshape(np.shape(rgb))


@pytest.mark.parametrize(
    ("source", "target"),
    [
        (SDR, SDR),
        (SDR, ColorSpec("bt601")),
        (ColorSpec("bt601", primaries=6, transfer=6), SDR),
        (PQ, PQ),
        (HLG, HLG),
    ],
)
def test_what_looks_alike_is_left_alone(source, target):
    assert look_alike(source, target) is None


@pytest.mark.parametrize(("target", "signal"), [(PQ, 0.5807), (HLG, 0.75)])
def test_white_of_sdr_is_diffuse_white_of_hdr(target, signal):
    """Check 203 cd/m², which is 58 % of PQ and 75 % of HLG in ITU-R BT.2408."""
    np.testing.assert_allclose(converted([1, 1, 1], SDR, target), signal, atol=2e-3)
    np.testing.assert_allclose(converted([0, 0, 0], SDR, target), 0, atol=1e-4)


@pytest.mark.parametrize("target", [PQ, HLG, P3])
def test_sdr_comes_back(target):
    rgb = np.random.default_rng(0).uniform(0, 0.9, (3, 500))
    np.testing.assert_allclose(
        converted(converted(rgb, SDR, target), target, SDR), rgb, atol=0.06 if target is not P3 else 2e-3
    )
    dark = rgb * 0.8  # below the knee nothing is compressed
    np.testing.assert_allclose(converted(converted(dark, SDR, target), target, SDR), dark, atol=2e-3)


def test_hdr_of_one_kind_becomes_the_other():
    """Check levels below HLG's peak of 1000 cd/m², which is 75.2 % of PQ."""
    rgb = np.random.default_rng(1).uniform(0.1, 0.6, (3, 500))
    np.testing.assert_allclose(converted(converted(rgb, PQ, HLG), HLG, PQ), rgb, atol=2e-3)
    np.testing.assert_allclose(converted([1, 1, 1], HLG, PQ), 0.7518, atol=1e-3)


@pytest.mark.parametrize("source", [PQ, HLG])
def test_highlights_keep_their_order_below_white(source):
    ramp = np.tile(np.linspace(0, 1, 256), (3, 1))
    grey = converted(ramp, source, SDR)
    np.testing.assert_allclose(grey, np.broadcast_to(grey[1], grey.shape), atol=2e-3)
    assert (np.diff(grey[1]) > -1e-6).all()
    assert grey[1, -1] > 0.99


def test_p3_of_a_phone_is_srgb():
    """Check colours of Display P3 as littleCMS converts them, but with BT.1886's curve in place of sRGB's."""
    made = converted(np.array([178, 76, 51]) / 255, P3, SDR) * 255
    np.testing.assert_allclose(made, (192, 67, 41), atol=3)
