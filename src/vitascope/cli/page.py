"""What commands print their results on."""

from __future__ import annotations

import os
import sys
from typing import Any

from rich.console import Console

__all__ = ["Page"]


class Page(Console):
    """Standard output, as plain text. Whoever reads it may leave: the work goes on, and nothing more is printed.

    Args:
        **options: Of rich's console.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"highlight": False, "markup": False, "soft_wrap": True} | options)

    def on_broken_pipe(self) -> None:
        """Print to nobody from now on, where rich would end the program with the films that were still to come."""
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
