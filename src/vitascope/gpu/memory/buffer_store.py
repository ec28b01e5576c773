"""Bookkeeping for pools of reusable buffers with a size limit.

A buffer may come back from anywhere: from a garbage collection in the middle of another call of the store, too. So
coming back takes no lock: the buffer is put down in a queue, and who waits is told; whoever takes next does the books.
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
    """Something that still reads or writes a buffer: a CUDA event."""

    @property
    def done(self) -> bool:
        """True once it is over."""
        ...

    def synchronize(self) -> None:
        """Wait until it is over."""
        ...


class Buffer:
    """Memory, and what still reads or writes it."""

    __slots__ = ("key", "memory", "nbytes", "pending", "watch")

    def __init__(self, key: Hashable, nbytes: int, memory: Any) -> None:
        self.key = key
        self.nbytes = nbytes
        """As the cap counts it."""
        self.memory = memory
        self.pending: list[Pending] = []
        """Events that must be over before it is lent again."""
        self.watch: Any = None
        """For the pool's own use while it is lent."""

    def hold(self, until: Pending) -> None:
        """Do not reuse it before a pending operation has finished."""
        self.pending = [*(one for one in self.pending if not one.done), until]

    def is_free(self) -> bool:
        """True if nothing is pending."""
        if self.pending:
            self.pending = [one for one in self.pending if not one.done]
        return not self.pending


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferStats:
    """Content of a pool, and counts since it was made."""

    max_bytes: int | None
    """The cap; None without one."""
    reserved_bytes: int
    """All its memory: lent, idle, and waiting for the end of a copy. Never above the cap."""
    peak_reserved_bytes: int
    leased_bytes: int
    leased_count: int
    idle_bytes: int
    idle_count: int
    copying_count: int
    """Buffers that came back while something still read or wrote them."""
    leases: int
    """Times that a buffer was lent."""
    allocations: int
    """Leases that took new memory; the others found a buffer of an earlier one."""
    waits: int
    """Times that somebody had to wait for room."""
    wait_seconds: float
    timeouts: int
    """Waits that were in vain."""


class BufferStore:
    """Buffers by key. Thread-safe.

    Args:
        cap_bytes: Most bytes of all buffers; None for no cap.
        allocate: Makes the memory of a buffer, given its key and size; called without a lock. What it raises is raised
            once idle buffers were freed and a second call raised it again.
        short: The error of a cap that is reached, given the bytes that are wanted and what was tried.
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
        """By key, the one that was not used for longest first."""
        self._returned: deque[Buffer] = deque()
        self._copying: deque[Buffer] = deque()
        self._waiters: tuple[SimpleQueue[None], ...] = ()
        self._closed = False
        self._reserved = self._peak_reserved = self._leased = self._leased_count = 0
        self._leases = self._allocations = self._waits = self._timeouts = 0
        self._wait_seconds = 0.0

    def take(self, key: Hashable, nbytes: int, *, timeout_s: float | None) -> Buffer:
        """Lend a buffer; its content is undefined.

        Args:
            key: Key of buffers that can stand for each other; all of one key have one size.
            nbytes: Their size.
            timeout_s: How long to wait for room; 0 does not wait, None waits for ever.

        Raises:
            VitascopeError: As ``short`` makes it: there was no room in time, or never can be.
            ValueError: The store is closed.
        """
        if self.cap_bytes is not None and nbytes > self.cap_bytes:
            raise self._short(nbytes, "which is more than the whole pool")
        buffer = self._try(key, nbytes) or self._wait(key, nbytes, timeout_s)
        if buffer.memory is None:
            self._fill(buffer)
        return buffer

    def give_back(self, buffer: Buffer) -> None:
        """Take a buffer back. Takes no lock, so that it may be called from a finalizer."""
        self._returned.append(buffer)
        for waiter in self._waiters:
            waiter.put(None)

    def drop(self, buffer: Buffer) -> None:
        """Forget a lent buffer that will not be returned."""
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
        """Free all buffers, lent ones when they are returned; no more are lent."""
        with self._lock:
            self._closed = True
            self._settle()
            copying = list(self._copying)
        for buffer in copying:
            for one in buffer.pending:
                one.synchronize()
        self.trim()

    def stats(self) -> BufferStats:
        """Contents, and counts so far."""
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
        """A buffer; without memory where room for a new one was reserved; None when there is no room."""
        freed: list[Buffer] = []
        with self._lock:
            if self._closed:
                raise ValueError("this pool is closed")
            self._settle()
            if idle := self._idle.get(key):
                buffer = idle.pop()  # the last one back is the one in the caches
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
                # Tried after it was registered: who comes back from here on is heard.
                if buffer := self._try(key, nbytes):
                    return buffer
                if copying and timeout_s != 0:
                    copying[0].synchronize()
                elif not _heard(told, deadline):
                    with self._lock:
                        self._timeouts += 1
                    tried = "and nothing came back" + (f" in {timeout_s:g} s" if timeout_s else "")
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
                self.trim()  # what lies idle may be just what is missing
                buffer.memory = self._allocate(buffer.key, buffer.nbytes)
        except BaseException:
            with self._lock:
                self._reserved -= buffer.nbytes
                self._leased -= buffer.nbytes
                self._leased_count -= 1
            self._wake()
            raise

    def _settle(self) -> None:
        """Account for what came back; under the lock."""
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
        """Forget idle buffers of the keys that were not used for longest, until so much is free; under the lock."""
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
    """Wait until something changed; False if nothing did in time."""
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
    """A size for a message, in gigabytes, megabytes (10^9, 10^6 bytes) or bytes; with ``of``, as a part of a whole."""
    whole = nbytes if of is None else of
    for unit, scale in (("GB", 1e9), ("MB", 1e6)):
        if whole >= scale:
            numbers = [f"{size / scale:.2f}" for size in (nbytes, of) if size is not None]
            return f"{' of '.join(numbers)} {unit}"
    return f"{nbytes} bytes" if of is None else f"{nbytes} of {of} bytes"
