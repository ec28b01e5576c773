"""Bytes that wait for their turn: in memory while they are few, on disk when they are many."""

from __future__ import annotations

import os
import tempfile
import threading
from collections import deque
from pathlib import Path
from typing import BinaryIO, cast

from vitascope.media.libav import wrap_output_error

__all__ = ["Spool"]

_MOST_BYTES_IN_MEMORY = 64 << 20


class Spool:
    """A first-in first-out queue of byte strings that never makes the one who puts wait.

    What exceeds the memory goes to a nameless file, which the system removes even when the process is killed. One
    thread puts, one takes.

    Args:
        folder: Where the file is made, if one is needed; on the disk that the output goes to.
        target: The output, for messages.
        changed: Notified when something was put; ``take`` waits on it. Others may share it.
        most_bytes: That wait in memory.
    """

    def __init__(
        self,
        folder: Path,
        *,
        target: Path,
        changed: threading.Condition,
        most_bytes: int = _MOST_BYTES_IN_MEMORY,
    ) -> None:
        self._folder = folder
        self._target = target
        self._changed = changed
        self._most_bytes = most_bytes
        self._in_memory: deque[bytes] = deque()
        self._bytes_in_memory = 0
        self._file: BinaryIO | None = None
        self._on_disk: deque[int] = deque()  # lengths of what lies in the file, from the read position on
        self._read_at = self._write_at = 0
        self._is_ended = False

    def put(self, content: bytes) -> None:
        """Append.

        Raises:
            OutputError: The disk is full, or failed.
        """
        with self._changed:
            if self._on_disk or self._bytes_in_memory + len(content) > self._most_bytes:
                self._to_disk(content)
            else:
                self._in_memory.append(content)
                self._bytes_in_memory += len(content)
            self._changed.notify_all()

    def end(self) -> None:
        """Say that nothing more comes."""
        with self._changed:
            self._is_ended = True
            self._changed.notify_all()

    def has_news(self) -> bool:
        """True when ``take`` does not wait; call with ``changed`` held."""
        return bool(self._in_memory or self._on_disk) or self._is_ended

    def take(self) -> bytes | None:
        """The oldest content; None at the end. Call when ``has_news``.

        Raises:
            OutputError: The disk failed.
        """
        with self._changed:
            if self._in_memory:
                content = self._in_memory.popleft()
                self._bytes_in_memory -= len(content)
                return content
            return self._from_disk() if self._on_disk else None

    def close(self) -> None:
        """Drop everything. Idempotent."""
        with self._changed:
            self._in_memory.clear()
            self._on_disk.clear()
            file, self._file = self._file, None
            if file is not None:
                file.close()

    def _to_disk(self, content: bytes) -> None:
        with wrap_output_error(self._target, "keep what waits for its turn"):
            if self._file is None:
                self._file = cast("BinaryIO", tempfile.TemporaryFile(dir=self._folder, buffering=0))  # noqa: SIM115 - closed with the spool
            self._file.seek(self._write_at)
            view = memoryview(content)
            while view:
                view = view[self._file.write(view) :]
            self._write_at += len(content)
            self._on_disk.append(len(content))

    def _from_disk(self) -> bytes:
        assert self._file is not None  # something was written to it
        length = self._on_disk.popleft()
        with wrap_output_error(self._target, "read what waited for its turn"):
            self._file.seek(self._read_at)
            parts = []
            while length and (part := self._file.read(length)):
                parts.append(part)
                length -= len(part)
            if length:
                raise OSError("the file is shorter than what was written to it")
            self._read_at += sum(map(len, parts))
            if not self._on_disk:  # all was read: use the room again
                self._read_at = self._write_at = 0
                os.ftruncate(self._file.fileno(), 0)
        return b"".join(parts)
