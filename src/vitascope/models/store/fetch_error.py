"""What a fetch may be told, and how it fails: all that the store needs of fetching until it fetches something."""

from __future__ import annotations

import textwrap
from collections.abc import Callable

Progress = Callable[[int, int], None]
"""Called with the bytes here so far and the bytes in all."""

STALL_SECONDS = 30.0
"""The time that a server may keep silent before the connection is given up."""


class FetchError(Exception):
    """One source could not give the file; the store tries the next, and never lets this error out.

    Attributes:
        resumable: The connection broke on the way, so that asking for the rest may help.
    """

    def __init__(self, reason: str, *, resumable: bool = False) -> None:
        super().__init__(textwrap.shorten(reason, 200, placeholder=" …"))
        self.resumable = resumable
