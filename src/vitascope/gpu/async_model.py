"""One way to call a network for a batch, whatever it is: a torch module, an engine, or any callable."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np

from vitascope.device import Device, select_device
from vitascope.errors import ConfigError, DeviceError, EngineError, VitascopeError
from vitascope.gpu.batching.batch_arrays import split, stack
from vitascope.gpu.engines.gpu_arrays import failure
from vitascope.gpu.interchange import to_kind

__all__ = ["BatchModel", "open_model"]


class BatchModel:
    """Calls a network with stacked pictures and takes its answer apart.

    Args:
        call: Takes a batch, NumPy on a CPU and CuPy on a GPU, and gives arrays with as many rows.
        device: Where it computes.
        dtype: Element type of what it takes.
        size: (height, width) that it insists on, or None.
        rows: Batch size that it insists on, or None.
    """

    def __init__(
        self,
        call: Callable[[Any], Any],
        device: Device,
        *,
        dtype: Literal["float32", "float16"] = "float32",
        size: tuple[int, int] | None = None,
        rows: int | None = None,
    ) -> None:
        self.device = device
        self.dtype = dtype
        self.size = size
        self.rows = rows
        self._call = call

    def __call__(self, pictures: Sequence[Any], *, label: str) -> list[Any]:
        """The network's answer for each picture.

        Args:
            pictures: Arrays of one shape, without the batch's axis.
            label: What messages call them.

        Raises:
            EngineError: The network failed, or gave another number of rows.
            DeviceMemoryError: The GPU has too little memory.
        """
        rows = self.rows or len(pictures)
        shapes = {tuple(picture.shape) for picture in pictures}
        if len(shapes) > 1:
            raise EngineError(
                f"{label}: pictures of shapes {sorted(shapes)} cannot share a batch; set a target_size"
            )
        try:
            return split(self._call(stack(pictures, rows=rows)), rows=rows, count=len(pictures))
        except VitascopeError as error:
            error.add_note(label)
            raise
        except Exception as error:  # of the user's own network
            on_gpu = self.device.kind == "cuda"
            raise failure(error, label=label, what="the network failed", on_gpu=on_gpu) from error


def open_model(
    model: Any, *, device: Literal["auto", "cuda", "cpu"], device_id: int, batch_size: int
) -> BatchModel:
    """Find out what a network is, and where it computes.

    Args:
        model: A ``torch.nn.Module`` (moved to the device and set to evaluate), an engine (``spec``, ``run``), or a
            callable.
        device: ``auto`` is an engine's own device, else the GPU where one can be used.
        device_id: Number of the GPU.
        batch_size: Most pictures of a call.

    Raises:
        DeviceError: The device cannot be had, or is not the engine's.
        ConfigError: An engine that takes batches of one size only is to get another.
        EngineError: An engine that takes more than one input.
        TypeError: It is none of these.
    """
    torch = sys.modules.get("torch")  # whoever holds a module has imported it
    if torch is not None and isinstance(model, torch.nn.Module):
        return _module(model, select_device(device, index=device_id))
    if hasattr(model, "spec") and hasattr(model, "run"):
        return _engine(model, device, device_id, batch_size)
    if callable(model):
        return BatchModel(model, select_device(device, index=device_id))
    raise TypeError(f"a model is a torch module, an engine or a callable, not {type(model).__name__}")


def _module(model: Any, device: Device) -> BatchModel:
    import torch

    place = torch.device("cuda", device.index) if device.kind == "cuda" else torch.device("cpu")
    network = model.to(place).eval()
    weight = next((tensor for tensor in network.parameters() if tensor.is_floating_point()), None)
    dtype = torch.float32 if weight is None else weight.dtype
    on_gpu = device.kind == "cuda"

    def call(batch: Any) -> Any:
        with torch.inference_mode():
            return _without_bfloat16(network(to_kind(batch, "torch", on_gpu=on_gpu).to(dtype)))

    return BatchModel(call, device, dtype="float16" if dtype == torch.float16 else "float32")


def _without_bfloat16(output: Any) -> Any:
    """NumPy and CuPy do not know bfloat16."""
    import torch

    if isinstance(output, torch.Tensor):
        return output.float() if output.dtype == torch.bfloat16 else output
    if isinstance(output, dict):
        return {name: _without_bfloat16(value) for name, value in output.items()}
    if isinstance(output, tuple | list):
        return tuple(_without_bfloat16(value) for value in output)
    return output


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

    return BatchModel(
        call,
        select_device(spec.device, index=device_id),
        dtype="float16" if tensor.dtype == np.float16 else "float32",
        size=None if height is None or width is None else (height, width),
        rows=rows,
    )


def _pictures(shape: Sequence[int | str | None]) -> tuple[int | None, int | None, int | None]:
    """Rows, height and width of [N, C, H, W] where they are fixed."""
    if len(shape) != 4:
        return None, None, None
    rows, _, height, width = (side if isinstance(side, int) and side > 0 else None for side in shape)
    return rows, height, width
