"""From a picture in the GPU decoder's memory to planes that kernels read, without a copy and without waiting."""

from __future__ import annotations

from collections import deque
from typing import Any

import av

from vitascope.frames import DeviceEvent, Plane, YuvFormat
from vitascope.gpu.memory.pinned_pool import shared_pool

__all__ = ["ReadyEvents", "is_cuda_picture", "planes_on_gpu", "upload"]

_READY_EVENTS = 64  # more than frames of one film are under way at a time, mostly


def is_cuda_picture(picture: av.VideoFrame) -> bool:
    """True when the picture's samples lie in the memory of an NVIDIA GPU."""
    return picture.format.name == "cuda"


def planes_on_gpu(picture: av.VideoFrame, target: YuvFormat, *, device: int) -> tuple[Plane, ...]:
    """Views onto the decoder's memory.

    Args:
        picture: A CUDA picture in NV12 or P010.
        target: The same format.
        device: The CUDA device it lies on.

    Returns:
        CuPy arrays, luma ``[H, W]`` and chroma ``[ceil(H / 2), ceil(W / 2), 2]``, uint8 or uint16, rows padded to the
        decoder's pitch. They keep the picture alive. The decoder may write to its memory again once the last of them
        is gone, whether or not the GPU has finished reading.

    Raises:
        ValueError: The picture has another format.
    """
    import cupy

    layout = picture.sw_format
    if layout is None or layout.name != target.name:
        raise ValueError(f"a picture in {layout and layout.name}, where {target.name} was expected")
    luma, chroma = picture.planes
    size = target.dtype.itemsize
    width, height = target.chroma_size(picture.width, picture.height)

    def view(pointer: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> Plane:
        # Not through DLPack: PyAV rounds the chroma of odd sizes down there, and wants the caller to have waited.
        memory = cupy.cuda.UnownedMemory(pointer, shape[0] * strides[0], picture, device)
        array: Plane = cupy.ndarray(shape, target.dtype, cupy.cuda.MemoryPointer(memory, 0), strides=strides)
        return array

    return (
        view(luma.buffer_ptr, (picture.height, picture.width), (luma.line_size, size)),
        view(chroma.buffer_ptr, (height, width, 2), (chroma.line_size, 2 * size, size)),
    )


class ReadyEvents:
    """Events that pass when the decoder has written every picture that it has given out so far.

    FFmpeg copies pictures out of the decoder on the legacy default stream, whatever stream the reader uses. Events are
    used again, because CuPy holds the interpreter while it makes and ends one: who waits for a picture of long ago
    then waits for a later one as well, which is ready no earlier. Used by one thread.

    Args:
        device: The CUDA device.
    """

    def __init__(self, device: int) -> None:
        self._device = device
        self._events: deque[Any] = deque()

    def record(self) -> DeviceEvent:
        """The event behind the pictures so far."""
        import cupy

        with cupy.cuda.Device(self._device):
            if len(self._events) < _READY_EVENTS:
                self._events.append(cupy.cuda.Event(disable_timing=True))
            else:
                self._events.rotate(-1)
            event: DeviceEvent = self._events[-1]
            cupy.cuda.Stream.null.record(event)
        return event


def upload(planes: tuple[Plane, ...], *, device: int) -> tuple[Plane, ...]:
    """Copy planes from host memory; they may be read at once, by any stream."""
    import cupy

    pool = shared_pool(device)
    with cupy.cuda.Device(device):
        stream: Any = cupy.cuda.Stream(non_blocking=True)
        arrays = tuple(pool.upload(plane, stream=stream, beside=False) for plane in planes)
        stream.synchronize()
    return arrays
