"""Stereo, spherical and ambisonic metadata, by which players recognise the layout of a VR file.

MP4 and QuickTime files may contain three generations of boxes; all are read, and copied byte for byte:

- Spherical Video V2 (Google): ``st3d`` and ``sv3d`` in the visual sample entry; it cannot express fisheye.
- Video extended usage (Apple): ``vexu`` with projection and packing, and ``hfov`` beside it.
- Spherical Video V1: XML in a ``uuid`` box of the track.

New metadata is written in the first two.

Matroska has its own fields for both, see `matroska_video`.

Ambisonic audio has a box with the direction of each channel: ``SA3D`` (Google's Spatial Audio RFC) in an audio
track's sample entry, with ``SAND`` (head-locked stereo) beside it. FFmpeg's muxer drops both, and players would take
four channels for four loudspeakers.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vitascope.errors import CorruptInputError, UsageError
from vitascope.frames import Projection, StereoLayout
from vitascope.media.libav import wrap_input_error
from vitascope.media.metadata.matroska_video import (
    equirectangular_bounds,
    equirectangular_projection,
    read_video_entry,
)
from vitascope.media.metadata.mp4_boxes import (
    Box,
    described_track,
    full_box,
    parse_boxes,
    read_moov,
    rewrite_moov,
    sample_entry,
    tracks_of,
    video_track,
)

MATROSKA_STEREO_MODES = {
    StereoLayout.MONO: ("mono", "mono"),
    StereoLayout.SIDE_BY_SIDE: ("left_right", "right_left"),
    StereoLayout.TOP_BOTTOM: ("top_bottom", "bottom_top"),
}
"""FFmpeg's names for Matroska's ``StereoMode``, left and right eye first; its muxer takes them as the stream tag
``stereo_mode``."""
# st3d modes of Spherical Video V2.
_STEREO_OF_ST3D = {
    0: StereoLayout.MONO,
    1: StereoLayout.TOP_BOTTOM,
    2: StereoLayout.SIDE_BY_SIDE,
    4: StereoLayout.SIDE_BY_SIDE,  # with the right eye first
}
_ST3D_OF_STEREO = {StereoLayout.MONO: 0, StereoLayout.TOP_BOTTOM: 1, StereoLayout.SIDE_BY_SIDE: 2}
_PROJECTION_OF_VEXU = {
    b"rect": Projection.FLAT,
    b"equi": Projection.EQUIRECTANGULAR,
    b"hequ": Projection.HALF_EQUIRECTANGULAR,
    b"fish": Projection.FISHEYE,
}
_VEXU_OF_PROJECTION = {projection: kind for kind, projection in _PROJECTION_OF_VEXU.items()}
_STEREO_OF_VEXU = {b"side": StereoLayout.SIDE_BY_SIDE, b"over": StereoLayout.TOP_BOTTOM}
_VEXU_OF_STEREO = {layout: kind for kind, layout in _STEREO_OF_VEXU.items()}
_BOTH_EYES, _EYES_REVERSED = 0b0011, 0b1000
_ST3D_RIGHT_EYE_FIRST = 4
_FOVS = {Projection.HALF_EQUIRECTANGULAR: 180.0, Projection.EQUIRECTANGULAR: 360.0}
_ENTRY_KINDS = (b"st3d", b"sv3d", b"vexu", b"hfov")
_V1_UUID = bytes.fromhex("ffcc8263f8554a938814587a02521fdd")
_STEREO_OF_V1 = {
    "mono": StereoLayout.MONO,
    "left-right": StereoLayout.SIDE_BY_SIDE,
    "top-bottom": StereoLayout.TOP_BOTTOM,
}
_MATROSKA_MAGIC = b"\x1a\x45\xdf\xa3"


@dataclass(frozen=True, slots=True)
class SphericalMetadata:
    """The stereo layout and the projection named in a file.

    If ``sample_entry_boxes`` or ``track_boxes`` are given, these bytes are written; otherwise boxes are built from
    the other fields.
    """

    stereo: StereoLayout | None = None
    """None if the file does not say."""
    projection: Projection | None = None
    """None if the file does not say."""
    sample_entry_boxes: bytes = b""
    """The original ``st3d``, ``sv3d``, ``vexu`` and ``hfov``."""
    track_boxes: bytes = b""
    """The original ``uuid`` box of Spherical Video V1."""
    right_eye_first: bool = False
    """True if the left or upper half belongs to the right eye."""
    fov_degrees: float | None = None
    """Horizontal field of view of an eye; None if the file does not say."""
    has_layered_eyes: bool = False
    """True if a track stores both eyes as layers instead of one packed picture (MV-HEVC, spatial video); decoders
    show one of them. Then what ``sample_entry_boxes`` say about the eyes is not written, because the output has only
    one."""


def read_spherical(path: Path) -> SphericalMetadata | None:
    """Read the stereo and spherical metadata of a video.

    Args:
        path: An MP4, QuickTime or Matroska file; None is returned for others.

    Returns:
        The metadata; None if the file has none.

    Raises:
        InputError: The file cannot be read.
    """
    with wrap_input_error(path, "read it"), path.open("rb") as file:
        magic = file.read(4)
    if magic == _MATROSKA_MAGIC:
        stereo, projection, right_eye_first = read_video_entry(path)
        if stereo is None and projection is None:
            return None
        return SphericalMetadata(stereo, projection, right_eye_first=right_eye_first)
    moov = read_moov(path)
    track = video_track(moov) if moov is not None else None
    if track is None:
        return None
    entry = sample_entry(track)
    entry_boxes = [box for box in entry.children if box.kind in _ENTRY_KINDS] if entry else []
    v1_boxes = [box for box in track.children if _is_v1(box)]
    if not entry_boxes and not v1_boxes:
        return None
    stereo, projection = _read_v1(v1_boxes[0].head) if v1_boxes else (None, None)
    right_eye_first, fov_degrees, has_both_eyes = False, None, False
    for box in entry_boxes:
        if box.kind == b"st3d" and len(box.head) >= 5:
            stereo = _STEREO_OF_ST3D.get(box.head[4], stereo)
            right_eye_first |= box.head[4] == _ST3D_RIGHT_EYE_FIRST
        elif box.kind == b"sv3d":
            projection = _read_sv3d(box) or projection
        elif box.kind == b"vexu":
            projection = _read_vexu(box) or projection
            # Some tools put the packing outside the ``eyes`` box, where FFmpeg and Apple look.
            packing = box.child(b"pack", b"pkin") or box.child(b"eyes", b"pack", b"pkin")
            if packing is not None:
                stereo = stereo or _STEREO_OF_VEXU.get(packing.head[4:8])
            if (eyes := box.child(b"eyes", b"stri")) is not None and len(eyes.head) > 4:
                right_eye_first |= bool(eyes.head[4] & _EYES_REVERSED)
                has_both_eyes |= eyes.head[4] & _BOTH_EYES == _BOTH_EYES
        elif box.kind == b"hfov" and len(box.head) >= 4:
            fov_degrees = struct.unpack_from(">I", box.head)[0] / 1000 or None
    has_layered_eyes = has_both_eyes and stereo is None
    if has_layered_eyes:
        for box in entry_boxes:
            box.children = box.without(b"eyes")
    return SphericalMetadata(
        stereo,
        projection,
        b"".join(box.to_bytes() for box in entry_boxes),
        b"".join(box.to_bytes() for box in v1_boxes),
        right_eye_first and not has_layered_eyes,
        fov_degrees,
        has_layered_eyes,
    )


def write_spherical(path: Path, metadata: SphericalMetadata) -> None:
    """Replace the stereo and spherical metadata of a finished MP4 or QuickTime file.

    Args:
        path: The file; changed in place.
        metadata: The metadata to write. If both fields are None and there are no boxes, existing metadata is removed.

    Raises:
        CorruptInputError: The file has no video track to describe.
        OutputError: The file cannot be written.
    """
    entry_boxes = _rebuild(metadata.sample_entry_boxes) if metadata.sample_entry_boxes else []
    track_boxes = _rebuild(metadata.track_boxes) if metadata.track_boxes else []
    if not entry_boxes and not track_boxes:
        entry_boxes = _build_entry_boxes(metadata)

    def edit(moov: Box) -> None:
        track, entry = described_track(path, moov)
        entry.children = entry.without(*_ENTRY_KINDS) + entry_boxes
        track.children = [box for box in track.children if not _is_v1(box)] + track_boxes

    rewrite_moov(path, edit)


def set_rotation(path: Path, degrees: int) -> None:
    """Write the display matrix of the first video track of an MP4 or QuickTime file.

    Args:
        path: The file; changed in place.
        degrees: Clockwise rotation that makes the picture upright: 0, 90, 180 or 270.

    Raises:
        UsageError: The angle is another.
        CorruptInputError: The file has no video track.
        OutputError: The file cannot be written.
    """
    if degrees not in (0, 90, 180, 270):
        raise UsageError(f"rotation of {degrees} degrees; only 0, 90, 180 and 270 can be written")

    def edit(moov: Box) -> None:
        header = _track_header(moov)
        if header is None:
            raise CorruptInputError(f"{path}: no video track to rotate")
        offset = _matrix_offset(header)
        width, height = struct.unpack_from(">ii", header.head, offset + 36)  # 16.16 fixed point
        one = 1 << 16
        # (x, y) maps to (a x + c y + tx, b x + d y + ty); the translation moves the picture back to the origin.
        a, b, c, d, tx, ty = {
            0: (one, 0, 0, one, 0, 0),
            90: (0, one, -one, 0, height, 0),
            180: (-one, 0, 0, -one, width, height),
            270: (0, -one, one, 0, 0, width),
        }[degrees]
        matrix = struct.pack(">9i", a, b, 0, c, d, 0, tx, ty, 1 << 30)
        header.head = header.head[:offset] + matrix + header.head[offset + 36 :]

    rewrite_moov(path, edit)


def _track_header(moov: Box) -> Box | None:
    track = video_track(moov)
    header = track.child(b"tkhd") if track is not None else None
    return header if header is not None and len(header.head) >= _matrix_offset(header) + 44 else None


def _matrix_offset(header: Box) -> int:
    # version and flags, the times of version 0 or 1, then 16 bytes of layer, group and volume
    return 4 + (32 if header.head[:1] == b"\1" else 20) + 16


def _is_v1(box: Box) -> bool:
    return box.kind == b"uuid" and box.head.startswith(_V1_UUID)


def _read_sv3d(box: Box) -> Projection | None:
    surface = box.child(b"proj", b"equi")
    if surface is None or len(surface.head) < 20:
        return None
    return equirectangular_projection(surface.head)


def _read_vexu(box: Box) -> Projection | None:
    info = box.child(b"proj", b"prji")
    return _PROJECTION_OF_VEXU.get(info.head[4:8]) if info is not None else None


def _read_v1(payload: bytes) -> tuple[StereoLayout | None, Projection | None]:
    # Two fields with a known vocabulary: a search suffices, and no XML parser meets hostile input.
    text = payload[16:].decode("utf-8", "replace")

    def value(name: str) -> str:
        match = re.search(rf"<GSpherical:{name}>\s*([\w-]+)\s*<", text)
        return match.group(1).lower() if match else ""

    projection = None
    if value("ProjectionType") == "equirectangular" or value("Spherical") == "true":
        cropped, full = value("CroppedAreaImageWidthPixels"), value("FullPanoWidthPixels")
        half = cropped.isdecimal() and full.isdecimal() and 0 < int(cropped) * 2 <= int(full)
        projection = Projection.HALF_EQUIRECTANGULAR if half else Projection.EQUIRECTANGULAR
    return _STEREO_OF_V1.get(value("StereoMode")), projection


def _rebuild(data: bytes) -> list[Box]:
    boxes, rest = parse_boxes(data)
    if rest:
        raise UsageError(f"spherical boxes to carry over are damaged: {len(rest)} bytes are not a box")
    return boxes


def _build_entry_boxes(metadata: SphericalMetadata) -> list[Box]:
    stereo, projection = metadata.stereo, metadata.projection
    boxes: list[Box] = []
    is_reversed = metadata.right_eye_first and stereo is not StereoLayout.MONO
    if stereo is not None:
        mode = _ST3D_OF_STEREO[stereo]
        if (
            is_reversed and stereo is StereoLayout.SIDE_BY_SIDE
        ):  # it has only one order for eyes one above the other
            mode = _ST3D_RIGHT_EYE_FIRST
        boxes.append(full_box(b"st3d", bytes([mode])))
    if projection in (Projection.EQUIRECTANGULAR, Projection.HALF_EQUIRECTANGULAR):
        pose = full_box(b"prhd", struct.pack(">3i", 0, 0, 0))  # yaw, pitch, roll
        surface = Box(b"equi", equirectangular_bounds(projection))
        boxes.append(
            Box(b"sv3d", children=[full_box(b"svhd", b"Vitascope\0"), Box(b"proj", children=[pose, surface])])
        )
    usage = Box(b"vexu")
    if projection is not None:
        usage.children.append(Box(b"proj", children=[full_box(b"prji", _VEXU_OF_PROJECTION[projection])]))
    if stereo in _VEXU_OF_STEREO:
        eyes = full_box(b"stri", bytes([_BOTH_EYES | (_EYES_REVERSED if is_reversed else 0)]))
        usage.children.append(Box(b"eyes", children=[eyes]))
        usage.children.append(Box(b"pack", children=[full_box(b"pkin", _VEXU_OF_STEREO[stereo])]))
    if usage.children:
        boxes.append(usage)
    fov_degrees = metadata.fov_degrees or (_FOVS.get(projection) if projection is not None else None)
    if fov_degrees is not None:
        boxes.append(Box(b"hfov", struct.pack(">I", round(fov_degrees * 1000))))
    return boxes


_KINDS = (b"SA3D", b"SAND")
# Bytes before the boxes of an audio sample entry, by its version; QuickTime added fields twice.
_ENTRY_HEADS = {0: 28, 1: 44, 2: 64}


def read_spatial_sound(path: Path) -> list[bytes]:
    """Read the ambisonic boxes of a file.

    Returns:
        For each audio track, in order, its original boxes, empty for ordinary audio; an empty list for other files.

    Raises:
        InputError: The file cannot be read.
    """
    moov = read_moov(path)
    return [_boxes_of(track) for track in tracks_of(moov, b"soun")] if moov is not None else []


def write_spatial_sound(path: Path, boxes: Sequence[bytes]) -> None:
    """Write ambisonic boxes into a finished file.

    Args:
        path: The file; changed in place.
        boxes: For each audio track, in order, its boxes; entries beyond the last track are ignored.

    Raises:
        OutputError: The file cannot be written.
    """

    def edit(moov: Box) -> None:
        for track, added in zip(tracks_of(moov, b"soun"), boxes, strict=False):
            entry = sample_entry(track)
            if entry is not None:
                entry.tail += added

    if any(boxes):
        rewrite_moov(path, edit)


def _boxes_of(track: Box) -> bytes:
    entry = sample_entry(track)
    payload = entry.to_bytes()[16 if entry.wide else 8 :] if entry is not None else b""
    if len(payload) < _ENTRY_HEADS[0]:
        return b""
    (version,) = struct.unpack_from(">H", payload, 8)
    boxes, _ = parse_boxes(payload[_ENTRY_HEADS.get(version, _ENTRY_HEADS[0]) :])
    return b"".join(box.to_bytes() for box in boxes if box.kind in _KINDS)
