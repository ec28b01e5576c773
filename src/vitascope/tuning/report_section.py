"""What reports are made of."""

from __future__ import annotations

from dataclasses import dataclass

from vitascope.gpu.profiling.drawing import Drawing

__all__ = ["Section"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One part of a report."""

    title: str
    sentences: tuple[str, ...] = ()
    """Of one with several lines the first is its heading."""
    heads: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    """A table under the heads; empty without one."""
    chart: Drawing | None = None
