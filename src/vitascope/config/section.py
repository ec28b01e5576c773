"""What every group of settings shares: frozen, strict, and with a description on each field."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from pydantic_core import PydanticCustomError

__all__ = ["CONFLICT", "Section", "conflict", "setting"]

CONFLICT = "setting_conflict"
"""Pydantic error type of ``conflict``; its context holds the keys that contradict each other."""


class Section(BaseModel):
    """A group of settings: immutable, unknown keys refused, no guessing between types, no NaN or infinity."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, validate_default=True
    )


def setting(default: object, description: str, **limits: float) -> Any:
    """Declare a setting.

    Args:
        default: Its value when nobody says otherwise; validated like any other.
        description: One sentence for ``config show`` and the reference; names the unit.
        **limits: ``ge``, ``gt``, ``le``, ``lt`` of a number, ``min_length`` of a text.

    Returns:
        A pydantic field.
    """
    constraints: dict[str, Any] = dict(limits)
    return Field(default=default, description=description, **constraints)


def conflict(message: str, keys: Sequence[str]) -> PydanticCustomError:
    """An error about settings that are fine alone and contradict each other.

    Args:
        message: What contradicts what, and what to do; names the settings.
        keys: The dotted keys, so that the loader can say where they were set.
    """
    # The text goes in as a parameter: a brace inside a file name must not be read as a placeholder.
    return PydanticCustomError(CONFLICT, "{message}", {"message": message, "keys": tuple(keys)})
