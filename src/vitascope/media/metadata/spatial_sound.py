"""Ambisonic sound in MP4 and QuickTime files: the boxes that say which way each channel points.

``SA3D`` (Google's Spatial Audio RFC) stands in a sound track's sample entry, ``SAND`` (head-locked stereo) beside it.
FFmpeg's muxer leaves both out, and four channels become a square of loudspeakers.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

from vitascope.media.metadata.mp4_boxes import Box, parse_boxes, read_moov, rewrite_moov, sample_entry

__all__ = ["read_spatial_sound", "write_spatial_sound"]

_KINDS = (b"SA3D", b"SAND")
# Bytes before the boxes of a sound's sample entry, by its version; QuickTime added fields twice.
_ENTRY_HEADS = {0: 28, 1: 44, 2: 64}


def read_spatial_sound(path: Path) -> list[bytes]:
    """Read the ambisonic boxes of a file.

    Returns:
        For each sound track, in their order, its boxes as they are: empty of ordinary sound. Nothing for other files.

    Raises:
        InputError: The file cannot be read.
    """
    moov = read_moov(path)
    return [_boxes_of(track) for track in _sound_tracks(moov)] if moov is not None else []


def write_spatial_sound(path: Path, boxes: Sequence[bytes]) -> None:
    """Put ambisonic boxes into a finished file.

    Args:
        path: The file; changed in place.
        boxes: For each sound track, in their order, its boxes; those of more tracks than it has are left out.

    Raises:
        OutputError: The file cannot be written.
    """

    def edit(moov: Box) -> None:
        for track, added in zip(_sound_tracks(moov), boxes, strict=False):
            entry = sample_entry(track)
            if entry is not None:
                entry.tail += added

    if any(boxes):
        rewrite_moov(path, edit)


def _sound_tracks(moov: Box) -> list[Box]:
    tracks = []
    for track in moov.children:
        handler = track.child(b"mdia", b"hdlr") if track.kind == b"trak" else None
        if handler is not None and handler.head[8:12] == b"soun":
            tracks.append(track)
    return tracks


def _boxes_of(track: Box) -> bytes:
    entry = sample_entry(track)
    payload = entry.to_bytes()[16 if entry.wide else 8 :] if entry is not None else b""
    if len(payload) < _ENTRY_HEADS[0]:
        return b""
    (version,) = struct.unpack_from(">H", payload, 8)
    boxes, _ = parse_boxes(payload[_ENTRY_HEADS.get(version, _ENTRY_HEADS[0]) :])
    return b"".join(box.to_bytes() for box in boxes if box.kind in _KINDS)
