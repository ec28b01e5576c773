"""Settings for computing: GPU, network, threads, queues, and the parts of the runtime."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from annotated_types import Ge, Gt, Le
from pydantic import Field, model_validator

from vitascope.config.values import (
    MAX_BATCH_SIZE,
    BatchRange,
    FilePath,
    GpuNumbers,
    InputSize,
    Scales,
    Section,
    ThreadCount,
    conflict,
    setting,
)


class GpuSettings(Section):
    """``gpu``: which device computes, how precisely, and how much of its memory may be used."""

    device: Literal["auto", "cuda", "cpu"] = setting(
        "auto", "Device to compute on; auto takes the best that works."
    )
    device_id: int = setting(0, "Number of the GPU, from 0.", ge=0, le=255)
    device_ids: GpuNumbers | None = setting(
        None,
        "GPUs that share each video, on each node of a cluster; a repeated GPU gets several processes; "
        "null is device_id alone, or all GPUs of a cluster.",
    )
    precision: Literal["fp32", "fp16", "int8", "mixed"] = setting(
        "fp16", "Precision on a GPU; mixed keeps sensitive parts in fp32; int8 is for rvm on the CPU."
    )
    decoder_sessions: Literal["auto"] | Annotated[int, Ge(1), Le(16)] = setting(
        "auto", "Hardware decoders that share one video; auto takes up to 4 if memory allows."
    )
    encoder: Literal["cpu", "nvenc", "auto"] = setting(
        "auto", "Encoder of H.264, H.265 and AV1; auto takes NVENC if it passed a trial here."
    )

    @property
    def allowed_encoder(self) -> Literal["cpu", "nvenc", "auto"]:
        """``encoder``, but with ``auto`` a run on the CPU is not encoded on the GPU."""
        return "cpu" if self.encoder == "auto" and self.device == "cpu" else self.encoder

    max_vram_usage: float = setting(
        0.9, "Maximum share of the GPU's memory in use, by all processes.", gt=0, le=1
    )
    memory_fraction: float | None = setting(
        None, "Exact share of the GPU's memory to reserve at the start; null takes it as needed.", gt=0, le=1
    )
    cudnn_benchmark: Literal["auto"] | bool = setting(
        "auto",
        "Time cuDNN's algorithms at the start and keep the fastest; auto: in ONNX Runtime, not in PyTorch (slow).",
    )
    cudnn_deterministic: bool = setting(False, "Use only algorithms that repeat bit for bit; slower.")
    allow_tf32: bool = setting(
        True, "Let fp32 matrix products use TF32 (10-bit mantissa) on Ampere and newer."
    )


class ModelSettings(Section):
    """``model``: the matting network and its input."""

    name: str = setting(
        "auto",
        "Network: a name from `vitascope models list`, an ONNX file, or auto (rvm, else selfie).",
        min_length=1,
    )
    kind: Literal["matte", "binary", "semantic", "yolo-seg"] | None = setting(
        None, "Output of your own ONNX file."
    )
    person_class: int | None = setting(
        None,
        "Class of people in your own semantic or yolo-seg network; null is 15 (Pascal VOC) or 0 (COCO).",
        ge=0,
        le=65535,
    )
    batch_size: BatchRange = setting(
        BatchRange(1, 1), "Consecutive frames per call of the network; a range is for the tuner."
    )
    input_size: InputSize | None = setting(
        None, "Longest side of the network's picture, in pixels; null adapts it to the people."
    )
    downsample_ratio: Literal["auto"] | Annotated[float, Gt(0), Le(1)] = setting(
        "auto", "Scale of the network's picture, for networks that take one; overrides input_size."
    )
    warm_up_frames: int = setting(
        3,
        "How often a network with memory sees the first frame of a shot before its first matte.",
        ge=0,
        le=100,
    )
    look_ahead_frames: int = setting(
        8, "First frames of a shot that a network with memory also sees backwards; not live.", ge=0, le=32
    )
    num_workers: int = setting(
        4, "Threads that prepare the network's pictures on the CPU; 0 is one.", ge=0, le=1024
    )
    prefetch_factor: int = setting(
        2, "Batches that each of these threads (on a GPU, each stream) prepares ahead.", ge=1, le=1024
    )
    backend: Literal["auto", "triton", "torch", "onnxruntime", "inductor", "tensorrt"] = setting(
        "auto", "Engine that runs the network; auto takes the fastest that works correctly."
    )

    @property
    def longest_side(self) -> int | None:
        """The limit that ``input_size`` sets for the longest side, in pixels; None if it sets none."""
        return max(self.input_size) if isinstance(self.input_size, tuple) else self.input_size

    @property
    def suits_people(self) -> bool:
        """True if no setting fixes the size of the network's picture, so that it may adapt to the people."""
        return self.downsample_ratio == "auto" and self.longest_side is None


class ProcessingSettings(Section):
    """``processing``: threads and queues on the CPU."""

    num_threads: ThreadCount = setting(
        0, "Threads of the network on the CPU; 0 or null is all cores.", ge=0, le=4096
    )
    use_multiprocessing: bool = setting(False, "Share each video among processes on the CPU.")
    cluster: str | None = setting(
        None,
        "Ray cluster whose machines share each video: auto (this machine's), HOST:PORT or ray://HOST:PORT.",
    )
    max_queue_size: int = setting(32, "Maximum frames waiting between two stages.", ge=1, le=100_000)
    max_queue_mb: float = setting(
        256.0, "Maximum megabytes (10^6 bytes) of frames waiting between two stages.", gt=0, le=1_000_000
    )
    chunk_size: int | None = setting(
        None,
        "Maximum frames of a stretch when processes share a video; null chooses.",
        ge=1,
        le=100_000,
    )
    overlap_frames: int | None = setting(
        None,
        "Frames that a process sees before its stretch, to hide the seam; null chooses.",
        ge=0,
        le=100_000,
    )
    enable_caching: bool = setting(
        False, "Keep mattes on disk, so that another output of the same video needs no network."
    )
    cache_size_gb: float = setting(
        4.0, "Maximum gigabytes (10^9 bytes) of kept mattes, and of kept stretches.", gt=0, le=100_000
    )


class PerformanceSettings(Section):
    """``performance``: targets for speed and latency, and what a live run may give up for them."""

    mode: Literal["auto", "throughput", "latency"] = setting(
        "auto",
        "Optimise throughput (8 to 16 frames per call, INT8 on the CPU if accurate enough) or latency (one "
        "frame per call).",
    )
    target_fps: float = setting(
        90.0,
        "Frames per second that tuning must reach if you set it; the maximum of a live run.",
        gt=0,
        le=1000,
    )
    max_latency_ms: float = setting(
        50.0,
        "Maximum latency in milliseconds, decoder to encoder, that tuning accepts if you set it; "
        "live, from capture to sinks.",
        gt=0,
        le=60_000,
    )
    auto_tune: bool = setting(False, "Choose batch size, queues and threads by measuring before each job.")
    frame_skip_enabled: bool = setting(False, "Repeat the last picture while a live driver barely moves.")
    frame_skip_threshold: float = setting(
        0.92, "Similarity of two driver frames above which the driver is barely moving.", gt=0, le=1
    )
    prefetch_frames: int = setting(
        3, "Frames of a driver's video to decode ahead of the tracker.", ge=0, le=1000
    )
    gpu_memory_fraction: float = setting(
        0.85, "Share of the GPU's memory that LivePortrait may use.", gt=0, le=1
    )
    clear_cache_interval: int = setting(
        200,
        "Frames between releases of LivePortrait's unused GPU memory; 0 never releases.",
        ge=0,
        le=1_000_000_000,
    )
    use_async_capture: bool = setting(True, "Read the camera in its own thread.")
    use_async_output: bool = setting(True, "Give each live output its own thread.")


class InferenceSettings(Section):
    """``inference``: how often the network runs, which part of the frame it sees, and at what sizes."""

    skip_static: float = setting(
        0.0,
        "Reuse the last matte while the picture changes less than this; 0.01 suits a still camera.",
        ge=0,
        le=1,
    )
    region: Literal["whole", "crop", "zoom"] = setting(
        "whole",
        "What the network sees: the whole frame, people's surroundings (crop: faster), or these "
        "enlarged (zoom: finer).",
    )
    region_margin: float = setting(
        0.25, "Margin around people on each side, as a share of their size.", ge=0, le=2
    )
    recheck_frames: int = setting(
        12,
        "Interval in frames at which region sees the whole frame, and early_exit compares its networks.",
        ge=1,
        le=10_000,
    )
    early_exit: Literal["off", "smaller", "selfie"] = setting(
        "off", "Cheaper network to try first: the same at half the side, or selfie."
    )
    early_exit_confidence: float = setting(
        0.8, "Confidence from which the first network's answer is used.", ge=0, le=1
    )
    scales: Scales = setting((1.0,), "Relative sizes of the network's picture whose mattes are averaged.")
    bidirectional: bool = setting(
        False, "Matte each shot forwards and backwards: three times the work; not live."
    )
    missed_people: bool = setting(
        True, "Look now and then for people whom the network misses beside larger ones; not live."
    )
    stereo_agreement: bool = setting(True, "Average the mattes of both eyes where they see the same place.")

    @property
    def wants_tiles(self) -> bool:
        """True if a setting depends on what changes from frame to frame."""
        return self.skip_static > 0 or self.region != "whole"

    @property
    def shows_whole_eyes(self) -> bool:
        """True if the network only ever gets whole eyes at its usual size."""
        return self.region == "whole" and self.scales == (1.0,) and self.early_exit != "smaller"

    @property
    def may_look_back(self) -> bool:
        """True if shots are also matted backwards; not with regions, other sizes or early exits."""
        return self.bidirectional and self.shows_whole_eyes and self.early_exit == "off"

    @property
    def may_look_for_missed(self) -> bool:
        """True if missed people are looked for; only when the network sees whole eyes."""
        return self.missed_people and self.shows_whole_eyes and self.early_exit == "off"

    @model_validator(mode="after")
    def _check_region(self) -> Self:
        if self.region != "whole" and self.scales != (1.0,):
            raise conflict(
                f"inference.region={self.region} and inference.scales cannot be combined; set one",
                ("inference.region", "inference.scales"),
            )
        return self


class TensorrtPrecision(Section):
    """``tensorrt.precision``: the arithmetic that an engine may use beside fp32."""

    fp16: bool = setting(True, "Allow FP16 in TensorRT engines; otherwise FP32 or TF32.")
    int8: bool = setting(False, "Build TensorRT engines in INT8; the network must be calibrated.")


class TensorrtSettings(Section):
    """``tensorrt``: how engines are built and where they are kept."""

    precision: TensorrtPrecision = Field(default_factory=TensorrtPrecision)
    workspace_gb: float = setting(
        4.0, "Gigabytes (10^9 bytes) of scratch memory that TensorRT may use.", gt=0, le=1000
    )
    cache_dir: FilePath | None = setting(
        None, "Folder for built TensorRT engines; null is below VITASCOPE_HOME."
    )


class DynamicBatching(Section):
    """``batching.dynamic``: how ``StillSegmenter`` combines pictures of several threads in one call."""

    min_batch_size: int = setting(
        1,
        "Minimum pictures in a call of `StillSegmenter`; the last one is repeated to fill it.",
        ge=1,
        le=MAX_BATCH_SIZE,
    )
    max_batch_size: int = setting(
        8, "Maximum pictures in a call of `StillSegmenter`.", ge=1, le=MAX_BATCH_SIZE
    )
    timeout_ms: float = setting(
        50.0,
        "Milliseconds that a picture of `StillSegmenter` waits for pictures of other threads.",
        ge=0,
        le=60_000,
    )

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        if self.min_batch_size > self.max_batch_size:
            raise conflict(
                f"batching.dynamic.min_batch_size {self.min_batch_size} is above "
                f"batching.dynamic.max_batch_size {self.max_batch_size}",
                ("batching.dynamic.min_batch_size", "batching.dynamic.max_batch_size"),
            )
        return self


class BatchingSettings(Section):
    """``batching``: how frames are gathered."""

    dynamic: DynamicBatching = Field(default_factory=DynamicBatching)


class DecodeStage(Section):
    """``pipeline.stages.decode``."""

    threads: ThreadCount = setting(
        0, "Threads of the video decoder; 0 or null lets the decoder choose.", ge=0, le=4096
    )


class PreprocessStage(Section):
    """``pipeline.stages.preprocess``."""

    cuda_streams: int = setting(4, "CUDA streams that prepare the network's batches in turn.", ge=1, le=64)


class InferenceStage(Section):
    """``pipeline.stages.inference``."""

    batch_size: BatchRange | None = setting(
        None, "Consecutive frames per call of the network; overrides model.batch_size."
    )


class PostprocessStage(Section):
    """``pipeline.stages.postprocess``."""

    threads: ThreadCount = setting(
        0, "Threads that composite on the CPU; 0 or null is all cores.", ge=0, le=4096
    )


class EncodeStage(Section):
    """``pipeline.stages.encode``."""

    threads: ThreadCount = setting(
        0, "Threads of the video encoder; 0 or null lets the encoder choose.", ge=0, le=4096
    )


class PipelineStages(Section):
    """``pipeline.stages``: the way of a frame, in order."""

    decode: DecodeStage = Field(default_factory=DecodeStage)
    preprocess: PreprocessStage = Field(default_factory=PreprocessStage)
    inference: InferenceStage = Field(default_factory=InferenceStage)
    postprocess: PostprocessStage = Field(default_factory=PostprocessStage)
    encode: EncodeStage = Field(default_factory=EncodeStage)


class PipelineSettings(Section):
    """``pipeline``: the stages that run at the same time."""

    stages: PipelineStages = Field(default_factory=PipelineStages)


class DataloaderSettings(Section):
    """``dataloader``: how frames cross from the CPU to the GPU."""

    pin_memory: bool = setting(True, "Copy to and from the GPU through page-locked memory, which is faster.")
    persistent_workers: bool = setting(
        True, "Keep worker processes and their networks from one video to the next."
    )
