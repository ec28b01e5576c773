"""Packets of a stream, read by a thread of their own."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from queue import SimpleQueue
from typing import Generic, Self, TypeVar

__all__ = ["PacketsAhead"]

_PacketT = TypeVar("_PacketT")

_MOST_AHEAD = 32
_TAKEN_AT_A_TIME = 8
"""So many packets are taken before the reading thread is told: each time it wakes, it wants the interpreter."""


class _End:
    """Behind the last packet.

    Args:
        error: What ended the reading, if not the stream's end.
    """

    def __init__(self, error: BaseException | None) -> None:
        self.error = error


class PacketsAhead(Generic[_PacketT]):
    """Gives what an iterator gives, up to 32 packets after it was read.

    Each packet that is read takes the interpreter from the reading thread and gives it back later. A GPU decoder has a
    picture ready every millisecond, and the thread that feeds it must not wait for that, too.

    Args:
        packets: Used by the reading thread alone until ``close`` returns.
    """

    def __init__(self, packets: Iterable[_PacketT]) -> None:
        self._packets = iter(packets)
        self._read: SimpleQueue[_PacketT | _End] = SimpleQueue()
        # One entry for each time that the thread may read on; a queue and no semaphore, which is written in Python.
        self._room: SimpleQueue[None] = SimpleQueue()
        for _ in range(_MOST_AHEAD // _TAKEN_AT_A_TIME):
            self._room.put(None)
        self._taken = 0
        self._is_over = False
        self._thread = threading.Thread(target=self._run, name="vitascope-packets", daemon=True)
        self._thread.start()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> _PacketT:
        """The next packet.

        Raises:
            Exception: What the iterator raised, in its place.
        """
        if self._is_over:
            raise StopIteration
        packet = self._read.get()
        if isinstance(packet, _End):
            self._is_over = True
            raise StopIteration if packet.error is None else packet.error
        self._taken += 1
        if self._taken == _TAKEN_AT_A_TIME:
            self._taken = 0
            self._room.put(None)
        return packet

    def close(self) -> None:
        """End the thread, after the packet that it may be reading; idempotent."""
        self._is_over = True
        self._room.put(None)
        self._thread.join()

    def _run(self) -> None:
        error: BaseException | None = None
        try:
            for packet in self._allowed():
                self._read.put(packet)
        except BaseException as caught:  # raised again where the packets are taken
            error = caught
        self._read.put(_End(error))

    def _allowed(self) -> Iterator[_PacketT]:
        while True:
            self._room.get()
            for _ in range(_TAKEN_AT_A_TIME):
                if self._is_over:
                    return
                try:
                    packet = next(self._packets)
                except StopIteration:
                    return
                yield packet
