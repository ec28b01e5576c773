"""What a part of the way achieves, held against what the device gave in the same run.

::

    attainable FLOP/s = min(matrix products, copy bandwidth * FLOPs per byte)

A part whose FLOPs per byte lie left of the ridge (matrix products / copy bandwidth) can at best be bound by memory,
right of it by arithmetic. Williams, Waterman, Patterson: Roofline, 2009.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from vitascope.tuning.results import BenchResults, Ceilings, Cell, PartWork

__all__ = ["Bound", "RoofPoint", "Roofs", "roof_points", "roofs_of"]

Bound = Literal["memory", "compute", "neither"]
_REACHED = 0.5
"""Share of the roof above a part from which it is the roof that bounds it; below, most of the time goes elsewhere."""


@dataclass(frozen=True, slots=True)
class Roofs:
    """Both ceilings of a device, for one precision."""

    device: Literal["cpu", "cuda"]
    precision: str
    bytes_per_second: float
    flops_per_second: float

    @property
    def ridge(self) -> float:
        """FLOPs per byte where both are reached at once."""
        return self.flops_per_second / self.bytes_per_second

    def attainable(self, intensity: float) -> float:
        """Most FLOP/s for so many FLOPs per byte."""
        return min(self.flops_per_second, intensity * self.bytes_per_second)


@dataclass(frozen=True, slots=True, kw_only=True)
class RoofPoint:
    """One part of one cell under its roofs."""

    cell: Cell
    work: PartWork
    roofs: Roofs
    ms: float
    """For a frame, median."""

    @property
    def bytes_per_second(self) -> float:
        """Achieved, of the bytes that must move."""
        assert self.work.nbytes is not None  # others make no point
        return self.work.nbytes / (self.ms / 1e3)

    @property
    def flops_per_second(self) -> float | None:
        """Achieved; None where the arithmetic is not counted."""
        return None if self.work.flops is None else self.work.flops / (self.ms / 1e3)

    @property
    def intensity(self) -> float | None:
        """FLOPs per byte."""
        assert self.work.nbytes is not None
        return None if self.work.flops is None else self.work.flops / self.work.nbytes

    @property
    def copy_share(self) -> float:
        """Of the copy bandwidth; above 1 where caches held what was counted as moved."""
        return self.bytes_per_second / self.roofs.bytes_per_second

    @property
    def compute_share(self) -> float | None:
        """Of the matrix products."""
        rate = self.flops_per_second
        return None if rate is None else rate / self.roofs.flops_per_second

    @property
    def roof_share(self) -> float:
        """Of what is attainable at its FLOPs per byte."""
        rate, intensity = self.flops_per_second, self.intensity
        return (
            self.copy_share if rate is None or intensity is None else rate / self.roofs.attainable(intensity)
        )

    @property
    def bound(self) -> Bound:
        """What bounds it: ``neither`` where it stays far below its roof."""
        if self.roof_share < _REACHED:
            return "neither"
        intensity = self.intensity
        return "memory" if intensity is None or intensity < self.roofs.ridge else "compute"


def roofs_of(ceilings: Sequence[Ceilings], *, device: str, precision: str) -> Roofs | None:
    """The roofs of a device; None where one of them was not measured.

    Args:
        ceilings: Of the run.
        device: ``cpu`` or ``cuda``.
        precision: Of the products; ``mixed`` multiplies in fp16.
    """
    wanted = "fp16" if precision == "mixed" else precision
    for one in ceilings:
        if one.device == device:
            copy, products = one.median("copy"), one.median(f"matmul/{wanted}")
            if copy and products:
                return Roofs(one.device, wanted, copy, products)
    return None


def roof_points(results: BenchResults) -> list[RoofPoint]:
    """Every part of every cell whose work, time and roofs are known."""
    found = []
    for cell in results.measured:
        for work in cell.work:
            roofs = roofs_of(results.ceilings, device=work.device, precision=work.precision)
            ms = cell.median(work.row)
            if roofs is not None and ms and work.nbytes:
                found.append(RoofPoint(cell=cell, work=work, roofs=roofs, ms=ms))
    return found
