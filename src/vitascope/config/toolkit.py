"""Settings of the runtime's parts: TensorRT, batching, the stages of the pipeline, transfers to the GPU."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from vitascope.config.values import (
    MAX_BATCH_SIZE,
    BatchRange,
    FilePath,
    Section,
    ThreadCount,
    conflict,
    setting,
)


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
        None, "Folder of built TensorRT engines; null is below VITASCOPE_HOME."
    )


class DynamicBatching(Section):
    """``batching.dynamic``: pictures of several threads in one call of the network, in ``StillSegmenter``."""

    min_batch_size: int = setting(
        1,
        "Minimum pictures in a call of `StillSegmenter`; missing ones are copies of the last.",
        ge=1,
        le=MAX_BATCH_SIZE,
    )
    max_batch_size: int = setting(
        8, "Maximum pictures in a call of `StillSegmenter`.", ge=1, le=MAX_BATCH_SIZE
    )
    timeout_ms: float = setting(
        50.0,
        "Milliseconds that a picture of `StillSegmenter` waits for those of other threads.",
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

    cuda_streams: int = setting(4, "CUDA streams that prepare the network's batches in turn.", ge=1, le=64)


class InferenceStage(Section):
    """``pipeline.stages.inference``."""

    batch_size: BatchRange | None = setting(
        None, "Consecutive frames a call of the network; overrides model.batch_size."
    )


class PostprocessStage(Section):
    """``pipeline.stages.postprocess``."""

    threads: ThreadCount = setting(
        0, "Threads that composite on the CPU; 0 or null is all cores.", ge=0, le=4096
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

    pin_memory: bool = setting(True, "Copy to and from the GPU through page-locked memory, which is faster.")
    persistent_workers: bool = setting(
        True, "Keep worker processes and their networks from one video to the next."
    )
