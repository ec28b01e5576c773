"""Kernels behind one class: picture or planes to network input, scores to mask, in the caller's array type.

Takes NumPy and CuPy arrays, torch tensors, anything that speaks DLPack, and ``Frame``. Arrays on the GPU are
used in place; arrays on the host are uploaded, and results downloaded, through page-locked memory. A kernel
runs on the caller's stream, on a pooled stream, or on a thread.
"""

from __future__ import annotations

import itertools
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, Literal

import numpy as np

from vitascope.closing import Closing, OwnProcess
from vitascope.device import Device, select_device
from vitascope.errors import DeviceError
from vitascope.frames import ColorSpec
from vitascope.gpu.current_stream import on_stream
from vitascope.gpu.interchange import ArrayKind, kind_of, lies_on_gpu, to_cupy, to_kind, to_numpy
from vitascope.gpu.kernels.batch_normalize import BatchLayout, batch_normalize
from vitascope.gpu.kernels.cuda_module import import_cupy
from vitascope.gpu.kernels.mask_postprocess import MaskKind, postprocess_mask
from vitascope.gpu.kernels.rgb import RgbDtype, nv12_to_rgb
from vitascope.gpu.memory.pinned_pool import Download
from vitascope.gpu.memory.shortage import memory_errors
from vitascope.gpu.number_checks import check_count
from vitascope.gpu.toolkit.pictures import (
    FLOAT_DTYPES,
    Picture,
    check_affine,
    check_word,
    element_type,
    full_scale,
    height_and_width,
)
from vitascope.gpu.toolkit.worker_streams import WorkerStream, open_streams, origin_of, wait_for


def callers_stream(arrays: tuple[Any, ...], *, device_id: int) -> int | None:
    """Handle of torch's current stream if any array is a tensor on a GPU; None for CuPy's current stream."""
    for array in arrays:
        if kind_of(array) == "torch" and array.is_cuda:
            import torch

            return int(torch.cuda.current_stream(device_id).cuda_stream)
    return None


class PendingResult(ABC):
    """A pending result, returned with ``async_exec=True``.

    Do not write to the inputs or ``out`` before the result is ready. Use the result on the stream that
    ``wait`` was called from; order other streams yourself. Waiting is optional.
    """

    @property
    @abstractmethod
    def done(self) -> bool:
        """Whether the result is ready, or the computation failed; never blocks."""

    @abstractmethod
    def wait(self) -> Any:
        """Get the result in the input's array type, or ``out``.

        For an array on a GPU returns at once: the caller's current stream (torch's for a tensor, else CuPy's)
        is ordered behind the work. For an array on the host the host waits.

        Raises:
            Exception: Whatever the computation raised on its worker thread.
        """

    @abstractmethod
    def synchronize(self) -> Any:
        """Block the host until the result is ready, then return it.

        Raises:
            Exception: Like ``wait``.
        """


class OnThread(PendingResult):
    """A result computed on a worker thread.

    Args:
        future: The computation's future.
    """

    def __init__(self, future: Future[Any]) -> None:
        self._future = future

    @property
    def done(self) -> bool:
        """Whether the thread has finished."""
        return self._future.done()

    def wait(self) -> Any:
        """The result; see ``PendingResult``."""
        return self._future.result()

    def synchronize(self) -> Any:
        """The result."""
        return self._future.result()


class OnStream(PendingResult):
    """A result computed on a CUDA stream.

    Args:
        event: ``cupy.cuda.Event`` behind the work.
        device_id: Number of the GPU.
        collect: Returns the result after the event; for an array on the GPU, at any time.
        on_gpu: Whether the result stays on the GPU.
    """

    def __init__(self, event: Any, *, device_id: int, collect: Callable[[], Any], on_gpu: bool) -> None:
        self.event = event
        """``cupy.cuda.Event`` behind the work, which other streams can wait for."""
        self._device_id = device_id
        self._collect = collect
        self._on_gpu = on_gpu
        self._result: Any = None
        self._collected = False

    @property
    def done(self) -> bool:
        """Whether the GPU has finished."""
        return bool(self.event.done)

    def wait(self) -> Any:
        """The result; see ``PendingResult``."""
        if not self._on_gpu:
            return self.synchronize()
        result = self._once()
        with import_cupy().cuda.Device(self._device_id):
            handle = callers_stream((result,), device_id=self._device_id)
            with on_stream(handle, device_id=self._device_id) as stream:
                stream.wait_event(self.event)
        return result

    def synchronize(self) -> Any:
        """Block until the result is ready, then return it."""
        self.event.synchronize()
        return self._once()

    def _once(self) -> Any:
        if not self._collected:
            self._result, self._collected = self._collect(), True
        return self._result


class KernelRunner:
    """Runs computations on one device and returns results in the type of their first input. Thread-safe.

    Args:
        device: The device.
        stream_count: Streams (threads on a CPU) for asynchronous computations.
    """

    def __init__(self, device: Device, *, stream_count: int) -> None:
        self.device = device
        self.on_gpu = device.kind == "cuda"
        self._stream_count = stream_count
        self._lock = threading.Lock()
        self._streams: list[WorkerStream] = []
        self._turn = itertools.count()
        self._held: deque[tuple[Any, object]] = deque()
        """Events of the pool's streams, with the objects to keep alive until then."""
        self._threads: ThreadPoolExecutor | None = None
        self._futures: set[Future[Any]] = set()
        self._process = OwnProcess("the processor")

    def place(self, array: Any) -> Any:
        """Place an array on the runner's device, as NumPy or CuPy, without a copy if it is there already.

        Raises:
            DeviceError: It is on a GPU, and the runner computes on the CPU.
        """
        if self.on_gpu:
            return to_cupy(array)
        if lies_on_gpu(array):
            raise DeviceError(
                f"a {kind_of(array)} array on a GPU was given to what computes on {self.device.label}; "
                "use device='cuda', or copy the array to the host"
            )
        return to_numpy(array)

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """Allocate an uninitialised array on the runner's device."""
        made: Any = import_cupy().empty(shape, dtype) if self.on_gpu else np.empty(shape, dtype)
        return made

    def run(self, compute: Callable[[Any], Any], arrays: Sequence[Any], *, out: Any, async_exec: bool) -> Any:
        """Run a computation, or start it.

        Args:
            compute: Takes ``out`` on the runner's device, or None, and returns the result there. It places
                its inputs.
            arrays: All inputs; they decide the result's type and the order of streams.
            out: Output array of any type, or None.
            async_exec: Return a ``PendingResult``.

        Returns:
            ``out``, or the result in the first array's type.
        """
        like = arrays[0] if out is None else out
        kind, wants_gpu = kind_of(like), lies_on_gpu(like)
        if self.on_gpu:
            begin = self._begin_on_pooled_stream if async_exec else self._run_on_callers_stream
            return begin(compute, tuple(arrays), out, kind, wants_gpu)

        def job() -> Any:
            return self._compute_on_host(compute, out, kind)

        return OnThread(self._submit(job)) if async_exec else job()

    def synchronize(self) -> None:
        """Block the host until all asynchronous computations are done; results carry their errors."""
        with self._lock:
            held, self._held = list(self._held), deque()
            futures = set(self._futures)
        for event, _ in held:
            event.synchronize()
        wait(futures)

    def close(self) -> None:
        """Finish pending work, end threads and release streams; idempotent. The runner can be used again."""
        self.synchronize()
        with self._lock:
            threads, self._threads, self._streams = self._threads, None, []
        if threads is not None:
            threads.shutdown()

    def _compute_on_host(self, compute: Callable[[Any], Any], out: Any, kind: ArrayKind) -> Any:
        target = None if out is None else self.place(out)
        if target is not None and not target.flags.writeable:
            raise ValueError("out cannot be written: its memory is read-only")
        result = compute(target)
        return to_kind(result, kind, on_gpu=False) if out is None else out

    def _submit(self, job: Callable[[], Any]) -> Future[Any]:
        self._process.require()
        with self._lock:
            if self._threads is None:
                self._threads = ThreadPoolExecutor(self._stream_count, thread_name_prefix="vitascope-kernels")
            future = self._threads.submit(job)
            self._futures.add(future)
        future.add_done_callback(self._futures.discard)
        return future

    def _run_on_callers_stream(
        self,
        compute: Callable[[Any], Any],
        arrays: tuple[Any, ...],
        out: Any,
        kind: ArrayKind,
        wants_gpu: bool,
    ) -> Any:
        cupy, index = import_cupy(), self.device.index
        given = arrays if out is None else (*arrays, out)
        with cupy.cuda.Device(index), memory_errors():
            handle = callers_stream(given, device_id=index)
            if handle is None:  # CuPy's current stream: nothing to enter
                return self._compute_on_gpu(compute, out, kind, wants_gpu)
            with on_stream(handle, device_id=index):
                return self._compute_on_gpu(compute, out, kind, wants_gpu)

    def _compute_on_gpu(
        self, compute: Callable[[Any], Any], out: Any, kind: ArrayKind, wants_gpu: bool
    ) -> Any:
        """Compute on the current GPU and CuPy's current stream."""
        result = compute(self._target(out, wants_gpu))
        if wants_gpu:
            return to_kind(result, kind, on_gpu=True) if out is None else out
        stream = import_cupy().cuda.get_current_stream()
        return self._on_host(self._download(result, stream), out, kind)

    def _begin_on_pooled_stream(
        self,
        compute: Callable[[Any], Any],
        arrays: tuple[Any, ...],
        out: Any,
        kind: ArrayKind,
        wants_gpu: bool,
    ) -> PendingResult:
        cupy, index = import_cupy(), self.device.index
        given = arrays if out is None else (*arrays, out)
        pooled = self._next_stream()
        with cupy.cuda.Device(index), memory_errors():
            # Run behind all earlier work on the caller's stream: then the inputs are ready, and so is memory that an
            # earlier result of this stream used and the caller freed.
            origin = origin_of(given)
            with pooled.entered():
                wait_for([origin])
                result = compute(self._target(out, wants_gpu))
                download = None if wants_gpu else self._download(result, pooled.stream)
                made = result if out is not None or not wants_gpu else to_kind(result, kind, on_gpu=True)
                event = cupy.cuda.Event(block=True, disable_timing=True)
                event.record(pooled.stream)
        with self._lock:
            while self._held and self._held[0][0].done:
                self._held.popleft()
            self._held.append((event, (given, result)))

        def collect() -> Any:
            if download is not None:
                return self._on_host(download, out, kind)
            return made if out is None else out

        return OnStream(event, device_id=index, collect=collect, on_gpu=wants_gpu)

    def _target(self, out: Any, wants_gpu: bool) -> Any:
        """``out`` if it is on the GPU; None if the result is downloaded into it afterwards."""
        return to_cupy(out) if wants_gpu and out is not None else None

    def _download(self, result: Any, stream: Any) -> Download:
        # Imported here: page-locked memory is useless without a GPU.
        from vitascope.gpu.memory.pinned_pool import shared_pool

        return Download([result], stream=stream, pool=shared_pool(self.device.index))

    def _on_host(self, download: Download, out: Any, kind: ArrayKind) -> Any:
        (array,) = download.wait()
        if out is None:
            return to_kind(array, kind, on_gpu=False)
        target = to_numpy(out)
        if target.shape != array.shape or target.dtype != array.dtype or not target.flags.writeable:
            raise ValueError(
                f"out is {target.dtype} {target.shape}, expected writable {array.dtype} {array.shape}"
            )
        np.copyto(target, array)
        return out

    def _next_stream(self) -> WorkerStream:
        with self._lock:
            if not self._streams:
                self._streams = open_streams(self.device, self._stream_count)
            return self._streams[next(self._turn) % len(self._streams)]


FloatDtype = Literal["float32", "float16"]
_ZERO, _ONE = (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)
_LAYOUTS = ("NCHW", "NHWC")
_ORDERS = ("rgb", "bgr")
_RGB_DTYPES = ("uint8", *FLOAT_DTYPES)


class CUDAKernelProcessor(Closing):
    """Fused preprocessing, normalisation, mask post-processing and colour conversion on one device.

    Results have the input's array type (NumPy for NumPy, a tensor on its device for a tensor), or are
    ``out``. A ``Frame`` counts as its planes; other DLPack arrays come back as NumPy or CuPy. Calls on GPU
    arrays are ordered on the caller's current stream (torch's for tensors, else CuPy's) and do not block;
    calls on host arrays block.

    With ``async_exec=True`` a call returns a ``PendingResult`` at once and runs on the next of the pool's
    streams (on a CPU: threads), ordered behind the caller's current stream and concurrent with later work.
    Thread-safe. A forked process can compute on a CPU only, without ``async_exec``.

    Args:
        device_id: Number of the GPU; ignored on a CPU.
        device: ``auto`` uses the GPU if one is available.
        stream_count: Streams (threads on a CPU) shared in turn by asynchronous calls.

    Raises:
        DeviceError: ``cuda`` was requested and is not available.
        ValueError: ``stream_count`` is below 1.
    """

    def __init__(
        self,
        device_id: int = 0,
        device: Literal["auto", "cuda", "cpu"] = "auto",
        *,
        stream_count: int = 4,
    ) -> None:
        check_count("stream_count", stream_count)
        self.device = select_device(device, index=device_id)
        """The device in use."""
        self._runner = KernelRunner(self.device, stream_count=stream_count)

    def fused_preprocess(
        self,
        frame: Any,
        target_size: tuple[int, int] | None = None,
        *,
        mean: Sequence[float] = _ZERO,
        std: Sequence[float] = _ONE,
        color: ColorSpec | None = None,
        channel_order: Literal["rgb", "bgr"] = "rgb",
        layout: BatchLayout = "NCHW",
        dtype: FloatDtype | None = None,
        out: Any = None,
        async_exec: bool = False,
    ) -> Any:
        """Resize (antialiased), scale to 0..1, subtract the mean and divide by the deviation, in one kernel.

        Args:
            frame: RGB, [H, W, 3] or [3, H, W], or a batch with a leading N; uint8, uint16 (full scale maps to
                1), or float16 and float32 (already 0..1). Or YUV: a ``Frame``, or NV12 or P010 planes, see
                ``frame_from_nv12``.
            target_size: (height, width) of the result; the picture's own size if omitted.
            mean: Mean of R, G and B, in 0..1.
            std: Standard deviation of R, G and B.
            color: Colour of bare planes; a ``Frame`` has its own.
            channel_order: Channel order of RGB pictures; the result is RGB.
            layout: Order of the result's axes.
            dtype: Element type of the result; if omitted, that of ``out``, else float32.
            out: Output array, C-contiguous.
            async_exec: Return a ``PendingResult``.

        Returns:
            [N, 3, h, w] or [N, h, w, 3]; N is 1 for a single picture.

        Raises:
            ValueError: Shapes, dtypes or numbers do not match.
            TypeError: ``frame`` is neither an array nor a ``Frame``.
            DeviceError: The picture is on a GPU, and the processor computes on the CPU.
            KernelCompileError: The CUDA source could not be built for this GPU.
        """
        return self.fused_preprocess_batch(
            [frame], target_size, mean=mean, std=std, color=color, channel_order=channel_order,
            layout=layout, dtype=dtype, out=out, async_exec=async_exec,
        )  # fmt: skip

    def fused_preprocess_batch(
        self,
        frames: Sequence[Any],
        target_size: tuple[int, int] | None = None,
        *,
        mean: Sequence[float] = _ZERO,
        std: Sequence[float] = _ONE,
        color: ColorSpec | None = None,
        channel_order: Literal["rgb", "bgr"] = "rgb",
        layout: BatchLayout = "NCHW",
        dtype: FloatDtype | None = None,
        out: Any = None,
        async_exec: bool = False,
    ) -> Any:
        """Make one network input from pictures of any sizes and types, in order; see ``fused_preprocess``.

        The result has the first picture's type.
        """
        pictures = [Picture(frame, color) for frame in frames]
        if not pictures:
            raise ValueError("there is no picture to prepare")
        check_word("layout", layout, _LAYOUTS)
        check_word("channel_order", channel_order, _ORDERS)
        check_affine(mean, std, channels=3)
        if target_size is not None:
            size = height_and_width(target_size)
        else:
            sizes = {picture.size for picture in pictures}
            if len(sizes) > 1:
                raise ValueError(f"pictures of several sizes need a target_size: {sorted(sizes)}")
            size = sizes.pop()
        element = element_type(dtype, out)
        count = sum([picture.count for picture in pictures])
        shape = (count, 3, *size) if layout == "NCHW" else (count, *size, 3)
        bias, deviation = tuple(map(float, mean)), tuple(map(float, std))
        is_bgr = channel_order == "bgr"

        def compute(target: Any) -> Any:
            result = self._runner.empty(shape, element) if target is None else target
            if tuple(result.shape) != shape or result.dtype != np.dtype(element):
                raise ValueError(f"out is {result.dtype} {tuple(result.shape)}, expected {element} {shape}")
            first = 0
            for picture in pictures:
                end = first + picture.count
                picture.prepare(
                    self._runner.place, on_gpu=self._runner.on_gpu, size=size, mean=bias, std=deviation,
                    layout=layout, reverse_channels=is_bgr, dtype=element,
                    # A slice of the whole array would cost as much as the rest of the loop.
                    out=result if len(pictures) == 1 else result[first:end],
                )  # fmt: skip
                first = end
            return result

        arrays = [array for picture in pictures for array in picture.arrays]
        return self._runner.run(compute, arrays, out=out, async_exec=async_exec)

    def batch_normalize(
        self,
        images: Any,
        *,
        mean: Sequence[float],
        std: Sequence[float],
        scale: float | None = None,
        layout_in: BatchLayout = "NHWC",
        layout_out: BatchLayout = "NCHW",
        dtype: FloatDtype | None = None,
        out: Any = None,
        async_exec: bool = False,
    ) -> Any:
        """Compute ``(images * scale - mean) / std`` per channel; see ``kernels.batch_normalize``.

        Args:
            images: uint8, uint16, float16 or float32 [N, H, W, C] or [N, C, H, W], 1 to 4 channels.
            mean: Mean of each channel, after ``scale``.
            std: Standard deviation of each channel.
            scale: Factor that brings values to the range of ``mean`` and ``std``; if omitted, scales integers
                to 0..1 and leaves floats as they are.
            layout_in: Axis order of ``images``.
            layout_out: Axis order of the result.
            dtype: Element type of the result; if omitted, that of ``out``, else float32.
            out: Output array, C-contiguous.
            async_exec: Return a ``PendingResult``.

        Raises:
            ValueError: Shapes, dtypes or numbers do not match.
            DeviceError: The images are on a GPU, and the processor computes on the CPU.
        """
        check_word("layout_in", layout_in, _LAYOUTS)
        check_word("layout_out", layout_out, _LAYOUTS)
        check_affine(mean, std, scale=1.0 if scale is None else scale)
        element = element_type(dtype, out)

        def compute(target: Any) -> Any:
            placed = self._runner.place(images)
            share = full_scale(placed.dtype) if scale is None else scale
            return batch_normalize(
                placed, mean=mean, std=std, scale=share, layout_in=layout_in, layout_out=layout_out,
                dtype=element, out=target,
            )  # fmt: skip

        return self._runner.run(compute, [images], out=out, async_exec=async_exec)

    def postprocess_mask(
        self,
        scores: Any,
        *,
        kind: MaskKind = "argmax",
        class_index: int | None = None,
        threshold: float = 0.5,
        smoothing_sigma: float = 0.0,
        open_px: int = 0,
        close_px: int = 0,
        previous: Any = None,
        ema: float = 0.0,
        out: Any = None,
        async_exec: bool = False,
    ) -> Any:
        """Turn a network's scores into a class map or mask, cleaned and smoothed; see ``kernels.postprocess_mask``.

        Args:
            scores: float16 or float32 [N, C, h, w], or [C, h, w] for one picture.
            kind: How scores become decisions.
            class_index: Class to select; the class map if omitted.
            threshold: Lowest score of a selected pixel, for ``threshold``.
            smoothing_sigma: Sigma of the Gaussian, in pixels of the scores; 0 disables it.
            open_px: Radius of the opening, which removes specks.
            close_px: Radius of the closing, which fills holes.
            previous: Mask of the previous frame, of the result's shape.
            ema: Weight of ``previous``, 0 to below 1.
            out: Output array, C-contiguous; may be ``previous``.
            async_exec: Return a ``PendingResult``.

        Returns:
            uint8 [N, h, w], or [h, w] for one picture.

        Raises:
            ValueError: Shapes, dtypes or numbers do not match.
            DeviceError: The scores are on a GPU, and the processor computes on the CPU.
        """
        kind_of(scores)  # raises if it is not an array
        single = len(scores.shape) == 3

        def compute(target: Any) -> Any:
            placed = [self._runner.place(array) for array in given]
            arrays = [array[None] if single else array for array in placed]
            mask = postprocess_mask(
                arrays[0], kind=kind, class_index=class_index, threshold=threshold, smoothing_sigma=smoothing_sigma,
                open_px=open_px, close_px=close_px, previous=arrays[1] if len(arrays) > 1 else None, ema=ema,
                out=target[None] if single and target is not None else target,
            )  # fmt: skip
            return mask[0] if single else mask

        given = [scores] if previous is None else [scores, previous]
        return self._runner.run(compute, given, out=out, async_exec=async_exec)

    def nv12_to_rgb(
        self,
        frame: Any,
        *,
        color: ColorSpec | None = None,
        layout: BatchLayout = "NHWC",
        dtype: RgbDtype = "uint8",
        out: Any = None,
        async_exec: bool = False,
    ) -> Any:
        """Convert a picture to R'G'B' at full resolution.

        Args:
            frame: A ``Frame``, or NV12 or P010 planes, see ``frame_from_nv12``.
            color: Colour of bare planes; a ``Frame`` has its own.
            layout: ``NHWC`` gives [H, W, 3], ``NCHW`` [3, H, W].
            dtype: uint8 is 0..255, floats are 0..1.
            out: Output array, C-contiguous.
            async_exec: Return a ``PendingResult``.

        Raises:
            ValueError: Shapes or dtypes do not match.
            DeviceError: The planes are on a GPU, and the processor computes on the CPU.
        """
        return self._to_rgb([frame], color, layout, dtype, out, async_exec, is_batch=False)

    def nv12_to_rgb_batch(
        self,
        frames: Sequence[Any],
        *,
        color: ColorSpec | None = None,
        layout: BatchLayout = "NHWC",
        dtype: RgbDtype = "uint8",
        out: Any = None,
        async_exec: bool = False,
    ) -> Any:
        """Convert frames of one size to [N, H, W, 3] or [N, 3, H, W]; see ``nv12_to_rgb``."""
        return self._to_rgb(frames, color, layout, dtype, out, async_exec, is_batch=True)

    def synchronize(self) -> None:
        """Block the host until all asynchronous calls are done."""
        self._runner.synchronize()

    def close(self) -> None:
        """Finish pending work and end the threads; idempotent. The processor can be used again."""
        self._runner.close()

    def _to_rgb(
        self,
        frames: Sequence[Any],
        color: ColorSpec | None,
        layout: BatchLayout,
        dtype: RgbDtype,
        out: Any,
        async_exec: bool,
        *,
        is_batch: bool,
    ) -> Any:
        check_word("layout", layout, _LAYOUTS)
        dtype = element_type(dtype, None, words=_RGB_DTYPES)
        pictures = [Picture(frame, color) for frame in frames]
        sizes = {picture.size for picture in pictures}
        if len(sizes) != 1 or not all(picture.is_yuv for picture in pictures):
            raise ValueError(f"expected NV12 or P010 frames of one size, got sizes {sorted(sizes)}")
        height, width = sizes.pop()
        picture_shape = (height, width, 3) if layout == "NHWC" else (3, height, width)
        shape = (len(pictures), *picture_shape) if is_batch else picture_shape

        def compute(target: Any) -> Any:
            result = self._runner.empty(shape, dtype) if target is None else target
            if tuple(result.shape) != shape:
                raise ValueError(f"out is {tuple(result.shape)}, expected {shape}")
            batch = result if is_batch else result[None]
            for n, picture in enumerate(pictures):
                placed = picture.as_frame(self._runner.place, on_gpu=self._runner.on_gpu)
                nv12_to_rgb(
                    placed, layout=layout, dtype=dtype, out=batch if len(pictures) == 1 else batch[n : n + 1]
                )
            return result

        arrays = [array for picture in pictures for array in picture.arrays]
        return self._runner.run(compute, arrays, out=out, async_exec=async_exec)
