"""Submit frames from any thread and get results in order, with all stages running concurrently.

A ``Pipeline`` with ``submit_frame`` as its source and ``get_result`` as its sink: the same queues, stages,
reports and shutdown.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import nullcontext
from dataclasses import dataclass, field, fields, replace
from numbers import Integral, Real
from os import PathLike
from pathlib import Path
from queue import SimpleQueue
from threading import Lock
from time import perf_counter, thread_time
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias

import cv2
import numpy as np

from vitascope.closing import OwnProcess
from vitascope.errors import ConfigError, DeviceError, EngineError, InputError, did_you_mean
from vitascope.frames import Frame
from vitascope.gpu.interchange import ArrayKind, kind_of, lies_on_gpu, to_cupy, to_kind, to_numpy
from vitascope.gpu.kernels.cuda_module import import_cupy
from vitascope.gpu.kernels.mask_postprocess import postprocess_mask
from vitascope.gpu.pipeline.pipeline import Pipeline, quick_turns
from vitascope.gpu.pipeline.queues import (
    BoundedQueue,
    Mark,
    QueueLimits,
    QueueReport,
    nbytes_of,
)
from vitascope.gpu.pipeline.report import Latency, LatencyHistogram, PipelineReport, StageReport
from vitascope.gpu.pipeline.stages import Batched, Group, Map, Sink, Source
from vitascope.gpu.toolkit.async_model import (
    BatchModel,
    BatchRow,
    RowsInTurn,
    is_segmentation_network,
    open_model,
)
from vitascope.gpu.toolkit.batching.batch_arrays import leaves, map_leaves, split
from vitascope.gpu.toolkit.pictures import Picture, check_affine, height_and_width
from vitascope.gpu.toolkit.worker_streams import Origin, StreamPool, origin_of, wait_for

if TYPE_CHECKING:
    from vitascope.gpu.memory.pinned_pool import PinnedMemoryPool


@dataclass(slots=True, eq=False)
class Job:
    """One frame."""

    frame_id: Hashable
    frame: Any
    """As submitted; after decoding, the picture."""
    submitted_at: float
    """``perf_counter`` seconds."""
    origin: Origin | None = None
    """Streams to wait for before reading a frame on a GPU."""
    kind: ArrayKind = "numpy"
    """Array type of the result."""
    wants_gpu: bool = False
    row: BatchRow | None = None
    """Slot for the network's input; after preprocessing, None if the input lies elsewhere."""
    prepared: Any = None
    """The network's input without its batch axis."""
    ready: Any = None
    """``cupy.cuda.Event`` behind it; None on a CPU."""
    call: Call | None = None
    """The call that the frame belongs to, from inference until its output is split."""
    data: Any = None
    """The network's output, then the result."""
    batch_size: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    """Time in each stage's own work, in seconds."""

    @property
    def nbytes(self) -> int:
        """Bytes kept alive, for the limits of queues."""
        return nbytes_of(self.frame) + nbytes_of(self.prepared) + nbytes_of(self.data)


HostCall: TypeAlias = "Future[tuple[Any, float]]"
"""The output of a call on a CPU, and its duration in seconds."""


@dataclass(slots=True, eq=False)
class Call:
    """A launched call of the network and its frames."""

    jobs: Sequence[Job]
    label: str
    """The frames, as named in messages."""
    rows: int = 0
    """Rows of the batch; those beyond the frames are padding."""
    on_host: HostCall | None = None
    """The call on a CPU, until its output is there."""
    started: Any = None
    """``cupy.cuda.Event`` with a timer before the network; None on a CPU."""
    ended: Any = None
    """``cupy.cuda.Event`` with a timer behind the network; None on a CPU."""
    output: Any = None
    """The network's output for all frames until it is split; on a GPU it may still be pending."""
    lock: Lock = field(default_factory=Lock)
    """Held while splitting the output, which several threads may attempt."""

    @property
    def nbytes(self) -> int:
        """Bytes kept alive."""
        return sum(job.nbytes for job in self.jobs)


def names_of(jobs: Sequence[Job]) -> str:
    """Name frames for messages."""
    names = ", ".join(str(job.frame_id) for job in jobs)
    return f"frame {names}" if len(jobs) == 1 else f"frames {names}"


class HostStream:
    """Computes calls in launch order, without pauses between them.

    Its thread does nothing else: other threads process an output while the next call runs. After a failed
    call no further call is computed.
    """

    def __init__(self) -> None:
        self._calls: SimpleQueue[tuple[HostCall, Callable[[], Any]] | None] = SimpleQueue()
        self._ended: BaseException | None = None
        self._cpu_seconds = 0.0
        self._thread = threading.Thread(target=self._run, name="vitascope-network", daemon=True)

    @property
    def cpu_seconds(self) -> float:
        """CPU time of its thread, up to the end of the last call."""
        return self._cpu_seconds

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def launch(self, work: Callable[[], Any]) -> HostCall:
        """Launch a computation behind all earlier ones; call it from one thread only."""
        call: HostCall = Future()
        if self._ended is None:
            self._calls.put((call, work))
        else:
            call.set_exception(self._ended)
        return call

    def owns_current_thread(self) -> bool:
        """True inside a call."""
        return threading.current_thread() is self._thread

    def close(self) -> None:
        """Wait for the running call and compute no more."""
        if self._ended is None:
            self._ended = RuntimeError("the pipeline has ended")
        self._calls.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (launched := self._calls.get()) is not None:
            call, work = launched
            if self._ended is not None:
                call.set_exception(self._ended)
            else:
                begun = perf_counter()
                try:
                    call.set_result((work(), perf_counter() - begun))
                except BaseException as error:  # raised where the result is awaited
                    self._ended = error
                    call.set_exception(error)
            self._cpu_seconds = thread_time()
            del (
                launched,
                call,
                work,
            )  # otherwise input and output would live on while this waits for the next call


def settle_on_host(jobs: Sequence[Job], *, as_mask: bool) -> None:
    """Turn frames' outputs into results, without a GPU.

    Args:
        jobs: Any of a call's frames, each with its own output.
        as_mask: Make masks from scores.

    Raises:
        EngineError: The output is not scores.
    """
    for job in jobs:
        answer = _mask_of_row(job.data) if as_mask else job.data
        job.data = _in_kind(answer, job, on_gpu=False)
        job.call = None


def settle_on_gpu(call: Call, *, as_mask: bool, stream: Any, pool: PinnedMemoryPool) -> None:
    """Turn the outputs of a call's frames into results on the first thread that asks; other threads wait.

    One kernel makes all masks, and one copy downloads everything wanted on the host. The network must have
    finished.

    Args:
        call: The call with its output.
        as_mask: Make masks from scores.
        stream: This thread's ``cupy.cuda.Stream``, which must be current.
        pool: Page-locked memory for downloads.

    Raises:
        EngineError: The output is not scores.
        MemoryLimitError: The pool has no memory left to lend.
    """
    with call.lock:
        if call.output is None:
            return
        jobs, count = call.jobs, len(call.jobs)
        answers = call.output
        if isinstance(answers, list):  # one entry per row
            answers = [_mask_of_row(row) if as_mask else row for row in answers[:count]]
        elif as_mask:
            answers = _mask_of(next(leaves(answers))[:count])
        else:
            answers = map_leaves(answers, lambda array: array[:count])
        if not all(job.wants_gpu for job in jobs):
            landed = split(_brought_down(answers, stream=stream, pool=pool), rows=count, count=count)
            for job, row in zip(jobs, landed, strict=True):
                if not job.wants_gpu:
                    job.data = _in_kind(row, job, on_gpu=False)
        if any(job.wants_gpu for job in jobs):
            for job, row in zip(jobs, split(answers, rows=count, count=count), strict=True):
                if job.wants_gpu:
                    job.data = _in_kind(row, job, on_gpu=True)
            stream.synchronize()  # from here on any stream may read them
        for job in jobs:
            job.call = None
        call.output = None


def _brought_down(answers: Any, *, stream: Any, pool: PinnedMemoryPool) -> Any:
    """Download all GPU arrays of a nested output and wait for them."""
    # Imported here: page-locked memory is useless without a GPU.
    from vitascope.gpu.memory.pinned_pool import Download

    arrays = [import_cupy().ascontiguousarray(to_cupy(leaf)) for leaf in leaves(answers) if _is_on_gpu(leaf)]
    if not arrays:
        return answers
    landed = iter(Download(arrays, stream=stream, pool=pool).wait())
    return map_leaves(answers, lambda leaf: next(landed) if _is_on_gpu(leaf) else leaf)


def _is_on_gpu(leaf: Any) -> bool:
    try:
        return lies_on_gpu(leaf)
    except TypeError:  # a number, or a user's object
        return False


def _in_kind(answer: Any, job: Job, *, on_gpu: bool) -> Any:
    """Convert every array of an output to the frame's type; leave numbers and other objects alone."""

    def changed(leaf: Any) -> Any:
        try:
            kind_of(leaf)
        except TypeError:
            return leaf
        return to_kind(leaf if on_gpu else to_numpy(leaf), job.kind, on_gpu=on_gpu)

    return map_leaves(answer, changed)


def _mask_of_row(answer: Any) -> Any:
    scores = next(leaves(answer))
    return _mask_of(scores[None])[0]


def _is_scores(answer: Any) -> bool:
    """Whether an output can become a mask: float [C, h, w], the first of several arrays."""
    scores = next(leaves(answer), None)
    return len(getattr(scores, "shape", ())) == 3 and "float" in str(getattr(scores, "dtype", ""))


def _mask_of(scores: Any) -> Any:
    """Make class maps, or the mask of a single class: uint8 [N, h, w] from float scores [N, C, h, w]."""
    if len(scores.shape) != 4:
        raise EngineError(f"a mask needs scores [C, h, w], but the network returned {list(scores.shape[1:])}")
    own = to_cupy(scores) if lies_on_gpu(scores) else to_numpy(scores)
    kind: Literal["argmax", "threshold"] = "argmax" if own.shape[1] > 1 else "threshold"
    return postprocess_mask(own, kind=kind)


Triple = tuple[float, float, float]


def decode_picture(data: bytes | bytearray | memoryview | str | PathLike[str]) -> Any:
    """Decode a picture file (JPEG, PNG, WebP … as OpenCV reads them) to RGB uint8 [H, W, 3].

    Raises:
        InputError: It cannot be read, or is not a picture.
    """
    if isinstance(data, str | PathLike):
        try:
            raw = Path(data).read_bytes()
        except OSError as error:
            raise InputError(f"{data}: {error.strerror or error}") from error
    else:
        raw = bytes(data)
    name = str(data) if isinstance(data, str | PathLike) else f"{len(raw)} bytes"
    try:
        bgr = cv2.imdecode(np.frombuffer(raw, np.uint8), cv2.IMREAD_COLOR) if raw else None
    except cv2.error as error:
        raise InputError(f"{name}: not a picture that OpenCV can read") from error
    if bgr is None:
        raise InputError(f"{name}: not a picture that OpenCV can read")
    return cv2.cvtColor(bgr, cv2.COLOR_BGR2RGB)


class StageWork:
    """Callbacks of the stages. Each stage's pool lends CUDA streams to its threads.

    Args:
        model: The network.
        target_size: (height, width) of its input; None keeps a picture's own size.
        mean: Subtracted from RGB in 0..1.
        std: Divisor after subtracting the mean.
        decode: Replaces the built-in decoding of bytes and paths.
        preprocess: Replaces the fused preprocessing.
        postprocess: ``mask``, ``auto`` (a mask if the output is scores), a function of output and frame, or
            None.
        encode: A function of the result and the frame's name, or None.
        streams: Pools of the stages ``preprocess``, ``gather`` and ``postprocess``.
        rows: Allocates frames' slots in a call's batch; None on a CPU.
    """

    def __init__(
        self,
        model: BatchModel,
        *,
        target_size: tuple[int, int] | None,
        mean: Triple,
        std: Triple,
        decode: Callable[[Any], Any] | None,
        preprocess: Callable[[Any], Any] | None,
        postprocess: Callable[[Any, Any], Any] | Literal["auto", "mask"] | None,
        encode: Callable[[Any, Any], Any] | None,
        streams: dict[str, StreamPool],
        rows: RowsInTurn | None = None,
    ) -> None:
        self._model = model
        self._on_gpu = model.device.kind == "cuda"
        self._size = target_size
        self._mean, self._std = mean, std
        self._decode, self._preprocess = decode, preprocess
        self._postprocess, self._encode = postprocess, encode
        self._streams = streams
        self._rows, self._gathered = rows, 0
        self.host = HostStream()
        """Runs the network on a CPU; idle on a GPU."""
        # A user's function should run for several frames of a call at once, on as many threads.
        self._spreads = callable(postprocess) or encode is not None
        self.gpu_seconds = 0.0
        """Time the network's stream was busy, in seconds; 0 on a CPU."""
        self.calls = self.answered = 0
        """Calls of the network, and the frames in them."""

    @property
    def spreads(self) -> bool:
        """Whether the frames of a call separate behind the network; else they stay together to the end."""
        return self._spreads

    def decode(self, job: Job) -> Job:
        """Decode bytes and paths; pass pictures through."""
        begun = perf_counter()
        if self._decode is not None:
            job.frame = self._decode(job.frame)
        elif isinstance(job.frame, bytes | bytearray | memoryview | str | PathLike):
            job.frame = decode_picture(job.frame)
        first = _first_array(job.frame)
        if first is not None:
            job.kind, job.wants_gpu = kind_of(first), lies_on_gpu(first)
            if job.wants_gpu and not self._on_gpu:
                raise DeviceError(
                    f"frame {job.frame_id} is on a GPU, and the pipeline computes on {self._model.device.label}"
                )
        job.seconds["decode"] = perf_counter() - begun
        return job

    def preprocess(self, job: Job) -> Job:
        """Turn a picture into the network's input, on this thread's stream."""
        begun = perf_counter()
        if job.origin is not None:
            wait_for([job.origin])
        if self._preprocess is not None:
            job.prepared = self._placed(self._preprocess(job.frame))
            job.row = None
        else:
            picture = Picture(job.frame)
            if picture.count != 1:
                raise ValueError(f"a batch of {picture.count} was submitted as one frame")
            size = self._size or picture.size
            out = None
            if job.row is not None:
                out = job.row.rows.view(job.row.number, (3, *size), np.dtype(self._model.dtype))
                if out is None:
                    job.row = None
            job.prepared = picture.prepare(
                self._placed, on_gpu=self._on_gpu, size=size, mean=self._mean, std=self._std,
                layout="NCHW", reverse_channels=False, dtype=self._model.dtype, out=out,
            )[0]  # fmt: skip
        if self._on_gpu:
            job.ready = self._event()
        job.seconds["preprocess"] = perf_counter() - begun
        return job

    def gather(self, jobs: Sequence[Job]) -> tuple[Call]:
        """Stack frames and launch the network behind the previous call, without waiting."""
        label = names_of(jobs)
        pictures = [job.prepared for job in jobs]
        call = Call(jobs, label)
        if not self._on_gpu:
            batch, call.rows = self._model.gather(pictures, label=label)
            call.on_host = self.host.launch(lambda: self._model.compute(batch, label=label))
            return (call,)
        self._gathered += len(jobs)
        if self._rows is not None:
            self._rows.align(self._gathered)
        stream = import_cupy().cuda.get_current_stream()
        for job in jobs:
            if not job.ready.done:  # check first: to order a stream, CuPy releases the interpreter lock
                stream.wait_event(job.ready)
        call.started = self._event(timed=True)
        batch, call.rows = self._model.gather(pictures, label=label, places=[job.row for job in jobs])
        call.output = self._model.compute(batch, label=label)
        call.ended = self._event(timed=True)
        return (call,)

    def infer(self, call: Call) -> Iterable[Sequence[Job]]:
        """Wait for a call's output; pass its frames on together if that saves work."""
        if call.on_host is not None:
            (call.output, seconds), call.on_host = call.on_host.result(), None
        else:
            try:
                call.ended.synchronize()
            except Exception as error:  # a kernel's error is reported when its result is awaited
                raise EngineError(f"{call.label}: the GPU failed: {error}") from error
            seconds = import_cupy().cuda.get_elapsed_time(call.started, call.ended) / 1e3
            self.gpu_seconds += seconds
        count = len(call.jobs)
        answers = self._model.take_apart(call.output, rows=call.rows, count=count, label=call.label)
        for job, answer in zip(call.jobs, answers, strict=True):
            job.data, job.call, job.batch_size = answer, call, count
            job.seconds["infer"] = seconds
            # Only now: the network may have read it until here.
            job.prepared = job.ready = job.row = None
        self.calls += 1
        self.answered += count
        return [(job,) for job in call.jobs] if self._spreads else (call.jobs,)

    def postprocess(self, jobs: Sequence[Job]) -> Sequence[Job]:
        """Turn outputs into results of the frames' array types."""
        begun = perf_counter()
        as_mask = self._postprocess == "mask" or (self._postprocess == "auto" and _is_scores(jobs[0].data))
        if not self._on_gpu:
            settle_on_host(jobs, as_mask=as_mask)
        elif (call := jobs[0].call) is not None:
            # Imported here: page-locked memory is useless without a GPU.
            from vitascope.gpu.memory.pinned_pool import shared_pool

            stream, pool = self._streams["postprocess"].own.stream, shared_pool(self._model.device.index)
            settle_on_gpu(call, as_mask=as_mask, stream=stream, pool=pool)
        if callable(self._postprocess):
            answers = [job.data for job in jobs]
            for job, answer in zip(jobs, answers, strict=True):
                job.data = self._postprocess(answer, job.frame)
            if self._on_gpu:
                # Results are complete when they are passed on, and nothing reads the output after its release.
                self._streams["postprocess"].own.stream.synchronize()
        spent = perf_counter() - begun
        for job in jobs:
            job.seconds["postprocess"] = spent
        return jobs

    def encode(self, jobs: Sequence[Job]) -> Sequence[Job]:
        """Apply the caller's ``encode`` to results."""
        for job in jobs:
            begun = perf_counter()
            if self._encode is not None:
                job.data = self._encode(job.data, job.frame_id)
            job.seconds["encode"] = perf_counter() - begun
        return jobs

    def _placed(self, array: Any) -> Any:
        return to_cupy(array) if self._on_gpu else to_numpy(array)

    def _event(self, *, timed: bool = False) -> Any:
        event = import_cupy().cuda.Event(block=True, disable_timing=not timed)
        event.record()
        return event


def _first_array(frame: Any) -> Any:
    """First array of a frame, which decides the result's type; None if it is not a picture."""
    array = frame.planes[0] if isinstance(frame, Frame) else frame
    first = next(iter(leaves(array)), None)
    try:
        kind_of(first)
    except TypeError:
        return None
    return first


@dataclass(frozen=True, slots=True, eq=False)
class AsyncResult:
    """Result of one frame."""

    frame_id: Hashable
    """The id given on submission."""
    data: Any
    """Result of the last stage; see ``AsyncPipeline``."""
    metadata: dict[str, Any] = field(default_factory=dict)
    """``total_latency``: seconds from ``submit_frame`` to here, including waits. ``stages``: seconds of work
    per stage, for all frames processed together; for ``infer``, the call of the network. ``batch_size``:
    frames in that call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AsyncStats:
    """Statistics of an ``AsyncPipeline`` since its start."""

    fps: float
    """Results per second, from the first submission to the last result."""
    bottleneck_stage: str | None
    """The stage that limits throughput; ``submit`` is the submitting thread, ``deliver`` the one that takes
    results. None before the first frame."""
    bottleneck: str
    """The reason, in one sentence; empty before the first frame."""
    submitted: int
    delivered: int
    """Finished results, taken or not."""
    results_waiting: int
    """Finished results not taken yet."""
    mean_batch_size: float
    """Frames per call of the network; 0 before the first."""
    stages: dict[str, StageReport]
    """Busy figures by stage, in order. ``items`` counts frames, but calls in stages behind ``infer`` that run
    no user function."""
    queues: tuple[QueueReport, ...]
    """Queues between the stages, in order; the first holds submitted frames, the last finished results."""
    latency: Latency
    """``total_latency`` over all results."""
    cores_busy: float
    """CPU cores kept busy by the whole process on average."""
    gpu_busy: float | None
    """Share of the time from first to last frame in which the network's stream was busy; None on a CPU."""


_MOST = {"batch_size": 4096, "queue_size": 100_000, "timeout_ms": 60_000}
_MOST_THREADS = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class AsyncConfig:
    """Threads, streams, sizes and timeouts of an ``AsyncPipeline``.

    Raises:
        ConfigError: A value is not a number, or out of range.
    """

    decode_threads: int = 2
    """Threads that decode submitted bytes or paths, or run ``decode``."""
    preprocess_streams: int = 2
    """Pictures preprocessed at a time: threads, each with its own CUDA stream on a GPU."""
    batch_size: int = 4
    """Most frames in one call of the network."""
    postprocess_threads: int = 1
    """Threads that postprocess outputs, each with its own CUDA stream on a GPU."""
    encode_threads: int = 2
    """Threads that run ``encode``."""
    queue_size: int = 16
    """Most frames waiting before each stage, and most results waiting to be taken; also limited in bytes."""
    timeout_ms: float = 10.0
    """Milliseconds after which a partial batch runs; 0 runs whatever is there."""
    cuda_graphs: bool = True
    """Record a torch module as CUDA graphs, one per batch size 1, 2, 4 … up to ``batch_size``; smaller
    batches are padded. Set False for a module that waits for the GPU internally. Ignored for engines and
    callables, and on a CPU."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        if not isinstance(self.cuda_graphs, bool):
            raise ConfigError(f"cuda_graphs is {self.cuda_graphs!r}, expected True or False")
        for item in fields(self):
            if item.name == "cuda_graphs":
                continue
            value, least = getattr(self, item.name), 0 if item.name == "timeout_ms" else 1
            most = _MOST.get(item.name, _MOST_THREADS)
            wanted = Integral if least else Real  # NumPy's, too
            number: Any = value
            if (
                isinstance(value, bool)
                or not isinstance(value, wanted)
                or not least <= number <= most  # also rejects NaN
            ):
                kind = "a whole number" if least else "a number"
                raise ConfigError(f"{item.name} is {value!r}, expected {kind} from {least} to {most}")
            object.__setattr__(self, item.name, int(number) if least else float(number))  # frozen for callers

    @classmethod
    def of(cls, config: AsyncConfig | Mapping[str, Any] | None) -> AsyncConfig:
        """Make a config from a mapping of field names; missing keys keep their defaults.

        Raises:
            ConfigError: A key is unknown, or a value is out of range.
        """
        if config is None:
            return cls()
        if isinstance(config, AsyncConfig):
            return config
        if not isinstance(config, Mapping):
            raise ConfigError(
                f"config is a {type(config).__name__}, expected a mapping such as {{'batch_size': 4}}"
            )
        known = [item.name for item in fields(cls)]
        for key in config:
            if key not in known:
                hint = did_you_mean(key, known) or f"; expected one of {', '.join(known)}"
                raise ConfigError(f"an AsyncPipeline has no setting {key!r}{hint}")
        return cls(**config)


_ALL = QueueLimits(items=2**62, nbytes=None)


class AsyncPipeline:
    """Runs a network on frames submitted one by one, at the pace of the slowest stage.

    Stages: ``decode`` (bytes and paths to pictures), ``preprocess`` (the fused kernel), ``gather`` (batches,
    one ahead of the network), ``infer``, ``postprocess``, and ``encode`` if a function is given. Results come
    in submission order, in the frame's array type (NumPy for bytes and paths). On a GPU all data stays there
    between upload and download.

    Args:
        model: A ``torch.nn.Module`` (moved to the device, and recorded as CUDA graphs on a GPU), an engine,
            or a callable. A callable takes a batch [N, 3, h, w], NumPy on a CPU and CuPy on a GPU, and
            returns an array with N rows, or a tuple or dict of them, in newly allocated memory.
        config: ``AsyncConfig``, or a mapping of its fields.
        device_id: Number of the GPU; ignored on a CPU, and for a toolkit engine, which has its own.
        device: ``auto`` is an engine's own device, else the GPU if one is available.
        target_size: (height, width) of the network's input. If omitted, the engine's fixed size, else the
            picture's own.
        mean: Subtracted from RGB in 0..1.
        std: Divisor after subtracting the mean.
        decode: Replaces the built-in decoding: takes a submitted object, returns a picture.
        preprocess: Replaces the fused kernel: takes a picture, returns the network's input without the batch
            axis.
        postprocess: None returns the network's output for the frame; ``mask`` the class map of several
            classes, uint8 [h, w], or 0 and 255 where the only class reaches 0.5; a function takes the output,
            in the frame's array type, and the frame. ``auto`` is ``mask`` for a segmentation network, else
            None: the model's attribute ``kind`` decides (``semantic`` or ``binary`` mean segmentation), or
            without one the name of its class or package, as in torchvision.
        encode: Takes the result and ``frame_id`` on the encode threads; its return value becomes ``data``.
        stop_timeout_s: How long to wait on shutdown for a thread inside native code before abandoning it.

    Raises:
        ConfigError: A key is unknown, a value is out of range, or a function is not callable.
        DeviceError: The device is not available.
        EngineError: The engine takes more than one input.
        TypeError: ``model`` has another type.
        ValueError: ``target_size``, ``mean`` or ``std`` is invalid.
    """

    def __init__(
        self,
        model: Any,
        config: AsyncConfig | Mapping[str, Any] | None = None,
        device_id: int = 0,
        device: Literal["auto", "cuda", "cpu"] = "auto",
        *,
        target_size: tuple[int, int] | None = None,
        mean: Triple = (0.0, 0.0, 0.0),
        std: Triple = (1.0, 1.0, 1.0),
        decode: Callable[[Any], Any] | None = None,
        preprocess: Callable[[Any], Any] | None = None,
        postprocess: Callable[[Any, Any], Any] | Literal["auto", "mask"] | None = "auto",
        encode: Callable[[Any, Hashable], Any] | None = None,
        stop_timeout_s: float = 20.0,
    ) -> None:
        self.config = AsyncConfig.of(config)
        own = {"decode": decode, "preprocess": preprocess, "postprocess": postprocess, "encode": encode}
        for name, function in own.items():
            words = ("auto", "mask") if name == "postprocess" else ()
            if not (function is None or callable(function) or function in words):
                expected = "a function, 'mask' or None, or 'auto'" if words else "a function or None"
                raise ConfigError(f"{name} is {function!r}, expected {expected}")
        if postprocess == "auto" and not is_segmentation_network(model):
            postprocess = None
        if target_size is not None:
            target_size = height_and_width(target_size)
        check_affine(mean, std, channels=3)
        network = open_model(
            model,
            device=device,
            device_id=device_id,
            batch_size=self.config.batch_size,
            cuda_graphs=self.config.cuda_graphs,
        )
        self.device = network.device
        """The device in use."""
        threads = {
            "preprocess": self.config.preprocess_streams,
            "gather": 1,
            "postprocess": self.config.postprocess_threads,
        }
        self._streams = {name: StreamPool(self.device, count) for name, count in threads.items()}
        self._network = network
        # Frames of a call are prepared in adjacent rows of one array, which saves stacking them.
        self._rows = RowsInTurn(self.config.batch_size) if self.device.kind == "cuda" else None
        self._work = StageWork(
            network, target_size=target_size or network.size, mean=mean, std=std, decode=decode, preprocess=preprocess,
            postprocess=postprocess, encode=encode, streams=self._streams, rows=self._rows,
        )  # fmt: skip
        limits = QueueLimits(items=self.config.queue_size)
        # Submitted frames wait after the source, where the report counts them.
        self._submissions: BoundedQueue[Job] = BoundedQueue("caller > submit", limits=QueueLimits(items=1))
        self._results: BoundedQueue[AsyncResult] = BoundedQueue("deliver > caller", limits=limits)
        self._pipeline = Pipeline(
            self._stages(limits, has_encode=encode is not None),
            describe=_description,
            stop_timeout_seconds=stop_timeout_s,
            on_halt=self._release,
        )
        self._thread = threading.Thread(target=self._run, name="vitascope-async-pipeline", daemon=True)
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._state: Literal["new", "running", "stopped"] = "new"
        self._process = OwnProcess("the AsyncPipeline")
        self._failure: BaseException | None = None
        self._reported = False
        self._latency = LatencyHistogram()
        self._delivered = 0
        self._first_submission = self._last_result = 0.0

    def start(self) -> Self:
        """Start the threads.

        Returns:
            The pipeline.

        Raises:
            RuntimeError: It was already started.
        """
        with self._lock:
            if self._state != "new":
                raise RuntimeError(
                    "an AsyncPipeline starts once, and a with block starts it; for another run make another one"
                )
            self._state = "running"
        self._thread.start()
        return self

    def submit_frame(
        self, frame: Any, frame_id: Hashable = None, *, timeout_s: float | None = 30.0
    ) -> Hashable:
        """Submit a frame from any thread; waits while the queue is full.

        Args:
            frame: RGB [H, W, 3] or [3, H, W] (NumPy, CuPy, torch, DLPack), a ``Frame``, NV12 or P010 planes,
                or a picture file's bytes or path; or whatever ``decode`` or ``preprocess`` take. Do not write
                to it before its result is ready.
            frame_id: Returned with the result; a running number if omitted.
            timeout_s: Longest wait for room; None waits indefinitely.

        Returns:
            The frame's id.

        Raises:
            TimeoutError: There was no room in time: a stage hangs, or results are not taken.
            PipelineError: A stage failed; names the stage and frame of the cause.
            RuntimeError: It is not running.
            UsageError: This process was forked from the one that created it.
        """
        self._process.require()
        with self._lock:
            if self._state != "running":
                raise RuntimeError(
                    "the pipeline was stopped" if self._state == "stopped" else "call start() first"
                )
            if not self._first_submission:
                self._first_submission = perf_counter()
        name = next(self._numbers) if frame_id is None else frame_id
        origin = origin_of(_arrays_of(frame)) if self.device.kind == "cuda" else None
        job = Job(name, frame, perf_counter(), origin)
        try:
            taken = self._submissions.put(job, nbytes=job.nbytes, timeout_seconds=timeout_s)
        except TimeoutError as error:
            waiting = self._results.report().occupancy
            reason = (
                f"{waiting} results are waiting to be taken: call get_result"
                if waiting >= self.config.queue_size
                else f"the slowest stage is {self.get_stats().bottleneck_stage!r}"
            )
            raise TimeoutError(f"no room for frame {name} within {timeout_s:g} s; {reason}") from error
        except RuntimeError as error:  # the pipeline ended meanwhile
            raise RuntimeError("the pipeline was stopped") from error
        if not taken:
            self._thread.join()
            self._raise_failure()
            raise RuntimeError("the pipeline was stopped")
        return name

    def get_result(self, *, timeout_s: float | None = 0.0) -> AsyncResult | None:
        """Get the next result in submission order, from any thread.

        Args:
            timeout_s: Longest wait; 0 does not wait, None waits for a result or the end.

        Returns:
            None on timeout, and after the last result.

        Raises:
            PipelineError: A stage failed, and all earlier results were taken.
            RuntimeError: It was not started, so waiting would never end.
            UsageError: This process is a fork of the one that made it.
        """
        self._process.require()
        if timeout_s is None and self._state == "new":
            raise RuntimeError("call start() first")
        taken = self._results.get(timeout_seconds=timeout_s)
        if not isinstance(taken, Mark):
            return taken[1]
        if taken is not Mark.NOTHING_YET:
            self._raise_failure()
        return None

    def results(self) -> Iterator[AsyncResult]:
        """Iterate over all results, waiting for each; ends after ``stop``, or ``finish`` from another thread."""
        while (result := self.get_result(timeout_s=None)) is not None:
            yield result

    def finish(self) -> None:
        """Announce the end of submission, without waiting: ``results`` ends after the last result."""
        with self._lock:
            was_running, self._state = self._state == "running", "stopped"
        self._submissions.end()
        if not was_running and not self._thread.is_alive():
            self._results.end()

    def stop(self, *, drain: bool = True) -> None:
        """Stop and join all threads; idempotent. Finished results can still be taken.

        Args:
            drain: Finish submitted frames first; False drops them.

        Raises:
            PipelineError: A stage failed, and the error was not raised before.
            RuntimeError: Called from inside a stage; call ``finish`` there instead.
        """
        if self._pipeline.owns_current_thread() or self._work.host.owns_current_thread():
            raise RuntimeError("a pipeline cannot wait for its own stage to end; call finish() there")
        self.finish()
        # Nobody may be taking results while this waits for the last ones.
        self._results.relax(_ALL)
        if not drain:
            self._submissions.stop()
            self._pipeline.stop(drain=False)
        if self._thread.is_alive():
            self._thread.join()
        if not self._reported:
            self._raise_failure()

    def report(self) -> PipelineReport:
        """Report of the stages, for ``BottleneckDetector.analyze``; from any thread, at any time."""
        return self._pipeline.snapshot()

    def get_stats(self) -> AsyncStats:
        """Figures so far; from any thread, at any time."""
        report = self.report()
        submissions, results = self._submissions.report(), self._results.report()
        delivered = self._delivered
        seconds = max(self._last_result - self._first_submission, 0.0) if delivered else 0.0
        calls, answered = self._work.calls, self._work.answered
        stages = {stage.name: stage for stage in report.stages}
        infer = stages["infer"]
        cpu_seconds = infer.cpu_seconds + self._work.host.cpu_seconds
        stages["infer"] = replace(infer, items=answered, cpu_seconds=cpu_seconds)
        return AsyncStats(
            fps=delivered / seconds if seconds else 0.0,
            bottleneck_stage=None if report.bottleneck is None else report.bottleneck.stage,
            bottleneck="" if report.bottleneck is None else report.bottleneck.evidence,
            submitted=submissions.count,
            delivered=delivered,
            results_waiting=results.occupancy,
            mean_batch_size=answered / calls if calls else 0.0,
            stages=stages,
            queues=(submissions, *report.queues, results),
            latency=LatencyHistogram.summary([self._latency]),
            cores_busy=report.cores_busy,
            gpu_busy=self._work.gpu_seconds / seconds if self.device.kind == "cuda" and seconds else None,
        )

    def __enter__(self) -> Self:
        """Start, unless already started."""
        return self.start() if self._state == "new" else self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Stop; after an error, drop waiting frames and raise no second error."""
        if error is not None:
            self._reported = True
        self.stop(drain=error is None)

    def _stages(self, limits: QueueLimits, *, has_encode: bool) -> list[Any]:
        config, work, streams = self.config, self._work, self._streams
        gathering = Batched(work.gather, size=config.batch_size, timeout_seconds=config.timeout_ms / 1e3)
        on_host = self.device.kind == "cpu"
        # While one call is computed, the next waits here, and one more, already launched, waits for room. So the GPU
        # always has work, and a longer queue would only add latency.
        ahead = QueueLimits(items=1)
        behind = limits
        if not work.spreads:  # the same frames stay together as one item per call
            behind = QueueLimits(items=max(config.queue_size // config.batch_size, 1))
        stages: list[Any] = [
            Source("submit", self._submitted(), output=limits),
            Map("decode", work.decode, workers=config.decode_threads, output=limits),
            Map("preprocess", work.preprocess, workers=config.preprocess_streams, output=limits,
                open=streams["preprocess"].take, close=streams["preprocess"].leave),
            Group("gather", gathering, output=ahead, open=streams["gather"].take, close=streams["gather"].leave),
            Group("infer", Batched(lambda calls: work.infer(calls[0]), size=1), output=behind,
                open=work.host.start if on_host else None, close=work.host.close if on_host else None),
            Map("postprocess", work.postprocess, workers=config.postprocess_threads, output=behind,
                open=streams["postprocess"].take, close=streams["postprocess"].leave),
        ]  # fmt: skip
        if has_encode:
            stages.append(Map("encode", work.encode, workers=config.encode_threads, output=behind))
        return [*stages, Sink("deliver", self._deliver)]

    def _submitted(self) -> Iterator[Job]:
        while not isinstance(taken := self._submissions.get(), Mark):
            if self._rows is not None:
                taken[1].row = self._rows.next()
            yield taken[1]
            del taken  # otherwise the frame would live on while this waits for the next

    def _deliver(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            now = perf_counter()
            latency_seconds = now - job.submitted_at
            metadata = {
                "total_latency": latency_seconds,
                "stages": job.seconds,
                "batch_size": job.batch_size,
            }
            self._latency.add(latency_seconds)
            self._last_result = now
            self._delivered += 1
            self._results.put(AsyncResult(job.frame_id, job.data, metadata), nbytes=nbytes_of(job.data))

    def _run(self) -> None:
        try:
            # On a CPU, the network's own threads need the cores, and a call takes many switch intervals.
            with quick_turns() if self.device.kind == "cuda" else nullcontext():
                self._pipeline.run()
            self._network.close()  # not after a failure: an abandoned thread may still use it
        except BaseException as error:  # raised by the next call
            self._failure = error
        finally:
            self._submissions.stop()
            self._results.end()

    def _release(self) -> None:
        """Wake all waiting threads after the run was given up."""
        self._submissions.stop()
        self._results.relax(_ALL)

    def _raise_failure(self) -> None:
        if self._failure is not None:
            self._reported = True
            raise self._failure


def _description(item: Any) -> str:
    """Name an item's frames for messages."""
    jobs = getattr(item, "jobs", item)  # a call
    return names_of([jobs] if isinstance(jobs, Job) else jobs)


def _arrays_of(frame: Any) -> Any:
    """Parts of a frame that may be on a GPU."""
    if isinstance(frame, Frame):
        return frame.planes
    return tuple(frame) if isinstance(frame, list) else frame
