"""Checks of numbers from callers, with common messages; used before anything is opened or started."""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import Any

from vitascope.errors import UsageError


def check_count(name: str, value: Any, *, least: int = 1, optional: bool = False) -> None:
    """Refuse anything but a whole number, of Python or NumPy.

    Args:
        name: The argument, as the caller wrote it.
        value: What was given.
        least: The smallest.
        optional: None may be given, too.

    Raises:
        UsageError: It is no whole number, or too small.
    """
    if value is None and optional:
        return
    if isinstance(value, bool) or not isinstance(value, Integral) or int(value) < least:
        raise UsageError(_message(name, value, f"a whole number, at least {least}", optional=optional))


def check_number(
    name: str,
    value: Any,
    *,
    least: float | None = None,
    above: float | None = None,
    most: float | None = None,
    below: float | None = None,
    optional: bool = False,
) -> None:
    """Refuse anything but a finite number, of Python or NumPy.

    Args:
        name: The argument, as the caller wrote it.
        value: What was given.
        least: The smallest; or ``above``.
        above: What it must be larger than.
        most: The largest; or ``below``.
        below: What it must be smaller than.
        optional: None may be given, too.

    Raises:
        UsageError: It is no finite number, or out of range.
    """
    if value is None and optional:
        return
    # What is no number at all is asked nothing: a text could not be compared.
    fits = not isinstance(value, bool) and isinstance(value, Real) and math.isfinite(value)
    if (
        not fits
        or (least is not None and value < least)
        or (above is not None and value <= above)
        or (most is not None and value > most)
        or (below is not None and value >= below)
    ):
        words = ["a number"]
        words += [f"from {least:g}"] if least is not None else []
        words += [f"above {above:g}"] if above is not None else []
        words += [f"to {most:g}" if least is not None else f"and up to {most:g}"] if most is not None else []
        words += [f"to below {below:g}"] if below is not None else []
        raise UsageError(_message(name, value, " ".join(words), optional=optional))


def _message(name: str, value: object, wanted: str, *, optional: bool) -> str:
    return f"{name} is {value!r}, expected {wanted}{', or None' if optional else ''}"
