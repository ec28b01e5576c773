"""The interface of all inference engines, and the input sizes that an engine is built for."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from vitascope.errors import DeviceMemoryError, EngineError, UsageError
from vitascope.gpu.kernels.cuda_module import import_cupy, is_on_gpu
from vitascope.gpu.memory.shortage import speaks_of_memory

Tensor = npt.NDArray[Any]
"""A dense array: NumPy on the CPU, CuPy on the GPU."""

Precision = Literal["fp32", "tf32", "mixed", "fp16", "int8"]
"""Arithmetic of a network: ``tf32`` is fp32 with 10-bit mantissas in products; ``mixed`` multiplies in fp16 and keeps
sensitive operations in fp32; ``int8`` is calibrated, with fp16 where int8 is not worthwhile."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Name, element type and symbolic shape of one input or output."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int | str | None, ...]
    """An integer is fixed, a string is a named free dimension, None an unnamed one."""


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """Inputs and outputs of a network."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    device: Literal["cpu", "cuda"] = "cpu"
    """Device of the tensors of ``Engine.run``: NumPy arrays, or CuPy arrays on the engine's GPU."""


@dataclass(frozen=True, slots=True)
class ShapeRange:
    """Allowed sizes of one input, for engines built for a range.

    Raises:
        ValueError: The ranks differ, or the sizes are not in order.
    """

    smallest: tuple[int, ...]
    usual: tuple[int, ...]
    """The size that the engine is tuned for."""
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
        """Make a range of a single size."""
        return cls(tuple(shape), tuple(shape), tuple(shape))


class Engine(Protocol):
    """Runs one network. Engines hold no recurrent state: it is passed in and out as tensors."""

    @property
    def name(self) -> str:
        """Engine, version and device, for reports: ``onnxruntime 1.31 (CPU, 2 threads)``."""
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
            outputs: Names of the outputs to return; all if omitted.
            stream: CUDA stream handle to order the work on; None is CuPy's current stream. Must be None on
                the CPU. The host does not wait for the GPU.

        Returns:
            The outputs by name.

        Raises:
            EngineError: A tensor is missing, unknown, or of the wrong shape or dtype, or the network failed.
        """
        ...

    def close(self) -> None:
        """Free the network's memory; the engine cannot run afterwards."""
        ...


InputShapes = Mapping[str, "Mapping[str, Sequence[int]] | Sequence[int] | ShapeRange"]
"""For each input, in the network's order: its smallest, usual and largest size under ``min``, ``opt`` and
``max``, or a single fixed size."""

_KEYS = ("min", "opt", "max")


def shape_ranges(input_shapes: InputShapes) -> dict[str, ShapeRange]:
    """Validate a user's input sizes.

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
    """Check that a size is within the range that the engine was built for.

    Raises:
        EngineError: It is outside; the message has the actual and the expected size.
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
    """Check that inputs are exactly those of the network.

    Raises:
        EngineError: One is unknown or missing; the message lists the network's inputs.
    """
    given, known = set(inputs), [tensor.name for tensor in spec.inputs]
    for names, what in ((given - set(known), "is unknown"), (set(known) - given, "is missing")):
        if names:
            raise EngineError(f"{label}: input {min(names)!r} {what}; the network takes {', '.join(known)}")


def wanted_outputs(spec: EngineSpec, outputs: Sequence[str] | None, *, label: str) -> list[str]:
    """Validate the names of outputs to return; None selects all.

    Raises:
        EngineError: The network has no such output.
    """
    known = [tensor.name for tensor in spec.outputs]
    if outputs is None:
        return known
    if unknown := [name for name in outputs if name not in known]:
        raise EngineError(f"{label}: no output is called {unknown[0]!r}; it has {', '.join(known)}")
    return list(outputs)


def require_gpu_inputs(spec: EngineSpec, inputs: Mapping[str, Tensor], *, label: str) -> None:
    """Check inputs before passing their addresses to a library that does no checks.

    Raises:
        EngineError: A tensor is missing, unknown, not on the GPU, not C-contiguous, or of another dtype or shape.
    """
    expected = {tensor.name: tensor for tensor in spec.inputs}
    if set(inputs) != set(expected):
        raise EngineError(f"{label}: got inputs {sorted(inputs)}, expected {sorted(expected)}")
    for name, tensor in expected.items():
        array = inputs[name]
        if not is_on_gpu(array):
            raise EngineError(f"{label}: input {name!r} is in host memory, expected a CuPy array")
        fits = len(array.shape) == len(tensor.shape) and all(
            not isinstance(side, int) or side == got
            for side, got in zip(tensor.shape, array.shape, strict=True)
        )
        if array.dtype != tensor.dtype or not fits:
            raise EngineError(
                f"{label}: input {name!r} is {array.dtype} {list(array.shape)}, "
                f"expected {tensor.dtype} {list(tensor.shape)}"
            )
        if not array.flags.c_contiguous:
            raise EngineError(f"{label}: input {name!r} is not C-contiguous")


def failure(error: Exception | str, *, label: str, what: str, on_gpu: bool = True) -> EngineError:
    """Make the error for a library's failure: ``DeviceMemoryError`` if its message is about GPU memory."""
    text = str(error).strip()
    reason = text.splitlines()[0] if text else type(error).__name__
    if on_gpu and speaks_of_memory(text):
        return DeviceMemoryError(f"{label}: {what}: the GPU has too little memory{_free_memory()}: {reason}")
    return EngineError(f"{label}: {what}: {reason}")


def _free_memory() -> str:
    try:
        free, total = import_cupy().cuda.runtime.memGetInfo()
    except Exception:  # the memory figures are optional; a broken CUDA context raises many types of errors
        return ""
    return f" ({free / 2**30:.1f} of {total / 2**30:.1f} GiB free)"


def shapes_to_json(ranges: Mapping[str, ShapeRange]) -> str:
    """Serialise sizes as JSON, to store beside an engine."""
    return json.dumps({name: [one.smallest, one.usual, one.largest] for name, one in ranges.items()})


def shapes_from_json(text: str) -> dict[str, ShapeRange]:
    """Parse the output of ``shapes_to_json``; empty if the text is something else: ``benchmark`` then lacks sizes."""
    try:
        return {
            name: ShapeRange(*(tuple(int(side) for side in one) for one in sizes))
            for name, sizes in json.loads(text).items()
        }
    except (ValueError, TypeError, AttributeError):
        return {}
