"""Settings of the runtime's parts: TensorRT, batching, the stages of the pipeline, transfers to the GPU."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from vitascope.config.section import Arrival, Section, conflict, setting
from vitascope.config.values import MAX_BATCH_SIZE, BatchRange, FilePath, ThreadCount

__all__ = ["BatchingSettings", "DataloaderSettings", "PipelineSettings", "TensorrtSettings"]


class TensorrtPrecision(Section):
    """``tensorrt.precision``: the arithmetic that an engine may use beside fp32."""

    fp16: bool = setting(True, "Allow half precision in TensorRT engines.", arrives_with=Arrival.GPU_TOOLKIT)
    int8: bool = setting(
        False,
        "Allow 8-bit integers in TensorRT engines; needs a calibration.",
        arrives_with=Arrival.GPU_TOOLKIT,
    )


class TensorrtSettings(Section):
    """``tensorrt``: how engines are built and where they are kept."""

    precision: TensorrtPrecision = Field(default_factory=TensorrtPrecision)
    workspace_gb: float = setting(
        4.0,
        "Gigabytes (10^9 bytes) of scratch memory that TensorRT may use while it builds an engine.",
        arrives_with=Arrival.GPU_TOOLKIT,
        gt=0,
        le=1000,
    )
    cache_dir: FilePath | None = setting(
        None,
        "Folder of built engines; null keeps them below VITASCOPE_HOME.",
        arrives_with=Arrival.GPU_TOOLKIT,
    )


class DynamicBatching(Section):
    """``batching.dynamic``: gathering requests of several clients into one call of the network."""

    min_batch_size: int = setting(
        1, "Fewest requests in a batch.", arrives_with=Arrival.GPU_TOOLKIT, ge=1, le=MAX_BATCH_SIZE
    )
    max_batch_size: int = setting(
        8, "Most requests in a batch.", arrives_with=Arrival.GPU_TOOLKIT, ge=1, le=MAX_BATCH_SIZE
    )
    timeout_ms: float = setting(
        50.0,
        "Milliseconds after which a batch runs although it is not full.",
        arrives_with=Arrival.GPU_TOOLKIT,
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
        0, "Threads of the video decoder; 0 or null lets it choose.", ge=0, le=4096
    )


class PreprocessStage(Section):
    """``pipeline.stages.preprocess``."""

    cuda_streams: int = setting(
        4,
        "CUDA streams that prepare network inputs at a time.",
        arrives_with=Arrival.GPU_TOOLKIT,
        ge=1,
        le=64,
    )


class InferenceStage(Section):
    """``pipeline.stages.inference``."""

    batch_size: BatchRange | None = setting(
        None, "Consecutive frames for each call of the network; overrides model.batch_size; null leaves it."
    )


class PostprocessStage(Section):
    """``pipeline.stages.postprocess``."""

    threads: ThreadCount = setting(
        0,
        "Threads that composite at a time; 0 or null uses all cores.",
        arrives_with=Arrival.GPU_TOOLKIT,
        ge=0,
        le=4096,
    )


class EncodeStage(Section):
    """``pipeline.stages.encode``."""

    threads: ThreadCount = setting(
        0, "Threads of the video encoder; 0 or null lets it choose.", ge=0, le=4096
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

    pin_memory: bool = setting(
        True,
        "Copy through page-locked memory, which the GPU reads directly.",
        arrives_with=Arrival.GPU_TOOLKIT,
    )
    persistent_workers: bool = setting(
        True, "Keep worker threads from one video to the next.", arrives_with=Arrival.GPU_TOOLKIT
    )
