"""A sink on a thread of its own: the newest picture wins, and its failure is its own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic, perf_counter
from types import TracebackType
from typing import Literal, Self

from vitascope.errors import OutputError, VitascopeError
from vitascope.gpu.latency import Latency, LatencyHistogram
from vitascope.gpu.queues import BoundedQueue, Mark, QueueLimits
from vitascope.media.sinks.sink import LivePicture, Sink, SinkFormat

__all__ = ["OutletReport", "SinkOutlet"]

_NEWEST = QueueLimits(items=1, nbytes=None, overflow="drop_oldest")

State = Literal["starting", "running", "failed", "closed"]


@dataclass(frozen=True, slots=True)
class OutletReport:
    """What one sink did since it was last started."""

    name: str
    state: State
    sent: int
    """Pictures that reached it."""
    dropped: int
    """Pictures that newer ones replaced before it took them."""
    send: Latency
    """How long it takes a picture."""
    age: Latency
    """From capture until it had the picture."""
    error: str | None
    """Why it failed, in one line."""


class SinkOutlet:
    """One sink at work. A context manager.

    Args:
        sink: Used by the thread alone.
        made: What it will be given.
        on_failure: Told, from the thread, when the sink fails; it can be started again.
        threaded: False works in ``offer``, in the caller's thread: nothing is dropped, and a slow sink holds up all.
    """

    def __init__(
        self,
        sink: Sink,
        made: SinkFormat,
        *,
        on_failure: Callable[[SinkOutlet, Exception], object] | None = None,
        threaded: bool = True,
    ) -> None:
        self._threaded = threaded
        self._sink = sink
        self._made = made
        self._on_failure = on_failure
        self._lock = threading.Lock()
        self._is_open = threading.Event()
        self._thread: threading.Thread | None = None
        self._begin()

    def _begin(self) -> None:
        self._queue: BoundedQueue[LivePicture] = BoundedQueue(self._sink.name, limits=_NEWEST)
        self._state: State = "closed"
        self._is_open.clear()
        self._sent = 0
        self._send, self._age = LatencyHistogram(), LatencyHistogram()
        self.error: Exception | None = None
        """What ended it, if it failed."""

    @property
    def name(self) -> str:
        """The sink's."""
        return self._sink.name

    def start(self) -> None:
        """Open the sink, in the thread; also after it failed or was closed."""
        self.close()
        with self._lock:
            self._begin()
            self._state = "starting"
            if not self._threaded:
                self._guarded(self._open)
                return
            self._thread = threading.Thread(target=self._run, name=f"vitascope-sink-{self.name}", daemon=True)
            self._thread.start()

    def wait_open(self, *, timeout_seconds: float = 10.0) -> None:
        """Wait until the sink is open; one that takes longer may still come.

        Raises:
            VitascopeError: It cannot be opened; what its ``open`` raises.
        """
        self._is_open.wait(timeout_seconds)
        if self.error is not None:
            raise self.error

    @property
    def has_failed(self) -> bool:
        """True once it failed, until it is started again."""
        return self._state == "failed"

    def offer(self, picture: LivePicture) -> None:
        """Hand over a picture without waiting; one that was not taken yet is dropped. A failed sink takes none."""
        if self._state not in ("starting", "running"):
            return
        if self._threaded:
            self._queue.put(picture)
        else:
            self._guarded(lambda: self._take(picture))

    def close(self, *, timeout_seconds: float = 10.0) -> None:
        """Let the sink take what waits, finish, and join its thread.

        Args:
            timeout_seconds: A sink that hangs for longer is left behind.

        Raises:
            OutputError: It hangs.
        """
        with self._lock:
            thread, self._thread = self._thread, None
        if thread is None:
            if not self._threaded and self._state == "running":
                self._finish()
            return
        self._queue.end()
        thread.join(timeout_seconds)
        if thread.is_alive():
            self._state = "failed"
            raise OutputError(f"{self.name} did not finish within {timeout_seconds:g} seconds")

    def report(self) -> OutletReport:
        """What it did so far."""
        return OutletReport(
            name=self.name,
            state=self._state,
            sent=self._sent,
            dropped=self._queue.report().dropped,
            send=LatencyHistogram.summary([self._send]),
            age=LatencyHistogram.summary([self._age]),
            error=None if self.error is None else " ".join(str(self.error).split()),
        )

    def _run(self) -> None:
        self._guarded(self._open)
        if self.error is None:
            self._guarded(self._take_all)
        self._finish()

    def _open(self) -> None:
        self._sink.open(self._made)
        self._state = "running"
        self._is_open.set()

    def _take_all(self) -> None:
        while not isinstance(taken := self._queue.get(), Mark):
            self._take(taken[1])

    def _guarded(self, work: Callable[[], object]) -> None:
        try:
            work()
        except Exception as error:  # whatever its library raises, the other sinks go on
            self._fail(error)

    def _finish(self) -> None:
        try:
            self._sink.close()
        except Exception as error:
            if self.error is None:
                self._fail(error)
        if self.error is None:
            self._state = "closed"

    def _take(self, picture: LivePicture) -> None:
        began = perf_counter()
        self._sink.send(picture)
        self._send.add(perf_counter() - began)
        self._age.add(max(monotonic() - picture.captured_seconds, 0.0))
        self._sent += 1

    def _fail(self, error: Exception) -> None:
        if not isinstance(error, VitascopeError):
            wrapped = OutputError(f"{self.name} failed: {error}")
            wrapped.__cause__ = error
            error = wrapped
        self.error = error
        self._state = "failed"
        self._queue.stop()
        self._is_open.set()
        if self._on_failure is not None:
            self._on_failure(self, error)

    def __enter__(self) -> Self:
        """Start."""
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close."""
        self.close()
