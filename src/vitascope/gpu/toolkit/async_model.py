"""Calls the network of an ``AsyncPipeline`` (a torch module, an engine, any callable), and builds its batches.

On a GPU the threads that prepare frames fill a batch row by row, so that nothing has to be brought together.
"""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from vitascope.device import Device, select_device
from vitascope.errors import ConfigError, DeviceError, EngineError, VitascopeError
from vitascope.gpu.engines.engine import failure
from vitascope.gpu.kernels.cuda_module import import_cupy
from vitascope.gpu.toolkit.batching.batch_arrays import split, stack
from vitascope.gpu.toolkit.batching.requests import BatchConfig

_MOST_BYTES = 256 << 20
"""The most bytes of one array: its first frame takes all of it, and the others may never come."""


class BatchRows:
    """The network's inputs for consecutive frames, in one array on the GPU.

    Whoever comes first allocates it, on its own stream; the others' streams wait for that, because the memory may have
    served that stream for something else before.

    Args:
        count: Rows.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._lock = threading.Lock()
        self._made: tuple[Any, Any, int] | None = None
        """The array, the event behind its allocation, and the handle of the stream that made both."""
        self._is_refused = False

    def view(self, row: int, shape: tuple[int, ...], dtype: Any) -> Any:
        """A row to write to on the current stream.

        Args:
            row: Which.
            shape: Shape of a picture, [C, h, w].
            dtype: Element type of the picture.

        Returns:
            CuPy array [1, C, h, w]; None if a picture must lie elsewhere: others here have another shape or dtype,
            or all of them together would be too large, or larger than what the GPU has left.
        """
        current = import_cupy().cuda.get_current_stream()
        with self._lock:
            if self._made is None and not self._is_refused:
                self._made = self._allocated(shape, dtype)
                self._is_refused = self._made is None
            if self._made is None:
                return None
            array, made, stream = self._made
        if array.shape[1:] != shape or array.dtype != dtype:
            return None
        if stream != current.ptr and not made.done:
            current.wait_event(made)
        return array[row : row + 1]

    def first(self, count: int) -> Any:
        """The first rows, [count, C, h, w]; None before any was written."""
        return None if self._made is None else self._made[0][:count]

    def _allocated(self, shape: tuple[int, ...], dtype: Any) -> tuple[Any, Any, int] | None:
        cupy = import_cupy()
        if self.count * math.prod(shape) * np.dtype(dtype).itemsize > _MOST_BYTES:
            return None
        try:
            array = cupy.empty((self.count, *shape), dtype)
        except cupy.cuda.memory.OutOfMemoryError:  # a picture alone may still fit, or says so
            return None
        made = cupy.cuda.Event(disable_timing=True)
        made.record()
        return array, made, cupy.cuda.get_current_stream().ptr


@dataclass(frozen=True, slots=True)
class BatchRow:
    """The place of one frame in a batch."""

    rows: BatchRows
    number: int


class RowsInTurn:
    """Assigns frames their places in batches, in order of submission.

    A batch that was sent with fewer frames than usual moves the beginnings of all later ones: ``align`` says so, and
    the frames that are given places from then on are side by side again.

    Args:
        count: Frames of a batch.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._given = 0
        self._phase = 0
        """A batch begins where the number of frames before it, less this, is a multiple of ``count``."""
        self._rows = BatchRows(count)
        self._rows_phase = 0

    def next(self) -> BatchRow:
        """The place of the next frame; one thread's to call."""
        phase = self._phase  # read once: another thread sets it
        number = (self._given - phase) % self._count
        if number == 0 or phase != self._rows_phase:
            self._rows, self._rows_phase = BatchRows(self._count), phase
        self._given += 1
        return BatchRow(self._rows, number)

    def align(self, gathered: int) -> None:
        """Note that a batch begins after this many frames; any thread."""
        self._phase = gathered % self._count


def as_one_batch(places: Sequence[BatchRow | None], *, count: int) -> Any:
    """The batch that already holds the frames, if there is one.

    Args:
        places: The places of the frames; None for one that lies elsewhere.
        count: Rows of the batch that is wanted.

    Returns:
        CuPy array [count, C, h, w]; None if the frames must be brought together first.
    """
    first = places[0]
    if first is None or len(places) != count or count > first.rows.count:
        return None
    whole = all(
        place is not None and place.rows is first.rows and place.number == number
        for number, place in enumerate(places)
    )
    return first.rows.first(count) if whole else None


class BatchModel:
    """Stacks pictures, calls a network with them, and splits its output.

    Args:
        call: Takes a batch, NumPy on a CPU and CuPy on a GPU, and gives arrays with as many rows.
        device: Where it computes.
        dtype: Element type of what it takes.
        size: (height, width) that it insists on, or None.
        rows_for: Rows of the batch that carries so many pictures; what is missing are copies of the last.
        close: Frees what the network has of ours.
    """

    def __init__(
        self,
        call: Callable[[Any], Any],
        device: Device,
        *,
        dtype: Literal["float32", "float16"] = "float32",
        size: tuple[int, int] | None = None,
        rows_for: Callable[[int], int] = int,
        close: Callable[[], object] | None = None,
    ) -> None:
        self.device = device
        self.dtype = dtype
        self.size = size
        self._call = call
        self._rows_for = rows_for
        self._close = close

    def gather(
        self, pictures: Sequence[Any], *, label: str, places: Sequence[BatchRow | None] = (None,)
    ) -> tuple[Any, int]:
        """One batch of pictures, and its rows.

        Args:
            pictures: Arrays of one shape, without the batch's axis.
            label: What messages call them.
            places: Where they lie; a batch that they make up already is taken as it is.

        Raises:
            EngineError: They are not of one shape.
            DeviceMemoryError: The GPU has too little memory.
        """
        rows = self._rows_for(len(pictures))
        if (batch := as_one_batch(places, count=rows)) is not None:
            return batch, rows
        shapes = {tuple(picture.shape) for picture in pictures}
        if len(shapes) > 1:
            raise EngineError(
                f"{label}: pictures of shapes {sorted(shapes)} cannot share a batch; set a target_size"
            )
        with self._told(label):
            return stack(pictures, rows=rows), rows

    def compute(self, batch: Any, *, label: str) -> Any:
        """The output of the network, with the rows of the batch.

        Raises:
            EngineError: The network failed.
            DeviceMemoryError: The GPU has too little memory.
        """
        with self._told(label):
            return self._call(batch)

    def take_apart(self, output: Any, *, rows: int, count: int, label: str) -> list[Any]:
        """The output for each of ``count`` pictures.

        Raises:
            EngineError: The network gave another number of rows.
        """
        with self._told(label):
            return split(output, rows=rows, count=count)

    def close(self) -> None:
        """Free what we allocated for the network; idempotent."""
        if self._close is not None:
            self._close()

    @contextmanager
    def _told(self, label: str) -> Iterator[None]:
        """Errors name the frames."""
        try:
            yield
        except VitascopeError as error:
            error.add_note(label)
            raise
        except Exception as error:  # of the user's own network
            on_gpu = self.device.kind == "cuda"
            raise failure(error, label=label, what="the network failed", on_gpu=on_gpu) from error


def open_model(
    model: Any,
    *,
    device: Literal["auto", "cuda", "cpu"],
    device_id: int,
    batch_size: int,
    cuda_graphs: bool = True,
) -> BatchModel:
    """Detect the kind of a network and its device.

    Args:
        model: A ``torch.nn.Module`` (moved to the device and set to evaluate), an engine (``spec``, ``run``), or a
            callable.
        device: ``auto`` is an engine's own device, else the GPU if one can be used.
        device_id: Number of the GPU; an engine of the toolkit has its own.
        batch_size: Most pictures of a call.
        cuda_graphs: Record a module as CUDA graphs; without meaning for others, and on a CPU.

    Raises:
        DeviceError: The device cannot be had, or is not the engine's.
        ConfigError: An engine that takes batches of one size only is to get another.
        EngineError: An engine that takes more than one input.
        TypeError: It is something else.
    """
    torch = sys.modules.get("torch")  # a module's owner has imported torch
    if torch is not None and isinstance(model, torch.nn.Module):
        return _module(model, select_device(device, index=device_id), batch_size, cuda_graphs=cuda_graphs)
    if hasattr(model, "spec") and hasattr(model, "run"):
        return _engine(model, device, device_id, batch_size)
    if callable(model):
        return BatchModel(model, select_device(device, index=device_id))
    raise TypeError(f"a model is a torch module, an engine or a callable, not {type(model).__name__}")


def is_segmentation_network(model: Any) -> bool:
    """True if the network's ``kind`` has class scores; without a ``kind``, if its name suggests segmentation.

    The name is that of its class, of one of its bases, or of the package of these.
    """
    kind = getattr(model, "kind", None)
    if isinstance(kind, str):
        return kind in ("semantic", "binary")
    return any(
        "segmentation" in f"{kind.__module__}.{kind.__qualname__}".lower() for kind in type(model).__mro__
    )


def _module(model: Any, device: Device, batch_size: int, *, cuda_graphs: bool) -> BatchModel:
    # Imported here: it needs torch.
    from vitascope.gpu.toolkit.torch_module import ModuleNetwork

    network = ModuleNetwork(model, device, cuda_graphs=cuda_graphs)
    rows_for: Callable[[int], int] = int
    if cuda_graphs and device.kind == "cuda":  # one graph for each of a few sizes
        buckets = tuple(2**n for n in range(batch_size.bit_length()) if 2**n < batch_size)
        rows_for = BatchConfig(max_batch_size=batch_size, bucket_sizes=(*buckets, batch_size)).rows_for
    return BatchModel(network, device, dtype=network.dtype, rows_for=rows_for, close=network.close)


def _engine(
    engine: Any, device: Literal["auto", "cuda", "cpu"], device_id: int, batch_size: int
) -> BatchModel:
    spec = engine.spec
    if len(spec.inputs) != 1:
        names = ", ".join(tensor.name for tensor in spec.inputs)
        raise EngineError(f"the engine takes {len(spec.inputs)} inputs ({names}); wrap it in a callable")
    if device not in ("auto", spec.device):
        raise DeviceError(f"the engine computes on {spec.device}, and device={device!r} was asked for")
    (tensor,) = spec.inputs
    rows, height, width = _pictures(tensor.shape)
    if rows is not None and batch_size > rows:
        raise ConfigError(f"batch_size is {batch_size}, and the engine takes batches of {rows}")

    def call(batch: Any) -> Any:
        outputs = engine.run({tensor.name: np.ascontiguousarray(batch) if spec.device == "cpu" else batch})
        return next(iter(outputs.values())) if len(outputs) == 1 else outputs

    # An engine of the toolkit knows on which GPU it is; its batches must be made there.
    own = getattr(engine, "device", None)
    index = own.index if isinstance(own, Device) else device_id
    return BatchModel(
        call,
        select_device(spec.device, index=index),
        dtype="float16" if tensor.dtype == np.float16 else "float32",
        size=None if height is None or width is None else (height, width),
        rows_for=int if rows is None else lambda _: rows,
    )


def _pictures(shape: Sequence[int | str | None]) -> tuple[int | None, int | None, int | None]:
    """Rows, height and width of [N, C, H, W] where they are fixed."""
    if len(shape) != 4:
        return None, None, None
    rows, _, height, width = (side if isinstance(side, int) and side > 0 else None for side in shape)
    return rows, height, width
