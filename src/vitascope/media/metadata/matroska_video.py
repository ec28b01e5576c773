"""The video track's entry in Matroska and WebM files (RFC 9559): stereo mode, projection, display size.

The binding that drives FFmpeg's muxer cannot pass on the sample aspect ratio and the projection, so they are added
after muxing. Nothing may move in a finished file (seek heads and cues store positions), so the muxer reserves room: a
placeholder as the track's name, whose bytes the patch replaces.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import BinaryIO

from vitascope.errors import CorruptInputError
from vitascope.frames import Projection, StereoLayout
from vitascope.media.libav import wrap_input_error, wrap_output_error

MUXER_OPTIONS = {"write_crc32": "0"}
"""Options of FFmpeg's muxer that make a file patchable: without checksums."""
MATROSKA_PROJECTIONS = frozenset({Projection.EQUIRECTANGULAR, Projection.HALF_EQUIRECTANGULAR})
"""The projections that the format supports."""

SEGMENT, _TRACKS, _CLUSTER = 0x18538067, 0x1654AE6B, 0x1F43B675
_TRACK_ENTRY, _TRACK_TYPE, _NAME, _VIDEO, _VOID = 0xAE, 0x83, 0x536E, 0xE0, 0xEC
_PIXEL_WIDTH, _PIXEL_HEIGHT, _STEREO_MODE = 0xB0, 0xBA, 0x53B8
_DISPLAY_WIDTH, _DISPLAY_HEIGHT, _DISPLAY_UNIT = 0x54B0, 0x54BA, 0x54B2
_PROJECTION, _PROJECTION_TYPE, _PROJECTION_PRIVATE = 0x7670, 0x7671, 0x7672
_MASTERS = frozenset({_TRACK_ENTRY, _VIDEO, _PROJECTION})
_VIDEO_TRACK = 1
_UNIT_PIXELS, _UNIT_RATIO = 0, 3
_EQUIRECTANGULAR = 1
_QUARTER = 0x3FFFFFFF
"""A quarter of the sphere's width in 0.32 fixed point: cropped left and right, it leaves half."""
_STEREO_OF_MODE = {
    0: StereoLayout.MONO,
    1: StereoLayout.SIDE_BY_SIDE,
    2: StereoLayout.TOP_BOTTOM,
    3: StereoLayout.TOP_BOTTOM,
    11: StereoLayout.SIDE_BY_SIDE,
}
_RIGHT_EYE_FIRST = frozenset({2, 11})
_ROOM = "\N{NO-BREAK SPACE}" * 64
"""128 bytes that players show as spaces, if the file is never patched."""
_MAX_TRACKS_BYTES = 1 << 26
_MAX_ELEMENTS = 10_000


@dataclass(slots=True)
class _Element:
    """One EBML element; ``payload`` is empty when it has ``children``."""

    identifier: int
    payload: bytes = b""
    children: list[_Element] = field(default_factory=list)

    def to_bytes(self) -> bytes:
        payload = b"".join(child.to_bytes() for child in self.children) if self.children else self.payload
        identifier = self.identifier.to_bytes((self.identifier.bit_length() + 7) // 8, "big")
        return identifier + _coded_size(len(payload)) + payload

    def child(self, identifier: int) -> _Element | None:
        return next((child for child in self.children if child.identifier == identifier), None)

    def number(self, identifier: int) -> int | None:
        """The value of an unsigned integer below this element."""
        child = self.child(identifier)
        return int.from_bytes(child.payload, "big") if child is not None and len(child.payload) <= 8 else None


@dataclass(frozen=True, slots=True)
class _Entry:
    """A video track's entry: its place in the file, and its content."""

    offset: int
    """Position of its payload in the file."""
    size: int
    element: _Element


def read_video_entry(path: Path) -> tuple[StereoLayout | None, Projection | None, bool]:
    """Read stereo layout and projection of the first video track, and whether the right eye is the left or upper half.

    Layout and projection are None if the file does not say.

    Raises:
        InputError: The file cannot be read.
    """
    with wrap_input_error(path, "read its tracks"), path.open("rb") as file:
        entry = _find_video_entry(file)
    video = entry.element.child(_VIDEO) if entry is not None else None
    if video is None:
        return None, None, False
    mode = video.number(_STEREO_MODE)
    stereo = _STEREO_OF_MODE.get(mode) if mode is not None else None
    right_eye_first = mode in _RIGHT_EYE_FIRST
    surface = video.child(_PROJECTION)
    if surface is None or surface.number(_PROJECTION_TYPE) != _EQUIRECTANGULAR:
        return stereo, None, right_eye_first
    bounds = surface.child(_PROJECTION_PRIVATE)
    if bounds is None or len(bounds.payload) < 20:
        return stereo, Projection.EQUIRECTANGULAR, right_eye_first
    return stereo, equirectangular_projection(bounds.payload), right_eye_first


def equirectangular_projection(payload: bytes) -> Projection:
    """Distinguish 180 from 360 degrees by the left and right crop in MP4's ``equi`` box, also found in Matroska."""
    _, _, left, right = struct.unpack_from(">4I", payload, 4)
    half = 1.0 - (left + right) / 2**32 <= 0.51
    return Projection.HALF_EQUIRECTANGULAR if half else Projection.EQUIRECTANGULAR


def equirectangular_bounds(projection: Projection) -> bytes:
    """The payload of that box: version and flags, then the crop at the top, bottom, left and right."""
    crop = _QUARTER if projection is Projection.HALF_EQUIRECTANGULAR else 0
    return struct.pack(">5I", 0, 0, 0, crop, crop)


def name_with_room(name: str) -> str:
    """A track name that reserves room for ``patch_video_entry``."""
    return name + _ROOM


def patch_video_entry(
    path: Path, *, sample_aspect_ratio: Fraction = Fraction(1), projection: Projection | None = None
) -> None:
    """Write display size and projection into the first video track, and remove the reserved room from its name.

    Args:
        path: A file muxed with ``MUXER_OPTIONS`` and a name from ``name_with_room``; changed in place.
        sample_aspect_ratio: Width of a sample divided by its height.
        projection: ``EQUIRECTANGULAR`` and ``HALF_EQUIRECTANGULAR`` are written; the format has no code for others.

    Raises:
        CorruptInputError: The file has no video track with reserved room.
        OutputError: The file cannot be written.
    """
    with wrap_output_error(path, "patch its tracks"), path.open("r+b") as file:
        found = _find_video_entry(file)
        entry = found.element if found is not None else None
        video = entry.child(_VIDEO) if entry is not None else None
        name = entry.child(_NAME) if entry is not None else None
        if found is None or entry is None or video is None or name is None:
            raise CorruptInputError(f"{path}: no video track to describe")
        shown = name.payload.decode("utf-8", "replace").removesuffix(_ROOM)
        entry.children.remove(name)
        if shown:
            entry.children.append(_Element(_NAME, shown.encode()))
        if sample_aspect_ratio != 1:
            _set_display_size(video, sample_aspect_ratio)
        if projection is not None and projection in MATROSKA_PROJECTIONS:
            bounds = _Element(_PROJECTION_PRIVATE, equirectangular_bounds(projection))
            kind = _Element(_PROJECTION_TYPE, bytes([_EQUIRECTANGULAR]))
            video.children.append(_Element(_PROJECTION, children=[kind, bounds]))
        data = b"".join(child.to_bytes() for child in entry.children)
        spare = found.size - len(data)
        if spare < 2:
            raise CorruptInputError(f"{path}: no room to describe the video track")
        file.seek(found.offset)
        file.write(data + _void(spare))


def _set_display_size(video: _Element, ratio: Fraction) -> None:
    """Set the display size of one eye: in pixels if that is exact, else as a ratio."""
    stereo = _STEREO_OF_MODE.get(video.number(_STEREO_MODE) or 0)
    width = Fraction(video.number(_PIXEL_WIDTH) or 1) * ratio
    height = Fraction(video.number(_PIXEL_HEIGHT) or 1)
    if stereo is StereoLayout.SIDE_BY_SIDE:
        width /= 2
    elif stereo is StereoLayout.TOP_BOTTOM:
        height /= 2
    unit = _UNIT_PIXELS
    if width.denominator != 1 or height.denominator != 1:
        unit, shape = _UNIT_RATIO, width / height
        width, height = Fraction(shape.numerator), Fraction(shape.denominator)
    video.children = [
        child
        for child in video.children
        if child.identifier not in (_DISPLAY_WIDTH, _DISPLAY_HEIGHT, _DISPLAY_UNIT)
    ]
    for identifier, value in (
        (_DISPLAY_WIDTH, int(width)),
        (_DISPLAY_HEIGHT, int(height)),
        (_DISPLAY_UNIT, unit),
    ):
        video.children.append(_Element(identifier, value.to_bytes((value.bit_length() + 7) // 8 or 1, "big")))


def _find_video_entry(file: BinaryIO) -> _Entry | None:
    """Walk from the start of the file to the first video track; None if there is none, or damage comes first."""
    end = file.seek(0, 2)
    position = 0
    for _ in range(_MAX_ELEMENTS):
        file.seek(position)
        header = read_element_header(file.read(12))
        if header is None:
            return None
        identifier, size, length = header
        start = position + length
        if identifier == SEGMENT:
            position = start  # descend into it
            continue
        if identifier == _CLUSTER or size is None or size > end - start:
            return None
        if identifier == _TRACKS:
            file.seek(start)
            return _video_entry_in(file.read(min(size, _MAX_TRACKS_BYTES)), start)
        position = start + size
    return None


def _video_entry_in(tracks: bytes, offset: int) -> _Entry | None:
    position = 0
    while (header := read_element_header(tracks[position : position + 12])) is not None:
        identifier, size, length = header
        start = position + length
        if size is None or size > len(tracks) - start:
            return None
        if identifier == _TRACK_ENTRY:
            children = _parse(tracks[start : start + size])
            element = _Element(identifier, children=children or [])
            if children is not None and element.number(_TRACK_TYPE) == _VIDEO_TRACK:
                return _Entry(offset + start, size, element)
        position = start + size
    return None


def _parse(data: bytes) -> list[_Element] | None:
    """Parse the elements in ``data``; None unless they fill it exactly. Master elements nest three deep at most."""
    elements: list[_Element] = []
    position = 0
    while position < len(data):
        header = read_element_header(data[position : position + 12])
        if header is None:
            return None
        identifier, size, length = header
        start = position + length
        if size is None or size > len(data) - start:
            return None
        payload = data[start : start + size]
        children = _parse(payload) if identifier in _MASTERS else None
        elements.append(_Element(identifier, payload, children or []))
        position = start + size
    return elements


def read_element_header(data: bytes) -> tuple[int, int | None, int] | None:
    """Identifier, payload size (None if unknown) and header length of an element; None if there is none."""
    if not data or not data[0] > 0:
        return None
    identifier_length = 9 - data[0].bit_length()
    if identifier_length > 4 or len(data) <= identifier_length or data[identifier_length] == 0:
        return None
    size_length = 9 - data[identifier_length].bit_length()
    length = identifier_length + size_length
    if len(data) < length:
        return None
    mask = (1 << 7 * size_length) - 1
    size = int.from_bytes(data[identifier_length:length], "big") & mask
    return int.from_bytes(data[:identifier_length], "big"), None if size == mask else size, length


def _coded_size(size: int, length: int | None = None) -> bytes:
    if length is None:
        length = next(n for n in range(1, 9) if size < (1 << 7 * n) - 1)
    return ((1 << 7 * length) | size).to_bytes(length, "big")


def _void(size: int) -> bytes:
    """A Void element with a total size of ``size`` bytes, at least 2."""
    length = 1 if size < 100 else 8
    return bytes([_VOID]) + _coded_size(size - 1 - length, length) + bytes(size - 1 - length)
