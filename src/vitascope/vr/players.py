"""VR players, and what each needs to show a video correctly: pixels, name, boxes and JSON.

==========  ============  =====================================  ======================================================
player      best kind     name: packed alpha, key colour         what it goes by
==========  ============  =====================================  ======================================================
HereSphere  packed alpha  _FISHEYE190_alpha, _LR_180_SBS_...     the name; its JSON, which wins
DeoVR       packed alpha  _FISHEYE190_alpha, _LR_180_SBS_...     the name; its JSON
Skybox      packed alpha  _FISHEYE190_alpha, _LR_180_SBS_...     the name; packed alpha from 2.0.2 on
4XVR        packed alpha  _FISHEYE190_alpha, _LR_180_SBS_...     the name, which must hold _LR_180_SBS
Moon        key colour    -, _LR_180_SBS_passthrough             the name; the viewer picks the colour
Quest       packed alpha  _FISHEYE190_alpha, _LR_180_SBS_...     Meta's player by the boxes, the above by the name
Vision Pro  key colour    -, _LR_180_SBS_passthrough             Apple's boxes, or Google's through Apple's converter
==========  ============  =====================================  ======================================================

Names: XBVR, and so the libraries that it serves, recognises packed alpha by ``alpha`` beside one of five lenses. Of
    these only ``fisheye190`` is not a camera's; every player above that plays packed alpha knows it. Sources are the
    code of XBVR, stash-vr and other public tools; what they leave open is open here.
"""

from __future__ import annotations

import colorsys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal

from vitascope.errors import UsageError
from vitascope.frames import Projection, StereoLayout
from vitascope.vr.detection import VrDescription
from vitascope.vr.file_names import read_name, without_vr_words

PlayerKind = Literal["packed-alpha", "key-color"]
Box = Literal["st3d", "sv3d", "vexu"]


@dataclass(frozen=True, slots=True)
class Player:
    """Requirements of a player for a video with people cut out."""

    name: str
    """Name as in ``--player``."""
    title: str
    kinds: tuple[PlayerKind, ...]
    """Output kinds with which it shows people, the best first."""
    boxes: frozenset[Box]
    """Boxes that tell it layout and projection; empty if it relies on the name or JSON."""
    json: Literal["heresphere", "deovr"] | None
    """Format of the description that it reads from a server."""
    goes_by_name: bool = True
    """False if only the boxes count."""
    wants_all_words: bool = False
    """True if a name must contain all of ``vr_words``, in their order."""
    key_color: str = "#2BE640"
    """A green unlike any skin, with a hue that a viewer's slider can select exactly."""

    def check(self, kind: PlayerKind) -> None:
        """Raise unless it shows a kind.

        Raises:
            UsageError: It does not.
        """
        if kind not in self.kinds:
            raise UsageError(f"{self.title} cannot show {kind}; use {', '.join(self.kinds)}")


_ALPHA_FIRST: Final[tuple[PlayerKind, ...]] = ("packed-alpha", "key-color")

PLAYERS: Final[Mapping[str, Player]] = MappingProxyType(
    {
        player.name: player
        for player in (
            Player("heresphere", "HereSphere", _ALPHA_FIRST, frozenset(), "heresphere"),
            Player("deovr", "DeoVR", _ALPHA_FIRST, frozenset(), "deovr"),
            Player("skybox", "Skybox", _ALPHA_FIRST, frozenset(), None),
            Player("4xvr", "4XVR", _ALPHA_FIRST, frozenset(), None, wants_all_words=True),
            Player("moon", "Moon Player", ("key-color",), frozenset(), None),
            Player("quest", "a player on a Quest", _ALPHA_FIRST, frozenset({"st3d", "sv3d"}), None),
            Player(
                "visionpro", "Vision Pro", ("key-color",), frozenset({"st3d", "sv3d", "vexu"}), None,
                goes_by_name=False,
            ),
        )
    }
)  # fmt: skip
"""The players by name."""

KNOWS_NO_PACKED_ALPHA: Final = (
    "shows the mattes in the corners: it cannot show packed alpha; use a key colour"
)
"""What a player that does not know packed alpha does with it."""


def vr_words(
    layout: StereoLayout,
    projection: Projection,
    *,
    fov_degrees: float | None = None,
    right_eye_first: bool = False,
    is_half: bool = False,
    is_packed_alpha: bool = False,
) -> str:
    """The VR words at the end of a file name, for all players.

    Returns:
        For example ``_FISHEYE190_alpha``, ``_LR_180_SBS``, ``_TB_360`` or ``_LRF_Full_SBS``; empty for plain video.
    """
    if projection is Projection.FLAT and layout is StereoLayout.MONO:
        return ""
    is_side_by_side = layout is StereoLayout.SIDE_BY_SIDE
    order = ("RL" if right_eye_first else "LR") if is_side_by_side else "BT" if right_eye_first else "TB"
    eyes = "MONO" if layout is StereoLayout.MONO else order
    half = ("_HSBS" if is_side_by_side else "_HOU") if is_half else ""
    if projection is Projection.FISHEYE:
        # A lens alone means two eyes side by side, and libraries recognise packed alpha by these two words.
        words = f"_FISHEYE{round(fov_degrees or 180)}" + ("_alpha" if is_packed_alpha else half)
        return words if is_packed_alpha and eyes == "LR" else f"_{eyes}{words}"
    if projection is Projection.FLAT:
        if is_side_by_side and not right_eye_first and not is_half:
            return "_LRF_Full_SBS"
        return f"_3D_{order}{half or ('_FSBS' if is_side_by_side else '_FOU')}"
    angle = 180 if projection is Projection.HALF_EQUIRECTANGULAR else 360
    return f"_{eyes}_{angle}{half or ('_SBS' if is_side_by_side else '')}"


def player_words(
    player: Player,
    *,
    kind: PlayerKind,
    layout: StereoLayout = StereoLayout.SIDE_BY_SIDE,
    projection: Projection = Projection.HALF_EQUIRECTANGULAR,
    fov_degrees: float | None = None,
    right_eye_first: bool = False,
    is_half: bool = False,
) -> str:
    """The VR words at the end of a file name, for one player.

    Args:
        player: The player.
        kind: Kind of output. Packed alpha is side by side in the player's own lens, whatever the other arguments.
        layout: Stereo layout of the output.
        projection: Projection of the output.
        fov_degrees: Field of view of the output.
        right_eye_first: True if the output has the right eye first.
        is_half: True if the output's eyes are squeezed to half.

    Returns:
        For example ``_FISHEYE190_alpha`` or ``_LR_180_SBS_passthrough``.

    Raises:
        UsageError: The player does not show that kind.
    """
    player.check(kind)
    if kind == "packed-alpha":
        return vr_words(
            StereoLayout.SIDE_BY_SIDE,
            Projection.FISHEYE,
            fov_degrees=fov_degrees or 190,
            is_packed_alpha=True,
        )
    words = vr_words(
        layout, projection, fov_degrees=fov_degrees, right_eye_first=right_eye_first, is_half=is_half
    )
    return f"{words}_passthrough"


def name_says(stem: str, words: str) -> bool:
    """True if a file name means the same as ``vr_words``, in these words or others.

    Args:
        stem: The name, without folder and suffix.
        words: Words from ``vr_words``.
    """
    named, wanted = read_name(stem), read_name(f"x{words}")
    facts = ("layout", "projection", "fov_degrees", "right_eye_first", "is_half", "is_packed_alpha")
    return all(getattr(named, fact) == getattr(wanted, fact) for fact in facts)


def as_played(player: Player, description: VrDescription, stem: str) -> str:
    """Describe in a few words how a player shows a file, and what to do if that is wrong.

    Args:
        player: The player.
        description: The file's layout and projection.
        stem: The file's name, without folder and suffix.
    """
    if description.is_packed_alpha and "packed-alpha" not in player.kinds:
        return KNOWS_NO_PACKED_ALPHA
    words = vr_words(
        description.layout,
        description.projection,
        fov_degrees=description.fov_degrees,
        right_eye_first=description.right_eye_first,
        is_half=description.is_half,
        is_packed_alpha=description.is_packed_alpha,
    )
    if not words:
        return "plays it as a flat video"
    by_boxes = (description.layout_reason.how, description.projection_reason.how) == (
        "stereo box",
        "projection box",
    )
    # Google's boxes have no fisheye; Apple's do.
    can_say = description.projection is not Projection.FISHEYE or "vexu" in player.boxes
    if player.boxes and by_boxes and can_say and not description.is_packed_alpha:
        return "plays it correctly, by its boxes"
    if not player.goes_by_name:
        return f"does not recognise it: it needs boxes, which segment --player {player.name} writes"
    if name_says(stem, words) and (words.lower() in stem.lower() or not player.wants_all_words):
        return "plays it correctly, by its name"
    advice = f"name it {without_vr_words(stem)}{words}"
    if player.json is not None and not description.right_eye_first:  # the JSON has no word for that
        advice += ", or serve it with what vitascope vr library writes"
    return f"does not recognise it: {advice}"


@dataclass(frozen=True, slots=True)
class ServedVideo:
    """A video's description for players that read from a server."""

    description: VrDescription
    title: str
    """Title for people."""
    url: str
    width: int
    """Width of a frame, in samples."""
    height: int
    size_bytes: int
    duration_seconds: float | None = None
    """None if unknown."""
    subtitles: Mapping[str, str] = field(default_factory=dict)
    """URL for each language or name."""
    key_color: tuple[int, int, int] | None = None
    """8-bit RGB behind people, if that is a key colour; packed alpha is in the description."""


def heresphere_json(video: ServedVideo) -> dict[str, Any]:
    """Describe a video in the form that HereSphere reads from a server."""
    description = video.description
    said: dict[str, Any] = {
        "access": 1,
        "title": video.title,
        "duration": round((video.duration_seconds or 0) * 1000),
        "projection": {
            Projection.FLAT: "perspective",
            Projection.HALF_EQUIRECTANGULAR: "equirectangular",
            Projection.EQUIRECTANGULAR: "equirectangular360",
            Projection.FISHEYE: "fisheye",
        }[description.projection],
        "stereo": _EYES[description.layout],
        "fov": description.fov_degrees or 0.0,
        "lens": description.camera if description.camera in ("MKX200", "MKX220", "VRCA220") else "Linear",
        "media": [{"name": f"{video.height}p", "sources": [_source(video)]}],
    }
    if video.subtitles:
        said["subtitles"] = [
            {"name": name, "language": name, "url": address} for name, address in video.subtitles.items()
        ]
    if description.is_packed_alpha:
        said["alphaPackedSettings"] = {"defaultSettings": True}
    return said


def deovr_json(video: ServedVideo) -> dict[str, Any]:
    """Describe a video in the form that DeoVR reads from a server."""
    description = video.description
    screen = {
        Projection.FLAT: "flat",
        Projection.HALF_EQUIRECTANGULAR: "dome",
        Projection.EQUIRECTANGULAR: "sphere",
        Projection.FISHEYE: "fisheye190" if description.fov_degrees == 190 else "fisheye",
    }[description.projection]
    stereo = "off" if description.layout is StereoLayout.MONO else _EYES[description.layout]
    said: dict[str, Any] = {
        "authorized": 1,
        "title": video.title,
        "is3d": description.layout is not StereoLayout.MONO,
        "screenType": description.camera.lower() if description.camera else screen,
        "stereoMode": stereo,
        "videoLength": round(video.duration_seconds or 0),
        "encodings": [{"name": f"{video.height}p", "videoSources": [_source(video)]}],
    }
    if description.is_packed_alpha:
        said["chromakey"] = {
            "enabled": "true",  # truth values are words in this format
            "hasAlpha": "true",
            **dict.fromkeys("hsv", 0),
            "opacity": 1,
            "threshold": 0,
        }
    elif video.key_color is not None:
        hsv = colorsys.rgb_to_hsv(*(code / 255 for code in video.key_color))
        said["chromakey"] = {
            "enabled": "true",
            "hasAlpha": "false",
            **{name: round(value, 4) for name, value in zip("hsv", hsv, strict=True)},
            "opacity": 1,
            "threshold": 0.1,
        }
    return said


def description_beside(video: Path, player_json: str) -> Path:
    """Path of a video's JSON for a player."""
    return video.with_name(f"{video.name}.{player_json}.json")


_EYES = {StereoLayout.MONO: "mono", StereoLayout.SIDE_BY_SIDE: "sbs", StereoLayout.TOP_BOTTOM: "tb"}


def _source(video: ServedVideo) -> dict[str, Any]:
    size = {"resolution": video.height, "width": video.width, "height": video.height}
    return {**size, "size": video.size_bytes, "url": video.url}
