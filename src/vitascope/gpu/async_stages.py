"""What the stages of an ``AsyncPipeline`` do with a frame."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any, Literal

import cv2
import numpy as np

from vitascope.errors import DeviceError, EngineError, InputError
from vitascope.frames import Frame
from vitascope.gpu.async_batches import Call, Job
from vitascope.gpu.async_model import BatchModel
from vitascope.gpu.batching.batch_arrays import leaves
from vitascope.gpu.batching.lanes import wait_for
from vitascope.gpu.engines.gpu_arrays import import_cupy
from vitascope.gpu.interchange import kind_of, lies_on_gpu, to_cupy, to_kind, to_numpy
from vitascope.gpu.kernels.mask_postprocess import postprocess_mask
from vitascope.gpu.pictures import Picture
from vitascope.gpu.seats import Seats

__all__ = ["StageWork", "decode_picture"]

Triple = tuple[float, float, float]


def decode_picture(data: bytes | bytearray | memoryview | Path) -> Any:
    """A picture file (JPEG, PNG, WebP … as OpenCV reads them) as RGB uint8 [H, W, 3].

    Raises:
        InputError: It cannot be read, or is no picture.
    """
    if isinstance(data, Path):
        try:
            raw = data.read_bytes()
        except OSError as error:
            raise InputError(f"{data}: {error.strerror or error}") from error
    else:
        raw = bytes(data)
    name = str(data) if isinstance(data, Path) else f"{len(raw)} bytes"
    try:
        bgr = cv2.imdecode(np.frombuffer(raw, np.uint8), cv2.IMREAD_COLOR) if raw else None
    except cv2.error as error:
        raise InputError(f"{name}: no picture that OpenCV can read") from error
    if bgr is None:
        raise InputError(f"{name}: no picture that OpenCV can read")
    return cv2.cvtColor(bgr, cv2.COLOR_BGR2RGB)


class StageWork:
    """The callbacks of the stages. Each stage's seats say where its threads compute.

    Args:
        model: The network.
        target_size: (height, width) of its input; a picture's own when None.
        mean: Subtracted from RGB in 0..1.
        std: Divides what is left.
        decode: Takes the place of the built-in decoding of bytes and paths.
        preprocess: Takes the place of the fused preprocessing.
        postprocess: ``mask``, a function of the answer and the frame, or None.
        encode: A function of the result and the frame's name, or None.
        seats: Of the stages ``preprocess``, ``infer`` and ``postprocess``.
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
        postprocess: Callable[[Any, Any], Any] | Literal["mask"] | None,
        encode: Callable[[Any, Any], Any] | None,
        seats: dict[str, Seats],
    ) -> None:
        self._model = model
        self._on_gpu = model.device.kind == "cuda"
        self._size = target_size
        self._mean, self._std = mean, std
        self._decode, self._preprocess = decode, preprocess
        self._postprocess, self._encode = postprocess, encode
        self._seats = seats
        self.gpu_seconds = 0.0
        """Time that the network's stream worked; 0 on a CPU."""
        self.calls = 0
        """Calls of the network."""

    def decode(self, job: Job) -> Job:
        """Bytes and paths become pictures; what is a picture stays."""
        begun = perf_counter()
        if self._decode is not None:
            job.frame = self._decode(job.frame)
        elif isinstance(job.frame, bytes | bytearray | memoryview | Path):
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
        wait_for([job.origin])
        if self._preprocess is not None:
            job.prepared = self._placed(self._preprocess(job.frame))
        else:
            picture = Picture(job.frame)
            if picture.count != 1:
                raise ValueError(f"a batch of {picture.count} was submitted as one frame")
            job.prepared = picture.prepare(
                self._placed, on_gpu=self._on_gpu, size=self._size or picture.size, mean=self._mean, std=self._std,
                layout="NCHW", reverse_channels=False, dtype=self._model.dtype, out=None,
            )[0]  # fmt: skip
        if self._on_gpu:
            job.ready = self._event()
        job.seconds["preprocess"] = perf_counter() - begun
        return job

    def infer(self, jobs: Sequence[Job]) -> Call:
        """Begin a call of the network on this thread's stream."""
        begun = perf_counter()
        names = ", ".join(str(job.frame_id) for job in jobs)
        label = f"frame {names}" if len(jobs) == 1 else f"frames {names}"
        self.calls += 1
        if not self._on_gpu:
            self._answer(jobs, label)
            return Call(jobs, lambda: None, begun)
        for job in jobs:
            import_cupy().cuda.get_current_stream().wait_event(job.ready)
        started = self._event(timed=True)
        self._answer(jobs, label)
        ended = self._event(timed=True)

        def wait() -> None:
            try:
                ended.synchronize()
            except Exception as error:  # what a kernel did wrong is reported by whoever waits for it
                raise EngineError(f"{label}: the GPU failed: {error}") from error
            self.gpu_seconds += import_cupy().cuda.get_elapsed_time(started, ended) / 1e3

        return Call(jobs, wait, begun)

    def postprocess(self, job: Job) -> Job:
        """The network's answer becomes a result of the frame's kind."""
        begun = perf_counter()
        answer = job.data
        if self._postprocess == "mask":
            answer = _mask(answer)
        job.data = self._in_kind(answer, job)
        if callable(self._postprocess):
            job.data = self._postprocess(job.data, job.frame)
        job.seconds["postprocess"] = perf_counter() - begun
        return job

    def encode(self, job: Job) -> Job:
        """The result becomes what the caller's function makes of it."""
        begun = perf_counter()
        if self._encode is not None:
            job.data = self._encode(job.data, job.frame_id)
        job.seconds["encode"] = perf_counter() - begun
        return job

    def _answer(self, jobs: Sequence[Job], label: str) -> None:
        answers = self._model([job.prepared for job in jobs], label=label)
        for job, answer in zip(jobs, answers, strict=True):
            job.data = answer

    def _placed(self, array: Any) -> Any:
        return to_cupy(array) if self._on_gpu else to_numpy(array)

    def _in_kind(self, answer: Any, job: Job) -> Any:
        """Every array of an answer in the frame's kind, where the frame was; the host waits for the GPU."""
        if isinstance(answer, dict):
            return {name: self._in_kind(value, job) for name, value in answer.items()}
        if isinstance(answer, tuple | list):
            return type(answer)(self._in_kind(value, job) for value in answer)
        try:
            is_on_gpu = lies_on_gpu(answer)
        except TypeError:  # a number, or something of the user's own
            return answer
        if not job.wants_gpu and not is_on_gpu:
            return to_kind(to_numpy(answer), job.kind, on_gpu=False)
        if not job.wants_gpu:
            # Imported here: page-locked memory is of no use without a GPU.
            from vitascope.gpu.download import Download
            from vitascope.gpu.memory.pinned_pool import shared_pool

            array = import_cupy().ascontiguousarray(to_cupy(answer))
            stream = self._seats["postprocess"].lane.stream
            (landed,) = Download([array], stream=stream, pool=shared_pool(self._model.device.index)).wait()
            return to_kind(landed, job.kind, on_gpu=False)
        result = to_kind(answer, job.kind, on_gpu=True)
        import_cupy().cuda.get_current_stream().synchronize()
        return result

    def _event(self, *, timed: bool = False) -> Any:
        event = import_cupy().cuda.Event(block=True, disable_timing=not timed)
        event.record()
        return event


def _first_array(frame: Any) -> Any:
    """What says of which kind a frame is; None for what is no picture of ours."""
    array = frame.planes[0] if isinstance(frame, Frame) else frame
    first = next(iter(leaves(array)), None)
    try:
        kind_of(first)
    except TypeError:
        return None
    return first


def _mask(answer: Any) -> Any:
    """Class map of several classes, mask of one, from float scores [C, h, w]."""
    scores = next(leaves(answer))
    if len(scores.shape) != 3:
        raise EngineError(f"a mask is made of scores [C, h, w], and the network gave {list(scores.shape)}")
    own = to_cupy(scores) if lies_on_gpu(scores) else to_numpy(scores)
    kind: Literal["argmax", "threshold"] = "argmax" if own.shape[0] > 1 else "threshold"
    return postprocess_mask(own[None], kind=kind)[0]
