"""The context manager of everything that has a ``close``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NoReturn, Self


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
