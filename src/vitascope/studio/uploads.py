"""Files that the page uploads into a named folder: whole or not at all, and never over another."""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import shutil
import unicodedata
from collections.abc import AsyncIterator
from contextlib import suppress
from itertools import chain, count
from pathlib import Path
from typing import BinaryIO, Final

from vitascope.errors import OutputError, UsageError
from vitascope.studio.library import LISTED_SUFFIXES

__all__ = ["MOST_UPLOAD_BYTES", "plain_name", "receive"]

MOST_UPLOAD_BYTES: Final = 64 << 30
"""An hour of 8K from a VR camera has some 60 GB."""
_LEFT_FREE_BYTES: Final = 1 << 30
_WRITTEN_AT_ONCE: Final = 1 << 20
_MOST_NAME_BYTES: Final = 200
_NOT_IN_NAMES = re.compile(r'[\x00-\x1f\x7f<>:"|?*%]')


def plain_name(given: str) -> str:
    """The name that a file gets: no folder, nothing hidden, nothing that a system, an address or a pattern reads.

    Raises:
        UsageError: It is no name of a video, a picture or a sound.
    """
    name = unicodedata.normalize("NFC", re.split(r"[/\\]", given)[-1])
    name = _NOT_IN_NAMES.sub("_", name).strip().lstrip(".")
    stem, suffix = Path(name).stem, Path(name).suffix
    if not stem or suffix.lower() not in LISTED_SUFFIXES:
        raise UsageError(f"{given[:80]!r}: expected the name of a video, a picture or a sound file")
    while len(f"{stem}{suffix}".encode("utf-8", "replace")) > _MOST_NAME_BYTES:
        stem = stem[:-1]
    return f"{stem}{suffix}".encode("utf-8", "replace").decode()


async def receive(body: AsyncIterator[bytes], folder: Path, *, name: str, size_bytes: int) -> Path:
    """Write a body into a folder. It gets its name when it is whole; what has that name already stays as it is.

    Args:
        body: Parts of the file, in order.
        folder: Absolute, without symbolic links.
        name: From ``plain_name``.
        size_bytes: Size of the file, as it was announced.

    Returns:
        The file: with ``_2`` and so on behind its name, where that was taken.

    Raises:
        UsageError: It is too large, or its end did not come.
        OutputError: The disk has no room, or cannot be written.
    """
    if size_bytes > MOST_UPLOAD_BYTES:
        raise UsageError(f"{name}: it has {size_bytes} bytes; {MOST_UPLOAD_BYTES} are taken at most")
    partial = folder / f".upload-{secrets.token_hex(8)}.part"
    try:
        if shutil.disk_usage(folder).free < size_bytes + _LEFT_FREE_BYTES:
            raise OutputError(f"{name}: the disk has no room for it")
        with partial.open("xb") as file:
            got = await _written(body, file, most_bytes=size_bytes)
        if got != size_bytes:
            raise UsageError(f"{name}: {got} of {size_bytes} bytes came; send it again")
        return await asyncio.to_thread(_named, partial, folder / name)
    except OSError as error:
        raise OutputError(f"{name}: cannot be written: {error.strerror or error}") from error
    finally:
        partial.unlink(missing_ok=True)


async def _written(body: AsyncIterator[bytes], file: BinaryIO, *, most_bytes: int) -> int:
    """Write what comes, and no more than was announced; how much it was."""
    waiting, got = bytearray(), 0
    async for part in body:
        waiting += part
        got += len(part)
        if got > most_bytes:
            break
        if len(waiting) >= _WRITTEN_AT_ONCE:
            await asyncio.to_thread(file.write, bytes(waiting))
            waiting.clear()
    await asyncio.to_thread(file.write, bytes(waiting))
    await asyncio.to_thread(os.fsync, file.fileno())
    return got


def _named(partial: Path, wanted: Path) -> Path:
    """Give a file the first name that is free; nobody else's file is ever replaced."""
    for ending in chain([""], map("_{}".format, count(2))):
        path = wanted.with_stem(wanted.stem + ending)
        try:
            # The name is taken first, and by nobody else; links are not followed.
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        except FileExistsError:
            continue
        try:
            partial.replace(path)
        except OSError:
            with suppress(OSError):
                path.unlink()
            raise
        return path
    raise AssertionError  # numbers do not end
