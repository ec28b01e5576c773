"""All settings in one immutable value."""

from __future__ import annotations

from pydantic import Field

from vitascope.config.animator import AnimationSettings, DebugSettings, TrackingSettings
from vitascope.config.compute import GpuSettings, ModelSettings, PerformanceSettings, ProcessingSettings
from vitascope.config.inference import InferenceSettings
from vitascope.config.result import EdgeSettings, OutputSettings, VideoSettings
from vitascope.config.section import Section
from vitascope.config.toolkit import BatchingSettings, DataloaderSettings, PipelineSettings, TensorrtSettings

__all__ = ["Settings"]


class Settings(Section):
    """Everything that can be set. ``Settings()`` holds the defaults, without any profile.

    ``load_settings`` builds it from profile, files and flags, and knows where each value came from.
    """

    video: VideoSettings = Field(default_factory=VideoSettings)
    model: ModelSettings = Field(default_factory=ModelSettings)
    inference: InferenceSettings = Field(default_factory=InferenceSettings)
    output: OutputSettings = Field(default_factory=OutputSettings)
    edges: EdgeSettings = Field(default_factory=EdgeSettings)
    gpu: GpuSettings = Field(default_factory=GpuSettings)
    processing: ProcessingSettings = Field(default_factory=ProcessingSettings)
    performance: PerformanceSettings = Field(default_factory=PerformanceSettings)
    pipeline: PipelineSettings = Field(default_factory=PipelineSettings)
    batching: BatchingSettings = Field(default_factory=BatchingSettings)
    tensorrt: TensorrtSettings = Field(default_factory=TensorrtSettings)
    dataloader: DataloaderSettings = Field(default_factory=DataloaderSettings)
    animation: AnimationSettings = Field(default_factory=AnimationSettings)
    tracking: TrackingSettings = Field(default_factory=TrackingSettings)
    debug: DebugSettings = Field(default_factory=DebugSettings)

    @property
    def frames_per_call(self) -> int:
        """Consecutive frames for each call of the network, when no tuner chooses.

        ``pipeline.stages.inference.batch_size`` where it is set, else ``model.batch_size``; of a range the
        lower end.
        """
        return (self.pipeline.stages.inference.batch_size or self.model.batch_size).low
