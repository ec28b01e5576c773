"""Writing HDR10 side data: the display a video was graded on (SMPTE ST 2086) and its light levels (CTA-861.3).

The encoders that can put it into the bitstream get it as parameters; MP4 and QuickTime files get ``mdcv`` and ``clli``
boxes besides, because players look there first.
"""

from __future__ import annotations

import struct
from fractions import Fraction
from pathlib import Path

from vitascope.media.libav import open_input, wrap_input_error
from vitascope.media.metadata.color_tags import HdrMetadata, read_side_data
from vitascope.media.metadata.mp4_boxes import Box, described_track, rewrite_moov

__all__ = ["hdr_encoder_parameters", "read_hdr", "write_hdr_boxes"]

_CHROMATICITY_UNITS = 50_000
"""Steps of one in CIE 1931 xy, of HEVC's SEI message and of the ``mdcv`` box."""
_LUMINANCE_UNITS = 10_000
"""Steps of one cd/m2, likewise."""
_PARAMETERS = {
    "libx264": ("mastering-display", "cll"),
    "libx265": ("master-display", "max-cll"),
    "libsvtav1": ("mastering-display", "content-light"),
}
"""The encoders' names of mastering display and content light level."""


def read_hdr(path: Path) -> HdrMetadata | None:
    """Read HDR10 side data from the first frame of a video.

    Returns:
        The metadata, or None when the file has none.

    Raises:
        InputError: The file cannot be opened, or its first frame not be decoded.
    """
    with wrap_input_error(path, "read its HDR metadata"), open_input(path) as container:
        frame = next(container.decode(video=0), None)
        return read_side_data(frame).hdr if frame is not None else None


def hdr_encoder_parameters(metadata: HdrMetadata, encoder: str) -> dict[str, str]:
    """The entries of ``x264-params``, ``x265-params`` or ``svtav1-params`` that make an encoder write the metadata.

    Args:
        metadata: What to write.
        encoder: FFmpeg's encoder name; for one that has no such parameters the answer is empty.
    """
    if encoder not in _PARAMETERS:
        return {}
    parameters: dict[str, str] = {}
    mastering_name, light_name = _PARAMETERS[encoder]
    mastering = _mastering_integers(metadata)
    if mastering is not None:
        if encoder == "libsvtav1":
            *points, brightest, darkest = mastering
            values = [f"{value / _CHROMATICITY_UNITS:.5f}" for value in points]
            values += [f"{value / _LUMINANCE_UNITS:.4f}" for value in (brightest, darkest)]
        else:
            values = [str(value) for value in mastering]
        parameters[mastering_name] = "G({},{})B({},{})R({},{})WP({},{})L({},{})".format(*values)
    light = _light_integers(metadata)
    if light is not None:
        parameters[light_name] = f"{light[0]},{light[1]}"
    return parameters


def write_hdr_boxes(path: Path, metadata: HdrMetadata) -> None:
    """Put ``mdcv`` and ``clli`` (ISO/IEC 14496-12 clause 12.1.5) into a finished MP4 or QuickTime file.

    Raises:
        CorruptInputError: The file has no video track.
        OutputError: The file cannot be written.
    """
    boxes: list[Box] = []
    mastering = _mastering_integers(metadata)
    if mastering is not None:
        boxes.append(Box(b"mdcv", struct.pack(">8H2I", *mastering)))
    light = _light_integers(metadata)
    if light is not None:
        boxes.append(Box(b"clli", struct.pack(">2H", *light)))

    def edit(moov: Box) -> None:
        _, entry = described_track(path, moov)
        entry.children = entry.without(*(box.kind for box in boxes)) + boxes

    rewrite_moov(path, edit)


def _mastering_integers(metadata: HdrMetadata) -> tuple[int, ...] | None:
    """Green, blue, red, white (x, y each) in 1/50000, then largest and smallest luminance in 1/10000 cd/m2.

    None unless all ten numbers are known: the formats have no way to leave one out.
    """
    if metadata.display_primaries is None or metadata.white_point is None:
        return None
    if metadata.min_luminance is None or metadata.max_luminance is None:
        return None
    red, green, blue = metadata.display_primaries
    points = (*green, *blue, *red, *metadata.white_point)
    return (
        *(_clamp(value * _CHROMATICITY_UNITS, 0xFFFF) for value in points),
        _clamp(metadata.max_luminance * _LUMINANCE_UNITS, 0xFFFFFFFF),
        _clamp(metadata.min_luminance * _LUMINANCE_UNITS, 0xFFFFFFFF),
    )


def _light_integers(metadata: HdrMetadata) -> tuple[int, int] | None:
    """MaxCLL and MaxFALL in cd/m2, 0 for the one that is unknown; None when both are."""
    levels = (metadata.max_content_light_level, metadata.max_frame_average_light_level)
    if levels == (None, None):
        return None
    return _clamp(Fraction(levels[0] or 0), 0xFFFF), _clamp(Fraction(levels[1] or 0), 0xFFFF)


def _clamp(value: Fraction, largest: int) -> int:
    return min(max(round(value), 0), largest)
