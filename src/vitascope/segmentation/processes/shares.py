"""Plans how many processes share a video, and each one's share of the machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, inf, log
from typing import Any

from vitascope.config import LoadedSettings, Settings
from vitascope.device import available_cores
from vitascope.segmentation.capacity import gpu_bytes_needed
from vitascope.segmentation.matting.scene_cuts import LOOK_AHEAD_FRAMES
from vitascope.segmentation.matting.shot_windows import FOLLOWING_FRAMES, WINDOW_FRAMES

_CORES_OF_A_WORKER = 4
"""Number of cores that a network uses well; see ``benchmarks/results/processes.json``."""
_MEMORY_OF_RECURRENT_FRAMES = 192
"""Frames until RVM, started in the middle of a video, agrees with RVM started at its beginning:
``benchmarks/results/seams.json``. Clear frames settle within 16 frames (difference 0.1 of 255). People half
hidden and out of focus stay undecided for seconds (18.9 after 16 frames, 2.5 after 128, 1.4 after 192)."""
_MEMORY_OF_OTHERS_FRAMES = 16
"""The selfie networks' gate fades over 4 frames, and checks again after 3 or more."""
_SMOOTHING_REST = 0.02
_MOST_SMOOTHING_FRAMES = 240


@dataclass(frozen=True, slots=True)
class WorkerPlan:
    """The plan for one process."""

    label: str
    """Its name in messages, for example ``the process of GPU 1``."""
    loaded: LoadedSettings
    gpu_processes: int = 0
    """Number of processes that share its GPU, including itself; 0 works on the CPU."""


def plan_crew(loaded: LoadedSettings) -> list[WorkerPlan]:
    """The worker processes of a run: one for each entry of the list of GPUs, or as many as suit the CPU's cores.

    Cores, memory for queues, and reserved GPU memory are divided among them, unless a setting gives the amount for
    each.
    """
    settings, cores = loaded.settings, available_cores()
    ids = settings.gpu.device_ids
    if ids is None:
        count = max(cores // (settings.processing.num_threads or _CORES_OF_A_WORKER), 2)
        own = _shared_out(settings, cores=cores, count=count)
        on_processor = loaded.with_values(own | {"gpu.device": "cpu"})
        return [WorkerPlan(f"worker process {n} of {count}", on_processor) for n in range(1, count + 1)]
    plans = []
    values = _shared_out(settings, cores=cores, count=len(ids), on_gpus=True)
    for place, number in enumerate(ids):
        processes = ids.count(number)
        own = _of_gpu(settings, number, processes)
        label = (
            f"the process of GPU {number}"
            if processes == 1
            else f"process {ids[: place + 1].count(number)} of GPU {number}"
        )
        plans.append(WorkerPlan(label, loaded.with_values(values | own), processes))
    return plans


def _of_gpu(settings: Settings, number: int, processes: int) -> dict[str, Any]:
    """Settings of one of several processes that share a GPU."""
    own: dict[str, Any] = {"gpu.device": "cuda", "gpu.device_id": number}
    if settings.gpu.memory_fraction is not None:
        own["gpu.memory_fraction"] = settings.gpu.memory_fraction / processes
    return own


@dataclass(frozen=True, slots=True)
class NodeShare:
    """A worker on a machine of a cluster, and its share of the machine."""

    loaded: LoadedSettings
    cores: float
    gpu_processes: int = 0
    """Number of processes that share its GPU, including itself; 0 works on the CPU."""


def plan_node(
    loaded: LoadedSettings, *, cores: int, gpus: int, gpu_bytes: Sequence[int | None] | None = None
) -> list[NodeShare]:
    """The workers on one machine of a cluster: one for each GPU, or for every few cores without GPUs.

    ``gpu.device_ids`` gives the number of processes for the first, second ... of its GPUs, as far as it has them.

    Args:
        loaded: The run's settings.
        cores: Cores of the machine.
        gpus: Number of GPUs of the machine; each worker sees only its own.
        gpu_bytes: Memory of each GPU that a single process could use; None if unknown.
    """
    settings = loaded.settings
    ids = settings.gpu.device_ids
    if gpus and settings.gpu.device != "cpu":
        sharing = [ids.count(number) for number in sorted(set(ids)) if number < gpus] if ids else [1] * gpus
        if gpu_bytes is not None:  # the most shared GPUs must be the largest
            sizes = sorted((inf if size is None else size for size in gpu_bytes), reverse=True)
            needed = gpu_bytes_needed(loaded)
            pairs = zip(sorted(sharing, reverse=True), sizes, strict=False)
            sharing = [count for count, size in pairs if size / count >= needed]
        if not sharing:
            return []
        values = _shared_out(settings, cores=cores, count=sum(sharing), on_gpus=True)
        own_cores = cores / (gpus * max(sharing))
        return [
            NodeShare(loaded.with_values(values | _of_gpu(settings, 0, count)), own_cores, count)
            for count in sharing
            for _ in range(count)
        ]
    if settings.gpu.device == "cuda" or ids:
        return []
    count = max(cores // (settings.processing.num_threads or _CORES_OF_A_WORKER), 1)
    values = _shared_out(settings, cores=cores, count=count)
    return [NodeShare(loaded.with_values(values | {"gpu.device": "cpu"}), cores / count)] * count


def _shared_out(settings: Settings, *, cores: int, count: int, on_gpus: bool = False) -> dict[str, Any]:
    """Settings with each process's share of a machine."""
    share = max(cores // count, 1)
    stages = settings.pipeline.stages
    return {
        "processing.use_multiprocessing": False,
        "processing.cluster": None,
        "processing.num_threads": settings.processing.num_threads or share,
        "processing.max_queue_mb": settings.processing.max_queue_mb / (1 if on_gpus else count),
        "pipeline.stages.decode.threads": stages.decode.threads or share,
        "pipeline.stages.postprocess.threads": stages.postprocess.threads or share,
        "gpu.device_ids": None,
        # The cache is keyed by frame number, which a process in the middle of a video only estimates.
        "processing.enable_caching": False,
    }


def settings_for_one(loaded: LoadedSettings) -> LoadedSettings:
    """Settings for a run in this process alone."""
    values: dict[str, Any] = {
        "processing.use_multiprocessing": False,
        "processing.cluster": None,
        "gpu.device_ids": None,
    }
    if (ids := loaded.settings.gpu.device_ids) is not None and loaded.settings.processing.cluster is None:
        values |= {"gpu.device": "cuda", "gpu.device_id": ids[0]}
    return loaded.with_values(values)


def warm_up_frames(settings: Settings, *, recurrent: bool) -> int:
    """Frames that network and smoother must see before a stretch, so that it begins as it would in the whole video.

    Args:
        settings: The run's settings.
        recurrent: True if the network has a state.
    """
    if settings.processing.overlap_frames is not None:
        return settings.processing.overlap_frames
    frames = _MEMORY_OF_RECURRENT_FRAMES if recurrent else _MEMORY_OF_OTHERS_FRAMES
    strength = settings.edges.temporal_smoothing
    if strength > 0:
        frames += min(ceil(log(_SMOOTHING_REST) / log(strength)), _MOST_SMOOTHING_FRAMES)
    return frames


def frames_after(settings: Settings) -> int:
    """Frames that a stretch must see after its last one, so that it ends as it would in the whole video.

    Scene cuts are confirmed a few frames later, and the first frames of a shot are matted together; with
    ``inference.bidirectional`` all frames are, about a second at a time.
    """
    cuts = LOOK_AHEAD_FRAMES if settings.video.scene_cut_threshold > 0 else 0
    together = settings.model.look_ahead_frames
    if settings.inference.bidirectional:
        together = max(together, WINDOW_FRAMES + FOLLOWING_FRAMES)
    return cuts + max(together - 1, 0)


_NOT_OF_PICTURES: dict[str, Any] = {
    **dict.fromkeys(
        ("animation", "tracking", "voice", "debug", "batching", "dataloader", "processing", "people"), True
    ),
    "model": {"num_workers", "prefetch_factor"},
    "output": {"kinds", "keep_partial"},
    "gpu": {"device", "device_id", "device_ids", "decoder_sessions", "max_vram_usage", "memory_fraction"},
    "pipeline": {"stages": {"decode", "preprocess", "postprocess", "encode"}},
    "tensorrt": {"workspace_gb", "cache_dir"},
}
"""Settings that do not affect frames: those of other commands, those that divide a machine, and the choice of people,
which is recorded for each stretch."""


def settings_of_pictures(settings: Settings) -> dict[str, Any]:
    """All settings that can affect the output, as JSON."""
    return settings.model_dump(mode="json", exclude=_NOT_OF_PICTURES)
