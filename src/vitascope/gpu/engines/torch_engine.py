"""PyTorch networks as engines: eager, compiled, or from a compiled package; with CUDA graphs.

Which mode is right depends on how the network is written. One H200, RobustVideoMatting at 512x288, FP16, one
frame, in a CUDA graph unless noted (``benchmarks/rvm_cuda.py`` repeats the measurement):

* ``eager``: the module as it is. PyTorch's operators cost a launch each: 4.0 ms, or 1.5 ms in a CUDA graph. A
  module fused by hand, as in ``models/rvm_torch_triton``, runs in 0.49 ms and leaves nothing to compile: it
  starts in seconds, so ``RvmTorchNetwork`` uses it by default.
* ``compile``: ``torch.compile`` fuses the operations between convolutions: 0.95 ms. It takes 14 s for one
  frame and 33 s for sixteen, at each start and for each shape: longer than matting a short video.
* ``aot``: the same code from an AOTInductor package on disk. The first run compiles as long; later ones load
    it.

The default is therefore ``eager``; the compiled modes pay for networks that were not fused by hand.

AOTInductor packages (``.pt2``) on disk are built once, and rebuilt when they no longer fit.

A JSON file beside each package records its PyTorch version, GPU and sha256. A package holds code for one GPU
from one PyTorch version: on any other it is rebuilt, with a note. A package whose sha256 differs, or that
does not load, is removed and rebuilt. Both files are written under another name and then renamed.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import logging
import os
import sys
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from vitascope.closing import Closing
from vitascope.errors import EngineError, VitascopeError
from vitascope.file_lock import write_atomically
from vitascope.gpu.current_stream import RECORDING, recorded
from vitascope.gpu.engines.engine import EngineSpec, TensorSpec, failure, require_gpu_inputs, wanted_outputs
from vitascope.gpu.kernels.cuda_module import import_cupy

Call = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class BuiltFor:
    """PyTorch version and device, which a package depends on besides the network."""

    torch: str
    device: str
    """The GPU's name, or ``cpu`` and its instruction set."""
    capability: str
    """Compute capability, such as ``9.0``; empty on a CPU."""

    def __str__(self) -> str:
        """Format version and device for messages."""
        return f"torch {self.torch} on {self.device}{f' ({self.capability})' if self.capability else ''}"


def this_machine(device: torch.device) -> BuiltFor:
    """Get the version and device of a package built here and now."""
    if device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(device)
        return BuiltFor(torch.__version__, torch.cuda.get_device_name(device), f"{major}.{minor}")
    return BuiltFor(torch.__version__, f"cpu {torch.backends.cpu.get_cpu_capability()}", "")


class PackageCache:
    """Packages in one directory.

    Args:
        directory: Created if missing. Packages are native code: let only their owner write here.
        on_note: Called with one line when a package is built, with the reason.
    """

    def __init__(self, directory: Path, *, on_note: Callable[[str], None]) -> None:
        self._directory = directory
        self._on_note = on_note

    def path(self, key: Sequence[str]) -> Path:
        """Path of a package, from its key: the network, shapes, precision and settings."""
        digest = hashlib.sha256("\0".join(key).encode()).hexdigest()[:16]
        label = "".join(letter if letter.isalnum() else "-" for letter in key[0])
        return self._directory / f"{label}-{digest}.pt2"

    def load(
        self,
        key: Sequence[str],
        built_for: BuiltFor,
        *,
        build: Callable[[Path], None],
        device: torch.device,
    ) -> Call:
        """Load a package, building it if it is missing or does not fit.

        Args:
            key: Everything that changes the compiled code; starts with a label for the file name.
            built_for: See ``this_machine``.
            build: Writes a package to the given path.
            device: Device to run it on.

        Raises:
            OSError: The directory is not writable.
            Exception: Whatever ``build`` raises, or loading the new package.
        """
        path = self.path(key)
        reason = self._unfit(path, built_for)
        if reason is None:
            try:
                return _open(path, device)
            except Exception as error:
                reason = f"{path.name} does not load ({type(error).__name__}): removed and rebuilt"
        self._on_note(reason)
        path.unlink(missing_ok=True)
        self._note_path(path).unlink(missing_ok=True)
        self._directory.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.stem}.{os.getpid()}.pt2")
        try:
            build(temporary)
            note = {**asdict(built_for), "sha256": _sha256(temporary)}
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
        write_atomically(self._note_path(path), (json.dumps(note) + "\n").encode())
        return _open(path, device)

    def _unfit(self, path: Path, built_for: BuiltFor) -> str | None:
        """Say why the package at a path cannot be used; None if it can."""
        if not path.exists():
            return f"{path.name} is not there yet: built"
        note = self._note(path)
        if note is None:
            return f"{path.name} has no note of what it was built for: removed and rebuilt"
        before, sha256 = note
        if before != built_for:
            return f"{path.name} was built by {before}, this is {built_for}: rebuilt"
        if _sha256(path) != sha256:
            return f"{path.name} is damaged: removed and rebuilt"
        return None

    def _note(self, path: Path) -> tuple[BuiltFor, str] | None:
        try:
            note = json.loads(self._note_path(path).read_text(encoding="utf-8"))
            return BuiltFor(note["torch"], note["device"], note["capability"]), note["sha256"]
        except (OSError, ValueError, TypeError, KeyError):
            return None

    @staticmethod
    def _note_path(path: Path) -> Path:
        return path.with_suffix(".json")


def _open(path: Path, device: torch.device) -> Call:
    # Except in single-threaded mode, a package guards itself with calls that a graph cannot record.
    package = torch._inductor.aoti_load_package(
        str(path), run_single_threaded=True, device_index=device.index if device.index is not None else -1
    )

    def call(*inputs: Tensor) -> tuple[Tensor, ...]:
        results = package(*inputs)
        return (results,) if isinstance(results, Tensor) else tuple(results)

    return call


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


_WARM_UPS = 2


class CapturedCall:
    """A callable of fixed shapes as a CUDA graph with its own memory pool: many kernels for one launch.

    A graph reads and writes fixed memory. Each call copies its inputs into it, replays, and copies the
    results into new memory, so that a caller's results never change. Copies and replay run on the caller's
    stream.

    Recorded on a separate stream, since the default stream cannot be recorded, in thread-local mode, so that
    threads that decode or copy can allocate meanwhile. Warm-up calls let cuDNN choose algorithms and Triton
    compile.

    Args:
        call: Takes tensors and returns a tuple of tensors; must not wait for the GPU.
        examples: Inputs with the shapes and dtypes of every call, on one CUDA device.
    """

    def __init__(self, call: Callable[..., tuple[Tensor, ...]], examples: Sequence[Tensor]) -> None:
        device = examples[0].device
        self._inputs = [torch.empty_like(example) for example in examples]
        for own, example in zip(self._inputs, examples, strict=True):
            own.copy_(example)
        make: Any = torch.cuda.Stream  # untyped in torch
        side = make(device)
        side.wait_stream(torch.cuda.current_stream(device))

        def record() -> tuple[torch.cuda.CUDAGraph, tuple[Tensor, ...]]:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=side, capture_error_mode="thread_local"):
                return graph, tuple(call(*self._inputs))

        self._graph: torch.cuda.CUDAGraph | None
        with torch.cuda.stream(side):
            for _ in range(_WARM_UPS):
                call(*self._inputs)
            side.synchronize()
            self._graph, self._outputs = recorded(record)
        self._taken, self._given = same_dtypes(self._inputs), same_dtypes(self._outputs)
        torch.cuda.current_stream(device).wait_stream(side)

    def __call__(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Replay on the current stream.

        Args:
            inputs: Tensors with the examples' shapes and dtypes.

        Returns:
            The results in new memory.
        """
        assert self._graph is not None  # never called when closed
        _copy(self._inputs, inputs, self._taken)
        self._graph.replay()
        results = tuple(map(torch.empty_like, self._outputs))
        _copy(results, self._outputs, self._given)
        return results

    def close(self) -> None:
        """Free the graph and its memory after pending work has finished."""
        if self._graph is not None:
            with RECORDING:
                torch.cuda.synchronize(self._inputs[0].device)
            self._graph.reset()
            self._graph = None
            self._inputs, self._outputs = [], ()
            torch.cuda.empty_cache()


def same_dtypes(tensors: Sequence[Tensor]) -> tuple[tuple[int, ...], ...]:
    """Group indices of tensors by dtype: one launch can copy a group. Computed once per plan."""
    places: dict[torch.dtype, list[int]] = {}
    for place, tensor in enumerate(tensors):
        places.setdefault(tensor.dtype, []).append(place)
    return tuple(map(tuple, places.values()))


def _copy(targets: Sequence[Tensor], sources: Sequence[Tensor], groups: tuple[tuple[int, ...], ...]) -> None:
    """Copy each source into its target, one launch per dtype."""
    for places in groups:
        torch._foreach_copy_([targets[place] for place in places], [sources[place] for place in places])


@contextmanager
def torch_flags(*, allow_tf32: bool, cudnn_benchmark: bool, cudnn_deterministic: bool) -> Iterator[None]:
    """Set PyTorch's switches, and restore them on exit.

    They are process-wide: work launched by other threads meanwhile is affected.

    Args:
        allow_tf32: Allow FP32 convolutions and matrix products to round inputs to TF32 (10-bit mantissas).
        cudnn_benchmark: Let cuDNN time its algorithms for each new shape and use the fastest.
        cudnn_deterministic: Use only deterministic cuDNN algorithms.
    """
    matmul = torch.backends.cuda.matmul
    before = matmul.allow_tf32
    with torch.backends.cudnn.flags(
        enabled=True, benchmark=cudnn_benchmark, deterministic=cudnn_deterministic, allow_tf32=allow_tf32
    ):
        matmul.allow_tf32 = allow_tf32
        try:
            yield
        finally:
            matmul.allow_tf32 = before


TorchMode = Literal["eager", "compile", "aot"]
CompileEffort = Literal["default", "max-autotune"]

Module: TypeAlias = "nn.Module | torch.export.ExportedProgram"
_Call = Callable[..., tuple[Tensor, ...]]
# Dynamo stops recompiling a function at this limit, but each of our shapes is one intended compilation.
_MOST_RECOMPILES = 1024


class TorchEngine(Closing):
    """One PyTorch network.

    Each new shape gets a plan: the compiled code, and on a GPU a CUDA graph with its buffers. The least
    recently used plan is dropped when there are more than ``most_plans``.

    Args:
        module: Takes inputs by position and returns a tensor or a tuple of tensors. Moved to ``device``. An
            exported program runs in the shapes it was exported for.
        inputs: Names, dtypes and shapes of the inputs, in order.
        outputs: The same for the outputs.
        device: ``cpu`` or ``cuda:N``.
        label: Name of the network in messages and package files.
        mode: ``eager``, ``compile`` or ``aot``; see the module's docstring.
        effort: ``max-autotune`` lets the compiler time its choices, for minutes; ignored in ``eager``.
        cuda_graph: Record each plan as a CUDA graph; ignored on a CPU.
        most_plans: Most plans to keep.
        cache_dir: Folder of packages; required for ``aot``.
        fingerprint: Identifies the network's weights and code; required for ``aot``.
        allow_tf32: Allow FP32 products to round their inputs to TF32.
        cudnn_benchmark: Let cuDNN time its algorithms for each shape.
        cudnn_deterministic: Use only deterministic algorithms.
        keeps_switches: Leave PyTorch's process-wide switches alone and ignore the three arguments above.
        on_note: Called with one line when a package is built, with the reason.

    Raises:
        EngineError: ``aot`` without ``cache_dir`` or ``fingerprint``, or the device does not exist.
    """

    def __init__(
        self,
        module: Module,
        *,
        inputs: Sequence[TensorSpec],
        outputs: Sequence[TensorSpec],
        device: str = "cpu",
        label: str = "network",
        mode: TorchMode = "eager",
        effort: CompileEffort = "default",
        cuda_graph: bool = True,
        most_plans: int = 8,
        cache_dir: Path | None = None,
        fingerprint: str | None = None,
        allow_tf32: bool = True,
        cudnn_benchmark: bool = True,
        cudnn_deterministic: bool = False,
        keeps_switches: bool = False,
        on_note: Callable[[str], None] | None = None,
    ) -> None:
        if mode == "aot" and (cache_dir is None or fingerprint is None):
            raise EngineError(f"{label}: packages need a directory and the network's fingerprint")
        self.notes: list[str] = []
        """Packages built, with reasons, one line each."""
        self._label, self._mode, self._effort = label, mode, effort
        self._graphs = cuda_graph
        self._most_plans = most_plans
        self._fingerprint = fingerprint or ""
        self._flags = {
            "allow_tf32": allow_tf32,
            "cudnn_benchmark": cudnn_benchmark,
            "cudnn_deterministic": cudnn_deterministic,
        }
        self._keeps_switches = keeps_switches
        self._on_note = on_note
        self._packages = None if cache_dir is None else PackageCache(cache_dir, on_note=self._note)
        self._plans: OrderedDict[tuple[Any, ...], _Plan] = OrderedDict()
        self._device = torch.device(device)
        self._on_gpu = self._device.type == "cuda"
        self._spec = EngineSpec(tuple(inputs), tuple(outputs), "cuda" if self._on_gpu else "cpu")
        self._exported = module if isinstance(module, torch.export.ExportedProgram) else None
        plain: nn.Module = (
            module.module() if isinstance(module, torch.export.ExportedProgram) else module.eval()
        )
        try:
            self._module: nn.Module | None = plain.to(self._device)
            self._device_name = this_machine(self._device).device
        except (RuntimeError, AssertionError) as error:  # torch without CUDA raises AssertionError
            raise failure(error, label=label, what=f"cannot move to {device}", on_gpu=self._on_gpu) from error

    @property
    def name(self) -> str:
        """Engine, version and device, such as ``torch 2.11.0 (NVIDIA H200, eager, CUDA graphs)``."""
        compiled = (
            self._mode
            if self._mode == "eager" or self._effort == "default"
            else f"{self._mode} {self._effort}"
        )
        graphs = ", CUDA graphs" if self._on_gpu and self._graphs else ""
        return f"torch {torch.__version__} ({self._device_name}, {compiled}{graphs})"

    @property
    def spec(self) -> EngineSpec:
        """Named tensors, dtypes and symbolic shapes."""
        return self._spec

    @property
    def plan_count(self) -> int:
        """Number of plans, one per shape."""
        return len(self._plans)

    def run(
        self, inputs: Mapping[str, Any], outputs: Sequence[str] | None = None, *, stream: int | None = None
    ) -> dict[str, Any]:
        """Compute the outputs; see ``Engine.run``.

        Args:
            inputs: NumPy arrays on a CPU, C-contiguous CuPy arrays on a GPU.
            outputs: Names of the outputs to return; all if omitted.
            stream: CUDA stream handle; CuPy's current stream if omitted. Must be None on a CPU.

        Returns:
            New arrays: NumPy on a CPU, CuPy on a GPU.
        """
        names = wanted_outputs(self._spec, outputs, label=self._label)
        if self._on_gpu:
            require_gpu_inputs(self._spec, inputs, label=self._label)
            cupy = import_cupy()
            handle = cupy.cuda.get_current_stream().ptr if stream is None else stream
            with self.on_stream(handle):
                tensors = [
                    torch.utils.dlpack.from_dlpack(inputs[tensor.name]) for tensor in self._spec.inputs
                ]
            results = self.run_tensors(tensors, stream=handle)
            arrays: list[Any] = [cupy.from_dlpack(result) for result in results]
        else:
            if stream is not None:
                raise EngineError(f"{self._label}: a CPU engine cannot use a CUDA stream")
            tensors = [_from_host(inputs, tensor, label=self._label) for tensor in self._spec.inputs]
            arrays = [result.numpy() for result in self.run_tensors(tensors)]
        by_name = {tensor.name: array for tensor, array in zip(self._spec.outputs, arrays, strict=True)}
        return {name: by_name[name] for name in names}

    def run_tensors(self, inputs: Sequence[Tensor], *, stream: int | None = None) -> tuple[Tensor, ...]:
        """Compute all outputs from tensors in ``spec``'s order, on the engine's device.

        Args:
            inputs: Contiguous tensors of the dtypes in ``spec``.
            stream: CUDA stream handle; torch's current stream if omitted.

        Returns:
            New tensors, in order.

        Raises:
            DeviceMemoryError: The GPU has too little memory; the message has the bytes requested and free.
            EngineError: The engine was closed, or the network failed.
        """
        with self._on_given_stream(stream), torch.inference_mode():
            try:
                return self._plan(inputs)(inputs)
            except VitascopeError:
                raise
            except Exception as error:  # torch, its compiler and Triton have no common base
                shapes = ", ".join(str(list(tensor.shape)) for tensor in inputs)
                raise failure(
                    error, label=self._label, what=f"inference of {shapes} failed", on_gpu=self._on_gpu
                ) from error

    def _on_given_stream(self, handle: int | None) -> AbstractContextManager[None]:
        """Enter the stream unless it is current already: entering it again takes longer than a launch."""
        if handle is None and self._on_gpu and torch.cuda.current_device() == self._device.index:
            return nullcontext()
        return self.on_stream(handle)

    @contextmanager
    def on_stream(self, handle: int | None) -> Iterator[None]:
        """Work on the engine's GPU and one stream; does nothing on a CPU.

        Args:
            handle: CUDA stream handle; None stays on torch's current stream.
        """
        if not self._on_gpu:
            yield
            return
        with torch.cuda.device(self._device):
            if handle is None:
                yield
                return
            # 0 is the default stream, for which torch has another name.
            stream: Any = _external(handle, self._device) if handle else torch.cuda.default_stream()
            with torch.cuda.stream(stream):
                yield

    def close(self) -> None:
        """Free plans and weights; idempotent."""
        for plan in self._plans.values():
            plan.close()
        self._plans.clear()
        self._module = self._exported = None

    def _plan(self, inputs: Sequence[Tensor]) -> _Plan:
        if self._module is None:
            raise EngineError(f"{self._label}: the engine was closed")
        key = tuple((tuple(tensor.shape), tensor.dtype) for tensor in inputs)
        plan = self._plans.get(key)
        if plan is None:
            while len(self._plans) >= self._most_plans:
                self._plans.popitem(last=False)[1].close()
            flags = None if self._keeps_switches else self._flags
            with _switched(flags):
                plan = self._plans[key] = _Plan(
                    self._callable(inputs), inputs, graph=self._on_gpu and self._graphs, flags=flags
                )
        self._plans.move_to_end(key)
        return plan

    def _callable(self, inputs: Sequence[Tensor]) -> _Call:
        assert self._module is not None  # ensured by _plan
        if self._mode == "aot":
            return self._package(inputs)
        call: Callable[..., Any] = self._module
        if self._mode == "compile":
            _import_setuptools()
            mode = "max-autotune-no-cudagraphs" if self._effort == "max-autotune" else None
            call = torch.compile(self._module, dynamic=False, mode=mode)

        def run(*tensors: Tensor) -> tuple[Tensor, ...]:
            with _quiet_compiler() if self._mode == "compile" else nullcontext():
                results = call(*tensors)
            return (results,) if isinstance(results, Tensor) else tuple(results)

        return run

    def _package(self, inputs: Sequence[Tensor]) -> _Call:
        assert self._packages is not None  # ensured by __init__
        shapes = ", ".join(f"{tensor.dtype} {list(tensor.shape)}" for tensor in inputs)
        settings = ", ".join(f"{key}={value}" for key, value in self._flags.items())
        key = (self._label, self._fingerprint, shapes, self._effort, settings)

        def build(path: Path) -> None:
            assert self._module is not None  # ensured by _plan
            _import_setuptools()
            with _quiet_compiler():
                exported = self._exported
                if exported is None:
                    exported = torch.export.export(self._module, tuple(inputs), strict=False)
                torch._inductor.aoti_compile_and_package(
                    exported,
                    package_path=str(path),
                    inductor_configs={"max_autotune": self._effort == "max-autotune"},
                )

        try:
            return self._packages.load(key, this_machine(self._device), build=build, device=self._device)
        except OSError as error:
            raise EngineError(
                f"{self._label}: the package cannot be kept: {error.filename}: {error.strerror or error}"
            ) from error

    def _note(self, line: str) -> None:
        self.notes.append(line)
        if self._on_note is not None:
            self._on_note(line)


class _Plan:
    """Runs one set of shapes."""

    def __init__(
        self, call: _Call, examples: Sequence[Tensor], *, graph: bool, flags: Mapping[str, bool] | None
    ) -> None:
        self._call = call
        self._flags = flags
        self._captured = CapturedCall(call, examples) if graph else None

    def __call__(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        if self._captured is not None:
            return self._captured(inputs)  # records the switches' effect
        with _switched(self._flags):
            return self._call(*inputs)

    def close(self) -> None:
        if self._captured is not None:
            self._captured.close()


def _switched(flags: Mapping[str, bool] | None) -> AbstractContextManager[None]:
    """Set PyTorch's switches for a block; None leaves them as they are."""
    return nullcontext() if flags is None else torch_flags(**flags)


def _import_setuptools() -> None:
    """Import setuptools, which PyTorch's C++ builder needs, before the builder does.

    Up to Python 3.11, once anything has looked for pip in this process (``find_spec("pip")`` is enough),
    setuptools' import hook yields to the standard library's distutils, and importing setuptools fails an
    assertion. So first restore the hook.
    """
    if "setuptools" in sys.modules:
        return
    hook = getattr(sys.modules.get("_distutils_hack"), "DISTUTILS_FINDER", None)
    if hook is not None:
        vars(hook).pop("spec_for_distutils", None)  # the override of the method
    with suppress(ImportError), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # setuptools warns if distutils was imported earlier
        importlib.import_module("setuptools")


@contextmanager
def _quiet_compiler() -> Iterator[None]:
    """Keep the compiler from printing measurements and from giving up after a few shapes."""
    from torch._inductor import select_algorithm

    logger = logging.getLogger("torch._inductor")
    level, printed = logger.level, select_algorithm.PRINT_AUTOTUNE
    logger.setLevel(logging.ERROR)
    select_algorithm.PRINT_AUTOTUNE = False
    try:
        with torch._dynamo.config.patch(recompile_limit=_MOST_RECOMPILES):
            yield
    finally:
        select_algorithm.PRINT_AUTOTUNE = printed
        logger.setLevel(level)


def _external(handle: int, device: torch.device) -> Any:
    make: Any = torch.cuda.ExternalStream  # untyped in torch
    return make(handle, device)


def _from_host(inputs: Mapping[str, Any], tensor: TensorSpec, *, label: str) -> Tensor:
    array = inputs.get(tensor.name)
    if not isinstance(array, np.ndarray) or array.dtype != tensor.dtype or array.ndim != len(tensor.shape):
        met = "nothing" if array is None else f"{getattr(array, 'dtype', type(array).__name__)}"
        met += f" {list(array.shape)}" if isinstance(array, np.ndarray) else ""
        raise EngineError(
            f"{label}: input {tensor.name!r} is {met}, expected {tensor.dtype} {list(tensor.shape)}"
        )
    # torch warns about read-only memory, although it is only read here.
    return torch.from_numpy(array if array.flags.writeable else array.copy())
