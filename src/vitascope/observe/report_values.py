"""Values of a report: plain ones for JSON, sizes in words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

__all__ = ["frames_in_words", "plain_value", "size_in_words"]


def plain_value(value: Any) -> Any:
    """A value that JSON can hold: paths as text, tuples as lists, all the way down; what is plain stays."""
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, dict):
        return {key: plain_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain_value(item) for item in value]
    return value


def frames_in_words(count: int) -> str:
    """``1 frame``, ``48 frames``."""
    return "1 frame" if count == 1 else f"{count} frames"


def size_in_words(size_bytes: int) -> str:
    """A file's size for people, in steps of a thousand: ``15.0 MB``, ``440 kB``."""
    return f"{size_bytes / 1e6:.1f} MB" if size_bytes >= 1e6 else f"{size_bytes / 1e3:.0f} kB"
