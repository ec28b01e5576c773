"""The cookie of a browser that opened the printed address: signed, valid for a week and over restarts.

It says when it was given, and proves that by an HMAC (RFC 2104) with a key in Vitascope's home, for its owner alone.
The address itself is a new one at each start. Removing the key shuts out every browser.
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

__all__ = ["COOKIE_SECONDS", "Entrance", "cookie_key"]

COOKIE_SECONDS: Final = 7 * 24 * 3600
_KEY_BYTES: Final = 32


class Entrance:
    """Gives cookies, and knows them again.

    Args:
        key: Secret bytes.
        port: Where the server listens: cookies of one host are shared by all its ports.
    """

    def __init__(self, key: bytes, *, port: int) -> None:
        self._key, self._port = key, port
        self.name: Final = f"vitascope-studio-{port}"
        """The cookie's name."""

    def cookie(self) -> str:
        """A new one: ``seconds.signature``, the seconds since 1970 at which it was given."""
        given_at = str(int(time.time()))
        return f"{given_at}.{self._signature(given_at)}"

    def knows(self, cookie: str) -> bool:
        """True for one that was given here in the last week."""
        given_at, _, signature = cookie.partition(".")
        is_ours = hmac.compare_digest(signature.encode(), self._signature(given_at).encode())
        return is_ours and 0 <= time.time() - int(given_at) < COOKIE_SECONDS

    def _signature(self, given_at: str) -> str:
        return hmac.digest(self._key, f"{self._port} {given_at}".encode(), "sha256").hex()


def cookie_key(path: Path) -> bytes:
    """The key in a file, which is made where there is none that can be used.

    Args:
        path: The file; its owner alone can read it.

    Raises:
        OutputError: It cannot be made.
    """
    with suppress(OSError):
        key = path.read_bytes()
        if len(key) == _KEY_BYTES:
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
