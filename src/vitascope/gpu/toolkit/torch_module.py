"""A torch module as the network of an ``AsyncPipeline``; on a GPU, one launch per call."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from vitascope.device import Device
from vitascope.errors import DeviceMemoryError, EngineError
from vitascope.gpu.engines.engine import TensorSpec
from vitascope.gpu.engines.torch_engine import TorchEngine
from vitascope.gpu.interchange import to_kind

# Batch sizes 1 to 4096 by powers of two, and one other; with pictures of one size.
_MOST_GRAPHS = 14
_MOST_SHAPES = 256


class ModuleNetwork:
    """Calls a module on ``TorchEngine``.

    A module that is run operation by operation asks for the interpreter's lock at each, hundreds of times a call, and
    the other threads of a pipeline hold it: on an H200 DeepLabV3+ ran at a third of its speed so. Recorded as a CUDA
    graph it is one launch, whatever the other threads do. A shape is recorded when it is met a second time: recording
    takes longer than a call, and the last batch of a video is often the only one of its size. When all graphs are
    taken, further shapes run operation by operation.

    A recorded module computes what it computed then with new pictures: one that keeps something from call to call, a
    recurrent state of its own, say, needs ``cuda_graphs=False``.

    Args:
        module: Moved to the device and set to evaluate. Takes one tensor, gives a tensor, or a tuple, list or dict of
            them.
        device: Where it computes.
        cuda_graphs: Record it; without meaning on a CPU.

    Raises:
        EngineError: It cannot be moved to the device.
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
        """Arrangement of the output by the shape of the pictures, for the shapes that were met."""

    @property
    def dtype(self) -> Literal["float32", "float16"]:
        """Element type of its input pictures; bfloat16 is converted from float32."""
        return "float16" if self._dtype == torch.float16 else "float32"

    def __call__(self, batch: Any) -> Any:
        """Compute a batch on the current stream; the host does not wait.

        Args:
            batch: [N, ...], NumPy on a CPU and CuPy on a GPU.

        Returns:
            What the module gives, in fresh tensors; lists are tuples, and bfloat16, which NumPy and CuPy do not know,
            is float32.

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
        while len(self._forms) > _MOST_SHAPES:  # by the same order as graphs go, and long after them
            self._forms.popitem(last=False)
        return _arranged(self._forms[shape], iter(tensors))

    def close(self) -> None:
        """Free the graphs and their memory; the module belongs to the user."""
        for engine in (self._graphs, self._plain):
            if engine is not None:
                engine.close()

    def _is_recorded(self, graphs: TorchEngine, shape: tuple[int, ...]) -> bool:
        """True where a shape runs as a graph: it was met before, and there is a graph or room for one."""
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
            outputs=[],  # known when it has run
            device=f"cuda:{device.index}" if self._on_gpu else "cpu",
            label="module",
            cuda_graph=cuda_graph,
            most_plans=_MOST_GRAPHS,
            # They are the process's, and the module the user's: who wants TF32, or the same bits, has said so.
            keeps_switches=True,
        )


class _FlatOutput(nn.Module):
    """Gives a module's tensors one after another, as an engine wants them."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self._module = module
        self.form: Any = None
        """The last output without its tensors: see ``_arranged``."""

    def forward(self, pictures: Tensor) -> tuple[Tensor, ...]:
        """The tensors of the module's output; bfloat16 ones as float32."""
        tensors: list[Tensor] = []
        self.form = _taken_apart(self._module(pictures), tensors)
        return tuple(tensors)


class _Place:
    """Stands where a tensor was."""


_PLACE = _Place()


def _taken_apart(output: Any, tensors: list[Tensor]) -> Any:
    """The form of an output; its tensors are appended."""
    if isinstance(output, Tensor):
        tensors.append(output.float() if output.dtype == torch.bfloat16 else output)
        return _PLACE
    if isinstance(output, dict):
        return {name: _taken_apart(value, tensors) for name, value in output.items()}
    if isinstance(output, tuple | list):
        parts = [_taken_apart(value, tensors) for value in output]
        make = getattr(type(output), "_make", tuple)  # a named tuple stays one
        return make(parts)
    return output


def _arranged(form: Any, tensors: Iterator[Tensor]) -> Any:
    """An output of a form."""
    if form is _PLACE:
        return next(tensors)
    if isinstance(form, dict):
        return {name: _arranged(value, tensors) for name, value in form.items()}
    if isinstance(form, tuple):
        parts = [_arranged(value, tensors) for value in form]
        make = getattr(type(form), "_make", tuple)
        return make(parts)
    return form
