"""What is wrong with a command line, in the words of who typed it."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any, get_args, get_origin

from cyclopts import (
    CoercionError,
    CycloptsError,
    MissingArgumentError,
    UnknownCommandError,
    UnknownOptionError,
    UnusedCliTokensError,
)

__all__ = ["in_words"]


def in_words(error: CycloptsError) -> str:
    """One line for people: cyclopts speaks of types and tokens where a word is missing, wrong or one too many."""
    command = " ".join(error.command_chain or ())
    see_help = f"see vitascope {command} --help"
    if isinstance(error, UnknownCommandError) and error.unused_tokens and error.app is not None:
        return _unknown_command(error.unused_tokens[0], [name for name in error.app if name[0] != "-"])
    if isinstance(error, MissingArgumentError) and error.argument is not None:
        name = error.argument.name
        what = name if name.startswith("-") else name.upper()
        return f"{command}: {what} is missing; {see_help}"
    if isinstance(error, UnusedCliTokensError) and error.unused_tokens:
        return f"{command}: there is no place for {' '.join(error.unused_tokens)!r}; {see_help}"
    if isinstance(error, UnknownOptionError) and command and "Did you mean" not in str(error):
        return f"{command}: {str(error).rstrip('.')}; {see_help}"
    if isinstance(error, CoercionError) and error.token is not None:
        choices = _choices(error.target_type)
        if choices:
            return f"{error.token.keyword}: {error.token.value!r} is none of {', '.join(choices)}"
    return str(error)


def _unknown_command(word: str, commands: list[str]) -> str:
    if word.startswith("-"):
        return f"{word}: there is no such option here; commands are {', '.join(commands)}"
    close = get_close_matches(word, commands, n=1)
    if close:
        return f"there is no command {word!r}; did you mean {close[0]}?"
    return f"there is no command {word!r}; there are {', '.join(commands)}"


def _choices(kind: Any) -> list[str]:
    """The words of a ``Literal``, also inside a union or a list."""
    if get_origin(kind) is None:
        return []
    words: list[str] = []
    for part in get_args(kind):
        words += [part] if isinstance(part, str) else _choices(part)
    return words
