"""What is wrong with a file, from its first bytes and its boxes; FFmpeg only says "invalid data", or nothing."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import IO

__all__ = ["cut_off", "explain_unreadable"]

_HEAD_BYTES, _TAIL_BYTES = 4096, 64
_MP4_FIRST_BOXES = frozenset({b"ftyp", b"moov", b"mdat", b"free", b"skip", b"wide", b"pnot"})
_SIGNATURES = {
    b"\x1a\x45\xdf\xa3": "Matroska or WebM",
    b"RIFF": "AVI",
    b"\x89PNG": "PNG",
    b"\xff\xd8\xff": "JPEG",
    b"GIF8": "GIF",
}


def explain_unreadable(path: Path) -> str | None:
    """One line on why a file does not open, without its name; None when there is nothing better than FFmpeg's own."""
    if path.is_dir():
        return "it is a folder; name a video, or a folder of images"
    if not path.exists():
        return "no such file or folder"
    try:
        with path.open("rb") as file:
            head = file.read(512)
            size = path.stat().st_size
            if not head:
                return "the file is empty"
            if head[4:8] in _MP4_FIRST_BOXES:
                return (
                    None
                    if _has_whole_moov(path, size)
                    else (
                        "truncated or not finished: the index of the video (its moov box) is missing; "
                        "copy the file again, or let the recorder finish it"
                    )
                )
    except PermissionError:
        return "no permission to read it"
    except OSError:
        return None
    for signature, name in _SIGNATURES.items():
        if head.startswith(signature):
            return f"it begins like {name}, but is damaged"
    if _is_text(head):
        return "it is text, not a video"
    return "not a media file that FFmpeg knows, or damaged from its first bytes on"


def cut_off(path: Path, container: str) -> str | None:
    """What shows that a file ends too early, in words; None where nothing does.

    Args:
        path: The file.
        container: FFmpeg's name of its format.
    """
    size = path.stat().st_size
    if "mp4" in container:
        lacking = max((start + length - size for _, start, length in _top_level_boxes(path, size)), default=0)
        return f"its last fragment lacks {lacking} bytes" if lacking > 0 else None
    with path.open("rb") as file:
        head = file.read(_HEAD_BYTES)
        file.seek(max(size - _TAIL_BYTES, 0))
        tail = file.read()
        if container == "flv":
            return None if _ends_with_tag(file, size, tail) else "its last tag is cut"
    if "matroska" in container:
        lacking = _segment_end(head) - size
        return f"its segment lacks {lacking} bytes" if lacking > 0 else None
    if container == "gif":  # GIF89a, 27: the trailer; some writers pad behind it
        return None if tail.rstrip(b"\0").endswith(b";") else "its trailer is missing"
    if container == "mpegts":
        packet = next((length for length in (188, 192, 204) if _repeats_sync(head, length)), None)
        return "its last packet is cut" if packet and size % packet else None
    return None


def _segment_end(head: bytes) -> int:
    """Where the segment of a Matroska file says that it ends (RFC 8794, 9559); 0 where it does not say."""
    offset = 0
    for _ in range(4):  # the EBML header, perhaps something void, then the segment
        identifier = head[offset : offset + 4]
        if identifier != b"\x18\x53\x80\x67":
            width = 4 if identifier == b"\x1a\x45\xdf\xa3" else 1
            size, length = _variable_size(head, offset + width)
            offset += width + length + (size or 0)
            continue
        size, length = _variable_size(head, offset + 4)
        return 0 if size is None else offset + 4 + length + size
    return 0


def _variable_size(data: bytes, offset: int) -> tuple[int | None, int]:
    """A size of EBML, None where it is unknown, and the bytes it takes."""
    first = data[offset] if offset < len(data) else 0
    length = 9 - first.bit_length()
    if not first or offset + length > len(data):
        return None, 1
    value = int.from_bytes(data[offset : offset + length], "big") & ((1 << 7 * length) - 1)
    return (None if value == (1 << 7 * length) - 1 else value), length


def _repeats_sync(head: bytes, packet: int) -> bool:
    begin = packet - 188 if packet == 192 else 0  # M2TS: four bytes of time stand before
    return len(head) >= 4 * packet and all(head[begin + n * packet] == 0x47 for n in range(4))


def _ends_with_tag(file: IO[bytes], size: int, tail: bytes) -> bool:
    """FLV (Adobe, "Video File Format Specification" 10.1, annex E): each tag is followed by its length."""
    length = int.from_bytes(tail[-4:], "big")
    if not 11 <= length <= size - 4:
        return False
    file.seek(size - 4 - length)
    tag = file.read(11)
    return tag[0] & 31 in (8, 9, 18) and int.from_bytes(tag[1:4], "big") == length - 11


def _has_whole_moov(path: Path, size: int) -> bool:
    return any(
        kind == b"moov" and offset + length <= size for kind, offset, length in _top_level_boxes(path, size)
    )


def _top_level_boxes(path: Path, size: int) -> Iterator[tuple[bytes, int, int]]:
    """Kind, offset and declared length of each box (ISO 14496-12 clause 4.2), up to one that makes no sense."""
    offset = 0
    with path.open("rb") as file:
        while offset + 8 <= size:
            file.seek(offset)
            header = file.read(16)
            length, kind = struct.unpack(">I4s", header[:8])
            if length == 1 and len(header) == 16:
                (length,) = struct.unpack(">Q", header[8:])
            elif length == 0:
                length = size - offset
            if length < 8:
                return
            yield kind, offset, length
            offset += length


def _is_text(head: bytes) -> bool:
    try:
        text = head.decode("utf-8", errors="strict")
    except UnicodeDecodeError as error:
        if error.start < len(head) - 4:  # not merely a character cut at the end
            return False
        text = head[: error.start].decode("utf-8")
    return all(character.isprintable() or character in "\r\n\t\f" for character in text)
