"""The response to one request whose thread stands still until it is there: what a future is, without its price."""

from __future__ import annotations

from concurrent.futures import Future, InvalidStateError
from threading import Lock
from typing import Literal, TypeAlias

from vitascope.gpu.batching.requests import InferenceResponse

__all__ = ["Promise", "Reply"]


class Reply:
    """One response to be, waited for by one thread.

    The methods that a batcher calls are those of ``concurrent.futures.Future``. It has no callbacks and no list of
    those who wait: a lock that the worker opens is all, at a fifth of a future's cost (``benchmarks/host_cost.py``).
    """

    __slots__ = ("_answered", "_error", "_guard", "_response", "_state")

    def __init__(self) -> None:
        self._guard = Lock()
        self._answered = Lock()
        self._answered.acquire()
        self._state: Literal["waiting", "running", "cancelled", "done"] = "waiting"
        self._response: InferenceResponse | None = None
        self._error: BaseException | None = None

    def wait(self, seconds: float | None) -> bool:
        """Wait for the end, at most so long; False when it has not come. True once only."""
        return self._answered.acquire(timeout=-1 if seconds is None else seconds)

    def result(self) -> InferenceResponse:
        """The response, after ``wait`` said True.

        Raises:
            BaseException: What it was answered with instead.
        """
        if self._error is not None:
            raise self._error
        assert self._response is not None  # one of the two is there
        return self._response

    def done(self) -> bool:
        """True when it was answered or withdrawn."""
        return self._state in ("done", "cancelled")

    def running(self) -> bool:
        """True while its call goes on."""
        return self._state == "running"

    def cancelled(self) -> bool:
        """True when it was withdrawn."""
        return self._state == "cancelled"

    def cancel(self) -> bool:
        """Withdraw the request; False when its call has begun."""
        with self._guard:
            if self._state == "waiting":
                self._state = "cancelled"
            return self._state == "cancelled"

    def set_running_or_notify_cancel(self) -> bool:
        """Its call begins; False when it was withdrawn."""
        with self._guard:
            if self._state == "waiting":
                self._state = "running"
            return self._state == "running"

    def set_result(self, response: InferenceResponse) -> None:
        """Answer.

        Raises:
            InvalidStateError: It was answered or withdrawn before.
        """
        self._end(response, None)

    def set_exception(self, error: BaseException) -> None:
        """Answer with an error.

        Raises:
            InvalidStateError: It was answered or withdrawn before.
        """
        self._end(None, error)

    def _end(self, response: InferenceResponse | None, error: BaseException | None) -> None:
        with self._guard:
            if self._state in ("done", "cancelled"):
                raise InvalidStateError(f"the request was {self._state}")
            self._response, self._error, self._state = response, error, "done"
        self._answered.release()


Promise: TypeAlias = "Future[InferenceResponse] | Reply"
"""What a batcher answers."""
