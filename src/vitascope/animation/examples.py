"""The portrait and the motion that ship with Vitascope: the manual's first command works after an install."""

from __future__ import annotations

from pathlib import Path

__all__ = ["find_example"]

_PACKAGED = Path(__file__).with_name("examples")
_CHECKOUT = Path(__file__).parents[3] / "examples"


def find_example(path: Path) -> Path:
    """A path as it is; or, where nothing lies at ``examples/NAME``, the shipped file of that name."""
    if path.exists() or len(path.parts) != 2 or path.parts[0] != "examples":
        return path
    for folder in (_PACKAGED, _CHECKOUT):
        if (folder / path.name).is_file():
            return folder / path.name
    return path
