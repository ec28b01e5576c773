"""Bounded queues between stages, which measure themselves, and the turnstile that keeps results in order.

How to read a queue's figures: a large ``put_wait_seconds`` means a slow consumer, a large
``get_wait_seconds`` a slow producer. On either side of a stage they show the bottleneck.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from time import perf_counter
from typing import Any, Generic, Literal, TypeVar

from vitascope.gpu.number_checks import check_count

T = TypeVar("T")

Overflow = Literal["wait", "drop_oldest"]

INTERRUPT_CHECK_SECONDS: float | None = 0.1 if sys.platform == "win32" else 0.5
"""Longest uninterrupted wait on a lock. Windows delivers Ctrl-C only between waits; on POSIX a signal ends
the main thread's wait at once, unless another thread received it or it arrived just before the wait began."""


class Mark(Enum):
    """Signals that ``get`` returns instead of an item."""

    END = "end"
    """The producer has finished and every item was taken."""
    STOP = "stop"
    """The run was given up; queued items are dropped."""
    NOTHING_YET = "nothing yet"
    """No item came within the timeout; the caller may ask again."""


def nbytes_of(item: object) -> int:
    """Size of an item in bytes: its ``nbytes``, the sum over a tuple's or list's members, else 0."""
    if isinstance(item, tuple | list):
        return sum(map(nbytes_of, item))
    return int(getattr(item, "nbytes", 0))


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueLimits:
    """Limits of a queue, and its behaviour when full.

    Raises:
        ValueError: A limit is below 1, or ``overflow`` is unknown.
    """

    items: int = 8
    """Most items waiting."""
    nbytes: int | None = 256 << 20
    """Most bytes waiting; None for no limit. A larger item still passes, alone."""
    overflow: Overflow = "wait"
    """``wait`` blocks the producer and loses nothing (files); ``drop_oldest`` makes room (live input)."""
    size_of: Callable[[Any], int] = nbytes_of
    """Returns an item's size in bytes."""
    wake_items: int = 1
    """Items that must wait before a sleeping consumer is woken, unless the queue is full: for a single
    consumer that batches this many, behind a producer that waits only for room. Every wake-up makes other
    threads wait for the interpreter lock."""

    def __post_init__(self) -> None:
        """Check the limits."""
        check_count("wake_items", self.wake_items)
        if self.wake_items > 1 and self.overflow == "drop_oldest":
            raise ValueError("a queue that drops items must wake its consumer for each")
        check_count("items", self.items)
        check_count("nbytes", self.nbytes, optional=True)
        if self.overflow not in ("wait", "drop_oldest"):
            raise ValueError(f"overflow is 'wait' or 'drop_oldest', not {self.overflow!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueReport:
    """Measurements of a queue; waits in progress are counted up to now."""

    name: str
    """Producer and consumer, such as ``decode > infer``."""
    count: int
    """Items put, including dropped ones."""
    dropped: int
    """Items dropped by ``drop_oldest``."""
    put_wait_seconds: float
    """Time producers spent waiting for room."""
    get_wait_seconds: float
    """Time consumers spent waiting for items, summed over them."""
    occupancy: int
    """Items waiting now."""
    occupancy_mean: float
    """Items waiting, averaged over time."""
    occupancy_max: int
    nbytes_max: int
    """Most bytes that waited at once."""


class BoundedQueue(Generic[T]):
    """A first-in first-out queue between threads, bounded in items and in bytes.

    Args:
        name: Name in reports.
        limits: Bounds and overflow behaviour.
    """

    def __init__(self, name: str, *, limits: QueueLimits) -> None:
        self.name = name
        self.limits = limits
        self._lock = threading.Lock()
        self._has_room = threading.Condition(self._lock)
        self._has_item = threading.Condition(self._lock)
        self._entries: deque[tuple[T, int]] = deque()
        self._nbytes = 0
        self._mark: Mark | None = None
        self._count = self._taken = self._dropped = 0
        self._put_wait, self._get_wait = _WaitClock(), _WaitClock()
        self._occupancy_max = self._nbytes_max = 0
        self._occupancy_integral = 0.0  # item-seconds, up to _changed_at
        self._created_at = self._changed_at = perf_counter()

    def put(
        self, item: T, *, nbytes: int = 0, timeout_seconds: float | None = None, more_follow: bool = False
    ) -> bool:
        """Append an item; if the queue is full, wait or drop the oldest.

        Args:
            item: The item.
            nbytes: Its size in bytes.
            more_follow: More items follow at once: do not wake a consumer for this one.
            timeout_seconds: Longest wait for room; None waits indefinitely.

        Returns:
            False if the queue was stopped and did not take the item.

        Raises:
            TimeoutError: There was no room within the timeout.
            RuntimeError: ``end`` was called before.
        """
        with self._lock:
            if self.limits.overflow == "drop_oldest":
                while self._is_full(nbytes):
                    self._remove_oldest()
                    self._dropped += 1
            elif self._is_full(nbytes) and self._mark is None:
                give_up_at = None if timeout_seconds is None else perf_counter() + timeout_seconds
                # Consumers notify, so only the main thread, which Ctrl-C reaches, has to poll.
                is_main = threading.get_ident() == threading.main_thread().ident
                look_up_seconds = INTERRUPT_CHECK_SECONDS if is_main else None
                with self._put_wait:
                    while self._is_full(nbytes) and self._mark is None:
                        self._has_item.notify()  # the consumer may still sleep until more items come
                        if not _wait(self._has_room, give_up_at, look_up_seconds):
                            raise TimeoutError(f"queue {self.name!r} had no room for {timeout_seconds:g} s")
            if self._mark is Mark.STOP:
                return False
            if self._mark is Mark.END:
                raise RuntimeError(f"queue {self.name!r} has ended; nothing can be put after that")
            self._note_change()
            self._entries.append((item, nbytes))
            self._nbytes += nbytes
            self._count += 1
            occupancy = len(self._entries)
            self._occupancy_max = max(self._occupancy_max, occupancy)
            self._nbytes_max = max(self._nbytes_max, self._nbytes)
            is_enough = not more_follow and occupancy >= min(self.limits.wake_items, self.limits.items)
            if is_enough and self._get_wait.waiting:  # notifying when nobody waits costs a third of a put
                self._has_item.notify(occupancy)
            return True

    def get(self, *, timeout_seconds: float | None = None) -> tuple[int, T] | Mark:
        """Take the oldest item, waiting for one if necessary.

        Args:
            timeout_seconds: Longest wait; 0 does not wait, None waits indefinitely.

        Returns:
            The item's position among those taken (from 0, without gaps: dropped items are not counted) and
            the item; ``Mark.END`` after the last one, ``Mark.STOP`` if the queue was stopped,
            ``Mark.NOTHING_YET`` on timeout.
        """
        with self._lock:
            if not self._entries and self._mark is None:
                give_up_at = None if timeout_seconds is None else perf_counter() + timeout_seconds
                with self._get_wait:
                    while not self._entries and self._mark is None:
                        if not _wait(self._has_item, give_up_at, INTERRUPT_CHECK_SECONDS):
                            return Mark.NOTHING_YET
            if self._mark is not None and not self._entries:
                return self._mark
            position = self._taken
            self._taken += 1
            item = self._remove_oldest()
            if self._put_wait.waiting:
                # Notify all, not one: producers wait for different amounts of room.
                self._has_room.notify_all()
            return position, item

    def relax(self, limits: QueueLimits) -> None:
        """Replace the limits and wake producers that wait for room."""
        with self._lock:
            self.limits = limits
            self._has_room.notify_all()
            self._has_item.notify_all()

    def end(self) -> None:
        """Mark the end: consumers take the remaining items, then get ``Mark.END``."""
        self._close(Mark.END)

    def stop(self) -> None:
        """Give up: drop queued items and wake all waiting threads. Overrides ``end``."""
        self._close(Mark.STOP)

    def report(self) -> QueueReport:
        """Measurements so far, from any thread."""
        with self._lock:
            self._note_change()
            lifetime = self._changed_at - self._created_at
            return QueueReport(
                name=self.name,
                count=self._count,
                dropped=self._dropped,
                put_wait_seconds=self._put_wait.seconds(),
                get_wait_seconds=self._get_wait.seconds(),
                occupancy=len(self._entries),
                occupancy_mean=self._occupancy_integral / lifetime if lifetime else 0.0,
                occupancy_max=self._occupancy_max,
                nbytes_max=self._nbytes_max,
            )

    def _is_full(self, nbytes: int) -> bool:
        if not self._entries:  # lets an item above the byte limit pass
            return False
        over_bytes = self.limits.nbytes is not None and self._nbytes + nbytes > self.limits.nbytes
        return over_bytes or len(self._entries) >= self.limits.items

    def _remove_oldest(self) -> T:
        self._note_change()
        item, nbytes = self._entries.popleft()
        self._nbytes -= nbytes
        return item

    def _note_change(self) -> None:
        if self._mark is not None and not self._entries:
            return  # the average covers the queue's life until it ended and was drained
        now = perf_counter()
        self._occupancy_integral += len(self._entries) * (now - self._changed_at)
        self._changed_at = now

    def _close(self, mark: Mark) -> None:
        with self._lock:
            self._note_change()
            if self._mark is not Mark.STOP:
                self._mark = mark
            if mark is Mark.STOP:
                self._entries.clear()
                self._nbytes = 0
            self._has_item.notify_all()
            self._has_room.notify_all()


def _wait(condition: threading.Condition, until: float | None, look_up_seconds: float | None) -> bool:
    """Wait for a notification; return False if the deadline (``perf_counter``) had passed before the wait."""
    if until is None:
        condition.wait(look_up_seconds)
        return True
    left = until - perf_counter()
    if left <= 0:
        return False
    condition.wait(left if look_up_seconds is None else min(left, look_up_seconds))
    return True


class _WaitClock:
    """Sums the time that any number of threads spend inside ``with``; guarded by the queue's lock."""

    def __init__(self) -> None:
        self._seconds = 0.0
        self.waiting = 0
        """Threads inside."""

    def __enter__(self) -> None:
        self._seconds -= perf_counter()
        self.waiting += 1

    def __exit__(self, *_: object) -> None:
        self._seconds += perf_counter()
        self.waiting -= 1

    def seconds(self) -> float:
        """The sum, including waits in progress."""
        return self._seconds + self.waiting * perf_counter()


class Turnstile:
    """Lets several workers through one at a time, in the order of the tickets they hold.

    A worker that finishes early waits for those before it, so a stage's results leave in the order of its
    items, and at most one result per worker is held.
    """

    def __init__(self) -> None:
        self._turn = threading.Condition(threading.Lock())
        self._next = 0
        self._stopped = False

    def enter(self, ticket: int) -> bool:
        """Wait until every lower ticket has left; return False if stopped."""
        with self._turn:
            while self._next != ticket and not self._stopped:
                self._turn.wait()
            return not self._stopped

    def leave(self) -> None:
        """Let the next ticket through."""
        with self._turn:
            self._next += 1
            self._turn.notify_all()

    def stop(self) -> None:
        """Wake all waiting threads."""
        with self._turn:
            self._stopped = True
            self._turn.notify_all()
