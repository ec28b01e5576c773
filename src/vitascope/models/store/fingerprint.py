"""Knowing a file's sha256 without reading it again.

Hashing is done once; the result is written into a stamp file beside the file, with the size, modification time and
inode it holds for. The stamp guards against damage and mix-ups, not against somebody who may write in the directory:
that one could as well replace the program.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

__all__ = ["Fingerprint"]

_MAX_STAMP_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """A file's sha256, and what tells that the file is still the one that was hashed."""

    sha256: str
    """Lower-case hexadecimal digest of the whole file."""
    size_bytes: int
    mtime_ns: int
    inode: int

    @classmethod
    def of(cls, path: Path) -> Fingerprint:
        """Read and hash the whole file.

        Raises:
            OSError: The file is not there, or cannot be read.
        """
        with path.open("rb") as file:
            # Taken before reading, so that a change while reading is noticed the next time.
            stat = os.fstat(file.fileno())
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        return cls(sha256, stat.st_size, stat.st_mtime_ns, stat.st_ino)

    def describes(self, stat: os.stat_result) -> bool:
        """True when a file in this state need not be hashed again."""
        return (self.size_bytes, self.mtime_ns, self.inode) == (stat.st_size, stat.st_mtime_ns, stat.st_ino)

    @classmethod
    def read_stamp(cls, stamp: Path) -> Fingerprint | None:
        """What a stamp file says, or None when it is absent or damaged: then the file has to be hashed."""
        try:
            with stamp.open("rb") as file:
                return cls(**json.loads(file.read(_MAX_STAMP_BYTES)))
        except (OSError, ValueError, TypeError, RecursionError):
            return None

    def write_stamp(self, stamp: Path) -> None:
        """Write the stamp file, whole or not at all.

        Raises:
            OSError: It cannot be written.
        """
        temporary = stamp.with_name(f"{stamp.name}.{os.getpid()}")
        try:
            temporary.write_text(json.dumps(asdict(self)) + "\n", encoding="utf-8")
            temporary.replace(stamp)
        finally:
            temporary.unlink(missing_ok=True)
