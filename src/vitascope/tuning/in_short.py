"""The beginning of a report: for each size of film how fast this machine is, and how long a film takes."""

from __future__ import annotations

from collections.abc import Sequence

from vitascope.tuning.encoder_end import limit_of
from vitascope.tuning.results import BenchResults, Cell

__all__ = ["fastest_cells", "in_short"]

_FILM_FPS = 30
"""Of the film whose time is told."""


def in_short(run: BenchResults) -> list[str]:
    """A sentence for each size that was measured; without one, that nothing was.

    Args:
        run: Of one machine.
    """
    sentences = [_sentence(cell) for cell in fastest_cells(run.measured)]
    if not run.finished:
        sentences.append("the run was broken off: what it had measured by then is here, the rest is missing")
    return sentences or ["nothing could be measured"]


def fastest_cells(cells: Sequence[Cell]) -> list[Cell]:
    """The fastest of each size, in the order of their sizes' first cells.

    Args:
        cells: Measured ones.
    """
    found: dict[tuple[str, str], Cell] = {}
    for cell in cells:
        key = (cell.key.resolution, cell.key.stereo)
        if key not in found or _rate(cell) > _rate(found[key]):
            found[key] = cell
    return list(found.values())


def _sentence(cell: Cell) -> str:
    rate, limit = _rate(cell), limit_of(cell)
    told = (
        f"{cell.key.label()}: {rate:.0f} frames a second"
        if rate >= 10
        else f"{cell.key.label()}: {rate:.1f} fps"
    )
    if rate > 0:
        told += (
            f", so an hour of film with {_FILM_FPS} frames a second takes {_duration(_FILM_FPS / rate * 60)}"
        )
    return told if limit is None else f"{told}; {limit.title}"


def _duration(minutes: float) -> str:
    if minutes >= 90:
        return f"{minutes / 60:.1f} hours"
    return f"{minutes:.0f} minutes" if minutes >= 1.5 else f"{minutes * 60:.0f} seconds"


def _rate(cell: Cell) -> float:
    return cell.median("throughput") or 0.0
