"""A network on the CPU in a job on the GPU: pictures come down to it, coefficients go up again."""

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
    """A network that computes on the CPU, behind the port of one that computes on the GPU.

    Takes CuPy pictures. They are copied into page-locked memory on a stream of their own, behind what the current
    stream has launched; the host waits for the copy and for the network. Guided-filter coefficients are uploaded on
    the current stream; a plain matte stays in the host's memory, where it is refined.

    Args:
        network: Closed with this one.
    """

    def __init__(self, network: MattingNetwork) -> None:
        self._network = network
        self._copying: Any = None

    @property
    def name(self) -> str:
        """The network's own name."""
        return self._network.name

    @property
    def engine_name(self) -> str:
        """The network's engine, and that pictures come down to it."""
        return f"{self._network.engine_name}, fed from the GPU"

    @property
    def recurrent(self) -> bool:
        """See the network that is wrapped."""
        return self._network.recurrent

    @property
    def side_multiple(self) -> int | None:
        """The network's own."""
        return side_multiple(self._network)

    def input_for(self, region_size: tuple[int, int]) -> NetworkInput:
        """See the network that is wrapped."""
        return self._network.input_for(region_size)

    def new_state(self) -> NetworkState:
        """A state of the network, in host memory."""
        return self._network.new_state()

    def infer(self, images: FloatArray, state: NetworkState) -> list[MatteEstimate]:
        """Matte T consecutive frames of E eyes; see ``MattingNetwork.infer``.

        Args:
            images: [T, E, ...] as ``input_for`` says: CuPy on the current GPU, C-contiguous; or NumPy, of a video
                whose frames could not stay on the GPU.
            state: This stream's; changed in place.

        Returns:
            For CuPy pictures gain and offset as CuPy arrays, and alpha as NumPy arrays; for NumPy pictures NumPy
            arrays.

        Raises:
            ModelError: Pictures that the network does not take.
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
        """Close the network."""
        self._network.close()


def _uploaded(estimate: MatteEstimate) -> MatteEstimate:
    if estimate.gain is None or estimate.offset is None:
        return estimate
    cupy = import_cupy()
    return MatteEstimate(gain=cupy.asarray(estimate.gain), offset=cupy.asarray(estimate.offset))
