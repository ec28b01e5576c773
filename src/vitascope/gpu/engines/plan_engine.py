"""Run launch plans on a GPU through CuPy: each a CUDA graph, all in one block of memory, cached on disk.

A process that finds its plan on disk needs neither the compiler nor PyTorch: it loads machine code and
weights, and launches them.

A stored plan has the machine code of its kernels, their weights, and the launches as JSON.

Its key is the kind of GPU, the compiler's version and the code that recorded it. A plan with another key or checksum
is rebuilt, with a note. Nothing is unpickled.
"""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from vitascope.errors import EngineError, VitascopeError
from vitascope.file_lock import write_atomically
from vitascope.gpu.current_stream import RECORDING, on_cuda_stream, recorded
from vitascope.gpu.engines.engine import failure
from vitascope.gpu.engines.launch_plan import (
    Argument,
    ArrayPlace,
    CompiledKernel,
    LaunchPlan,
    TritonKernel,
    compile_kernels,
)
from vitascope.gpu.kernels.cuda_module import import_cupy

_FORMAT: Final = "vitascope-launch-plan-1"


@dataclass(frozen=True)
class StoredPlan:
    """A plan ready to launch."""

    plan: LaunchPlan[CompiledKernel]
    weights: npt.NDArray[np.uint8]


class PlanStore:
    """Plans in one folder. They are native code: let only their owner write there.

    Args:
        folder: Created if missing; None disables storing.
        label: The network, for file names.
        key: Everything that plans depend on besides sizes.
        on_note: Called with one line when a stored plan does not fit.
    """

    def __init__(
        self, folder: Path | None, *, label: str, key: Sequence[str], on_note: Callable[[str], None]
    ) -> None:
        self._folder, self._label, self._key, self._on_note = folder, label, tuple(key), on_note

    def load(self, sizes: Sequence[int]) -> StoredPlan | None:
        """Load the stored plan of some sizes; None if none fits."""
        path = self._path(sizes)
        if path is None or not path.exists():
            return None
        try:
            document = json.loads(path.read_bytes())
            self._require_key(document, sizes)
            kernels = [
                CompiledKernel(
                    self._read(checksum, ".cubin"), str(name), int(threads), int(shared), int(nulls)
                )
                for checksum, name, threads, shared, nulls in document["kernels"]
            ]
            weights = np.frombuffer(self._read(document["weights"], ".weights"), np.uint8)
            return StoredPlan(LaunchPlan.from_json(document, kernels), weights)
        except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
            self._on_note(f"{path.name} does not match ({error}); rebuilt")
            return None

    def keep(self, sizes: Sequence[int], stored: StoredPlan) -> None:
        """Store a plan for the next process; report a failure once.

        Args:
            sizes: Sizes it was recorded for.
            stored: The plan.
        """
        path = self._path(sizes)
        if path is None:
            return
        plan = stored.plan
        try:
            document = {
                "format": _FORMAT,
                "key": [*self._key, *map(str, sizes)],
                "weights": self._write(stored.weights.tobytes(), ".weights"),
                "kernels": [
                    [
                        self._write(kernel.code, ".cubin"),
                        kernel.name,
                        kernel.threads,
                        kernel.shared_bytes,
                        kernel.null_pointers,
                    ]
                    for kernel in plan.kernels
                ],
                **plan.to_json(),
            }
            write_atomically(path, json.dumps(document, separators=(",", ":")).encode())
        except OSError as error:
            self._on_note(f"{path.name} cannot be stored: {error.strerror or error}")

    def _require_key(self, document: Mapping[str, Any], sizes: Sequence[int]) -> None:
        if document["format"] != _FORMAT or document["key"] != [*self._key, *map(str, sizes)]:
            raise ValueError("it belongs to another network or machine")

    def _path(self, sizes: Sequence[int]) -> Path | None:
        if self._folder is None:
            return None
        digest = hashlib.sha256("\0".join([*self._key, *map(str, sizes)]).encode()).hexdigest()[:16]
        return self._folder / f"{self._label}-{'x'.join(map(str, sizes))}-{digest}.plan"

    def _read(self, checksum: Any, suffix: str) -> bytes:
        if self._folder is None or not isinstance(checksum, str) or not checksum.isalnum():
            raise ValueError("no checksum")
        content = (self._folder / f"{checksum}{suffix}").read_bytes()
        if _checksum(content) != checksum:
            raise ValueError(f"{checksum}{suffix} is damaged")
        return content

    def _write(self, content: bytes, suffix: str) -> str:
        """Write a file named by its content; skip an existing one."""
        assert self._folder is not None  # ensured by keep()
        checksum = _checksum(content)
        path = self._folder / f"{checksum}{suffix}"
        if not path.exists() or path.stat().st_size != len(content):
            write_atomically(path, content)
        return checksum


def _checksum(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:32]


Recorded = tuple[LaunchPlan[TritonKernel], npt.NDArray[np.uint8]]
"""A plan and its weights."""


class PlanEngine:
    """One network's plans on one GPU. Call it from one thread at a time, on any stream.

    Each set of sizes has its own plan and CUDA graph. The least recently used plan is dropped when there are
    more than ``most_plans``. Plans run one at a time and share one memory, as large as the largest needs: a
    network that sees a video in three sizes takes as much as in the largest.

    Args:
        record: Records the plan of some sizes; called if none is stored. Its weights are always the same.
        key: Everything that plans depend on besides sizes and the GPU.
        label: Name of the network in messages and files.
        device_id: Number of the GPU.
        cache_dir: Folder of plans; None compiles in each process.
        most_plans: Most plans ready at a time.
        on_note: Called with one line when a stored plan does not fit.

    Raises:
        EngineError: The GPU does not exist.
    """

    def __init__(
        self,
        record: Callable[[Sequence[int]], Recorded],
        *,
        key: Sequence[str],
        label: str,
        device_id: int,
        cache_dir: Path | None,
        most_plans: int = 8,
        on_note: Callable[[str], None] | None = None,
    ) -> None:
        cupy = import_cupy()
        self.notes: list[str] = []
        """Stored plans that did not fit, one line each."""
        self._record, self._label, self._most_plans, self._on_note = record, label, most_plans, on_note
        try:
            facts = cupy.cuda.runtime.getDeviceProperties(device_id)
        except cupy.cuda.runtime.CUDARuntimeError as error:
            raise EngineError(f"{label}: GPU {device_id} cannot be used: {error}") from error
        self.gpu_name: str = facts["name"].decode()
        self.capability: int = 10 * facts["major"] + facts["minor"]
        """Compute capability, such as 90 for 9.0."""
        self.multiprocessors: int = facts["multiProcessorCount"]
        self.gpu_bytes: int = facts["totalGlobalMem"]
        """Memory of the GPU, in bytes."""
        self._device = cupy.cuda.Device(device_id)
        self._store = PlanStore(
            cache_dir,
            label=label,
            key=(*key, str(self.capability), f"{self.multiprocessors} multiprocessors"),
            on_note=self._note,
        )
        self._weights: Any = None
        self._memory: Any = None
        """The block of memory that all plans work in."""
        self._plans: OrderedDict[tuple[int, ...], _ReadyPlan] | None = OrderedDict()
        self._last: tuple[int, Any] | None = None

    @property
    def plan_count(self) -> int:
        """Number of plans ready to run."""
        return len(self._plans or ())

    def input_shapes(self, sizes: Sequence[int]) -> dict[str, tuple[int, ...]]:
        """Prepare the plan of some sizes and get its input shapes.

        Raises:
            DeviceMemoryError: The GPU has too little memory.
            EngineError: The engine was closed, or the kernels cannot be compiled or loaded.
        """
        with self._device, self._wrapped(sizes):
            return self._ready(tuple(sizes)).input_shapes

    def run(self, sizes: Sequence[int], inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Compute a network's outputs on CuPy's current stream, without blocking the host.

        Args:
            sizes: Arguments of ``record``.
            inputs: Every input by name: C-contiguous CuPy arrays of the plan's shapes and dtypes.

        Returns:
            The outputs by name, in new memory.

        Raises:
            DeviceMemoryError: The GPU has too little memory; the message has the bytes requested and free.
            EngineError: The engine was closed, or the network failed.
        """
        cupy = import_cupy()
        with self._device, self._wrapped(sizes):
            plan = self._ready(tuple(sizes))
            stream = cupy.cuda.get_current_stream()
            # Plans use fixed memory: a call on another stream begins after the previous one has ended.
            if self._last is not None and self._last[0] != stream.ptr:
                stream.wait_event(self._last[1])
            try:
                return plan(inputs, stream)
            finally:  # a call that failed may have queued work
                event = self._last[1] if self._last is not None else cupy.cuda.Event(disable_timing=True)
                event.record(stream)
                self._last = (stream.ptr, event)

    @contextmanager
    def _wrapped(self, sizes: Sequence[int]) -> Iterator[None]:
        """Convert other libraries' errors to ours."""
        try:
            yield
        except VitascopeError:
            raise
        except Exception as error:  # CuPy, the driver and Triton have no common base
            shown = "x".join(map(str, sizes))
            raise failure(error, label=self._label, what=f"inference of {shown} failed") from error

    def close(self) -> None:
        """Free plans and weights after pending work has finished; idempotent."""
        self._free((self._plans or {}).values())
        self._plans = self._weights = self._memory = self._last = None

    def _ready(self, sizes: tuple[int, ...]) -> _ReadyPlan:
        if self._plans is None:
            raise EngineError(f"{self._label}: the engine was closed")
        plan = self._plans.get(sizes)
        if plan is None:
            while len(self._plans) >= self._most_plans:
                self._free([self._plans.popitem(last=False)[1]])
            stored = self._store.load(sizes)
            if stored is None:
                recorded, weights = self._record(sizes)
                stored = StoredPlan(_compiled(recorded, self.capability), weights)
                self._store.keep(sizes, stored)
            if self._weights is None:
                cupy = import_cupy()
                self._weights = cupy.asarray(stored.weights)
                cupy.cuda.get_current_stream().synchronize()  # the first call may use another stream
            plan = self._plans[sizes] = _ReadyPlan(stored.plan, self._weights)
        self._plans.move_to_end(sizes)
        if self._memory is None or self._memory.nbytes < plan.memory_bytes:
            self._free(self._plans.values())  # each is recorded again when it is needed
            self._memory = None
            self._memory = import_cupy().empty(plan.memory_bytes, np.uint8)
        plan.work_in(self._memory)
        return plan

    def _free(self, plans: Iterable[_ReadyPlan]) -> None:
        """Release graphs."""
        with self._device, RECORDING:
            self._device.synchronize()  # the memory returns to a pool that does not know which streams use it
            for plan in plans:
                plan.close()

    def _note(self, line: str) -> None:
        self.notes.append(line)
        if self._on_note is not None:
            self._on_note(line)


class _ReadyPlan:
    """A plan on the current device, recorded as a CUDA graph for its memory."""

    def __init__(self, plan: LaunchPlan[CompiledKernel], weights: Any) -> None:
        self._plan, self._weights = plan, weights
        self._functions = [_loaded(kernel) for kernel in plan.kernels]
        self.memory_bytes = plan.memory_bytes
        self.input_shapes = {name: place.shape for name, place in plan.inputs.items()}
        self._memory: Any = None
        self._graph: Any = None
        self._stream: Any = None
        self._inputs: dict[str, Any] = {}
        self._outputs: dict[str, Any] = {}

    def work_in(self, memory: Any) -> None:
        """Use this memory, uint8, from now on; each call overwrites it."""
        if self._memory is memory:
            return
        cupy, plan = import_cupy(), self._plan
        begins = {"memory": memory.data.ptr, "weights": self._weights.data.ptr}

        def value(argument: Argument) -> Any:
            kind, number = argument
            return np.int32(number) if kind == "int32" else np.uint64(begins[kind] + number)

        def record() -> tuple[Any, Any]:
            stream = cupy.cuda.Stream(non_blocking=True)
            with on_cuda_stream(stream):
                stream.begin_capture(cupy.cuda.runtime.streamCaptureModeThreadLocal)
                try:
                    for launch in plan.launches:
                        kernel, function = plan.kernels[launch.kernel], self._functions[launch.kernel]
                        arguments = (*map(value, launch.arguments), *[np.uint64(0)] * kernel.null_pointers)
                        function(launch.grid, (kernel.threads,), arguments, shared_mem=kernel.shared_bytes)
                except BaseException:
                    with suppress(Exception):  # while recording, this thread may not even allocate
                        stream.end_capture()
                    raise
                return stream.end_capture(), stream

        self._graph, self._stream = recorded(record)
        self._inputs = {name: _array(memory, place) for name, place in plan.inputs.items()}
        self._outputs = {name: _array(memory, place) for name, place in plan.outputs.items()}
        self._memory = memory

    def __call__(self, inputs: Mapping[str, Any], stream: Any) -> dict[str, Any]:
        """Run on a stream, which must be current.

        Raises:
            EngineError: An input is missing or has the wrong shape or dtype.
        """
        cupy = import_cupy()
        for name, own in self._inputs.items():
            given = inputs[name]
            if given.shape != own.shape or given.dtype != own.dtype or not given.flags.c_contiguous:
                raise EngineError(
                    f"{name} is {given.dtype} {list(given.shape)}, expected {own.dtype} {list(own.shape)}"
                )
            own.data.copy_from_device_async(given.data, own.nbytes, stream)
        self._graph.launch(stream)
        results = {name: cupy.empty(own.shape, own.dtype) for name, own in self._outputs.items()}
        for name, own in self._outputs.items():
            results[name].data.copy_from_device_async(own.data, own.nbytes, stream)
        return results

    def close(self) -> None:
        """Release the graph and its memory."""
        self._graph = self._stream = self._memory = None
        self._inputs, self._outputs = {}, {}


def _compiled(plan: LaunchPlan[TritonKernel], capability: int) -> LaunchPlan[CompiledKernel]:
    kernels = compile_kernels(plan.kernels, capability=capability)
    return LaunchPlan(tuple(kernels), plan.launches, plan.memory_bytes, plan.inputs, plan.outputs)


def _loaded(kernel: CompiledKernel) -> Any:
    """Load the kernel on the current device now: nothing can be loaded while a graph is recorded."""
    cupy = import_cupy()
    module = cupy.cuda.function.Module()
    module.load(kernel.code)
    function = module.get_function(kernel.name)
    cupy.cuda.driver.funcSetAttribute(
        function.ptr, cupy.cuda.driver.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, kernel.shared_bytes
    )
    return function


def _array(memory: Any, place: ArrayPlace) -> Any:
    cupy = import_cupy()
    return cupy.ndarray(place.shape, np.dtype(place.dtype), memory.data + place.offset)
