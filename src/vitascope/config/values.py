"""Building blocks of settings: sections, and values other than plain numbers or texts.

Each type accepts the spellings of a YAML file, ``--set`` or a flag, and has an ``Expected`` note that error messages
quote.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, GetCoreSchemaHandler
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from vitascope.frames import Projection, StereoLayout

CONFLICT = "setting_conflict"
"""Pydantic error type of ``conflict``; its context has the contradicting keys."""


class Section(BaseModel):
    """A group of settings: immutable, unknown keys refused, no guessing between types, no NaN or infinity."""

    model_config = ConfigDict(
        defer_build=True, frozen=True, extra="forbid", strict=True, allow_inf_nan=False, validate_default=True
    )


def setting(default: object, description: str, **limits: float) -> Any:
    """Declare a setting.

    Args:
        default: Its value if nothing sets it; validated like any other.
        description: One sentence for ``config show`` and the reference; names the unit.
        **limits: ``ge``, ``gt``, ``le``, ``lt`` of a number, ``min_length`` of a text.

    Returns:
        A pydantic field.
    """
    constraints: dict[str, Any] = dict(limits)
    return Field(default=default, description=description, **constraints)


def conflict(message: str, keys: Sequence[str]) -> PydanticCustomError:
    """Make an error about settings that contradict each other.

    Args:
        message: The contradiction and what to do; names the settings.
        keys: The dotted keys, so that the loader can say where they were set.
    """
    # Passed as a parameter, so that a brace in a file name is not read as a placeholder.
    return PydanticCustomError(CONFLICT, "{message}", {"message": message, "keys": tuple(keys)})


MAX_BATCH_SIZE = 1024
MAX_FACES = 64
"""In frames; far beyond any memory, so it catches typing errors without limiting large machines."""
MAX_NETWORK_SIDE = 16384
"""In pixels; the largest side of a picture that H.265 level 6.2 and common GPUs handle."""


@dataclass(frozen=True, slots=True)
class Expected:
    """A note on a type that describes its values, to follow "expected" in an error message."""

    text: str


@dataclass(frozen=True, slots=True)
class BatchRange:
    """Consecutive frames given to the network at once: one number, or a range for the tuner.

    Raises:
        ValueError: A limit is outside 1..1024, or the lower one is above the upper.
    """

    low: int
    """Minimum for the tuner, and the value without it."""
    high: int
    """Maximum for the tuner."""

    expected: ClassVar[str] = f'a whole number from 1 to {MAX_BATCH_SIZE} or a range such as "16-32"'

    def __post_init__(self) -> None:
        """Check the limits."""
        if not 1 <= self.low <= self.high <= MAX_BATCH_SIZE:
            raise ValueError(f"batch size {self} is not {self.expected}")

    @classmethod
    def parse(cls, value: object) -> Self:
        """Read 8, "8" or "16-32" (hyphen or dash).

        Raises:
            ValueError: Anything else.
        """
        if isinstance(value, cls):
            return value
        if isinstance(value, int) and not isinstance(value, bool):
            return cls(value, value)
        if isinstance(value, str) and (
            match := re.fullmatch(r"\s*(\d{1,6})(?:\s*[-–]\s*(\d{1,6}))?\s*", value)
        ):
            return cls(int(match[1]), int(match[2] or match[1]))
        raise ValueError(f"expected {cls.expected}")

    def __str__(self) -> str:
        return str(self.low) if self.low == self.high else f"{self.low}-{self.high}"

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Validate with ``parse``, write as a number or a range."""
        return core_schema.no_info_plain_validator_function(
            cls.parse, serialization=core_schema.plain_serializer_function_ser_schema(cls._serialize)
        )

    @staticmethod
    def _serialize(value: BatchRange) -> int | str:
        return value.low if value.low == value.high else str(value)


@dataclass(frozen=True, slots=True)
class RgbColor:
    """A colour as 8-bit, gamma-encoded, full-range R, G, B.

    Raises:
        ValueError: A component is outside 0..255.
    """

    red: int
    green: int
    blue: int

    expected: ClassVar[str] = (
        'a colour: "#78FF9B" (in quotes: in YAML a bare # starts a comment), 120,255,155, or a CSS name such as lime'
    )

    def __post_init__(self) -> None:
        """Check the components."""
        if not all(0 <= component <= 255 for component in self.as_tuple()):
            raise ValueError(f"colour {self.as_tuple()} has a component outside 0..255")

    @classmethod
    def parse(cls, value: object) -> Self:
        """Read "#78FF9B", "#7F9", "120,255,155", [120, 255, 155] or a CSS colour name.

        Raises:
            ValueError: Anything else.
        """
        if isinstance(value, cls):
            return value
        if isinstance(value, str):
            text = value.strip().lower()
            if text in CSS_COLORS:
                return cls.parse(CSS_COLORS[text])
            if match := re.fullmatch(r"#([0-9a-f]{3}|[0-9a-f]{6})", text):
                digits = match[1] if len(match[1]) == 6 else "".join(2 * digit for digit in match[1])
                return cls(*bytes.fromhex(digits))
            if match := re.fullmatch(r"(\d{1,3})\s*,\s*(\d{1,3})\s*,\s*(\d{1,3})", text):
                return cls(*map(int, match.groups()))
        if isinstance(value, list | tuple) and len(value) == 3 and all(type(part) is int for part in value):
            return cls(*value)
        raise ValueError(f"expected {cls.expected}")

    def as_tuple(self) -> tuple[int, int, int]:
        """(red, green, blue), each 0..255."""
        return self.red, self.green, self.blue

    def __str__(self) -> str:
        return f"#{self.red:02X}{self.green:02X}{self.blue:02X}"

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Validate with ``parse``, write as ``#RRGGBB``."""
        return core_schema.no_info_plain_validator_function(
            cls.parse, serialization=core_schema.plain_serializer_function_ser_schema(str)
        )


CSS_COLORS = {
    "aqua": "#00FFFF",
    "black": "#000000",
    "blue": "#0000FF",
    "brown": "#A52A2A",
    "cyan": "#00FFFF",
    "fuchsia": "#FF00FF",
    "gold": "#FFD700",
    "gray": "#808080",
    "green": "#008000",
    "grey": "#808080",
    "indigo": "#4B0082",
    "lime": "#00FF00",
    "magenta": "#FF00FF",
    "maroon": "#800000",
    "navy": "#000080",
    "olive": "#808000",
    "orange": "#FFA500",
    "pink": "#FFC0CB",
    "purple": "#800080",
    "red": "#FF0000",
    "silver": "#C0C0C0",
    "teal": "#008080",
    "turquoise": "#40E0D0",
    "violet": "#EE82EE",
    "white": "#FFFFFF",
    "yellow": "#FFFF00",
}
"""Names and values of CSS Color Module Level 4. Its "green" is the dark one; a green screen's colour is "lime"."""


def parse_seconds(value: object) -> float:
    """Read a time: 90, 90.5, "90.5", "1:30", "0:01:30.5".

    Raises:
        ValueError: It is not a time, or is negative.
    """
    if isinstance(value, int | float) and not isinstance(value, bool):
        seconds = float(value)
    elif isinstance(value, str) and (
        match := re.fullmatch(
            r"\s*(?:(?:(\d{1,4}):)?([0-5]?\d):([0-5]?\d(?:\.\d+)?)|(\d+(?:\.\d*)?|\.\d+))\s*", value
        )
    ):
        hours, minutes, rest, plain = match.groups()
        seconds = float(plain) if plain else int(hours or 0) * 3600 + int(minutes) * 60 + float(rest)
    else:
        raise ValueError("not a time")
    if not (seconds >= 0 and math.isfinite(seconds)):
        raise ValueError("a time is zero or more")
    return seconds


def _parse_input_size(value: object) -> object:
    sides = tuple(value) if isinstance(value, list | tuple) and len(value) == 2 else (value,)
    for side in sides:
        if type(side) is not int or not 32 <= side <= MAX_NETWORK_SIDE:
            raise ValueError("not a size")
    return sides if len(sides) == 2 else value


def _parse_alpha_levels(value: object) -> tuple[float, float]:
    parts: Sequence[object] = ()
    if isinstance(value, str):
        parts = [float(part) for part in value.split(",")]
    elif isinstance(value, list | tuple):
        parts = value
    if len(parts) != 2 or any(isinstance(part, bool) or not isinstance(part, int | float) for part in parts):
        raise ValueError("not two levels")
    low, high = (float(part) for part in parts if isinstance(part, int | float))
    if not 0 <= low < high <= 1:
        raise ValueError("levels out of order")
    return low, high


def _parse_stereo(value: object) -> object:
    return _STEREO_SPELLINGS.get(value.strip().lower(), value) if isinstance(value, str) else value


def _parse_projection(value: object) -> object:
    return _PROJECTION_SPELLINGS.get(str(value).strip().lower(), value)


_MOST_GPU_PROCESSES = 16


def _parse_gpu_numbers(value: object) -> object:
    parts: Sequence[object] = ()
    if isinstance(value, str):
        parts = [int(part) for part in value.split(",")]
    elif isinstance(value, list | tuple):
        parts = value
    elif type(value) is int:
        parts = (value,)
    if len(parts) > _MOST_GPU_PROCESSES:
        raise ValueError("too many")
    if not parts or any(type(part) is not int or not 0 <= part <= 255 for part in parts):
        raise ValueError("not numbers of GPUs")
    return tuple(parts)


def _parse_path(value: object) -> object:
    # An empty path would mean the current directory, which is never a picture.
    return Path(value) if isinstance(value, str) and value else value


def _parse_preset(value: object) -> object:
    # SVT-AV1 has the highest preset number, 13.
    return str(value) if type(value) is int and 0 <= value <= 13 else value


def _parse_thread_count(value: object) -> object:
    return 0 if value is None else value


_STEREO_SPELLINGS: dict[str, StereoLayout] = {
    "mono": StereoLayout.MONO,
    "side-by-side": StereoLayout.SIDE_BY_SIDE,
    "sbs": StereoLayout.SIDE_BY_SIDE,
    "lr": StereoLayout.SIDE_BY_SIDE,
    "top-bottom": StereoLayout.TOP_BOTTOM,
    "tb": StereoLayout.TOP_BOTTOM,
    "ou": StereoLayout.TOP_BOTTOM,
}

_PROJECTION_SPELLINGS: dict[str, Projection] = {
    **{projection.value: projection for projection in Projection},
    "equirect180": Projection.HALF_EQUIRECTANGULAR,
    "equirect360": Projection.EQUIRECTANGULAR,
    "180": Projection.HALF_EQUIRECTANGULAR,
    "360": Projection.EQUIRECTANGULAR,
}


def unique_list(value: object) -> object:
    """Read a list, one item, or comma-separated items; a repeated item counts once.

    Raises:
        ValueError: The list is empty.
    """
    if isinstance(value, str):
        value = [part.strip() for part in value.split(",")]
    if not isinstance(value, list | tuple):
        return value
    if not value:
        raise ValueError("empty list")
    first: dict[object, object] = {}
    for item in value:
        first.setdefault(item if isinstance(item, str | int | float) else repr(item), item)
    return tuple(first.values())


def _parse_face(value: object) -> object:
    if isinstance(value, str) and value.isascii() and value.isdigit():
        value = int(value)
    if value == "largest" or (
        isinstance(value, int) and not isinstance(value, bool) and 0 <= value < MAX_FACES
    ):
        return value
    raise ValueError("neither largest nor a number of a face")


_LEAST_SCALE, _MOST_SCALE, _MOST_SCALES = 0.25, 4.0, 8


def _parse_scales(value: object) -> object:
    if isinstance(value, int | float) and not isinstance(value, bool):
        value = [value]
    values = unique_list(value)
    if not isinstance(values, tuple) or len(values) > _MOST_SCALES:
        raise ValueError("not a list of scales")
    if any(isinstance(item, bool) or not isinstance(item, int | float | str) for item in values):
        raise ValueError("not numbers")
    scales = tuple(float(item) for item in values)
    if not all(math.isfinite(scale) and _LEAST_SCALE <= scale <= _MOST_SCALE for scale in scales):
        raise ValueError("scale out of range")
    return scales


def _typed(parse: Callable[[object], object], expected: str) -> tuple[BeforeValidator, Expected]:
    return BeforeValidator(parse), Expected(expected)


InputSize = Annotated[
    int | tuple[int, int],
    *_typed(
        _parse_input_size, f"a side or [width, height] in whole pixels, each from 32 to {MAX_NETWORK_SIDE}"
    ),
]
"""Size of a network's input in pixels: one side, or (width, height)."""

Scales = Annotated[
    tuple[float, ...],
    *_typed(
        _parse_scales,
        f"one to {_MOST_SCALES} numbers from {_LEAST_SCALE} to {_MOST_SCALE:g}, such as [1, 1.5]",
    ),
]
"""Sizes of the network's picture, relative to the usual one."""

Seconds = Annotated[float, *_typed(parse_seconds, 'seconds, or a time such as "1:30" or "0:01:30.5"')]
"""A time from the start of the video, in seconds."""

AlphaLevels = Annotated[
    tuple[float, float], *_typed(_parse_alpha_levels, "[low, high] with 0 <= low < high <= 1")
]
"""(low, high): the alpha levels that become 0 and 1."""

StereoChoice = Annotated[
    Literal["auto"] | StereoLayout,
    *_typed(_parse_stereo, "auto, mono, side-by-side (sbs, lr) or top-bottom (tb, ou)"),
]
"""A declared stereo layout, or ``auto``."""

ProjectionChoice = Annotated[
    Literal["auto"] | Projection,
    *_typed(_parse_projection, "auto, flat, equirect180 (180), equirect360 (360) or fisheye"),
]
"""A declared projection, or ``auto``."""

FaceChoice = Annotated[
    Literal["largest"] | int, *_typed(_parse_face, f"largest, or a number from 0 to {MAX_FACES - 1}")
]
"""A face among several: the largest, or a number counted from the left."""

FilePath = Annotated[Path, *_typed(_parse_path, "a path")]
"""A file or folder; a relative path in a settings file is relative to that file."""

PresetName = Annotated[str, *_typed(_parse_preset, "the name or number of a preset of the encoder")]
"""An encoder's preset; SVT-AV1's are numbers, so 8 is read as "8"."""

GpuNumbers = Annotated[
    tuple[int, ...],
    *_typed(
        _parse_gpu_numbers, f"at most {_MOST_GPU_PROCESSES} numbers of GPUs such as 0,1, each from 0 to 255"
    ),
]
"""Numbers of GPUs, at most 16; a repeated number gets as many processes."""

ThreadCount = Annotated[int, *_typed(_parse_thread_count, "a whole number from 0 to 4096 or null")]
"""Number of threads; 0 and null let the machine choose."""
