"""A folder of arrays under a size that holds for all processes that use it; what was not used for longest goes first.

Recency is each file's modification time. What the folder holds in sum stands in the lock file that guards it, so that
nobody has to list the folder for each entry.
"""

from __future__ import annotations

import hashlib
import os
import struct
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy.typing as npt

from vitascope.errors import OutputError
from vitascope.file_lock import exclusive_lock
from vitascope.gpu.memory.array_file import DamagedEntryError, pack_array, unpack_array

__all__ = ["ArrayFolder", "Totals"]

_SUFFIX = ".vsarray"
_TEMPORARY_SUFFIX = ".part"
_TOTALS = struct.Struct("<QQ")
# The lock is held for a rename and sixteen bytes, so it is tried often.
_LOCK_POLL_SECONDS = 0.002
# Making room goes below the cap by this share, so that not every entry has to.
_ROOM_SHARE = 0.05
_ABANDONED_SECONDS = 3600.0


class Totals(NamedTuple):
    """How much there is."""

    entries: int
    nbytes: int


class _Entry(NamedTuple):
    used_ns: int
    path: str
    nbytes: int


class ArrayFolder:
    """Arrays by key, a file each. Thread-safe.

    Args:
        folder: Created when absent; what crashed writers left there is removed.
        cap_bytes: Most bytes of all files.

    Raises:
        OutputError: The folder cannot be made or written.
    """

    def __init__(self, folder: Path, cap_bytes: int) -> None:
        self.folder = folder
        self.evicted = 0
        """Entries that were removed to make room."""
        self._cap_bytes = cap_bytes
        with self._locked() as ledger:
            self._make_room(ledger, 0)

    def get(self, key: str) -> npt.NDArray[Any] | None:
        """The array of a key, read-only; None when there is none.

        Raises:
            DamagedEntryError: It was not whole, or cannot be read; it is gone now.
        """
        path = self._path(key)
        try:
            content = path.read_bytes()
            array = unpack_array(key, content)
        except FileNotFoundError:
            return None
        except (OSError, DamagedEntryError) as error:
            with suppress(OutputError):  # read-only now: it stays, and stays a miss
                self.remove(key)
            raise DamagedEntryError(f"{path}: {error}") from error
        with suppress(OSError):  # removed by another process meanwhile, or read-only
            os.utime(path, ns=(time.time_ns(),) * 2)
        return array

    def put(self, key: str, array: npt.NDArray[Any]) -> bool:
        """Keep an array; False when it is larger than the cap, and nothing is kept under that key.

        Raises:
            ValueError: Its dtype cannot be kept.
            OutputError: It cannot be written; an earlier entry stays.
        """
        parts = pack_array(key, array)
        size = sum(map(len, parts))
        if size > self._cap_bytes:
            self.remove(key)
            return False
        path = self._path(key)
        with self._errors():
            handle, temporary = _new_file(path.parent)
            try:
                with os.fdopen(handle, "wb") as file:
                    # Not synchronised: what a power cut leaves half written fails its checksum.
                    file.writelines(parts)
                os.utime(temporary, ns=(time.time_ns(),) * 2)
                with self._locked() as ledger:
                    totals = self._without(path, self._read_totals(ledger))
                    if totals.nbytes + size > self._cap_bytes:
                        totals = self._make_room(ledger, size, sparing=path)
                    # Before the file: a crash in between leaves a sum that is too large, never one that is too small.
                    _write_totals(ledger, Totals(totals.entries + 1, totals.nbytes + size))
                    temporary.replace(path)
            except BaseException:
                temporary.unlink(missing_ok=True)
                raise
        return True

    def remove(self, key: str) -> None:
        """Forget a key, if it is there.

        Raises:
            OutputError: The folder cannot be written.
        """
        path = self._path(key)
        if not path.exists():
            return
        with self._locked() as ledger:
            totals = self._without(path, self._read_totals(ledger))
            path.unlink(missing_ok=True)
            _write_totals(ledger, totals)

    def totals(self) -> Totals:
        """What all processes together keep there."""
        with self._locked() as ledger:
            return self._read_totals(ledger)

    def clear(self) -> None:
        """Remove every entry.

        Raises:
            OutputError: The folder cannot be written.
        """
        with self._locked() as ledger:
            for entry in self._scan():
                Path(entry.path).unlink(missing_ok=True)
            _write_totals(ledger, Totals(0, 0))

    def _path(self, key: str) -> Path:
        """A name that any file system takes, whatever the key is."""
        name = hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=20).hexdigest()
        return self.folder / name[:2] / f"{name[2:]}{_SUFFIX}"

    @contextmanager
    def _locked(self) -> Iterator[IO[bytes]]:
        with self._errors():
            if not self.folder.is_dir():
                self.folder.mkdir(parents=True, exist_ok=True)
            with exclusive_lock(self.folder / "lock", poll_seconds=_LOCK_POLL_SECONDS) as ledger:
                yield ledger

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise OutputError(
                f"{self.folder}: the cache cannot be written: {error.strerror or error}"
            ) from error

    def _read_totals(self, ledger: IO[bytes]) -> Totals:
        ledger.seek(0)
        content = ledger.read()
        if len(content) != _TOTALS.size:  # somebody emptied the folder
            return self._sum(self._scan())
        return Totals(*_TOTALS.unpack(content))

    @staticmethod
    def _without(path: Path, totals: Totals) -> Totals:
        try:
            size = path.stat().st_size
        except FileNotFoundError:
            return totals
        return Totals(totals.entries - 1, totals.nbytes - size)

    @staticmethod
    def _sum(entries: list[_Entry]) -> Totals:
        return Totals(len(entries), sum(entry.nbytes for entry in entries))

    def _make_room(self, ledger: IO[bytes], size: int, *, sparing: Path | None = None) -> Totals:
        """Remove what was not used for longest until ``size`` more bytes fit; what is left, counted anew.

        Args:
            ledger: Of the folder.
            size: Of the entry that comes.
            sparing: That it replaces: not counted, and not removed before its successor is there.
        """
        entries = sorted(entry for entry in self._scan() if entry.path != str(sparing))
        totals = self._sum(entries)
        if totals.nbytes + size > self._cap_bytes:
            goal = max(self._cap_bytes - size - int(self._cap_bytes * _ROOM_SHARE), 0)
            for entry in entries:
                if totals.nbytes <= goal:
                    break
                try:
                    Path(entry.path).unlink(missing_ok=True)
                except PermissionError:  # how Windows says that somebody is reading it
                    continue
                totals = Totals(totals.entries - 1, totals.nbytes - entry.nbytes)
                self.evicted += 1
        _write_totals(ledger, totals)
        return totals

    def _scan(self) -> list[_Entry]:
        """All entries; files that a crashed writer left behind are removed on the way."""
        entries = []
        for folder in self._folders():
            for file in os.scandir(folder):
                with suppress(FileNotFoundError):  # a writer's own file, renamed or removed meanwhile
                    known = file.stat(follow_symlinks=False)
                    if file.name.endswith(_SUFFIX):
                        entries.append(_Entry(known.st_mtime_ns, file.path, known.st_size))
                    elif (
                        file.name.endswith(_TEMPORARY_SUFFIX)
                        and known.st_mtime + _ABANDONED_SECONDS < time.time()
                    ):
                        Path(file.path).unlink()
        return entries

    def _folders(self) -> list[str]:
        return [file.path for file in os.scandir(self.folder) if len(file.name) == 2 and file.is_dir()]


def _write_totals(ledger: IO[bytes], totals: Totals) -> None:
    ledger.seek(0)
    ledger.truncate()
    ledger.write(_TOTALS.pack(max(totals.entries, 0), max(totals.nbytes, 0)))
    ledger.flush()


def _new_file(folder: Path) -> tuple[int, Path]:
    """A temporary file, open, in a folder that is made when it is not there."""
    for _ in range(2):
        with suppress(FileNotFoundError):
            handle, name = tempfile.mkstemp(suffix=_TEMPORARY_SUFFIX, dir=folder)
            return handle, Path(name)
        folder.mkdir(parents=True, exist_ok=True)
    raise FileNotFoundError(f"{folder} was removed at once")
