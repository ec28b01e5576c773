"""How much a run gives a GPU to do at a time: frames for each call, decoders for each video, streams."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from vitascope.config import LoadedSettings, Settings
from vitascope.device import Device
from vitascope.frames import VideoInfo
from vitascope.media.probe import probe

if TYPE_CHECKING:
    from vitascope.gpu.streams import JobStreams

__all__ = ["decoder_sessions", "frames_per_call", "open_streams"]

_FRAMES_PER_CALL = 16
_MEMORY_SHARE_OF_BATCH = 0.05
# One hardware decoder is slower than everything behind it above 4K. Each session keeps a group of pictures waiting.
_SESSIONS_ABOVE_4K = 4
_SAMPLES_OF_4K = 4096 * 2304
_MEMORY_FOR_SESSIONS = 22 << 30


def open_streams(device: Device, settings: Settings) -> JobStreams | None:
    """The streams of a run on a GPU; None on a CPU."""
    if device.kind == "cpu":
        return None
    from vitascope.gpu.streams import JobStreams  # of no use without a GPU

    return JobStreams(
        device,
        pin_memory=settings.dataloader.pin_memory,
        max_vram_usage=settings.gpu.max_vram_usage,
        memory_fraction=settings.gpu.memory_fraction,
        preparing_streams=settings.pipeline.stages.preprocess.cuda_streams,
    )


def frames_per_call(loaded: LoadedSettings, info: VideoInfo, *, streams: JobStreams | None) -> int:
    """Consecutive frames for each call: what was asked for; else one, and on a GPU as many as it takes to fill it."""
    settings = loaded.settings
    if settings.performance.mode == "latency":
        return 1
    keys = ("model.batch_size", "pipeline.stages.inference.batch_size")
    if streams is None or any(loaded.origin(key).explicit for key in keys):
        return settings.frames_per_call
    frame_bytes = info.width * info.height * 3 // 2 * info.format.dtype.itemsize
    room = int(streams.allowed_bytes() * _MEMORY_SHARE_OF_BATCH)
    return max(min(_FRAMES_PER_CALL, room // frame_bytes), 1)


def decoder_sessions(settings: Settings, video: Path, *, streams: JobStreams | None) -> int:
    """Hardware decoders that share a video; 1 on a CPU."""
    wanted = settings.gpu.decoder_sessions
    if streams is None:
        return 1
    if wanted != "auto":
        return wanted
    if settings.performance.mode == "latency" or streams.allowed_bytes() < _MEMORY_FOR_SESSIONS:
        return 1
    info = probe(video)
    return _SESSIONS_ABOVE_4K if info.width * info.height > _SAMPLES_OF_4K else 1
