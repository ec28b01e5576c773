"""A clock that only moves when a test moves it, and knows when a worker sleeps."""

from __future__ import annotations

import time

from waiting import PATIENCE_SECONDS


class FakeClock:
    """``Clock`` whose time passes only in ``advance``; for batchers with one condition."""

    def __init__(self):
        self._now = 100.0
        self._condition = None
        self.alarms = []

    def now(self):
        return self._now

    def wait(self, condition, seconds):
        self._condition = condition
        self.alarms.append(seconds)
        condition.wait()  # only ``advance`` and the batcher end this

    def until_asleep(self, count=1):
        """Return when ``count`` threads sleep, and none of them has been woken."""
        patience = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < patience:
            if self._condition is not None:
                with self._condition:
                    if len(self._condition._waiters) >= count:  # a notified thread leaves this list at once
                        return
            time.sleep(0.001)
        raise AssertionError("nobody goes to sleep")

    def advance(self, seconds):
        """Let time pass, and wake all sleepers, as an alarm would."""
        with self._condition:
            self._now += seconds
            self._condition.notify_all()
