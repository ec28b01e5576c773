"""Wraps any network for ``AsyncPipeline`` (a torch module, an engine, a callable), and builds its batches.

On a GPU the preprocessing threads fill a batch row by row, which saves stacking.
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
"""Largest array, in bytes: its first frame allocates all of it, and the others may never come."""


class BatchRows:
    """The network's inputs for some consecutive frames, in one array on the GPU.

    The first frame allocates it on its own stream; other streams wait for that, because the memory may have
    had another use on that stream.

    Args:
        count: Rows.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._lock = threading.Lock()
        self._made: tuple[Any, Any, int] | None = None
        """The array, the event behind its allocation, and that stream's handle."""
        self._is_refused = False

    def view(self, row: int, shape: tuple[int, ...], dtype: Any) -> Any:
        """Get a row to write to on the current stream.

        Args:
            row: Index of the row.
            shape: Shape of a picture, [C, h, w].
            dtype: Element type of the picture.

        Returns:
            CuPy array [1, C, h, w]; None if the picture must lie elsewhere: other rows have another shape or
            dtype, or the array would be too large, or larger than the GPU's free memory.
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
        """Get the first rows, [count, C, h, w]; None before any was written."""
        return None if self._made is None else self._made[0][:count]

    def _allocated(self, shape: tuple[int, ...], dtype: Any) -> tuple[Any, Any, int] | None:
        cupy = import_cupy()
        if self.count * math.prod(shape) * np.dtype(dtype).itemsize > _MOST_BYTES:
            return None
        try:
            array = cupy.empty((self.count, *shape), dtype)
        except cupy.cuda.memory.OutOfMemoryError:  # a single picture may still fit, or raises
            return None
        made = cupy.cuda.Event(disable_timing=True)
        made.record()
        return array, made, cupy.cuda.get_current_stream().ptr


@dataclass(frozen=True, slots=True)
class BatchRow:
    """A frame's slot in a batch."""

    rows: BatchRows
    number: int


class RowsInTurn:
    """Assigns slots to frames, in submission order.

    A batch sent with fewer frames than usual shifts the start of all later ones: ``align`` reports that, and
    the frames that get slots from then on are adjacent again.

    Args:
        count: Frames per batch.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._given = 0
        self._phase = 0
        """A batch begins where the number of frames before it, minus this, is a multiple of ``count``."""
        self._rows = BatchRows(count)
        self._rows_phase = 0

    def next(self) -> BatchRow:
        """Assign the next frame's slot; call it from one thread only."""
        phase = self._phase  # read once, because another thread may change it
        number = (self._given - phase) % self._count
        if number == 0 or phase != self._rows_phase:
            self._rows, self._rows_phase = BatchRows(self._count), phase
        self._given += 1
        return BatchRow(self._rows, number)

    def align(self, gathered: int) -> None:
        """Record that a batch begins after this many frames; from any thread."""
        self._phase = gathered % self._count


def as_one_batch(places: Sequence[BatchRow | None], *, count: int) -> Any:
    """Get the batch that frames already form, if any.

    Args:
        places: Slots of the frames; None for a frame that lies elsewhere.
        count: Rows of the requested batch.

    Returns:
        CuPy array [count, C, h, w]; None if the frames must be stacked first.
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
        call: Takes a batch, NumPy on a CPU and CuPy on a GPU, and returns arrays with as many rows.
        device: Device of the network.
        dtype: Element type of its input.
        size: Its fixed (height, width), or None.
        rows_for: Returns the rows of a batch for a number of pictures; copies of the last picture pad it.
        close: Frees resources made for the network.
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
        """Get a batch of pictures, and its rows.

        Args:
            pictures: Arrays of one shape, without the batch axis.
            label: Name in messages.
            places: Their slots; a batch that they already form is used as it is.

        Raises:
            EngineError: Their shapes differ.
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
        """Compute the network's output for a batch.

        Raises:
            EngineError: The network failed.
            DeviceMemoryError: The GPU has too little memory.
        """
        with self._told(label):
            return self._call(batch)

    def take_apart(self, output: Any, *, rows: int, count: int, label: str) -> list[Any]:
        """Split the output into one per picture.

        Raises:
            EngineError: The network returned another number of rows.
        """
        with self._told(label):
            return split(output, rows=rows, count=count)

    def close(self) -> None:
        """Free resources made for the network; idempotent."""
        if self._close is not None:
            self._close()

    @contextmanager
    def _told(self, label: str) -> Iterator[None]:
        """Name the frames in errors."""
        try:
            yield
        except VitascopeError as error:
            error.add_note(label)
            raise
        except Exception as error:  # from the user's network
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
    """Find out what a network is, and its device.

    Args:
        model: A ``torch.nn.Module`` (moved to the device and set to evaluation), an engine (``spec``,
            ``run``), or a callable.
        device: ``auto`` is an engine's own device, else the GPU if one is available.
        device_id: Number of the GPU; a toolkit engine has its own.
        batch_size: Most pictures per call.
        cuda_graphs: Record a module as CUDA graphs; ignored for other networks, and on a CPU.

    Raises:
        DeviceError: The device is not available, or is not the engine's.
        ConfigError: The engine takes batches of another size only.
        EngineError: The engine takes more than one input.
        TypeError: ``model`` has another type.
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
    """Whether a network's ``kind`` means class scores, or, without ``kind``, its name means segmentation.

    The name is its class's, a base class's, or their packages'.
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
        raise DeviceError(f"the engine computes on {spec.device}, but device={device!r} was requested")
    (tensor,) = spec.inputs
    rows, height, width = _pictures(tensor.shape)
    if rows is not None and batch_size > rows:
        raise ConfigError(f"batch_size is {batch_size}, and the engine takes batches of {rows}")

    def call(batch: Any) -> Any:
        outputs = engine.run({tensor.name: np.ascontiguousarray(batch) if spec.device == "cpu" else batch})
        return next(iter(outputs.values())) if len(outputs) == 1 else outputs

    # A toolkit engine knows its GPU; its batches must be made there.
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
    """Rows, height and width of [N, C, H, W], as far as they are fixed."""
    if len(shape) != 4:
        return None, None, None
    rows, _, height, width = (side if isinstance(side, int) and side > 0 else None for side in shape)
    return rows, height, width
