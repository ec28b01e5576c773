"""Converts R'G'B' between HDR, SDR, wide gamuts and BT.709 so that it looks the same.

Mapped by display light, as in ITU-R BT.2408: SDR is a BT.1886 display whose white is 203 cd/m², the diffuse white of
HDR. PQ: SMPTE ST 2084. HLG: BT.2100, on a display of 1000 cd/m².
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from vitascope.frames import ColorSpec

_PQ, _HLG = 16, 18
HDR_TRANSFERS = frozenset({_PQ, _HLG})
"""H.273 TransferCharacteristics of HDR: PQ (SMPTE ST 2084) and HLG (ARIB STD-B67)."""

_BT709 = ((0.640, 0.330), (0.300, 0.600), (0.150, 0.060))
_BT2020 = ((0.708, 0.292), (0.170, 0.797), (0.131, 0.046))
_P3 = ((0.680, 0.320), (0.265, 0.690), (0.150, 0.060))
_WIDE = {9: _BT2020, 12: _P3}
"""H.273 ColourPrimaries with a D65 white that are wider than BT.709's: red, green and blue in x and y. All others,
such as BT.601's and unknown ones, are treated as BT.709, as players do."""
_D65 = (0.3127, 0.3290)

_SDR_GAMMA = 2.4
_WHITE_NITS = 203.0
_HLG_PEAK_NITS, _HLG_GAMMA = 1000.0, 1.2
_HLG_A, _HLG_B, _HLG_C = 0.17883277, 0.28466892, 0.55991073
_PQ_M1, _PQ_M2, _PQ_C1, _PQ_C2, _PQ_C3 = 1305 / 8192, 2523 / 32, 107 / 128, 2413 / 128, 2392 / 128
_BT2020_LUMINANCE = (0.2627, 0.6780, 0.0593)
_KNEE = 0.8
"""Share of diffuse white above which HDR highlights are compressed below SDR's white."""


def look_alike(source: ColorSpec, target: ColorSpec) -> Callable[[Any], Any] | None:
    """Get the conversion of R'G'B' to another colour space that keeps its look; None if nothing changes.

    Args:
        source: Primaries and transfer of the source.
        target: Primaries and transfer of the result.

    Returns:
        A function of float32 [3, H, W], NumPy or CuPy, 0..1; the result has the same type, clipped to 0..1.
    """
    kinds = [_kind(color) for color in (source, target)]
    if kinds[0] == kinds[1]:
        return None
    (source_primaries, source_transfer), (target_primaries, target_transfer) = kinds
    matrix = np.linalg.inv(_xyz_from_rgb(target_primaries)) @ _xyz_from_rgb(source_primaries)

    def convert(rgb: Any) -> Any:
        light = _light(rgb.clip(0, 1), source_transfer)
        light = _mixed(matrix, light).clip(0, None)  # colours outside the target's gamut are clipped
        if source_transfer in HDR_TRANSFERS and target_transfer not in HDR_TRANSFERS:
            light = _rolled_off(light)
        return _signal(light, target_transfer).clip(0, 1).astype(np.float32)

    return convert


def _kind(color: ColorSpec) -> tuple[tuple[tuple[float, float], ...], int]:
    """Primaries, and the transfer if it is HDR, else 1."""
    transfer = color.transfer if color.transfer in HDR_TRANSFERS else 1
    default = _BT2020 if transfer in HDR_TRANSFERS else _BT709
    is_untagged = color.primaries == 2
    return default if is_untagged else _WIDE.get(color.primaries, _BT709), transfer


def _xyz_from_rgb(primaries: tuple[tuple[float, float], ...]) -> npt.NDArray[np.float64]:
    """float64 [3, 3]: CIE XYZ of linear RGB, with D65 white at Y = 1."""
    columns, white = (
        np.array([(x / y, 1.0, (1 - x - y) / y) for x, y in points]).T for points in (primaries, [_D65])
    )
    matrix: npt.NDArray[np.float64] = columns * np.linalg.solve(columns, white[:, 0])
    return matrix


def _mixed(matrix: npt.NDArray[np.float64], rgb: Any) -> Any:
    """Apply a matrix to the channels of [3, H, W], with scalars, which works for NumPy and CuPy."""
    mixed = rgb.copy()
    for channel, row in enumerate(matrix.tolist()):
        mixed[channel] = row[0] * rgb[0] + row[1] * rgb[1] + row[2] * rgb[2]
    return mixed


def _light(signal: Any, transfer: int) -> Any:
    """Convert R'G'B' in 0..1 to display light, with diffuse white as 1."""
    if transfer == _PQ:
        root = signal ** (1 / _PQ_M2)
        return ((root - _PQ_C1).clip(0, None) / (_PQ_C2 - _PQ_C3 * root)) ** (1 / _PQ_M1) * (
            10000 / _WHITE_NITS
        )
    if transfer == _HLG:
        dark = signal <= 0.5
        scene = dark * signal**2 / 3 + ~dark * (np.exp((signal - _HLG_C) / _HLG_A) + _HLG_B) / 12
        return scene * _luminance(scene) ** (_HLG_GAMMA - 1) * (_HLG_PEAK_NITS / _WHITE_NITS)
    return signal**_SDR_GAMMA


def _signal(light: Any, transfer: int) -> Any:
    """Convert light, with diffuse white as 1, to R'G'B', not clipped."""
    if transfer == _PQ:
        power = (light * (_WHITE_NITS / 10000)) ** _PQ_M1
        return ((_PQ_C1 + _PQ_C2 * power) / (1 + _PQ_C3 * power)) ** _PQ_M2
    if transfer == _HLG:
        shown = light * (_WHITE_NITS / _HLG_PEAK_NITS)
        scene = shown * _luminance(shown).clip(1e-9, None) ** (1 / _HLG_GAMMA - 1)
        dark = scene <= 1 / 12
        bright = _HLG_A * np.log((12 * scene - _HLG_B).clip(1e-9, None)) + _HLG_C
        return dark * (3 * scene) ** 0.5 + ~dark * bright
    return light ** (1 / _SDR_GAMMA)


def _luminance(rgb: Any) -> Any:
    """Luminance [1, H, W] of linear BT.2020 RGB."""
    red, green, blue = _BT2020_LUMINANCE
    return (red * rgb[0] + green * rgb[1] + blue * rgb[2])[None]


def _rolled_off(light: Any) -> Any:
    """Compress light above the knee below 1, by the brightest channel, to keep hues."""
    brightest = light.max(axis=0, keepdims=True).clip(1e-9, None)
    excess = (brightest - _KNEE).clip(0, None)
    room = 1 - _KNEE
    return light * ((brightest - excess + room * (1 - np.exp(-excess / room))) / brightest)
