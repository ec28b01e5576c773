"""The videos and background pictures in the given folders; nothing else is ever opened.

The page names a video by an id that only this list gives out, so no request holds a path. What it
uploads goes into the first folder: whole or not at all, and never over another file.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import secrets
import shutil
import unicodedata
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path
from typing import BinaryIO, Final

from vitascope.errors import InputError, OutputError, UsageError
from vitascope.media.reading.discovery import VIDEO_SUFFIXES
from vitascope.media.reading.images import IMAGE_SUFFIXES, natural_key

_MOST_FILES = 2000
"""A page listing more is useless, and the folder was probably given by mistake."""


_VOICE_SUFFIXES = frozenset({".wav", ".mp3", ".m4a", ".ogg", ".opus", ".flac", ".aac", ".motion"})
LISTED_SUFFIXES = VIDEO_SUFFIXES | IMAGE_SUFFIXES | _VOICE_SUFFIXES
"""Suffixes of all files listed on the page."""


@dataclass(frozen=True, slots=True)
class ListedFile:
    """A video or picture in a given folder."""

    id: str
    """Its name for the page: 16 hexadecimal digits."""
    path: Path
    """Absolute, without symbolic links."""
    name: str
    """Path below the given folder."""

    @property
    def version(self) -> str:
        """A version that changes with the file.

        Raises:
            InputError: It no longer exists.
        """
        try:
            status = self.path.stat()
        except OSError as error:
            raise InputError(f"{self.name}: cannot be read: {error.strerror or error}") from error
        return f"{status.st_mtime_ns:x}-{status.st_size:x}"


class Library:
    """The files in the given folders.

    Args:
        named: Folders, searched with all their subfolders, and videos with any suffix.

    Raises:
        InputError: One of them does not exist.
    """

    def __init__(self, named: Sequence[Path]) -> None:
        self._roots: list[Path] = []
        self._seen: dict[str, ListedFile] = {}
        for path in named:
            if not path.exists():
                raise InputError(f"{path}: no such video or folder")
            self._roots.append(path.resolve())

    @property
    def named(self) -> str:
        """The given folders and videos, for people."""
        return ", ".join(str(root) for root in self._roots)

    @property
    def folder(self) -> Path:
        """Folder for new files: the first one given.

        Raises:
            UsageError: No folder was given.
        """
        folder = next((root for root in self._roots if root.is_dir()), None)
        if folder is None:
            raise UsageError("there is no folder for uploads; start vitascope studio with a folder")
        return folder

    def films(self, *, without: Iterable[Path] = ()) -> list[ListedFile]:
        """All videos, in natural order of their names.

        Args:
            without: Files to leave out, because they were made from others.
        """
        left_out = {path.resolve() for path in without}
        return [film for film in self._files(VIDEO_SUFFIXES) if film.path not in left_out]

    def pictures(self) -> list[ListedFile]:
        """All photographs."""
        return list(self._files(IMAGE_SUFFIXES))

    def voices(self) -> list[ListedFile]:
        """All sound files and recorded motion, which can move a portrait like a video."""
        return list(self._files(_VOICE_SUFFIXES))

    def find(self, file_id: str) -> ListedFile:
        """The current video or picture with an id.

        Raises:
            InputError: The given folders no longer contain such a file.
        """
        seen = self._seen.get(file_id)
        # A file listed earlier may have been replaced by a link.
        if seen is not None and seen.path.is_file() and seen.path.resolve() == seen.path:
            return seen
        for file in self._files(LISTED_SUFFIXES):
            if file.id == file_id:
                return file
        raise InputError("there is no such video in the given folders")

    def holds(self, path: Path) -> bool:
        """True for a file in a given folder, after following links, or a given video."""
        real = path.resolve()
        return any(real == root or (root.is_dir() and real.is_relative_to(root)) for root in self._roots)

    def _files(self, suffixes: Iterable[str]) -> Iterator[ListedFile]:
        count = 0
        for root in self._roots:
            if root.is_file():
                yield self._listed(root, root.name)
                continue
            for path in _below(root, frozenset(suffixes)):
                # A link may lead out of the folder, to something that was not given.
                real = path.resolve()
                if not real.is_relative_to(root) or not real.is_file():
                    continue
                count += 1
                if count > _MOST_FILES:
                    return
                yield self._listed(real, path.relative_to(root).as_posix())

    def _listed(self, path: Path, name: str) -> ListedFile:
        file = ListedFile(film_id(path), path, name)
        self._seen[file.id] = file
        return file


def _below(root: Path, suffixes: frozenset[str]) -> Iterator[Path]:
    for folder, folders, names in os.walk(root, followlinks=False):
        folders[:] = sorted((name for name in folders if not name.startswith(".")), key=natural_key)
        for name in sorted(names, key=natural_key):
            if not name.startswith(".") and Path(name).suffix.lower() in suffixes:
                yield Path(folder, name)


def film_id(path: Path) -> str:
    """The id by which the page names a file, from its absolute path."""
    return hashlib.blake2b(os.fsencode(path), digest_size=8).hexdigest()


MOST_UPLOAD_BYTES: Final = 64 << 30
"""An hour of 8K from a VR camera takes about 60 GB."""
_LEFT_FREE_BYTES: Final = 1 << 30
_WRITTEN_AT_ONCE: Final = 1 << 20
_MOST_NAME_BYTES: Final = 200
_NOT_IN_NAMES = re.compile(r'[\x00-\x1f\x7f<>:"|?*%]')


def plain_name(given: str) -> str:
    """Make a file's name safe: no folder, not hidden, no characters special to systems, addresses or patterns.

    Raises:
        UsageError: It is not the name of a video, picture or sound.
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
    """Save an upload in a folder. It gets its name when complete, and never replaces a file.

    Args:
        body: Parts of the file, in order.
        folder: Absolute, without symbolic links.
        name: A name from ``plain_name``.
        size_bytes: Announced size of the file.

    Returns:
        The file; ``_2`` and so on is appended if its name was taken.

    Raises:
        UsageError: It is too large, or the upload was interrupted.
        OutputError: The disk is full, or cannot be written.
    """
    if size_bytes > MOST_UPLOAD_BYTES:
        raise UsageError(f"{name}: it has {size_bytes} bytes; {MOST_UPLOAD_BYTES} are the limit")
    partial = folder / f".upload-{secrets.token_hex(8)}.part"
    try:
        if shutil.disk_usage(folder).free < size_bytes + _LEFT_FREE_BYTES:
            raise OutputError(f"{name}: there is no space left on the disk")
        with partial.open("xb") as file:
            got = await _written(body, file, most_bytes=size_bytes)
        if got != size_bytes:
            raise UsageError(f"{name}: {got} of {size_bytes} bytes arrived; send it again")
        return await asyncio.to_thread(_named, partial, folder / name)
    except OSError as error:
        raise OutputError(f"{name}: cannot be written: {error.strerror or error}") from error
    finally:
        partial.unlink(missing_ok=True)


async def _written(body: AsyncIterator[bytes], file: BinaryIO, *, most_bytes: int) -> int:
    """Write what arrives, but no more than was announced; return the number of bytes."""
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
    """Give a file the first free name; an existing file is never replaced."""
    for ending in chain([""], map("_{}".format, count(2))):
        path = wanted.with_stem(wanted.stem + ending)
        try:
            # Reserve the name first, exclusively; links are not followed.
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
