"""Threads stay behind when their process forks: what waits for them in the child would wait for ever."""

from __future__ import annotations

import os

from vitascope.errors import UsageError


class OwnProcess:
    """The process that made an object; the object asks before it waits for a thread of its own.

    Args:
        what: The object, as messages call it.
    """

    __slots__ = ("_process_id", "_what")

    def __init__(self, what: str) -> None:
        self._what = what
        self._process_id = os.getpid()

    @property
    def is_current(self) -> bool:
        """False in a fork: what would end threads there, of ONNX Runtime or FFmpeg, waits for ever."""
        return os.getpid() == self._process_id

    def require(self) -> None:
        """Refuse to go on in a fork, before any lock is taken: a thread that stayed behind may hold it.

        Raises:
            UsageError: This process is a fork of the one that made the object.
        """
        if not self.is_current:
            raise UsageError(
                f"{self._what} was opened before this process was forked, and its threads stayed behind; "
                "open one in each process, or start processes with the method 'spawn'"
            )
