"""Which requests can share a batch, and where their arrays lie: looked up once for each form, not for each request."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

from vitascope.gpu.batching.batch_arrays import kind_of, leaves, library_of

__all__ = ["Kind", "Kinds"]

_MOST_KINDS = 1024


@dataclass(frozen=True, slots=True, eq=False)
class Kind:
    """What is equal in requests that can be stacked; the same object for all of them, so that it hashes at once."""

    cupy_device: int | None
    """Number of the GPU of the first CuPy array in them; None without one."""
    torch_device: Any
    """``torch.device`` of the first tensor on a GPU; None without one."""


class Kinds:
    """The kinds that a batcher has met. Thread-safe."""

    def __init__(self) -> None:
        self._known: dict[Hashable, Kind] = {}

    def of(self, data: Any) -> Kind:
        """The kind of a request's data.

        Raises:
            TypeError: Something in it is no array, number, tuple or dict.
        """
        form = kind_of(data)
        kind = self._known.get(form)
        if kind is None:
            if (
                len(self._known) >= _MOST_KINDS
            ):  # requests that wait keep theirs, and share no batch with newer ones
                self._known.clear()
            # Another thread may have been faster: there is one for all.
            kind = self._known.setdefault(form, _kind(data))
        return kind


def _kind(data: Any) -> Kind:
    arrays = [(library_of(leaf), leaf) for leaf in leaves(data)]
    cupy = [leaf.device.id for library, leaf in arrays if library == "cupy"]
    torch = [leaf.device for library, leaf in arrays if library == "torch" and leaf.is_cuda]
    return Kind(cupy[0] if cupy else None, torch[0] if torch else None)
