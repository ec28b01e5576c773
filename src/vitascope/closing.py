"""What belongs to one process: the context manager of everything that has a ``close``, and the guard against forks.

Threads stay behind when their process forks: what waits for them in the child would wait for ever.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from typing import NoReturn, Self

from vitascope.errors import UsageError


class Closing(ABC):
    """Base of a class that ``with`` closes in the end, whether the block failed or not."""

    __slots__ = ()

    @abstractmethod
    def close(self) -> None:
        """Free what it holds; idempotent."""

    def __reduce__(self) -> NoReturn:
        """Refuse to be pickled or copied: files, threads and sessions of networks belong to one process."""
        raise TypeError(
            f"{type(self).__name__} cannot be copied or pickled: what it holds open belongs to this process; "
            "open one in each"
        )

    def __enter__(self) -> Self:
        """Use as a context manager that closes it."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()


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
