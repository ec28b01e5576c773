"""Picture files with an ICC profile, as from phones and picture editors."""

from __future__ import annotations

import struct
import zlib

import cv2

P3_COLORANTS = ((0.51512, 0.24120, -0.00105), (0.29198, 0.69225, 0.04189), (0.15710, 0.06657, 0.78407))
"""XYZ under D50 of red, green and blue, as in Apple's Display P3."""
ADOBE_COLORANTS = ((0.60974, 0.31111, 0.01947), (0.20528, 0.62567, 0.06087), (0.14919, 0.06322, 0.74457))


def icc_profile(colorants):
    """Make a profile that only has its colorants."""
    names = (b"rXYZ", b"gXYZ", b"bXYZ")
    tags = b"".join(struct.pack(">4sII", name, 168 + 20 * n, 20) for n, name in enumerate(names))
    values = b"".join(
        b"XYZ \0\0\0\0" + struct.pack(">3i", *(round(value * 65536) for value in color))
        for color in colorants
    )
    return bytes(128) + struct.pack(">I", 3) + tags + values


def with_profile(suffix, rgb, profile, *, before=b""):
    """The content of a file of uint8 RGB [H, W, 3] with a profile.

    Args:
        suffix: ``.jpg``, ``.png``, ``.webp`` or ``.avif``; the last is a box of its own, not a picture.
        rgb: What to encode.
        profile: The profile.
        before: JPEG segments that come before the profile's.
    """
    if suffix == ".avif":
        return (
            b"\0\0\0\x1cftypavif" + bytes(20) + struct.pack(">I", len(profile) + 12) + b"colrprof" + profile
        )
    made, data = cv2.imencode(suffix, rgb[..., ::-1])
    assert made
    raw = data.tobytes()
    if suffix == ".jpg":
        halves = profile[:100], profile[100:]
        segments = [
            b"\xff\xe2" + struct.pack(">H", 16 + len(half)) + b"ICC_PROFILE\0" + bytes((n + 1, 2)) + half
            for n, half in enumerate(halves)
        ]
        return raw[:2] + before + b"".join(segments) + raw[2:]
    if suffix == ".png":
        chunk = b"iCCP" + b"Display P3\0\0" + zlib.compress(profile)
        return (
            raw[:33]
            + struct.pack(">I", len(chunk) - 4)
            + chunk
            + struct.pack(">I", zlib.crc32(chunk))
            + raw[33:]
        )
    chunk = b"VP8X" + struct.pack("<IB3x", 10, 0x20)
    chunk += b"".join(struct.pack("<I", side - 1)[:3] for side in rgb.shape[1::-1])
    chunk += b"ICCP" + struct.pack("<I", len(profile)) + profile + bytes(len(profile) % 2)
    body = b"WEBP" + chunk + raw[12:]
    return b"RIFF" + struct.pack("<I", len(body)) + body
