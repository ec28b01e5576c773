"""Reads the ICC profile of a picture file, if H.273 has a code for its colours (ICC.1:2022).

FFmpeg returns profiles as side data, which PyAV 18.1 cannot list beside EXIF, nor at all for PNG.
"""

from __future__ import annotations

import struct
import zlib

_XYZ_TAGS = (b"rXYZ", b"gXYZ", b"bXYZ")
_COLORANTS = {
    1: ((0.4361, 0.2225, 0.0139), (0.3851, 0.7169, 0.0971), (0.1431, 0.0606, 0.7141)),
    9: ((0.6734, 0.2790, -0.0019), (0.1656, 0.6753, 0.0300), (0.1251, 0.0456, 0.7969)),
    12: ((0.5151, 0.2412, -0.0011), (0.2920, 0.6922, 0.0419), (0.1571, 0.0666, 0.7841)),
}
"""By H.273 ColourPrimaries (BT.709, BT.2020, P3): XYZ of red, green and blue, relative to D50, the profiles' white."""
_TOLERANCE = 0.004
"""Rounding makes profiles of one space differ by 0.002; different spaces differ by 0.02 and more."""
_MAX_PROFILE_BYTES = 1 << 22


def picture_primaries(content: bytes) -> int:
    """The H.273 ColourPrimaries described by a picture's profile.

    Args:
        content: A JPEG, PNG, WebP or AVIF file, or its first megabyte, which contains the profile.

    Returns:
        1, 9 or 12; 2 (unspecified) if the profile is missing, damaged or of another kind.
    """
    try:
        return _primaries_of(_profile_in(content))
    except (struct.error, zlib.error, KeyError, IndexError):
        return 2


def _profile_in(content: bytes) -> bytes:
    """The profile; empty or incomplete if there is no intact one."""
    if content.startswith(b"\xff\xd8"):
        return _in_jpeg(content)
    if content.startswith(b"\x89PNG"):
        at = 8
        while (name := content[at + 4 : at + 8]) not in (b"iCCP", b"IDAT", b""):
            at += 12 + _word(content, at, ">I")
        packed = content[at + 8 : at + 8 + _word(content, at, ">I")] if name == b"iCCP" else b""
        # The name ends with a zero byte, then comes the method, which is always deflate.
        return zlib.decompressobj().decompress(packed.partition(b"\0")[2][1:], _MAX_PROFILE_BYTES)
    if content.startswith(b"RIFF") and content[8:12] == b"WEBP":
        at = 12
        while (name := content[at : at + 4]) not in (b"ICCP", b""):
            size = _word(content, at + 4, "<I")
            at += 8 + size + size % 2
        return content[at + 8 :] if name else b""
    if content[4:12] == b"ftypavif":
        at = content.find(b"colrprof")
        return content[at + 8 :] if at >= 0 else b""
    return b""


def _in_jpeg(content: bytes) -> bytes:
    """A JPEG's profile, possibly in several segments (ICC.1:2022, B.4), which are in order."""
    profile, at = b"", 2
    while content[at + 1] not in (0xDA, 0xD9):
        if content[at + 1] == 0xFF:  # a fill byte
            at += 1
            continue
        size = _word(content, at + 2, ">H")
        if content[at + 1] == 0xE2 and content[at + 4 : at + 16] == b"ICC_PROFILE\0":
            profile += content[at + 18 : at + 2 + size]
        at += 2 + size
    return profile


def _word(content: bytes, at: int, kind: str) -> int:
    (value,) = struct.unpack_from(kind, content, at)
    return int(value)


def _primaries_of(profile: bytes) -> int:
    tags = {}
    for n in range(min(_word(profile, 128, ">I"), 256)):
        name, offset, _ = struct.unpack_from(">4sII", profile, 132 + 12 * n)
        tags[name] = offset
    found = [
        value / 65536 for name in _XYZ_TAGS for value in struct.unpack_from(">3i", profile, tags[name] + 8)
    ]
    for code, colorants in _COLORANTS.items():
        expected = [value for colorant in colorants for value in colorant]
        if all(abs(have - want) < _TOLERANCE for have, want in zip(found, expected, strict=True)):
            return code
    return 2
