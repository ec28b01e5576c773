"""One call of a network recorded as a CUDA graph: hundreds of kernels for the price of one launch.

A graph reads and writes fixed memory. Each call copies its inputs into the graph's, replays, and copies the results
into memory of their own, so that nothing a caller holds changes under it. Copies and replay run on the caller's stream.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from vitascope.gpu.recording import RECORDING

__all__ = ["CapturedCall", "same_dtypes"]

_WARM_UPS = 2


class CapturedCall:
    """A callable of fixed shapes as a CUDA graph in a memory pool of its own.

    Recorded on a stream of its own, since the default stream cannot be, and in the thread-local mode: threads that
    decode or copy beside it may allocate meanwhile. Calls before the recording let cuDNN choose and Triton compile.

    Args:
        call: Takes tensors and gives a tuple of tensors; must not wait for the GPU.
        examples: Inputs whose shapes and dtypes every call will have, on one CUDA device.
    """

    def __init__(self, call: Callable[..., tuple[Tensor, ...]], examples: Sequence[Tensor]) -> None:
        device = examples[0].device
        self._inputs = [torch.empty_like(example) for example in examples]
        for own, example in zip(self._inputs, examples, strict=True):
            own.copy_(example)
        make: Any = torch.cuda.Stream  # untyped in torch
        side = make(device)
        side.wait_stream(torch.cuda.current_stream(device))
        self._graph: torch.cuda.CUDAGraph | None = torch.cuda.CUDAGraph()
        with torch.cuda.stream(side):
            for _ in range(_WARM_UPS):
                call(*self._inputs)
            side.synchronize()
            with RECORDING, torch.cuda.graph(self._graph, stream=side, capture_error_mode="thread_local"):
                self._outputs = tuple(call(*self._inputs))
        self._taken, self._given = same_dtypes(self._inputs), same_dtypes(self._outputs)
        torch.cuda.current_stream(device).wait_stream(side)

    def __call__(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Run on the current stream.

        Args:
            inputs: Shapes and dtypes as the examples'.

        Returns:
            The results in fresh memory.
        """
        assert self._graph is not None  # a closed one is never called
        _copy(self._inputs, inputs, self._taken)
        self._graph.replay()
        results = tuple(map(torch.empty_like, self._outputs))
        _copy(results, self._outputs, self._given)
        return results

    def close(self) -> None:
        """Free the graph and its memory, once what is running has finished."""
        if self._graph is not None:
            with RECORDING:
                torch.cuda.synchronize(self._inputs[0].device)
            self._graph.reset()
            self._graph = None
            self._inputs, self._outputs = [], ()
            torch.cuda.empty_cache()


def same_dtypes(tensors: Sequence[Tensor]) -> tuple[tuple[int, ...], ...]:
    """Places of tensors that share a dtype: what one launch can copy. Asked once for a plan, not at every call."""
    places: dict[torch.dtype, list[int]] = {}
    for place, tensor in enumerate(tensors):
        places.setdefault(tensor.dtype, []).append(place)
    return tuple(map(tuple, places.values()))


def _copy(targets: Sequence[Tensor], sources: Sequence[Tensor], groups: tuple[tuple[int, ...], ...]) -> None:
    """Copy each source into its target, tensors of one dtype in one launch."""
    for places in groups:
        torch._foreach_copy_([targets[place] for place in places], [sources[place] for place in places])
