"""Runs named stages on threads with bounded queues between them, and reports where the time went."""

from vitascope.gpu.pipeline.pipeline import Pipeline
from vitascope.gpu.pipeline.queues import QueueLimits
from vitascope.gpu.pipeline.report import PipelineReport
from vitascope.gpu.pipeline.stages import Batched, Group, Map, Sink, Source

__all__ = ["Batched", "Group", "Map", "Pipeline", "PipelineReport", "QueueLimits", "Sink", "Source"]
