"""Reads and patches the box structure of MP4 and QuickTime files (ISO/IEC 14496-12).

The binding that drives FFmpeg's muxer cannot attach stereo, spherical, rotation or HDR boxes, so they are added after
muxing. Two parts:

- `Box`, `parse_boxes`: a tree of the ``moov`` box. Sizes in the file are never trusted: what cannot be parsed is kept
as opaque bytes, so that ``b"".join(box.to_bytes() ...)`` returns exactly what was read.
- `read_moov`, `rewrite_moov`: find that box in a file, and write a changed one back, with corrected chunk offsets if
the sample data moved.
"""

from __future__ import annotations

import os
import shutil
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import accumulate, chain, islice, repeat
from operator import add
from pathlib import Path
from typing import BinaryIO

import numpy as np

from vitascope.errors import CorruptInputError, OutputError
from vitascope.media.libav import wrap_input_error, wrap_output_error

_PLAIN_PARENTS = frozenset(
    {b"moov", b"trak", b"mdia", b"minf", b"stbl", b"sv3d", b"proj", b"vexu", b"eyes", b"pack"}
)
"""Boxes whose payload consists only of boxes."""
_SAMPLE_DESCRIPTION_HEAD = 8
"""Bytes before the entries of ``stsd``: version, flags, entry count."""
_VISUAL_ENTRY_HEAD = 78
"""Bytes before the boxes of a visual sample entry (clause 12.1.3)."""
_MAX_DEPTH = 16
_MAX_FILE_BOXES = 1_000_000
"""More top-level boxes than 100 hours of one-second fragments have; limits the scan of a hostile file."""
_MAX_MOOV_BYTES = 1 << 30
_UINT32_MAX = 0xFFFFFFFF


@dataclass(slots=True)
class Box:
    """One box, mutable; sizes are computed when it is written."""

    kind: bytes
    """Four-character code."""
    head: bytes = b""
    """Payload before the first child; the whole payload of a box without children."""
    children: list[Box] = field(default_factory=list)
    tail: bytes = b""
    """Payload after the last child that is not a box (QuickTime's zero terminator, or damage)."""
    wide: bool = False
    """True if the file used a 64-bit size although 32 bits would do."""

    def to_bytes(self) -> bytes:
        """The box with its header."""
        payload = b"".join((self.head, *(child.to_bytes() for child in self.children), self.tail))
        size = 8 + len(payload)
        if self.wide or size > _UINT32_MAX:
            return struct.pack(">I4sQ", 1, self.kind, size + 8) + payload
        return struct.pack(">I4s", size, self.kind) + payload

    def child(self, *path: bytes) -> Box | None:
        """The first box below this one along ``path``, or None."""
        box: Box | None = self
        for kind in path:
            if box is None:
                return None
            box = next((child for child in box.children if child.kind == kind), None)
        return box

    def walk(self) -> Iterator[Box]:
        """This box and all below it, parents first."""
        yield self
        for child in self.children:
            yield from child.walk()

    def without(self, *kinds: bytes) -> list[Box]:
        """The children except those of some kinds."""
        return [child for child in self.children if child.kind not in kinds]


@dataclass(frozen=True, slots=True)
class FileBox:
    """Position of a top-level box in its file."""

    kind: bytes
    offset: int
    size: int
    """Bytes including the header."""

    @property
    def end(self) -> int:
        """Position after the box."""
        return self.offset + self.size


def full_box(kind: bytes, payload: bytes, *, version: int = 0) -> Box:
    """A box that begins with a version and 24 flag bits, all 0."""
    return Box(kind, struct.pack(">I", version << 24) + payload)


def parse_boxes(
    data: bytes, *, depth: int = 0, in_sample_description: bool = False
) -> tuple[list[Box], bytes]:
    """Read consecutive boxes.

    Args:
        data: Bytes that should be boxes.
        depth: Number of levels above; below sixteen, boxes are no longer parsed.
        in_sample_description: True for the entries of ``stsd``; visual ones begin with fixed fields.

    Returns:
        The boxes, and the bytes from the first invalid box on (empty if all are valid).
    """
    boxes: list[Box] = []
    position = 0
    while len(data) - position >= 8:
        size, kind = struct.unpack_from(">I4s", data, position)
        header = 8
        if size == 1 and len(data) - position >= 16:
            (size,) = struct.unpack_from(">Q", data, position + 8)
            header = 16
        if size < header or size > len(data) - position:
            break
        payload = data[position + header : position + size]
        boxes.append(_open_box(kind, payload, header == 16, depth, in_sample_description))
        position += size
    return boxes, data[position:]


def _open_box(kind: bytes, payload: bytes, wide: bool, depth: int, in_sample_description: bool) -> Box:
    head: int | None = None
    if depth < _MAX_DEPTH:
        if in_sample_description:
            # Audio entries are shorter, with other fields there; what follows them does not parse as relevant boxes,
            # and is written back unchanged.
            head = _VISUAL_ENTRY_HEAD
        elif kind == b"stsd":
            head = _SAMPLE_DESCRIPTION_HEAD
        elif kind in _PLAIN_PARENTS:
            head = 0
    if head is None or len(payload) < head:
        return Box(kind, payload, wide=wide)
    children, tail = parse_boxes(payload[head:], depth=depth + 1, in_sample_description=kind == b"stsd")
    return Box(kind, payload[:head], children, tail, wide)


def scan_file(file: BinaryIO) -> list[FileBox]:
    """List the top-level boxes of an open file, up to the first that is truncated or has an impossible size."""
    boxes = declared_boxes(file)
    if boxes and boxes[-1].end > file.seek(0, os.SEEK_END):
        boxes.pop()
    return boxes


def declared_boxes(file: BinaryIO) -> list[FileBox]:
    """As ``scan_file``, but the last box may extend beyond the end of the file."""
    end = file.seek(0, os.SEEK_END)
    boxes: list[FileBox] = []
    offset = 0
    while end - offset >= 8 and len(boxes) < _MAX_FILE_BOXES:
        file.seek(offset)
        header = file.read(16)
        size, kind = struct.unpack_from(">I4s", header)
        smallest = 8
        if size == 1 and len(header) == 16:
            (size,) = struct.unpack_from(">Q", header, 8)
            smallest = 16
        elif size == 0:
            size = end - offset
        if size < smallest:
            break
        boxes.append(FileBox(kind, offset, size))
        offset += size
    return boxes


def read_moov(path: Path) -> Box | None:
    """Read the movie box of an MP4 or QuickTime file.

    Returns:
        The tree; None if the file has no such box (another format, or truncated).

    Raises:
        InputError: The file cannot be read.
    """
    with wrap_input_error(path, "read its boxes"), path.open("rb") as file:
        found = next((box for box in scan_file(file) if box.kind == b"moov"), None)
        return None if found is None else _load_moov(file, found, path)


def video_track(moov: Box) -> Box | None:
    """The first ``trak`` whose handler is ``vide``."""
    return next(iter(tracks_of(moov, b"vide")), None)


def tracks_of(moov: Box, *handlers: bytes) -> list[Box]:
    """Each ``trak`` with one of these handlers (clause 8.4.3)."""
    found = []
    for track in moov.children:
        handler = track.child(b"mdia", b"hdlr") if track.kind == b"trak" else None
        if handler is not None and handler.head[8:12] in handlers:
            found.append(track)
    return found


def described_track(path: Path, moov: Box) -> tuple[Box, Box]:
    """The first video track, and its visual sample entry.

    Raises:
        CorruptInputError: The file has no such track.
    """
    track = video_track(moov)
    entry = sample_entry(track) if track is not None else None
    if track is None or entry is None:
        raise CorruptInputError(f"{path}: no video track to describe")
    return track, entry


def show_no_subtitles(path: Path) -> None:
    """Disable all subtitle tracks of a finished file, so that players show none by default (8.3.2).

    Args:
        path: The file; changed in place.

    Raises:
        CorruptInputError: The file has no movie box.
        OutputError: The file cannot be written.
    """

    def edit(moov: Box) -> None:
        for track in tracks_of(moov, b"sbtl", b"subt", b"text"):
            header = track.child(b"tkhd")
            if header is not None:
                flags = int.from_bytes(header.head[:4]) & ~1
                header.head = flags.to_bytes(4) + header.head[4:]

    rewrite_moov(path, edit)


def sample_entry(track: Box) -> Box | None:
    """The first entry of a track's ``stsd``."""
    description = track.child(b"mdia", b"minf", b"stbl", b"stsd")
    return description.children[0] if description is not None and description.children else None


def rewrite_moov(path: Path, edit: Callable[[Box], None]) -> None:
    """Change the movie box of a file, wherever it is.

    A ``moov`` after the sample data is replaced in place. One before it uses a following ``free`` box if that is
    large enough; otherwise the sample data moves and all chunk offsets are corrected (``stco`` becomes ``co64`` if 32
    bits are too few).

    Args:
        path: An MP4 or QuickTime file.
        edit: Called with the tree, to change it in place.

    Raises:
        CorruptInputError: The file has no movie box.
        OutputError: The file cannot be written, or is fragmented or encrypted so that its data must not move.
    """
    with wrap_output_error(path, "patch its boxes"), path.open("r+b") as file:
        layout = scan_file(file)
        place = next((box for box in layout if box.kind == b"moov"), None)
        if place is None:
            raise CorruptInputError(f"{path}: no movie box; it is not a complete MP4 or QuickTime file")
        moov = _load_moov(file, place, path)
        edit(moov)
        following = [box for box in layout if box.offset >= place.end]
        if not any(box.kind in (b"mdat", b"moof") for box in following):
            _replace_tail(file, place, moov.to_bytes())
            return
        if _fits_in_place(file, place, moov.to_bytes(), following[0]):
            return
        if any(box.kind == b"moof" for box in following) or any(box.kind == b"saio" for box in moov.walk()):
            raise OutputError(
                f"{path}: cannot patch its boxes: this is not possible in a fragmented or encrypted MP4"
            )
        _move_data(path, file, place, moov)


def _load_moov(file: BinaryIO, place: FileBox, path: Path) -> Box:
    if place.size > _MAX_MOOV_BYTES:
        raise CorruptInputError(f"{path}: its movie box claims {place.size} bytes, more than any video needs")
    file.seek(place.offset)
    boxes, _ = parse_boxes(_with_explicit_size(file.read(place.size)))
    return boxes[0]


def _with_explicit_size(data: bytes) -> bytes:
    """Replace size 0 ("to the end of the file") by the actual size."""
    return struct.pack(">I", len(data)) + data[4:] if data[:4] == b"\0\0\0\0" else data


def _replace_tail(file: BinaryIO, place: FileBox, moov: bytes) -> None:
    file.seek(place.end)
    rest = file.read()  # after all sample data: at most a few small boxes
    file.seek(place.offset)
    file.write(moov + rest)
    file.truncate()


def _fits_in_place(file: BinaryIO, place: FileBox, moov: bytes, next_box: FileBox) -> bool:
    """Write the box in place if it fits there, possibly using a following ``free`` box."""
    room = place.size + (next_box.size if next_box.kind in (b"free", b"skip") else 0)
    spare = room - len(moov)
    if spare < 0 or 0 < spare < 8 or spare > _UINT32_MAX:
        return False
    file.seek(place.offset)
    file.write(moov)
    if spare:
        # Only the header: the content of padding does not matter.
        file.write(struct.pack(">I4s", spare, b"free"))
    return True


def _move_data(path: Path, file: BinaryIO, place: FileBox, moov: Box) -> None:
    tables = [(box, _chunk_offsets(box)) for box in moov.walk() if box.kind in (b"stco", b"co64")]
    while True:
        delta = len(moov.to_bytes()) - place.size
        grown = False
        for box, offsets in tables:
            moved = np.where(offsets >= place.end, offsets.astype(np.int64) + delta, offsets.astype(np.int64))
            if box.kind == b"stco" and moved.size and int(moved.max()) > _UINT32_MAX:
                box.kind, grown = b"co64", True
            width = ">u4" if box.kind == b"stco" else ">u8"
            box.head = box.head[:4] + struct.pack(">I", len(moved)) + moved.astype(width).tobytes()
        if not grown:
            break
    copy = path.with_name(f".{path.name}.boxes")
    try:
        with copy.open("wb") as target:
            file.seek(0)
            _copy_bytes(file, target, place.offset)
            target.write(moov.to_bytes())
            file.seek(place.end)
            shutil.copyfileobj(file, target, 1 << 20)
        shutil.copymode(path, copy)
        copy.replace(path)
    except BaseException:
        copy.unlink(missing_ok=True)
        raise


def _chunk_offsets(box: Box) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    entry = 4 if box.kind == b"stco" else 8
    present = max(len(box.head) - 8, 0) // entry
    (promised,) = struct.unpack_from(">I", box.head, 4) if len(box.head) >= 8 else (0,)
    count = min(present, promised)
    return np.frombuffer(box.head, f">u{entry}", count, 8 if count else 0).astype(np.uint64)


def _copy_bytes(source: BinaryIO, target: BinaryIO, count: int) -> None:
    while count > 0:
        chunk = source.read(min(count, 1 << 20))
        if not chunk:
            return
        target.write(chunk)
        count -= len(chunk)


_SAMPLES_LOOKED_AT = 32
"""More than the number of leading pictures of any keyframe."""


def shown_share(moov: Box, track_id: int) -> float | None:
    """The share of a track's time that its edit list shows, from 0 to 1; 0 if several edits show parts of it.

    ISO/IEC 14496-12, 8.6.6. Without an edit list, or with one of length 0 (fragments follow), all of it is shown.

    Args:
        moov: The movie box.
        track_id: Number of the track.

    Returns:
        The share; None if the track or its header is missing or damaged.
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
    """Read ``mvhd`` or ``mdhd``: version, flags, two times, time scale, duration; with 32-bit or 64-bit times."""
    form, place = (">IQ", 20) if header.head[:1] == b"\1" else (">II", 12)
    scale, duration = struct.unpack_from(form, header.head, place)
    return scale, duration


def _edits(track: Box) -> list[tuple[int, int]]:
    """For each edit, length in ticks of the movie, and start in ticks of the track or -1 for a pause."""
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
    """Presentation time of the first picture, in ticks: the least of the first samples, as leading ones come early."""
    times = track.child(b"mdia", b"minf", b"stbl", b"stts")
    offsets = track.child(b"mdia", b"minf", b"stbl", b"ctts")
    decoding = accumulate(_values(times, ">I"), initial=0)
    return min(map(add, decoding, _values(offsets, ">i") if offsets is not None else [0]), default=0)


def _values(table: Box | None, form: str) -> list[int]:
    """Expand a table of counts and values for the first samples."""
    rows = struct.iter_unpack(">I" + form[1:], table.head[8 : 8 + 8 * _SAMPLES_LOOKED_AT]) if table else ()
    values = chain.from_iterable(repeat(value, min(count, _SAMPLES_LOOKED_AT)) for count, value in rows)
    return list(islice(values, _SAMPLES_LOOKED_AT))
