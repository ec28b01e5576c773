"""Reads a VR video's file name: the words that studios, cameras and players put between separators.

Only whole words count: "ours_180.mp4" must not be read as "ou", nor "slr.mp4" as "lr". Words with another meaning
("ou" is French, "BT" a company, "alpha" a stage of a project) count only beside a VR or 3D word.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from vitascope.frames import Projection, StereoLayout

_SIDE_BY_SIDE = frozenset({"sbs", "hsbs", "fsbs", "halfsbs", "fullsbs", "lr", "rl", "lrf", "3dh", "180x180"})
_TOP_BOTTOM = frozenset({"htb", "ftb", "hou", "fou", "overunder", "topbottom", "3dv"})
_AMBIGUOUS_TOP_BOTTOM = frozenset({"tb", "bt", "ou"})
_WORDS_OF: dict[StereoLayout | None, frozenset[str]] = {
    StereoLayout.SIDE_BY_SIDE: _SIDE_BY_SIDE,
    StereoLayout.TOP_BOTTOM: _TOP_BOTTOM | _AMBIGUOUS_TOP_BOTTOM,
}
_MONO = frozenset({"mono", "2d"})
_HALF = frozenset({"hsbs", "halfsbs", "htb", "hou"})
_RIGHT_EYE_FIRST = frozenset({"rl", "bt"})
_FLAT = frozenset(
    {"flat", "hsbs", "fsbs", "halfsbs", "fullsbs", "lrf", "3dh", "htb", "ftb", "hou", "fou", "3dv"}
)
# Field of view in degrees. Lens names and "VR180" mean two eyes side by side unless another word contradicts; a bare
# "180" may be one eye, and says nothing about the layout.
_LENSES = {"mkx200": 200.0, "mkx220": 220.0, "rf52": 190.0, "vrca220": 220.0}
_FISHEYE = re.compile(r"fisheye(\d*)")
_FISHEYE_DEGREES = re.compile(r"f(\d{3})")
_PLAUSIBLE_FISHEYE_DEGREES = (90.0, 280.0)
_HALF_EQUIRECTANGULAR = frozenset({"180", "vr180", "180x180"})
_EQUIRECTANGULAR = frozenset({"360", "vr360"})
_VR_HINTS = frozenset({"vr180", "vr", "3d", "180", "360", "vr360", "stereo", "8k", "6k", "5k", "equirect"})
_ALPHA = "alpha"
# These belong to an ending only after another of its words.
_WORDS_BEHIND_OTHERS = frozenset(
    {_ALPHA, "passthrough", "full", "half", "mono", "2d", *_AMBIGUOUS_TOP_BOTTOM}
)
_SEPARATORS = r"[_\-. ()\[\]]+"
_WORD = r"[^_\-. ()\[\]]+"


@dataclass(frozen=True, slots=True)
class VrName:
    """What a name says; each ``word`` as spelt in it."""

    layout: StereoLayout | None = None
    layout_word: str = ""
    projection: Projection | None = None
    projection_word: str = ""
    fov_degrees: float | None = None
    """Field of view of a fisheye lens."""
    right_eye_first: bool = False
    is_half: bool = False
    """True if the name says that the eyes are squeezed to half their width or height."""
    is_packed_alpha: bool = False
    """True for a fisheye's name with the word alpha."""
    camera: str | None = None
    """The camera's lens, in capitals: ``MKX200``, ``MKX220``, ``RF52`` or ``VRCA220``."""
    has_vr_word: bool = False
    """True if the name has VR words other than bare numbers."""
    doubts: tuple[str, ...] = ()
    """Words that contradict each other or mean nothing, one line each."""
    otherwise: VrName | None = None
    """If the name has words for two layouts: the reading with the other one, without a doubt about that."""


def read_name(stem: str) -> VrName:
    """Read a file name.

    Args:
        stem: The name without folder and suffix.
    """
    words = [word for word in re.split(_SEPARATORS, stem) if word]
    lower = {word.lower() for word in words}
    doubts: list[str] = []
    projection, projection_word, fov_degrees = _projection(words, lower, doubts)
    readings = [
        VrName(
            layout,
            layout_word,
            projection,
            projection_word,
            fov_degrees,
            right_eye_first=bool(lower & _RIGHT_EYE_FIRST & _WORDS_OF.get(layout, frozenset())),
            is_half=bool(lower & _HALF & _WORDS_OF.get(layout, frozenset())),
            is_packed_alpha=projection is Projection.FISHEYE and _ALPHA in lower,
            camera=projection_word.upper() if projection_word.lower() in _LENSES else None,
            has_vr_word=_has_hint(lower - {"180", "360"}) or layout is not None,
            doubts=tuple(doubts),
        )
        for layout, layout_word in _layouts(words, lower)
    ]
    name = readings[0]
    if len(readings) == 1:
        return name
    first, other = (reading.layout_word for reading in readings)
    doubt = f"the file name says both {first} and {other}: {first} is used; if that is wrong, give --stereo"
    return replace(name, doubts=(doubt, *doubts), otherwise=readings[1])


def without_vr_words(stem: str) -> str:
    """Remove the VR words for players from a name: ``wedding_8K_LR_180`` becomes ``wedding_8K``.

    A whole ending is removed. Before it, as in ``wedding_TB_180_cut``, only words for a layout or projection are
    removed, since players would read them together with those of another ending.

    Args:
        stem: The name without folder and suffix; if it consists of such words only, the result is ``vr``.
    """
    left = _without_ending(stem)
    places = list(re.finditer(_WORD, left))
    kept = places
    while word := _naming_word([place[0] for place in kept]):
        kept = [place for place in kept if place[0] != word]
    if len(kept) == len(places):
        return left
    plain, end, is_joined = "", 0, True
    for place in places:
        if place in kept:
            gap = left[end : place.start()]
            plain += (gap if is_joined else (gap.lstrip(")]") or "_") if plain else "") + place[0]
        end, is_joined = place.end(), place in kept
    return plain + (left[end:] if is_joined else "") or "vr"


def _naming_word(words: list[str]) -> str:
    """A word that would name a layout or projection beside VR words, but not the French ``ou``; empty without one."""
    telling = [word for word in words if word not in _AMBIGUOUS_TOP_BOTTOM or word == "tb"]
    name = read_name(" ".join([*telling, "VR"]))
    return name.projection_word if name.layout is None else name.layout_word


def _without_ending(stem: str) -> str:
    places = list(re.finditer(_WORD, stem))
    begin = len(places)
    while begin and (_is_vr_word(places[begin - 1][0]) or _is_behind_others(places[begin - 1][0])):
        begin -= 1
    while begin < len(places) and not (_is_vr_word(places[begin][0]) or _begins_ending(places[begin:])):
        begin += 1
    if begin == len(places):
        return stem
    return re.sub(rf"{_SEPARATORS}$", "", stem[: places[begin].start()]) or "vr"


def _is_vr_word(word: str) -> bool:
    word = word.lower()
    return (
        word in _SIDE_BY_SIDE | _TOP_BOTTOM | _HALF_EQUIRECTANGULAR | _EQUIRECTANGULAR
        or word in _LENSES
        or _FISHEYE.fullmatch(word) is not None
    )


def _is_behind_others(word: str) -> bool:
    return word.lower() in _WORDS_BEHIND_OTHERS or _FISHEYE_DEGREES.fullmatch(word.lower()) is not None


def _begins_ending(places: list[re.Match[str]]) -> bool:
    """True for the number of eyes before another VR word: ``TB_360``, ``MONO_180``, but not the French ``ou``."""
    word = places[0][0]
    counts_eyes = word.lower() in _MONO | {"tb"} or (word.lower() in _AMBIGUOUS_TOP_BOTTOM and word.isupper())
    return counts_eyes and len(places) > 1 and _is_vr_word(places[1][0])


def _is_lens(word: str) -> bool:
    return word in _LENSES or word == "vr180" or _FISHEYE.fullmatch(word) is not None


def _has_hint(lower: frozenset[str] | set[str]) -> bool:
    return any(word in _VR_HINTS or _is_lens(word) for word in lower)


def _layouts(words: list[str], lower: set[str]) -> list[tuple[StereoLayout | None, str]]:
    """Layouts with their words; two if words contradict each other, the more likely one first."""
    top_bottom = _TOP_BOTTOM | (_AMBIGUOUS_TOP_BOTTOM if _has_hint(lower) else frozenset())
    # A word for a layout outweighs one for a single eye ("2D_3D_sbs"), and that outweighs a lens ("fisheye_mono").
    side = next((word for word in words if word.lower() in _SIDE_BY_SIDE), None)
    over = next((word for word in words if word.lower() in top_bottom), None)
    if side is not None and over is not None and over.lower() not in ("ou", "bt"):
        return [(StereoLayout.SIDE_BY_SIDE, side), (StereoLayout.TOP_BOTTOM, over)]
    mono = next((word for word in words if word.lower() in _MONO), None)
    lens = next((word for word in words if _is_lens(word.lower())), None)
    for word, layout in (
        (side, StereoLayout.SIDE_BY_SIDE),
        (over, StereoLayout.TOP_BOTTOM),
        (mono, StereoLayout.MONO),
        (lens, StereoLayout.SIDE_BY_SIDE),
    ):
        if word is not None:
            return [(layout, word)]
    return [(None, next((word for word in words if word.lower() in _AMBIGUOUS_TOP_BOTTOM), ""))]


def _projection(
    words: list[str], lower: set[str], doubts: list[str]
) -> tuple[Projection | None, str, float | None]:
    for word in words:
        if word.lower() in _LENSES:
            return Projection.FISHEYE, word, _LENSES[word.lower()]
        if match := _FISHEYE.fullmatch(word.lower()):
            # in "_LR_180_FISHEYE_F180" the angle is a separate word
            apart = (found[1] for found in map(_FISHEYE_DEGREES.fullmatch, lower) if found)
            degrees = match[1] or next(apart, "")
            if not degrees:
                return Projection.FISHEYE, word, None
            least, most = _PLAUSIBLE_FISHEYE_DEGREES
            if least <= float(degrees) <= most:
                return Projection.FISHEYE, word, float(degrees)
            doubts.append(
                f"{word} in the file name is not the field of view of a fisheye ({least:g} to {most:g} degrees); "
                "give it with --fov"
            )
            return Projection.FISHEYE, word, None
    for known, projection in (
        (_HALF_EQUIRECTANGULAR, Projection.HALF_EQUIRECTANGULAR),
        (_EQUIRECTANGULAR, Projection.EQUIRECTANGULAR),
        (_FLAT, Projection.FLAT),
    ):
        for word in words:
            if word.lower() in known:
                return projection, word, None
    return None, "", None
