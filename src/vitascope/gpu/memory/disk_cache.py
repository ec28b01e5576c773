"""Results that cost time, kept in memory and on disk under a size that is not exceeded."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from vitascope.errors import OutputError
from vitascope.gpu.memory.array_folder import ArrayFolder, DamagedEntryError, Totals

__all__ = ["CacheManager", "CacheStats"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheStats:
    """What a cache did since it was opened, and what it holds."""

    memory_hits: int
    disk_hits: int
    misses: int
    damaged: int
    """Misses because an entry was not whole; it was removed."""
    stored: int
    """Entries that ``put`` kept, on disk or in memory."""
    too_large: int
    """Entries that are larger than the whole cache, and were not kept."""
    evicted: int
    """Entries that this cache removed from the disk to make room."""
    memory_entries: int
    memory_bytes: int
    disk_entries: int
    """Entries of all processes that use the folder; the bytes are, too."""
    disk_bytes: int

    @property
    def hit_rate(self) -> float:
        """Share of ``get`` that found something, 0 to 1; 0 before the first."""
        hits = self.memory_hits + self.disk_hits
        return hits / (hits + self.misses) if hits + self.misses else 0.0


class CacheManager:
    """Arrays by key, in memory and on disk; what was not used for longest goes first.

    On disk each array is a file of its own, written beside its place and then renamed, with a checksum: a crash leaves
    the old entry or none, and an entry that is damaged all the same counts as absent and is removed. Several processes
    may share a folder, and several threads a cache; the cap holds for all of them together. Nothing is pickled.

    Args:
        disk_cache_gb: Most gigabytes (10^9 bytes) on disk.
        memory_cache_gb: Most gigabytes in this process's memory; 0 keeps nothing there.
        enable_disk_cache: False never touches the disk.
        folder: Where the files are; it belongs to the cache alone, and is created. None is
            ``~/.cache/vitascope/arrays``.

    Raises:
        ValueError: A size is negative or not finite.
        OutputError: The folder cannot be made or written.
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
            if not 0 <= size < float("inf"):
                raise ValueError(f"{name} is {size}, expected a number from 0")
        self._memory = _MemoryTier(int(memory_cache_gb * 1e9))
        self._disk = ArrayFolder(_folder(folder), int(disk_cache_gb * 1e9)) if enable_disk_cache else None
        self._lock = threading.Lock()
        self._counts = dict.fromkeys(
            ("memory_hits", "disk_hits", "misses", "damaged", "stored", "too_large"), 0
        )
        self._closed = False

    def __enter__(self) -> CacheManager:
        """Use as a context manager that frees the memory."""
        return self

    def __exit__(self, *_: object) -> None:
        """Free the memory; the files stay."""
        self.close()

    def close(self) -> None:
        """Free the memory; the files stay for the next cache of that folder."""
        self._closed = True
        self._memory.clear()

    @property
    def folder(self) -> Path | None:
        """Where the files are; None without a disk cache."""
        return None if self._disk is None else self._disk.folder

    def get(self, key: str, *, use_disk: bool = True) -> npt.NDArray[Any] | None:
        """What was put under a key, or None.

        Args:
            key: Any string.
            use_disk: False asks the memory alone.

        Returns:
            The array as it was put, C-contiguous and read-only (it may be shared: copy it to change it).

        Raises:
            TypeError: The key is no string.
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
        """Keep an array; an earlier one of that key is replaced.

        Args:
            key: Any string.
            array: Any shape, order and plain dtype (no objects). Bytes come back as a uint8 array.
            to_disk: False keeps it in memory alone.

        Returns:
            True when it was kept somewhere; False when there is no room for it: it is larger than the cache, or
            neither memory nor disk may be used.

        Raises:
            TypeError: Not an array, for example one on a GPU; or the key is no string.
            ValueError: Its dtype cannot be kept, or the cache is closed.
            OutputError: The file cannot be written: no space, no permission. The cache can still be used.
        """
        self._require_open()
        _require_text(key)
        values = _as_array(array)
        kept = self._memory.put(key, values)
        if self._disk is not None:
            if to_disk:
                kept = self._disk.put(key, values) or kept
            else:
                self._disk.remove(key)  # out of date now
        self._count("stored" if kept else "too_large")
        return kept

    def stats(self) -> CacheStats:
        """What it did, and what it holds now."""
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
        """Remove everything, on disk too; other processes that share the folder find nothing there any more.

        Raises:
            OutputError: The folder cannot be written.
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
    """Least recently used first; holds copies."""

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
