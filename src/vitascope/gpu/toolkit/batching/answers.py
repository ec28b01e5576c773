"""How requests come to their end: with a result, an error, or withdrawn. Each ends once, and is counted."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import InvalidStateError
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from vitascope.errors import RequestRejectedError
from vitascope.gpu.toolkit.batching.requests import Clock, InferenceResponse, Promise
from vitascope.gpu.toolkit.batching.tally import BatchTally
from vitascope.gpu.toolkit.batching.waiting import Waiting

__all__ = ["Answers", "ComputedPart", "names_of"]

_NAMED = 8


@dataclass(frozen=True, slots=True, eq=False)
class ComputedPart:
    """One call of ``inference_fn`` that succeeded."""

    entries: Sequence[Waiting]
    results: Sequence[Any]
    """One for each entry."""
    rows: int
    """Rows of the call."""


class Answers:
    """Ends requests.

    Args:
        tally: Told of each.
        clock: The batcher's.
    """

    def __init__(self, tally: BatchTally, clock: Clock) -> None:
        self._tally = tally
        self._clock = clock

    def give(self, part: ComputedPart, *, began: float, ended: float) -> None:
        """Give each request of a call its result.

        Args:
            part: The call.
            began: When its batch was begun, in the clock's seconds.
            ended: When its results were there.
        """
        inference_ms = (ended - began) * 1e3
        given: list[tuple[Promise, InferenceResponse]] = []
        latency_seconds: list[float] = []
        queue_seconds: list[float] = []
        for entry, data in zip(part.entries, part.results, strict=True):
            if entry.future.done():  # stop gave it up
                continue
            request = entry.request
            queue_seconds.append(began - entry.arrived)
            latency_seconds.append(ended - request.timestamp)
            response = InferenceResponse(
                data,
                request.request_id,
                latency_seconds[-1] * 1e3,
                len(part.entries),
                queue_ms=queue_seconds[-1] * 1e3,
                inference_ms=inference_ms,
                padded_size=part.rows,
                stream_id=request.stream_id,
            )
            given.append((entry.future, response))
        self._tally.complete(latency_seconds=latency_seconds, queue_seconds=queue_seconds)
        for future, response in given:  # in one go: who has an answer wakes, and wants the interpreter's lock
            try:
                future.set_result(response)
            except InvalidStateError:  # stop has just given it up, and counted it
                self._tally.count(completed=-1)

    def expire(self, entries: Sequence[Waiting]) -> None:
        """Tell those whose deadline passed while they waited."""
        for entry in entries:
            if entry.future.set_running_or_notify_cancel():
                waited_ms = (self._clock.now() - entry.arrived) * 1e3
                self._tally.count(expired=1)
                entry.future.set_exception(
                    RequestRejectedError(
                        f"request {entry.request.request_id!r} waited {waited_ms:.1f} ms, past its level's deadline"
                    )
                )
            else:
                self._tally.count(cancelled=1)

    def fail(self, entries: Sequence[Waiting], error: BaseException) -> None:
        """Give all that have no answer yet the same error."""
        for entry in entries:
            if entry.future.done() and not entry.future.cancelled():
                continue
            if entry.future.running() or entry.future.set_running_or_notify_cancel():
                with suppress(InvalidStateError):  # it was answered meanwhile
                    entry.future.set_exception(error)
                    self._tally.count(failed=1)
            else:
                self._tally.count(cancelled=1)


def names_of(entries: Sequence[Waiting]) -> str:
    """The first requests' ids, for messages."""
    names = ", ".join(repr(entry.request.request_id) for entry in entries[:_NAMED])
    return f"{names}, ..." if len(entries) > _NAMED else names
