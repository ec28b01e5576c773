"""Finds where a file's structure breaks: demuxers resume silently after a break, and lose what they skip.

Only headers are read, piece by piece; an hour of video takes a second or two. An intact file may still contain
damaged pictures, which decoders notice.
"""

from __future__ import annotations

import mmap
import re
import struct
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from vitascope.media.metadata.matroska_video import SEGMENT, read_element_header
from vitascope.media.metadata.mp4_boxes import declared_boxes
from vitascope.media.remote import RemotePath

_SMALLEST_FILE_BYTES = 64


def broken_at(path: Path, container: str, *, stream_id: int = -1, came: int | None = None) -> int | None:
    """The byte at which a file's structure breaks; None if it is intact, or if the format is not supported.

    Supports Matroska, WebM, AVI, FLV, GIF, MP4's outermost boxes, and MPEG-TS.

    Args:
        path: The file.
        container: FFmpeg's name of the format.
        stream_id: The video's stream number in AVI, or PID in MPEG-TS.
        came: Number of the video's packets that were read (AVI), or of its successive different times (MPEG-TS, where
            two fields may share one); fewer than the file holds is a break at the end. None does not compare.
    """
    size = path.stat().st_size
    if size < _SMALLEST_FILE_BYTES:
        return None
    with path.open("rb") as file:
        if "mp4" in container:
            return next((box.offset for box in declared_boxes(file) if box.end > size), None)
        if isinstance(path, RemotePath):  # would be downloaded completely
            return None
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            if container in _COUNTING_WALKS:
                return _COUNTING_WALKS[container](data, stream_id, came)
            walk = next((walk for name, walk in _WALKS.items() if name in container), None)
            return None if walk is None else walk(data)


def is_joined(path: Path, container: str, *, stream_id: int) -> bool:
    """True for MPEG-TS whose clock is reset somewhere in the file; cached until the file changes.

    Files up to 128 MB are read completely, up to a break in their structure. In longer files, 128 places of a
    megabyte each are read. A recording is missed if it is shorter than the distance between two places, and the last
    time seen before is earlier than the next one seen. Two recordings are always told apart if the first is at least
    twice as long as that distance.

    Args:
        path: The file.
        container: FFmpeg's name of the format.
        stream_id: The video's PID.
    """
    if container != "mpegts" or isinstance(path, RemotePath):
        return False
    status = path.stat()
    if status.st_size < _SMALLEST_FILE_BYTES:
        return False
    return _clock_goes_back(path, status.st_size, status.st_mtime_ns, stream_id)


@lru_cache(maxsize=256)
def _clock_goes_back(path: Path, size: int, _changed_ns: int, pid: int) -> bool:
    if size <= _PLACE_COUNT * _PLACE_BYTES:
        with path.open("rb") as whole, mmap.mmap(whole.fileno(), 0, access=mmap.ACCESS_READ) as data:
            content = np.frombuffer(data, np.uint8)
            try:
                decoded_at = _walked_packets(content, pid)[1][:, 1]
            finally:
                del content  # the map cannot be closed while the array uses it
        return bool(_goes_back(decoded_at[:-1], decoded_at[1:]).any())
    decoded_at = np.empty(0, np.int64)
    with path.open("rb", buffering=0) as file:
        length = _packet_grid(np.frombuffer(file.read(_PLACE_BYTES), np.uint8))[0]
        for place in range(_PLACE_COUNT):
            file.seek((size - _PLACE_BYTES) * place // (_PLACE_COUNT - 1) // length * length)
            here = _walked_packets(np.frombuffer(file.read(_PLACE_BYTES), np.uint8), pid)[1][:, 1]
            decoded_at = np.concatenate([decoded_at[-1:], here])
            if _goes_back(decoded_at[:-1], decoded_at[1:]).any():
                return True
    return False


def walks(container: str) -> bool:
    """True for a format whose structure this module can walk."""
    return any(name in container for name in (*_WALKS, *_COUNTING_WALKS))


# Matroska (RFC 9559): children of a segment, of a cluster, of a block group.
_EBML = 0x1A45DFA3
_TRACKS, _TRACK_ENTRY, _TRACK_NUMBER, _TRACK_TYPE = 0x1654AE6B, 0xAE, 0xD7, 0x83
_VIDEO_TYPE = b"\1"
_CLUSTER, _BLOCK_GROUP, _BLOCK, _SIMPLE_BLOCK = 0x1F43B675, 0xA0, 0xA1, 0xA3
_VOID, _CRC = 0xEC, 0xBF
_OF_SEGMENT = frozenset(
    {
        0x114D9B74,
        0x1549A966,
        _CLUSTER,
        _TRACKS,
        0x1C53BB6B,
        0x1941A469,
        0x1043A770,
        0x1254C367,
        _VOID,
        _CRC,
    }
)
_NUMBERS = frozenset({0xE7, 0xA7, 0xAB})
"""A cluster's time, position, and size of the previous one: each differs from a block's ID by one bit."""
_LONGEST_NUMBER_BYTES = 8
_OF_CLUSTER = frozenset({0xE7, 0x5854, 0xA7, 0xAB, _SIMPLE_BLOCK, _BLOCK_GROUP, 0xAF, _VOID, _CRC})
_OF_BLOCK_GROUP = frozenset(
    {_BLOCK, 0x75A1, 0x9B, 0xFA, 0xFB, 0xA4, 0x75A2, 0x8E, 0xA2, 0xC8, 0xFD, 0xAF, _VOID, _CRC}
)
_CHILDREN = {_CLUSTER: _OF_CLUSTER, _BLOCK_GROUP: _OF_BLOCK_GROUP}


def _matroska_break(data: mmap.mmap) -> int | None:
    at, size, has_segment = 0, len(data), False
    while at < size:
        header = read_element_header(data[at : at + 12])
        if header is None or header[0] not in (_EBML, SEGMENT, _VOID, _CRC):
            return at
        identifier, length, head = header
        if length is None and identifier != SEGMENT:  # only a segment may have an unknown size
            return at
        end = size if length is None else at + head + length
        if identifier == SEGMENT:
            has_segment = True
            broken = _children_break(data, at + head, min(end, size), _OF_SEGMENT, tracks={})
            if broken is not None:
                return broken
        at = end
    return None if has_segment else size


def _children_break(
    data: mmap.mmap, at: int, end: int, known: frozenset[int], *, tracks: dict[int, bytes]
) -> int | None:
    """The position of the first child that is invalid; ``tracks`` collects number and type of declared tracks."""
    while at < end:
        header = read_element_header(data[at : at + 12])
        if header is None or header[0] not in known:
            return at
        identifier, length, head = header
        begin = at + head
        if length is None:
            # A live recording's cluster has no size; it ends at the next element on its own level.
            if identifier != _CLUSTER:
                return at
            at = _end_of_open_cluster(data, begin, end, tracks)
            continue
        if begin + length > end or (identifier in _NUMBERS and length > _LONGEST_NUMBER_BYTES):
            return at
        if identifier == _TRACKS:
            tracks |= _declared_tracks(data, begin, begin + length)
        elif identifier in (_BLOCK, _SIMPLE_BLOCK) and _is_no_block(data, begin, tracks):
            return at
        elif identifier in _CHILDREN:
            broken = _children_break(data, begin, begin + length, _CHILDREN[identifier], tracks=tracks)
            if broken is not None:
                return broken
        at = begin + length
    return None


def _declared_tracks(data: mmap.mmap, at: int, end: int) -> dict[int, bytes]:
    """Number and type of each track."""
    entries = (value for kind, value in _elements(data[at:end]) if kind == _TRACK_ENTRY)
    fields = [dict(_elements(entry)) for entry in entries]
    return {
        int.from_bytes(one[_TRACK_NUMBER], "big"): one.get(_TRACK_TYPE, b"")
        for one in fields
        if _TRACK_NUMBER in one
    }


def _elements(data: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while (header := read_element_header(data[at : at + 12])) and header[1] is not None:
        begin, at = at + header[2], at + header[2] + header[1]
        yield header[0], data[begin:at]


def _is_no_block(data: mmap.mmap, begin: int, tracks: dict[int, bytes]) -> bool:
    """True if a block's track was never declared, or its flags, after two bytes of time, are such as no writer sets.

    Several frames per block (lacing) are only used for audio.
    """
    number_bytes = 9 - data[begin].bit_length()
    head = data[begin : begin + number_bytes + 3]
    track = int.from_bytes(head[:number_bytes], "big") & ((1 << 7 * number_bytes) - 1)
    never_set = 0x76 if tracks.get(track) == _VIDEO_TYPE else 0x70
    return any(flags & never_set for flags in head[number_bytes + 2 :]) or bool(
        tracks and track not in tracks
    )


def _end_of_open_cluster(data: mmap.mmap, at: int, end: int, tracks: dict[int, bytes]) -> int:
    while at < end:
        header = read_element_header(data[at : at + 12])
        if header is None or header[0] not in _OF_CLUSTER or header[1] is None:
            return at
        if header[0] == _SIMPLE_BLOCK and _is_no_block(data, at + header[2], tracks):
            return at
        at += header[2] + header[1]
    return at


_FOUR_CHARACTERS = re.compile(rb"[ -~]{4}")
_UNKNOWN_BYTES = 1 << 31
"""A list this long, or longer, has the placeholder size of a writer that could not seek back."""


def _avi_break(data: mmap.mmap, number: int, came: int | None) -> int | None:
    """Walk an AVI: Microsoft's AVI RIFF reference, and OpenDML's further ``RIFF`` pieces."""
    at, size, stream_count, written = 0, len(data), -1, 0
    own = (b"%02ddc" % number, b"%02ddb" % number)
    while at + 8 <= size:
        kind, length = data[at : at + 4], int.from_bytes(data[at + 4 : at + 8], "little")
        if not _FOUR_CHARACTERS.fullmatch(kind):
            return at
        is_movi = kind == b"LIST" and data[at + 8 : at + 12] == b"movi"
        if is_movi and length < _UNKNOWN_BYTES and at + 8 + length > size:
            return size
        if is_movi and stream_count < 0:
            stream_count = data[:at].count(b"strh")
        if stream_count >= 0 and kind[:2].isdigit() and int(kind[:2]) >= stream_count:  # no such stream
            return at
        if is_movi or kind == b"RIFF" or (kind == b"LIST" and data[at + 8 : at + 12] == b"rec "):
            at += 12  # go into the list
            continue
        written += kind in own and length > 0 and stream_count >= 0
        at += 8 + length + length % 2
        if at > size + 1:
            return size
    return size if stream_count < 0 or (came is not None and written > came) else None


_AVC_HEADS = (b"\x17\0", b"\x27\0")
"""First bytes of a tag with H.264's decoder configuration, marked as a keyframe or not."""
_FLV_VIDEO, _ENHANCED = 9, 0x80
_NUMBER_OF = {b"avc1": b"\7", b"hvc1": b"\x0c"}
"""FourCCs of enhanced tags, and the equivalent codec numbers of classic tags."""
_SEVERAL_TRACKS, _MORE_OF_A_HEAD = 6, 7
"""Packet types of enhanced tags that name the codec later, or several codecs."""
_FLV_FILE_SIZE = re.compile(rb"\0\x08filesize\0(.{8})", re.DOTALL)
"""A number in the metadata: name, type, double."""
_FLV_METADATA_BYTES = 1 << 16


def _flv_break(data: mmap.mmap) -> int | None:
    """Walk an FLV (Adobe, "Video File Format Specification" 10.1, annex E): each tag is followed by its length."""
    at, size, codec = int.from_bytes(data[5:9], "big") + 4, len(data), b""
    while at + 11 <= size:
        length = 11 + int.from_bytes(data[at + 1 : at + 4], "big")
        if data[at] & 0x1F not in (8, 9, 18) or data[at + 8 : at + 11] != b"\0\0\0" or at + length > size:
            return at
        is_head = data[at] & 0x1F == 9 and data[at + 11 : at + 13] in _AVC_HEADS
        if is_head and data[at + 16 : at + 17] != b"\1":  # the configuration record has version 1
            return at
        if data[at] & 0x1F == _FLV_VIDEO and length > 11:
            own = _flv_codec(data[at + 11 : at + min(length, 17)], before=codec)
            codec = codec or own
            if _NUMBER_OF.get(own, own) != _NUMBER_OF.get(codec, codec):  # FFmpeg makes it a separate stream
                return at
        behind = data[at + length : at + length + 4]
        if len(behind) == 4 and int.from_bytes(behind, "big") not in (length, 0):
            return at
        at += length + 4
    written = _FLV_FILE_SIZE.search(data, 0, _FLV_METADATA_BYTES)
    return size if written and struct.unpack(">d", written[1])[0] > size else None


def _flv_codec(head: bytes, *, before: bytes) -> bytes:
    """The codec of a video tag, possibly with an "Enhanced RTMP" (v2) header; the previous one if it is named later."""
    kind, four = head[0] & 0xF, head[1:5]
    if not head[0] & _ENHANCED:
        return bytes([kind])
    # A number is only followed by other numbers, except in headers of further tracks.
    is_other = kind == _SEVERAL_TRACKS and head[2:6].isalnum()
    return before if is_other or (kind == _MORE_OF_A_HEAD and len(before) != 1) else four


_GIF_EXTENSION, _GIF_IMAGE, _GIF_TRAILER = 0x21, 0x2C, 0x3B
_GIF_CONTROL = 0xF9
_GIF_SUB_BLOCKS = {_GIF_CONTROL: 4, 0x01: 12, 0xFF: 11}
"""Length of an extension's first sub-block: graphic control (which has no other), plain text, application."""
_GIF_PICTURE = re.compile(rb"\x21\xf9\x04.{4}\0\x2c", re.DOTALL)
"""A graphic control followed by an image: if it lies inside a block, that block has swallowed both."""


def _gif_break(data: mmap.mmap) -> int | None:
    """Walk a GIF89a: blocks of sub-blocks, then the trailer."""
    at, size = 13 + _palette_bytes(data[10]), len(data)
    while at < size:
        kind = data[at]
        if kind == _GIF_TRAILER:
            return at + 1 if data[at + 1 :].strip(b"\0") else None
        if kind == _GIF_EXTENSION:
            inside = at + 2
            _, label, length, *_, end = data[at : at + 8].ljust(8, b"\0")
            if length != _GIF_SUB_BLOCKS.get(label, length) or (label == _GIF_CONTROL and end):
                return inside
        elif kind == _GIF_IMAGE and at + 10 < size:
            inside = at + 11 + _palette_bytes(data[at + 9])
        else:
            return at
        full = data[inside] if inside < size else 0
        while inside < size and (length := data[inside]):
            inside += 1 + length
            # Writers fill each sub-block of an image but the last: a short one inside shows that another image ended
            # there.
            if kind == _GIF_IMAGE and length < full and inside < size and data[inside]:
                return inside
        if inside >= size or _GIF_PICTURE.search(data, at + 2, inside):
            return at
        at = inside + 1
    return size


def _palette_bytes(packed: int) -> int:
    return 3 << (packed & 7) + 1 if packed & 0x80 else 0


_TS_PACKET_BYTES = (188, 192, 204)
_SYNC = 0x47
_PACKETS_AT_A_TIME = 1 << 18
_PLACE_COUNT, _PLACE_BYTES = 128, 1 << 20
"""Number and size of the places where a long file is checked for joined recordings; a megabyte usually contains the
start of a picture."""
_PACKETS_TO_TELL = 1 << 12
_START_CODE = np.array([0, 0, 1], np.uint8)
_SHOWN_AT, _DECODED_AT, _TIME_BYTES = 9, 14, 5
"""Offsets of presentation and decoding time in a packet of a stream; most packets have the first."""
_TIMES = 1 << 33


def _transport_break(data: mmap.mmap, pid: int, came: int | None) -> int | None:
    """Walk an MPEG-TS (ISO/IEC 13818-1): packets of one length; the video's are numbered 0 to 15 in a loop."""
    content = np.frombuffer(data, np.uint8)
    try:
        return _packets_break(content, pid, came)
    finally:
        del content  # the map cannot be closed while the array uses it


def _packets_break(content: npt.NDArray[np.uint8], pid: int, came: int | None) -> int | None:
    broken, times = _walked_packets(content, pid)
    if (
        broken is None
        and came is not None
        and np.count_nonzero(np.diff(times[:, 0])) + min(len(times), 1) > came
    ):
        return len(content)
    return broken


def _walked_packets(content: npt.NDArray[np.uint8], pid: int) -> tuple[int | None, npt.NDArray[np.int64]]:
    """Find where the video's packets break, and their times up to there; see ``_video_break``."""
    length, begin = _packet_grid(content)
    count = (len(content) - begin) // length
    packets = content[begin : begin + count * length].reshape(count, length)
    last_counter: int | None = None
    times = np.empty((0, 2), np.int64)
    for first in range(0, len(packets), _PACKETS_AT_A_TIME):
        part = packets[first : first + _PACKETS_AT_A_TIME]
        out_of_step = np.flatnonzero(part[:, 0] != _SYNC)
        if out_of_step.size:
            part = part[: out_of_step[0]]
        at, last_counter, times = _video_break(part, pid, last_counter, times)
        if at is not None or out_of_step.size:
            return begin + (first + (len(part) if at is None else at)) * length, times
    return None, times


def _packet_grid(content: npt.NDArray[np.uint8]) -> tuple[int, int]:
    """Packet length, and position of the first packet: sync bytes repeat at that distance."""
    syncs = np.flatnonzero(content[: _PACKETS_TO_TELL * _TS_PACKET_BYTES[0]] == _SYNC)
    places = {length: np.bincount(syncs % length, minlength=length) for length in _TS_PACKET_BYTES}
    length = max(places, key=lambda length: length * int(places[length].max()))
    begin = length - 188 if length == 192 else 0  # M2TS: four bytes of timestamp come first
    # A recording may begin inside a packet. If the first byte is a sync byte but later packets are elsewhere, bytes
    # are missing.
    return length, begin if content[begin] == _SYNC else int(places[length].argmax())


def _video_break(
    packets: npt.NDArray[np.uint8], pid: int, last_counter: int | None, times: npt.NDArray[np.int64]
) -> tuple[int | None, int | None, npt.NDArray[np.int64]]:
    """The first packet of the video that is out of order or starts nothing valid; the last counter; all times so far.

    Times are int64 [n, 2]: presentation and decoding time.
    """
    heads = packets[:, 1:4].astype(np.int32)
    own = np.flatnonzero((((heads[:, 0] & 0x1F) << 8) | heads[:, 1]) == pid)
    own = own[(heads[own, 2] & 0x10) > 0]  # only packets with a payload are numbered
    if not own.size:
        return None, last_counter, times
    heads = heads[own]
    counters = heads[:, 2] & 0xF
    steps = np.diff(counters, prepend=counters[:1] if last_counter is None else last_counter) & 0xF
    has_field = (heads[:, 2] & 0x20) > 0
    is_meant = has_field & (packets[own, 4] > 0) & ((packets[own, 5] & 0x80) > 0)
    # The start of a picture has a start code after the adaptation field. Scrambled packets cannot be read anyway.
    begins = np.flatnonzero(((heads[:, 0] & 0x40) > 0) & ((heads[:, 2] & 0xC0) == 0))
    payload = np.where(has_field[begins], packets[own[begins], 4].astype(np.int32) + 5, 4)
    places = payload[:, None] + np.arange(_DECODED_AT + _TIME_BYTES)
    begun = packets[own[begins, None], np.minimum(places, 187)]
    has_time = (places[:, _DECODED_AT - 1] < 188) & ((begun[:, 7] & 0x80) > 0)
    has_both = has_time & (places[:, -1] < 188) & ((begun[:, 7] & 0x40) > 0)
    shown = _time_of(begun[:, _SHOWN_AT:_DECODED_AT])
    new = np.stack([shown, np.where(has_both, _time_of(begun[:, _DECODED_AT:]), shown)], axis=1)[has_time]
    before = np.concatenate([times[-1:] if len(times) else new[:1], new])[:-1]
    # Decoding times increase; if one does not, another recording begins there.
    is_meant[begins[has_time]] |= _goes_back(before[:, 1], new[:, 1])
    is_broken = (steps > 1) & ~is_meant  # a packet may be repeated
    is_broken[begins] |= (begun[:, :3] != _START_CODE).any(axis=1)
    broken = np.flatnonzero(is_broken)
    return (int(own[broken[0]]) if broken.size else None), int(counters[-1]), np.concatenate([times, new])


def _goes_back(before: npt.NDArray[np.int64], after: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """True where time goes back, on a clock that wraps around."""
    back = (before - after) % _TIMES
    return (back > 0) & (back < _TIMES // 2)


def _time_of(coded: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
    """Decode a 33-bit time from five bytes with marker bits in between."""
    high, upper, middle, lower, low = coded.astype(np.int64).T
    times: npt.NDArray[np.int64] = (
        (high >> 1 & 7) << 30 | upper << 22 | middle >> 1 << 15 | lower << 7 | low >> 1
    )
    return times


_WALKS: dict[str, Callable[[mmap.mmap], int | None]] = {
    "matroska": _matroska_break,
    "flv": _flv_break,
    "gif": _gif_break,
}
_COUNTING_WALKS: dict[str, Callable[[mmap.mmap, int, int | None], int | None]] = {
    "avi": _avi_break,
    "mpegts": _transport_break,
}
"""Walkers that look at one stream, and compare the number of packets read."""
