"""RobustVideoMatting's memory of a stream."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from vitascope.gpu.engines.gpu_arrays import import_cupy
from vitascope.gpu.interchange import to_numpy
from vitascope.gpu.kernels.region import Region
from vitascope.gpu.kernels.resize_normalize import resize_normalize
from vitascope.models.network import FloatArray, SpatialState, each_part
from vitascope.models.rvm.sizes import state_sizes

__all__ = ["RvmState"]


class RvmState:
    """The recurrent features of one stream: four float32 arrays [E, C, h, w], on the network's device."""

    __slots__ = ("_on_gpu", "tensors")

    def __init__(self, *, on_gpu: bool = False) -> None:
        self._on_gpu = on_gpu
        self.tensors: list[FloatArray] | None = None
        """None before the first frame; CuPy arrays where the network computes on a GPU."""

    def reset(self) -> None:
        """Forget the past."""
        self.tensors = None

    def window(self, parts: Sequence[Region]) -> RvmState:
        """The features of parts of the pictures, see ``SpatialState``."""
        state = RvmState(on_gpu=self._on_gpu)
        if self.tensors is not None:
            state.tensors = [
                # NumPy leaves the arrays of a GPU to CuPy.
                np.concatenate(
                    [tensor[eye : eye + 1, :, at.rows, at.columns] for eye, at in enumerate(places)]
                )
                for tensor, places in each_part(self.tensors, parts)
            ]
        return state

    def put(self, parts: Sequence[Region], state: SpatialState) -> None:
        """Replace the parts' features, see ``SpatialState``."""
        if self.tensors is None or not isinstance(state, RvmState) or state.tensors is None:
            raise ValueError("an empty state has no parts")
        # Copies: the engine may have given arrays that others hold, too.
        tensors = [tensor.copy() for tensor in self.tensors]
        for (tensor, places), own in zip(each_part(tensors, parts), state.tensors, strict=True):
            for eye, at in enumerate(places):
                tensor[eye, :, at.rows, at.columns] = own[eye]
        self.tensors = tensors

    def copy(self) -> RvmState:
        """The features apart, see ``SpatialState``."""
        state = RvmState(on_gpu=self._on_gpu)
        state.tensors = None if self.tensors is None else [tensor.copy() for tensor in self.tensors]
        return state

    def take(self, state: SpatialState, share: FloatArray) -> None:
        """Replace features in part, see ``SpatialState``."""
        if self.tensors is None or not isinstance(state, RvmState) or state.tensors is None:
            raise ValueError("an empty state has no features")
        arrays: Any = import_cupy() if self._on_gpu else np
        places = arrays.asarray(share)[:, None]
        tensors = []
        for own, other in zip(self.tensors, state.tensors, strict=True):
            at = _scaled(places, (own.shape[2], own.shape[3]))
            tensors.append(own + at * (other - own))
        self.tensors = tensors

    def stretch(self, size: tuple[int, int]) -> None:
        """Scale the features to pictures of (height, width), see ``SpatialState``."""
        if self.tensors is not None:
            self.tensors = [
                _scaled(tensor, level) for tensor, level in zip(self.tensors, state_sizes(size), strict=True)
            ]

    def arrays(self) -> list[FloatArray]:
        """The features in the host's memory, see ``SpatialState``."""
        return [] if self.tensors is None else [to_numpy(tensor) for tensor in self.tensors]

    def restore(self, arrays: Sequence[FloatArray]) -> None:
        """Go on from ``arrays``, see ``SpatialState``."""
        make: Any = import_cupy().asarray if self._on_gpu else np.array
        self.tensors = [make(array) for array in arrays] or None


def _scaled(features: FloatArray, size: tuple[int, int]) -> FloatArray:
    eyes, channels, height, width = features.shape
    planes = features.reshape(eyes * channels, 1, height, width)
    scaled = resize_normalize(planes, size=size, mean=(0.0,), std=(1.0,), scale=1.0, layout_in="NCHW")
    return scaled.reshape(eyes, channels, *size)
