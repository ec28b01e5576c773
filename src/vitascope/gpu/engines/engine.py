"""The port that every inference engine implements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

__all__ = ["Engine", "EngineSpec", "TensorSpec"]

Tensor = npt.NDArray[Any]
"""A dense array: NumPy on the CPU, CuPy on the GPU."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Name, element type and symbolic shape of one input or output."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int | str | None, ...]
    """An integer is fixed, a string is a named free dimension, None an unnamed one."""


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """What a network takes and gives."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]


class Engine(Protocol):
    """Runs one network. Engines hold no recurrent state: it goes in and comes out as tensors."""

    @property
    def name(self) -> str:
        """What ran, for reports: for example ``onnxruntime 1.31 (CPU, 2 threads)``."""
        ...

    @property
    def spec(self) -> EngineSpec:
        """Named tensors, dtypes and symbolic shapes."""
        ...

    def run(
        self, inputs: Mapping[str, Tensor], outputs: Sequence[str] | None = None, *, stream: int | None = None
    ) -> dict[str, Tensor]:
        """Compute the outputs.

        Args:
            inputs: Every input by name, C-contiguous, of the dtype that ``spec`` names.
            outputs: Which outputs to return; all when omitted.
            stream: CUDA stream handle the work is ordered on; None on a CPU.

        Returns:
            The outputs by name.

        Raises:
            EngineError: A tensor is missing, unknown, or of the wrong shape or dtype, or the network failed.
        """
        ...

    def close(self) -> None:
        """Free the network's memory; the engine cannot run afterwards."""
        ...
