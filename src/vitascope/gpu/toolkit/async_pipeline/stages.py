"""The stages of an ``AsyncPipeline``, and the frames and calls of the network that pass through them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from queue import SimpleQueue
from threading import Lock
from time import perf_counter, thread_time
from typing import TYPE_CHECKING, Any, Literal

import cv2
import numpy as np

from vitascope.errors import DeviceError, EngineError, InputError
from vitascope.frames import Frame
from vitascope.gpu.engines.gpu_arrays import import_cupy
from vitascope.gpu.interchange import ArrayKind, kind_of, lies_on_gpu, to_cupy, to_kind, to_numpy
from vitascope.gpu.kernels.mask_postprocess import postprocess_mask
from vitascope.gpu.pipeline.queues import nbytes_of
from vitascope.gpu.toolkit.async_pipeline.model import BatchModel, BatchRow, RowsInTurn
from vitascope.gpu.toolkit.batching.batch_arrays import leaves, map_leaves, split
from vitascope.gpu.toolkit.pictures import Picture
from vitascope.gpu.toolkit.worker_streams import Origin, StreamPool, wait_for

if TYPE_CHECKING:
    from vitascope.gpu.memory.pinned_pool import PinnedMemoryPool

__all__ = [
    "Call",
    "HostCall",
    "HostStream",
    "Job",
    "StageWork",
    "decode_picture",
    "names_of",
    "settle_on_gpu",
    "settle_on_host",
]


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
        """Bytes that it keeps alive, for the bounds of queues."""
        return nbytes_of(self.frame) + nbytes_of(self.prepared) + nbytes_of(self.data)


@dataclass(slots=True, eq=False)
class Call:
    """One call of the network that was launched, and its frames."""

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
    """Held by whoever takes the answer apart, where several threads may want to."""

    @property
    def nbytes(self) -> int:
        """Bytes that it keeps alive."""
        return sum(job.nbytes for job in self.jobs)


def names_of(jobs: Sequence[Job]) -> str:
    """Frames, as messages call them."""
    names = ", ".join(str(job.frame_id) for job in jobs)
    return f"frame {names}" if len(jobs) == 1 else f"frames {names}"


class HostCall:
    """A call that was launched."""

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
        """Wait until it is over and take its result; once only, because nothing of it is kept.

        Raises:
            BaseException: What it raised, or an earlier call on the stream.
        """
        with self._going:
            output, error, self._output, self._error = self._output, self._error, None, None
        if error is not None:
            raise error
        return output

    def run(self) -> BaseException | None:
        """Compute it; what it raised."""
        assert self._work is not None  # it runs once
        begun = perf_counter()
        try:
            self._output = self._work()
        except BaseException as error:  # told to whoever waits
            self._error = error
        self._work = None  # and what it was computed from
        self.seconds = perf_counter() - begun
        failure = self._error
        self._going.release()
        return failure

    def fail(self, error: BaseException) -> None:
        """Let it end without being computed."""
        self._work, self._error = None, error
        self._going.release()


class HostStream:
    """Computes calls in the order in which they are launched, without a pause between them.

    The thread does nothing else: whatever is to be done with an answer, others do while the next call goes on. After a
    call that failed no other is computed.
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
        """Have something computed behind all that was launched before; from one thread."""
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
        """Compute nothing more, and wait for the call that goes on."""
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
    """Make frames' answers their results, without a GPU.

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
    """Make the answers of all frames of a call their results, whichever thread comes first; others wait for that.

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
    from vitascope.gpu.download import Download

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
        raise InputError(f"{name}: no picture that OpenCV can read") from error
    if bgr is None:
        raise InputError(f"{name}: no picture that OpenCV can read")
    return cv2.cvtColor(bgr, cv2.COLOR_BGR2RGB)


class StageWork:
    """The callbacks of the stages. Each stage's pool lends its threads CUDA streams.

    Args:
        model: The network.
        target_size: (height, width) of its input; a picture's own when None.
        mean: Subtracted from RGB in 0..1.
        std: Divides what is left.
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
        """True when the frames of a call part behind the network; else they stay together to the end."""
        return self._spreads

    def decode(self, job: Job) -> Job:
        """Bytes and paths become pictures; what is a picture stays."""
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
        """A picture becomes the network's input, on this thread's stream."""
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
        """Stack frames and launch the network for them, behind the call before; nothing is waited for."""
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
        """Wait for a call's answers; its frames are passed on together where that saves work."""
        if call.on_host is not None:
            call.output = call.on_host.wait()
            seconds = call.on_host.seconds
        else:
            try:
                call.ended.synchronize()
            except Exception as error:  # what a kernel did wrong is reported by whoever waits for it
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
        """The network's answers become results of their frames' kinds."""
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
        """Results become what the caller's function makes of them."""
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
