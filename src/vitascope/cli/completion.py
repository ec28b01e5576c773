"""Completion in a shell, which offers file names wherever a word is free.

The library's scripts complete commands, options and choices, and switch off what the shell offers by itself: without
it nobody completes the name of a video any more.
"""

from __future__ import annotations

import re
from typing import Literal

from cyclopts import App

__all__ = ["CompletingApp"]

_ZSH_WITHOUT_ACTION = re.compile(
    r"^(\s+'(?:\*?-[^'\[]*\[[^']*\]:[\w-]+|(?:\d+|\*):(?! )[^':]*))' \\$", re.MULTILINE
)
"""An option's value, or a word in its place, for which the script says nothing that could be completed."""


class CompletingApp(App):
    """A command whose completion scripts leave free words to the shell."""

    def generate_completion(
        self,
        *,
        prog_name: str | None = None,
        shell: Literal["zsh", "bash", "fish", "powershell"] | None = None,
    ) -> str:
        """The script of a shell.

        Args:
            prog_name: Name of the command; this one's own when omitted.
            shell: Which one; the caller's when omitted.
        """
        script = super().generate_completion(prog_name=prog_name, shell=shell)
        script = script.replace("\ncomplete -F ", "\ncomplete -o default -F ")
        if script.startswith("#compdef"):
            script = _ZSH_WITHOUT_ACTION.sub(r"\1:_files' \\", script)
        return script
