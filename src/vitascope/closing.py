"""A context manager for everything with a ``close``, and a guard against use in a forked process.

Threads do not survive a fork: in the child process, anything that waits for them would wait for ever.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from typing import NoReturn, Self

from vitascope.errors import UsageError


class Closing(ABC):
    """Base class for context managers that call ``close`` on leaving."""

    __slots__ = ()

    @abstractmethod
    def close(self) -> None:
        """Free all resources; idempotent."""

    def __reduce__(self) -> NoReturn:
        """Refuse to be pickled or copied: files, threads and network sessions belong to one process."""
        raise TypeError(
            f"{type(self).__name__} cannot be copied or pickled: what it holds open belongs to this process; "
            "open one in each"
        )

    def __enter__(self) -> Self:
        """Enter the context."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()


class OwnProcess:
    """Remembers the process that created an object, so that the object can check before waiting for its threads.

    Args:
        what: Name of the object in messages.
    """

    __slots__ = ("_process_id", "_what")

    def __init__(self, what: str) -> None:
        self._what = what
        self._process_id = os.getpid()

    @property
    def is_current(self) -> bool:
        """False in a forked process, where ending threads of ONNX Runtime or FFmpeg would hang."""
        return os.getpid() == self._process_id

    def require(self) -> None:
        """Raise in a forked process, before taking any lock: a thread missing here may hold it.

        Raises:
            UsageError: This process was forked from the one that created the object.
        """
        if not self.is_current:
            raise UsageError(
                f"{self._what} was opened before this process was forked, and its threads stayed behind; "
                "open one in each process, or start processes with the method 'spawn'"
            )
