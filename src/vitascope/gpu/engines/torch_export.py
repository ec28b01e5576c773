"""Exports a PyTorch module as a program, and that as an ONNX network, with free dimensions where sizes vary.

``torch.export`` traces the module once; ``torch.onnx.export(dynamo=True)`` translates the program (PyTorch's
documentation, pages "torch.export" and "torch.onnx"). The translation needs the package ``onnxscript``.
"""

from __future__ import annotations

import copy
import hashlib
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from vitascope.errors import EngineError, MissingDependencyError, UsageError
from vitascope.gpu.engines.engine import ShapeRange, TensorSpec


class HalfPrecision(nn.Module):
    """A copy of a module with FP16 weights and activations, channels-last internally.

    Inputs and outputs keep their types. cuDNN's tensor-core convolutions use channels-last (NVIDIA, "Convolutional
    Layers User's Guide", section "Tensor Layouts").

    Args:
        module: The module; not changed.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self._given = weights_dtype(module)
        half: Any = copy.deepcopy(module).eval().half()  # untyped in torch
        self.inner: nn.Module = half.to(memory_format=torch.channels_last)

    def forward(self, *inputs: Tensor) -> Any:
        """The module's results, with floats in the type of its weights."""
        return _mapped(self.inner(*(_as_half(tensor) for tensor in inputs)), self._given)


def _as_half(tensor: Tensor) -> Tensor:
    if not tensor.is_floating_point():
        return tensor
    half = tensor.half()
    return half.contiguous(memory_format=torch.channels_last) if tensor.ndim == 4 else half


def _mapped(results: Any, dtype: torch.dtype) -> Any:
    if isinstance(results, Tensor):
        return results.to(dtype).contiguous() if results.is_floating_point() else results
    if isinstance(results, dict):
        return {name: _mapped(result, dtype) for name, result in results.items()}
    return tuple(_mapped(result, dtype) for result in results)


_OPSET = 20
"""The newest opset that every ONNX Runtime since 1.20, and TensorRT 10, can read."""

_NUMPY_DTYPES = {
    torch.float32: np.float32,
    torch.float16: np.float16,
    torch.float64: np.float64,
    torch.uint8: np.uint8,
    torch.int8: np.int8,
    torch.int32: np.int32,
    torch.int64: np.int64,
    torch.bool: np.bool_,
}


@dataclass(frozen=True, slots=True)
class TracedModule:
    """A module that takes tensors by position and returns a tuple, with the names and sizes of both."""

    module: nn.Module
    """In evaluation mode; a copy, so that the caller's module is unchanged."""
    examples: tuple[Tensor, ...]
    ranges: dict[str, ShapeRange]
    outputs: tuple[str, ...]
    input_specs: tuple[TensorSpec, ...]
    output_specs: tuple[TensorSpec, ...]

    def exported(self) -> torch.export.ExportedProgram:
        """Trace the program with ``torch.export``.

        Raises:
            EngineError: The module cannot be traced, or not with variable sizes; the message has PyTorch's reason.
        """
        sizes = tuple(_free_sizes(self.ranges)[name] for name in self.ranges)
        with _quiet():
            try:
                return torch.export.export(self.module, self.examples, dynamic_shapes=(sizes,), strict=False)
            except Exception as error:  # torch.export documents no error types
                raise EngineError(f"the module cannot be exported: {_reason(error)}") from error

    def onnx_bytes(self) -> bytes:
        """Translate the network to a serialised ONNX model.

        Raises:
            MissingDependencyError: ``onnxscript`` is not installed.
            EngineError: An operator cannot be translated, or the weights exceed the 2 GB of one protobuf message.
        """
        try:
            import onnxscript  # noqa: F401 - PyTorch imports it with an error of its own
        except ImportError as error:
            raise MissingDependencyError(
                "PyTorch writes ONNX networks with onnxscript: pip install 'vitascope[torch]'"
            ) from error
        # Given a module, PyTorch would silently fix a size that it cannot keep free.
        exported = self.exported()
        with _quiet():
            try:
                program = torch.onnx.export(
                    exported,
                    input_names=list(self.ranges),
                    output_names=list(self.outputs),
                    opset_version=_OPSET,
                    dynamo=True,
                    dynamic_shapes=(
                        self._size_names(),
                    ),  # of an exported program: what they are called in the file
                    verbose=False,
                )
                assert program is not None  # with dynamo=True it is a program
                return bytes(program.model_proto.SerializeToString())
            except Exception as error:
                raise EngineError(f"the module cannot be written as ONNX: {_reason(error)}") from error

    def _size_names(self) -> tuple[dict[int, str], ...]:
        return tuple(
            {axis: name for axis, name in enumerate(spec.shape) if isinstance(name, str)}
            for spec in self.input_specs
        )


def weights_dtype(module: nn.Module) -> torch.dtype:
    """The type of the first weight used in arithmetic, which inputs should have, too; else float32."""
    wide = (torch.float32, torch.float16, torch.bfloat16, torch.float64)  # 8-bit types only store values
    return next((weight.dtype for weight in module.parameters() if weight.dtype in wide), torch.float32)


def trace_module(
    model: nn.Module,
    ranges: Mapping[str, ShapeRange],
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype | None = None,
    computes: bool = True,
) -> TracedModule:
    """Prepare a module for export on one device; runs it once.

    Args:
        model: Takes its inputs by position, in the order of ``ranges``, and returns a tensor, a tuple or a dict of
            them. Not changed.
        ranges: Sizes of the inputs, by their names in the engine.
        device: Device of the copy.
        dtype: Element type of the inputs; that of the weights if omitted.
        computes: False runs it on PyTorch's device ``meta``, which only tracks shapes, for arithmetic that takes
            minutes on this device, such as FP16 on a CPU.

    Raises:
        UsageError: ``model`` is not a module.
        EngineError: The module does not accept such inputs, or returns something else.
    """
    if not isinstance(model, nn.Module):
        raise UsageError(f"a PyTorch module is expected, got {type(model).__name__}")
    inner = copy.deepcopy(model).eval().to(device)
    if dtype is None:
        dtype = weights_dtype(inner)
    examples = tuple(torch.zeros(_example(one), dtype=dtype, device=device) for one in ranges.values())
    probe = inner if computes else copy.deepcopy(inner).to("meta")
    with torch.inference_mode():
        try:
            results = probe(*(examples if computes else (example.to("meta") for example in examples)))
        except Exception as error:  # any error of the user's module
            shapes = ", ".join(str(list(example.shape)) for example in examples)
            raise EngineError(f"the module does not take {shapes}: {_reason(error)}") from error
    names, tensors = _named(results)
    specs = tuple(TensorSpec(name, _numpy_dtype(dtype), _symbolic(name, ranges[name])) for name in ranges)
    outputs = tuple(
        TensorSpec(name, _numpy_dtype(tensor.dtype), (None,) * tensor.ndim)
        for name, tensor in zip(names, tensors, strict=True)
    )
    return TracedModule(_Flat(inner).eval(), examples, dict(ranges), names, specs, outputs)


def program_fingerprint(program: torch.export.ExportedProgram) -> str:
    """sha256 of what a program computes: its operations, weights and constants."""
    digest = hashlib.sha256(program.graph_module.code.encode())
    tensors = {**program.state_dict, **program.constants}
    for name in sorted(tensors):
        digest.update(name.encode())
        if isinstance(tensor := tensors[name], Tensor):
            digest.update(f"{tensor.dtype} {list(tensor.shape)}".encode())
            digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def run_on_cpu(model: nn.Module, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Compute a module's outputs by name, on the CPU in FP32: the reference for engines.

    Args:
        model: The module; not changed.
        inputs: NumPy arrays in the module's order.
    """
    exact = copy.deepcopy(model).eval().float().cpu()
    with torch.inference_mode():
        results = exact(*(torch.from_numpy(np.ascontiguousarray(array)) for array in inputs.values()))
    names, tensors = _named(results)
    return {name: tensor.numpy() for name, tensor in zip(names, tensors, strict=True)}


class _Flat(nn.Module):
    """The user's module, returning its results as a tuple."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        return _named(self.inner(*inputs))[1]


def _named(results: Any) -> tuple[tuple[str, ...], tuple[Tensor, ...]]:
    if isinstance(results, Tensor):
        return ("output",), (results,)
    if isinstance(results, Mapping):
        names, tensors = tuple(map(str, results)), tuple(results.values())
    elif isinstance(results, Sequence):
        names, tensors = tuple(f"output_{index}" for index in range(len(results))), tuple(results)
    else:
        names, tensors = (), ()
    if not tensors or not all(isinstance(tensor, Tensor) for tensor in tensors):
        raise EngineError(
            f"the module gives {type(results).__name__}, expected a tensor, a tuple or a dict of them"
        )
    return names, tensors


def _example(sizes: ShapeRange) -> tuple[int, ...]:
    """The usual size, but at least 2 for free dimensions: a free dimension of 1 would be traced as fixed."""
    return tuple(
        usual if usual > 1 or low == high else min(2, high)
        for low, usual, high in zip(sizes.smallest, sizes.usual, sizes.largest, strict=True)
    )


def _free_sizes(ranges: Mapping[str, ShapeRange]) -> dict[str, dict[int, Any]]:
    """The free dimensions for ``torch.export``. First dimensions with the same range share one, the batch."""
    batches: dict[tuple[int, int], Any] = {}
    free: dict[str, dict[int, Any]] = {}
    for index, (name, sizes) in enumerate(ranges.items()):
        free[name] = {}
        for axis, (low, high) in enumerate(zip(sizes.smallest, sizes.largest, strict=True)):
            if low == high:
                continue
            if axis == 0:
                label = "batch" if not batches else f"batch_{len(batches)}"
                free[name][0] = batches.setdefault((low, high), torch.export.Dim(label, min=low, max=high))
            else:
                free[name][axis] = torch.export.Dim(f"size_{index}_{axis}", min=low, max=high)
    return free


def _symbolic(name: str, sizes: ShapeRange) -> tuple[int | str | None, ...]:
    return tuple(
        low if low == high else "batch" if axis == 0 else f"{name}_{axis}"
        for axis, (low, high) in enumerate(zip(sizes.smallest, sizes.largest, strict=True))
    )


def _numpy_dtype(dtype: torch.dtype) -> np.dtype[Any]:
    if dtype not in _NUMPY_DTYPES:
        raise EngineError(f"engines here do not support {dtype}; convert it inside the module")
    return np.dtype(_NUMPY_DTYPES[dtype])


def _reason(error: Exception) -> str:
    """The first informative line; PyTorch's long messages begin with headings and advice."""
    root = error.__cause__ if error.__cause__ is not None and "step" in str(error) else error
    lines = [line.strip() for line in str(root).splitlines() if line.strip()]
    return lines[0] if lines else type(root).__name__


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence PyTorch's warnings about its own code, which users cannot change."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
