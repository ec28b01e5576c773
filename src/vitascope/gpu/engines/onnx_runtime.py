"""ONNX Runtime, on the CPU or on a GPU through CUDA, TensorRT or TensorRT-RTX.

ONNX Runtime falls back silently: it drops a provider whose libraries are missing, and runs operators that no
other provider takes on the CPU. Here the requested provider runs, or opening fails.

On a GPU a session computes on the one stream it was opened with, from and to CuPy arrays. Events order other
streams of callers before and behind it; the host does not wait.

Only ``cpu`` has been run. ``cuda``, ``tensorrt`` and ``tensorrt-rtx`` follow ONNX Runtime's documentation and pass
contract tests, but have not yet run on a GPU. ``tensorrt-rtx`` is known to register on a Hopper GPU, but to offer no
device there.

ONNX Runtime's own profile has the cost of each operator: one JSON file per session, in Chrome's trace format,
with time, shapes and sizes: https://onnxruntime.ai/docs/performance/tune-performance/profiling-tools.html
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from time import monotonic_ns, time_ns
from typing import Any, Literal

import numpy as np

from vitascope.closing import Closing
from vitascope.device import available_cores
from vitascope.errors import EngineError, MissingDependencyError
from vitascope.gpu.current_stream import external_stream, on_cuda_stream, on_stream
from vitascope.gpu.engines.engine import (
    EngineSpec,
    Precision,
    ShapeRange,
    Tensor,
    TensorSpec,
    failure,
    require_gpu_inputs,
    wanted_outputs,
)
from vitascope.gpu.engines.onnx_library import ort
from vitascope.gpu.engines.onnx_network import Calibration, with_precision
from vitascope.gpu.kernels.cuda_module import import_cupy

_SUFFIX = "_kernel_time"
"""Suffix of the names of events that time an operator's computation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorCall:
    """One execution of an operator."""

    kind: str
    """The operator's type, such as ``Conv``."""
    name: str
    """ONNX Runtime's name of the node."""
    seconds: float
    """Time on the host; on a GPU, the launch only."""
    input_shapes: tuple[tuple[int, ...], ...]
    """Activations first, then weights and biases, in the operator's own order."""
    output_shapes: tuple[tuple[int, ...], ...]
    activation_bytes: int
    """Bytes of the inputs computed by other operators."""
    parameter_bytes: int
    """Bytes of the inputs that are weights."""
    output_bytes: int


class OperatorTraces:
    """Profiled sessions; made by ``operator_traces``.

    Args:
        folder: Folder of the profiles.
        optimised: See ``operator_traces``.
    """

    def __init__(self, folder: Path, *, optimised: bool) -> None:
        self._folder = folder
        self._optimised = optimised
        self._began_ns: list[int] = []

    def ask(self, options: ort.SessionOptions) -> None:
        """Profile the next session."""
        options.enable_profiling = True
        options.profile_file_prefix = str(self._folder / self._prefix(len(self._began_ns)))
        if not self._optimised:
            options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL

    def opened(self, session: ort.InferenceSession) -> None:
        """Record when its profile began, on C++'s finest clock, which differs between systems."""
        began = session.get_profiling_start_time_ns()
        ages = [now() - began for now in (monotonic_ns, time_ns)]
        self._began_ns.append(monotonic_ns() - min(age for age in ages if age >= 0))

    def calls(self, *, since_ns: int = 0) -> list[list[OperatorCall]]:
        """List each closed session's operators, in the order in which they began.

        Args:
            since_ns: Time of ``time.monotonic_ns``; earlier operators are left out.
        """
        found = []
        for number, began in enumerate(self._began_ns):
            (path,) = self._folder.glob(f"{self._prefix(number)}_*.json")
            events = json.loads(path.read_text(encoding="utf-8"))
            found.append(_calls(events, since_microseconds=(since_ns - began) / 1e3))
        return found

    @staticmethod
    def _prefix(number: int) -> str:
        return f"session-{number}"


_TRACES: ContextVar[OperatorTraces | None] = ContextVar("vitascope_operator_traces", default=None)


@contextmanager
def operator_traces(folder: Path, *, optimised: bool = True) -> Iterator[OperatorTraces]:
    """Profile every session that this thread opens in the block; each writes its file on closing.

    Args:
        folder: Existing folder for the files.
        optimised: False runs the file's nodes as they are, without fusion or layout changes: for counting,
            not timing.
    """
    traces = OperatorTraces(folder, optimised=optimised)
    token = _TRACES.set(traces)
    try:
        yield traces
    finally:
        _TRACES.reset(token)


def traces_wanted() -> OperatorTraces | None:
    """The traces that a session opened now reports to; None if there are none."""
    return _TRACES.get()


def _calls(events: Sequence[Mapping[str, Any]], *, since_microseconds: float) -> list[OperatorCall]:
    timed = [event for event in events if event.get("cat") == "Node" and event["name"].endswith(_SUFFIX)]
    kept = [event for event in timed if float(event["ts"]) >= since_microseconds]
    return [_call(event) for event in sorted(kept, key=lambda event: float(event["ts"]))]


def _call(event: Mapping[str, Any]) -> OperatorCall:
    details = event["args"]
    return OperatorCall(
        kind=details["op_name"],
        name=event["name"].removesuffix(_SUFFIX),
        seconds=float(event["dur"]) / 1e6,
        input_shapes=_shapes(details["input_type_shape"]),
        output_shapes=_shapes(details["output_type_shape"]),
        activation_bytes=int(details["activation_size"]),
        parameter_bytes=int(details["parameter_size"]),
        output_bytes=int(details["output_size"]),
    )


def _shapes(tensors: Sequence[Mapping[str, Sequence[int]]]) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(shape) for tensor in tensors for shape in tensor.values())


Provider = Literal["cpu", "cuda", "tensorrt", "tensorrt-rtx"]

PROVIDER_LABELS: Mapping[Provider, str] = {
    "cpu": "CPU",
    "cuda": "CUDA",
    "tensorrt": "TensorRT",
    "tensorrt-rtx": "TensorRT-RTX",
}
"""Providers' names in reports."""

_EXECUTION_PROVIDERS: Mapping[Provider, str] = {
    "cpu": "CPUExecutionProvider",
    "cuda": "CUDAExecutionProvider",
    "tensorrt": "TensorrtExecutionProvider",
    "tensorrt-rtx": "NvTensorRTRTXExecutionProvider",
}
_RTX_MODULE = "onnxruntime_ep_nv_tensorrt_rtx"
_INSTALL: Mapping[Provider, str] = {
    "cuda": "pip uninstall onnxruntime && pip install onnxruntime-gpu",
    "tensorrt": "pip uninstall onnxruntime && pip install onnxruntime-gpu tensorrt",
    "tensorrt-rtx": "pip install onnxruntime-ep-nv-tensorrt-rtx-cu13",
}
# ONNX Runtime's log level 4 is fatal. Its errors are raised as exceptions; printing them as well would break the rule
# of one line on stderr per failure.
FATAL = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRequest:
    """Options of a session."""

    provider: Provider
    threads: int
    """Threads within one operator, on the CPU."""
    device_id: int = 0
    stream: int = 0
    """CUDA stream handle for the GPU's work; never the default stream."""
    cache_dir: Path | None = None
    """Folder for TensorRT's built engines; None builds each time."""
    cuda_graph: bool = False
    allow_tf32: bool = True
    cudnn_benchmark: bool = True
    deterministic: bool = False
    profiles: Mapping[str, ShapeRange] = field(default_factory=dict)
    """TensorRT: sizes of inputs with free dimensions."""
    workspace_bytes: int | None = None
    """TensorRT: limit of scratch memory, in bytes; None keeps its own limit."""


def missing_provider(provider: Provider) -> str | None:
    """Say why a provider cannot be used here, and what to install; None if it can be tried."""
    if provider == "tensorrt-rtx":
        try:
            _register_rtx_plugin()
        except MissingDependencyError as error:
            return str(error)
        return None
    if _EXECUTION_PROVIDERS[provider] in ort.get_available_providers():
        return None
    return (
        f"this ONNX Runtime has no {PROVIDER_LABELS[provider]} execution provider: {_INSTALL[provider]} "
        "(onnxruntime and onnxruntime-gpu exclude each other)"
    )


def open_session(source: str | bytes, request: SessionRequest, *, label: str) -> ort.InferenceSession:
    """Open a network on the requested provider.

    Raises:
        MissingDependencyError: The provider is not installed; the message names the package.
        EngineError: The network cannot be loaded, or ONNX Runtime would run it elsewhere.
    """
    if reason := missing_provider(request.provider):
        raise MissingDependencyError(reason)
    options = ort.SessionOptions()
    options.intra_op_num_threads = request.threads
    options.inter_op_num_threads = 1
    options.log_severity_level = FATAL
    options.use_deterministic_compute = request.deterministic
    # Worker threads sleep instead of spinning, because decoding and encoding need the same cores.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    if request.provider == "cpu":
        _have_shared_scratch_memory()
        options.add_session_config_entry("session.use_env_allocators", "1")
    if traces := traces_wanted():
        traces.ask(options)
    providers: list[Any] | None = _providers(request)
    if request.provider != "cpu":
        options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    if request.provider == "tensorrt-rtx":
        options.add_provider_for_devices([_rtx_device(request, label)], _rtx_options(request))
        providers = None
    try:
        # Without enable_fallback=0, a session whose provider fails prints a message and opens on the CPU.
        session = ort.InferenceSession(source, options, providers=providers, enable_fallback=0)
    except Exception as error:  # ONNX Runtime raises a dozen types whose only common base is Exception
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise EngineError(f"{label}: ONNX Runtime cannot load it: {reason}") from error
    if traces:
        traces.opened(session)
    _require_provider(session, request, label)
    return session


@cache
def _have_shared_scratch_memory() -> None:
    """Share one arena of scratch memory between all networks of this process.

    RVM's halves run in turn and reuse each other's memory: when written, this took a third less memory at
    768x432 and halved the page faults before the first frame (no row is kept). The arena outlives the
    sessions.
    """
    memory = ort.OrtMemoryInfo("Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT)
    ort.create_and_register_allocator(memory, None)


def _providers(request: SessionRequest) -> list[Any]:
    """The provider, then the ones it falls back to, in order."""
    cpu = _EXECUTION_PROVIDERS["cpu"]
    if request.provider == "cpu":
        return [cpu]
    cuda = (_EXECUTION_PROVIDERS["cuda"], _cuda_options(request))
    if request.provider == "cuda":
        return [cuda, cpu]
    return [(_EXECUTION_PROVIDERS["tensorrt"], _tensorrt_options(request)), cuda, cpu]


def _cuda_options(request: SessionRequest) -> dict[str, str]:
    return {
        "device_id": str(request.device_id),
        "user_compute_stream": str(request.stream),
        "use_tf32": _flag(request.allow_tf32),
        "cudnn_conv_algo_search": "EXHAUSTIVE" if request.cudnn_benchmark else "HEURISTIC",
        # With TensorRT, its own provider captures the graph.
        "enable_cuda_graph": _flag(request.cuda_graph and request.provider == "cuda"),
    }


def _tensorrt_options(request: SessionRequest) -> dict[str, str]:
    options = {
        "device_id": str(request.device_id),
        "user_compute_stream": str(request.stream),
        "trt_cuda_graph_enable": _flag(request.cuda_graph),
        **_profile_options("trt", request.profiles),
    }
    if request.workspace_bytes is not None:
        options["trt_max_workspace_size"] = str(request.workspace_bytes)
    if request.cache_dir is not None:
        options |= {
            "trt_engine_cache_enable": "1",
            "trt_engine_cache_path": str(request.cache_dir),
            "trt_timing_cache_enable": "1",
            "trt_timing_cache_path": str(request.cache_dir),
        }
    return options


def _rtx_options(request: SessionRequest) -> dict[str, str]:
    options = {
        "device_id": str(request.device_id),
        "has_user_compute_stream": "1",
        "user_compute_stream": str(request.stream),
        "enable_cuda_graph": _flag(request.cuda_graph),
        **_profile_options("nv", request.profiles),
    }
    if request.cache_dir is not None:
        options["nv_runtime_cache_path"] = str(request.cache_dir)
    return options


def _profile_options(prefix: str, profiles: Mapping[str, ShapeRange]) -> dict[str, str]:
    """Format the smallest, usual and largest sizes as ``name:1x3x256x256,…``."""
    if not profiles:
        return {}

    def listed(field_name: str) -> str:
        return ",".join(
            f"{name}:{'x'.join(str(side) for side in getattr(shapes, field_name))}"
            for name, shapes in profiles.items()
        )

    return {
        f"{prefix}_profile_min_shapes": listed("smallest"),
        f"{prefix}_profile_opt_shapes": listed("usual"),
        f"{prefix}_profile_max_shapes": listed("largest"),
    }


def _flag(value: bool) -> str:
    return "1" if value else "0"


@cache
def _register_rtx_plugin() -> str:
    """Load the TensorRT-RTX plugin once per process and return its execution provider's name."""
    try:
        plugin: Any = importlib.import_module(_RTX_MODULE)
    except ImportError as error:
        raise MissingDependencyError(
            f"the TensorRT-RTX execution provider is not installed: {_INSTALL['tensorrt-rtx']}"
        ) from error
    name: str = plugin.get_ep_name()
    try:
        ort.register_execution_provider_library(name, plugin.get_library_path())
    except Exception as error:  # see open_session
        raise MissingDependencyError(
            f"the TensorRT-RTX execution provider is installed but cannot be loaded: {str(error).splitlines()[0]}"
        ) from error
    return name


def _rtx_device(request: SessionRequest, label: str) -> Any:
    name = _register_rtx_plugin()
    devices = [device for device in ort.get_ep_devices() if device.ep_name == name]
    if len(devices) <= request.device_id:
        raise EngineError(
            f"{label}: TensorRT-RTX offers {len(devices)} GPUs here, but number {request.device_id} was requested; "
            "it supports RTX cards (compute capability 7.5, 8.6, 8.9 and 12), not A100, H100 or H200"
        )
    return devices[request.device_id]


def _require_provider(session: ort.InferenceSession, request: SessionRequest, label: str) -> None:
    """Check that a session runs on the requested provider.

    Raises:
        EngineError: The provider was dropped, or took no operator.
    """
    wanted, shown = _EXECUTION_PROVIDERS[request.provider], PROVIDER_LABELS[request.provider]
    used = session.get_providers()
    if wanted not in used:
        raise EngineError(
            f"{label}: ONNX Runtime could not start its {shown} execution provider and would use {', '.join(used)}; "
            f"CUDA, cuDNN or TensorRT libraries that fit onnxruntime {ort.__version__} are missing"
        )
    if request.provider == "cpu" or not hasattr(session, "get_provider_graph_assignment_info"):
        return  # before ONNX Runtime 1.24, sessions do not report their providers' operators
    assigned = {part.ep_name for part in session.get_provider_graph_assignment_info()}
    if wanted not in assigned:
        raise EngineError(
            f"{label}: the {shown} execution provider supports none of the network's operators; "
            f"they would all run on {', '.join(sorted(assigned)) or 'no provider'}"
        )


# Each captured graph keeps its workspace; a stream needs one or two picture sizes.
_MOST_GRAPHS = 8
_WITHOUT_GRAPH = "-1"


class BoundSession:
    """A session on a GPU.

    Args:
        session: Opened with ``stream`` as its compute stream.
        stream: ``cupy.cuda.Stream`` of the session; not the default stream.
        device_id: Number of the GPU.
        cuda_graph: Replay a captured graph from the third call with the same shapes. Inputs and outputs then
            pass through fixed buffers, at the cost of one copy each.
    """

    def __init__(
        self, session: ort.InferenceSession, *, stream: Any, device_id: int, cuda_graph: bool
    ) -> None:
        self._session = session
        self._stream = stream
        self._device_id = device_id
        self._graphs: dict[Any, _CapturedRun | None] | None = {} if cuda_graph else None
        self._plain_options = _run_options(graph_id=_WITHOUT_GRAPH if cuda_graph else None)

    def run(
        self, inputs: Mapping[str, Tensor], names: Sequence[str], *, stream: int | None
    ) -> dict[str, Tensor]:
        """Compute outputs, which the caller owns. See ``Engine.run``."""
        with self._ordered(stream):
            if self._graphs is None:
                return self._run_plain(inputs, names)
            key = (tuple((name, inputs[name].shape) for name in sorted(inputs)), tuple(names))
            if (captured := self._graphs.get(key)) is not None:
                return captured.run(self._session, inputs)
            results = self._run_plain(inputs, names)
            if len(self._graphs) < _MOST_GRAPHS:  # only a run reveals the shapes of outputs
                self._graphs[key] = _CapturedRun.allocate(
                    self._session, inputs, results, graph_id=len(self._graphs) + 1, device_id=self._device_id
                )
            return results

    @contextmanager
    def _ordered(self, caller_stream: int | None) -> Iterator[None]:
        """Work on the session's stream, behind the caller's earlier work and before its later work."""
        with on_stream(caller_stream, device_id=self._device_id) as caller:
            if caller.ptr == self._stream.ptr:
                yield
                return
            self._stream.wait_event(_event_on(caller))
            with on_cuda_stream(self._stream):
                yield
            caller.wait_event(_event_on(self._stream))

    def _run_plain(self, inputs: Mapping[str, Tensor], names: Sequence[str]) -> dict[str, Tensor]:
        binding = self._session.io_binding()
        for name, array in inputs.items():
            _bind(binding.bind_input, name, array, self._device_id)
        for name in names:
            binding.bind_output(name, "cuda", self._device_id)
        self._session.run_with_iobinding(binding, self._plain_options)
        values = binding.get_outputs()
        return {name: _as_cupy(value, self._device_id) for name, value in zip(names, values, strict=True)}


@dataclass(frozen=True, slots=True)
class _CapturedRun:
    """Buffers for one set of shapes, whose addresses a CUDA graph holds."""

    binding: Any
    options: ort.RunOptions
    inputs: dict[str, Any]
    outputs: dict[str, Any]

    @classmethod
    def allocate(
        cls,
        session: ort.InferenceSession,
        inputs: Mapping[str, Tensor],
        results: Mapping[str, Tensor],
        *,
        graph_id: int,
        device_id: int,
    ) -> _CapturedRun:
        cupy = import_cupy()
        held_inputs = {name: cupy.empty(array.shape, array.dtype) for name, array in inputs.items()}
        held_outputs = {name: cupy.empty(array.shape, array.dtype) for name, array in results.items()}
        binding = session.io_binding()
        for name, array in held_inputs.items():
            _bind(binding.bind_input, name, array, device_id)
        for name, array in held_outputs.items():
            _bind(binding.bind_output, name, array, device_id)
        return cls(binding, _run_options(graph_id=str(graph_id)), held_inputs, held_outputs)

    def run(self, session: ort.InferenceSession, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        for name, array in inputs.items():
            self.inputs[name][...] = array
        session.run_with_iobinding(self.binding, self.options)
        return {name: array.copy() for name, array in self.outputs.items()}


def _run_options(*, graph_id: str | None) -> ort.RunOptions:
    options = ort.RunOptions()
    options.log_severity_level = FATAL
    options.add_run_config_entry("disable_synchronize_execution_providers", "1")
    if graph_id is not None:
        options.add_run_config_entry("gpu_graph_id", graph_id)
    return options


def _bind(bind: Any, name: str, array: Any, device_id: int) -> None:
    bind(name, "cuda", device_id, array.dtype.type, array.shape, array.data.ptr)


def _event_on(stream: Any) -> Any:
    event = import_cupy().cuda.Event(disable_timing=True)
    event.record(stream)
    return event


def _as_cupy(value: Any, device_id: int) -> Any:
    """View ONNX Runtime's memory as a CuPy array, which keeps it alive."""
    cupy = import_cupy()
    dtype = np.dtype(NUMPY_DTYPES[value.data_type()])
    shape = tuple(value.shape())
    size_bytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    memory = cupy.cuda.UnownedMemory(value.data_ptr(), size_bytes, value, device_id)
    return cupy.ndarray(shape, dtype, cupy.cuda.MemoryPointer(memory, 0))


NUMPY_DTYPES: dict[str, type[np.generic]] = {
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(double)": np.float64,
    "tensor(uint8)": np.uint8,
    "tensor(int8)": np.int8,
    "tensor(int32)": np.int32,
    "tensor(int64)": np.int64,
    "tensor(bool)": np.bool_,
}
"""Element types that engines support, by ONNX Runtime's names."""


class OnnxRuntimeEngine(Closing):
    """One ONNX network under ONNX Runtime; ``OnnxEngine`` wraps it for the toolkit.

    Takes and returns NumPy arrays on the CPU, CuPy arrays on a GPU. On a GPU it computes on its own stream
    (or ``stream``), orders the caller's stream behind it by events, and never blocks the host. The GPU
    providers have not yet run on hardware. Several threads may call it on the CPU, one at a time on a GPU.

    Args:
        model: Path of an ``.onnx`` file, or its serialised bytes.
        provider: Execution provider. Operators it cannot compute run on CUDA, then the CPU; a provider that
            would compute nothing is an error.
        threads: Threads within one operator on the CPU; 0 uses every core available to this process.
        device_id: Number of the GPU.
        stream: CUDA stream handle for the GPU's work, such as the job's; if omitted, the engine creates a
            stream. It must outlive the engine and must not be the default stream.
        precision: Arithmetic. ``mixed``, ``fp16`` and ``int8`` convert the network (see ``with_precision``);
            the others run it as it is, with or without TF32 products.
        calibration: For ``int8``: typical inputs.
        cuda_graph: Replay captured CUDA graphs, one per set of shapes.
        cudnn_benchmark: Time cuDNN's convolution algorithms in the first run instead of using its heuristics.
        deterministic: Use only algorithms that are bit-for-bit reproducible.
        cache_dir: TensorRT: folder for engines and timings; created if missing.
        profiles: TensorRT: sizes of inputs with free dimensions.
        workspace_bytes: TensorRT: limit of scratch memory; its own limit if omitted.
        label: Name in messages; the file's name if omitted.

    Raises:
        EngineError: The file is missing, is not an ONNX network, uses operators that this ONNX Runtime lacks,
            or would not run on the provider; or the arguments contradict each other.
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
            raise EngineError(f"{label}: a CPU engine has no stream or CUDA graph, and computes only in fp32")
        if not provider.startswith("tensorrt") and (cache_dir is not None or profiles):
            raise EngineError(f"{label}: only TensorRT keeps engines and has shape profiles, not {provider}")
        if provider != "tensorrt" and workspace_bytes is not None:
            raise EngineError(f"{label}: only TensorRT has a limit on its workspace, not {provider}")
        if stream == 0:
            raise EngineError(f"{label}: ONNX Runtime cannot use the default stream; give it another one")
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
        """Engine, version and device, such as ``onnxruntime 1.31.1 (CUDA, tf32)``."""
        if self._provider == "cpu":
            plural = "" if self._threads == 1 else "s"
            how = f"CPU, {self._threads} thread{plural}"
        else:
            how = f"{PROVIDER_LABELS[self._provider]}, {self._precision}"
        return f"onnxruntime {ort.__version__} ({how}{', CUDA graph' if self._cuda_graph else ''})"

    @property
    def spec(self) -> EngineSpec:
        """Named tensors, dtypes and symbolic shapes, as declared in the file."""
        return self._spec

    def run(
        self, inputs: Mapping[str, Tensor], outputs: Sequence[str] | None = None, *, stream: int | None = None
    ) -> dict[str, Tensor]:
        """Compute the outputs; see ``Engine.run``. On the CPU ``stream`` must be None.

        Raises:
            DeviceMemoryError: The GPU has too little memory.
            EngineError: Like ``Engine.run``.
        """
        if self._session is None:
            raise EngineError(f"{self._label}: the engine was closed")
        if self._bound is None and stream is not None:
            raise EngineError(f"{self._label}: a CPU engine cannot use a CUDA stream")
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
        """Abort running calls on the CPU from another thread; they and all later calls fail."""
        self._run_options.terminate = True

    def close(self) -> None:
        """Free the session; idempotent. On a GPU, waits for pending work."""
        if self._bound is not None and self._session is not None:
            self._stream.synchronize()
        self._session = self._bound = None


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
