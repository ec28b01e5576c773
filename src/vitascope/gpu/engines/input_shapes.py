"""The sizes that an engine is built for, as users write them: ``{"input": {"min": …, "opt": …, "max": …}}``."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence

from vitascope.errors import EngineError, UsageError
from vitascope.gpu.engines.engine import EngineSpec, ShapeRange

__all__ = [
    "InputShapes",
    "require_in_range",
    "require_inputs",
    "shape_ranges",
    "shapes_from_json",
    "shapes_to_json",
]

InputShapes = Mapping[str, "Mapping[str, Sequence[int]] | Sequence[int] | ShapeRange"]
"""For each input, in the network's order: its smallest, usual and largest size under ``min``, ``opt`` and ``max``;
or one size, for an input that has no other."""

_KEYS = ("min", "opt", "max")


def shape_ranges(input_shapes: InputShapes) -> dict[str, ShapeRange]:
    """What the user wrote, checked.

    Raises:
        UsageError: There are no inputs, a key is missing or unknown, or the sizes are not in rising order.
    """
    if not input_shapes:
        raise UsageError("input_shapes names no input; write {'input': {'min': …, 'opt': …, 'max': …}}")
    return {name: _range(name, shapes) for name, shapes in input_shapes.items()}


def _range(name: str, shapes: Mapping[str, Sequence[int]] | Sequence[int] | ShapeRange) -> ShapeRange:
    if isinstance(shapes, ShapeRange):
        return shapes
    if not isinstance(shapes, Mapping):
        shapes = dict.fromkeys(_KEYS, shapes)
    if set(shapes) != set(_KEYS):
        raise UsageError(f"input_shapes[{name!r}] has {', '.join(map(str, shapes))}; expected min, opt, max")
    try:
        low, usual, high = (tuple(int(side) for side in shapes[key]) for key in _KEYS)
        return ShapeRange(low, usual, high)
    except (TypeError, ValueError) as error:
        raise UsageError(f"input_shapes[{name!r}]: {error}") from error


def require_in_range(
    name: str, shape: Sequence[int], ranges: Mapping[str, ShapeRange], *, label: str
) -> None:
    """Refuse a size that the engine was not built for.

    Raises:
        EngineError: It lies outside; the message says what was met and what was expected.
    """
    expected = ranges.get(name)
    if expected is None:
        return
    fits = len(shape) == len(expected.smallest) and all(
        low <= side <= high
        for low, side, high in zip(expected.smallest, shape, expected.largest, strict=True)
    )
    if not fits:
        raise EngineError(
            f"{label}: input {name!r} is {list(shape)}, and the engine was built for "
            f"{list(expected.smallest)} to {list(expected.largest)}"
        )


def require_inputs(inputs: Iterable[str], spec: EngineSpec, *, label: str) -> None:
    """Refuse inputs that a network does not take, and fewer than it takes.

    Raises:
        EngineError: One is unknown or missing; the message has those that it takes.
    """
    given, known = set(inputs), [tensor.name for tensor in spec.inputs]
    for names, what in ((given - set(known), "is unknown"), (set(known) - given, "is missing")):
        if names:
            raise EngineError(f"{label}: input {min(names)!r} {what}; the network takes {', '.join(known)}")


def shapes_to_json(ranges: Mapping[str, ShapeRange]) -> str:
    """For keeping beside an engine."""
    return json.dumps({name: [one.smallest, one.usual, one.largest] for name, one in ranges.items()})


def shapes_from_json(text: str) -> dict[str, ShapeRange]:
    """What ``shapes_to_json`` wrote; empty where it is something else, which costs ``benchmark`` its sizes."""
    try:
        return {
            name: ShapeRange(*(tuple(int(side) for side in one) for one in sizes))
            for name, sizes in json.loads(text).items()
        }
    except (ValueError, TypeError, AttributeError):
        return {}
