"""Toolkit engines on TensorRT, ONNX Runtime and PyTorch; ``open_engine`` chooses the best one here.

Each wraps an engine of the runtime, the same that ``vitascope segment`` runs, and converts arrays of any
library: ``TensorRTEngine`` wraps ``TrtPlan``, ``InductorEngine`` ``TorchEngine``, and ``OnnxEngine``
``OnnxRuntimeEngine``. All derive from ``ToolkitEngine``, which builds, loads, infers and benchmarks.

**TensorRT has not yet run on hardware**: it was not available on the GPUs used for this project's
measurements; see ``trt_plan``.
"""

from __future__ import annotations

import hashlib
import io
import json
import time
import warnings
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict, get_args
from zipfile import is_zipfile

import numpy as np
import numpy.typing as npt

from vitascope import __version__
from vitascope.closing import Closing
from vitascope.device import Device, select_device
from vitascope.errors import DeviceError, EngineError, MissingDependencyError, UsageError
from vitascope.file_lock import write_atomically
from vitascope.gpu.current_stream import on_cuda_stream, on_stream
from vitascope.gpu.engines.engine import (
    Engine,
    EngineSpec,
    InputShapes,
    Precision,
    ShapeRange,
    TensorSpec,
    require_in_range,
    require_inputs,
    shape_ranges,
    shapes_from_json,
    shapes_to_json,
)
from vitascope.gpu.engines.onnx_library import ort
from vitascope.gpu.engines.onnx_network import (
    Calibration,
    kept_shapes,
    low_precision_of,
    read_network,
    with_kept_shapes,
    with_precision,
)
from vitascope.gpu.engines.onnx_runtime import (
    OnnxRuntimeEngine,
    Provider,
    missing_provider,
)
from vitascope.gpu.engines.selection import Arrays, Candidate, Machine, Runner, choose_engine
from vitascope.gpu.engines.trt_plan import TrtCache, TrtPlan, load_tensorrt
from vitascope.gpu.interchange import kind_of, lies_on_gpu, to_cupy, to_kind, to_numpy
from vitascope.gpu.kernels.cuda_module import import_cupy
from vitascope.gpu.number_checks import check_count

if TYPE_CHECKING:
    import torch
    from torch import nn

    from vitascope.gpu.engines.torch_engine import CompileEffort, Module, TorchEngine, TorchMode

DeviceWord = Literal["auto", "cuda", "cpu"]


class LatencyReport(TypedDict):
    """Latency of single calls in milliseconds, until the result is ready, and throughput of back-to-back calls."""

    avg_latency_ms: float
    min_ms: float
    p50_ms: float
    p95_ms: float
    p99_ms: float
    max_ms: float
    throughput_fps: float
    """Pictures per second of back-to-back calls that do not wait for results."""
    batch_size: int
    num_iterations: int
    warmup: int


class BenchmarkReport(LatencyReport):
    """``LatencyReport`` of an engine's ``benchmark``, with the measured configuration."""

    engine: str
    precision: Precision
    device: str
    input_shapes: dict[str, tuple[int, ...]]


def usual_shape(tensor: TensorSpec, known: ShapeRange | None, batch_size: int | None) -> tuple[int, ...]:
    """Choose an input's shape for a benchmark.

    Args:
        tensor: The input.
        known: Sizes the engine was built for, if known.
        batch_size: First dimension; if omitted, the usual one, or 1 if unknown.

    Raises:
        EngineError: A dimension is free and its size unknown.
    """
    sides: list[int] = []
    for axis, side in enumerate(tensor.shape):
        if axis == 0 and batch_size is not None:
            sides.append(batch_size)
        elif known is not None:
            sides.append(known.usual[axis])
        elif isinstance(side, int) or axis == 0:
            sides.append(side if isinstance(side, int) else 1)
        else:
            raise EngineError(
                f"benchmark: input {tensor.name!r} is {list(tensor.shape)}; build it with input_shapes, "
                "which say its usual size"
            )
    return tuple(sides)


def measure_calls(
    call: Callable[[], object],
    *,
    wait: Callable[[], object],
    batch_size: int,
    num_iterations: int,
    warmup: int,
) -> LatencyReport:
    """Time a function.

    Args:
        call: The function to time.
        wait: Blocks until all launched work has finished; does nothing on a CPU.
        batch_size: Pictures per call.
        num_iterations: Calls in each of the two measurements.
        warmup: Untimed calls before, while compilers, caches and clocks settle.
    """
    for _ in range(warmup):
        call()
    wait()
    samples_ms = []
    for _ in range(num_iterations):
        begun = time.perf_counter()
        call()
        wait()
        samples_ms.append((time.perf_counter() - begun) * 1e3)
    begun = time.perf_counter()
    for _ in range(num_iterations):
        call()
    wait()
    in_a_row_seconds = time.perf_counter() - begun
    p50, p95, p99 = (float(np.percentile(samples_ms, share)) for share in (50, 95, 99))
    return LatencyReport(
        avg_latency_ms=float(np.mean(samples_ms)),
        min_ms=min(samples_ms),
        p50_ms=p50,
        p95_ms=p95,
        p99_ms=p99,
        max_ms=max(samples_ms),
        throughput_fps=batch_size * num_iterations / in_a_row_seconds,
        batch_size=batch_size,
        num_iterations=num_iterations,
        warmup=warmup,
    )


class ToolkitEngine(Closing):
    """Base of the toolkit's engines: one network, with methods to build, load, run and benchmark it.

    Build or load first; building again replaces the network. Call from one thread at a time.

    Args:
        fp16_mode: Compute in FP16 on a GPU. A CPU is faster in FP32 and keeps it, with a line in ``notes``.
        int8_mode: Quantise to 8-bit integers; the ``build_…`` methods then need ``calibration``.
        workspace_gb: Limit of scratch memory while building and running, in gigabytes (10^9 bytes), for
            engines that have one; None leaves it to the engine.
        cache_dir: Folder for built engines, keyed by network, sizes, arithmetic, GPU and version; None builds
            each time.
        device: ``auto`` uses the GPU if one is available, else the CPU.
        device_id: Number of the GPU; ignored on a CPU.
        allow_tf32: Allow FP32 products on a GPU to round inputs to TF32 (10-bit mantissas).

    Raises:
        DeviceError: The device is not available.
        MissingDependencyError: The engine's package is not installed; the message names it.
        UsageError: A limit is not a positive number.
    """

    def __init__(
        self,
        *,
        fp16_mode: bool = False,
        int8_mode: bool = False,
        workspace_gb: float | None = None,
        cache_dir: str | PathLike[str] | None = None,
        device: DeviceWord = "auto",
        device_id: int = 0,
        allow_tf32: bool = True,
    ) -> None:
        if workspace_gb is not None and not 0 < workspace_gb < float("inf"):
            raise UsageError(f"workspace_gb is {workspace_gb}, expected a positive number of gigabytes")
        self._device: Device = select_device(self._placed(device), index=device_id)
        self._on_gpu = self._device.kind == "cuda"
        self._fp16, self._int8, self._tf32 = fp16_mode, int8_mode, allow_tf32
        self._workspace_bytes = None if workspace_gb is None else round(workspace_gb * 1e9)
        self._cache_dir = None if cache_dir is None else Path(cache_dir)
        self._engine: Engine | None = None
        self._ranges: dict[str, ShapeRange] = {}
        self._found: tuple[str, Precision] | None = None  # the network's name and precision
        self._notes: list[str] = []
        if fp16_mode and not self._on_gpu:
            self._notes.append("fp16_mode has no effect on a CPU, which computes FP32 faster")

    # --- properties
    # ---------------------------------------------------------------------------------------------------

    @property
    def device(self) -> Device:
        """Device of the network."""
        return self._device

    @property
    def precision(self) -> Precision:
        """The arithmetic in effect, or as requested for a file written by TensorRT, which does not report it."""
        return self._opened_as()[1]

    @property
    def name(self) -> str:
        """Engine, version and device, for reports: ``onnxruntime 1.31 (CPU, 2 threads)``."""
        name, precision = self._opened().name, self.precision
        is_said = precision not in ("fp16", "int8") or precision in name
        return name if is_said else f"{name}, {precision} network"

    @property
    def spec(self) -> EngineSpec:
        """Named tensors, dtypes and symbolic shapes."""
        return self._opened().spec

    @property
    def input_shapes(self) -> dict[str, ShapeRange]:
        """Sizes the engine was built for; empty if a loaded file does not report them."""
        return dict(self._ranges)

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes for the user: options without effect, engines rebuilt and why."""
        label, found = self._opened_as()
        odd = f"{label} is in {found} and computes in it, although {self._asked} was requested"
        return (*self._notes, *([odd] * (found != self._asked)), *getattr(self._engine, "notes", ()))

    # --- building and loading -----------------------------------------------------------------------------------------

    def build_engine_from_pytorch(
        self,
        model: nn.Module,
        input_shapes: InputShapes,
        output_path: str | PathLike[str] | None = None,
        *,
        calibration: Calibration | None = None,
    ) -> Path | None:
        """Build an engine from a PyTorch module, open it, and save it.

        Args:
            model: Takes inputs by position, in the order of ``input_shapes``, and returns a tensor, or a
                tuple or dict of tensors. It is copied, and run in evaluation mode.
            input_shapes: The smallest, usual and largest size of each input: ``{"input": {"min": (1, 3, 512,
                512), "opt": (4, 3, 512, 512), "max": (16, 3, 512, 512)}}``. Dimensions that differ are free:
                the batch, sides.
            output_path: File to save for ``load_engine``; None saves nothing.
            calibration: For ``int8_mode``: typical inputs by name, stacked along the first axis, such as
                pictures from real frames.

        Returns:
            The saved file, or None.

        Raises:
            EngineError: The module cannot be exported, or the engine cannot be built or saved.
            MissingDependencyError: A package is missing; the message names it.
            UsageError: Sizes or calibration do not match the model.
        """
        ranges = shape_ranges(input_shapes)
        self._check_calibration(calibration)
        self._open(lambda: self._from_pytorch(model, ranges, calibration), ranges)
        return self._keep(output_path)

    def build_engine_from_onnx(
        self,
        onnx_path: str | PathLike[str] | bytes,
        input_shapes: InputShapes | None = None,
        output_path: str | PathLike[str] | None = None,
        *,
        calibration: Calibration | None = None,
    ) -> Path | None:
        """Build an engine from an ONNX network, open it, and save it.

        Args:
            onnx_path: The ``.onnx`` file, or its serialised bytes.
            input_shapes: See ``build_engine_from_pytorch``; optional if the network's sizes are fixed.
            output_path: See ``build_engine_from_pytorch``.
            calibration: See ``build_engine_from_pytorch``.

        Returns:
            The saved file, or None.

        Raises:
            EngineError: The network cannot be read, or the engine cannot be built or saved.
            MissingDependencyError: A package is missing; the message names it.
            UsageError: The engine does not run ONNX networks, or sizes or calibration do not match the
                network.
        """
        ranges = {} if input_shapes is None else shape_ranges(input_shapes)
        self._check_calibration(calibration)
        source = onnx_path if isinstance(onnx_path, bytes) else Path(onnx_path)
        self._open(lambda: self._from_onnx(source, ranges, calibration), ranges)
        return self._keep(output_path)

    def load_engine(self, path: str | PathLike[str]) -> None:
        """Open a saved engine. Load only your own: engines are native code.

        Raises:
            EngineError: The file is missing, damaged, or for another engine, version or GPU.
        """
        source = Path(path)
        if not source.is_file():
            found = "it is a folder" if source.is_dir() else "there is no such file"
            raise EngineError(f"{source}: {found}; build_engine_from_pytorch writes a file")
        self.close()
        self._engine, self._ranges = self._from_file(source)

    def close(self) -> None:
        """Free the network; idempotent. You can build or load another one afterwards."""
        self._found = None
        if self._engine is not None:
            self._engine.close()
            self._engine = None

    # --- running ------------------------------------------------------------------------------------------------------

    def infer(self, array: Any) -> Any:
        """Run a network with one input and return its first output.

        Args:
            array: NumPy, CuPy, PyTorch or DLPack; of the dtype and within the sizes the engine was built for.

        Returns:
            An array of the same type and device.

        Raises:
            EngineError: The network has several inputs, the array does not match, or the network failed.
        """
        spec = self.spec
        if len(spec.inputs) != 1:
            names = ", ".join(tensor.name for tensor in spec.inputs)
            raise EngineError(f"the network takes {len(spec.inputs)} inputs ({names}); call run")
        first = spec.outputs[0].name
        return self.run({spec.inputs[0].name: array}, [first])[first]

    def run(
        self, inputs: Mapping[str, Any], outputs: Sequence[str] | None = None, *, stream: int | None = None
    ) -> dict[str, Any]:
        """Compute the outputs.

        Args:
            inputs: Every input by name, of any array type that ``infer`` takes.
            outputs: Names of the outputs to return; all if omitted.
            stream: CUDA stream handle to order the work on; None is the current stream of the first input's
                library. The host waits only for results that leave the GPU.

        Returns:
            The outputs by name, of the first input's type and on its device.

        Raises:
            EngineError: An input is missing, unknown, or does not match, or the network failed.
        """
        engine = self._opened()
        require_inputs(inputs, engine.spec, label=type(self).__name__)
        try:
            kinds = {name: (kind_of(array), lies_on_gpu(array)) for name, array in inputs.items()}
        except TypeError as error:
            raise EngineError(f"run: {error}") from error
        for name, array in inputs.items():
            require_in_range(name, tuple(array.shape), self._ranges, label=type(self).__name__)
        kind, held_on_gpu = next(iter(kinds.values()))
        if not self._on_gpu:
            placed = {name: np.ascontiguousarray(to_numpy(array)) for name, array in inputs.items()}
            results = engine.run(placed, outputs, stream=stream)
            return {name: to_kind(array, kind, on_gpu=held_on_gpu) for name, array in results.items()}
        if stream is None and kind == "torch" and held_on_gpu:
            import torch

            stream = torch.cuda.current_stream(self._device.index).cuda_stream
        with on_stream(stream, device_id=self._device.index) as current:
            cupy = import_cupy()
            placed = {name: cupy.ascontiguousarray(to_cupy(array)) for name, array in inputs.items()}
            results = engine.run(placed, outputs, stream=current.ptr)
            return {name: to_kind(array, kind, on_gpu=held_on_gpu) for name, array in results.items()}

    def benchmark(
        self, num_iterations: int = 100, *, warmup: int = 10, batch_size: int | None = None
    ) -> BenchmarkReport:
        """Time the network on random inputs on its device.

        Args:
            num_iterations: Timed calls, one by one and again back to back.
            warmup: Untimed calls before.
            batch_size: First dimension of the inputs; the usual one of ``input_shapes`` if omitted.

        Returns:
            ``avg_latency_ms``, ``p50_ms``, ``p95_ms``, ``p99_ms``: one call, until its result is ready;
            ``throughput_fps``: batch entries per second of back-to-back calls; and the measured
            configuration.

        Raises:
            UsageError: ``num_iterations`` is below 1.
            EngineError: The loaded file does not report its sizes, or the network failed.
        """
        check_count("num_iterations", num_iterations)
        check_count("warmup", warmup, least=0)
        engine = self._opened()
        random = np.random.default_rng(0)
        arrays: dict[str, Any] = {}
        for tensor in engine.spec.inputs:
            shape = usual_shape(tensor, self._ranges.get(tensor.name), batch_size)
            require_in_range(tensor.name, shape, self._ranges, label=type(self).__name__)
            arrays[tensor.name] = random.random(shape, np.float32).astype(tensor.dtype)
        batch = next(iter(arrays.values())).shape[0]
        measure = partial(measure_calls, batch_size=batch, num_iterations=num_iterations, warmup=warmup)
        if self._on_gpu:
            cupy = import_cupy()
            with (
                cupy.cuda.Device(self._device.index),
                on_cuda_stream(cupy.cuda.Stream(non_blocking=True)) as stream,
            ):
                placed = {name: cupy.asarray(array) for name, array in arrays.items()}
                report = measure(lambda: engine.run(placed), wait=stream.synchronize)
        else:
            report = measure(lambda: engine.run(arrays), wait=lambda: None)
        return BenchmarkReport(
            **report,
            engine=self.name,
            precision=self.precision,
            device=self._device.label,
            input_shapes={name: tuple(array.shape) for name, array in arrays.items()},
        )

    # --- engine-specific
    # ----------------------------------------------------------------------------------------------

    def _placed(self, device: DeviceWord) -> DeviceWord:
        """Resolve the requested device.

        Raises:
            DeviceError: The engine does not run on it.
            MissingDependencyError: The engine's package is not installed.
        """
        return device

    def _from_pytorch(
        self, model: nn.Module, ranges: Mapping[str, ShapeRange], calibration: Calibration | None
    ) -> Engine:
        """Build from a module, through an ONNX network."""
        from vitascope.gpu.engines.torch_export import trace_module

        return self._from_onnx(trace_module(model, ranges).onnx_bytes(), ranges, calibration)

    @abstractmethod
    def _from_onnx(
        self, source: Path | bytes, ranges: Mapping[str, ShapeRange], calibration: Calibration | None
    ) -> Engine:
        """Build from an ONNX network."""

    @abstractmethod
    def _from_file(self, path: Path) -> tuple[Engine, dict[str, ShapeRange]]:
        """Open the output of ``_serialized``."""

    @abstractmethod
    def _serialized(self) -> bytes:
        """The built engine's bytes, as saved."""

    # --- inside -------------------------------------------------------------------------------------------------------

    @property
    def _asked(self) -> Precision:
        if self._int8:
            return "int8"
        return "fp16" if self._on_gpu and self._fp16 else self._exact

    @property
    def _exact(self) -> Precision:
        """Arithmetic of a network in FP32."""
        return "tf32" if self._on_gpu and self._tf32 else "fp32"

    def _opened_as(self) -> tuple[str, Precision]:
        """Name and arithmetic of the open network; empty if it was refused."""
        return ("", self._asked) if self._engine is None or self._found is None else self._found

    def _opened(self) -> Engine:
        if self._engine is None:
            raise EngineError(
                f"{type(self).__name__}: nothing is built or loaded; call build_engine_from_pytorch, "
                "build_engine_from_onnx or load_engine first"
            )
        return self._engine

    def _open(self, build: Callable[[], Engine], ranges: dict[str, ShapeRange]) -> None:
        self.close()
        engine = build()
        known = [tensor.name for tensor in engine.spec.inputs]
        if unknown := sorted(set(ranges) - set(known)):
            engine.close()
            raise UsageError(f"input_shapes names {unknown[0]!r}; the network takes {', '.join(known)}")
        self._engine, self._ranges = engine, ranges

    def _keep(self, output_path: str | PathLike[str] | None) -> Path | None:
        if output_path is None:
            return None
        path = Path(output_path)
        try:
            write_atomically(path, self._serialized())
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise EngineError(f"{path}: the engine cannot be written ({reason})") from error
        return path

    def _check_calibration(self, calibration: Calibration | None) -> None:
        if self._int8 and not calibration:
            raise UsageError("int8_mode needs calibration={input name: typical inputs along the first axis}")
        if calibration and not self._int8:
            raise UsageError("calibration is for int8_mode=True")


# Batch sizes 1 to 16, with a plan each.
_MOST_PLANS = 16
_NOTE = "vitascope.json"


class InductorEngine(ToolkitEngine):
    """PyTorch's compiler for the toolkit, on the runtime's ``TorchEngine``.

    Runs a PyTorch module compiled by Inductor, with a CUDA graph per input size.

    ``output_path`` saves an exported program (``torch.export.save``): operations and weights in the requested
    precision. It is compiled on opening, for the GPU in use.

    For further arguments see ``ToolkitEngine``.

    Args:
        fp16_mode: On a GPU, FP16 weights and activations, channels-last for tensor cores; inputs and outputs
            keep their dtypes.
        int8_mode: Quantise convolutions and linear layers with ``ModelQuantizer.quantize_int8``.
        workspace_gb: Ignored: PyTorch allocates on demand.
        cache_dir: Folder for packages of ``mode="aot"``.
        mode: ``compile`` compiles each size at its first run; ``aot`` uses packages in ``cache_dir``;
            ``eager`` does not compile. ``auto`` compiles on a GPU, but not on a CPU, where that needs a C++
            compiler.
        effort: ``max-autotune`` lets the compiler time its choices, for minutes.

    Raises:
        MissingDependencyError: PyTorch is not installed.
        DeviceError: The device is not available.
        UsageError: An unknown word, or ``mode="aot"`` without ``cache_dir``.
    """

    def __init__(
        self,
        *,
        fp16_mode: bool = False,
        int8_mode: bool = False,
        workspace_gb: float | None = None,
        cache_dir: str | PathLike[str] | None = None,
        device: DeviceWord = "auto",
        device_id: int = 0,
        allow_tf32: bool = True,
        mode: Literal["auto"] | TorchMode = "auto",
        effort: CompileEffort = "default",
        cuda_graph: bool = True,
    ) -> None:
        try:
            import torch  # noqa: F401 - takes a second; only users of this engine pay for it
        except ImportError as error:
            raise MissingDependencyError(
                "PyTorch is not installed: pip install 'vitascope[torch]'"
            ) from error
        super().__init__(
            fp16_mode=fp16_mode,
            int8_mode=int8_mode,
            workspace_gb=workspace_gb,
            cache_dir=cache_dir,
            device=device,
            device_id=device_id,
            allow_tf32=allow_tf32,
        )
        from vitascope.gpu.engines import torch_engine

        modes, efforts = ("auto", *get_args(torch_engine.TorchMode)), get_args(torch_engine.CompileEffort)
        if mode not in modes or effort not in efforts:
            raise UsageError(
                f"mode is {mode!r} and effort {effort!r}; expected one of {', '.join(modes)}, and one of "
                f"{', '.join(efforts)}"
            )
        if mode == "aot" and cache_dir is None:
            raise UsageError('mode="aot" keeps packages: name a cache_dir')
        self._mode: TorchMode = ("compile" if self._on_gpu else "eager") if mode == "auto" else mode
        self._effort: CompileEffort = effort
        self._cuda_graph = cuda_graph
        self._program: torch.export.ExportedProgram | None = None
        if workspace_gb is not None:
            self._notes.append("workspace_gb has no effect: PyTorch allocates as it needs")
        if cache_dir is not None and self._mode != "aot":
            self._notes.append(f'cache_dir keeps no engine with mode="{self._mode}": mode="aot" does')

    def close(self) -> None:
        """Free the network; idempotent."""
        super().close()
        self._program = None

    def _from_pytorch(
        self, model: nn.Module, ranges: Mapping[str, ShapeRange], calibration: Calibration | None
    ) -> TorchEngine:
        from vitascope.gpu.engines.torch_export import trace_module, weights_dtype

        prepared = self._prepared(model, ranges, calibration)
        # The user's module defines the dtypes: the prepared one may have half-precision weights.
        traced = trace_module(prepared, ranges, device=self._torch_device, dtype=weights_dtype(model))
        self._program = traced.exported()
        return self._open_module(traced.module, traced.input_specs, traced.output_specs)

    def _from_onnx(
        self,
        source: Path | bytes,  # noqa: ARG002 - the base's signature
        ranges: Mapping[str, ShapeRange],  # noqa: ARG002
        calibration: Calibration | None,  # noqa: ARG002
    ) -> TorchEngine:
        raise UsageError(
            "InductorEngine runs PyTorch modules; OnnxEngine and TensorRTEngine run ONNX networks"
        )

    def _from_file(self, path: Path) -> tuple[TorchEngine, dict[str, ShapeRange]]:
        import torch
        from torch.export.passes import move_to_device_pass

        kept = {_NOTE: ""}
        if not is_zipfile(path):  # torch prints warnings and tracebacks for these
            raise EngineError(f"{path}: not a program written by InductorEngine")
        try:
            program = torch.export.load(path, extra_files=kept)
            note = json.loads(kept[_NOTE])
            inputs, outputs = ([_spec(one) for one in note[key]] for key in ("inputs", "outputs"))
        except Exception as error:  # torch.export raises many types for a file it did not write
            raise EngineError(f"{path}: not a program written by InductorEngine") from error
        if note["device"] != self._device.kind:
            program = move_to_device_pass(program, self._torch_device)
        self._program = program
        # TF32 is a process-wide switch and not part of a program.
        self._found = path.name, note["precision"] if note["precision"] in ("fp16", "int8") else self._exact
        return self._open_module(program, inputs, outputs), shapes_from_json(note["shapes"])

    def _serialized(self) -> bytes:
        import torch

        engine = self._opened()
        note = {
            "inputs": [(one.name, one.dtype.name, one.shape) for one in engine.spec.inputs],
            "outputs": [(one.name, one.dtype.name, one.shape) for one in engine.spec.outputs],
            "shapes": shapes_to_json(self._ranges),
            "precision": self.precision,
            "device": self._device.kind,
        }
        content = io.BytesIO()
        assert self._program is not None  # set by both ways of opening
        with warnings.catch_warnings():
            # torch warns for each channels-last weight, though it saves and restores them correctly.
            warnings.filterwarnings(
                "ignore", message="No complete tensor found in the group", category=UserWarning
            )
            torch.export.save(self._program, content, extra_files={_NOTE: json.dumps(note)})
        return content.getvalue()

    @property
    def _torch_device(self) -> str:
        return f"cuda:{self._device.index}" if self._on_gpu else "cpu"

    def _prepared(
        self, model: nn.Module, ranges: Mapping[str, ShapeRange], calibration: Calibration | None
    ) -> nn.Module:
        """Convert the user's module to the requested arithmetic; inputs and outputs keep their dtypes.

        Raises:
            UsageError: ``model`` is not a module.
        """
        if not hasattr(model, "parameters"):
            raise UsageError(f"a PyTorch module is expected, got {type(model).__name__}")
        if calibration is not None:
            from vitascope.gpu.toolkit.quantization.calibration import named_frames
            from vitascope.gpu.toolkit.quantization.quantizer import ModelQuantizer

            model = ModelQuantizer.quantize_int8(model, named_frames(calibration, list(ranges)))
        if self._on_gpu and self._fp16:
            from vitascope.gpu.engines.torch_export import HalfPrecision

            model = HalfPrecision(model)
        return model

    def _open_module(
        self, module: Module, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]
    ) -> TorchEngine:
        from vitascope.gpu.engines.torch_engine import TorchEngine
        from vitascope.gpu.engines.torch_export import program_fingerprint

        fingerprint = None
        if self._mode == "aot":
            assert self._program is not None  # set by both callers
            fingerprint = program_fingerprint(self._program)
        return TorchEngine(
            module,
            inputs=inputs,
            outputs=outputs,
            device=self._torch_device,
            label="module",
            mode=self._mode,
            effort=self._effort,
            cuda_graph=self._cuda_graph,
            most_plans=_MOST_PLANS,
            cache_dir=self._cache_dir,
            fingerprint=fingerprint,
            allow_tf32=self._tf32,
        )


def _spec(row: Any) -> TensorSpec:
    name, dtype, shape = row
    return TensorSpec(name, np.dtype(dtype), tuple(shape))


_GPU_PROVIDERS = ("auto", "cuda", "tensorrt", "tensorrt-rtx")


class OnnxEngine(ToolkitEngine):
    """ONNX Runtime for the toolkit, on the runtime's ``OnnxRuntimeEngine``.

    Runs an ONNX network, or a PyTorch module exported to ONNX.

    ``output_path`` saves an ONNX network in the requested precision. ``int8_mode`` quantises with
    ``ModelQuantizer.quantize_int8``; NVIDIA's Model Optimizer makes FP16 networks for a GPU.

    For further arguments see ``ToolkitEngine``.

    Args:
        workspace_gb: Effective with ``provider="tensorrt"``.
        cache_dir: Folder for quantised networks and for engines built by the TensorRT providers.
        device: ``auto`` uses the GPU if ONNX Runtime has a provider for it, else the CPU.
        threads: Threads within one operator on the CPU; 0 uses every core available to this process.
        provider: ONNX Runtime's GPU provider; ``auto`` is ``cuda`` on a GPU, any other requires a GPU.

    Raises:
        DeviceError: The device is not available.
        MissingDependencyError: A GPU or provider was requested, but ONNX Runtime for GPUs is not installed.
        UsageError: An unknown provider, or one together with ``device="cpu"``; threads below 0.
    """

    def __init__(
        self,
        *,
        fp16_mode: bool = False,
        int8_mode: bool = False,
        workspace_gb: float | None = None,
        cache_dir: str | PathLike[str] | None = None,
        device: DeviceWord = "auto",
        device_id: int = 0,
        allow_tf32: bool = True,
        threads: int = 0,
        provider: Literal["auto", "cuda", "tensorrt", "tensorrt-rtx"] = "auto",
    ) -> None:
        if provider not in _GPU_PROVIDERS:
            raise UsageError(f"provider is {provider!r}, expected one of {', '.join(_GPU_PROVIDERS)}")
        if provider != "auto" and device == "cpu":
            raise UsageError(f"provider={provider!r} runs on a GPU, but device='cpu' was requested")
        if threads < 0:
            raise UsageError(f"threads is {threads}, expected a number from 0")
        if provider != "auto":  # a requested provider is never skipped silently
            device = "cuda"
        on_gpu: Provider = "cuda" if provider == "auto" else provider
        missing = None if device == "cpu" else missing_provider(on_gpu)
        super().__init__(
            fp16_mode=fp16_mode,
            int8_mode=int8_mode,
            workspace_gb=workspace_gb,
            cache_dir=cache_dir,
            device="cpu" if device == "auto" and missing else device,
            device_id=device_id,
            allow_tf32=allow_tf32,
        )
        if missing and self._on_gpu:
            raise MissingDependencyError(missing)
        self._provider: Provider = on_gpu if self._on_gpu else "cpu"
        self._threads = threads
        self._network = b""
        if workspace_gb is not None and self._provider != "tensorrt":
            self._notes.append("workspace_gb has no effect: ONNX Runtime allocates as it needs")

    def _from_onnx(
        self, source: Path | bytes, ranges: Mapping[str, ShapeRange], calibration: Calibration | None
    ) -> OnnxRuntimeEngine:
        network = read_network(source)
        if calibration is not None:
            network = self._quantized(network, calibration)
        elif self.precision == "fp16":
            network = with_precision(network, "fp16")
        self._network = network
        return self._opened_network(
            network, ranges, label=str(source) if isinstance(source, Path) else "network"
        )

    def _from_file(self, path: Path) -> tuple[OnnxRuntimeEngine, dict[str, ShapeRange]]:
        self._network = read_network(path)
        ranges = kept_shapes(self._network)
        return self._opened_network(self._network, ranges, label=str(path)), ranges

    def _serialized(self) -> bytes:
        return with_kept_shapes(self._network, self._ranges)

    def _opened_network(
        self, network: bytes, ranges: Mapping[str, ShapeRange], *, label: str
    ) -> OnnxRuntimeEngine:
        builds = self._provider.startswith("tensorrt")
        self._found = Path(label).name, low_precision_of(network) or self._exact
        return OnnxRuntimeEngine(
            network,
            provider=self._provider,
            threads=self._threads,
            device_id=self._device.index,
            precision="tf32" if self._on_gpu and self._tf32 else "fp32",
            cache_dir=self._cache_dir if builds else None,
            profiles=ranges if builds else None,
            workspace_bytes=self._workspace_bytes if self._provider == "tensorrt" else None,
            label=label,
        )

    def _quantized(self, network: bytes, calibration: Calibration) -> bytes:
        """Quantise the network to int8, or take it from the cache."""
        from vitascope.gpu.toolkit.quantization.quantizer import ModelQuantizer

        target: Literal["cpu", "gpu"] = "gpu" if self._on_gpu else "cpu"
        if self._cache_dir is None:
            quantized: bytes = ModelQuantizer.quantize_int8(network, calibration, target=target)
            return quantized
        version = f"onnxruntime {ort.__version__}, vitascope {__version__}"
        cache = TrtCache(self._cache_dir, gpu=f"any {target}", version=version)
        digest = hashlib.sha256(network)
        for name in sorted(calibration):
            array = np.ascontiguousarray(calibration[name])
            digest.update(f"{name} {array.dtype} {array.shape}".encode())
            digest.update(array.tobytes())
        path = cache.engine_path({"network": digest.hexdigest(), "precision": "int8"})
        kept = cache.load(path)
        if kept is None:
            kept = ModelQuantizer.quantize_int8(network, calibration, target=target)
            cache.store(path, kept)
        self._notes += cache.notes
        return kept


class TensorRTEngine(ToolkitEngine):
    """TensorRT (10 or newer) for the toolkit, on the runtime's ``TrtPlan``. Not yet run on hardware.

    NVIDIA's Model Optimizer (``pip install 'vitascope[quantize]'``) makes FP16 and INT8 networks, because
    TensorRT 11 has no precision switches ("Python Migration Patterns for TensorRT 11.x"). ``output_path``
    saves TensorRT's own serialised engine, which ``trtexec --loadEngine`` also reads; it fits one GPU and one
    TensorRT version.

    For arguments see ``ToolkitEngine``.

    Raises:
        DeviceError: There is no GPU, or ``device="cpu"``.
        MissingDependencyError: TensorRT or CuPy is not installed; the message names the package.
    """

    def _placed(self, device: DeviceWord) -> DeviceWord:
        if device == "cpu":
            raise DeviceError("TensorRT needs a GPU; use OnnxEngine or InductorEngine on a CPU")
        load_tensorrt()
        return "cuda"

    def _from_onnx(
        self, source: Path | bytes, ranges: Mapping[str, ShapeRange], calibration: Calibration | None
    ) -> TrtPlan:
        return TrtPlan(
            source,
            profiles=ranges,
            precision=self.precision,
            calibration=calibration,
            device_id=self._device.index,
            cache_dir=self._cache_dir,
            workspace_bytes=self._workspace_bytes,
        )

    def _from_file(self, path: Path) -> tuple[TrtPlan, dict[str, ShapeRange]]:
        try:
            content = path.read_bytes()
        except OSError as error:
            raise EngineError(f"{path}: cannot be read ({(error.strerror or str(error)).lower()})") from error
        plan = TrtPlan.from_serialized(
            content, label=str(path), precision=self.precision, device_id=self._device.index
        )
        return plan, plan.profiles

    def _serialized(self) -> bytes:
        plan = self._opened()
        assert isinstance(plan, TrtPlan)  # the only type this class opens
        return plan.serialized


Backend = Literal["auto", "tensorrt", "inductor", "onnxruntime"]
_ENGINES: dict[str, type[ToolkitEngine]] = {
    "tensorrt": TensorRTEngine,
    "inductor": InductorEngine,
    "onnxruntime": OnnxEngine,
}


def open_engine(
    model: nn.Module | str | PathLike[str] | bytes,
    backend: Backend = "auto",
    *,
    input_shapes: InputShapes | None = None,
    fp16_mode: bool = False,
    int8_mode: bool = False,
    calibration: Calibration | None = None,
    workspace_gb: float | None = None,
    cache_dir: str | PathLike[str] | None = None,
    device: DeviceWord = "auto",
    device_id: int = 0,
    allow_tf32: bool = True,
    on_reason: Callable[[str], None] | None = None,
) -> ToolkitEngine:
    """Build an engine, and check its outputs against the CPU's before use.

    Args:
        model: A PyTorch module, or an ONNX network (path or bytes).
        backend: ``auto`` tries ``tensorrt``, ``inductor`` (modules only) and ``onnxruntime`` on a GPU,
            ``onnxruntime`` and ``inductor`` on a CPU, and takes the first that is installed and right. A name
            requires that engine.
        input_shapes: See ``build_engine_from_pytorch``; optional for an ONNX network of fixed sizes.
        fp16_mode: See ``ToolkitEngine``.
        int8_mode: See ``ToolkitEngine``.
        calibration: See ``build_engine_from_pytorch``.
        workspace_gb: See ``ToolkitEngine``.
        cache_dir: Folder for engines and verdicts.
        device: See ``ToolkitEngine``.
        device_id: See ``ToolkitEngine``.
        allow_tf32: See ``ToolkitEngine``.
        on_reason: Called with a line for each engine skipped, with the reason, and for the one taken.

    Returns:
        The open engine; the caller closes it.

    Raises:
        EngineError: No engine works, or the requested one gives wrong results here.
        MissingDependencyError: The requested engine is not installed; the message names the package.
        UsageError: The arguments do not match the model.
    """
    is_network = isinstance(model, bytes | str | PathLike)
    chosen_device = select_device(device, index=device_id)
    on_gpu = chosen_device.kind == "cuda"
    options: dict[str, Any] = {
        "fp16_mode": fp16_mode,
        "int8_mode": int8_mode,
        "cache_dir": cache_dir,
        "device": chosen_device.kind,
        "device_id": device_id,
        "allow_tf32": allow_tf32,
    }
    if is_network and backend == "inductor":
        raise UsageError(
            "the inductor engine runs PyTorch modules; an ONNX network runs on onnxruntime or tensorrt"
        )
    if not is_network and input_shapes is None:
        raise UsageError("a PyTorch module needs input_shapes={name: {'min': …, 'opt': …, 'max': …}}")
    network: Any = read_network(Path(model)) if isinstance(model, str | PathLike) else model

    def opened(name: str) -> ToolkitEngine:
        own: dict[str, Any] = {"workspace_gb": workspace_gb} if name == "tensorrt" else {}
        engine = _ENGINES[name](**options, **own)
        try:
            if is_network:
                engine.build_engine_from_onnx(network, input_shapes, calibration=calibration)
            else:
                assert input_shapes is not None  # checked above
                engine.build_engine_from_pytorch(network, input_shapes, calibration=calibration)
        except BaseException:
            engine.close()
            raise
        return engine

    order = ["tensorrt", "inductor", "onnxruntime"] if on_gpu else ["onnxruntime", "inductor"]
    if backend == "tensorrt" and not on_gpu:
        order = ["tensorrt"]  # its error says why it is not available
    if is_network:
        order = [name for name in order if name != "inductor"]
    precision: Precision = "tf32" if on_gpu and allow_tf32 else "fp32"
    if int8_mode or (fp16_mode and on_gpu):
        precision = "int8" if int8_mode else "fp16"
    chosen = choose_engine(
        [
            Candidate[ToolkitEngine](
                name=name,
                precision=precision,
                open=partial(opened, name),
                describe=lambda engine: engine.name,
                runner=lambda engine: engine.run,
            )
            for name in order
        ],
        wanted=backend,
        reference=_network_reference(network) if is_network else _module_reference(network),
        make_inputs=lambda: _random_inputs(network, input_shapes),
        model=hashlib.sha256(network).hexdigest() if is_network else _module_sha256(network, input_shapes),
        machine=Machine.of_gpu(device_id) if on_gpu else Machine(chosen_device.label, "none"),
        cache_dir=None if cache_dir is None else Path(cache_dir),
    )
    if on_reason is not None:
        for reason in chosen.reasons:
            on_reason(reason)
    return chosen.engine


def _network_reference(network: bytes) -> Runner:
    """Run the network under ONNX Runtime on the CPU."""

    def run(inputs: Arrays) -> Arrays:
        with OnnxRuntimeEngine(network) as engine:
            return engine.run(inputs)

    return run


def _module_reference(model: nn.Module) -> Runner:
    """Run the module on the CPU, in FP32."""

    def run(inputs: Arrays) -> Arrays:
        from vitascope.gpu.engines.torch_export import run_on_cpu

        return run_on_cpu(model, inputs)

    return run


def _random_inputs(network: Any, input_shapes: InputShapes | None) -> dict[str, npt.NDArray[Any]]:
    """Make inputs of the smallest batch and the usual size, with values in 0..1, like pictures."""
    random = np.random.default_rng(0)
    ranges = {} if input_shapes is None else shape_ranges(input_shapes)
    if not isinstance(network, bytes):
        return {
            name: random.random((one.smallest[0], *one.usual[1:]), np.float32) for name, one in ranges.items()
        }
    arrays = {}
    with OnnxRuntimeEngine(network) as engine:
        for tensor in engine.spec.inputs:
            known = ranges.get(tensor.name)
            shape = (
                (known.smallest[0], *known.usual[1:])
                if known is not None
                else tuple(side if isinstance(side, int) else 1 for side in tensor.shape)
            )
            arrays[tensor.name] = random.random(shape, np.float32).astype(tensor.dtype)
    return arrays


def _module_sha256(model: nn.Module, input_shapes: InputShapes | None) -> str:
    from vitascope.gpu.engines.torch_export import program_fingerprint, trace_module

    return program_fingerprint(trace_module(model, shape_ranges(input_shapes or {})).exported())
