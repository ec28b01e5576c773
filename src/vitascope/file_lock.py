"""Files shared by several processes: a lock held by the operating system, and atomic writes.

The system releases the lock when its holder dies, however that happens, so a crashed download never blocks the next
one. The lock file itself stays: if it were deleted, two processes could lock two different files of the same name.
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
        path: The lock file; created if missing.
        on_wait: Called after each attempt that finds the lock taken.
        poll_seconds: Time between attempts; a lock held for milliseconds needs less.

    Yields:
        The lock file, open for reading and writing: its holder can leave a message for the next one in it.

    Raises:
        OSError: The lock file cannot be created, or its file system does not support locks.
    """
    # Not "w", which would empty the file, nor "a", which only writes at the end.
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
        except PermissionError:  # Windows reports a held lock like this
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
        content: Its whole content.
        mode: Its permissions before the process's umask; by default only for this user, as for caches.

    Raises:
        OSError: It cannot be written; no partial file is left.
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
    except ValueError as error:  # not a file name: a path such as "."
        raise OutputError(f"{path}: cannot be written: it names no file") from error
