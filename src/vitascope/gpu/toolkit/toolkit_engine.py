"""Build, load, infer, measure: the methods that ``TensorRTEngine``, ``InductorEngine`` and ``OnnxEngine`` share.

Each is a face of one engine of the runtime, the very one that ``vitascope segment`` runs, and carries arrays of any
library to it and back: ``TensorRTEngine`` of ``TrtPlan``, ``InductorEngine`` of ``TorchEngine``, ``OnnxEngine`` of
``OnnxRuntimeEngine``.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict

import numpy as np

from vitascope.closing import Closing
from vitascope.device import Device, select_device
from vitascope.errors import EngineError, UsageError
from vitascope.file_lock import write_atomically
from vitascope.gpu.current_stream import on_cuda_stream
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
)
from vitascope.gpu.engines.gpu_arrays import import_cupy, on_stream
from vitascope.gpu.engines.onnx_network import Calibration
from vitascope.gpu.interchange import kind_of, lies_on_gpu, to_cupy, to_kind, to_numpy

if TYPE_CHECKING:
    from torch import nn

__all__ = ["BenchmarkReport", "DeviceWord", "LatencyReport", "ToolkitEngine", "measure_calls", "usual_shape"]


DeviceWord = Literal["auto", "cuda", "cpu"]


class LatencyReport(TypedDict):
    """Milliseconds of one call, from its start until its results are there, and calls in a row."""

    avg_latency_ms: float
    min_ms: float
    p50_ms: float
    p95_ms: float
    p99_ms: float
    max_ms: float
    throughput_fps: float
    """Pictures a second while calls follow one another without waiting for results in between."""
    batch_size: int
    num_iterations: int
    warmup: int


class BenchmarkReport(LatencyReport):
    """``LatencyReport`` of an engine's ``benchmark``, and what was measured."""

    engine: str
    precision: Precision
    device: str
    input_shapes: dict[str, tuple[int, ...]]


def usual_shape(tensor: TensorSpec, known: ShapeRange | None, batch_size: int | None) -> tuple[int, ...]:
    """The size that an input is measured with.

    Args:
        tensor: The input.
        known: The sizes that its engine was built for, where they are known.
        batch_size: First dimension; the usual one when omitted, 1 where that is not known.

    Raises:
        EngineError: A side is free and nothing says how long it is.
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
    """Time a call.

    Args:
        call: What is timed.
        wait: Returns when everything that was launched has finished; does nothing on a CPU.
        batch_size: Pictures of one call.
        num_iterations: Calls of each of the two measurements.
        warmup: Calls before, which are not counted: compilers, caches and clocks settle in them.
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


class ToolkitEngine(Closing, ABC):
    """One network behind the methods that every engine of the toolkit has.

    Build or load first; building again replaces the network. Calls come from one thread at a time.

    Args:
        fp16_mode: Compute in FP16 on a GPU. A CPU computes FP32 faster, and goes on doing so; ``notes`` say it.
        int8_mode: Quantise to 8-bit integers; ``build_…`` then need ``calibration``.
        workspace_gb: Most gigabytes (10^9 bytes) of scratch memory while an engine is built and run, where the engine
            has such a limit; None leaves it to the engine.
        cache_dir: Where built engines are kept and found again, by network, sizes, arithmetic, GPU and version; None
            builds again each time.
        device: ``auto`` takes the GPU where one can be used, else the CPU.
        device_id: Number of the GPU; ignored on a CPU.
        allow_tf32: FP32 products on a GPU may round their inputs to TF32 (10 bits of mantissa).

    Raises:
        DeviceError: The device cannot be had.
        MissingDependencyError: The engine's package is not installed; the message names it.
        UsageError: A limit that is no positive number.
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
        self._found: tuple[str, Precision] | None = None  # the network's name, and what it computes in
        self._notes: list[str] = []
        if fp16_mode and not self._on_gpu:
            self._notes.append("fp16_mode has no effect on a CPU, which computes FP32 faster")

    # --- what there is ----------------------------------------------------------------------------------------------

    @property
    def device(self) -> Device:
        """The device that the network runs on."""
        return self._device

    @property
    def precision(self) -> Precision:
        """The arithmetic in effect; of a file that TensorRT wrote what was requested, because it does not report it."""
        return self._opened_as()[1]

    @property
    def name(self) -> str:
        """Engine, version and device, for reports: for example ``onnxruntime 1.31 (CPU, 2 threads)``."""
        name, precision = self._opened().name, self.precision
        is_said = precision not in ("fp16", "int8") or precision in name
        return name if is_said else f"{name}, {precision} network"

    @property
    def spec(self) -> EngineSpec:
        """Named tensors, dtypes and symbolic shapes."""
        return self._opened().spec

    @property
    def input_shapes(self) -> dict[str, ShapeRange]:
        """Sizes that the engine was built for; empty if a loaded file does not report it."""
        return dict(self._ranges)

    @property
    def notes(self) -> tuple[str, ...]:
        """Remarks for the user: wishes without effect, engines that were built again and why."""
        label, found = self._opened_as()
        odd = f"{label} is in {found}, and computes so, though {self._asked} was asked for"
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
        """Build an engine from a PyTorch module, open it, and keep it in a file.

        Args:
            model: Takes its inputs by position, in the order of ``input_shapes``, and gives a tensor, a tuple or a
                dict of tensors. It is copied, not changed, and run in evaluation mode.
            input_shapes: For each input its smallest, usual and largest size: ``{"input": {"min": (1, 3, 512, 512),
                "opt": (4, 3, 512, 512), "max": (16, 3, 512, 512)}}``. What differs is free: the batch, sides.
            output_path: Where the engine is kept for ``load_engine``; None keeps none.
            calibration: For ``int8_mode``: for each input, arrays of typical use along the first axis, such as
                pictures from real frames.

        Returns:
            The file, or None.

        Raises:
            EngineError: The module cannot be exported, or the engine cannot be built or written.
            MissingDependencyError: A package is missing; the message names it.
            UsageError: Sizes or calibration do not fit.
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
        """Build an engine from an ONNX network, open it, and keep it in a file.

        Args:
            onnx_path: The ``.onnx`` file, or its serialised bytes.
            input_shapes: As above; may be left out where the network's sizes are fixed.
            output_path: As above.
            calibration: As above.

        Returns:
            The file, or None.

        Raises:
            EngineError: The network cannot be read, or the engine cannot be built or written.
            MissingDependencyError: A package is missing; the message names it.
            UsageError: The engine runs no ONNX networks, or sizes or calibration do not fit.
        """
        ranges = {} if input_shapes is None else shape_ranges(input_shapes)
        self._check_calibration(calibration)
        source = onnx_path if isinstance(onnx_path, bytes) else Path(onnx_path)
        self._open(lambda: self._from_onnx(source, ranges, calibration), ranges)
        return self._keep(output_path)

    def load_engine(self, path: str | PathLike[str]) -> None:
        """Open an engine that was built and kept before. Load only what you built: engines are native code.

        Raises:
            EngineError: The file is missing, damaged, or of another kind, version or GPU.
        """
        source = Path(path)
        if not source.is_file():
            raise EngineError(f"{source}: there is no such file; build_engine_from_pytorch writes it")
        self.close()
        self._engine, self._ranges = self._from_file(source)

    def close(self) -> None:
        """Free the network; idempotent. Another can be built or loaded afterwards."""
        self._found = None
        if self._engine is not None:
            self._engine.close()
            self._engine = None

    # --- running ------------------------------------------------------------------------------------------------------

    def infer(self, array: Any) -> Any:
        """Run a network of one input and take its first output.

        Args:
            array: NumPy, CuPy, PyTorch or DLPack; of the dtype and within the sizes that the engine was built for.

        Returns:
            The same kind of array, in the same memory: host or GPU.

        Raises:
            EngineError: The network has several inputs, the array does not fit, or the network failed.
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
            inputs: Every input by name, of any kind that ``infer`` takes.
            outputs: Which to return; all when omitted.
            stream: CUDA stream handle that the work is ordered on. None is the current stream of the first input's
                library. The host waits only where results leave the GPU.

        Returns:
            The outputs by name, of the first input's kind and in its memory.

        Raises:
            EngineError: An input is missing, unknown, or does not fit, or the network failed.
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
        """Time the network on random inputs that lie where it computes.

        Args:
            num_iterations: Calls that are measured, one by one and again in a row.
            warmup: Calls before.
            batch_size: First dimension of the inputs; the usual one of ``input_shapes`` when omitted.

        Returns:
            ``avg_latency_ms``, ``p50_ms``, ``p95_ms``, ``p99_ms``: one call, until its result is there;
            ``throughput_fps``: batch entries a second of calls in a row; and what was measured.

        Raises:
            UsageError: Not one iteration.
            EngineError: The file does not report it the sizes, or the network failed.
        """
        if num_iterations < 1 or warmup < 0:
            raise UsageError(f"{num_iterations} iterations after {warmup}: at least 1 and 0 are needed")
        engine = self._opened()
        random = np.random.default_rng(0)
        arrays: dict[str, Any] = {}
        for tensor in engine.spec.inputs:
            shape = usual_shape(tensor, self._ranges.get(tensor.name), batch_size)
            require_in_range(tensor.name, shape, self._ranges, label=type(self).__name__)
            arrays[tensor.name] = random.random(shape, np.float32).astype(tensor.dtype)
        batch = next(iter(arrays.values())).shape[0]
        if self._on_gpu:
            cupy = import_cupy()
            with (
                cupy.cuda.Device(self._device.index),
                on_cuda_stream(cupy.cuda.Stream(non_blocking=True)) as stream,
            ):
                placed = {name: cupy.asarray(array) for name, array in arrays.items()}
                report = measure_calls(
                    lambda: engine.run(placed),
                    wait=stream.synchronize,
                    batch_size=batch,
                    num_iterations=num_iterations,
                    warmup=warmup,
                )
        else:
            report = measure_calls(
                lambda: engine.run(arrays),
                wait=lambda: None,
                batch_size=batch,
                num_iterations=num_iterations,
                warmup=warmup,
            )
        return BenchmarkReport(
            **report,
            engine=self.name,
            precision=self.precision,
            device=self._device.label,
            input_shapes={name: tuple(array.shape) for name, array in arrays.items()},
        )

    # --- what each engine does its own way ----------------------------------------------------------------------------

    def _placed(self, device: DeviceWord) -> DeviceWord:
        """Resolve the requested device.

        Raises:
            DeviceError: The engine does not run there.
            MissingDependencyError: The engine's package is not installed.
        """
        return device

    @abstractmethod
    def _from_pytorch(
        self, model: nn.Module, ranges: Mapping[str, ShapeRange], calibration: Calibration | None
    ) -> Engine:
        """Build from a module."""

    @abstractmethod
    def _from_onnx(
        self, source: Path | bytes, ranges: Mapping[str, ShapeRange], calibration: Calibration | None
    ) -> Engine:
        """Build from an ONNX network."""

    @abstractmethod
    def _from_file(self, path: Path) -> tuple[Engine, dict[str, ShapeRange]]:
        """Open what ``_serialized`` gave."""

    @abstractmethod
    def _serialized(self) -> bytes:
        """The built engine, as it is kept in a file."""

    # --- inside -------------------------------------------------------------------------------------------------------

    @property
    def _asked(self) -> Precision:
        if self._int8:
            return "int8"
        return "fp16" if self._on_gpu and self._fp16 else self._exact

    @property
    def _exact(self) -> Precision:
        """The arithmetic of a network in FP32."""
        return "tf32" if self._on_gpu and self._tf32 else "fp32"

    def _opened_as(self) -> tuple[str, Precision]:
        """Name and arithmetic of the open network; empty for one that was refused."""
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
