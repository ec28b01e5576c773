r"""Plain-text standard output and error, on which file names cannot control the terminal.

A name may contain any byte but 0 and ``/``: sequences that set a terminal's clipboard (OSC 52), rewrite a line or
reverse its direction (Unicode TR 36, "Unicode Security Considerations"), and bytes that are not text. They are shown
as in a Python string, ``\x1b``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

_HARMFUL = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f"  # C0 except tab and line feed, and C1
    r"\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069"  # other directions and line ends
    r"\ud800-\udfff]"  # bytes of a name that are not UTF-8
)


def escaped(text: str) -> str:
    """Make the control characters of a text visible and harmless."""
    return _HARMFUL.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), text)


def on_one_line(text: str) -> str:
    """Escape a text like ``escaped``, including the line feeds that a file's name may contain."""
    return escaped(text).replace("\n", "\\n")


class _PlainConsole(Console):
    """Prints literally: no markup, no emoji codes between colons, no control characters.

    Args:
        **options: Options of rich's console.
    """

    def __init__(self, **options: Any) -> None:
        plain = {"highlight": False, "markup": False, "emoji": False, "soft_wrap": True}
        super().__init__(**plain | options)

    def print_lines(self, *lines: str) -> None:
        """Print each text on its own line, whatever names it contains; no text prints nothing."""
        if lines:
            self.print("\n".join(map(on_one_line, lines)))

    def render_str(self, text: str, **options: Any) -> Text:
        """Escape text and cells before they are laid out, since rich would drop some control characters silently."""
        return super().render_str(escaped(text), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Escape everything else, which passes here; rich's own control codes are marked as such."""
        for segment in super().render(renderable, options):
            if segment.control or not _HARMFUL.search(segment.text):
                yield segment
            else:
                yield Segment(escaped(segment.text), segment.style)


class Page(_PlainConsole):
    """Standard output: results."""


class Screen(_PlainConsole):
    """Standard error: notes, errors and progress."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"stderr": True} | options)
