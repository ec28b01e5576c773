"""Settings of the portrait animator: its network, the face or the voice it follows, and what it reports."""

from __future__ import annotations

from typing import Literal

from vitascope.config.values import BatchRange, FaceChoice, FilePath, Section, setting


class AnimationSettings(Section):
    """``animation``: how the portrait follows, and the network that moves it."""

    animator: Literal["auto", "mesh", "liveportrait"] = setting(
        "auto", "What moves the portrait; auto takes LivePortrait if its weights and a GPU are there."
    )
    liveportrait_folder: FilePath | None = setting(
        None, "Folder of LivePortrait's weights; null is liveportrait below VITASCOPE_HOME."
    )
    gpu_id: int = setting(0, "Number of the GPU for animation, from 0.", ge=0, le=255)
    batch_size: BatchRange = setting(
        BatchRange(1, 1), "Driver frames per call of LivePortrait; always one in live runs."
    )
    inference_precision: Literal["fp32", "fp16", "int8"] = setting(
        "fp16", "Precision of LivePortrait; the network that reads motion stays in fp32."
    )
    use_half_precision: bool = setting(
        True, "Keep LivePortrait's weights and activations in fp16; false is fp32."
    )
    enable_tensorrt: bool = setting(False, "Run the animator on TensorRT; an error with LivePortrait.")
    expression: float = setting(1.0, "Strength of the whole face; 1 is the driver's own.", ge=0, le=4)
    pose: float = setting(1.0, "Strength of the head's motion.", ge=0, le=4)
    brows: float = setting(1.0, "Strength of the brows, times expression.", ge=0, le=4)
    eyes: float = setting(1.0, "Strength of blinks, times expression.", ge=0, le=4)
    gaze: float = setting(1.0, "Strength of the gaze, times expression.", ge=0, le=4)
    mouth: float = setting(1.0, "Strength of lips, jaw and cheeks, times expression.", ge=0, le=4)
    neutral: Literal["auto", "first"] = setting(
        "auto",
        "Driver frame with the face at rest: the calmest (auto; live, the calmest so far), or the first.",
    )
    calibrate: bool = setting(
        True, "Measure for two seconds how strong the portrait's expressions look, to match the driver's."
    )
    mirror: bool = setting(False, "Move like a mirror image of the driver.")
    face: FaceChoice = setting(
        "largest", "Face of the portrait to animate: largest, or its number from the left, starting at 0."
    )
    max_side: int = setting(
        3840, "Longest side of the animated picture in pixels; larger portraits are shrunk.", ge=64, le=16384
    )


class TrackingSettings(Section):
    """``tracking``: how the driver's face is followed."""

    max_num_faces: int = setting(1, "Maximum faces to look for in the driver.", ge=1, le=64)
    follow: FaceChoice = setting(
        "largest", "Face to follow: largest, or its number from the left, starting at 0."
    )
    refine_landmarks: bool = setting(
        True, "Also run the expression network: more reliable blinks and smiles, more CPU time."
    )
    smoothing_window: int = setting(
        5, "Frames over which a nearly still face is smoothed; 1 is off.", ge=1, le=240
    )
    pose_smoothing_window: int | None = setting(
        None, "The same for the head's pose alone; null is smoothing_window.", ge=1, le=240
    )
    min_confidence: float = setting(0.5, "Minimum confidence of a tracked face.", gt=0, le=1)


class VoiceSettings(Section):
    """``voice``: animating a portrait with sound."""

    drives: bool = setting(False, "Let a video's sound move the portrait instead of the face in it.")
    text: str | None = setting(
        None, "The words of the voice, in English, or a text file; makes the lips more accurate."
    )
    frame_rate: float = setting(30.0, "Frames per second with a voice; live, the maximum.", ge=5, le=120)
    seed: int = setting(
        0, "Random seed of blinks, glances and nods; the same seed gives the same video.", ge=0, le=2**32 - 1
    )


class DebugSettings(Section):
    """``debug``: what a run reports about itself."""

    profile_performance: bool = setting(
        False, "Write a profile and a trace of every stage beside the first output."
    )
