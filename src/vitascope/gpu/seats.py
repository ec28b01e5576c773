"""A CUDA stream for each thread of a pipeline's stage."""

from __future__ import annotations

import threading
from contextlib import ExitStack

from vitascope.device import Device
from vitascope.gpu.batching.lanes import Lane, open_lanes

__all__ = ["Seats"]


class Seats:
    """Gives each thread of a stage a CUDA stream of its own, for as long as the thread works; nothing on a CPU.

    Args:
        device: Where.
        count: Threads.
    """

    def __init__(self, device: Device, count: int) -> None:
        self._free = open_lanes(device, count)
        self._lock = threading.Lock()
        self._mine = threading.local()

    @property
    def lane(self) -> Lane:
        """The calling thread's."""
        lane: Lane = self._mine.lane
        return lane

    def take(self) -> None:
        """Work on a stream from here on; a stage's ``open``."""
        with self._lock:
            lane = self._free.pop()
        with ExitStack() as stack:
            stack.enter_context(lane.entered())
            self._mine.lane, self._mine.leaving = lane, stack.pop_all()

    def leave(self) -> None:
        """Go back; a stage's ``close``."""
        lane, leaving = self._mine.lane, self._mine.leaving
        if lane.stream is not None:
            lane.stream.synchronize()
        leaving.close()
        with self._lock:
            self._free.append(lane)
