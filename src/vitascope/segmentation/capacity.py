"""The devices and parallelism of a run: frames per call, sessions, threads, streams, processes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, prod
from pathlib import Path
from typing import TYPE_CHECKING

from vitascope.config import LoadedSettings, Settings
from vitascope.device import Device, available_cores, select_device
from vitascope.frames import VideoInfo, YuvFormat
from vitascope.gpu.pipeline.queues import QueueLimits
from vitascope.media.reading.reader import read_headers
from vitascope.media.reading.sessions import device_buffer_bytes

if TYPE_CHECKING:
    from vitascope.gpu.streams import JobStreams
    from vitascope.models.store.store import ModelStore

_LATENCY_QUEUE = 2
_FRAMES_PER_CALL, _LEAST_FOR_THROUGHPUT = 16, 8
_BATCH_KEYS = ("model.batch_size", "pipeline.stages.inference.batch_size")
_MEMORY_SHARE_OF_BATCH = 0.05
_DRAWN_BYTES_PER_SAMPLE, _MOST_DRAWN_BYTES = 100, 512 << 20
"""Memory for fitting a plain matte to its frame, in bytes per sample of the network's input (97 measured with
tracemalloc), and the maximum for all threads together."""
# From 4K on, one hardware decoder is slower than all later stages. Each session holds a group of pictures in memory.
# For frames with more samples than the first number: the sessions, and the GPU memory that must be available.
_SESSIONS = ((4096 * 2304, 4, 22 << 30), (2560 * 1600, 3, 8 << 30))
_MEMORY_OF_LOOKS_BACK = 2
"""Multiple of that memory if each shot is also looked at backwards. Its windows take up to 8 GB at 4096x2048, where 8
and 12 GB suffice beside one decoder, and 10 GB did not beside three; one decoder is as fast as the network then."""
_LEAST_BYTES, _LEAST_FRAMES, _FRAMES_OF_A_SESSION, _BATCHES_IN_FLIGHT = 1_200_000_000, 48, 52, 3
"""Minimum GPU memory of a run: bytes for CUDA, kernels and the network; frames in the decoder and the
pipeline; frames in each further decoder; and batches that wait or are being drawn. Lower than measured with a
limit (``benchmarks/results/vram_limit_cuda.json``), so that no GPU is refused on which a run would
succeed."""


def open_streams(device: Device, settings: Settings) -> JobStreams | None:
    """Create the streams of a run on a GPU; None on a CPU."""
    if device.kind == "cpu":
        return None
    from vitascope.gpu.streams import JobStreams  # imported here: needs a GPU

    return JobStreams(
        device,
        pin_memory=settings.dataloader.pin_memory,
        max_vram_usage=settings.gpu.max_vram_usage,
        memory_fraction=settings.gpu.memory_fraction,
        preparing_streams=settings.pipeline.stages.preprocess.cuda_streams,
    )


def can_stay_on_gpu(fmt: YuvFormat) -> bool:
    """True for formats that the GPU's kernels can read as NV12 or P010: 4:2:0 in 8 or 10 bits."""
    return fmt.chroma_shift_x == fmt.chroma_shift_y == 1 and fmt.bit_depth in (8, 10)


def queue_limits(settings: Settings) -> QueueLimits:
    """Return the limits of the queues between stages."""
    processing = settings.processing
    items = processing.max_queue_size
    if settings.performance.mode == "latency":
        items = min(items, _LATENCY_QUEUE)
    return QueueLimits(items=items, nbytes=int(processing.max_queue_mb * 1e6))


def frames_per_call(
    loaded: LoadedSettings, info: VideoInfo, *, streams: JobStreams | None, picture_bytes: int = 0
) -> int:
    """Consecutive frames per call: the requested number; else the profile's, or on a GPU enough to fill it.

    One in latency mode; at least 8 in throughput mode, unless a number was requested.

    Args:
        loaded: The run's settings.
        info: The video.
        streams: The GPU's streams; None on a CPU.
        picture_bytes: Bytes of the network's input per frame; 0 if not known yet.
    """
    settings = loaded.settings
    if settings.performance.mode == "latency":
        return 1
    if any(loaded.origin(key).explicit for key in _BATCH_KEYS):
        return settings.frames_per_call
    least = _LEAST_FOR_THROUGHPUT if settings.performance.mode == "throughput" else 1
    if streams is None:
        return max(settings.frames_per_call, least)
    frame_bytes = _frame_bytes((info.height, info.width), info.format.dtype.itemsize) + picture_bytes
    room = int(streams.allowed_bytes() * _MEMORY_SHARE_OF_BATCH)
    return max(min(_FRAMES_PER_CALL, room // frame_bytes), least)


def decoder_sessions(
    settings: Settings, video: Path, *, streams: JobStreams | None, gpu_processes: int = 1
) -> int:
    """Count the hardware decoders that share a video; 1 on a CPU.

    Args:
        settings: This process's settings.
        video: The video; its headers are read.
        streams: The GPU's streams; None on a CPU.
        gpu_processes: Number of processes that share the GPU, including this one. Each takes its share of the decoders
            and of memory.
    """
    wanted = settings.gpu.decoder_sessions
    if streams is None:
        return 1
    if wanted != "auto":
        return wanted
    size = read_headers(video).size
    if settings.performance.mode == "latency" or size is None:  # hardware decoders do not read images
        return 1
    for samples, count, memory in _SESSIONS:
        if prod(size) > samples:
            if settings.inference.may_look_back:
                memory *= _MEMORY_OF_LOOKS_BACK
            own_bytes = streams.allowed_bytes()
            if settings.gpu.memory_fraction is None:  # otherwise the GPU is this process's alone
                own_bytes //= gpu_processes
            own_count = ceil(count / gpu_processes)
            return own_count if own_bytes * count >= memory * own_count else 1
    return 1


def session_buffer_bytes(
    settings: Settings, *, streams: JobStreams | None, gpu_processes: int = 1
) -> int | None:
    """Memory for decoded frames that wait in several hardware decoders, within ``gpu.max_vram_usage``.

    Args:
        settings: This process's settings.
        streams: The GPU's streams; None on a CPU, where the reader has its own default.
        gpu_processes: As in ``decoder_sessions``.
    """
    if streams is None:
        return None
    total = streams.total_bytes()
    # This process's reserve counts as free: it shrinks when others, such as the decoders, need memory.
    free = total - streams.used_bytes() + streams.budget.reserved_bytes
    room = gpu_room_bytes(settings, total, free_bytes=free, processes=gpu_processes)
    return max(device_buffer_bytes(room), 1)


def gpu_bytes_needed(
    loaded: LoadedSettings, size: tuple[int, int] | None = None, *, sample_bytes: int = 1
) -> int:
    """Compute the minimum GPU memory for a run; batches and decoders are fitted to the rest.

    Args:
        loaded: Settings of the run; requested numbers of decoders and frames are respected.
        size: (height, width) of the video; None if not known yet.
        sample_bytes: Bytes per sample of the video.
    """
    if size is None:
        return _LEAST_BYTES
    settings, frames = loaded.settings, _LEAST_FRAMES
    if settings.gpu.decoder_sessions != "auto":
        frames += (settings.gpu.decoder_sessions - 1) * _FRAMES_OF_A_SESSION
    if any(loaded.origin(key).explicit for key in _BATCH_KEYS):
        frames += _BATCHES_IN_FLIGHT * settings.frames_per_call
    return _LEAST_BYTES + frames * _frame_bytes(size, sample_bytes)


def gpu_room_bytes(
    settings: Settings, total_bytes: int, *, free_bytes: int | None = None, processes: int = 1
) -> int:
    """Compute the GPU memory that a process may use.

    Args:
        settings: The process's settings.
        total_bytes: Memory of the GPU.
        free_bytes: Free memory, now or before the run; all by default.
        processes: Number of processes that share the GPU.
    """
    used = 0 if free_bytes is None else max(total_bytes - free_bytes, 0)
    room = max(int(settings.gpu.max_vram_usage * total_bytes) - used, 0) // processes
    if settings.gpu.memory_fraction is not None:
        room = min(room, int(settings.gpu.memory_fraction * total_bytes))
    return room


def _frame_bytes(size: tuple[int, int], sample_bytes: int) -> int:
    return prod(size) * 3 // 2 * sample_bytes


@dataclass(frozen=True, slots=True)
class Parallelism:
    """Numbers of threads within one process. They never change the order of frames."""

    prepare_threads: int = 1
    """Threads that prepare the network's input on the CPU."""
    prepare_streams: int = 1
    """CUDA streams that prepare the input on a GPU, used in turn, one batch each."""
    batches_ahead: int = 2
    """Maximum batches per thread or stream that wait for the network."""
    draw_threads: int = 1
    """Threads that refine and draw on the CPU; one if frames must stay in order."""

    def prepared_limits(self, limits: QueueLimits, *, frames: int) -> QueueLimits:
        """Return the limits of the queue in front of the network on the CPU, which holds frames.

        Args:
            limits: Limits of every queue.
            frames: Frames of one call.
        """
        items = min(limits.items, self.prepare_threads * self.batches_ahead * frames)
        return replace(limits, items=items)

    def prepared_batch_limits(self, limits: QueueLimits) -> QueueLimits:
        """Return the limits of the queue in front of the network on a GPU, which holds batches."""
        return replace(limits, items=min(limits.items, self.prepare_streams * self.batches_ahead))


def parallelism_of(settings: Settings, *, network_samples: int = 1) -> Parallelism:
    """Return the parallelism requested by the settings.

    Args:
        settings: The run's settings.
        network_samples: Samples of the network's input per frame, for all eyes. Unless a number of drawing threads
            was requested, memory for pictures of this size limits it.
    """
    stages = settings.pipeline.stages
    room = max(_MOST_DRAWN_BYTES // (_DRAWN_BYTES_PER_SAMPLE * network_samples), 1)
    return Parallelism(
        prepare_threads=max(settings.model.num_workers, 1),
        prepare_streams=stages.preprocess.cuda_streams,
        batches_ahead=settings.model.prefetch_factor,
        # Each thread holds a frame, so there are no more threads than frames that may wait in a queue.
        draw_threads=stages.postprocess.threads
        or min(available_cores(), settings.processing.max_queue_size, room),
    )


def notes_on_parallelism(loaded: LoadedSettings, *, stays_on_gpu: bool, is_shared: bool) -> list[str]:
    """Make notes on settings of threads, streams and processes that had no effect, one line each.

    Args:
        loaded: Settings and their origins.
        stays_on_gpu: Frames were prepared and drawn on a GPU.
        is_shared: Several processes shared the video.
    """
    settings = loaded.settings
    idle: dict[str, str] = {}
    if stays_on_gpu:
        idle["model.num_workers"] = "the GPU prepared the pictures"
        idle["pipeline.stages.postprocess.threads"] = "the GPU drew the pictures"
        if not is_shared:
            idle["processing.use_multiprocessing"] = "it is for processes on the CPU, and a GPU was used"
    else:
        idle["pipeline.stages.preprocess.cuda_streams"] = "the CPU prepared the pictures"
        if settings.edges.temporal_smoothing > 0 and settings.pipeline.stages.postprocess.threads > 1:
            idle["pipeline.stages.postprocess.threads"] = "temporal smoothing needs frames in order"
    if not is_shared:
        for key in ("processing.chunk_size", "processing.overlap_frames", "dataloader.persistent_workers"):
            idle[key] = "one process did all the work"
    return [f"{key} has no effect here: {why}" for key, why in idle.items() if loaded.origin(key).explicit]


def suited_to_device(loaded: LoadedSettings, store: ModelStore) -> LoadedSettings:
    """Switch the profile ``fast`` to rvm on a GPU, if rvm was fetched: the profile's own network runs on the CPU.

    Keeps a network or threshold that the user chose. A cluster counts as GPUs only if a GPU was requested:
    all its machines use the same network, and this machine's devices do not tell what theirs are.

    Args:
        loaded: Settings of a run; returned unchanged without a GPU, and for other profiles.
        store: The store of networks. Downloads nothing: ``fast`` works offline.

    Raises:
        DeviceError: A requested GPU is missing.
    """
    if loaded.profile != "fast" or loaded.origin("model.name").explicit or not store.is_cached("rvm"):
        return loaded
    if not _is_for_gpus(loaded.settings):
        return loaded
    edges = {} if loaded.origin("edges.threshold").explicit else {"edges.threshold": None}
    return loaded.with_values({"model.name": "rvm", **edges})


def _is_for_gpus(settings: Settings) -> bool:
    gpu = settings.gpu
    if settings.processing.cluster is not None:
        return gpu.device == "cuda" or gpu.device_ids is not None
    index = gpu.device_id if gpu.device_ids is None else gpu.device_ids[0]
    return select_device(gpu.device, index=index).kind == "cuda"


def works_in_processes(settings: Settings) -> bool:
    """True if several processes share each video: in a cluster, on several GPUs, or on the CPU."""
    gpu = settings.gpu
    if settings.processing.cluster is not None:
        return True
    if gpu.device_ids is not None:
        return len(gpu.device_ids) > 1
    if not settings.processing.use_multiprocessing:
        return False
    return select_device(gpu.device, index=gpu.device_id).kind == "cpu"
