"""Launch plans on a GPU, through CuPy: each a CUDA graph, all in one memory, and kept on disk.

A process that finds its plan on disk needs neither the compiler nor PyTorch: it loads machine code and weights, and
launches.

Launch plans on disk: the machine code of their kernels, their weights, and the launches as JSON.

A plan holds for one kind of GPU, one version of the compiler and one state of the code that recorded it: its key. What
does not fit its key or its checksum is made again, with a note. Nothing that is read is unpickled.
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
    """A plan that can be launched."""

    plan: LaunchPlan[CompiledKernel]
    weights: npt.NDArray[np.uint8]


class PlanStore:
    """The plans in one folder. They are native code: keep it where only its owner may write.

    Args:
        folder: Created when absent; None keeps nothing.
        label: The network, for file names.
        key: Whatever changes plans besides sizes.
        on_note: Called with one line whenever a kept plan does not fit.
    """

    def __init__(
        self, folder: Path | None, *, label: str, key: Sequence[str], on_note: Callable[[str], None]
    ) -> None:
        self._folder, self._label, self._key, self._on_note = folder, label, tuple(key), on_note

    def load(self, sizes: Sequence[int]) -> StoredPlan | None:
        """Load the kept plan of some sizes; None if none fits."""
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
            self._on_note(f"{path.name} does not fit ({error}): rebuilt")
            return None

    def keep(self, sizes: Sequence[int], stored: StoredPlan) -> None:
        """Write a plan for the next process; if that fails, say so once.

        Args:
            sizes: What it was recorded for.
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
            self._on_note(f"{path.name} cannot be kept: {error.strerror or error}")

    def _require_key(self, document: Mapping[str, Any], sizes: Sequence[int]) -> None:
        if document["format"] != _FORMAT or document["key"] != [*self._key, *map(str, sizes)]:
            raise ValueError("another network's, or another machine's")

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
        """Write a file named after its content; an existing one is left alone."""
        assert self._folder is not None  # keep() saw to it
        checksum = _checksum(content)
        path = self._folder / f"{checksum}{suffix}"
        if not path.exists() or path.stat().st_size != len(content):
            write_atomically(path, content)
        return checksum


def _checksum(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:32]


Recorded = tuple[LaunchPlan[TritonKernel], npt.NDArray[np.uint8]]
"""A plan, and the weights that it reads."""


class PlanEngine:
    """One network's plans on one GPU. Calls come from one thread at a time, on any stream.

    Each set of sizes has a plan of its own, with its CUDA graph. The least recently used one goes when there are more
    than ``most_plans``. One plan runs at a time, so all work in one memory, which is as large as the largest needs: a
    network that sees a film in three sizes takes as much as in the largest.

    Args:
        record: Records the plan of some sizes; called where none is kept. Its weights are always the same.
        key: Whatever changes plans besides sizes and the GPU.
        label: What messages and files call the network.
        device_id: The GPU.
        cache_dir: Where plans are kept; None compiles again in each process.
        most_plans: How many are ready at a time.
        on_note: Called with one line when a kept plan does not fit.

    Raises:
        EngineError: The GPU is not there.
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
        """Plans that were kept and do not fit, one line each."""
        self._record, self._label, self._most_plans, self._on_note = record, label, most_plans, on_note
        try:
            facts = cupy.cuda.runtime.getDeviceProperties(device_id)
        except cupy.cuda.runtime.CUDARuntimeError as error:
            raise EngineError(f"{label}: GPU {device_id} cannot be used: {error}") from error
        self.gpu_name: str = facts["name"].decode()
        self.capability: int = 10 * facts["major"] + facts["minor"]
        """Compute capability: 90 for 9.0."""
        self.multiprocessors: int = facts["multiProcessorCount"]
        self._device = cupy.cuda.Device(device_id)
        self._store = PlanStore(
            cache_dir,
            label=label,
            key=(*key, str(self.capability), f"{self.multiprocessors} multiprocessors"),
            on_note=self._note,
        )
        self._weights: Any = None
        self._memory: Any = None
        """What all plans work in."""
        self._plans: OrderedDict[tuple[int, ...], _ReadyPlan] | None = OrderedDict()
        self._last: tuple[int, Any] | None = None

    @property
    def plan_count(self) -> int:
        """Sets of sizes that are ready to run."""
        return len(self._plans or ())

    def input_shapes(self, sizes: Sequence[int]) -> dict[str, tuple[int, ...]]:
        """Shapes of the inputs of some sizes; makes their plan ready.

        Raises:
            DeviceMemoryError: The GPU has too little memory.
            EngineError: The engine was closed, or the kernels cannot be compiled or loaded.
        """
        with self._device, self._wrapped(sizes):
            return self._ready(tuple(sizes)).input_shapes

    def run(self, sizes: Sequence[int], inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Compute a network's outputs on CuPy's current stream; the host does not wait.

        Args:
            sizes: What ``record`` takes.
            inputs: Every input by name: C-contiguous CuPy arrays of the plan's shapes and dtypes.

        Returns:
            The outputs by name, in fresh memory.

        Raises:
            DeviceMemoryError: The GPU has too little memory; how much was wanted and is free.
            EngineError: The engine was closed, or the network failed.
        """
        cupy = import_cupy()
        with self._device, self._wrapped(sizes):
            plan = self._ready(tuple(sizes))
            stream = cupy.cuda.get_current_stream()
            # Plans read and write fixed memory: a call on another stream begins where the one before has ended.
            if self._last is not None and self._last[0] != stream.ptr:
                stream.wait_event(self._last[1])
            results = plan(inputs, stream)
            event = self._last[1] if self._last is not None else cupy.cuda.Event(disable_timing=True)
            event.record(stream)
            self._last = (stream.ptr, event)
            return results

    @contextmanager
    def _wrapped(self, sizes: Sequence[int]) -> Iterator[None]:
        """Other libraries' errors as ours."""
        try:
            yield
        except VitascopeError:
            raise
        except Exception as error:  # CuPy, the driver and Triton share no base
            shown = "x".join(map(str, sizes))
            raise failure(error, label=self._label, what=f"inference of {shown} failed") from error

    def close(self) -> None:
        """Free plans and weights once what is running has finished; idempotent."""
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
                cupy.cuda.get_current_stream().synchronize()  # the first call may come on another stream
            plan = self._plans[sizes] = _ReadyPlan(stored.plan, self._weights)
        self._plans.move_to_end(sizes)
        if self._memory is None or self._memory.nbytes < plan.memory_bytes:
            self._free(self._plans.values())  # each is recorded again when its turn comes
            self._memory = None
            self._memory = import_cupy().empty(plan.memory_bytes, np.uint8)
        plan.work_in(self._memory)
        return plan

    def _free(self, plans: Iterable[_ReadyPlan]) -> None:
        """Let go of graphs."""
        with self._device, RECORDING:
            self._device.synchronize()  # memory goes back to a pool that does not know the streams it is used on
            for plan in plans:
                plan.close()

    def _note(self, line: str) -> None:
        self.notes.append(line)
        if self._on_note is not None:
            self._on_note(line)


class _ReadyPlan:
    """A plan on the current device, which is recorded as a CUDA graph for the memory that it works in."""

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
        """Work in this memory, uint8, from now on; what was there before is lost with each call."""
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
                    with suppress(Exception):  # until the recording ends, this thread may not even allocate
                        stream.end_capture()
                    raise
                return stream.end_capture(), stream

        self._graph, self._stream = recorded(record)
        self._inputs = {name: _array(memory, place) for name, place in plan.inputs.items()}
        self._outputs = {name: _array(memory, place) for name, place in plan.outputs.items()}
        self._memory = memory

    def __call__(self, inputs: Mapping[str, Any], stream: Any) -> dict[str, Any]:
        """Run on a stream that is the current one.

        Raises:
            EngineError: An input is missing or of another shape or dtype.
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
        """Release the graph, and the memory that it works in."""
        self._graph = self._stream = self._memory = None
        self._inputs, self._outputs = {}, {}


def _compiled(plan: LaunchPlan[TritonKernel], capability: int) -> LaunchPlan[CompiledKernel]:
    kernels = compile_kernels(plan.kernels, capability=capability)
    return LaunchPlan(tuple(kernels), plan.launches, plan.memory_bytes, plan.inputs, plan.outputs)


def _loaded(kernel: CompiledKernel) -> Any:
    """The kernel on the current device; loaded now, since a graph that is being recorded lets nothing be loaded."""
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
