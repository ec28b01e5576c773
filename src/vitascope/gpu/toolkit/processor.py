"""The kernels behind one class: pictures and planes in, a network's input or a mask out, in the kind that was given.

NumPy and CuPy arrays, torch tensors, anything that speaks DLPack, and the product's own ``Frame`` are taken. On a GPU
what lies there is used where it lies; arrays of the host go up, and the result comes down, through page-locked memory.
A kernel runs on the caller's stream, on a pooled stream, or on a thread.
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
    """Handle of torch's current stream when any of the arrays is a tensor on a GPU; None for CuPy's current one."""
    for array in arrays:
        if kind_of(array) == "torch" and array.is_cuda:
            import torch

            return int(torch.cuda.current_stream(device_id).cuda_stream)
    return None


class PendingResult(ABC):
    """A result to come; ``async_exec=True`` returns it.

    The inputs and ``out`` must not be written before the result is there. The result may be used on the stream that
    ``wait`` was called from; on others, the caller orders them. It need not be waited for.
    """

    @property
    @abstractmethod
    def done(self) -> bool:
        """True when the result is there; never waits. A computation that failed is done."""

    @abstractmethod
    def wait(self) -> Any:
        """The result, in the kind that the input had, or ``out``.

        An array on a GPU is returned at once: the caller's current stream (torch's for a tensor, else CuPy's) is
        ordered behind the work, and the host goes on. For an array on the host the host waits.

        Raises:
            Exception: What the computation on a worker thread raised.
        """

    @abstractmethod
    def synchronize(self) -> Any:
        """The result, once it is there: the host waits in any case.

        Raises:
            Exception: As ``wait``.
        """


class OnThread(PendingResult):
    """A result that a worker thread computes.

    Args:
        future: The computation.
    """

    def __init__(self, future: Future[Any]) -> None:
        self._future = future

    @property
    def done(self) -> bool:
        """True when the thread is through."""
        return self._future.done()

    def wait(self) -> Any:
        """The result; see ``PendingResult``."""
        return self._future.result()

    def synchronize(self) -> Any:
        """The result."""
        return self._future.result()


class OnStream(PendingResult):
    """A result that a CUDA stream computes.

    Args:
        event: ``cupy.cuda.Event`` behind the work.
        device_id: Number of the GPU.
        collect: Gives the result once the event has passed, or, for an array on the GPU, at any time.
        on_gpu: True when the result stays on the GPU.
    """

    def __init__(self, event: Any, *, device_id: int, collect: Callable[[], Any], on_gpu: bool) -> None:
        self.event = event
        """``cupy.cuda.Event`` behind the work; another stream can wait for it."""
        self._device_id = device_id
        self._collect = collect
        self._on_gpu = on_gpu
        self._result: Any = None
        self._collected = False

    @property
    def done(self) -> bool:
        """True when the GPU is through."""
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
        """The result, once it is there."""
        self.event.synchronize()
        return self._once()

    def _once(self) -> Any:
        if not self._collected:
            self._result, self._collected = self._collect(), True
        return self._result


class KernelRunner:
    """Runs computations on one device and hands results back in the kind of their first input. Thread-safe.

    Args:
        device: Where.
        stream_count: Streams, or threads on a CPU, for asynchronous computations.
    """

    def __init__(self, device: Device, *, stream_count: int) -> None:
        self.device = device
        self.on_gpu = device.kind == "cuda"
        self._stream_count = stream_count
        self._lock = threading.Lock()
        self._streams: list[WorkerStream] = []
        self._turn = itertools.count()
        self._held: deque[tuple[Any, object]] = deque()
        """Events of the pool's streams, and what must live until they have passed."""
        self._threads: ThreadPoolExecutor | None = None
        self._futures: set[Future[Any]] = set()
        self._process = OwnProcess("the processor")

    def place(self, array: Any) -> Any:
        """An array where the runner computes, NumPy or CuPy, the same memory where it lies there already.

        Raises:
            DeviceError: It is on a GPU and the runner is not.
        """
        if self.on_gpu:
            return to_cupy(array)
        if lies_on_gpu(array):
            raise DeviceError(
                f"a {kind_of(array)} array on a GPU was given to what computes on {self.device.label}; "
                "use device='cuda', or bring the array to the host"
            )
        return to_numpy(array)

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """An array of the runner's device, contents undefined."""
        made: Any = import_cupy().empty(shape, dtype) if self.on_gpu else np.empty(shape, dtype)
        return made

    def run(self, compute: Callable[[Any], Any], arrays: Sequence[Any], *, out: Any, async_exec: bool) -> Any:
        """Compute now, or begin to.

        Args:
            compute: Gets ``out`` where the runner computes, or None, and gives the result there. It places its inputs.
            arrays: All inputs, for their kind and for the order of streams.
            out: An array of any kind that takes the result, or None.
            async_exec: Return a ``PendingResult``.

        Returns:
            ``out``, or the result in the kind of the first array.
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
        """Wait on the host until every asynchronous computation is through; failures belong to their results."""
        with self._lock:
            held, self._held = list(self._held), deque()
            futures = set(self._futures)
        for event, _ in held:
            event.synchronize()
        wait(futures)

    def close(self) -> None:
        """Finish what is under way, end threads, let streams go; idempotent, and it can run again."""
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
            if handle is None:  # CuPy's current one: nothing to enter
                return self._compute_on_gpu(compute, out, kind, wants_gpu)
            with on_stream(handle, device_id=index):
                return self._compute_on_gpu(compute, out, kind, wants_gpu)

    def _compute_on_gpu(
        self, compute: Callable[[Any], Any], out: Any, kind: ArrayKind, wants_gpu: bool
    ) -> Any:
        """On the current GPU and CuPy's current stream."""
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
            # Behind all that the caller's stream was given: the inputs are ready then, and so is memory that it had
            # from an earlier result of this stream and gave back.
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
        """``out`` on the GPU; None if the result comes down into it afterwards."""
        return to_cupy(out) if wants_gpu and out is not None else None

    def _download(self, result: Any, stream: Any) -> Download:
        # Imported here: page-locked memory is of no use without a GPU.
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

    What comes back is the kind that was given (a NumPy array for a NumPy array, a tensor for a tensor, on its device),
    or ``out``. A ``Frame`` counts as its planes; another library's array by DLPack comes back as NumPy or CuPy. Calls
    on arrays of a GPU are ordered on the caller's current stream (torch's for tensors, else CuPy's), and the host does
    not wait; for arrays of the host it waits.

    With ``async_exec=True`` a call returns a ``PendingResult`` at once: it runs behind the caller's current stream on
    the next of the pool's streams (on a CPU: on a thread of a pool as large), beside the caller's own work and other
    such calls. Thread-safe. A fork computes on a CPU without ``async_exec`` alone.

    Args:
        device_id: Number of the GPU; ignored on a CPU.
        device: ``auto`` takes the GPU where one can be used.
        stream_count: Streams (threads on a CPU) that asynchronous calls share in turn.

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
        """The device that computes."""
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
        """Resize (antialiased), bring to 0..1, subtract the mean, divide by the deviation: one pass, one kernel.

        Args:
            frame: RGB, [H, W, 3] or [3, H, W], or a batch of one size with N before that; uint8, uint16 (full scale is
                1), or float16 and float32 (taken as 0..1). Or YUV: a ``Frame``, or NV12 or P010 planes, see
                ``frame_from_nv12``.
            target_size: (height, width) of the result; the picture's own when omitted.
            mean: Mean of R, G and B, in 0..1.
            std: Standard deviation of R, G and B.
            color: How planes become RGB; a ``Frame`` knows.
            channel_order: Channel order of RGB pictures; the result is RGB.
            layout: Order of the result's axes.
            dtype: Element type of the result; that of ``out``, or float32, when omitted.
            out: Where to write, C-contiguous.
            async_exec: Return a ``PendingResult``.

        Returns:
            [N, 3, h, w] or [N, h, w, 3]; N is 1 for one picture.

        Raises:
            ValueError: Shapes, dtypes or numbers do not fit.
            TypeError: ``frame`` is no array and no frame.
            DeviceError: The picture is on a GPU and the processor is not.
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
        """Make one network input from pictures of any sizes and kinds, in order; see ``fused_preprocess``.

        The kind of the result is that of the first.
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
                    # A view of all of it would cost as much as the rest of the loop.
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
        """``(images * scale - mean) / std`` for each channel; see ``kernels.batch_normalize``.

        Args:
            images: uint8, uint16, float16 or float32 [N, H, W, C] or [N, C, H, W], 1 to 4 channels.
            mean: Mean of each channel, after ``scale``.
            std: Standard deviation of each channel.
            scale: What brings codes to the range of mean and std; brings integers to 0..1 and leaves floating-point
                numbers as they are when omitted.
            layout_in: Order of the axes of ``images``.
            layout_out: Order of the axes of the result.
            dtype: Element type of the result; that of ``out``, or float32, when omitted.
            out: Where to write, C-contiguous.
            async_exec: Return a ``PendingResult``.

        Raises:
            ValueError: Shapes, dtypes or numbers do not fit.
            DeviceError: The images are on a GPU and the processor is not.
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
        """Make a class map or mask of a network's scores, cleaned and smoothed; see ``kernels.postprocess_mask``.

        Args:
            scores: float16 or float32 [N, C, h, w], or [C, h, w] for one picture.
            kind: How scores become decisions.
            class_index: The class to show; the class map when omitted.
            threshold: Least score of a shown pixel, for ``threshold``.
            smoothing_sigma: Sigma of the Gaussian, in pixels of the scores; 0 is none.
            open_px: Radius that takes specks away.
            close_px: Radius that fills holes.
            previous: The mask of the frame before, of the result's shape.
            ema: Its weight, 0 to below 1.
            out: Where to write, C-contiguous; may be ``previous``.
            async_exec: Return a ``PendingResult``.

        Returns:
            uint8 [N, h, w], or [h, w] for one picture.

        Raises:
            ValueError: Shapes, dtypes or numbers do not fit.
            DeviceError: The scores are on a GPU and the processor is not.
        """
        kind_of(scores)  # refuses what is no array
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
            color: How planes become RGB; a ``Frame`` knows.
            layout: ``NHWC`` gives [H, W, 3], ``NCHW`` [3, H, W].
            dtype: uint8 is 0..255, floats are 0..1.
            out: Where to write, C-contiguous.
            async_exec: Return a ``PendingResult``.

        Raises:
            ValueError: Shapes or dtypes do not fit.
            DeviceError: The planes are on a GPU and the processor is not.
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
        """Wait on the host until every asynchronous call is done."""
        self._runner.synchronize()

    def close(self) -> None:
        """Finish what is under way and end the threads; idempotent. The processor can be used again afterwards."""
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
