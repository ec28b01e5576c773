"""Running an ONNX Runtime session on CuPy arrays: nothing leaves the GPU, and the host does not wait.

A session computes on the one stream that it was opened with. Callers on other streams are ordered before and behind it
by events. Not yet run on a GPU; see ``onnx_providers``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from vitascope.gpu.engines.engine import Tensor
from vitascope.gpu.engines.gpu_arrays import import_cupy, on_stream
from vitascope.gpu.engines.onnx_library import ort
from vitascope.gpu.engines.onnx_providers import FATAL

__all__ = ["BoundSession"]

# Every captured graph keeps its workspace; a stream needs one or two picture sizes.
_MOST_GRAPHS = 8
_WITHOUT_GRAPH = "-1"


class BoundSession:
    """A session on a GPU.

    Args:
        session: Opened with ``stream`` as its compute stream.
        stream: ``cupy.cuda.Stream`` that the session computes on; not the default stream.
        device_id: Number of the GPU.
        cuda_graph: Replay a captured graph from the third call with the same shapes on. Inputs and outputs then pass
            through buffers that stay in place, at the price of one copy each.
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
        """Compute outputs; the results belong to the caller. See ``Engine.run``."""
        with self._ordered(stream):
            if self._graphs is None:
                return self._run_plain(inputs, names)
            key = (tuple((name, inputs[name].shape) for name in sorted(inputs)), tuple(names))
            if (captured := self._graphs.get(key)) is not None:
                return captured.run(self._session, inputs)
            results = self._run_plain(inputs, names)
            if len(self._graphs) < _MOST_GRAPHS:  # only a run tells the shapes of outputs
                self._graphs[key] = _CapturedRun.allocate(
                    self._session, inputs, results, graph_id=len(self._graphs) + 1, device_id=self._device_id
                )
            return results

    @contextmanager
    def _ordered(self, caller_stream: int | None) -> Iterator[None]:
        """Work on the session's stream, behind what the caller has launched and before what they launch next."""
        with on_stream(caller_stream, device_id=self._device_id) as caller:
            if caller.ptr == self._stream.ptr:
                yield
                return
            self._stream.wait_event(_event_on(caller))
            with self._stream:
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
    """Buffers of one set of shapes, which a CUDA graph has the addresses of."""

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
    """ONNX Runtime's memory as a CuPy array, which keeps it alive."""
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
"""ONNX Runtime's names of the element types that engines here compute with."""
