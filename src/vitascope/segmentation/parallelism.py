"""How many threads and streams work on the frames of one job at a time, and how far they run ahead."""

from __future__ import annotations

from dataclasses import dataclass, replace

from vitascope.config import LoadedSettings, Settings
from vitascope.device import available_cores
from vitascope.gpu.pipeline.queues import QueueLimits

__all__ = ["Parallelism", "notes_on_parallelism", "parallelism_of"]


@dataclass(frozen=True, slots=True)
class Parallelism:
    """Within one process. The order of frames is kept whatever the numbers are."""

    prepare_threads: int = 1
    """Threads that make the network's pictures on the processor."""
    prepare_streams: int = 1
    """CUDA streams that make them on a GPU, a batch each in turn."""
    batches_ahead: int = 2
    """Batches that each of them may have waiting for the network."""
    draw_threads: int = 1
    """Threads that refine and draw on the processor; those that need frames in order do it on one."""

    def prepared_limits(self, limits: QueueLimits, *, frames: int) -> QueueLimits:
        """Of the queue before the network on the processor, which holds frames.

        Args:
            limits: Of every queue.
            frames: Of one call.
        """
        items = min(limits.items, self.prepare_threads * self.batches_ahead * frames)
        return replace(limits, items=items)

    def prepared_batch_limits(self, limits: QueueLimits) -> QueueLimits:
        """Of the queue before the network on a GPU, which holds batches."""
        return replace(limits, items=min(limits.items, self.prepare_streams * self.batches_ahead))


def parallelism_of(settings: Settings) -> Parallelism:
    """What the settings ask for."""
    stages = settings.pipeline.stages
    return Parallelism(
        prepare_threads=max(settings.model.num_workers, 1),
        prepare_streams=stages.preprocess.cuda_streams,
        batches_ahead=settings.model.prefetch_factor,
        # Each holds a frame, so no more of them than may wait in a queue.
        draw_threads=stages.postprocess.threads or min(available_cores(), settings.processing.max_queue_size),
    )


def notes_on_parallelism(loaded: LoadedSettings, *, stays_on_gpu: bool, is_shared: bool) -> list[str]:
    """Wishes about threads, streams and processes that had no effect, a line each.

    Args:
        loaded: Settings, and where they came from.
        stays_on_gpu: Frames were prepared and drawn on a GPU.
        is_shared: Several processes shared the video.
    """
    settings = loaded.settings
    idle: dict[str, str] = {}
    if stays_on_gpu:
        idle["model.num_workers"] = "the GPU prepared the pictures"
        idle["pipeline.stages.postprocess.threads"] = "the GPU drew the pictures"
        if not is_shared:
            idle["processing.use_multiprocessing"] = "processes share the processor, and a GPU computed"
    else:
        idle["pipeline.stages.preprocess.cuda_streams"] = "the processor prepared the pictures"
        if settings.edges.temporal_smoothing > 0 and settings.pipeline.stages.postprocess.threads > 1:
            idle["pipeline.stages.postprocess.threads"] = "temporal smoothing takes frames in order"
    if not is_shared:
        for key in ("processing.chunk_size", "processing.overlap_frames", "dataloader.persistent_workers"):
            idle[key] = "one process did all of it"
    return [f"{key} has no effect here: {why}" for key, why in idle.items() if loaded.origin(key).explicit]
