"""One way to call a network for a batch, whatever it is: a torch module, an engine, or any callable."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np

from vitascope.device import Device, select_device
from vitascope.errors import ConfigError, DeviceError, EngineError, VitascopeError
from vitascope.gpu.engines.gpu_arrays import failure
from vitascope.gpu.toolkit.async_pipeline.rows import BatchRow, as_one_batch
from vitascope.gpu.toolkit.batching.batch_arrays import split, stack
from vitascope.gpu.toolkit.batching.requests import BatchConfig

__all__ = ["BatchModel", "open_model"]


class BatchModel:
    """Stacks pictures, calls a network with them, and takes its answer apart.

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
        """The network's answer, with the batch's rows.

        Raises:
            EngineError: The network failed.
            DeviceMemoryError: The GPU has too little memory.
        """
        with self._told(label):
            return self._call(batch)

    def take_apart(self, output: Any, *, rows: int, count: int, label: str) -> list[Any]:
        """The answer for each of ``count`` pictures.

        Raises:
            EngineError: The network gave another number of rows.
        """
        with self._told(label):
            return split(output, rows=rows, count=count)

    def close(self) -> None:
        """Free what the network has of ours; idempotent."""
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
    """Find out what a network is, and where it computes.

    Args:
        model: A ``torch.nn.Module`` (moved to the device and set to evaluate), an engine (``spec``, ``run``), or a
            callable.
        device: ``auto`` is an engine's own device, else the GPU where one can be used.
        device_id: Number of the GPU; an engine of the toolkit has its own.
        batch_size: Most pictures of a call.
        cuda_graphs: Record a module as CUDA graphs; without meaning for others, and on a CPU.

    Raises:
        DeviceError: The device cannot be had, or is not the engine's.
        ConfigError: An engine that takes batches of one size only is to get another.
        EngineError: An engine that takes more than one input.
        TypeError: It is none of these.
    """
    torch = sys.modules.get("torch")  # whoever holds a module has imported it
    if torch is not None and isinstance(model, torch.nn.Module):
        return _module(model, select_device(device, index=device_id), batch_size, cuda_graphs=cuda_graphs)
    if hasattr(model, "spec") and hasattr(model, "run"):
        return _engine(model, device, device_id, batch_size)
    if callable(model):
        return BatchModel(model, select_device(device, index=device_id))
    raise TypeError(f"a model is a torch module, an engine or a callable, not {type(model).__name__}")


def _module(model: Any, device: Device, batch_size: int, *, cuda_graphs: bool) -> BatchModel:
    # Imported here: it needs torch.
    from vitascope.gpu.toolkit.async_pipeline.torch_module import ModuleNetwork

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
