"""Describes faces by vectors that are close for pictures of the same face."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float32]


class SeenFace(NamedTuple):
    """A face in a frame; positions are in cells."""

    left: float
    top: float
    width: float
    height: float
    description: FloatArray | None = None
    """Vector from ``FaceDescriptor``, float32 [128]; None for a face that tells little about identity."""


class FaceLooks:
    """The mean description of a person's face."""

    def __init__(self) -> None:
        self._total: FloatArray = np.zeros(128, np.float32)
        self._count = 0

    def learn(self, description: FloatArray) -> None:
        """Learn from another picture of the face."""
        self._total = self._total + description
        self._count += 1

    def join(self, other: FaceLooks) -> None:
        """Merge the observations of another description of the same face."""
        self._total = self._total + other._total
        self._count += other._count

    @property
    def is_blank(self) -> bool:
        """True until something was learned."""
        return not self._count

    def distance(self, other: FaceLooks) -> float:
        """Distance to another face; neither may be blank."""
        return float(np.linalg.norm(self._total / self._count - other._total / other._count))
