"""One time that a sink is open, from opening to closing, with its thread and its figures."""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import monotonic, perf_counter
from typing import Literal

from vitascope.errors import OutputError, VitascopeError
from vitascope.gpu.pipeline.queues import BoundedQueue, Mark, QueueLimits
from vitascope.gpu.pipeline.report import LatencyHistogram
from vitascope.media.sinks.sink import Attentive, LivePicture, Sink, SinkFormat

__all__ = ["Opening", "State"]

_NEWEST = QueueLimits(items=1, nbytes=None, overflow="drop_oldest")
_LET_GO_SECONDS = 5.0
"""For the time before to give its device back."""
_ATTEND_SECONDS = 0.05
"""Between two looks at what a sink has to do while no picture comes."""

State = Literal["starting", "running", "failed", "closed"]


class Opening:
    """Opens a sink, gives it pictures and closes it, in a thread of its own.

    Each time has its own figures, so that a thread that was left behind cannot change those of the next time.

    Args:
        sink: Used by the thread alone, once the time before is over.
        made: What it will be given.
        before: The time before this one; it failed.
        on_failure: Told, from the thread, when the sink fails.
        threaded: False works in the caller's thread.
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
        """What ended it, if it failed."""
        self.sent = 0
        """Pictures that reached the sink."""
        self.send, self.age = LatencyHistogram(), LatencyHistogram()
        self.is_decided = threading.Event()
        """Set when it is open, or cannot be opened."""
        self._sink, self._made, self._on_failure = sink, made, on_failure
        self._before = before
        self._queue: BoundedQueue[LivePicture] = BoundedQueue(sink.name, limits=_NEWEST)
        self._lock = threading.Lock()
        self._turn = threading.Lock()  # held while a sink without a thread is at work
        self._takes = True
        self._thread: threading.Thread | None = None
        # Of a library's thread of work, also what it should not raise; in the caller's own, Ctrl-C is the caller's.
        self._caught: type[BaseException] = BaseException if threaded else Exception
        if threaded:
            self._thread = threading.Thread(target=self._run, name=f"vitascope-sink-{sink.name}", daemon=True)

    @property
    def dropped(self) -> int:
        """Pictures that newer ones replaced before the sink took them."""
        return self._queue.report().dropped

    def start(self) -> None:
        """Open the sink."""
        if self._thread is not None:
            self._thread.start()
        else:
            self._open()

    def offer(self, picture: LivePicture) -> None:
        """Hand over a picture without waiting."""
        if self._thread is None:
            with self._turn:
                if self.state == "running" and not self._guarded(lambda: self._take(picture)):
                    self._close()
            return
        with self._lock:
            if self._takes:
                self._queue.put(picture)

    def end(self) -> None:
        """Take nothing more; finish once what waits was taken."""
        with self._lock:
            self._takes = False
        self._queue.end()
        if self._thread is None and self.state == "running":
            self._close()

    def join(self, timeout_seconds: float) -> bool:
        """Wait until the sink is closed; False when that takes longer."""
        if self._thread is not None and self._thread.ident is not None:  # or its start was interrupted
            self._thread.join(timeout_seconds)
        elif self._turn.acquire(timeout=timeout_seconds):
            self._turn.release()
        return not self._is_at_work()

    def give_up(self, allowed_seconds: float) -> None:
        """Leave a sink that hangs behind: it has failed."""
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
        """Open the sink; where that fails, close what is open of it."""
        if self._before is not None and not self._before.join(_LET_GO_SECONDS):
            self._fail(OutputError(f"{self._sink.name} still hangs; it cannot be started again"))
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
            if self.error is None:  # else what was lost first says more
                self._fail(error)
        if self.error is None:
            self.state = "closed"

    def _guarded(self, work: Callable[[], object]) -> bool:
        try:
            work()
        except self._caught as error:  # whatever its library raises, the other sinks go on
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
