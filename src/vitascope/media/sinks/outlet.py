"""A sink on its own thread: the newest picture wins, a failure stops no other sink, and it can be restarted."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic, perf_counter
from typing import Literal, Self

from vitascope.closing import Closing
from vitascope.errors import OutputError, VitascopeError
from vitascope.gpu.pipeline.queues import BoundedQueue, Mark, QueueLimits
from vitascope.gpu.pipeline.report import Latency, LatencyHistogram
from vitascope.media.sinks.sink import Attentive, LivePicture, Sink, SinkFormat

_NEWEST = QueueLimits(items=1, nbytes=None, overflow="drop_oldest")
_LET_GO_SECONDS = 5.0
"""Time for the previous thread to release its device."""
_ATTEND_SECONDS = 0.05
"""Time between calls of ``attend`` while no picture comes."""

State = Literal["starting", "running", "failed", "closed"]


class Opening:
    """Opens a sink, sends it pictures and closes it, on its own thread.

    Each opening has its own figures, so that an abandoned thread cannot change those of the next.

    Args:
        sink: The sink, used only by this thread once the previous one has ended.
        made: Format of the pictures.
        before: The previous opening, which failed.
        on_failure: Called from the thread if the sink fails.
        threaded: False runs the sink on the caller's thread.
    """

    def __init__(
        self,
        sink: Sink,
        made: SinkFormat,
        *,
        before: Opening | None,
        on_failure: Callable[[Exception], object],
        threaded: bool,
    ) -> None:
        self.state: State = "starting"
        self.error: Exception | None = None
        """The error that ended it; None if it did not fail."""
        self.sent = 0
        """Number of pictures that reached the sink."""
        self.send, self.age = LatencyHistogram(), LatencyHistogram()
        self.is_decided = threading.Event()
        """Set once it is open, or cannot be opened."""
        self._sink, self._made, self._on_failure = sink, made, on_failure
        self._before = before
        self._queue: BoundedQueue[LivePicture] = BoundedQueue(sink.name, limits=_NEWEST)
        self._lock = threading.Lock()
        self._turn = threading.Lock()  # held while a sink without a thread is busy
        self._takes = True
        self._thread: threading.Thread | None = None
        # On its own thread, catch even what a library should not raise; on the caller's thread, Ctrl-C is the
        # caller's.
        self._caught: type[BaseException] = BaseException if threaded else Exception
        if threaded:
            self._thread = threading.Thread(target=self._run, name=f"vitascope-sink-{sink.name}", daemon=True)

    @property
    def dropped(self) -> int:
        """Number of pictures replaced by newer ones before the sink took them."""
        return self._queue.report().dropped

    def start(self) -> None:
        """Open the sink."""
        if self._thread is not None:
            self._thread.start()
        else:
            self._open()

    def offer(self, picture: LivePicture) -> None:
        """Pass a picture without waiting."""
        if self._thread is None:
            with self._turn:
                if self.state == "running" and not self._guarded(lambda: self._take(picture)):
                    self._close()
            return
        with self._lock:
            if self._takes:
                self._queue.put(picture)

    def end(self) -> None:
        """Accept no more pictures, and finish the waiting ones."""
        with self._lock:
            self._takes = False
        self._queue.end()
        if self._thread is None and self.state == "running":
            self._close()

    def join(self, timeout_seconds: float) -> bool:
        """Wait until the sink is closed; False on timeout."""
        if self._thread is not None and self._thread.ident is not None:  # otherwise its start was interrupted
            self._thread.join(timeout_seconds)
        elif self._turn.acquire(timeout=timeout_seconds):
            self._turn.release()
        return not self._is_at_work()

    def give_up(self, allowed_seconds: float) -> None:
        """Abandon a sink that hangs; it counts as failed."""
        error = OutputError(f"{self._sink.name} did not finish within {allowed_seconds:g} seconds")
        self.error, self.state = error, "failed"

    def _is_at_work(self) -> bool:
        is_busy = self._turn.locked() if self._thread is None else self._thread.is_alive()
        return is_busy or self._waits_for_before()

    def _waits_for_before(self) -> bool:
        return self._before is not None and self._before._is_at_work()

    # --- in the thread ----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        if self._open():
            self._guarded(self._take_all)
            self._close()

    def _open(self) -> bool:
        """Open the sink; if that fails, close what was opened."""
        if self._before is not None and not self._before.join(_LET_GO_SECONDS):
            self._fail(OutputError(f"{self._sink.name} still hangs and cannot be started again"))
            return False
        self._before = None
        if not self._guarded(lambda: self._sink.open(self._made)):
            self._close()
            return False
        self.state = "running"
        self.is_decided.set()
        return True

    def _take_all(self) -> None:
        attend = self._sink.attend if isinstance(self._sink, Attentive) else None
        longest_wait = None if attend is None else _ATTEND_SECONDS
        while True:
            taken = self._queue.get(timeout_seconds=longest_wait)
            if not isinstance(taken, Mark):
                self._take(taken[1])
            elif taken is Mark.NOTHING_YET and attend is not None:
                attend()
            else:
                return

    def _take(self, picture: LivePicture) -> None:
        began = perf_counter()
        self._sink.send(picture)
        self.send.add(perf_counter() - began)
        self.age.add(max(monotonic() - picture.captured_seconds, 0.0))
        self.sent += 1

    def _close(self) -> None:
        try:
            self._sink.close()
        except self._caught as error:
            if self.error is None:  # otherwise the first error says more
                self._fail(error)
        if self.error is None:
            self.state = "closed"

    def _guarded(self, work: Callable[[], object]) -> bool:
        try:
            work()
        except self._caught as error:  # whatever the library raises, the other sinks continue
            self._fail(error)
        return self.error is None

    def _fail(self, error: BaseException) -> None:
        if not isinstance(error, VitascopeError):
            what = str(error) or type(error).__name__
            wrapped = OutputError(f"{self._sink.name} failed: {what}")
            wrapped.__cause__ = error
            error = wrapped
        with self._lock:
            self._takes = False
        self.error, self.state = error, "failed"
        self._queue.stop()
        self.is_decided.set()
        self._on_failure(error)


_CLOSE_SECONDS = 10.0
_OPEN_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class OutletReport:
    """The figures of a sink since it was last started."""

    name: str
    state: Literal["closed"] | State
    sent: int
    """Number of pictures that reached it."""
    dropped: int
    """Number of pictures replaced by newer ones before it took them."""
    send: Latency
    """Time to send a picture."""
    age: Latency
    """Time from capture until it had the picture."""
    error: str | None
    """Why it failed, in one line; None if it did not."""
    restarts: int = 0
    """Number of restarts after failures."""
    earlier_error: str | None = None
    """Why it failed before the last restart, in one line; None if it did not."""

    @property
    def failure(self) -> str | None:
        """Why it failed, in one line; None if it did not."""
        if self.state != "failed":
            return None
        reason = self.error or "failed"
        return reason if reason.startswith(self.name) else f"{self.name}: {reason}"


class SinkOutlet(Closing):
    """A running sink. A context manager. Thread-safe.

    Args:
        sink: The sink, used by one thread at a time, the outlet's own.
        made: Format of the pictures.
        on_failure: Called from the thread if the sink fails; it can be started again.
        threaded: False runs the sink in ``offer``, on the caller's thread: nothing is dropped, and a slow sink blocks
            all.
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
        self.on_failure = on_failure
        """As given."""
        self._lock = threading.Lock()
        self._opening: Opening | None = None
        self._restarts = 0
        self._earlier_error: Exception | None = None

    @property
    def name(self) -> str:
        """The sink's name."""
        return self._sink.name

    @property
    def error(self) -> Exception | None:
        """The error that ended it; None if it did not fail."""
        return None if self._opening is None else self._opening.error

    @property
    def has_failed(self) -> bool:
        """True once it failed, until it is started again."""
        return self._opening is not None and self._opening.state == "failed"

    def start(self) -> None:
        """Open the sink on its thread; also after it failed or was closed.

        Raises:
            OutputError: It is still open, and does not end.
        """
        self.close()
        with self._lock:
            self._restarts, self._earlier_error = 0, None
            opening = self._opening = self._new_opening(None)
        opening.start()

    def restart(self) -> bool:
        """Retry a failed sink, without waiting for it; False if it has not failed."""
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
            if self.on_failure is not None:
                self.on_failure(self, error)

        return Opening(self._sink, self._made, before=before, on_failure=fail, threaded=self._threaded)

    def wait_open(self) -> None:
        """Wait until the sink is open; after a timeout it may still open.

        Raises:
            VitascopeError: It cannot be opened; the error of its ``open``.
        """
        opening = self._opening
        if opening is None:
            return
        opening.is_decided.wait(_OPEN_SECONDS)
        if opening.error is not None:
            raise opening.error

    def offer(self, picture: LivePicture) -> None:
        """Pass a picture without waiting; it replaces one that still waits. A failed sink takes none."""
        opening = self._opening
        if opening is not None:
            opening.offer(picture)

    def end(self) -> None:
        """Let the sink finish its waiting pictures, without waiting for it; it accepts no more."""
        if self._opening is not None:
            self._opening.end()

    def close(self, *, timeout_seconds: float = _CLOSE_SECONDS) -> None:
        """Let the sink finish its waiting pictures, and join its thread.

        Args:
            timeout_seconds: Longest wait; then the sink is abandoned.

        Raises:
            OutputError: It hangs.
        """
        self.end()
        if not self._is_finished_by(monotonic() + timeout_seconds, allowed_seconds=timeout_seconds):
            assert self.error is not None  # set when it hangs
            raise self.error

    def _is_finished_by(self, until: float, *, allowed_seconds: float) -> bool:
        """Join the thread until a time on ``monotonic``; a sink that hangs has failed."""
        opening = self._opening
        if opening is None or opening.join(max(until - monotonic(), 0.0)):
            return True
        opening.give_up(allowed_seconds)
        return False

    def report(self) -> OutletReport:
        """The figures so far."""
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
        """Start the sink."""
        self.start()
        return self


@contextmanager
def started_outlets(
    outlets: Sequence[SinkOutlet], *, timeout_seconds: float = _CLOSE_SECONDS
) -> Iterator[None]:
    """Keep all sinks open while the block runs; then close them all, at the same time.

    A sink that hangs or fails while it is closed is reported as failed, without an error.

    Args:
        outlets: The sinks, not started yet.
        timeout_seconds: Time for closing all of them together; sinks that hang longer are abandoned.

    Raises:
        VitascopeError: A sink cannot be opened; the others are closed again.
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
