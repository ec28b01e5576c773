"""The part of TensorRT's Python interface that the engine uses, and loading it.

Written from NVIDIA's documentation of TensorRT 10 and 11. Every call that is made, by its page below
docs.nvidia.com/deeplearning/tensorrt/api/python_api:

* ``infer/Core/Logger``: ``ILogger``, its ``Severity`` and ``log``.
* ``infer/Core/Builder``: ``Builder.create_network``, ``create_builder_config``, ``create_optimization_profile``,
  ``build_serialized_network``, which answers None where it fails; ``NetworkDefinitionCreationFlag.STRONGLY_TYPED``.
* ``parsers/Onnx/pyOnnx``: ``OnnxParser.parse(model, path)``, ``num_errors``, ``get_error``; ``ParserError.desc``.
* ``infer/Core/BuilderConfig``: ``clear_flag(BuilderFlag.TF32)``, ``set_memory_pool_limit(MemoryPoolType.WORKSPACE)``,
  ``add_optimization_profile``, ``create_timing_cache``, ``set_timing_cache``, ``get_timing_cache``.
* ``infer/Core/TimingCache``: ``ITimingCache.serialize``.
* ``infer/Core/OptimizationProfile``: ``set_shape(input, min, opt, max)``.
* ``infer/Graph/Network``: ``INetworkDefinition.num_inputs``, ``get_input``.
* ``infer/Graph/LayerBase``: ``ITensor.name``, ``shape``.
* ``infer/Core/Runtime``: ``deserialize_cuda_engine``, which answers None for another version's or GPU's engine.
* ``infer/Core/Engine``: ``TrtEngine`` below, and ``TensorIOMode``.
* ``infer/Core/ExecutionContext``: ``TrtContext`` below.
* ``infer/FoundationalTypes/DataType``: ``nptype``; ``infer/FoundationalTypes/HostMemory``: ``IHostMemory``, a buffer.

The page "Python Migration Patterns for TensorRT 11.x" says what 11 removed: everything here exists in both;
``STRONGLY_TYPED`` is needed by 10 and accepted without effect by 11.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any, Protocol, cast

import numpy as np

from vitascope.errors import MissingDependencyError

__all__ = ["ErrorLog", "TrtContext", "TrtEngine", "TrtModule", "load_tensorrt", "new_error_log"]

_OLDEST_MAJOR = 10
_INSTALL = "pip install tensorrt"


class TrtContext(Protocol):
    """``tensorrt.IExecutionContext``; the setters answer False where they refuse."""

    def set_input_shape(self, name: str, shape: Sequence[int]) -> bool:
        """Fix the size of an input for the next run."""
        ...

    def get_tensor_shape(self, name: str) -> Sequence[int]:
        """Size of a tensor for the input sizes that are set; -1 where it depends on data."""
        ...

    def set_tensor_address(self, name: str, memory: int) -> bool:
        """Where a tensor lies in the GPU's memory."""
        ...

    def execute_async_v3(self, stream_handle: int) -> bool:
        """Launch on a stream."""
        ...


class TrtEngine(Protocol):
    """``tensorrt.ICudaEngine``."""

    num_io_tensors: int

    def get_tensor_name(self, index: int) -> str:
        """Name of an input or output."""
        ...

    def get_tensor_mode(self, name: str) -> Any:
        """``TensorIOMode.INPUT`` or ``OUTPUT``."""
        ...

    def get_tensor_dtype(self, name: str) -> Any:
        """``tensorrt.DataType``."""
        ...

    def get_tensor_shape(self, name: str) -> Sequence[int]:
        """-1 where free."""
        ...

    def get_tensor_profile_shape(self, name: str, profile_index: int) -> Sequence[Sequence[int]]:
        """Smallest, usual and largest size of an input under one optimisation profile."""
        ...

    def serialize(self) -> Any:
        """``IHostMemory`` of the engine as ``Runtime.deserialize_cuda_engine`` takes it; None where it fails."""
        ...

    def create_execution_context(self) -> TrtContext | None:
        """What runs are launched through; one run at a time."""
        ...


class TrtModule(Protocol):
    """The module ``tensorrt``. Its enumerations and builder objects are used as they come."""

    __version__: str
    ILogger: Any
    Builder: Any
    OnnxParser: Any
    Runtime: Any
    NetworkDefinitionCreationFlag: Any
    BuilderFlag: Any
    MemoryPoolType: Any
    TensorIOMode: Any

    def nptype(self, trt_type: Any) -> type[np.generic]:
        """NumPy's name of a ``tensorrt.DataType``; TypeError where it has none."""
        ...


class ErrorLog(Protocol):
    """A ``tensorrt.ILogger`` that keeps errors instead of printing them."""

    messages: list[str]


def load_tensorrt() -> TrtModule:
    """Import TensorRT.

    Raises:
        MissingDependencyError: It is not installed, its libraries cannot be loaded, or it is too old.
    """
    try:
        module = cast(TrtModule, importlib.import_module("tensorrt"))
    except ImportError as error:
        raise MissingDependencyError(f"TensorRT is not installed: {_INSTALL}") from error
    except OSError as error:  # the module is there, its libraries are not
        raise MissingDependencyError(f"TensorRT's libraries cannot be loaded: {_INSTALL}") from error
    if int(module.__version__.partition(".")[0]) < _OLDEST_MAJOR:
        raise MissingDependencyError(
            f"TensorRT {module.__version__} is too old, {_OLDEST_MAJOR} or newer is needed: {_INSTALL} --upgrade"
        )
    return module


def new_error_log(trt: TrtModule) -> ErrorLog:
    """A logger that collects what went wrong, for messages of ours. TensorRT answers failures with None or False."""
    messages: list[str] = []

    def log(_self: object, severity: Any, message: str) -> None:
        if int(severity) <= int(trt.ILogger.Severity.ERROR):
            messages.append(" ".join(message.split()))

    def construct(self: Any) -> None:
        trt.ILogger.__init__(self)
        self.messages = messages

    # Derived here because the base exists only once TensorRT is loaded.
    return cast(ErrorLog, type("ErrorLog", (trt.ILogger,), {"__init__": construct, "log": log})())
