"""What is wrong with a command line, in the words of who typed it."""

from __future__ import annotations

from typing import Any, get_args, get_origin

from cyclopts import (
    CoercionError,
    CycloptsError,
    MissingArgumentError,
    UnknownOptionError,
    UnusedCliTokensError,
)

__all__ = ["in_words"]


def in_words(error: CycloptsError) -> str:
    """One line for people: cyclopts speaks of types and tokens where a word is missing, wrong or one too many."""
    command = " ".join(error.command_chain or ())
    see_help = f"see vitascope {command} --help"
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


def _choices(kind: Any) -> list[str]:
    """The words of a ``Literal``, also inside a union or a list."""
    if get_origin(kind) is None:
        return []
    words: list[str] = []
    for part in get_args(kind):
        words += [part] if isinstance(part, str) else _choices(part)
    return words
