"""A lock between processes, held on a file by the operating system.

The system drops the lock when its holder dies, however it dies, so a crashed download never blocks the next one. The
lock file itself stays: deleting it would let two processes lock two different files of the same name.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

__all__ = ["exclusive_lock"]

_POLL_SECONDS = 0.1


@contextmanager
def exclusive_lock(path: Path, *, on_wait: Callable[[], None] | None = None) -> Iterator[None]:
    """Hold ``path`` alone, among processes and among threads.

    Args:
        path: The lock file; created when absent.
        on_wait: Called about ten times a second while someone else holds the lock.

    Raises:
        OSError: The lock file cannot be created, or its file system knows no locks.
    """
    with path.open("a+b") as file:
        while not _try_lock(file):
            if on_wait is not None:
                on_wait()
            time.sleep(_POLL_SECONDS)
        try:
            yield
        finally:
            _unlock(file)


if sys.platform == "win32":

    def _try_lock(file: IO[bytes]) -> bool:
        file.seek(0)
        try:
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        except PermissionError:  # how Windows says that someone else holds it
            return False
        return True

    def _unlock(file: IO[bytes]) -> None:
        file.seek(0)
        msvcrt.locking(file.fileno(), msvcrt.LK_UNLCK, 1)

else:

    def _try_lock(file: IO[bytes]) -> bool:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _unlock(file: IO[bytes]) -> None:
        fcntl.flock(file, fcntl.LOCK_UN)
