"""Call a function at intervals on a thread."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Self

from vitascope.gpu.number_checks import check_count, check_number


def check_sampling(interval_seconds: float, *, least: float, keep_samples: int, device: str) -> None:
    """Check what samplers are asked for.

    Raises:
        ValueError: The interval is below the least or above an hour, fewer than two samples, or no such device.
    """
    check_number("interval_seconds", interval_seconds, least=least, most=3600)
    check_count("keep_samples", keep_samples, least=2)
    if device not in ("auto", "cuda", "cpu"):
        raise ValueError(f"device is 'auto', 'cuda' or 'cpu', not {device!r}")


class AtIntervals:
    """Calls a function at intervals on a thread of its own, until it is ended or the function fails.

    A context manager, or ``start`` and ``end``.

    Args:
        call: Called first when an interval has passed, or at the start, too.
        interval_seconds: Between the end of a call and the next.
    """

    def __init__(
        self, call: Callable[[], object], interval_seconds: float, *, name: str, at_start: bool = False
    ) -> None:
        self.failure: BaseException | None = None
        """The exception that ended the calls; the owner decides what to do with it."""
        self._interval_seconds = interval_seconds
        self._done = threading.Event()
        # A thread forgets its arguments when it ends; as an attribute, a method would hold its owner for ever.
        self._thread = threading.Thread(target=self._run, args=(call, at_start), name=name, daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def end(self) -> None:
        """Call no more, and wait for a call that goes on, unless this is it."""
        self._done.set()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def __enter__(self) -> Self:
        """Begin."""
        self.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """End.

        Raises:
            BaseException: What the function failed with, unless the block itself failed.
        """
        self.end()
        if error is None and self.failure is not None:
            raise self.failure

    def _run(self, call: Callable[[], object], at_start: bool) -> None:
        try:
            if at_start:
                call()
            while not self._done.wait(self._interval_seconds):
                call()
        except BaseException as error:
            self.failure = error
