"""Calls of a network on the host, one after another on a thread: what a CUDA stream is to those on a GPU."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from time import perf_counter, thread_time
from typing import Any

__all__ = ["HostCall", "HostStream"]


class HostCall:
    """A call that was launched."""

    __slots__ = ("_error", "_going", "_output", "_work", "seconds")

    def __init__(self, work: Callable[[], Any]) -> None:
        self.seconds = 0.0
        """How long it took, once it is over."""
        self._work: Callable[[], Any] | None = work
        self._output: Any = None
        self._error: BaseException | None = None
        self._going = threading.Lock()
        self._going.acquire()

    def wait(self) -> Any:
        """What it gave, once it is over; once only, because nothing of it is kept.

        Raises:
            BaseException: What it raised, or an earlier call on the stream.
        """
        with self._going:
            output, error, self._output, self._error = self._output, self._error, None, None
        if error is not None:
            raise error
        return output

    def run(self) -> BaseException | None:
        """Compute it; what it raised."""
        assert self._work is not None  # it runs once
        begun = perf_counter()
        try:
            self._output = self._work()
        except BaseException as error:  # told to whoever waits
            self._error = error
        self._work = None  # and what it was computed from
        self.seconds = perf_counter() - begun
        failure = self._error
        self._going.release()
        return failure

    def fail(self, error: BaseException) -> None:
        """Let it end without being computed."""
        self._work, self._error = None, error
        self._going.release()


class HostStream:
    """Computes calls in the order in which they are launched, without a pause between them.

    The thread does nothing else: whatever is to be done with an answer, others do while the next call goes on. After a
    call that failed no other is computed.
    """

    def __init__(self) -> None:
        self._calls: SimpleQueue[HostCall | None] = SimpleQueue()
        self._ended: BaseException | None = None
        self._cpu_seconds = 0.0
        self._thread = threading.Thread(target=self._run, name="vitascope-network", daemon=True)

    @property
    def cpu_seconds(self) -> float:
        """Processor time of its thread, up to the end of its last call."""
        return self._cpu_seconds

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def launch(self, work: Callable[[], Any]) -> HostCall:
        """Have something computed behind all that was launched before; from one thread."""
        call = HostCall(work)
        if self._ended is None:
            self._calls.put(call)
        else:
            call.fail(self._ended)
        return call

    def owns_current_thread(self) -> bool:
        """True inside a call."""
        return threading.current_thread() is self._thread

    def close(self) -> None:
        """Compute nothing more, and wait for the call that goes on."""
        if self._ended is None:
            self._ended = RuntimeError("the pipeline has ended")
        self._calls.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            if self._ended is not None:
                call.fail(self._ended)
            elif (error := call.run()) is not None:
                self._ended = error
            self._cpu_seconds = thread_time()
            del call  # or its answer would live on while this waits for the next
