"""Settings of the portrait animator: its network, the face it follows, and what it reports."""

from __future__ import annotations

from typing import Literal

from vitascope.config.section import Arrival, Section, setting
from vitascope.config.values import BatchRange

__all__ = ["AnimationSettings", "DebugSettings", "TrackingSettings"]


class AnimationSettings(Section):
    """``animation``: the network that moves the portrait."""

    gpu_id: int = setting(
        0, "Number of the GPU that animates, counted from 0.", arrives_with=Arrival.ANIMATOR, ge=0, le=255
    )
    batch_size: BatchRange = setting(
        BatchRange(1, 1),
        "Driving frames for each call of the network; more raises throughput and latency.",
        arrives_with=Arrival.ANIMATOR,
    )
    inference_precision: Literal["fp32", "fp16", "int8"] = setting(
        "fp16", "Arithmetic of the animator's networks.", arrives_with=Arrival.ANIMATOR
    )
    use_half_precision: bool = setting(
        True, "Keep the animator's weights and activations in fp16.", arrives_with=Arrival.ANIMATOR
    )
    enable_tensorrt: bool = setting(
        False, "Run the animator's networks as TensorRT engines.", arrives_with=Arrival.ANIMATOR
    )


class TrackingSettings(Section):
    """``tracking``: following the face that drives."""

    max_num_faces: int = setting(
        1, "Most faces that are followed.", arrives_with=Arrival.ANIMATOR, ge=1, le=64
    )
    refine_landmarks: bool = setting(
        True, "Track irises and lips more finely; costs CPU time.", arrives_with=Arrival.ANIMATOR
    )
    smoothing_window: int = setting(
        5,
        "Frames over which landmarks are smoothed; 1 does not smooth.",
        arrives_with=Arrival.ANIMATOR,
        ge=1,
        le=240,
    )


class DebugSettings(Section):
    """``debug``: what a run reports of itself."""

    profile_performance: bool = setting(
        False, "Time every operation and write a profile beside the report.", arrives_with=Arrival.TUNING
    )
