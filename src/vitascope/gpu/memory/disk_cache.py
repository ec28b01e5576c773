"""Cache of arrays in memory and on disk, with a size limit; the least recently used entries go first.

On disk, recency is a file's modification time. The folder's lock file also stores the total size, so that the
folder need not be listed for each entry. Each file detects damage to itself::

    8 bytes   magic
    16        BLAKE2b (RFC 7693) of all that follows
    4, 4      lengths of the name and of the description, little-endian
    8         length of the array's values in the file, in bytes
    1, 7      1 if the values are packed (zlib, RFC 1950); zeros
    …         name, description (dtype as in NPY files, and shape: a Python literal), both UTF-8; values in C order
"""

from __future__ import annotations

import ast
import hashlib
import os
import struct
import tempfile
import threading
import time
import zlib
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from vitascope.closing import Closing
from vitascope.errors import OutputError
from vitascope.file_lock import exclusive_lock
from vitascope.gpu.number_checks import check_number

_MAGIC = b"VSARRAY1"
_DIGEST_BYTES = 16
_HEAD = struct.Struct("<IIQB7x")
_FIXED_BYTES = len(_MAGIC) + _DIGEST_BYTES + _HEAD.size
_PLAIN_KINDS = "biufcmMSUV"

# Mattes and masks are mostly flat and shrink to a few percent. Noise and camera pictures do not shrink, and trying
# would cost more than writing them. A sample decides.
_LEVEL = 1
_SAMPLES = 16
_SAMPLE_BYTES = 4096
_WORTH_PACKING = 0.8


class DamagedEntryError(Exception):
    """The content is not what was written under this name: truncated, changed, or foreign."""


def pack_array(name: str, array: npt.NDArray[Any]) -> list[bytes | memoryview]:
    """Serialise an array as the parts of a file, in order, which may view the array's memory.

    Args:
        name: Any string.
        array: Any shape and order; numbers, booleans, dates, fixed-length strings and records of these.

    Raises:
        ValueError: The dtype cannot be stored without pickle: objects, or another library's type.
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
    """Parse an array from a file's content.

    Args:
        name: Name it was written under.
        content: Content of the whole file.

    Returns:
        Read-only, C-contiguous array; a view of ``content`` if the values are not packed.

    Raises:
        DamagedEntryError: The file is damaged, or belongs to another name.
    """
    if len(content) < _FIXED_BYTES or not content.startswith(_MAGIC):
        raise DamagedEntryError("it does not begin like a cache entry")
    begin = len(_MAGIC) + _DIGEST_BYTES
    body = memoryview(content)[begin:]
    if hashlib.blake2b(body, digest_size=_DIGEST_BYTES).digest() != content[len(_MAGIC) : begin]:
        raise DamagedEntryError("its checksum does not match")
    title_bytes, description_bytes, value_bytes, packed = _HEAD.unpack_from(body)
    description_at = _HEAD.size + title_bytes
    values_at = description_at + description_bytes
    if len(body) != values_at + value_bytes:
        raise DamagedEntryError("its length does not match")
    if body[_HEAD.size : description_at] != name.encode("utf-8", "surrogatepass"):
        raise DamagedEntryError("it was written under another name")
    try:
        dtype, shape = _described(bytes(body[description_at:values_at]))
        size_bytes = int(np.prod(shape, dtype=object)) * dtype.itemsize
        if packed:
            unpacker = zlib.decompressobj()
            # Never more than the description promises, whatever the packed bytes expand to.
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
# The lock is held for a rename and sixteen bytes, so it is retried often.
_LOCK_POLL_SECONDS = 0.002
# Eviction goes below the cap by this share, so that not every entry evicts.
_ROOM_SHARE = 0.05
_ABANDONED_SECONDS = 3600.0


class Totals(NamedTuple):
    """Number and size of entries."""

    entries: int
    nbytes: int


class _Entry(NamedTuple):
    used_ns: int
    path: str
    nbytes: int


class ArrayFolder:
    """Arrays by key, one file each. Thread-safe.

    Args:
        folder: Created if missing; leftovers of crashed writers are removed.
        cap_bytes: Limit of all files' bytes.

    Raises:
        OutputError: The folder cannot be created or written.
    """

    def __init__(self, folder: Path, cap_bytes: int) -> None:
        self.folder = folder
        self.evicted = 0
        """Entries evicted to make room."""
        self._cap_bytes = cap_bytes
        with self._locked() as ledger:
            self._make_room(ledger, 0)

    def get(self, key: str) -> npt.NDArray[Any] | None:
        """Get the array of a key, read-only; None if there is none.

        Raises:
            DamagedEntryError: The entry was damaged or unreadable, and has been removed.
        """
        path = self._path(key)
        try:
            content = path.read_bytes()
            array = unpack_array(key, content)
        except FileNotFoundError:
            return None
        except (OSError, DamagedEntryError) as error:
            with suppress(OutputError):  # the folder is read-only: the entry stays, and stays a miss
                self.remove(key)
            raise DamagedEntryError(f"{path}: {error}") from error
        with suppress(OSError):  # removed by another process, or read-only
            os.utime(path, ns=(time.time_ns(),) * 2)
        return array

    def put(self, key: str, array: npt.NDArray[Any]) -> bool:
        """Store an array; False if it is larger than the cap, and nothing is stored under the key.

        Raises:
            ValueError: The dtype cannot be stored.
            OutputError: The file is not writable; an earlier entry stays.
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
                    # Not synced: a file left incomplete by a power cut fails its checksum.
                    file.writelines(parts)
                os.utime(temporary, ns=(time.time_ns(),) * 2)
                with self._locked() as ledger:
                    totals = self._without(path, self._read_totals(ledger))
                    if totals.nbytes + size > self._cap_bytes:
                        totals = self._make_room(ledger, size, sparing=path)
                    # Written before the file: a crash in between leaves a total that is too large, never too small.
                    _write_totals(ledger, Totals(totals.entries + 1, totals.nbytes + size))
                    temporary.replace(path)
            except BaseException:
                temporary.unlink(missing_ok=True)
                raise
        return True

    def remove(self, key: str) -> None:
        """Remove a key's entry, if any.

        Raises:
            OutputError: The folder is not writable.
        """
        path = self._path(key)
        if not path.exists():
            return
        with self._locked() as ledger:
            totals = self._without(path, self._read_totals(ledger))
            path.unlink(missing_ok=True)
            _write_totals(ledger, totals)

    def totals(self) -> Totals:
        """Number and size of all processes' entries."""
        with self._locked() as ledger:
            return self._read_totals(ledger)

    def clear(self) -> None:
        """Remove every entry.

        Raises:
            OutputError: The folder is not writable.
        """
        with self._locked() as ledger:
            for entry in self._scan():
                Path(entry.path).unlink(missing_ok=True)
            _write_totals(ledger, Totals(0, 0))

    def _path(self, key: str) -> Path:
        """Make a file name for any key, valid on every file system."""
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
        if len(content) != _TOTALS.size:  # the folder was emptied
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
        """Evict the least recently used files until ``size`` more bytes fit; return the recounted totals.

        Args:
            ledger: Ledger of the folder.
            size: Size of the new entry.
            sparing: Entry being replaced: not counted, and kept until the new one exists.
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
                except PermissionError:  # Windows: another process is reading it
                    continue
                totals = Totals(totals.entries - 1, totals.nbytes - entry.nbytes)
                self.evicted += 1
        _write_totals(ledger, totals)
        return totals

    def _scan(self) -> list[_Entry]:
        """List all entries, removing leftovers of crashed writers."""
        entries = []
        for folder in self._folders():
            for file in os.scandir(folder):
                with suppress(FileNotFoundError):  # a file being written, just renamed or removed
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
    """Open a temporary file, creating its folder if missing."""
    for _ in range(2):
        with suppress(FileNotFoundError):
            handle, name = tempfile.mkstemp(suffix=_TEMPORARY_SUFFIX, dir=folder)
            return handle, Path(name)
        folder.mkdir(parents=True, exist_ok=True)
    raise FileNotFoundError(f"{folder} was removed at once")


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheStats:
    """Counts of a cache since it was opened, and its contents."""

    memory_hits: int
    disk_hits: int
    misses: int
    damaged: int
    """Misses because of a damaged entry, which was removed."""
    stored: int
    """Entries stored by ``put``, on disk or in memory."""
    too_large: int
    """Entries larger than the whole cache, not stored."""
    evicted: int
    """Entries this cache evicted from disk."""
    memory_entries: int
    memory_bytes: int
    disk_entries: int
    """Entries of all processes that share the folder; so are the bytes."""
    disk_bytes: int

    @property
    def hit_rate(self) -> float:
        """Share of ``get`` calls that found an entry, 0 to 1; 0 before the first."""
        hits = self.memory_hits + self.disk_hits
        return hits / (hits + self.misses) if hits + self.misses else 0.0


class CacheManager(Closing):
    """Caches arrays by key, in memory and on disk, evicting the least recently used.

    On disk each array is a file with a checksum, written under a temporary name and renamed: a crash leaves
    the old entry or none, and a damaged entry counts as missing and is removed. Processes can share a folder,
    and threads a cache; the limit holds for all together. Nothing is pickled.

    Args:
        disk_cache_gb: Limit on disk, in gigabytes (10^9 bytes).
        memory_cache_gb: Limit in this process's memory, in gigabytes; 0 disables it.
        enable_disk_cache: False never touches the disk.
        folder: Folder of the files, used by caches only, created if missing. None is
            ``~/.cache/vitascope/arrays``.

    Raises:
        ValueError: A size is negative or not finite.
        OutputError: The folder cannot be created or written.
    """

    def __init__(
        self,
        *,
        disk_cache_gb: float = 4.0,
        memory_cache_gb: float = 0.0,
        enable_disk_cache: bool = True,
        folder: Path | None = None,
    ) -> None:
        for name, size in (("disk_cache_gb", disk_cache_gb), ("memory_cache_gb", memory_cache_gb)):
            check_number(name, size, least=0)
        self._memory = _MemoryTier(int(memory_cache_gb * 1e9))
        self._disk = ArrayFolder(_folder(folder), int(disk_cache_gb * 1e9)) if enable_disk_cache else None
        self._lock = threading.Lock()
        self._counts = dict.fromkeys(
            ("memory_hits", "disk_hits", "misses", "damaged", "stored", "too_large"), 0
        )
        self._closed = False

    def close(self) -> None:
        """Free the memory; the files stay for the folder's next cache."""
        self._closed = True
        self._memory.clear()

    @property
    def folder(self) -> Path | None:
        """Folder of the files; None without a disk cache."""
        return None if self._disk is None else self._disk.folder

    def get(self, key: str, *, use_disk: bool = True) -> npt.NDArray[Any] | None:
        """Get the array of a key, or None.

        Args:
            key: Any string.
            use_disk: False looks in memory only.

        Returns:
            The stored array, C-contiguous and read-only (it may be shared: copy it to change it).

        Raises:
            TypeError: The key is not a string.
            ValueError: The cache is closed.
        """
        self._require_open()
        _require_text(key)
        if (found := self._memory.get(key)) is not None:
            self._count("memory_hits")
            return found
        if use_disk and self._disk is not None:
            try:
                found = self._disk.get(key)
            except DamagedEntryError:
                self._count("damaged")
            if found is not None:
                self._count("disk_hits")
                self._memory.put(key, found, is_ours=True)
                return found
        self._count("misses")
        return None

    def put(
        self, key: str, array: npt.NDArray[Any] | bytes | bytearray | memoryview, *, to_disk: bool = True
    ) -> bool:
        """Store an array, replacing the key's earlier one.

        Args:
            key: Any string.
            array: Any shape, order and plain dtype (no objects). Bytes are returned as a uint8 array.
            to_disk: False stores it in memory only.

        Returns:
            True if it was stored; False if it is larger than the cache, or neither memory nor disk may be
            used.

        Raises:
            TypeError: ``array`` is not a host array, or the key is not a string.
            ValueError: The dtype cannot be stored, or the cache is closed.
            OutputError: Writing failed: no space, no permission. The cache stays usable.
        """
        self._require_open()
        _require_text(key)
        values = _as_array(array)
        kept = self._memory.put(key, values)
        if self._disk is not None:
            if to_disk:
                kept = self._disk.put(key, values) or kept
            else:
                self._disk.remove(key)  # it is outdated
        self._count("stored" if kept else "too_large")
        return kept

    def stats(self) -> CacheStats:
        """Counts so far, and the content."""
        memory, disk = self._memory.totals(), Totals(0, 0)
        if self._disk is not None:
            disk = self._disk.totals()
        with self._lock:
            return CacheStats(
                **self._counts,
                evicted=0 if self._disk is None else self._disk.evicted,
                memory_entries=memory.entries,
                memory_bytes=memory.nbytes,
                disk_entries=disk.entries,
                disk_bytes=disk.nbytes,
            )

    def clear(self) -> None:
        """Remove everything, also on disk and for other processes that share the folder.

        Raises:
            OutputError: The folder is not writable.
        """
        self._memory.clear()
        if self._disk is not None:
            self._disk.clear()

    def _require_open(self) -> None:
        if self._closed:
            raise ValueError("this cache is closed")

    def _count(self, what: str) -> None:
        with self._lock:
            self._counts[what] += 1


class _MemoryTier:
    """Arrays in memory, least recently used first; holds copies."""

    def __init__(self, cap_bytes: int) -> None:
        self._cap_bytes = cap_bytes
        self._lock = threading.Lock()
        self._arrays: OrderedDict[str, npt.NDArray[Any]] = OrderedDict()
        self._nbytes = 0

    def get(self, key: str) -> npt.NDArray[Any] | None:
        with self._lock:
            if key in self._arrays:
                self._arrays.move_to_end(key)
            return self._arrays.get(key)

    def put(self, key: str, array: npt.NDArray[Any], *, is_ours: bool = False) -> bool:
        fits = 0 < self._cap_bytes >= array.nbytes
        if fits and not is_ours:
            array = array.copy()  # the caller may change it later
            array.flags.writeable = False
        with self._lock:
            if (old := self._arrays.pop(key, None)) is not None:
                self._nbytes -= old.nbytes
            if not fits:
                return False
            self._arrays[key] = array
            self._nbytes += array.nbytes
            while self._nbytes > self._cap_bytes:
                self._nbytes -= self._arrays.popitem(last=False)[1].nbytes
        return True

    def totals(self) -> Totals:
        with self._lock:
            return Totals(len(self._arrays), self._nbytes)

    def clear(self) -> None:
        with self._lock:
            self._arrays.clear()
            self._nbytes = 0


def _folder(folder: Path | None) -> Path:
    if folder is not None:
        return Path(folder)
    try:
        return Path.home() / ".cache" / "vitascope" / "arrays"
    except RuntimeError as error:
        raise OutputError(
            f"the home folder is unknown ({error}); give the cache a folder of its own"
        ) from error


def _require_text(key: object) -> None:
    if not isinstance(key, str):
        raise TypeError(f"a cache's key is a string, not {type(key).__name__}")


def _as_array(array: object) -> npt.NDArray[Any]:
    if isinstance(array, bytes | bytearray | memoryview):
        return np.frombuffer(array, np.uint8)
    if isinstance(array, np.ma.MaskedArray) or not isinstance(array, np.ndarray | np.generic):
        raise TypeError(
            f"a cache keeps NumPy arrays and bytes, not {type(array).__module__}.{type(array).__name__}"
        )
    return np.asarray(array, order="C")
