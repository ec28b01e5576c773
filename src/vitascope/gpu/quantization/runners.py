"""Anything that computes, as one callable from NumPy arrays to NumPy arrays."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from vitascope.errors import UsageError
from vitascope.gpu.quantization.calibration import FloatArray

__all__ = ["Comparable", "Run", "is_module", "opened"]

Comparable: TypeAlias = Any
"""A PyTorch module, an ONNX network (path or bytes), an engine (``run(dict) -> dict``), or a callable from one NumPy
array to one."""

Run = Callable[[Mapping[str, FloatArray]], Mapping[str, FloatArray]]


def is_module(model: object) -> bool:
    """True for a PyTorch module; asks no library that is not loaded: whoever holds a module has imported it."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(model, torch.nn.Module)


@contextmanager
def opened(model: Comparable, *, threads: int = 0) -> Iterator[tuple[Run, tuple[str, ...] | None]]:
    """Something that runs, and its input names where it knows them.

    Args:
        model: See ``Comparable``. ONNX networks open under ONNX Runtime on the CPU, and are closed again.
        threads: Of ONNX Runtime; 0 uses every core.

    Raises:
        UsageError: It is nothing that runs.
        EngineError: It is no ONNX network.
    """
    if is_module(model):
        yield _module_runner(model), None
    elif isinstance(model, bytes | str | Path):
        from vitascope.gpu.engines.onnx_runtime import OnnxRuntimeEngine

        source = model if isinstance(model, bytes) else Path(model)
        with OnnxRuntimeEngine(source, threads=threads) as engine:
            yield engine.run, tuple(tensor.name for tensor in engine.spec.inputs)
    elif hasattr(model, "run") and hasattr(model, "spec"):
        yield model.run, tuple(tensor.name for tensor in model.spec.inputs)
    elif callable(model):
        yield _callable_runner(model), None
    else:
        raise UsageError(f"{type(model).__name__} is no module, ONNX network, engine or callable")


def _module_runner(model: Any) -> Run:
    import torch

    example = next(
        (p for p in [*model.parameters(), *model.buffers()] if p.is_floating_point()), torch.zeros(())
    )

    def run(inputs: Mapping[str, FloatArray]) -> Mapping[str, FloatArray]:
        tensors = [
            torch.from_numpy(np.ascontiguousarray(array)).to(example.device, example.dtype)
            for array in inputs.values()
        ]
        with torch.inference_mode():
            results = model(*tensors)
        named = _named(results)
        return {name: tensor.float().cpu().numpy() for name, tensor in named.items()}

    return run


def _callable_runner(call: Callable[[Any], Any]) -> Run:
    def run(inputs: Mapping[str, FloatArray]) -> Mapping[str, FloatArray]:
        return {name: np.asarray(array) for name, array in _named(call(*inputs.values())).items()}

    return run


def _named(results: Any) -> dict[str, Any]:
    if isinstance(results, Mapping):
        return dict(results)
    if isinstance(results, tuple | list):
        return {f"output_{index}": result for index, result in enumerate(results)}
    return {"output": results}
