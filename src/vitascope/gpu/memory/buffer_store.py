"""Bookkeeping of the pools: buffers lent and returned under a cap.

A buffer may be returned at any point, even by a garbage collection inside another call of the store. So
returning takes no lock: the buffer goes into a queue and waiting threads are woken; the next ``take`` does
the bookkeeping.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from time import monotonic, perf_counter
from typing import Any, Protocol

from vitascope.errors import VitascopeError
from vitascope.gpu.pipeline.queues import INTERRUPT_CHECK_SECONDS


class Pending(Protocol):
    """Pending work that uses a buffer: a CUDA event."""

    @property
    def done(self) -> bool:
        """Whether the work is done."""
        ...

    def synchronize(self) -> None:
        """Block until the work is done."""
        ...


class Buffer:
    """Memory, and the pending work that uses it."""

    __slots__ = ("key", "memory", "nbytes", "pending", "watch")

    def __init__(self, key: Hashable, nbytes: int, memory: Any) -> None:
        self.key = key
        self.nbytes = nbytes
        """Size as counted by the cap."""
        self.memory = memory
        self.pending: list[Pending] = []
        """Events to wait for before lending it again."""
        self.watch: Any = None
        """For the pool, while the buffer is lent."""

    def hold(self, until: Pending) -> None:
        """Add an event to wait for before lending it again, and drop events that are done."""
        self.pending = [*(one for one in self.pending if not one.done), until]

    def is_free(self) -> bool:
        """Whether nothing is pending; drops events that are done."""
        if self.pending:
            self.pending = [one for one in self.pending if not one.done]
        return not self.pending


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferStats:
    """Content of a pool, and counts since its creation."""

    max_bytes: int | None
    """The cap; None for no cap."""
    reserved_bytes: int
    """All memory: lent, idle, and waiting for copies. Never above the cap."""
    peak_reserved_bytes: int
    leased_bytes: int
    leased_count: int
    idle_bytes: int
    idle_count: int
    copying_count: int
    """Buffers returned while copies still use them."""
    leases: int
    """Number of leases."""
    allocations: int
    """Leases that allocated memory; the others reused a buffer."""
    waits: int
    """Number of waits for room."""
    wait_seconds: float
    timeouts: int
    """Waits that timed out."""


class BufferStore:
    """Buffers by key. Thread-safe.

    Args:
        cap_bytes: Cap of all buffers; None for no cap.
        allocate: Allocates a buffer's memory, given key and size; called without a lock. If it raises, idle
            buffers are freed and it is called once more.
        short: Makes the error for a reached cap, given the requested bytes and what was tried.
    """

    def __init__(
        self,
        cap_bytes: int | None,
        *,
        allocate: Callable[[Hashable, int], Any],
        short: Callable[[int, str], VitascopeError],
    ) -> None:
        self.cap_bytes = cap_bytes
        self._allocate = allocate
        self._short = short
        self._lock = threading.Lock()
        self._idle: OrderedDict[Hashable, list[Buffer]] = OrderedDict()
        """By key, least recently used first."""
        self._returned: deque[Buffer] = deque()
        self._copying: deque[Buffer] = deque()
        self._waiters: tuple[SimpleQueue[None], ...] = ()
        self._closed = False
        self._reserved = self._peak_reserved = self._leased = self._leased_count = 0
        self._leases = self._allocations = self._waits = self._timeouts = 0
        self._wait_seconds = 0.0

    def take(self, key: Hashable, nbytes: int, *, timeout_s: float | None) -> Buffer:
        """Lend a buffer with undefined content.

        Args:
            key: Key of interchangeable buffers, which all have one size.
            nbytes: Size of the buffer.
            timeout_s: How long to wait for room; 0 does not wait, None waits indefinitely.

        Raises:
            VitascopeError: The error of ``short``: there was no room in time, or never can be.
            ValueError: The store is closed.
        """
        if self.cap_bytes is not None and nbytes > self.cap_bytes:
            raise self._short(nbytes, "which is more than the whole pool")
        buffer = self._try(key, nbytes) or self._wait(key, nbytes, timeout_s)
        if buffer.memory is None:
            self._fill(buffer)
        return buffer

    def give_back(self, buffer: Buffer) -> None:
        """Return a buffer. Takes no lock, so finalizers may call it."""
        self._returned.append(buffer)
        for waiter in self._waiters:
            waiter.put(None)

    def drop(self, buffer: Buffer) -> None:
        """Drop a lent buffer, which will not be returned."""
        with self._lock:
            self._reserved -= buffer.nbytes
            self._leased -= buffer.nbytes
            self._leased_count -= 1
        self._wake()

    def trim(self) -> None:
        """Free all idle buffers."""
        with self._lock:
            self._settle()
            freed = self._free_idle()
        del freed
        self._wake()

    def close(self) -> None:
        """Free all buffers, lent ones on their return; nothing is lent any more."""
        with self._lock:
            self._closed = True
            self._settle()
            copying = list(self._copying)
        for buffer in copying:
            for one in buffer.pending:
                one.synchronize()
        self.trim()

    def stats(self) -> BufferStats:
        """Content and counts so far."""
        with self._lock:
            self._settle()
            idle = [buffer for buffers in self._idle.values() for buffer in buffers]
            return BufferStats(
                max_bytes=self.cap_bytes,
                reserved_bytes=self._reserved,
                peak_reserved_bytes=self._peak_reserved,
                leased_bytes=self._leased,
                leased_count=self._leased_count,
                idle_bytes=sum(buffer.nbytes for buffer in idle),
                idle_count=len(idle),
                copying_count=len(self._copying),
                leases=self._leases,
                allocations=self._allocations,
                waits=self._waits,
                wait_seconds=self._wait_seconds,
                timeouts=self._timeouts,
            )

    def _try(self, key: Hashable, nbytes: int) -> Buffer | None:
        """Get a buffer, one without memory if room for it was reserved, or None if there is no room."""
        freed: list[Buffer] = []
        with self._lock:
            if self._closed:
                raise ValueError("this pool is closed")
            self._settle()
            if idle := self._idle.get(key):
                buffer = idle.pop()  # the last one returned is in the CPU caches
                self._idle.move_to_end(key)
            else:
                if self.cap_bytes is not None and self._reserved + nbytes > self.cap_bytes:
                    freed = self._free_idle(self._reserved + nbytes - self.cap_bytes)
                    if self._reserved + nbytes > self.cap_bytes:
                        return None
                buffer = Buffer(key, nbytes, None)
                self._reserved += nbytes
                self._peak_reserved = max(self._peak_reserved, self._reserved)
                self._allocations += 1
            self._leases += 1
            self._leased += nbytes
            self._leased_count += 1
        del freed  # without the lock: freeing page-locked memory waits for the GPU
        return buffer

    def _wait(self, key: Hashable, nbytes: int, timeout_s: float | None) -> Buffer:
        began = perf_counter()
        deadline = None if timeout_s is None else monotonic() + timeout_s
        with self._lock:
            self._waits += 1
        told: SimpleQueue[None] = SimpleQueue()
        try:
            while True:
                with self._lock:
                    self._waiters = (*self._waiters, told)
                    copying = self._copying[0].pending[:1] if self._copying else []
                # Registered first, so that no buffer returned from here on is missed.
                if buffer := self._try(key, nbytes):
                    return buffer
                if copying and timeout_s != 0:
                    copying[0].synchronize()
                elif not _heard(told, deadline):
                    with self._lock:
                        self._timeouts += 1
                    tried = "and no buffer was returned" + (f" in {timeout_s:g} s" if timeout_s else "")
                    raise self._short(nbytes, tried)
                self._forget(told)
        finally:
            self._forget(told)
            with self._lock:
                self._wait_seconds += perf_counter() - began

    def _forget(self, told: SimpleQueue[None]) -> None:
        with self._lock:
            self._waiters = tuple(one for one in self._waiters if one is not told)

    def _fill(self, buffer: Buffer) -> None:
        try:
            try:
                buffer.memory = self._allocate(buffer.key, buffer.nbytes)
            except Exception:
                self.trim()  # idle memory may be enough
                buffer.memory = self._allocate(buffer.key, buffer.nbytes)
        except BaseException:
            with self._lock:
                self._reserved -= buffer.nbytes
                self._leased -= buffer.nbytes
                self._leased_count -= 1
            self._wake()
            raise

    def _settle(self) -> None:
        """Account for returned buffers; with the lock held."""
        while self._returned:
            buffer = self._returned.popleft()
            self._leased -= buffer.nbytes
            self._leased_count -= 1
            self._shelve(buffer)
        for _ in range(len(self._copying)):
            self._shelve(self._copying.popleft())

    def _shelve(self, buffer: Buffer) -> None:
        if not buffer.is_free():
            self._copying.append(buffer)
        elif self._closed:
            self._reserved -= buffer.nbytes
        else:
            self._idle.setdefault(buffer.key, []).append(buffer)

    def _free_idle(self, wanted_bytes: int | None = None) -> list[Buffer]:
        """Drop idle buffers, least recently used keys first, until this much is free; with the lock held."""
        freed: list[Buffer] = []
        while self._idle and (wanted_bytes is None or wanted_bytes > 0):
            key, idle = next(iter(self._idle.items()))
            if not idle:
                del self._idle[key]
                continue
            buffer = idle.pop(0)
            freed.append(buffer)
            self._reserved -= buffer.nbytes
            if wanted_bytes is not None:
                wanted_bytes -= buffer.nbytes
        return freed

    def _wake(self) -> None:
        for waiter in self._waiters:
            waiter.put(None)


def _heard(told: SimpleQueue[None], deadline: float | None) -> bool:
    """Wait for a change; False on timeout."""
    while True:
        left = None if deadline is None else max(deadline - monotonic(), 0.0)
        slices = [seconds for seconds in (left, INTERRUPT_CHECK_SECONDS) if seconds is not None]
        try:
            told.get(timeout=min(slices) if slices else None)
        except Empty:
            if deadline is not None and monotonic() >= deadline:
                return False
        else:
            return True


def size_in_words(nbytes: int, *, of: int | None = None) -> str:
    """Format a size in gigabytes, megabytes (10^9, 10^6 bytes) or bytes; with ``of``, as a part of a whole."""
    whole = nbytes if of is None else of
    for unit, scale in (("GB", 1e9), ("MB", 1e6)):
        if whole >= scale:
            numbers = [f"{size / scale:.2f}" for size in (nbytes, of) if size is not None]
            return f"{' of '.join(numbers)} {unit}"
    return f"{nbytes} bytes" if of is None else f"{nbytes} of {of} bytes"
