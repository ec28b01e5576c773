"""Knowing a film again by what is in its file, without reading all of it.

A name and a date are no content: a copy keeps neither, an overwritten file may keep both. Films are large, and their
bytes are compressed: any other encoding of any other pictures differs almost everywhere, also at equal size. So the
size is hashed with the first and the last mebibyte (where containers keep their headers and indexes) and with 64 blocks
of 64 KiB spread evenly between. Up to ``WHOLE_BYTES`` all of it is hashed. A change of a few bytes in the middle of a
larger file that leaves its size as it was can pass unseen; no editor or encoder does that.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from vitascope.errors import InputError
from vitascope.media.images import find_images

__all__ = ["WHOLE_BYTES", "video_fingerprint"]

WHOLE_BYTES = 16 << 20
_END_BYTES = 1 << 20
_BLOCKS, _BLOCK_BYTES = 64, 64 << 10


def video_fingerprint(video: Path) -> str:
    """Hexadecimal BLAKE2b-160 of what tells a video from others; for images of all of them, in order.

    Args:
        video: A file, a folder of images or an image pattern.

    Raises:
        InputError: It cannot be read.
    """
    digest = hashlib.blake2b(digest_size=20)
    try:
        for file in find_images(video) or [video]:
            _add(digest, file)
    except OSError as error:
        raise InputError(f"{video}: cannot be read: {error.strerror or error}") from error
    return digest.hexdigest()


def _add(digest: hashlib.blake2b, path: Path) -> None:
    with path.open("rb") as file:
        size = file.seek(0, 2)
        digest.update(size.to_bytes(8, "little"))
        file.seek(0)
        if size <= WHOLE_BYTES:
            digest.update(file.read())
            return
        digest.update(file.read(_END_BYTES))
        between = size - 2 * _END_BYTES - _BLOCK_BYTES
        for block in range(_BLOCKS):
            file.seek(_END_BYTES + between * block // (_BLOCKS - 1))
            digest.update(file.read(_BLOCK_BYTES))
        file.seek(-_END_BYTES, 2)
        digest.update(file.read(_END_BYTES))
