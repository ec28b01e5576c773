"""Settings of what computes: the GPU, the network and how often it looks, threads, queues, and the speed to reach."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from annotated_types import Ge, Gt, Le
from pydantic import model_validator

from vitascope.config.values import (
    BatchRange,
    GpuNumbers,
    InputSize,
    Scales,
    Section,
    ThreadCount,
    conflict,
    setting,
)

__all__ = ["GpuSettings", "InferenceSettings", "ModelSettings", "PerformanceSettings", "ProcessingSettings"]


class GpuSettings(Section):
    """``gpu``: which device computes, how precisely, and how much of its memory may be used."""

    device: Literal["auto", "cuda", "cpu"] = setting(
        "auto",
        "Device that computes: auto takes the best that works; one that is asked for and missing is an error.",
    )
    device_id: int = setting(
        0,
        "Number of the GPU, counted from 0.",
        ge=0,
        le=255,
    )
    device_ids: GpuNumbers | None = setting(
        None,
        "GPUs that share each video, a process for each; named several times, a GPU gets several. null is one GPU, "
        "device_id.",
    )
    precision: Literal["fp32", "fp16", "int8", "mixed"] = setting(
        "fp16",
        "Arithmetic on a GPU; mixed keeps what is sensitive in fp32. int8 is for rvm on the CPU, calibrated on the "
        "video, and refused where its matte is off.",
    )
    decoder_sessions: Literal["auto"] | Annotated[int, Ge(1), Le(16)] = setting(
        "auto",
        "Hardware decoders that share one video; auto takes 3 at 4K and 4 above it where memory allows, else 1.",
    )
    encoder: Literal["cpu", "nvenc", "auto"] = setting(
        "auto",
        "What encodes H.264, H.265 and AV1: the CPU, the GPU's NVENC, or auto: NVENC where it takes the output and has "
        "passed a trial on this machine.",
    )

    @property
    def allowed_encoder(self) -> Literal["cpu", "nvenc", "auto"]:
        """``encoder``; but a run that leaves the GPU alone is not encoded there by itself."""
        return "cpu" if self.encoder == "auto" and self.device == "cpu" else self.encoder

    max_vram_usage: float = setting(
        0.9,
        "Most of the GPU's memory that may be in use, by all processes, as a share: the allocators of CuPy and "
        "PyTorch take no more.",
        gt=0,
        le=1,
    )
    memory_fraction: float | None = setting(
        None,
        "Exact share of the GPU's memory that is reserved at the start and not exceeded; null takes it as "
        "needed.",
        gt=0,
        le=1,
    )
    cudnn_benchmark: Literal["auto"] | bool = setting(
        "auto",
        "Time cuDNN's convolution algorithms at the start and keep the fastest; auto: in ONNX Runtime, not in PyTorch, "
        "where that takes 15 s.",
    )
    cudnn_deterministic: bool = setting(False, "Use only algorithms that repeat bit for bit; slower.")
    allow_tf32: bool = setting(
        True,
        "Let fp32 matrix products use TF32 (10-bit mantissa) on Ampere and newer.",
    )


class ModelSettings(Section):
    """``model``: the matting network and what it is fed."""

    name: str = setting(
        "auto",
        "Network: a name of `vitascope models list`, the path of an ONNX file, or auto (rvm, else selfie).",
        min_length=1,
    )
    kind: Literal["matte", "binary", "semantic", "yolo-seg"] | None = setting(
        None,
        "What the output of your own ONNX file is; null for networks of the catalogue, which say it themselves.",
    )
    person_class: int | None = setting(
        None,
        "Class index of people in your own semantic or yolo-seg network; null means 15 (Pascal VOC) or 0 (COCO).",
        ge=0,
        le=65535,
    )
    batch_size: BatchRange = setting(
        BatchRange(1, 1),
        "Consecutive frames for each call of the network; of a range the tuner picks, without it the lower end acts.",
    )
    input_size: InputSize | None = setting(
        None,
        "Bound on the longest side of the network's input, in pixels: one side or [width, height]; "
        "null suits whole bodies.",
    )
    downsample_ratio: Literal["auto"] | Annotated[float, Gt(0), Le(1)] = setting(
        "auto",
        "Scale of the network's input against the picture, for networks that take one; overrides input_size.",
    )
    warm_up_frames: int = setting(
        3,
        "How often a network with memory sees the first picture of a shot before its answer counts; "
        "without it the first frames of a shot have holes.",
        ge=0,
        le=100,
    )
    look_ahead_frames: int = setting(
        8,
        "First frames of a shot that a network with memory also sees backwards before the first is matted; 0: none, as "
        "live and in latency mode.",
        ge=0,
        le=32,
    )
    num_workers: int = setting(
        4,
        "Threads that prepare the network's pictures on the CPU; 0 is one.",
        ge=0,
        le=1024,
    )
    prefetch_factor: int = setting(
        2,
        "Batches that each of these threads (on a GPU, each stream) prepares ahead of the network.",
        ge=1,
        le=1024,
    )
    backend: Literal["auto", "triton", "torch", "onnxruntime", "inductor", "tensorrt"] = setting(
        "auto",
        "Engine that runs the network; auto takes the fastest that is installed and right on this machine; inductor "
        "compiles it first.",
    )

    @property
    def longest_side(self) -> int | None:
        """The bound that ``input_size`` sets on the longest side, in pixels; None without one."""
        return max(self.input_size) if isinstance(self.input_size, tuple) else self.input_size


class ProcessingSettings(Section):
    """``processing``: threads and queues on the CPU."""

    num_threads: ThreadCount = setting(
        0, "Threads of the network on the CPU; 0 or null uses all cores.", ge=0, le=4096
    )
    use_multiprocessing: bool = setting(
        False,
        "Share each video among processes on the CPU, each with its part of the cores.",
    )
    cluster: str | None = setting(
        None,
        "Address of a Ray cluster whose machines share each video: auto (the one that this machine belongs to), "
        "HOST:PORT or ray://HOST:PORT.",
    )
    max_queue_size: int = setting(
        32,
        "Most frames that wait between two stages; the smaller of this and max_queue_mb wins.",
        ge=1,
        le=100_000,
    )
    max_queue_mb: float = setting(
        256.0, "Most megabytes (10^6 bytes) of frames that wait between two stages.", gt=0, le=1_000_000
    )
    chunk_size: int | None = setting(
        None,
        "Most frames that a process makes at a time, where several share a video, but as many as its overlap; null "
        "weighs overlaps against idle ends.",
        ge=1,
        le=100_000,
    )
    overlap_frames: int | None = setting(
        None,
        "Frames that a process sees before those it answers for, where several share a video, so that no seam shows; "
        "null takes what the network's memory needs.",
        ge=0,
        le=100_000,
    )
    enable_caching: bool = setting(
        False,
        "Keep mattes on disk, so that another run over the same video with other outputs needs no network; several "
        "processes keep finished stretches.",
    )
    cache_size_gb: float = setting(
        4.0, "Most gigabytes (10^9 bytes) of kept mattes, and of kept stretches.", gt=0, le=100_000
    )


class PerformanceSettings(Section):
    """``performance``: the speed to reach, and what a live run may give up for it."""

    mode: Literal["auto", "throughput", "latency"] = setting(
        "auto",
        "What to optimise: throughput takes 8 to 16 frames at a time, and INT8 on the CPU where it is right; latency "
        "takes each at once; auto is neither.",
    )
    target_fps: float = setting(
        90.0,
        "Frames a second to reach: tuning stops once it has what you set; live, what a camera is asked for, and the "
        "most that are animated.",
        gt=0,
        le=1000,
    )
    max_latency_ms: float = setting(
        50.0,
        "Longest way of a frame from decoder to encoder, in milliseconds, that tuning accepts where you set it; live, "
        "from capture to the sinks.",
        gt=0,
        le=60_000,
    )
    auto_tune: bool = setting(
        False,
        "Let `vitascope segment` measure for some seconds before a job, and choose batch size, queues and threads.",
    )
    frame_skip_enabled: bool = setting(
        False, "Show the last frame again while a live driver barely moves, instead of animating anew."
    )
    frame_skip_threshold: float = setting(
        0.92,
        "Similarity of two of the driver's frames from which on the driver barely moved.",
        gt=0,
        le=1,
    )
    prefetch_frames: int = setting(
        3, "Frames of a driver's file that are decoded ahead of the tracker.", ge=0, le=1000
    )
    gpu_memory_fraction: float = setting(
        0.85,
        "Share of the GPU's memory that LivePortrait may use.",
        gt=0,
        le=1,
    )
    clear_cache_interval: int = setting(
        200,
        "Frames that LivePortrait draws between releases of unused GPU memory; 0 never releases.",
        ge=0,
        le=1_000_000_000,
    )
    use_async_capture: bool = setting(
        True, "Read the camera in a thread of its own, so that the newest picture is always there."
    )
    use_async_output: bool = setting(
        True, "Give each live output a thread of its own, so that none waits for another."
    )


class InferenceSettings(Section):
    """``inference``: how often, at what part of the picture and at which sizes the network looks."""

    skip_static: float = setting(
        0.0,
        "Change of the picture below which a frame takes over the last matte; 0 shows every frame to the "
        "network; 0.01 suits a camera that stands still.",
        ge=0,
        le=1,
    )
    region: Literal["whole", "crop", "zoom"] = setting(
        "whole",
        "What the network sees of a frame: all of it, people's surroundings alone (crop: less work), or these enlarged "
        "(zoom: more detail).",
    )
    region_margin: float = setting(
        0.25,
        "How much of people's surroundings goes with them on each side, as a share of their own size.",
        ge=0,
        le=2,
    )
    recheck_frames: int = setting(
        12,
        "Frames after which region looks at the whole frame again, and early_exit compares its two networks.",
        ge=1,
        le=10_000,
    )
    early_exit: Literal["off", "smaller", "selfie"] = setting(
        "off",
        "Which network looks first, so that the full one need not: none, the same on a picture of half the side, or "
        "selfie.",
    )
    early_exit_confidence: float = setting(
        0.8,
        "How sure the first network must be to be believed.",
        ge=0,
        le=1,
    )
    scales: Scales = setting(
        (1.0,),
        "Sizes of the network's picture, relative to the usual one, whose mattes are averaged: [1, 1.5] for quality.",
    )
    bidirectional: bool = setting(
        False,
        "Show each shot to a network with memory backwards, too, and weigh both answers by how sure they are: three "
        "times the work; not live.",
    )
    stereo_agreement: bool = setting(
        True,
        "Make the mattes of two eyes agree: each gets the mean of both where both see the same place. For region whole "
        "and scales [1].",
    )

    @model_validator(mode="after")
    def _check_region(self) -> Self:
        if self.region != "whole" and self.scales != (1.0,):
            raise conflict(
                f"inference.region={self.region} and inference.scales are two ways to choose the network's picture; "
                "set one",
                ("inference.region", "inference.scales"),
            )
        return self
