"""Runs a network on frames from any thread, with results in order; all stages run in parallel.

It is a ``Pipeline`` whose source is ``submit_frame`` and whose sink is ``get_result``, with the same queues, stages,
reports and ways to end.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, fields, replace
from numbers import Integral, Real
from os import PathLike
from pathlib import Path
from queue import SimpleQueue
from threading import Lock
from time import perf_counter, thread_time
from typing import TYPE_CHECKING, Any, Literal, Self

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
    """As it was submitted; once decoded, the picture."""
    submitted_at: float
    """``perf_counter`` seconds."""
    origin: Origin | None = None
    """The streams behind which the frame may be read, where it is on a GPU."""
    kind: ArrayKind = "numpy"
    """Library of the result."""
    wants_gpu: bool = False
    row: BatchRow | None = None
    """Place for the network's input; once it is prepared, its place: None when it lies elsewhere."""
    prepared: Any = None
    """The network's input without its batch axis."""
    ready: Any = None
    """``cupy.cuda.Event`` behind it; None on a CPU."""
    call: Call | None = None
    """The call that it shares, from the network's answer until that is taken apart."""
    data: Any = None
    """The network's answer, then what becomes of it."""
    batch_size: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    """Time in each stage's own work."""

    @property
    def nbytes(self) -> int:
        """Bytes that it keeps alive, for the limits of queues."""
        return nbytes_of(self.frame) + nbytes_of(self.prepared) + nbytes_of(self.data)


@dataclass(slots=True, eq=False)
class Call:
    """A launched call of the network, and its frames."""

    jobs: Sequence[Job]
    label: str
    """The frames, as messages call them."""
    rows: int = 0
    """Rows of the batch; those beyond its frames only fill it up."""
    on_host: HostCall | None = None
    """The call on a CPU."""
    started: Any = None
    """``cupy.cuda.Event`` with a timer before the network; None on a CPU."""
    ended: Any = None
    """The one behind it."""
    output: Any = None
    """The network's answer for all of them until it is taken apart; on a GPU perhaps not computed yet."""
    lock: Lock = field(default_factory=Lock)
    """Held while the answer is split, which several threads may want to do."""

    @property
    def nbytes(self) -> int:
        """Bytes that it keeps alive."""
        return sum(job.nbytes for job in self.jobs)


def names_of(jobs: Sequence[Job]) -> str:
    """The names of frames in messages."""
    names = ", ".join(str(job.frame_id) for job in jobs)
    return f"frame {names}" if len(jobs) == 1 else f"frames {names}"


class HostCall:
    """A launched call."""

    __slots__ = ("_error", "_going", "_output", "_work", "seconds")

    def __init__(self, work: Callable[[], Any]) -> None:
        self.seconds = 0.0
        """Time that it took, once it is over."""
        self._work: Callable[[], Any] | None = work
        self._output: Any = None
        self._error: BaseException | None = None
        self._going = threading.Lock()
        self._going.acquire()

    def wait(self) -> Any:
        """Wait until it has finished and take the result; only once, because the result is not kept.

        Raises:
            BaseException: What it raised, or an earlier call on the stream.
        """
        with self._going:
            output, error, self._output, self._error = self._output, self._error, None, None
        if error is not None:
            raise error
        return output

    def run(self) -> BaseException | None:
        """Compute it; returns the exception, if any."""
        assert self._work is not None  # it runs once
        begun = perf_counter()
        try:
            self._output = self._work()
        except BaseException as error:  # raised where a result is waited for
            self._error = error
        self._work = None  # and what it was computed from
        self.seconds = perf_counter() - begun
        failure = self._error
        self._going.release()
        return failure

    def fail(self, error: BaseException) -> None:
        """End it with an error, without computing."""
        self._work, self._error = None, error
        self._going.release()


class HostStream:
    """Computes calls on a thread in the order of their launch, without pauses.

    The thread does nothing else: other threads process an output while the next call runs. After a failed call no other
    is computed.
    """

    def __init__(self) -> None:
        self._calls: SimpleQueue[HostCall | None] = SimpleQueue()
        self._ended: BaseException | None = None
        self._cpu_seconds = 0.0
        self._thread = threading.Thread(target=self._run, name="vitascope-network", daemon=True)

    @property
    def cpu_seconds(self) -> float:
        """CPU time of its thread, up to the end of its last call."""
        return self._cpu_seconds

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def launch(self, work: Callable[[], Any]) -> HostCall:
        """Launch a computation after all earlier ones; from one thread."""
        call = HostCall(work)
        if self._ended is None:
            self._calls.put(call)
        else:
            call.fail(self._ended)
        return call

    def owns_current_thread(self) -> bool:
        """True inside a call."""
        return threading.current_thread() is self._thread

    def close(self) -> None:
        """Compute nothing more, and wait for the current call."""
        if self._ended is None:
            self._ended = RuntimeError("the pipeline has ended")
        self._calls.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            if self._ended is not None:
                call.fail(self._ended)
            elif (error := call.run()) is not None:
                self._ended = error
            self._cpu_seconds = thread_time()
            del call  # or its answer would live on while this waits for the next


def settle_on_host(jobs: Sequence[Job], *, as_mask: bool) -> None:
    """Turn the outputs for frames into their results, without a GPU.

    Args:
        jobs: Any part of a call, each with its own answer.
        as_mask: Make masks of scores.

    Raises:
        EngineError: The scores are none.
    """
    for job in jobs:
        answer = _mask_of_row(job.data) if as_mask else job.data
        job.data = _in_kind(answer, job, on_gpu=False)
        job.call = None


def settle_on_gpu(call: Call, *, as_mask: bool, stream: Any, pool: PinnedMemoryPool) -> None:
    """Turn the outputs of a call into results, on whichever thread comes first; others wait for it.

    One kernel makes the masks of a call, and one copy brings all that is wanted on the host down. The network is
    through.

    Args:
        call: What the network gave for the frames.
        as_mask: Make masks of scores.
        stream: The ``cupy.cuda.Stream`` of this thread; nothing else may be current.
        pool: Lends the page-locked memory that results come down to.

    Raises:
        EngineError: The scores are none.
        MemoryLimitError: The pool lends nothing any more.
    """
    with call.lock:
        if call.output is None:
            return
        jobs, count = call.jobs, len(call.jobs)
        answers = call.output
        if isinstance(answers, list):  # an entry for each row
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
    """The same form with all arrays of the GPU on the host, once they are there."""
    # Imported here: page-locked memory is of no use without a GPU.
    from vitascope.gpu.memory.pinned_pool import Download

    arrays = [import_cupy().ascontiguousarray(to_cupy(leaf)) for leaf in leaves(answers) if _is_on_gpu(leaf)]
    if not arrays:
        return answers
    landed = iter(Download(arrays, stream=stream, pool=pool).wait())
    return map_leaves(answers, lambda leaf: next(landed) if _is_on_gpu(leaf) else leaf)


def _is_on_gpu(leaf: Any) -> bool:
    try:
        return lies_on_gpu(leaf)
    except TypeError:  # a number, or something of the user's own
        return False


def _in_kind(answer: Any, job: Job, *, on_gpu: bool) -> Any:
    """Every array of an answer in the frame's kind; numbers and what is the user's own as they are."""

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
    """True for a frame's answer that a mask can be made of: float [C, h, w], first where there are several arrays."""
    scores = next(leaves(answer), None)
    return len(getattr(scores, "shape", ())) == 3 and "float" in str(getattr(scores, "dtype", ""))


def _mask_of(scores: Any) -> Any:
    """Class maps of several classes, masks of one: uint8 [N, h, w] of float scores [N, C, h, w], where they are."""
    if len(scores.shape) != 4:
        raise EngineError(
            f"a mask is made of scores [C, h, w], and the network gave {list(scores.shape[1:])}"
        )
    own = to_cupy(scores) if lies_on_gpu(scores) else to_numpy(scores)
    kind: Literal["argmax", "threshold"] = "argmax" if own.shape[1] > 1 else "threshold"
    return postprocess_mask(own, kind=kind)


Triple = tuple[float, float, float]


def decode_picture(data: bytes | bytearray | memoryview | str | PathLike[str]) -> Any:
    """A picture file (JPEG, PNG, WebP … as OpenCV reads them) as RGB uint8 [H, W, 3].

    Raises:
        InputError: It cannot be read, or is no picture.
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
    """The callbacks of the stages. Each stage has a pool of CUDA streams for its threads.

    Args:
        model: The network.
        target_size: (height, width) of its input; a picture's own when None.
        mean: Subtracted from RGB in 0..1.
        std: Divides the difference.
        decode: Takes the place of the built-in decoding of bytes and paths.
        preprocess: Takes the place of the fused preprocessing.
        postprocess: ``mask``, ``auto`` (a mask of what can be scores), a function of the answer and the frame, or None.
        encode: A function of the result and the frame's name, or None.
        streams: Pools of the stages ``preprocess``, ``gather`` and ``postprocess``.
        rows: Where frames get their places in a call's batch; None on a CPU.
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
        """Computes the network on a CPU; it has nothing to do on a GPU."""
        # A function of the user's own is to run for several frames of a call at a time, on as many threads.
        self._spreads = callable(postprocess) or encode is not None
        self.gpu_seconds = 0.0
        """Time that the network's stream worked; 0 on a CPU."""
        self.calls = self.answered = 0
        """Calls of the network, and the frames in them."""

    @property
    def spreads(self) -> bool:
        """True if the frames of a call separate after the network; otherwise they stay together to the end."""
        return self._spreads

    def decode(self, job: Job) -> Job:
        """Decode bytes and paths to pictures; pictures pass through."""
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
        """Stack frames and launch the network on them, after the previous call; does not wait."""
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
            if not job.ready.done:  # asked first: CuPy gives the interpreter away to order a stream
                stream.wait_event(job.ready)
        call.started = self._event(timed=True)
        batch, call.rows = self._model.gather(pictures, label=label, places=[job.row for job in jobs])
        call.output = self._model.compute(batch, label=label)
        call.ended = self._event(timed=True)
        return (call,)

    def infer(self, call: Call) -> Iterable[Sequence[Job]]:
        """Wait for the outputs of a call; its frames are passed on together if that saves work."""
        if call.on_host is not None:
            call.output = call.on_host.wait()
            seconds = call.on_host.seconds
        else:
            try:
                call.ended.synchronize()
            except Exception as error:  # a kernel's error is reported where its result is waited for
                raise EngineError(f"{call.label}: the GPU failed: {error}") from error
            seconds = import_cupy().cuda.get_elapsed_time(call.started, call.ended) / 1e3
            self.gpu_seconds += seconds
        count = len(call.jobs)
        answers = self._model.take_apart(call.output, rows=call.rows, count=count, label=call.label)
        for job, answer in zip(call.jobs, answers, strict=True):
            job.data, job.call, job.batch_size = answer, call, count
            job.seconds["infer"] = seconds
            # Only now: until here the network may have been reading it.
            job.prepared = job.ready = job.row = None
        self.calls += 1
        self.answered += count
        return [(job,) for job in call.jobs] if self._spreads else (call.jobs,)

    def postprocess(self, jobs: Sequence[Job]) -> Sequence[Job]:
        """Turn the network's outputs into results of the frames' array types."""
        begun = perf_counter()
        as_mask = self._postprocess == "mask" or (self._postprocess == "auto" and _is_scores(jobs[0].data))
        if not self._on_gpu:
            settle_on_host(jobs, as_mask=as_mask)
        elif (call := jobs[0].call) is not None:
            # Imported here: page-locked memory is of no use without a GPU.
            from vitascope.gpu.memory.pinned_pool import shared_pool

            stream, pool = self._streams["postprocess"].own.stream, shared_pool(self._model.device.index)
            settle_on_gpu(call, as_mask=as_mask, stream=stream, pool=pool)
        if callable(self._postprocess):
            answers = [job.data for job in jobs]
            for job, answer in zip(jobs, answers, strict=True):
                job.data = self._postprocess(answer, job.frame)
            if self._on_gpu:
                # A result is finished when it is handed on, and nothing reads the answers any more when they go.
                self._streams["postprocess"].own.stream.synchronize()
        spent = perf_counter() - begun
        for job in jobs:
            job.seconds["postprocess"] = spent
        return jobs

    def encode(self, jobs: Sequence[Job]) -> Sequence[Job]:
        """Apply the caller's function to results."""
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
    """The array that tells a frame's kind; None for what is no picture of ours."""
    array = frame.planes[0] if isinstance(frame, Frame) else frame
    first = next(iter(leaves(array)), None)
    try:
        kind_of(first)
    except TypeError:
        return None
    return first


@dataclass(frozen=True, slots=True, eq=False)
class AsyncResult:
    """The result of one frame."""

    frame_id: Hashable
    """As it was submitted."""
    data: Any
    """The last stage's result; see ``AsyncPipeline``."""
    metadata: dict[str, Any] = field(default_factory=dict)
    """``total_latency``: seconds from ``submit_frame`` to here, waits included. ``stages``: seconds in the work of
    each stage, for all frames that were in its hands together; of ``infer`` the call of the network. ``batch_size``:
    frames of that call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AsyncStats:
    """Statistics of an ``AsyncPipeline`` since its start."""

    fps: float
    """Results a second, from the first submission to the last result."""
    bottleneck_stage: str | None
    """The stage that sets the pace; ``submit`` is the thread that submits, ``deliver`` the one that takes
    results. None before the first frame."""
    bottleneck: str
    """Why, in one sentence; empty before the first frame."""
    submitted: int
    delivered: int
    """Results that are finished, taken or not."""
    results_waiting: int
    """Finished, not taken."""
    mean_batch_size: float
    """Frames in a call of the network; 0 before the first."""
    stages: dict[str, StageReport]
    """Busy figures by stage, in order. ``items`` are frames, but calls behind ``infer`` where no function of the user's
    own runs there."""
    queues: tuple[QueueReport, ...]
    """Between them, in order; the first holds what was submitted, the last what waits to be taken."""
    latency: Latency
    """``total_latency`` over all results."""
    cores_busy: float
    """CPU cores that the whole process kept busy on average."""
    gpu_busy: float | None
    """Share of the time from the first to the last frame that the network's stream worked; None on a CPU."""


_MOST = {"batch_size": 4096, "queue_size": 100_000, "timeout_ms": 60_000}
_MOST_THREADS = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class AsyncConfig:
    """The configuration of an ``AsyncPipeline``: threads, streams, sizes and timeouts.

    Raises:
        ConfigError: A value is not a number, or is out of range.
    """

    decode_threads: int = 2
    """Threads that decode what was submitted as bytes or paths (or run ``decode``)."""
    preprocess_streams: int = 2
    """Pictures that are prepared at a time: threads, each with a CUDA stream of its own on a GPU."""
    batch_size: int = 4
    """Most frames in one call of the network."""
    postprocess_threads: int = 1
    """Threads that make a result from the network's answer, each with a CUDA stream of its own on a GPU."""
    encode_threads: int = 2
    """Threads that run ``encode``."""
    queue_size: int = 16
    """Most frames that wait before each stage, and most results that wait to be taken; also bounded in bytes."""
    timeout_ms: float = 10.0
    """Milliseconds after which a batch runs although it is not full; 0 takes what is there."""
    cuda_graphs: bool = True
    """Record a torch module as CUDA graphs, one for each of the batch sizes 1, 2, 4 … up to ``batch_size``; smaller
    batches are filled up. False runs it operation by operation, as a module that waits for the GPU in between needs it.
    Without meaning for engines and callables, and on a CPU."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        if not isinstance(self.cuda_graphs, bool):
            raise ConfigError(f"cuda_graphs is {self.cuda_graphs!r}, expected True or False")
        for item in fields(self):
            if item.name == "cuda_graphs":
                continue
            value, least = getattr(self, item.name), 0 if item.name == "timeout_ms" else 1
            most = _MOST.get(item.name, _MOST_THREADS)
            wanted = Integral if least else Real  # of NumPy, too
            number: Any = value
            if (
                isinstance(value, bool)
                or not isinstance(value, wanted)
                or not least <= number <= most  # nor NaN
            ):
                kind = "a whole number" if least else "a number"
                raise ConfigError(f"{item.name} is {value!r}, expected {kind} from {least} to {most}")
            object.__setattr__(self, item.name, int(number) if least else float(number))  # frozen for callers

    @classmethod
    def of(cls, config: AsyncConfig | Mapping[str, Any] | None) -> AsyncConfig:
        """Create one from a mapping of field names; missing fields keep their defaults.

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
    """Runs a network on frames that arrive one by one, as fast as its slowest stage.

    Stages: ``decode`` (bytes and paths of picture files become pictures), ``preprocess`` (the fused kernel), ``gather``
    (batches, one ahead of the network), ``infer``, ``postprocess``, and ``encode`` where a function is given. Results
    come in order of submission, with the array type of their frame (NumPy for bytes and paths). On a GPU, everything
    between the upload of a frame and the download of its result stays there.

    Args:
        model: A ``torch.nn.Module`` (it is moved to the device, and recorded as CUDA graphs on a GPU), an engine, or a
            callable. A callable takes a batch [N, 3, h, w], NumPy on a CPU and CuPy on a GPU, and returns an array with
            N rows, or a tuple or dict of them, in newly allocated memory.
        config: ``AsyncConfig``, or a mapping of its keys.
        device_id: Number of the GPU; ignored on a CPU, and for an engine of the toolkit, which has its own.
        device: ``auto`` is an engine's own device, else the GPU if one can be used.
        target_size: (height, width) of the network's input. By default the size that an engine requires, else the
            picture's own.
        mean: Subtracted from RGB in 0..1.
        std: Divides the difference.
        decode: Replaces the built-in decoding, on the decode threads: takes what was submitted, returns a picture.
        preprocess: Replaces the fused kernel, on the preprocess threads: takes a picture, returns the network's input
            without the batch axis.
        postprocess: None returns the network's output for the frame. ``mask`` returns the class map of several classes,
            uint8 [h, w]; for a single class, 255 where it reaches 0.5 and 0 elsewhere. A function takes the output, in
            the frame's array type, and the frame. ``auto`` is ``mask`` for segmentation networks, else None. These have
            an attribute ``kind`` of ``semantic`` or ``binary``, or, without one, "segmentation" in the name of their
            class or package, as in torchvision.
        encode: Runs on the encode threads: takes the result and ``frame_id``, and returns the new ``data``.
        stop_timeout_s: How long stopping waits for a thread in native code before abandoning it.

    Raises:
        ConfigError: A key is unknown, a value is out of range, or a function cannot be called.
        DeviceError: The device is not available.
        EngineError: An engine that takes more than one input.
        TypeError: ``model`` is something else.
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
        """The device that it computes on."""
        threads = {
            "preprocess": self.config.preprocess_streams,
            "gather": 1,
            "postprocess": self.config.postprocess_threads,
        }
        self._streams = {name: StreamPool(self.device, count) for name, count in threads.items()}
        self._network = network
        # Frames of a call are prepared side by side in one array: they need not be brought together then.
        self._rows = RowsInTurn(self.config.batch_size) if self.device.kind == "cuda" else None
        self._work = StageWork(
            network, target_size=target_size or network.size, mean=mean, std=std, decode=decode, preprocess=preprocess,
            postprocess=postprocess, encode=encode, streams=self._streams, rows=self._rows,
        )  # fmt: skip
        limits = QueueLimits(items=self.config.queue_size)
        # What was submitted waits behind the source, where the report sees it.
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
            RuntimeError: It was started before.
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
        """Submit a frame, from any thread; waits while the queue is full.

        Args:
            frame: RGB [H, W, 3] or [3, H, W] (NumPy, CuPy, torch, DLPack), a ``Frame``, NV12 or P010 planes, the bytes
                or the path of a picture file; or whatever ``decode`` or ``preprocess`` takes. Do not change it before
                its result is ready.
            frame_id: Returned with the result; a running number by default.
            timeout_s: Longest wait for room; None waits for ever.

        Returns:
            The frame's id.

        Raises:
            TimeoutError: There was no room in that time: a stage hangs, or nobody takes results.
            PipelineError: A stage failed; the cause is named with its stage and frame.
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
        except RuntimeError as error:  # ended meanwhile
            raise RuntimeError("the pipeline was stopped") from error
        if not taken:
            self._thread.join()
            self._raise_failure()
            raise RuntimeError("the pipeline was stopped")
        return name

    def get_result(self, *, timeout_s: float | None = 0.0) -> AsyncResult | None:
        """The next result, in order of submission; from any thread.

        Args:
            timeout_s: Longest wait; 0 does not wait, None waits for a result or the end.

        Returns:
            None if none was ready in that time, or if there are no more.

        Raises:
            PipelineError: A stage failed, and all earlier results were taken.
            RuntimeError: It was not started, and would wait for ever.
            UsageError: This process was forked from the one that created it.
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
        """Declare, without waiting, that no more frames follow; ``results`` then ends after the last one."""
        with self._lock:
            was_running, self._state = self._state == "running", "stopped"
        self._submissions.end()
        if not was_running and not self._thread.is_alive():
            self._results.end()

    def stop(self, *, drain: bool = True) -> None:
        """Stop and join every thread; idempotent. Finished results can still be taken.

        Args:
            drain: Finish the submitted frames first; otherwise drop them.

        Raises:
            PipelineError: A stage failed, and this was not raised yet.
            RuntimeError: Called by a function that runs in a stage; ``finish`` can be called there.
        """
        if self._pipeline.owns_current_thread() or self._work.host.owns_current_thread():
            raise RuntimeError("a pipeline cannot wait for its own stage to end; call finish() there")
        self.finish()
        # Nobody may be taking results while this waits for the last of them.
        self._results.relax(_ALL)
        if not drain:
            self._submissions.stop()
            self._pipeline.stop(drain=False)
        if self._thread.is_alive():
            self._thread.join()
        if not self._reported:
            self._raise_failure()

    def report(self) -> PipelineReport:
        """The pipeline report for ``BottleneckDetector.analyze``; from any thread, at any time."""
        return self._pipeline.snapshot()

    def get_stats(self) -> AsyncStats:
        """Statistics so far; from any thread, at any time."""
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
        """Start, unless that has happened."""
        return self.start() if self._state == "new" else self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Stop; after an error without finishing what waits, and without a second one."""
        if error is not None:
            self._reported = True
        self.stop(drain=error is None)

    def _stages(self, limits: QueueLimits, *, has_encode: bool) -> list[Any]:
        config, work, streams = self.config, self._work, self._streams
        gathering = Batched(work.gather, size=config.batch_size, timeout_seconds=config.timeout_ms / 1e3)
        on_host = self.device.kind == "cpu"
        # While one call is computed the next one waits here, and one more, launched, for its place: the GPU always has
        # work, and each more would only make results later.
        ahead = QueueLimits(items=1)
        behind = limits
        if not work.spreads:  # as many frames, a call in one piece
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
            del taken  # or the frame would live on while this waits for the next

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
            # On a CPU the network's own threads want the cores, and a call takes many turns.
            with quick_turns() if self.device.kind == "cuda" else nullcontext():
                self._pipeline.run()
            self._network.close()  # not after a failure: a thread may have been left behind with it
        except BaseException as error:  # raised by the next call
            self._failure = error
        finally:
            self._submissions.stop()
            self._results.end()

    def _release(self) -> None:
        """Wake all waiting threads: the run was given up."""
        self._submissions.stop()
        self._results.relax(_ALL)

    def _raise_failure(self) -> None:
        if self._failure is not None:
            self._reported = True
            raise self._failure


def _description(item: Any) -> str:
    """The frames of what goes from stage to stage, for messages."""
    jobs = getattr(item, "jobs", item)  # of a call
    return names_of([jobs] if isinstance(jobs, Job) else jobs)


def _arrays_of(frame: Any) -> Any:
    """The parts of a frame that may lie on a GPU."""
    if isinstance(frame, Frame):
        return frame.planes
    return tuple(frame) if isinstance(frame, list) else frame
