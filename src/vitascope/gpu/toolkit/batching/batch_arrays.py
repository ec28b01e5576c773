"""Stack requests' arrays into a batch, and split its results: NumPy, CuPy and torch, nested or not.

An array's type tells its library, so that no library is imported needlessly.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from vitascope.errors import EngineError
from vitascope.gpu.interchange import kind_of as array_kind

Library = Literal["numpy", "cupy", "torch"]


def library_of(value: object) -> Library | None:
    """Tell which library an array belongs to; None for anything else. Numbers count as NumPy."""
    kind = type(value)
    if kind not in _LIBRARIES:
        _LIBRARIES[kind] = _library(value)
    return _LIBRARIES[kind]


def _library(value: object) -> Library | None:
    if isinstance(value, np.generic | float | int):
        return "numpy"
    try:
        kind = array_kind(value)
    except TypeError:
        return None
    return None if kind == "dlpack" else kind


_LIBRARIES: dict[type, Library | None] = {}  # cached by type: finding out takes longer than a launch


def kind_of(data: Any) -> Hashable:
    """Describe structure, library, device, dtype and shape: requests with equal kinds can share a batch.

    Raises:
        TypeError: A leaf is not an array, number, tuple or dict.
    """
    if _LIBRARIES.get(type(data)) == "torch":  # first and fast, because it runs for every request
        return "torch", data.device, data.dtype, data.shape
    if isinstance(data, dict):
        return ("dict", *((name, kind_of(value)) for name, value in data.items()))
    if isinstance(data, tuple):
        return ("tuple", type(data), *map(kind_of, data))
    library = library_of(data)
    if library is None:
        raise TypeError(
            "a request carries arrays (NumPy, CuPy, torch), numbers, or a tuple or dict of them, "
            f"not {type(data).__name__}"
        )
    if library == "numpy":
        array = np.asarray(data)
        if array.dtype.hasobject:
            raise TypeError(f"a request carries numbers, not {array.dtype} arrays")
        return library, array.dtype.str, array.shape
    device = data.device.id if library == "cupy" else data.device
    return library, device, data.dtype, data.shape


def leaves(data: Any) -> Iterator[Any]:
    """Iterate over all arrays of a nested structure."""
    if isinstance(data, dict):
        for value in data.values():
            yield from leaves(value)
    elif isinstance(data, tuple | list):
        for value in data:
            yield from leaves(value)
    else:
        yield data


def map_leaves(data: Any, change: Callable[[Any], Any]) -> Any:
    """Apply a function to every leaf of a nested structure."""
    if isinstance(data, dict):
        return {name: map_leaves(value, change) for name, value in data.items()}
    if isinstance(data, tuple):
        return _same_tuple(data, [map_leaves(value, change) for value in data])
    if isinstance(data, list):
        return [map_leaves(value, change) for value in data]
    return change(data)


def stack(items: Sequence[Any], *, rows: int) -> Any:
    """Stack items of equal kind along a new first axis.

    Args:
        items: Requests' data, at least one.
        rows: Length of the batch. Copies of the last item fill it up: zeros may give a network values that it
            never sees, and its time does not depend on them.

    Returns:
        The structure of one item, with new arrays [rows, ...].
    """
    first = items[0]
    if isinstance(first, dict):
        return {name: stack([item[name] for item in items], rows=rows) for name in first}
    if isinstance(first, tuple):
        return _same_tuple(first, [stack([item[n] for item in items], rows=rows) for n in range(len(first))])
    padded = [*items, *[items[-1]] * (rows - len(items))]
    library = library_of(first)
    if library == "numpy":
        return np.stack(padded)
    module: Any = sys.modules[str(library)]
    return module.stack(padded)


def split(output: Any, *, rows: int, count: int) -> list[Any]:
    """Split a batch's output into one result per request, without the padding.

    Args:
        output: Output of ``inference_fn``: an array [rows, ...], a tuple or dict of them, or a list with one
            entry per row.
        rows: Rows of the batch.
        count: Requests in the batch.

    Raises:
        EngineError: It has another number of rows, or another type.
    """
    if isinstance(output, list):
        _require(len(output), rows)
        return output[:count]
    if isinstance(output, dict):
        parts = {name: split(value, rows=rows, count=count) for name, value in output.items()}
        return [{name: parts[name][row] for name in parts} for row in range(count)]
    if isinstance(output, tuple):
        columns = [split(value, rows=rows, count=count) for value in output]
        return [_same_tuple(output, [column[row] for column in columns]) for row in range(count)]
    library = library_of(output)
    if library is None or not getattr(output, "shape", ()):
        raise EngineError(
            f"inference_fn returned {type(output).__name__} for a batch of {rows}, expected arrays with that many rows"
        )
    _require(output.shape[0], rows)
    if library == "torch":
        return list(output.unbind(0)[:count])  # one call for all rows
    return list(output[:count])


def _require(met: int, rows: int) -> None:
    if met != rows:
        raise EngineError(f"inference_fn returned {met} rows for a batch of {rows}")


def _same_tuple(like: tuple[Any, ...], values: list[Any]) -> tuple[Any, ...]:
    make: Callable[..., tuple[Any, ...]] = getattr(type(like), "_make", tuple)  # keeps named tuples
    return make(values)


_MOST_KINDS = 1024


@dataclass(frozen=True, slots=True, eq=False)
class Kind:
    """Kind of requests that can be stacked: one object per kind, so that it hashes fast."""

    cupy_device: int | None
    """Number of the GPU of the first CuPy array; None without one."""
    torch_device: Any
    """``torch.device`` of the first tensor on a GPU; None without one."""


class Kinds:
    """All kinds that a batcher has seen. Thread-safe."""

    def __init__(self) -> None:
        self._known: dict[Hashable, Kind] = {}

    def of(self, data: Any) -> Kind:
        """Look up the kind of a request's data.

        Raises:
            TypeError: A leaf is not an array, number, tuple or dict.
        """
        form = kind_of(data)
        kind = self._known.get(form)
        if kind is None:
            # Waiting requests keep their kinds, and cannot share a batch with newer ones.
            if len(self._known) >= _MOST_KINDS:
                self._known.clear()
            # Another thread may have added it first: there is one object per kind.
            kind = self._known.setdefault(form, _kind(data))
        return kind


def _kind(data: Any) -> Kind:
    arrays = [(library_of(leaf), leaf) for leaf in leaves(data)]
    cupy = [leaf.device.id for library, leaf in arrays if library == "cupy"]
    torch = [leaf.device for library, leaf in arrays if library == "torch" and leaf.is_cuda]
    return Kind(cupy[0] if cupy else None, torch[0] if torch else None)
