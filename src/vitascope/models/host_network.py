"""Run a network on the CPU within a job on the GPU: pictures are downloaded, coefficients uploaded."""

from __future__ import annotations

from typing import Any

from vitascope.gpu.kernels.cuda_module import import_cupy, is_on_gpu, nvtx_range
from vitascope.gpu.memory.pinned_pool import Download, shared_pool
from vitascope.models.network import (
    FloatArray,
    MatteEstimate,
    MattingNetwork,
    NetworkInput,
    NetworkState,
    side_multiple,
)


class HostNetwork:
    """A network on the CPU, behind the interface of one on the GPU.

    Takes CuPy pictures, and copies them into page-locked memory on its own stream, ordered behind the current
    stream; the host waits for the copy and for the network. Guided-filter coefficients are uploaded on the
    current stream; a plain matte stays in host memory, where it is refined.

    Args:
        network: The wrapped network, closed with this one.
    """

    def __init__(self, network: MattingNetwork) -> None:
        self._network = network
        self._copying: Any = None

    @property
    def name(self) -> str:
        """The wrapped network's name."""
        return self._network.name

    @property
    def engine_name(self) -> str:
        """The wrapped network's engine, with a note that pictures are downloaded."""
        return f"{self._network.engine_name}, fed from the GPU"

    @property
    def recurrent(self) -> bool:
        """See the wrapped network."""
        return self._network.recurrent

    @property
    def side_multiple(self) -> int | None:
        """See the wrapped network."""
        return side_multiple(self._network)

    def input_for(self, region_size: tuple[int, int]) -> NetworkInput:
        """See the wrapped network."""
        return self._network.input_for(region_size)

    def new_state(self) -> NetworkState:
        """Make a state of the wrapped network, in host memory."""
        return self._network.new_state()

    def infer(self, images: FloatArray, state: NetworkState) -> list[MatteEstimate]:
        """Matte T consecutive frames of E eyes; see ``MattingNetwork.infer``.

        Args:
            images: [T, E, ...] in the form of ``input_for``: CuPy on the current GPU, C-contiguous; or NumPy,
                for a video whose frames could not stay on the GPU.
            state: The stream's state; modified in place.

        Returns:
            For CuPy pictures, gain and offset as CuPy arrays and alpha as NumPy arrays; for NumPy pictures,
            NumPy arrays.

        Raises:
            ModelError: The pictures do not match the network's input.
            EngineError: The engine failed.
        """
        if not is_on_gpu(images):
            return self._network.infer(images, state)
        cupy = import_cupy()
        if self._copying is None:
            self._copying = cupy.cuda.Stream(non_blocking=True)
        with nvtx_range("bring pictures down"):
            pool = shared_pool(cupy.cuda.Device().id)
            (pictures,) = Download([images], stream=self._copying, pool=pool).wait()
        return [_uploaded(estimate) for estimate in self._network.infer(pictures, state)]

    def close(self) -> None:
        """Close the wrapped network."""
        self._network.close()


def _uploaded(estimate: MatteEstimate) -> MatteEstimate:
    if estimate.gain is None or estimate.offset is None:
        return estimate
    cupy = import_cupy()
    return MatteEstimate(gain=cupy.asarray(estimate.gain), offset=cupy.asarray(estimate.offset))
