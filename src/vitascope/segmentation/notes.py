"""Notes for the user of a run: what was left out, and which settings had no effect."""

from __future__ import annotations

from collections.abc import Sequence

from vitascope.config import LoadedSettings, OutputKind, OutputSettings, Settings
from vitascope.device import Device
from vitascope.frames import DOLBY_VISION_5, VideoInfo
from vitascope.gpu.kernels.look_alike import HDR_TRANSFERS
from vitascope.media.planes import has_alpha
from vitascope.media.reading.reader import VideoReader
from vitascope.models.host_network import HostNetwork
from vitascope.models.network import MattingNetwork, side_multiple
from vitascope.segmentation.capacity import can_stay_on_gpu, notes_on_parallelism
from vitascope.segmentation.render.renderer import WITHOUT_FOREGROUND
from vitascope.vr.players import KNOWS_NO_PACKED_ALPHA, PLAYERS

_NEW_IN_A_PICTURE: dict[OutputKind, str] = {
    "key": "the key colour",
    "overlay": "the tint",
}

_OF_GPU_ENGINES = ("gpu.precision", "gpu.cudnn_benchmark", "gpu.cudnn_deterministic", "gpu.allow_tf32")
_OF_MEMORY = ("gpu.max_vram_usage", "gpu.memory_fraction", "dataloader.pin_memory")
_OF_TENSORRT = (
    "tensorrt.precision.fp16",
    "tensorrt.precision.int8",
    "tensorrt.workspace_gb",
    "tensorrt.cache_dir",
)
_OF_ANIMATE = ("animation.", "tracking.", "performance.frame_skip_")
_OF_LIVE_RUNS = ("performance.prefetch_frames", "performance.use_async_")
_OF_LIVEPORTRAIT = ("performance.gpu_memory_fraction", "performance.clear_cache_interval")
_OF_FILES = (
    "performance.auto_tune",
    "performance.mode",
    "processing.enable_caching",
    "processing.max_queue_",
    "output.speed",
    "output.bit_depth",
    "output.keep_partial",
    "model.num_workers",
    "model.prefetch_factor",
    "pipeline.stages.decode",
    "pipeline.stages.encode",
    "gpu.decoder_sessions",
    "gpu.encoder",
)
_OF_OTHERS = {
    _OF_ANIMATE: "read by vitascope animate",
    _OF_LIVE_RUNS: "read by live runs",
    _OF_LIVEPORTRAIT: "read by LivePortrait's networks",
    ("batching.",): "read by StillSegmenter",
}
"""Prefixes of setting keys that belong to another command, and that command."""
_NOT_LIVE = {
    **{keys: reader for keys, reader in _OF_OTHERS.items() if keys != _OF_LIVE_RUNS},
    _OF_FILES: "live runs show each frame at once",
}
_OF_TUNER = ("performance.target_fps", "performance.max_latency_ms")
_GPU_ONLY = ("gpu.device_id", "gpu.decoder_sessions", *_OF_MEMORY, *_OF_GPU_ENGINES)


def notes_on_people(settings: Settings, *, shows_people: bool) -> tuple[str, ...]:
    """Make a note on a video without people, whose outputs show only background.

    Args:
        settings: The run's settings; they tell whether all people are kept.
        shows_people: True if somebody was found.
    """
    if shows_people:
        return ()
    who, hint = "nobody", ""
    if settings.people.active:
        who, hint = "none of the people to keep", "; vitascope people lists who is visible when"
    return (f"{who} was found in any frame, so the output shows only background{hint}",)


def notes_on_player(output: OutputSettings) -> tuple[str, ...]:
    """Make a note on a kind that the VR player cannot show; called before the run.

    Args:
        output: Output settings: the kinds and the player.
    """
    player = None if output.player is None else PLAYERS[output.player]
    if player is None or "packed-alpha" in player.kinds or "packed-alpha" not in output.kinds:
        return ()
    return (f"{player.title} {KNOWS_NO_PACKED_ALPHA}",)


def notes_on_reading(reader: VideoReader) -> tuple[str, ...]:
    """Make notes on problems in reading a video, one line each.

    Args:
        reader: The reader, after the last frame.
    """
    info, notes = reader.info, []
    if info.container == "images" and reader.decoded_count > 1:
        notes.append(f"pictures have no times: they are read at {float(info.average_frame_rate):g} a second")
    if info.container != "images" and not info.path.exists():
        notes.append(
            f"{info.path.name} was removed while it was being read, so it is unknown whether it was complete"
        )
    if reader.hidden_count:
        notes.append(f"{reader.hidden_count} frames are left out by the video's edit list, as by a player")
    if reader.repeated_pts_count:
        notes.append(
            f"{reader.repeated_pts_count} frames had the same time as the previous one, or were out of order; "
            "their times were moved behind it"
        )
    if reader.clock_jump_count:
        notes.append(
            f"the video's clock was reset in the middle ({reader.clock_jump_count} times), as in joined recordings; "
            "the output's clock continues"
        )
    return tuple(notes)


def notes_on_dynamic_hdr(info: VideoInfo) -> tuple[str, ...]:
    """Make a note on HDR metadata that the output lacks, and on colours that depend on it.

    Args:
        info: The video.
    """
    if DOLBY_VISION_5 in info.dynamic_hdr:
        return (
            f"the video is {DOLBY_VISION_5}, whose colours will be wrong without Dolby's own decoder: "
            "convert it to HDR10 or SDR first",
        )
    if not info.dynamic_hdr:
        return ()
    kinds = " and ".join(info.dynamic_hdr)
    return (f"what {kinds} says about each frame is left out: the output is the HDR or SDR base layer",)


def notes_on(
    info: VideoInfo,
    kinds: Sequence[OutputKind],
    *,
    network: MattingNetwork,
    device: Device,
    loaded: LoadedSettings,
    is_shared: bool = False,
    is_live: bool = False,
) -> tuple[str, ...]:
    """Make the notes on one video, one line each.

    Args:
        info: The video.
        kinds: The output kinds.
        network: The network of the run.
        device: The run's device.
        loaded: Settings and their origins.
        is_shared: True if several processes shared the video.
        is_live: True for a camera, or a video played like one.
    """
    notes = []
    if info.color.transfer in HDR_TRANSFERS:
        notes += [
            f"the video is HDR; {new} is not converted to HDR, and looks brighter than in other videos"
            for kind, new in _NEW_IN_A_PICTURE.items()
            if kind in kinds
        ]
    if set(kinds) != {"mask"}:
        notes += notes_on_dynamic_hdr(info)
    if has_alpha(info.source_format) or info.has_alpha_beside:
        notes.append("the video has an alpha channel, which is ignored: transparent areas are matted too")
    if info.interlaced:
        notes.append("the video is interlaced; it was matted and written as whole frames, combing included")
    if device.kind == "cuda" and not can_stay_on_gpu(info.format):
        notes.append(
            f"{info.source_format} cannot stay on the GPU, whose kernels read 4:2:0 in 8 or 10 bits: the CPU "
            "prepared and drew the frames"
        )
    stays_on_gpu = device.kind == "cuda" and can_stay_on_gpu(info.format)
    notes += notes_on_parallelism(loaded, stays_on_gpu=stays_on_gpu, is_shared=is_shared)
    notes += _notes_on_levers(loaded, is_shared=is_shared)
    notes += _notes_on_others(loaded, is_live=is_live)
    frames_wait = network.recurrent and side_multiple(network) is not None and not is_live
    frames_wait &= loaded.settings.performance.mode != "latency"
    is_rvm = network.name.startswith("rvm")
    unused = {
        "model.input_size": not is_rvm,
        "model.downsample_ratio": not is_rvm,
        "model.warm_up_frames": not network.recurrent,
        "model.look_ahead_frames": not network.recurrent or is_live,
        "inference.bidirectional": loaded.settings.inference.bidirectional and not frames_wait,
        "inference.missed_people": loaded.settings.inference.missed_people and not frames_wait,
        "model.person_class": loaded.settings.model.kind is None,
        "edges.decontaminate": WITHOUT_FOREGROUND.issuperset(kinds),
        "output.background": "replace" not in kinds,
        "output.mask_max_width": "mask" not in kinds,
        "output.packed_fov_degrees": "packed-alpha" not in kinds,
        "output.packed_color": "packed-alpha" not in kinds,
    }
    idle: tuple[str, ...] = ()
    if device.kind == "cpu":
        acts = loaded.settings.gpu.precision == "int8"  # otherwise the video was refused
        idle = tuple(key for key in _GPU_ONLY if not (acts and key == "gpu.precision"))
        why = "this run used the CPU"
    elif isinstance(network, HostNetwork):
        idle, why = _OF_GPU_ENGINES, f"{network.name} computed on the CPU"
    for key in idle:
        if loaded.origin(key).explicit:
            notes.append(f"{key} has no effect here: {why}")
    if "tensorrt" not in network.engine_name.lower():
        notes += [
            f"{key} has no effect here: the network did not run on TensorRT"
            for key in _OF_TENSORRT
            if loaded.origin(key).explicit
        ]
    if is_live or loaded.settings.performance.mode == "latency":
        notes += [
            f"{key} has no effect {'live' if is_live else 'in latency mode'}, which takes one frame at a time"
            for key in ("model.batch_size", "pipeline.stages.inference.batch_size")
            if loaded.origin(key).explicit
        ]
    for key, has_no_effect in unused.items():
        if has_no_effect and loaded.origin(key).explicit:
            notes.append(f"{key} has no effect here ({network.name}, {', '.join(kinds)})")
    return tuple(notes)


def _notes_on_levers(loaded: LoadedSettings, *, is_shared: bool) -> list[str]:
    """Make notes on requested levers and caches that had no effect."""
    settings = loaded.settings
    inference, caches = settings.inference, settings.processing.enable_caching
    idle = {
        "inference.region_margin": ("inference.region is whole", inference.region == "whole"),
        "inference.recheck_frames": (
            "neither inference.region nor inference.early_exit looks again",
            inference.region == "whole" and inference.early_exit == "off",
        ),
        "inference.bidirectional": (
            "inference.region, scales and early_exit see a shot in one direction only",
            inference.bidirectional
            and (inference.region != "whole" or inference.scales != (1.0,) or inference.early_exit != "off"),
        ),
        "inference.missed_people": (
            "inference.region, scales and early_exit show the network other pictures",
            inference.missed_people and not inference.may_look_for_missed,
        ),
        "inference.early_exit_confidence": ("inference.early_exit is off", inference.early_exit == "off"),
        "processing.cache_size_gb": ("processing.enable_caching is off", not (caches or is_shared)),
    }
    return [
        f"{key} has no effect here: {why}"
        for key, (why, is_idle) in idle.items()
        if is_idle and loaded.origin(key).explicit
    ]


def _notes_on_others(loaded: LoadedSettings, *, is_live: bool) -> list[str]:
    """Notes on settings for other commands, one line each: a settings file may serve several."""
    explicit = [row.key for row in loaded.rows() if row.origin.explicit]
    notes = []
    for beginnings, readers in (_NOT_LIVE if is_live else _OF_OTHERS).items():
        keys = [key for key in explicit if key.startswith(beginnings)]
        if keys:
            them = keys[0] + (f" and {len(keys) - 1} more have" if len(keys) > 1 else " has")
            notes.append(f"{them} no effect here: {readers}")
    if not (is_live or loaded.settings.performance.auto_tune):
        why = "performance.auto_tune is off"
        notes += [f"{key} has no effect here: {why}" for key in _OF_TUNER if key in explicit]
    return notes
