"""The cookie of a browser that opened the printed address: signed, valid for a week and over restarts.

It says when it was given, and proves that by an HMAC (RFC 2104) with a key in Vitascope's home, for its owner alone.
The address itself is a new one at each start. Removing the key shuts out every browser, at once.
"""

from __future__ import annotations

import hmac
import os
import secrets
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from vitascope.errors import OutputError

COOKIE_SECONDS: Final = 7 * 24 * 3600
_KEY_BYTES: Final = 32


class Entrance:
    """Gives cookies, and knows them again.

    Args:
        key_file: Holds the key; made if it does not exist.
        port: Where the server listens: cookies of one host are shared by all its ports.

    Raises:
        OutputError: The key cannot be made.
    """

    def __init__(self, key_file: Path, *, port: int) -> None:
        self._key_file, self._port = key_file, port
        self._key, self._key_is = cookie_key(key_file), _state_of(key_file)
        self.name: Final = f"vitascope-studio-{port}"
        """The cookie's name."""

    def cookie(self) -> str:
        """A new one: ``seconds.signature``, the seconds since 1970 at which it was given."""
        self._take_key()
        given_at = str(int(time.time()))
        return f"{given_at}.{self._signature(given_at)}"

    def knows(self, cookie: str) -> bool:
        """True for one that was given here in the last week."""
        self._take_key()
        given_at, _, signature = cookie.partition(".")
        is_ours = hmac.compare_digest(signature.encode(), self._signature(given_at).encode())
        return is_ours and 0 <= time.time() - int(given_at) < COOKIE_SECONDS

    def _take_key(self) -> None:
        """Take the key anew where somebody removed or changed its file."""
        if _state_of(self._key_file) != self._key_is:
            self._key = secrets.token_bytes(_KEY_BYTES)  # nobody has it, should there be no other
            self._key_is = None
            with suppress(OutputError):
                self._key = cookie_key(self._key_file)
                self._key_is = _state_of(self._key_file)

    def _signature(self, given_at: str) -> str:
        return hmac.digest(self._key, f"{self._port} {given_at}".encode(), "sha256").hex()


def cookie_key(path: Path) -> bytes:
    """Read the key from its file, which is made anew unless it is usable: a key that others could read is not.

    Args:
        path: The file; its owner alone can read it.

    Raises:
        OutputError: It cannot be made.
    """
    with suppress(OSError):
        with path.open("rb") as file:
            is_secret = os.name == "nt" or not os.fstat(file.fileno()).st_mode & 0o077
            key = file.read(_KEY_BYTES + 1)
        if is_secret and len(key) == _KEY_BYTES:
            return key
    key = secrets.token_bytes(_KEY_BYTES)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(key)
    except OSError as error:
        raise OutputError(f"{path}: cannot be made: {error.strerror or error}") from error
    return key


def _state_of(path: Path) -> tuple[int, ...] | None:
    """Tells one state of a file from another; None where it is not there."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size, status.st_mode
