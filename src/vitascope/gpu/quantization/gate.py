"""The gate: a quantised network is kept only where it is right enough, and worth it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from vitascope.errors import UsageError
from vitascope.gpu.quantization.comparison import Comparison

__all__ = ["GateVerdict", "Gated", "QuantizationLimits", "judge"]

NetworkT = TypeVar("NetworkT")


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizationLimits:
    """What a quantised network has to keep to; None asks nothing.

    Raises:
        UsageError: A limit that is negative.
    """

    mean_error: float | None = None
    """Most mean absolute difference, in the outputs' units: 1/255 is one code of an 8-bit matte."""
    worst_frame_error: float | None = None
    """The same for each frame."""
    relative_error: float | None = 0.02
    """Most mean difference as a share of the reference's mean magnitude."""
    speedup: float | None = 1.0
    """Least reference time / quantised time; 1 asks that it is no slower."""
    size_ratio: float | None = None
    """Least reference size / quantised size."""

    def __post_init__(self) -> None:
        """Check the range."""
        for name in ("mean_error", "worst_frame_error", "relative_error", "speedup", "size_ratio"):
            value = getattr(self, name)
            if value is not None and not value >= 0:
                raise UsageError(f"the limit {name} is {value}, expected 0 or more")


@dataclass(frozen=True, slots=True)
class GateVerdict:
    """Whether a quantised network is kept, and every limit that it broke."""

    accepted: bool
    reasons: tuple[str, ...]
    """One line each: what was measured and what was asked; empty where it is accepted."""

    def __bool__(self) -> bool:
        return self.accepted

    def __str__(self) -> str:
        return "accepted" if self.accepted else f"refused: {'; '.join(self.reasons)}"


@dataclass(frozen=True)
class Gated(Generic[NetworkT]):
    """What the gate let through."""

    model: NetworkT
    """The quantised network where it was accepted, else the reference."""
    comparison: Comparison
    verdict: GateVerdict


def judge(
    comparison: Comparison, limits: QuantizationLimits, *, size_ratio: float | None = None
) -> GateVerdict:
    """Hold a comparison against limits.

    Args:
        comparison: What was measured.
        limits: What is asked.
        size_ratio: Reference size / quantised size; needed where ``limits`` has one.

    Raises:
        UsageError: A limit on the size, and no sizes.
    """
    reasons = []
    if not comparison.finite:
        reasons.append("its outputs hold values that are not numbers")
    for name, what in (
        ("mean_error", "mean error"),
        ("worst_frame_error", "error of the worst frame"),
        ("relative_error", "error relative to the outputs"),
    ):
        most, met = getattr(limits, name), getattr(comparison, name)
        if most is not None and not met <= most:  # so that a NaN is refused
            reasons.append(f"{what} {met:.3g}, at most {most:.3g} is allowed")
    if limits.speedup is not None and not comparison.speedup >= limits.speedup:
        reasons.append(
            f"{comparison.speedup:.2f}x the reference's speed ({comparison.quantized_ms:.3g} ms against "
            f"{comparison.reference_ms:.3g} ms), at least {limits.speedup:.2f}x is asked"
        )
    if limits.size_ratio is not None:
        if size_ratio is None:
            raise UsageError("the limits ask for a size_ratio, and no sizes were given")
        if not size_ratio >= limits.size_ratio:
            reasons.append(f"{size_ratio:.2f}x smaller, at least {limits.size_ratio:.2f}x is asked")
    return GateVerdict(not reasons, tuple(reasons))
