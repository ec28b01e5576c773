"""Who is writing an output: a lock file beside it that the operating system holds, and drops when the writer dies.

A process id says nothing: containers count theirs from 1, so that the run after a crash often has the id of the
crashed one. The lock does not outlive its holder, however that ends. The file itself may; the next writer takes it
over.
"""

from __future__ import annotations

import errno
import os
import sys
from contextlib import suppress
from pathlib import Path

from vitascope.errors import OutputError

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

__all__ = ["WriterLock"]

_NO_LOCKS_HERE = frozenset({errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL})
"""What file systems say that know no locks, such as some network mounts."""


class WriterLock:
    """The right to write one output, among processes and among threads.

    Args:
        target: The output. Its folder exists.

    Raises:
        OutputError: Somebody is writing it.
        OSError: The lock file cannot be made.
    """

    def __init__(self, target: Path) -> None:
        self._path = target.absolute().with_name(f".{target.absolute().name}.lock")
        self.is_exclusive = True
        """False where the file system knows no locks: others may be writing, too."""
        self._descriptor: int | None = None
        while self._descriptor is None:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o666)
            try:
                self._lock(descriptor, target)
                # Whoever held it before may have removed the file between our opening and our locking it.
                if _is_still_named(descriptor, self._path):
                    self._descriptor = descriptor
            finally:
                if self._descriptor is None:
                    os.close(descriptor)

    def release(self) -> None:
        """Let others write; does nothing the second time."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is None:
            return
        if (
            sys.platform == "win32"
        ):  # removes no file that is open, and no file that the next writer has opened
            os.close(descriptor)
            with suppress(OSError):
                self._path.unlink()
        else:  # removed while it is locked: nobody can have locked the same file meanwhile
            with suppress(OSError):
                self._path.unlink()
            os.close(descriptor)

    def _lock(self, descriptor: int, target: Path) -> None:
        try:
            if sys.platform == "win32":
                msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
            else:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError) as error:
            raise OutputError(
                f"{target}: cannot create it: it is being written already; wait for the other run or end it"
            ) from error
        except OSError as error:
            if error.errno not in _NO_LOCKS_HERE:
                raise
            self.is_exclusive = False


def _is_still_named(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
