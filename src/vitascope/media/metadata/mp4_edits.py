"""The edit list of an MP4 track: which part of its samples is shown (ISO/IEC 14496-12, 8.6.6)."""

from __future__ import annotations

import struct
from itertools import accumulate, chain, islice, repeat
from operator import add

from vitascope.media.metadata.mp4_boxes import Box, parse_boxes

__all__ = ["shown_share"]

_SAMPLES_LOOKED_AT = 32
"""More than the leading pictures of any keyframe."""


def shown_share(moov: Box, track_id: int) -> float | None:
    """The share of a track's time that its edit list shows, from 0 to 1; 0 where several edits show parts of it.

    Without an edit list all of it is shown, and with one of length 0 too: fragments follow.

    Args:
        moov: The movie box.
        track_id: The track's number.

    Returns:
        None where the track or its header is missing or damaged.
    """
    track = next((one for one in moov.children if one.kind == b"trak" and _id_of(one) == track_id), None)
    movie_header, media_header = moov.child(b"mvhd"), track.child(b"mdia", b"mdhd") if track else None
    if track is None or movie_header is None or media_header is None:
        return None
    try:
        movie_scale, _ = _time_scale_and_duration(movie_header)
        media_scale, media_ticks = _time_scale_and_duration(media_header)
        edits = [(ticks, begin) for ticks, begin in _edits(track) if begin >= 0 and ticks]
        first = _first_shown(track)
    except struct.error:
        return None
    if not edits:
        return 1.0
    if not movie_scale or not media_ticks:
        return None
    if len(edits) > 1:
        return 0.0
    ((ticks, begin),) = edits
    end = begin + ticks * media_scale / movie_scale
    return max(min(end, first + media_ticks) - max(begin, first), 0) / media_ticks


def _id_of(track: Box) -> int:
    header = track.child(b"tkhd")
    place = 20 if header is not None and header.head[:1] == b"\1" else 12
    return -1 if header is None else int.from_bytes(header.head[place : place + 4], "big")


def _time_scale_and_duration(header: Box) -> tuple[int, int]:
    """Read ``mvhd`` or ``mdhd``: version, flags, two times, time scale, duration; times of 32 bits or of 64."""
    form, place = (">IQ", 20) if header.head[:1] == b"\1" else (">II", 12)
    scale, duration = struct.unpack_from(form, header.head, place)
    return scale, duration


def _edits(track: Box) -> list[tuple[int, int]]:
    """Length in ticks of the movie and beginning in ticks of the track, -1 for a pause, of each."""
    edits = track.child(b"edts")
    table = (
        next((box.head for box in parse_boxes(edits.head)[0] if box.kind == b"elst"), b"") if edits else b""
    )
    if not table:
        return []
    entry = struct.Struct(">QqI" if table[:1] == b"\1" else ">IiI")
    (count,) = struct.unpack_from(">I", table, 4)
    rows = (entry.unpack_from(table, 8 + n * entry.size) for n in range(count))
    return [(ticks, begin) for ticks, begin, _ in rows]


def _first_shown(track: Box) -> int:
    """When the first picture is shown, in ticks: one of the first samples, of which leading ones come early."""
    times = track.child(b"mdia", b"minf", b"stbl", b"stts")
    offsets = track.child(b"mdia", b"minf", b"stbl", b"ctts")
    decoding = accumulate(_values(times, ">I"), initial=0)
    return min(map(add, decoding, _values(offsets, ">i") if offsets is not None else [0]), default=0)


def _values(table: Box | None, form: str) -> list[int]:
    """What a table of counts and values says of the first samples."""
    rows = struct.iter_unpack(">I" + form[1:], table.head[8 : 8 + 8 * _SAMPLES_LOOKED_AT]) if table else ()
    values = chain.from_iterable(repeat(value, min(count, _SAMPLES_LOOKED_AT)) for count, value in rows)
    return list(islice(values, _SAMPLES_LOOKED_AT))
