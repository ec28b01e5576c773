"""Arrays in files of a folder, up to a size that holds for all processes that use it; the least recently used go first.

Recency is each file's modification time. What the folder holds in sum stands in the lock file that guards it, so that
nobody has to list the folder for each entry. Each file can tell whether it is whole::

    8 bytes   magic
    16        BLAKE2b (RFC 7693) of all that follows
    4, 4      lengths of the name and of the description, little-endian
    8         bytes of the array's values as they stand in the file
    1, 7      1 when they are packed (zlib, RFC 1950); zeros
    …         name, description (dtype as NPY files tell it, and shape: a Python literal), both UTF-8; values in C order
"""

from __future__ import annotations

import ast
import hashlib
import os
import struct
import tempfile
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from vitascope.errors import OutputError
from vitascope.file_lock import exclusive_lock

__all__ = ["ArrayFolder", "DamagedEntryError", "Totals", "pack_array", "unpack_array"]


_MAGIC = b"VSARRAY1"
_DIGEST_BYTES = 16
_HEAD = struct.Struct("<IIQB7x")
_FIXED_BYTES = len(_MAGIC) + _DIGEST_BYTES + _HEAD.size
_PLAIN_KINDS = "biufcmMSUV"

# Mattes and masks are mostly flat and shrink to a few percent; noise and camera pictures do not shrink at all, and
# trying costs more than writing them. A sample of them decides.
_LEVEL = 1
_SAMPLES = 16
_SAMPLE_BYTES = 4096
_WORTH_PACKING = 0.8


class DamagedEntryError(Exception):
    """The content is not what was written under this name: cut off, changed, or something else."""


def pack_array(name: str, array: npt.NDArray[Any]) -> list[bytes | memoryview]:
    """An array as the parts of a file, in order; they may show the array's own memory.

    Args:
        name: Any string.
        array: Any shape and order; numbers, booleans, dates, fixed-length strings and records of these.

    Raises:
        ValueError: The dtype cannot be told in a file without pickle: objects, or a type of another library.
    """
    description = _description(array)
    dense = np.asarray(array, order="C")
    values: bytes | memoryview = dense.reshape(-1).view(np.uint8).data if dense.nbytes else b""
    packed = _is_worth_packing(values)
    if packed:
        values = zlib.compress(values, _LEVEL)
    title = name.encode("utf-8", "surrogatepass")
    head = _HEAD.pack(len(title), len(description), len(values), packed) + title + description
    digest = hashlib.blake2b(head, digest_size=_DIGEST_BYTES)
    digest.update(values)
    return [_MAGIC + digest.digest() + head, values]


def unpack_array(name: str, content: bytes) -> npt.NDArray[Any]:
    """The array of a file.

    Args:
        name: That it was written under.
        content: Of the whole file.

    Returns:
        Read-only, C-contiguous; it shows ``content`` where the values are not packed.

    Raises:
        DamagedEntryError: The file is not whole, or belongs to another name.
    """
    if len(content) < _FIXED_BYTES or not content.startswith(_MAGIC):
        raise DamagedEntryError("it does not begin as such a file does")
    begin = len(_MAGIC) + _DIGEST_BYTES
    body = memoryview(content)[begin:]
    if hashlib.blake2b(body, digest_size=_DIGEST_BYTES).digest() != content[len(_MAGIC) : begin]:
        raise DamagedEntryError("its checksum is another")
    title_bytes, description_bytes, value_bytes, packed = _HEAD.unpack_from(body)
    description_at = _HEAD.size + title_bytes
    values_at = description_at + description_bytes
    if len(body) != values_at + value_bytes:
        raise DamagedEntryError("its length is another")
    if body[_HEAD.size : description_at] != name.encode("utf-8", "surrogatepass"):
        raise DamagedEntryError("it was written under another name")
    try:
        dtype, shape = _described(bytes(body[description_at:values_at]))
        size_bytes = int(np.prod(shape, dtype=object)) * dtype.itemsize
        if packed:
            unpacker = zlib.decompressobj()
            # Never more than the description promises, whatever the packed bytes would grow to.
            values = unpacker.decompress(body[values_at:], max_length=size_bytes + 1)
            return np.ndarray(shape, dtype, _exactly(values, size_bytes))
        return np.ndarray(shape, dtype, _exactly(body[values_at:], size_bytes))
    except (ValueError, TypeError, SyntaxError, EOFError, zlib.error, MemoryError, RecursionError) as error:
        raise DamagedEntryError(str(error)) from error


def _exactly(values: Any, size_bytes: int) -> Any:
    if len(values) != size_bytes:
        raise DamagedEntryError(f"{len(values)} bytes of values, expected {size_bytes}")
    return values


def _description(array: npt.NDArray[Any]) -> bytes:
    refused = ValueError(f"arrays of dtype {array.dtype} cannot be kept in a file: only plain values can")
    if array.dtype.hasobject or array.dtype.kind not in _PLAIN_KINDS:
        raise refused
    try:
        told = np.lib.format.dtype_to_descr(array.dtype)
        if np.lib.format.descr_to_dtype(told) != array.dtype:
            raise refused
    except (ValueError, TypeError) as error:
        raise refused from error
    return repr((told, array.shape)).encode("utf-8", "surrogatepass")


def _described(description: bytes) -> tuple[np.dtype[Any], tuple[int, ...]]:
    told, shape = ast.literal_eval(description.decode("utf-8", "surrogatepass"))
    return np.lib.format.descr_to_dtype(told), shape


def _is_worth_packing(values: bytes | memoryview) -> bool:
    if len(values) < _SAMPLE_BYTES:
        return False
    step = max(len(values) // _SAMPLES, _SAMPLE_BYTES)
    sample = b"".join(bytes(values[at : at + _SAMPLE_BYTES]) for at in range(0, len(values), step))
    return len(zlib.compress(sample, _LEVEL)) < _WORTH_PACKING * len(sample)


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
