"""Call a function at intervals on a thread."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Self

from vitascope.gpu.number_checks import check_count, check_number


def check_sampling(interval_seconds: float, *, least: float, keep_samples: int, device: str) -> None:
    """Check the arguments of samplers.

    Raises:
        ValueError: The interval is too short or above an hour, fewer than two samples are kept, or the device is
            unknown.
    """
    check_number("interval_seconds", interval_seconds, least=least, most=3600)
    check_count("keep_samples", keep_samples, least=2)
    if device not in ("auto", "cuda", "cpu"):
        raise ValueError(f"device is 'auto', 'cuda' or 'cpu', not {device!r}")


class AtIntervals:
    """Calls a function at intervals on its own thread, until stopped or until the function fails.

    Use it as a context manager, or with ``start`` and ``end``.

    Args:
        call: The function; first called after one interval, or also at the start.
        interval_seconds: Time from the end of a call to the next.
    """

    def __init__(
        self, call: Callable[[], object], interval_seconds: float, *, name: str, at_start: bool = False
    ) -> None:
        self.failure: BaseException | None = None
        """The exception that ended the calls; the owner handles it."""
        self._interval_seconds = interval_seconds
        self._done = threading.Event()
        # A thread forgets its arguments when it ends; as an attribute, a bound method would keep its owner alive.
        self._thread = threading.Thread(target=self._run, args=(call, at_start), name=name, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def end(self) -> None:
        """End the calls, and wait for a running one, unless called from it."""
        self._done.set()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def __enter__(self) -> Self:
        """Start the calls."""
        self.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """End the calls.

        Raises:
            BaseException: The function's exception, unless the block itself failed.
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
