"""What is typed at the prompt, taken apart."""

from __future__ import annotations

import argparse
import shlex
from typing import NoReturn

from vitascope.errors import UsageError

__all__ = ["WordParser", "key_and_value", "nothing_more", "words_of"]


class WordParser(argparse.ArgumentParser):
    """Raises instead of leaving the program."""

    def __init__(self, usage: str) -> None:
        super().__init__(prog="", usage=usage, add_help=False, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        """Say what is wrong.

        Raises:
            UsageError: Always.
        """
        raise UsageError(f"{message}; usage: {self.usage}")


def words_of(line: str) -> list[str]:
    """The words of a line; quotes hold words together, ``#`` begins a comment.

    Raises:
        UsageError: A quote is not closed.
    """
    try:
        return shlex.split(line, comments=True)
    except ValueError as error:
        raise UsageError(f"{line.strip()}: {error}") from error


def key_and_value(words: list[str]) -> tuple[str, str]:
    """``key value`` or ``key=value``; empty where something is missing."""
    if "=" in " ".join(words[:1]):
        key, _, value = " ".join(words).partition("=")
        return key, value
    return (words[0], " ".join(words[1:])) if words else ("", "")


def nothing_more(words: list[str], name: str) -> None:
    """Check that a command stands alone.

    Raises:
        UsageError: Something follows it.
    """
    if words:
        raise UsageError(f"{name} takes nothing more, not {words[0]!r}")
