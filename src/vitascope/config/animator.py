"""Settings of the portrait animator: its network, the face or the voice it follows, and what it reports."""

from __future__ import annotations

from typing import Literal

from vitascope.config.values import BatchRange, FaceChoice, FilePath, Section, setting

__all__ = ["AnimationSettings", "DebugSettings", "TrackingSettings", "VoiceSettings"]


class AnimationSettings(Section):
    """``animation``: how the portrait follows, and the network that moves it."""

    animator: Literal["auto", "mesh", "liveportrait"] = setting(
        "auto",
        "What moves the portrait: the mesh, LivePortrait's networks, or auto: these networks where they and a GPU are "
        "there.",
    )
    liveportrait_folder: FilePath | None = setting(
        None, "Folder of LivePortrait's weights; null is liveportrait below VITASCOPE_HOME."
    )
    gpu_id: int = setting(0, "Number of the GPU that animates, counted from 0.", ge=0, le=255)
    batch_size: BatchRange = setting(
        BatchRange(1, 1),
        "Driving frames for each call of LivePortrait's networks, in files; live runs take one at a time.",
    )
    inference_precision: Literal["fp32", "fp16", "int8"] = setting(
        "fp16", "Arithmetic of LivePortrait's networks, but for the one that reads motion: that is fp32."
    )
    use_half_precision: bool = setting(
        True,
        "Keep LivePortrait's weights and activations in fp16; false is fp32, whatever the precision says.",
    )
    enable_tensorrt: bool = setting(
        False, "Run the animator's networks as TensorRT engines; LivePortrait's cannot, and say so."
    )
    expression: float = setting(
        1.0, "Strength of everything the face does; 1 is the driver's own.", ge=0, le=4
    )
    pose: float = setting(1.0, "Strength of the head's turning, moving and nearing.", ge=0, le=4)
    brows: float = setting(1.0, "Strength of the brows, times expression.", ge=0, le=4)
    eyes: float = setting(1.0, "Strength of blinking, times expression.", ge=0, le=4)
    gaze: float = setting(1.0, "Strength of the eyes' looking about, times expression.", ge=0, le=4)
    mouth: float = setting(1.0, "Strength of lips, jaw and cheeks, times expression.", ge=0, le=4)
    neutral: Literal["auto", "first"] = setting(
        "auto",
        "The driver's face at rest: the calmest of the whole driver, live the calmest so far (auto), or the first one.",
    )
    calibrate: bool = setting(
        True,
        "Measure in about two seconds how the portrait's expressions read, so that they read as the driver's do.",
    )
    mirror: bool = setting(False, "Let the portrait move like a mirror image of the driver.")
    face: FaceChoice = setting(
        "largest", "Which face of the portrait moves: largest, or its number from the left, from 0."
    )
    max_side: int = setting(
        3840, "Longest side of the animated picture in pixels; larger portraits are shrunk.", ge=64, le=16384
    )


class TrackingSettings(Section):
    """``tracking``: following the face that drives."""

    max_num_faces: int = setting(1, "Most faces of the driver that are looked for.", ge=1, le=64)
    follow: FaceChoice = setting(
        "largest",
        "Whom to follow when several faces are found: largest, or their number from the left, from 0.",
    )
    refine_landmarks: bool = setting(
        True,
        "Also run the network that names expressions, which makes blinks and smiles surer; costs CPU time.",
    )
    smoothing_window: int = setting(
        5,
        "Frames over which pose and expression are smoothed while they hardly move; 1 does not smooth.",
        ge=1,
        le=240,
    )
    pose_smoothing_window: int | None = setting(
        None, "The same for the head's pose alone; null is smoothing_window.", ge=1, le=240
    )
    min_confidence: float = setting(0.5, "How sure the tracker must be of a face.", gt=0, le=1)


class VoiceSettings(Section):
    """``voice``: a portrait that sound moves."""

    drives: bool = setting(
        False, "Let a video's sound move the portrait, not the face in it; a sound file does without this."
    )
    text: str | None = setting(
        None,
        "What is said, in English, or the name of a text file: lips then meet where these words want it.",
    )
    frame_rate: float = setting(30.0, "Pictures a second that a voice moves; live, at most.", ge=5, le=120)
    seed: int = setting(
        0, "Chance behind blinks, glances and nods: the same number gives the same video.", ge=0, le=2**32 - 1
    )


class DebugSettings(Section):
    """``debug``: what a run reports of itself."""

    profile_performance: bool = setting(
        False, "Write a profile and a trace beside the first output: every stage, on CPU and GPU."
    )
