"""The settings that a tuner may change on this machine, their values, and presets to start from."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any, get_args

import yaml

from vitascope.config import BatchRange, LoadedSettings
from vitascope.config.home import engine_cache
from vitascope.config.settings import value_of
from vitascope.device import Device, available_cores
from vitascope.errors import UsageError
from vitascope.gpu.engines.onnx_runtime import Provider, missing_provider
from vitascope.media.writing.nvenc import why_nvenc_fails
from vitascope.tune.search import Cell, Knob

QUALITY_KEYS = ("gpu.precision", "performance.mode", "model.backend", "model.input_size")
"""Settings that change the matte; all others only change the speed."""

_CPU_BATCHES, _GPU_BATCHES = (1, 2, 4, 8), (1, 2, 4, 8, 16)
_SIDES = (0.75, 0.5)
"""Sizes to try, as shares of the side that the network uses by default."""
_LEAST_SIDE, _SIDE_STEP = 64, 32
_QUEUES = (8, 32, 128)
_ENGINES = {"torch": "torch", "tensorrt": "tensorrt"}
"""Keyed by the module that they need; ONNX Runtime needs a provider."""


def batch_key(loaded: LoadedSettings) -> str:
    """The setting for the number of frames given to the network at a time."""
    stage = "pipeline.stages.inference.batch_size"
    return "model.batch_size" if value_of(loaded.settings, stage) is None else stage


def knobs_for(
    loaded: LoadedSettings,
    *,
    device: Device,
    network: str,
    network_size: tuple[int, int],
    keep_quality: bool,
    bounds_latency: bool = False,
) -> list[Knob]:
    """Make the grid for a run.

    What the user set stays fixed; if that is a range of batch sizes, the tuner chooses within it.

    Args:
        loaded: Settings of the run, with their sources.
        device: The device that computes.
        network: Name of the network.
        network_size: (height, width) of its picture without a limit.
        keep_quality: Leave out settings that change the matte.
        bounds_latency: Also try latency mode, which is slower.
    """
    on_gpu = device.kind == "cuda"
    knobs = [_batch(loaded, on_gpu=on_gpu)]
    modes = ["auto"]
    if not keep_quality:
        knobs.append(_side(loaded, network, network_size))
        if not on_gpu and network.startswith("rvm") and not loaded.origin("gpu.precision").explicit:
            modes.append("throughput")  # for INT8, where it is accurate; the batch is tried separately
    if bounds_latency:
        modes.append("latency")
    knobs.append(Knob("performance.mode", tuple(modes), ordered=False))
    knobs += _gpu_knobs(network, keep_quality=keep_quality) if on_gpu else _cpu_knobs()
    knobs.append(Knob("processing.max_queue_size", _QUEUES))
    free = [
        knob
        for knob in knobs
        if knob is not None and (knob.key == batch_key(loaded) or not loaded.origin(knob.key).explicit)
    ]
    return [knob for knob in free if len(knob.values) > 1]


def cell_of(knobs: Sequence[Knob], values: Mapping[str, Any]) -> Cell:
    """The cell nearest to some values; an unknown value becomes the first one of its knob."""
    return tuple(_nearest(knob, values.get(knob.key)) for knob in knobs)


def _nearest(knob: Knob, value: Any) -> int:
    if value in knob.values:
        return knob.values.index(value)
    numbers = [one for one in knob.values if isinstance(one, int | float) and not isinstance(one, bool)]
    if isinstance(value, int | float) and numbers:
        return knob.values.index(min(numbers, key=lambda one: abs(one - value)))
    return 0


def _batch(loaded: LoadedSettings, *, on_gpu: bool) -> Knob | None:
    key = batch_key(loaded)
    if loaded.settings.performance.mode == "latency":
        return None  # it processes one frame at a time
    sizes: tuple[int, ...] = _GPU_BATCHES if on_gpu else _CPU_BATCHES
    if loaded.origin(key).explicit:
        wanted: BatchRange = value_of(loaded.settings, key)
        inside = [1 << power for power in range(11) if wanted.low <= 1 << power <= wanted.high]
        sizes = tuple(sorted({wanted.low, *inside, wanted.high}))
    return Knob(key, sizes)


def _side(loaded: LoadedSettings, network: str, size: tuple[int, int]) -> Knob | None:
    if not network.startswith("rvm") or loaded.origin("model.downsample_ratio").explicit:
        return None  # other networks have only one size
    if loaded.settings.model.downsample_ratio != "auto" or loaded.settings.model.longest_side is not None:
        return None
    longest = max(size)
    sides = [round(longest * share / _SIDE_STEP) * _SIDE_STEP for share in _SIDES]
    return Knob("model.input_size", (None, *(side for side in sides if _LEAST_SIDE <= side < longest)))


def _cpu_knobs() -> list[Knob]:
    cores = available_cores()
    threads = sorted({max(cores // 4, 1), max(cores // 2, 1)} - {cores}, reverse=True)
    workers = sorted({1, 2, 4, max(cores // 2, 1)})
    drawing = (0, 1) if cores > 1 else (0,)
    return [
        Knob("processing.num_threads", (0, *threads)),
        Knob("model.num_workers", tuple(workers)),
        Knob("pipeline.stages.decode.threads", (0, 1)),
        Knob("pipeline.stages.postprocess.threads", drawing),
    ]


def _gpu_knobs(network: str, *, keep_quality: bool) -> list[Knob]:
    knobs = [
        Knob("gpu.decoder_sessions", (1, 2, 4, 8)),
        Knob("pipeline.stages.preprocess.cuda_streams", (1, 2, 4)),
    ]
    if why_nvenc_fails("h264_nvenc", cache_dir=engine_cache()) is None:
        knobs.append(Knob("gpu.encoder", ("auto", "cpu"), ordered=False))
    if network.startswith("rvm") and not keep_quality:
        installed = [name for name, module in _ENGINES.items() if find_spec(module) is not None]
        if any(missing_provider(provider) is None for provider in get_args(Provider) if provider != "cpu"):
            installed.append("onnxruntime")
        knobs.append(Knob("gpu.precision", ("fp16", "mixed", "fp32"), ordered=False))
        knobs.append(Knob("model.backend", ("auto", *installed), ordered=False))
    return knobs


SIZES = {"1080p": 1920 * 1080, "4k": 3840 * 2160, "6k": 5760 * 3240, "8k": 7680 * 4320}
"""Number of pixels in a picture."""


@cache
def preset_names() -> tuple[str, ...]:
    """Names of all presets: a GPU and a size, such as ``rtx3090-4k``."""
    return tuple(f"{path.stem}-{size}" for path in sorted(_folder().glob("*.yaml")) for size in SIZES)


def preset_values(name: str) -> dict[str, Any]:
    """The settings of a preset as plain values, by dotted key.

    Raises:
        UsageError: No preset has this name.
    """
    gpu, _, size = name.lower().rpartition("-")
    if f"{gpu}-{size}" not in preset_names():
        gpus = ", ".join(sorted({one.rpartition("-")[0] for one in preset_names()}))
        raise UsageError(
            f"--preset: there is no preset {name!r}; use auto, or a GPU ({gpus}) and a size "
            f"({', '.join(SIZES)}), such as rtx3090-4k"
        )
    values: dict[str, Any] = yaml.safe_load((_folder() / f"{gpu}.yaml").read_text(encoding="utf-8"))[size]
    return values


def preset_for(device: Device, *, width: int, height: int) -> str | None:
    """The preset for this GPU and the nearest size; None on a CPU, or if no preset fits the GPU.

    Args:
        device: The device that computes.
        width: Width of the video, in pixels.
        height: Height of the video.
    """
    if device.kind != "cuda":
        return None
    # In "NVIDIA GeForce RTX 3080 Ti (GPU 0, …)" the longest fitting name counts, so that a 2080 Ti is not taken for a
    # 2080.
    label = re.sub(r"[^a-z0-9]", "", device.label.partition("(")[0].lower())
    fitting = [path.stem for path in _folder().glob("*.yaml") if path.stem in label]
    if not fitting:
        return None
    size = min(SIZES, key=lambda one: abs(SIZES[one] - width * height))
    return f"{max(fitting, key=len)}-{size}"


def _folder() -> Path:
    return Path(str(files("vitascope") / "profiles" / "presets"))
