"""Files shared by several processes: a lock held by the operating system, and atomic writes.

The system drops the lock when its holder dies, however it dies, so a crashed download never blocks the next one. The
lock file itself stays: deleting it would let two processes lock two different files of the same name.
"""

from __future__ import annotations

import os
import secrets
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from vitascope.errors import OutputError

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

_POLL_SECONDS = 0.1


@contextmanager
def exclusive_lock(
    path: Path, *, on_wait: Callable[[], None] | None = None, poll_seconds: float = _POLL_SECONDS
) -> Iterator[IO[bytes]]:
    """Lock ``path`` exclusively, among processes and threads.

    Args:
        path: The lock file; created when absent.
        on_wait: Called each time that someone else was found to hold the lock.
        poll_seconds: Between two tries; a lock that is held for milliseconds wants shorter ones.

    Yields:
        The lock file, open for reading and writing: what its holder wants to tell the next one fits there.

    Raises:
        OSError: The lock file cannot be created, or its file system knows no locks.
    """
    # Neither "w", which would empty it, nor "a", which writes at the end only.
    with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o666), "r+b") as file:
        while not _try_lock(file):
            if on_wait is not None:
                on_wait()
            time.sleep(poll_seconds)
        try:
            yield file
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


def write_atomically(path: Path, content: bytes, *, mode: int = 0o600) -> None:
    """Write a file atomically: other processes see either the old or the complete new file. Creates its folder.

    Args:
        path: The file.
        content: All of it.
        mode: Its permissions, less what the process's umask takes; this user's alone when omitted, as caches are.

    Raises:
        OSError: It cannot be written; nothing is left behind.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{secrets.token_hex(8)}.part")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    handle = os.open(temporary, flags, mode)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())  # a power cut must not leave an empty file under the final name
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_file(path: Path, content: bytes) -> None:
    """Write a file for the user atomically, with permissions by the umask. Creates its folder.

    Raises:
        OutputError: It cannot be written.
    """
    try:
        write_atomically(path, content, mode=0o666)
    except OSError as error:
        raise OutputError(f"{path}: cannot be written: {error.strerror or error}") from error
    except ValueError as error:  # no name: a path such as "."
        raise OutputError(f"{path}: cannot be written: it names no file") from error
