"""ONNX Runtime on the CPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import onnxruntime as ort

from vitascope.device import available_cores
from vitascope.errors import EngineError
from vitascope.gpu.engines.engine import EngineSpec, Tensor, TensorSpec

__all__ = ["OnnxRuntimeEngine"]

_DTYPES: dict[str, type[np.generic]] = {
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(double)": np.float64,
    "tensor(uint8)": np.uint8,
    "tensor(int8)": np.int8,
    "tensor(int32)": np.int32,
    "tensor(int64)": np.int64,
    "tensor(bool)": np.bool_,
}
# ONNX Runtime's levels: 4 is fatal. Its errors reach us as exceptions; printed too, they would break the
# one line on stderr that a failure gets.
_FATAL = 4


class OnnxRuntimeEngine:
    """One ONNX network under ONNX Runtime's CPU execution provider.

    Worker threads sleep while they wait instead of spinning, because decode and encode want the same cores.

    Args:
        model: Path of an ``.onnx`` file, or its serialised bytes.
        threads: Threads inside one operator; 0 uses every core this process may run on.

    Raises:
        EngineError: The file is missing, is not an ONNX network, or uses operators that this ONNX Runtime lacks.
    """

    def __init__(self, model: Path | bytes, *, threads: int = 0) -> None:
        options = ort.SessionOptions()
        self._threads = threads or available_cores()
        options.intra_op_num_threads = self._threads
        options.inter_op_num_threads = 1
        options.log_severity_level = _FATAL
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        label = str(model) if isinstance(model, Path) else "network"
        try:
            source = str(model) if isinstance(model, Path) else model
            session = ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # ONNX Runtime raises a dozen types whose only common base is Exception
            raise EngineError(f"{label}: ONNX Runtime cannot load it: {_first_line(error)}") from error
        self._session: ort.InferenceSession | None = session
        self._label = label
        self._spec = EngineSpec(
            tuple(_tensor_spec(arg) for arg in session.get_inputs()),
            tuple(_tensor_spec(arg) for arg in session.get_outputs()),
        )
        self._run_options = ort.RunOptions()
        self._run_options.log_severity_level = _FATAL

    @property
    def name(self) -> str:
        """For example ``onnxruntime 1.31.1 (CPU, 2 threads)``."""
        plural = "" if self._threads == 1 else "s"
        return f"onnxruntime {ort.__version__} (CPU, {self._threads} thread{plural})"

    @property
    def spec(self) -> EngineSpec:
        """Named tensors, dtypes and symbolic shapes, as the file declares them."""
        return self._spec

    def run(
        self, inputs: Mapping[str, Tensor], outputs: Sequence[str] | None = None, *, stream: int | None = None
    ) -> dict[str, Tensor]:
        """Compute the outputs; see ``Engine.run``. NumPy arrays in and out; ``stream`` must be None."""
        if stream is not None:
            raise EngineError(f"{self._label}: a CPU engine takes no CUDA stream")
        names = list(outputs) if outputs is not None else [tensor.name for tensor in self._spec.outputs]
        if self._session is None:
            raise EngineError(f"{self._label}: the engine was closed")
        try:
            results = self._session.run(names, dict(inputs), self._run_options)
        except Exception as error:  # see __init__
            raise EngineError(f"{self._label}: inference failed: {_first_line(error)}") from error
        return dict(zip(names, results, strict=True))

    def close(self) -> None:
        """Free the session; idempotent."""
        self._session = None

    def __enter__(self) -> OnnxRuntimeEngine:
        """Use as a context manager that closes the engine."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the engine."""
        self.close()


def _tensor_spec(arg: Any) -> TensorSpec:
    if arg.type not in _DTYPES:
        raise EngineError(f"tensor {arg.name!r} has the type {arg.type}, which no engine here computes")
    return TensorSpec(arg.name, np.dtype(_DTYPES[arg.type]), tuple(arg.shape or ()))


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
