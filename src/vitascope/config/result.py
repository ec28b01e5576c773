"""Settings for input and output: the video, the people to keep, the edges of the matte, and the outputs."""

from __future__ import annotations

from typing import Annotated, Final, Literal, Self

from pydantic import BeforeValidator, model_validator

from vitascope.config.flags import Codec, EncoderSpeed, OutputKind, PersonWord, PlayerName
from vitascope.config.values import (
    AlphaLevels,
    Expected,
    FilePath,
    PresetName,
    ProjectionChoice,
    RgbColor,
    Seconds,
    Section,
    StereoChoice,
    conflict,
    setting,
    unique_list,
)

OutputKinds = Annotated[
    tuple[OutputKind, ...],
    BeforeValidator(unique_list),
    Expected("one or more of mask, key, cutout, alpha, blur, replace, overlay, packed-alpha"),
]

_HIGHEST_NUMBER: Final = 255


def _people(value: object) -> object:
    values = unique_list([value] if isinstance(value, int) else value)
    if not isinstance(values, tuple):
        return value
    people = tuple(int(one) if isinstance(one, str) and one.isdecimal() else one for one in values)
    for one in people:
        is_number = isinstance(one, int) and not isinstance(one, bool) and 1 <= one <= _HIGHEST_NUMBER
        if not is_number and one not in ("largest", "pov"):
            raise ValueError(f"{one!r} is not a person")
    return people


People = Annotated[
    tuple[int | PersonWord, ...],
    BeforeValidator(_people),
    Expected("numbers of people such as 1,3 (vitascope people shows them), largest or pov"),
]


class VideoSettings(Section):
    """``video``: how the input is read."""

    stereo: StereoChoice = setting("auto", "How the two eyes share a frame; auto detects it.")
    projection: ProjectionChoice = setting("auto", "Projection of each eye; auto detects it.")
    fov_degrees: float | None = setting(
        None,
        "Field of view of each eye in degrees (for a fisheye, its diameter); null is the usual one.",
        ge=20,
        le=360,
    )
    start_seconds: Seconds = setting(0.0, "Start time, in seconds.")
    end_seconds: Seconds | None = setting(None, "End time, in seconds; null is the end of the video.")
    max_corrupt_frames: int = setting(
        250, "Maximum damaged or missing frames before the video is refused.", ge=0, le=1_000_000_000
    )
    scene_cut_threshold: float = setting(
        0.05,
        "Share of the picture that must change at once, apart from motion, for a cut; 0 turns detection off.",
        ge=0,
        le=1,
    )

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        if self.end_seconds is not None and self.end_seconds <= self.start_seconds:
            raise conflict(
                f"video.end_seconds {self.end_seconds:g} is not after video.start_seconds "
                f"{self.start_seconds:g}",
                ("video.start_seconds", "video.end_seconds"),
            )
        return self


class PeopleSettings(Section):
    """``people``: which of the people found by ``vitascope people`` to keep."""

    keep: People | None = setting(None, "Keep only these people; null keeps everybody.")
    exclude: People | None = setting(None, "Keep everybody except these people.")
    keep_held: bool = setting(
        False, "Also keep what kept people hold; fetches isnet, and mattes are not cached."
    )
    edges_add_up: bool = setting(
        False,
        "Where people touch, make their cuts add up, for layers; otherwise a strip between them belongs to nobody.",
    )
    hints: FilePath | None = setting(
        None, "Hints file: whom to keep and when, clicks, boxes, strokes and regions."
    )

    @property
    def active(self) -> bool:
        """True if any of these settings is set."""
        return self.keep_held or not (self.keep is None and self.exclude is None and self.hints is None)

    @model_validator(mode="after")
    def _check_choice(self) -> Self:
        both = sorted(map(str, set(self.keep or ()) & set(self.exclude or ())))
        if both:
            raise conflict(
                f"people.keep and people.exclude both name {', '.join(both)}",
                ("people.keep", "people.exclude"),
            )
        return self


class OutputSettings(Section):
    """``output``: what is written, and how it is encoded."""

    kinds: OutputKinds = setting(("key",), "Kinds of output, one file each.")
    player: PlayerName | None = setting(None, "VR player to write for: sets kind, colour, codec and names.")
    key_color: RgbColor = setting(
        RgbColor(120, 255, 155),
        'Colour behind people in key: "#78FF9B", 120,255,155 or a CSS name (a green screen is lime).',
    )
    background: FilePath | None = setting(None, "Image or video behind people in replace.")
    mask_max_width: int | None = setting(
        None,
        "Maximum width of a mask in pixels; wider masks are shrunk; null keeps the size.",
        ge=16,
        le=65536,
    )
    packed_fov_degrees: float | None = setting(
        None,
        "Field of view of each eye in packed-alpha, in degrees; null is 190, or that of a fisheye video.",
        ge=120,
        le=230,
    )
    packed_color: Literal["red", "grey"] = setting(
        "red", "Colour of the matte in packed-alpha; players read red."
    )
    blur_radius: float = setting(
        24.0, "Radius of blur in pixels at 1080 lines; scales with the height.", gt=0, le=512
    )
    overlay_color: RgbColor = setting(
        RgbColor(255, 51, 102), "Tint over people in overlay; written as key_color."
    )
    overlay_opacity: float = setting(0.5, "Opacity of that tint.", ge=0, le=1)
    codec: Literal["auto"] | Codec = setting("auto", "Video codec; auto follows the file name and kind.")
    speed: EncoderSpeed = setting("balanced", "Encoding speed; sets each codec's CRF and preset.")
    crf: int | None = setting(
        None, "Quality on the codec's scale, lower is better; null uses speed.", ge=0, le=63
    )
    preset: PresetName | None = setting(
        None, "Encoder preset, such as veryfast or 8; null uses speed.", min_length=1
    )
    bit_depth: Literal["auto", 8, 10] = setting(
        "auto", "Bits per sample; auto keeps those of the input if the codec can."
    )
    keep_partial: bool = setting(
        False, "If the rest of a video cannot be decoded, keep what was written, as a .part file."
    )

    @model_validator(mode="after")
    def _check_background(self) -> Self:
        if "replace" in self.kinds and self.background is None:
            raise conflict(
                "output.kinds has replace, which needs output.background (--background), an image or a video",
                ("output.kinds", "output.background"),
            )
        return self


class EdgeSettings(Section):
    """``edges``: changes to the full-size matte, in this order: threshold, grow, feather."""

    threshold: AlphaLevels | None = setting(
        None, "Alpha levels [low, high] that become 0 and 1, linear between; null changes nothing."
    )
    grow_px: float = setting(
        0.0, "Grow people by so many pixels of the output; negative shrinks them.", ge=-256, le=256
    )
    feather_px: float = setting(
        0.0, "Blur of the edge: standard deviation of a Gaussian, in pixels of the output.", ge=0, le=256
    )
    decontaminate: bool = setting(
        True, "Remove the old background's colour from soft edges; not in mask and overlay."
    )
    temporal_smoothing: float = setting(
        0.0, "Weight of the previous matte; steadies edges, which then lag behind motion.", ge=0, lt=1
    )
