"""A user's torch module as the network of an ``AsyncPipeline``: on a GPU, one launch per call."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, Final, Literal

import numpy as np
import torch
from torch import Tensor, nn

from vitascope.device import Device
from vitascope.errors import DeviceMemoryError, EngineError
from vitascope.gpu.engines.engine import TensorSpec
from vitascope.gpu.engines.torch_engine import TorchEngine
from vitascope.gpu.interchange import to_kind
from vitascope.gpu.toolkit.batching.batch_arrays import map_leaves

# Batch sizes 1 to 4096 by powers of two, and one other; for pictures of one size.
_MOST_GRAPHS = 14
_MOST_SHAPES = 256


class ModuleNetwork:
    """Calls a module on ``TorchEngine``.

    A module run eagerly takes the interpreter lock at each operation, hundreds of times per call, while other
    threads of a pipeline compete for it: on an H200, DeepLabV3+ dropped to a third of its speed. Recorded as
    a CUDA graph it is one launch. A shape is recorded the second time it occurs: recording takes longer than
    a call, and the last batch of a video is often the only one of its size. When all graphs are in use,
    further shapes run eagerly.

    A recorded module repeats the same computation on new pictures: one that keeps state between calls, such
    as recurrent state, needs ``cuda_graphs=False``.

    Args:
        module: Moved to the device and set to evaluation. Takes one tensor, returns a tensor, or a tuple,
            list or dict of tensors.
        device: Device to run on.
        cuda_graphs: Record the module as CUDA graphs; ignored on a CPU.

    Raises:
        EngineError: The module cannot be moved to the device.
    """

    def __init__(self, module: nn.Module, device: Device, *, cuda_graphs: bool) -> None:
        self._on_gpu = device.kind == "cuda"
        weight = next((tensor for tensor in module.parameters() if tensor.is_floating_point()), None)
        self._dtype = torch.float32 if weight is None else weight.dtype
        self._flat = _FlatOutput(module)
        self._graphs = self._engine(device, cuda_graph=True) if self._on_gpu and cuda_graphs else None
        self._plain = self._engine(device, cuda_graph=False)
        self._recorded: set[tuple[int, ...]] = set()
        self._forms: OrderedDict[tuple[int, ...], Any] = OrderedDict()
        """Structure of the output, by shape of the pictures."""

    @property
    def dtype(self) -> Literal["float32", "float16"]:
        """Element type of its input; float32 for bfloat16 modules."""
        return "float16" if self._dtype == torch.float16 else "float32"

    def __call__(self, batch: Any) -> Any:
        """Compute a batch on the current stream, without blocking the host.

        Args:
            batch: [N, ...], NumPy on a CPU and CuPy on a GPU.

        Returns:
            The module's output in new tensors; lists become tuples, and bfloat16, which NumPy and CuPy lack,
            becomes float32.

        Raises:
            DeviceMemoryError: The GPU has too little memory.
            EngineError: The module failed, or cannot be recorded.
        """
        pictures = to_kind(batch, "torch", on_gpu=self._on_gpu).to(self._dtype)
        shape = tuple(pictures.shape)
        if self._graphs is None or not self._is_recorded(self._graphs, shape):
            tensors = self._plain.run_tensors((pictures,))
            self._forms[shape] = self._flat.form
        else:
            tensors = self._replayed(self._graphs, pictures)
        self._forms.move_to_end(shape)
        while len(self._forms) > _MOST_SHAPES:  # evicted in the same order as the graphs, but much later
            self._forms.popitem(last=False)
        left = iter(tensors)
        return map_leaves(self._forms[shape], lambda leaf: next(left) if leaf is _PLACE else leaf)

    def close(self) -> None:
        """Free the graphs and their memory; the module belongs to the user."""
        for engine in (self._graphs, self._plain):
            if engine is not None:
                engine.close()

    def _is_recorded(self, graphs: TorchEngine, shape: tuple[int, ...]) -> bool:
        """Whether a shape runs as a graph: it occurred before, and has a graph or room for one."""
        if shape not in self._recorded and shape in self._forms and graphs.plan_count < _MOST_GRAPHS:
            self._recorded.add(shape)
        return shape in self._recorded and shape in self._forms

    def _replayed(self, graphs: TorchEngine, pictures: Tensor) -> tuple[Tensor, ...]:
        known = graphs.plan_count
        try:
            return graphs.run_tensors((pictures,))
        except DeviceMemoryError:
            raise
        except EngineError as error:
            if graphs.plan_count > known:  # it was recorded, and failed later
                raise
            raise EngineError(
                f"{error}; a module that waits for the GPU, as .item() and .cpu() do, cannot be recorded as a CUDA "
                "graph: set cuda_graphs to False"
            ) from error

    def _engine(self, device: Device, *, cuda_graph: bool) -> TorchEngine:
        taken = TensorSpec("pictures", np.dtype(self.dtype), ("batch", None, None, None))
        return TorchEngine(
            self._flat,
            inputs=[taken],
            outputs=[],  # known after the first run
            device=f"cuda:{device.index}" if self._on_gpu else "cpu",
            label="module",
            cuda_graph=cuda_graph,
            most_plans=_MOST_GRAPHS,
            # These switches are process-wide, and the module belongs to the user, who chose TF32 or determinism.
            keeps_switches=True,
        )


class _FlatOutput(nn.Module):
    """Returns a module's tensors as a flat tuple, as engines require."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self._module = module
        self.form: Any = None
        """The last output, with ``_PLACE`` for each tensor."""

    def forward(self, pictures: Tensor) -> tuple[Tensor, ...]:
        """Compute the tensors of the module's output; bfloat16 becomes float32."""
        tensors: list[Tensor] = []
        self.form = _taken_apart(self._module(pictures), tensors)
        return tuple(tensors)


_PLACE: Final = object()
"""Placeholder for a tensor."""


def _taken_apart(output: Any, tensors: list[Tensor]) -> Any:
    """Get an output's structure; appends its tensors to the list."""
    if isinstance(output, Tensor):
        tensors.append(output.float() if output.dtype == torch.bfloat16 else output)
        return _PLACE
    if isinstance(output, dict):
        return {name: _taken_apart(value, tensors) for name, value in output.items()}
    if isinstance(output, tuple | list):
        parts = [_taken_apart(value, tensors) for value in output]
        make = getattr(type(output), "_make", tuple)  # keeps named tuples
        return make(parts)
    return output
