"""The port that every inference engine implements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

__all__ = ["Engine", "EngineSpec", "Precision", "ShapeRange", "TensorSpec"]

Tensor = npt.NDArray[Any]
"""A dense array: NumPy on the CPU, CuPy on the GPU."""

Precision = Literal["fp32", "tf32", "mixed", "fp16", "int8"]
"""Arithmetic of a network: ``tf32`` is fp32 whose products have 10-bit mantissas; ``mixed`` multiplies in fp16 and
keeps what is sensitive in fp32; ``int8`` is calibrated, with fp16 where it does not pay."""


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
    device: Literal["cpu", "cuda"] = "cpu"
    """Where ``Engine.run`` takes and gives tensors: NumPy arrays, or CuPy arrays on the engine's GPU."""


@dataclass(frozen=True, slots=True)
class ShapeRange:
    """Sizes that one input may have, for engines that are built for a range of them.

    Raises:
        ValueError: Ranks that differ, or sizes that are not in order.
    """

    smallest: tuple[int, ...]
    usual: tuple[int, ...]
    """What the engine is tuned for."""
    largest: tuple[int, ...]

    def __post_init__(self) -> None:
        """Check rank and order."""
        ordered = zip(self.smallest, self.usual, self.largest, strict=False)
        if not len(self.smallest) == len(self.usual) == len(self.largest) or any(
            not 1 <= low <= usual <= high for low, usual, high in ordered
        ):
            raise ValueError(f"shapes {self.smallest}, {self.usual}, {self.largest} are not in rising order")

    @classmethod
    def exactly(cls, shape: Sequence[int]) -> ShapeRange:
        """One size only."""
        return cls(tuple(shape), tuple(shape), tuple(shape))


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
            inputs: Every input by name, C-contiguous, of the dtype and on the device that ``spec`` names.
            outputs: Which outputs to return; all when omitted.
            stream: CUDA stream handle that the work is ordered on; None is CuPy's current stream. An engine on the
                CPU takes none. The host does not wait for the GPU.

        Returns:
            The outputs by name.

        Raises:
            EngineError: A tensor is missing, unknown, or of the wrong shape or dtype, or the network failed.
        """
        ...

    def close(self) -> None:
        """Free the network's memory; the engine cannot run afterwards."""
        ...
