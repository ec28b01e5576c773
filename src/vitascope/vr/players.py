"""VR players: what each needs to show a video as what it is, in its pixels, its name, its boxes and its JSON.

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

Names: XBVR, and with it the libraries that it serves, takes a video for packed alpha by ``alpha`` beside one of five
lenses, of which ``fisheye190`` is the only one that is no camera's; every player above that plays packed alpha knows
it. Sources are the code of XBVR, stash-vr and other public tools; what is left open there is open here.
"""

from __future__ import annotations

import colorsys
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, Literal

from vitascope.errors import UsageError
from vitascope.frames import Projection, StereoLayout
from vitascope.vr.detection import VrDescription
from vitascope.vr.file_names import read_name, without_vr_words
from vitascope.vr.projection import Equirectangular, Fisheye, Lens

__all__ = [
    "PLAYERS",
    "Player",
    "PlayerKind",
    "as_played",
    "deovr_json",
    "heresphere_json",
    "output_name",
    "player_named",
    "vr_words",
]

PlayerKind = Literal["packed-alpha", "key-color"]
Box = Literal["st3d", "sv3d", "vexu"]


@dataclass(frozen=True, slots=True)
class Player:
    """What one player wants of a video with people cut out."""

    name: str
    """As in ``--player``."""
    title: str
    kinds: tuple[PlayerKind, ...]
    """What it shows people on, the best first."""
    boxes: frozenset[Box]
    """What tells it layout and projection inside the file; empty where it goes by name or JSON."""
    json: Literal["heresphere", "deovr"] | None
    """Whose description it reads from a server."""
    expects: str
    """One line for people: how to set it, where it does not find out by itself."""
    goes_by_name: bool = True
    """False where the boxes alone count."""
    wants_all_words: bool = False
    """True where a name must hold all of ``vr_words``, in their order."""
    key_color: str = "#2BE640"
    """A green that no skin has, and whose hue a viewer's slider meets."""

    def lens(self, kind: PlayerKind) -> Lens:
        """The projection that a kind is made in, from VR180.

        Raises:
            UsageError: It does not show that kind.
        """
        self.check(kind)
        return Fisheye(190.0) if kind == "packed-alpha" else Equirectangular(180.0, 180.0)

    def check(self, kind: PlayerKind) -> None:
        """Raise unless it shows a kind.

        Raises:
            UsageError: It does not.
        """
        if kind not in self.kinds:
            raise UsageError(f"{self.title} shows no {kind}; make {', '.join(self.kinds)}")


_ALPHA_FIRST: Final[tuple[PlayerKind, ...]] = ("packed-alpha", "key-color")

PLAYERS: Final[Mapping[str, Player]] = MappingProxyType(
    {
        player.name: player
        for player in (
            Player(
                "heresphere", "HereSphere", _ALPHA_FIRST, frozenset(), "heresphere",
                "by hand: projection fisheye, true FOV 190, background passthrough, mask alpha packed",
            ),
            Player("deovr", "DeoVR", _ALPHA_FIRST, frozenset(), "deovr", "passthrough turns on by the name"),
            Player("skybox", "Skybox", _ALPHA_FIRST, frozenset(), None, "packed alpha from version 2.0.2 on"),
            Player("4xvr", "4XVR", _ALPHA_FIRST, frozenset(), None, "key colour needs _LR_180_SBS in the name",
                   wants_all_words=True),
            Player("moon", "Moon Player", ("key-color",), frozenset(), None, "pick the key colour in the player"),
            Player(
                "quest", "players on a Quest", _ALPHA_FIRST, frozenset({"st3d", "sv3d"}), None,
                "Meta's own player goes by the boxes and has no passthrough; the others go by the name",
            ),
            Player(
                "visionpro", "Vision Pro", ("key-color",), frozenset({"st3d", "sv3d", "vexu"}), None,
                "Apple's player goes by its own boxes, its converter by Google's; neither keys",
                goes_by_name=False,
            ),
        )
    }
)  # fmt: skip
"""By their names."""


def player_named(name: str) -> Player:
    """The player of a name.

    Raises:
        UsageError: There is none; the message names those that there are.
    """
    player = PLAYERS.get(name.lower())
    if player is None:
        raise UsageError(f"no player {name!r} is known; known are {', '.join(PLAYERS)}")
    return player


def vr_words(
    layout: StereoLayout,
    projection: Projection,
    *,
    fov_degrees: float | None = None,
    right_eye_first: bool = False,
    is_half: bool = False,
    is_packed_alpha: bool = False,
) -> str:
    """The ending of a file name that says to every player what a video is.

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
        # A lens alone means two eyes side by side, and libraries know packed alpha by these two words.
        words = f"_FISHEYE{round(fov_degrees or 180)}" + ("_alpha" if is_packed_alpha else half)
        return words if is_packed_alpha and eyes == "LR" else f"_{eyes}{words}"
    if projection is Projection.FLAT:
        if is_side_by_side and not right_eye_first and not is_half:
            return "_LRF_Full_SBS"
        return f"_3D_{order}{half or ('_FSBS' if is_side_by_side else '_FOU')}"
    angle = 180 if projection is Projection.HALF_EQUIRECTANGULAR else 360
    return f"_{eyes}_{angle}{half or ('_SBS' if is_side_by_side else '')}"


def output_name(
    stem: str,
    player: Player,
    *,
    kind: PlayerKind,
    layout: StereoLayout = StereoLayout.SIDE_BY_SIDE,
    projection: Projection = Projection.HALF_EQUIRECTANGULAR,
    fov_degrees: float | None = None,
    right_eye_first: bool = False,
    is_half: bool = False,
) -> str:
    """Name an output as a player wants it.

    Args:
        stem: Of the input, without folder and suffix; an earlier ending of VR words goes.
        player: Who shall play it.
        kind: What people are shown on. Packed alpha is side by side in the player's own lens, whatever the rest says.
        layout: Of the output.
        projection: Of the output.
        fov_degrees: Of the output.
        right_eye_first: Of the output.
        is_half: Of the output.

    Returns:
        The name without suffix, for example ``wedding_FISHEYE190_alpha`` or ``wedding_LR_180_SBS_passthrough``.

    Raises:
        UsageError: The player does not show that kind.
    """
    player.check(kind)
    if kind == "packed-alpha":
        words = vr_words(
            StereoLayout.SIDE_BY_SIDE,
            Projection.FISHEYE,
            fov_degrees=fov_degrees or 190,
            is_packed_alpha=True,
        )
    else:
        words = vr_words(
            layout, projection, fov_degrees=fov_degrees, right_eye_first=right_eye_first, is_half=is_half
        )
        words += "_passthrough"
    return without_vr_words(stem) + words


def as_played(player: Player, description: VrDescription, stem: str) -> str:
    """What a player makes of a file, in a few words: as what it is, or what to do about it.

    Args:
        player: Who plays it.
        description: What the file is.
        stem: Its name, without folder and suffix.
    """
    if description.is_packed_alpha and "packed-alpha" not in player.kinds:
        return "shows the mattes in the corners: it knows no packed alpha, make key colour for it"
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
    if player.boxes and by_boxes and not description.is_packed_alpha:
        return "plays it as what it is, by its boxes"
    named, wanted = read_name(stem), read_name(f"x{words}")
    facts = ("layout", "projection", "fov_degrees", "right_eye_first", "is_half", "is_packed_alpha")
    is_said = all(getattr(named, fact) == getattr(wanted, fact) for fact in facts)
    if not player.goes_by_name:
        return "does not know what it is: it goes by boxes, and they are missing"
    if is_said and (words.lower() in stem.lower() or not player.wants_all_words):
        return "plays it as what it is, by its name"
    advice = f"name it {without_vr_words(stem)}{words}"
    if player.json is not None:
        advice += ", or serve it with what vitascope vr library writes"
    return f"does not know what it is: {advice}"


def heresphere_json(
    description: VrDescription,
    *,
    title: str,
    url: str,
    width: int,
    height: int,
    size_bytes: int,
    duration_seconds: float | None = None,
    subtitles: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, Any]:
    """Describe a video as HereSphere reads it from a server.

    Args:
        description: What the video is.
        title: For people.
        url: Of the video.
        width: Of its frames, in samples.
        height: Likewise.
        size_bytes: Of the file.
        duration_seconds: Of the video; None when it is not known.
        subtitles: URL of each language or name.
    """
    said: dict[str, Any] = {
        "access": 1,
        "title": title,
        "duration": round((duration_seconds or 0) * 1000),
        "projection": {
            Projection.FLAT: "perspective",
            Projection.HALF_EQUIRECTANGULAR: "equirectangular",
            Projection.EQUIRECTANGULAR: "equirectangular360",
            Projection.FISHEYE: "fisheye",
        }[description.projection],
        "stereo": _EYES[description.layout],
        "fov": description.fov_degrees or 0.0,
        "lens": description.camera if description.camera in ("MKX200", "MKX220", "VRCA220") else "Linear",
        "media": [{"name": f"{height}p", "sources": [_source(url, width, height, size_bytes)]}],
    }
    if subtitles:
        said["subtitles"] = [
            {"name": name, "language": name, "url": address} for name, address in subtitles.items()
        ]
    if description.is_packed_alpha:
        said["alphaPackedSettings"] = {"defaultSettings": True}
    return said


def deovr_json(
    description: VrDescription,
    *,
    title: str,
    url: str,
    width: int,
    height: int,
    size_bytes: int,
    duration_seconds: float | None = None,
    key_color: tuple[int, int, int] | None = None,
) -> dict[str, Any]:
    """Describe a video as DeoVR reads it from a server.

    Args:
        description: What the video is.
        title: For people.
        url: Of the video.
        width: Of its frames, in samples.
        height: Likewise.
        size_bytes: Of the file.
        duration_seconds: Of the video; None when it is not known.
        key_color: 8-bit RGB behind people, where it is a key; packed alpha goes by the description.
    """
    screen = {
        Projection.FLAT: "flat",
        Projection.HALF_EQUIRECTANGULAR: "dome",
        Projection.EQUIRECTANGULAR: "sphere",
        Projection.FISHEYE: "fisheye190" if description.fov_degrees == 190 else "fisheye",
    }[description.projection]
    stereo = "off" if description.layout is StereoLayout.MONO else _EYES[description.layout]
    source = _source(url, width, height, size_bytes)
    said: dict[str, Any] = {
        "authorized": 1,
        "title": title,
        "is3d": description.layout is not StereoLayout.MONO,
        "screenType": description.camera.lower() if description.camera else screen,
        "stereoMode": stereo,
        "videoLength": round(duration_seconds or 0),
        "encodings": [{"name": f"{height}p", "videoSources": [source]}],
    }
    if description.is_packed_alpha:
        said["chromakey"] = {
            "enabled": "true",
            "hasAlpha": "true",
            **dict.fromkeys("hsv", 0),
            "opacity": 1,
            "threshold": 0,
        }
    elif key_color is not None:
        hsv = colorsys.rgb_to_hsv(*(code / 255 for code in key_color))
        said["chromakey"] = _chroma_key(hsv, has_alpha=False)
    return said


_EYES = {StereoLayout.MONO: "mono", StereoLayout.SIDE_BY_SIDE: "sbs", StereoLayout.TOP_BOTTOM: "tb"}


def _source(url: str, width: int, height: int, size_bytes: int) -> dict[str, Any]:
    return {"resolution": height, "width": width, "height": height, "size": size_bytes, "url": url}


def _chroma_key(hsv: tuple[float, float, float], *, has_alpha: bool) -> dict[str, Any]:
    # Its truth values are words there.
    return {
        "enabled": "true",
        "hasAlpha": "true" if has_alpha else "false",
        **{name: round(value, 4) for name, value in zip("hsv", hsv, strict=True)},
        "opacity": 1,
        "threshold": 0 if has_alpha else 0.1,
    }
