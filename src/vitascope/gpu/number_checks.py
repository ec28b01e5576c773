"""Check callers' numbers, with uniform messages, before anything is opened or started."""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import Any

from vitascope.errors import UsageError


def check_count(name: str, value: Any, *, least: int = 1, optional: bool = False) -> None:
    """Check that a value is an integer, of Python or NumPy.

    Args:
        name: The argument's name, as the caller wrote it.
        value: The argument.
        least: The smallest valid value.
        optional: Accept None.

    Raises:
        UsageError: It is not an integer, or too small.
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
    """Check that a value is a finite number, of Python or NumPy.

    Args:
        name: The argument's name, as the caller wrote it.
        value: The argument.
        least: The smallest valid value; see ``above``.
        above: Exclusive lower bound.
        most: The largest valid value; see ``below``.
        below: Exclusive upper bound.
        optional: Accept None.

    Raises:
        UsageError: It is not a finite number, or out of range.
    """
    if value is None and optional:
        return
    # Other types are not compared: comparing a string with a number would raise.
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
