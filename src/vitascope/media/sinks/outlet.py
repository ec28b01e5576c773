"""A sink on a thread of its own: the newest picture wins, its failure is its own, and it can be tried again."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic
from types import TracebackType
from typing import Literal, Self

from vitascope.gpu.pipeline.report import Latency, LatencyHistogram
from vitascope.media.sinks.opening import Opening, State
from vitascope.media.sinks.sink import LivePicture, Sink, SinkFormat

__all__ = ["OutletReport", "SinkOutlet", "started_outlets"]

_CLOSE_SECONDS = 10.0
_OPEN_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class OutletReport:
    """What one sink did since it was last started."""

    name: str
    state: Literal["closed"] | State
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
    restarts: int = 0
    """How often it was tried again after it had failed."""
    earlier_error: str | None = None
    """Why it failed the time before, in one line; None when it did not."""

    @property
    def failure(self) -> str | None:
        """That it failed, and why, in one line; None when it did not."""
        if self.state != "failed":
            return None
        reason = self.error or "failed"
        return reason if reason.startswith(self.name) else f"{self.name}: {reason}"


class SinkOutlet:
    """One sink at work. A context manager. Thread-safe.

    Args:
        sink: Used by one thread at a time, the outlet's own.
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
        self._opening: Opening | None = None
        self._restarts = 0
        self._earlier_error: Exception | None = None

    @property
    def name(self) -> str:
        """The sink's."""
        return self._sink.name

    @property
    def error(self) -> Exception | None:
        """What ended it, if it failed."""
        return None if self._opening is None else self._opening.error

    @property
    def has_failed(self) -> bool:
        """True once it failed, until it is started again."""
        return self._opening is not None and self._opening.state == "failed"

    def start(self) -> None:
        """Open the sink, in the thread; also after it failed or was closed.

        Raises:
            OutputError: It is still open, and does not finish.
        """
        self.close()
        with self._lock:
            self._restarts, self._earlier_error = 0, None
            opening = self._opening = self._new_opening(None)
        opening.start()

    def restart(self) -> bool:
        """Try a sink that has failed once more, without waiting for it; False when it has not failed."""
        with self._lock:
            before = self._opening
            if before is None or before.state != "failed":
                return False
            self._restarts += 1
            self._earlier_error = before.error
            opening = self._opening = self._new_opening(before)
        opening.start()
        return True

    def _new_opening(self, before: Opening | None) -> Opening:
        def fail(error: Exception) -> None:
            if self._on_failure is not None:
                self._on_failure(self, error)

        return Opening(self._sink, self._made, before=before, on_failure=fail, threaded=self._threaded)

    def wait_open(self, *, timeout_seconds: float = _OPEN_SECONDS) -> None:
        """Wait until the sink is open; one that takes longer may still come.

        Raises:
            VitascopeError: It cannot be opened; what its ``open`` raises.
        """
        opening = self._opening
        if opening is None:
            return
        opening.is_decided.wait(timeout_seconds)
        if opening.error is not None:
            raise opening.error

    def offer(self, picture: LivePicture) -> None:
        """Hand over a picture without waiting; one that was not taken yet is dropped. A failed sink takes none."""
        opening = self._opening
        if opening is not None:
            opening.offer(picture)

    def end(self) -> None:
        """Let the sink take what waits and finish, without waiting for it; it takes nothing more."""
        if self._opening is not None:
            self._opening.end()

    def close(self, *, timeout_seconds: float = _CLOSE_SECONDS) -> None:
        """Let the sink take what waits, finish, and join its thread.

        Args:
            timeout_seconds: A sink that hangs for longer is left behind.

        Raises:
            OutputError: It hangs.
        """
        self.end()
        if not self._is_finished_by(monotonic() + timeout_seconds, allowed_seconds=timeout_seconds):
            assert self.error is not None  # it hangs
            raise self.error

    def _is_finished_by(self, until: float, *, allowed_seconds: float) -> bool:
        """Join the thread, until a moment of ``monotonic``; a sink that hangs has failed."""
        opening = self._opening
        if opening is None or opening.join(max(until - monotonic(), 0.0)):
            return True
        opening.give_up(allowed_seconds)
        return False

    def report(self) -> OutletReport:
        """What it did so far."""
        opening = self._opening
        nothing = LatencyHistogram.summary([])
        return OutletReport(
            name=self.name,
            state="closed" if opening is None else opening.state,
            sent=0 if opening is None else opening.sent,
            dropped=0 if opening is None else opening.dropped,
            send=nothing if opening is None else LatencyHistogram.summary([opening.send]),
            age=nothing if opening is None else LatencyHistogram.summary([opening.age]),
            error=_one_line(self.error),
            restarts=self._restarts,
            earlier_error=_one_line(self._earlier_error),
        )

    def __enter__(self) -> Self:
        """Start."""
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close."""
        self.close()


@contextmanager
def started_outlets(
    outlets: Sequence[SinkOutlet], *, timeout_seconds: float = _CLOSE_SECONDS
) -> Iterator[None]:
    """All sinks open for the length of a block; afterwards all are closed, at the same time.

    A sink that fails while it is closed, or hangs, has failed: its report says so, and nothing is raised for it.

    Args:
        outlets: Not started yet.
        timeout_seconds: What all of them together have for closing; who hangs for longer is left behind.

    Raises:
        VitascopeError: One cannot be opened; the others are closed again.
    """
    try:
        for outlet in outlets:
            outlet.start()
        for outlet in outlets:
            outlet.wait_open()
        yield
    finally:
        for outlet in outlets:
            outlet.end()
        until = monotonic() + timeout_seconds
        for outlet in outlets:
            outlet._is_finished_by(until, allowed_seconds=timeout_seconds)


def _one_line(error: Exception | None) -> str | None:
    return None if error is None else " ".join(str(error).split())
