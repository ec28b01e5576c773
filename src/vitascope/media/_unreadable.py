"""What is wrong with a file, from its first bytes and its boxes; FFmpeg only says "invalid data", or nothing."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

__all__ = ["count_missing_bytes", "explain_unreadable"]

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


def count_missing_bytes(path: Path) -> int:
    """Bytes by which the last top-level box of an MP4 or MOV reaches beyond the end of the file; 0 when whole."""
    size = path.stat().st_size
    return max((offset + length - size for _, offset, length in _top_level_boxes(path, size)), default=0)


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
