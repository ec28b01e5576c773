"""ONNX Runtime: on the CPU, or on a GPU through CUDA, TensorRT or TensorRT-RTX."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

from vitascope.device import available_cores
from vitascope.errors import EngineError
from vitascope.gpu.engines.engine import EngineSpec, Precision, ShapeRange, Tensor, TensorSpec
from vitascope.gpu.engines.gpu_arrays import (
    external_stream,
    failure,
    import_cupy,
    require_gpu_inputs,
    wanted_outputs,
)
from vitascope.gpu.engines.onnx_library import ort
from vitascope.gpu.engines.onnx_providers import (
    FATAL,
    NUMPY_DTYPES,
    PROVIDER_LABELS,
    BoundSession,
    Provider,
    SessionRequest,
    open_session,
)
from vitascope.gpu.engines.precision import Calibration, with_precision

if TYPE_CHECKING:
    pass

__all__ = ["OnnxRuntimeEngine"]


class OnnxRuntimeEngine:
    """One ONNX network under ONNX Runtime.

    On the CPU it takes and gives NumPy arrays. On a GPU it takes and gives CuPy arrays, computes on one stream of its
    own (or ``stream``), orders the caller's stream behind it by events, and never makes the host wait. The GPU
    providers have not yet run on hardware; see ``onnx_providers``. Calls come from one thread at a time.

    Args:
        model: Path of an ``.onnx`` file, or its serialised bytes.
        provider: Where it runs. What the provider cannot compute runs on CUDA, then the CPU; a provider that would
            compute nothing is an error.
        threads: Threads inside one operator on the CPU; 0 uses every core this process may run on.
        device_id: Number of the GPU.
        stream: CUDA stream handle that the GPU works on, for example the job's; a stream of the engine's own when
            omitted. It must outlive the engine and may not be the default stream.
        precision: Arithmetic. For ``mixed``, ``fp16`` and ``int8`` the network is converted (see ``with_precision``);
            the others are the network as it is, with TF32 products or without.
        calibration: For ``int8``: what the network is typically fed.
        cuda_graph: Replay captured CUDA graphs, one for each set of shapes.
        cudnn_benchmark: Time cuDNN's convolution algorithms in the first run, instead of asking its heuristics.
        deterministic: Use only algorithms that repeat bit for bit.
        cache_dir: For TensorRT: where engines and timings are kept; created when absent.
        profiles: For TensorRT: sizes of inputs with free dimensions.
        workspace_bytes: For TensorRT: most scratch memory; its own limit when omitted.
        label: What messages call it; the file's name when omitted.

    Raises:
        EngineError: The file is missing, is not an ONNX network, uses operators that this ONNX Runtime lacks, or
            would not run on the provider; or the arguments contradict each other.
        MissingDependencyError: The provider or the converter is not installed; the message names the package.
    """

    def __init__(
        self,
        model: Path | bytes,
        *,
        provider: Provider = "cpu",
        threads: int = 0,
        device_id: int = 0,
        stream: int | None = None,
        precision: Precision = "fp32",
        calibration: Calibration | None = None,
        cuda_graph: bool = False,
        cudnn_benchmark: bool = True,
        deterministic: bool = False,
        cache_dir: Path | None = None,
        profiles: Mapping[str, ShapeRange] | None = None,
        workspace_bytes: int | None = None,
        label: str | None = None,
    ) -> None:
        label = label or (str(model) if isinstance(model, Path) else "network")
        self._label = label
        self._provider: Provider = provider
        self._precision: Precision = precision
        self._cuda_graph = cuda_graph
        self._threads = threads or available_cores()
        self._bound: BoundSession | None = None
        self._stream: Any = None
        if provider == "cpu" and (stream is not None or cuda_graph or precision != "fp32"):
            raise EngineError(f"{label}: on the CPU there is no stream, no CUDA graph, and fp32 only")
        if not provider.startswith("tensorrt") and (cache_dir is not None or profiles):
            raise EngineError(f"{label}: only TensorRT keeps engines and has shape profiles, not {provider}")
        if provider != "tensorrt" and workspace_bytes is not None:
            raise EngineError(f"{label}: only TensorRT has a limit on its workspace, not {provider}")
        if stream == 0:
            raise EngineError(f"{label}: ONNX Runtime takes no default stream; give it one of your own")
        if cache_dir is not None:
            _create(cache_dir, label)
        if provider != "cpu":
            cupy = import_cupy()
            with cupy.cuda.Device(device_id):
                self._stream = (
                    cupy.cuda.Stream(non_blocking=True) if stream is None else external_stream(stream)
                )
        source: str | bytes = str(model) if isinstance(model, Path) else model
        if precision not in ("fp32", "tf32"):
            source = with_precision(model, precision, calibration=calibration)
        request = SessionRequest(
            provider=provider,
            threads=self._threads,
            device_id=device_id,
            stream=0 if self._stream is None else self._stream.ptr,
            cache_dir=cache_dir,
            cuda_graph=cuda_graph,
            allow_tf32=precision != "fp32",
            cudnn_benchmark=cudnn_benchmark,
            deterministic=deterministic,
            profiles=profiles or {},
            workspace_bytes=workspace_bytes,
        )
        session = open_session(source, request, label=label)
        self._session: ort.InferenceSession | None = session
        self._spec = EngineSpec(
            tuple(_tensor_spec(arg) for arg in session.get_inputs()),
            tuple(_tensor_spec(arg) for arg in session.get_outputs()),
            "cpu" if provider == "cpu" else "cuda",
        )
        if provider != "cpu":
            self._bound = BoundSession(
                session, stream=self._stream, device_id=device_id, cuda_graph=cuda_graph
            )
        self._run_options = ort.RunOptions()
        self._run_options.log_severity_level = FATAL

    @property
    def name(self) -> str:
        """For example ``onnxruntime 1.31.1 (CPU, 2 threads)`` or ``onnxruntime 1.31.1 (CUDA, tf32)``."""
        if self._provider == "cpu":
            plural = "" if self._threads == 1 else "s"
            how = f"CPU, {self._threads} thread{plural}"
        else:
            how = f"{PROVIDER_LABELS[self._provider]}, {self._precision}"
        return f"onnxruntime {ort.__version__} ({how}{', CUDA graph' if self._cuda_graph else ''})"

    @property
    def spec(self) -> EngineSpec:
        """Named tensors, dtypes and symbolic shapes, as the file declares them."""
        return self._spec

    def run(
        self, inputs: Mapping[str, Tensor], outputs: Sequence[str] | None = None, *, stream: int | None = None
    ) -> dict[str, Tensor]:
        """Compute the outputs; see ``Engine.run``. On the CPU ``stream`` must be None.

        Raises:
            DeviceMemoryError: The GPU has too little memory.
            EngineError: As ``Engine.run``.
        """
        if self._session is None:
            raise EngineError(f"{self._label}: the engine was closed")
        if self._bound is None and stream is not None:
            raise EngineError(f"{self._label}: a CPU engine takes no CUDA stream")
        names = wanted_outputs(self._spec, outputs, label=self._label)
        if self._bound is not None:
            require_gpu_inputs(self._spec, inputs, label=self._label)
        try:
            if self._bound is not None:
                return self._bound.run(inputs, names, stream=stream)
            results = self._session.run(names, dict(inputs), self._run_options)
        except EngineError:
            raise
        except Exception as error:  # ONNX Runtime raises a dozen types whose only common base is Exception
            raise failure(
                error, label=self._label, what="inference failed", on_gpu=self._bound is not None
            ) from error
        return dict(zip(names, results, strict=True))

    def interrupt(self) -> None:
        """End the calls on the CPU that are under way, from another thread; they and all later ones fail."""
        self._run_options.terminate = True

    def close(self) -> None:
        """Free the session; idempotent. On a GPU, waits for the work that is under way."""
        if self._bound is not None and self._session is not None:
            self._stream.synchronize()
        self._session = self._bound = None

    def __enter__(self) -> OnnxRuntimeEngine:
        """Use as a context manager that closes the engine."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the engine."""
        self.close()


def _create(directory: Path, label: str) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise EngineError(f"{label}: engines cannot be kept in {directory} ({reason})") from error


def _tensor_spec(arg: Any) -> TensorSpec:
    if arg.type not in NUMPY_DTYPES:
        raise EngineError(f"tensor {arg.name!r} has the type {arg.type}, which no engine here computes")
    return TensorSpec(arg.name, np.dtype(NUMPY_DTYPES[arg.type]), tuple(arg.shape or ()))
