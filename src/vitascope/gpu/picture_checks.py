"""What callers ask of a picture's way to a network's input, checked before anything is computed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from operator import index
from typing import Any

import numpy as np

__all__ = ["FLOAT_DTYPES", "check_affine", "check_word", "element_type", "height_and_width"]

FLOAT_DTYPES = ("float32", "float16")
"""What networks take."""

_NAMES = {np.dtype(name): name for name in FLOAT_DTYPES}


def element_type(dtype: Any, out: Any, *, words: tuple[str, ...] = FLOAT_DTYPES) -> Any:
    """An element type as NumPy calls it: what was asked for, in any spelling, else that of ``out``, else float32.

    Args:
        dtype: What was asked for; None for nothing.
        out: Where the result goes; None for a new array.
        words: What there may be.

    Raises:
        ValueError: It is none of them.
    """
    wanted = getattr(out, "dtype", None) if dtype is None else dtype
    if isinstance(wanted, np.dtype) and wanted in _NAMES:  # NumPy takes microseconds to spell one
        return _NAMES[wanted]
    name = "float32" if wanted is None else str(wanted).removeprefix("torch.")
    if name not in words:  # numpy.float32 itself, for example
        with suppress(TypeError):
            name = np.dtype(wanted).name
    check_word("dtype", name, words)
    return name


def height_and_width(target_size: Any) -> tuple[int, int]:
    """A size as two whole numbers.

    Raises:
        ValueError: It is none.
    """
    try:
        height, width = map(index, target_size)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"target_size is {target_size!r}, expected (height, width) in whole pixels"
        ) from error
    if min(height, width) < 1:
        raise ValueError(f"target_size is {(height, width)}, expected (height, width) of at least one pixel")
    return height, width


def check_word(name: str, value: Any, words: tuple[str, ...]) -> None:
    """Refuse what is none of the words.

    Raises:
        ValueError: It is none.
    """
    if value not in words:
        raise ValueError(f"{name} is {value!r}, expected {' or '.join(words)}")


def check_affine(
    mean: Sequence[float], std: Sequence[float], *, scale: float = 1.0, channels: int | None = None
) -> None:
    """Refuse a mean, a deviation or a scale that makes no number of a picture.

    Args:
        mean: Of each channel.
        std: Of each channel.
        scale: Of all.
        channels: How many there must be; None for any number.

    Raises:
        ValueError: A value is not finite, a deviation is 0, or there are too many or too few.
    """
    for name, values in (("mean", mean), ("std", std)):
        if not all(map(math.isfinite, values)):
            shown = values[0] if name == "scale" else tuple(values)
            raise ValueError(f"{name} is {shown}, expected finite numbers")
        if channels is not None and len(values) != channels:
            raise ValueError(f"{name} is {tuple(values)}, expected {channels} numbers, of R, G and B")
    if not math.isfinite(scale):
        raise ValueError(f"scale is {(scale,)}, expected finite numbers")
    if 0 in std:
        raise ValueError(f"std is {tuple(std)}, expected none to be 0")
