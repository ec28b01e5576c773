"""Detects layout, projection and field of view of a video for a VR player, with the source and certainty of each.

The user's settings override the file's boxes, these its name, the name what the pictures show, and that the shape of
the frame. Contradictions between sources are reported, one line each.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import cv2
import numpy as np
import numpy.typing as npt

from vitascope.errors import UsageError
from vitascope.frames import Projection, StereoLayout, VideoInfo
from vitascope.gpu.kernels.region import Region
from vitascope.vr.file_names import VrName, read_name
from vitascope.vr.packing import USUAL_FOV_DEGREES, shows_discs
from vitascope.vr.projection import Equirectangular, Fisheye, Lens, Rectilinear
from vitascope.vr.stereo import eye_regions

Sureness = Literal["sure", "likely", "a guess"]
Picture = npt.NDArray[np.uint8]

NO_SIGN, _SAME_SCENE = "no sign of stereo", "both halves show the same scene"
"""Reasons for a layout."""
_MATTES = "mattes in the corners"
"""Reason for packed alpha's layout and projection."""


@dataclass(frozen=True, slots=True)
class Reason:
    """The source of a verdict, and its certainty."""

    how: str
    """Source for people: ``declared``, ``stereo box``, ``file name (_SBS)``, ``black corners around a circle`` …"""
    sureness: Sureness


@dataclass(frozen=True, slots=True)
class VrDescription:
    """A video's layout and projection, as needed by a VR player."""

    layout: StereoLayout
    projection: Projection
    fov_degrees: float | None
    """Horizontal field of view of an eye; None for a flat picture of unknown width."""
    lenses: tuple[Lens, ...]
    """One lens per eye, in the order of ``eye_regions``."""
    layout_reason: Reason
    projection_reason: Reason
    fov_reason: Reason
    right_eye_first: bool = False
    """True if the left or upper half belongs to the right eye."""
    is_half: bool = False
    """True if each eye is squeezed to half its width (side by side) or height (top-bottom)."""
    is_packed_alpha: bool = False
    """True if there are mattes in the corners around the fisheye circles."""
    camera: str | None = None
    """The camera's lens, if the name contains it: ``MKX200``, ``MKX220``, ``RF52`` or ``VRCA220``."""
    doubts: tuple[str, ...] = ()
    """Notes for the user, one line each."""

    @property
    def trusted_lens(self) -> Lens | None:
        """The projection of an eye; None if it is a guess."""
        return None if self.projection_reason.sureness == "a guess" else self.lenses[0]

    def in_words(self) -> str:
        """Layout and projection with their sources."""
        return eyes_in_words(
            self.layout.value, self.layout_reason.how, self.projection.value, self.projection_reason.how
        )


def refuse_packed_input(info: VideoInfo, found: VrDescription) -> None:
    """Refuse packed alpha as input for segmentation, unless the user declares it a plain fisheye.

    Raises:
        UsageError: It is packed alpha.
    """
    if found.is_packed_alpha and found.projection_reason.how != "declared":
        sign = "its name" if read_name(info.path.stem).is_packed_alpha else "the mattes in its corners"
        raise UsageError(
            f"{info.path}: packed alpha, by {sign}, so people are cut out already; vitascope vr convert --unpack "
            "key shows them on a colour, and --projection fisheye treats it as a plain fisheye video"
        )


def eyes_in_words(layout: str, layout_how: str, projection: str, projection_how: str) -> str:
    """Layout and projection with their sources; flat pictures need no projection."""
    words = f"{layout} ({layout_how})"
    return words if projection == Projection.FLAT.value else f"{words}, {projection} ({projection_how})"


def describe_vr(
    info: VideoInfo,
    pictures: Sequence[Picture] = (),
    *,
    layout: StereoLayout | None = None,
    projection: Projection | None = None,
    fov_degrees: float | None = None,
) -> VrDescription:
    """Detect the layout and projection of a video.

    Args:
        info: The video; its boxes, name and shape are used.
        pictures: Luma of some of its frames, uint8 [h, w], all of one size; none leaves out what only pictures show.
        layout: The user's choice; None to detect it.
        projection: Likewise.
        fov_degrees: Likewise, the horizontal field of view of an eye.

    Raises:
        UsageError: The projection cannot have this field of view.
    """
    name = _name_of(info, pictures, layout)
    doubts = list(name.doubts)
    if info.has_layered_eyes:
        doubts.append(
            "this is a spatial video (MV-HEVC), of which only the first eye is read; export it side by side to get both"
        )
    shows_mattes = shows_discs(pictures)
    found = _layout(info, name, pictures, layout, doubts, shows_mattes=shows_mattes)
    regions = eye_regions(info.width, info.height, found.layout)
    aspect = float(regions[0].width * info.sample_aspect_ratio / regions[0].height)
    if regions[0].size != regions[-1].size:
        doubts.append(
            f"the eyes have an odd size: the first is {_size(regions[0])}, the other {_size(regions[1])}"
        )
    elif regions[-1].x % (1 << info.format.chroma_shift_x) or regions[-1].y % (
        1 << info.format.chroma_shift_y
    ):
        doubts.append(
            f"the eyes have an odd size, {_size(regions[0])}: they share samples of colour at the seam"
        )
    _compare_eyes(pictures, found.layout, doubts)
    shows_mattes = shows_mattes and found.layout is StereoLayout.SIDE_BY_SIDE
    is_packed = shows_mattes or (name.is_packed_alpha and found.layout is StereoLayout.SIDE_BY_SIDE)
    circles = [None if is_packed else _circle(_eye(pictures, region, info), aspect) for region in regions]
    surface, surface_reason = _projection(
        info, name, pictures, projection, found.layout, aspect, circles, doubts, shows_mattes=shows_mattes
    )
    usual = USUAL_FOV_DEGREES if is_packed else 180.0
    fov, fov_reason = _fov(info, name, surface, surface_reason, fov_degrees, doubts, usual_of_fisheye=usual)
    is_half = found.layout is not StereoLayout.MONO and (
        name.is_half or _looks_squeezed(found.layout, surface, aspect)
    )
    if is_half:
        squeezed = "width" if found.layout is StereoLayout.SIDE_BY_SIDE else "height"
        doubts.append(f"each eye is squeezed to half its {squeezed}")
        aspect *= 2 if squeezed == "width" else 0.5
    lenses = tuple(lens_of(surface, fov, aspect=aspect, circle=circle) for circle in circles)
    if surface is Projection.FISHEYE:
        doubts += [
            f"the fisheye circle of {'the picture' if len(lenses) == 1 else f'eye {eye}'} is off centre or too small: "
            f"centre at {circle[0][0]:.0%} and {circle[0][1]:.0%}, radius {circle[1][0]:.0%} of the width"
            for eye, circle in enumerate(circles, start=1)
            if circle is not None and _is_off_centre(circle)
        ]
    has_two_eyes = found.layout is not StereoLayout.MONO
    return VrDescription(
        found.layout,
        surface,
        fov,
        lenses,
        layout_reason=Reason(found.reason, _sureness_of(found, name)),
        projection_reason=surface_reason,
        fov_reason=fov_reason,
        right_eye_first=has_two_eyes and _right_eye_first(info, name, doubts),
        is_half=is_half,
        is_packed_alpha=is_packed and surface is Projection.FISHEYE,
        camera=name.camera if surface is Projection.FISHEYE else None,
        doubts=tuple(doubts),
    )


def lens_of(
    projection: Projection, fov_degrees: float | None, *, aspect: float = 1.0, circle: Circle | None = None
) -> Lens:
    """The lens of an eye's picture.

    Args:
        projection: The picture's projection.
        fov_degrees: Its horizontal field of view; None means 180 degrees for a fisheye, 90 for a flat picture.
        aspect: Displayed width of the eye's picture over its height.
        circle: A fisheye's circle; when omitted, or nearly so, the largest that fits, in the middle.

    Raises:
        UsageError: The projection cannot have this field of view.
    """
    try:
        match projection:
            case Projection.FISHEYE:
                if circle is not None and _is_off_centre(circle):
                    return Fisheye(fov_degrees or 180.0, *circle)
                return Fisheye(fov_degrees or 180.0, radius=(0.5 * min(1, 1 / aspect), 0.5 * min(1, aspect)))
            case Projection.HALF_EQUIRECTANGULAR:
                return Equirectangular(fov_degrees or 180.0, 180.0)
            case Projection.EQUIRECTANGULAR:
                return Equirectangular(fov_degrees or 360.0, 180.0)
            case Projection.FLAT:
                across = math.radians(min(fov_degrees or 90.0, 180.0)) / 2
                return Rectilinear(
                    fov_degrees or 90.0, math.degrees(2 * math.atan(math.tan(across) / aspect))
                )
    except ValueError as error:
        raise UsageError(f"{projection.value}: {error}") from error


def _name_of(info: VideoInfo, pictures: Sequence[Picture], declared: StereoLayout | None) -> VrName:
    """Read the file name; if it names two layouts, take the one that another source names or the pictures show."""
    name = read_name(info.path.stem)
    other = name.otherwise
    if other is None or name.layout is None or other.layout is None:
        return name
    said = info.stereo if declared is None else declared
    if said is not None:
        return other if said is other.layout else replace(name, doubts=other.doubts, otherwise=None)
    if not pictures:
        return name
    for shown, hidden in ((name, other), (other, name)):
        assert shown.layout is not None  # both have one
        assert hidden.layout is not None
        if halves_alike(pictures, shown.layout) == "yes" != halves_alike(pictures, hidden.layout):
            doubt = (
                f"the file name says both {name.layout_word} and {other.layout_word}: the eyes are "
                f"{shown.layout.value}, judging by the frames; if that is wrong, give --stereo"
            )
            return replace(shown, doubts=(doubt, *other.doubts), otherwise=None)
    return name


def _layout(
    info: VideoInfo,
    name: VrName,
    pictures: Sequence[Picture],
    declared: StereoLayout | None,
    doubts: list[str],
    *,
    shows_mattes: bool,
) -> DetectedLayout:
    found = _said_layout(info, name, declared)
    possible = possible_layout(info.width, info.height)
    if found.reason == NO_SIGN and shows_mattes:
        found = DetectedLayout(StereoLayout.SIDE_BY_SIDE, _MATTES)
    elif found.reason == NO_SIGN and possible is not None and pictures:
        found = compare_halves(pictures, possible) or found
    if found.doubt is not None:
        doubts.append(found.doubt)
    for source, said in (
        ("the stereo box", info.stereo),
        (f"the file name ({name.layout_word})", name.layout),
    ):
        if said is not None and said is not found.layout:
            doubts.append(f"{source} says {said.value}, which is not {found.layout.value} ({found.reason})")
    is_squeezed = possible is not StereoLayout.SIDE_BY_SIDE and found.doubt is None
    if found.reason == NO_SIGN and is_squeezed:
        # eyes squeezed to half their width have the shape of plain video
        possible = StereoLayout.SIDE_BY_SIDE
    elif found.reason in (NO_SIGN, _SAME_SCENE, _MATTES):
        return found
    if not pictures:
        return found
    if found.layout is StereoLayout.MONO:
        if possible is not None and halves_alike(pictures, possible) == "yes":
            doubt = f"the halves show the same scene, as two eyes do that are {possible.value}"
            if declared is None:
                flag = "tb" if possible is StereoLayout.TOP_BOTTOM else "sbs"
                doubt += f": --stereo {flag} says so"
            doubts.append(doubt)
    elif halves_alike(pictures, found.layout) == "no":
        doubt = f"the halves do not show the same scene, as two eyes that are {found.layout.value} do"
        other, flag = _OTHERS[found.layout]
        if halves_alike(pictures, other) == "yes":
            doubt += f"; those that are {other.value} do: --stereo {flag} says so"
        doubts.append(doubt)
    return found


_OTHERS = {
    StereoLayout.SIDE_BY_SIDE: (StereoLayout.TOP_BOTTOM, "tb"),
    StereoLayout.TOP_BOTTOM: (StereoLayout.SIDE_BY_SIDE, "sbs"),
}
"""For each layout of two eyes the other one, and the user's option for it."""


@dataclass(frozen=True, slots=True)
class DetectedLayout:
    """A stereo layout and its source."""

    layout: StereoLayout
    reason: str
    """Source for people: ``declared``, ``stereo box``, ``file name (_SBS)`` or ``NO_SIGN``."""
    doubt: str | None = None
    """Asks the user to check the layout if it is uncertain; otherwise None."""


def detect_layout(info: VideoInfo, declared: StereoLayout | None = None) -> DetectedLayout:
    """Detect a video's stereo layout: the user's choice, otherwise the container's box, then the file name.

    Args:
        info: The video; its ``stereo`` and ``path`` are used.
        declared: The user's choice; None to detect it.
    """
    return _said_layout(info, read_name(info.path.stem), declared)


def _said_layout(info: VideoInfo, name: VrName, declared: StereoLayout | None) -> DetectedLayout:
    if declared is not None:
        return DetectedLayout(declared, "declared")
    if info.stereo is not None:
        return DetectedLayout(info.stereo, "stereo box")
    return _from_name(name)


# For two eyes of one scene, the median block of one half correlates with the other at 0.88 or more (rectified
# photographs, warped and noisy videos); for halves of one picture at 0.63 at most.
_SAME, _ALIKE = 0.8, 0.7
_SIDE_SAMPLES, _BLOCK_SAMPLES = 128, 16
_PARALLAX_SHARE, _MISALIGNED_SAMPLES = 0.08, 2
_LEAST_CONTRAST, _LEAST_BLOCKS = 4.0, 8


def possible_layout(width: int, height: int) -> StereoLayout | None:
    """The stereo layout that an undeclared frame of this shape may have; None for shapes of plain video."""
    if width >= 1.9 * height:
        return StereoLayout.SIDE_BY_SIDE
    # Eyes of 2:1 (360 degrees), or square ones (180 degrees) one above the other.
    is_top_bottom = 0.85 * height <= width <= 1.1 * height or 2 * width == height
    return StereoLayout.TOP_BOTTOM if is_top_bottom else None


def compare_halves(pictures: Sequence[Picture], layout: StereoLayout) -> DetectedLayout | None:
    """Check whether the halves of some frames are two views of one scene.

    Blocks of one half are searched in the other, slightly to the left and right, by normalised cross-correlation.

    Args:
        pictures: Luma of frames of one video, uint8 [h, w], any size.
        layout: The layout to test.

    Returns:
        The layout if they are; ``MONO`` with a doubt if they may be, as in all upright pictures with similar halves;
        None if they are not.
    """
    alike = halves_alike(pictures, layout)
    if alike in ("no", "unseen"):
        return None
    # Phones record 1:2 as well, and a curtain or bricks look the same above and below.
    height, width = pictures[0].shape
    if alike == "yes" and height < 1.5 * width:
        return DetectedLayout(layout, _SAME_SCENE)
    flag = "sbs" if layout is StereoLayout.SIDE_BY_SIDE else "tb"
    return DetectedLayout(
        StereoLayout.MONO,
        NO_SIGN,
        f"the halves look alike, but not enough to be sure that they are two eyes: give --stereo {flag} if they are, "
        "--stereo mono if not",
    )


def halves_alike(
    pictures: Sequence[Picture], layout: StereoLayout
) -> Literal["yes", "maybe", "no", "unseen"]:
    """Whether the halves of some frames are two views of one scene, see ``compare_halves``; ``unseen`` in the dark."""
    scores: list[float] = []
    for left, picture in zip(reversed(range(len(pictures))), pictures, strict=True):
        if (score := _likeness(picture, layout)) is None:
            continue
        scores.append(score)
        most = (len(scores) + left) // 2
        unlike, same = sum(one < _ALIKE for one in scores), sum(one >= _SAME for one in scores)
        if max(unlike, same) > most and len(scores) >= max(len(pictures) // 2, 1):
            return "yes" if same > unlike else "no"  # whatever the others show
    if len(scores) < max(len(pictures) // 2, 1):
        return "unseen"  # dark, or without texture
    score = float(np.median(scores))
    return "yes" if score >= _SAME else "maybe" if score >= _ALIKE else "no"


def _likeness(picture: Picture, layout: StereoLayout) -> float | None:
    height, width = picture.shape
    first, second = (
        cv2.resize(
            picture[eye.rows, eye.columns], (_SIDE_SAMPLES, _SIDE_SAMPLES), interpolation=cv2.INTER_AREA
        ).astype(np.float32)
        for eye in eye_regions(width, height, layout)
    )
    reach = int(_SIDE_SAMPLES * _PARALLAX_SHARE)
    padding = cv2.copyMakeBorder(
        second, _MISALIGNED_SAMPLES, _MISALIGNED_SAMPLES, reach, reach, cv2.BORDER_REPLICATE
    )
    scores = []
    for top in range(0, _SIDE_SAMPLES, _BLOCK_SAMPLES):
        for left in range(0, _SIDE_SAMPLES, _BLOCK_SAMPLES):
            block = first[top : top + _BLOCK_SAMPLES, left : left + _BLOCK_SAMPLES]
            _, contrast = cv2.meanStdDev(block)  # takes a tenth of NumPy's time for so few samples
            if contrast.item() < _LEAST_CONTRAST:
                continue
            around = padding[
                top : top + _BLOCK_SAMPLES + 2 * _MISALIGNED_SAMPLES, left : left + _BLOCK_SAMPLES + 2 * reach
            ]
            scores.append(float(cv2.matchTemplate(around, block, cv2.TM_CCOEFF_NORMED).max()))
    return float(np.median(scores)) if len(scores) >= _LEAST_BLOCKS else None


def _from_name(name: VrName) -> DetectedLayout:
    if name.layout is not None:
        return DetectedLayout(name.layout, f"file name ({name.layout_word})")
    if name.layout_word:
        return DetectedLayout(
            StereoLayout.MONO, f"{name.layout_word} alone is not a sign of stereo; if it is, give --stereo tb"
        )
    return DetectedLayout(StereoLayout.MONO, NO_SIGN)


def _sureness_of(found: DetectedLayout, name: VrName) -> Sureness:
    if found.reason in ("declared", "stereo box"):
        return "sure"
    if name.otherwise is not None:
        return "a guess"
    return (
        "likely"
        if found.layout is not StereoLayout.MONO or found.reason.startswith("file name")
        else "a guess"
    )


# Mean difference of two eyes' luma at 512 samples a frame: encoded copies of one picture differ by 0.2 to 0.4, eyes
# 20 mm apart looking at a distant landscape by 2.
_SAME_PICTURE_LUMA, _LEAST_CONTRAST_LUMA = 0.8, 8.0
_NOTHING_LUMA = 1.0
"""Contrast of an empty picture."""


def _compare_eyes(pictures: Sequence[Picture], layout: StereoLayout, doubts: list[str]) -> None:
    """Report if both eyes show one picture, or if one of them shows nothing."""
    if layout is StereoLayout.MONO or not pictures:
        return
    differences, contrasts = [], []
    for picture in pictures:
        first, second = (
            picture[region.rows, region.columns].astype(np.float32)
            for region in eye_regions(picture.shape[1] & ~1, picture.shape[0] & ~1, layout)
        )
        contrasts.append((float(first.std()), float(second.std())))
        if first.std() >= _LEAST_CONTRAST_LUMA:
            differences.append(float(np.abs(first - second).mean()))
    if differences and max(differences) < _SAME_PICTURE_LUMA:
        doubts.append("both eyes show the same picture: there is no depth")
    of_first, of_second = map(max, zip(*contrasts, strict=True))
    if max(of_first, of_second) >= _LEAST_CONTRAST_LUMA and min(of_first, of_second) < _NOTHING_LUMA:
        doubts.append(f"the {'first' if of_first < of_second else 'second'} eye shows nothing")


def _right_eye_first(info: VideoInfo, name: VrName, doubts: list[str]) -> bool:
    if info.stereo is None:
        return name.right_eye_first
    word = name.layout_word.lower()
    if (name.right_eye_first and not info.right_eye_first) or (info.right_eye_first and word in ("lr", "tb")):
        first = "right" if info.right_eye_first else "left"
        doubts.append(
            f"the stereo box says that the {first} eye is first, the file name ({name.layout_word}) not"
        )
    return info.right_eye_first


def _projection(
    info: VideoInfo,
    name: VrName,
    pictures: Sequence[Picture],
    declared: Projection | None,
    layout: StereoLayout,
    aspect: float,
    circles: Sequence[Circle | None],
    doubts: list[str],
    *,
    shows_mattes: bool,
) -> tuple[Projection, Reason]:
    named = name.projection
    if name.projection_word in ("180", "360") and not name.has_vr_word and not _fits(named, aspect):
        doubts.append(
            f"{name.projection_word} in the file name of a video of this shape is not taken as a sign of VR; "
            "if it is one, give --projection"
        )
        named = None
    has_circles = all(circle is not None for circle in circles)
    # a single circle may be a planet, or a lamp on a stage
    by_corners: Sureness = "likely" if layout is not StereoLayout.MONO or name.has_vr_word else "a guess"
    rim = Reason(_MATTES, "likely") if shows_mattes else Reason("black corners around a circle", by_corners)
    shape, shape_reason = _projection_of_shape(info, layout, aspect, pictures)
    claims = [
        (declared, Reason("declared", "sure")),
        (info.projection, Reason("projection box", "sure")),
        (named, Reason(f"file name ({name.projection_word})", "likely")),
        (Projection.FISHEYE if has_circles or shows_mattes else None, rim),
        (shape, shape_reason),
    ]
    surface, reason = next((surface, reason) for surface, reason in claims if surface is not None)
    for said, other in claims[:-1]:
        if said is not None and said is not surface:
            doubts.append(f"the {other.how}: {said.value}, which is not {surface.value} ({reason.how})")
    return surface, reason


_SQUARE, _TWO_TO_ONE = (0.9, 1.1), (1.9, 2.1)
_SQUEEZED_SQUARE = (0.45, 0.55)
_LEAST_VR_LINES = 1024
_EXACT_SQUARE = 0.02
"""Largest deviation of a VR180 eye from a square; eyes of a 1.85:1 video in half side by side have 0.92."""


def _fits(projection: Projection | None, aspect: float) -> bool:
    """True if an eye's shape is that of a projection, whole or squeezed."""
    low, high = _SQUARE if projection is Projection.HALF_EQUIRECTANGULAR else _TWO_TO_ONE
    return any(low <= aspect * factor <= high for factor in (1, 2, 0.5))


def _projection_of_shape(
    info: VideoInfo, layout: StereoLayout, aspect: float, pictures: Sequence[Picture]
) -> tuple[Projection, Reason]:
    if layout is StereoLayout.MONO:
        if _TWO_TO_ONE[0] <= aspect <= _TWO_TO_ONE[1] and _goes_around(pictures):
            return Projection.EQUIRECTANGULAR, Reason(
                "left and right border meet, and the poles are even", "a guess"
            )
        return Projection.FLAT, Reason("no sign of VR", "likely" if pictures else "a guess")
    for low, high, surface, shape in (
        (*_SQUARE, Projection.HALF_EQUIRECTANGULAR, "square"),
        (*_SQUEEZED_SQUARE, Projection.HALF_EQUIRECTANGULAR, "half a square"),
        (*_TWO_TO_ONE, Projection.EQUIRECTANGULAR, "2:1"),
    ):
        if low <= aspect <= high:
            # Small squares are not recorded for VR, and many small square pictures are photographs.
            is_likely = abs(aspect - 1) <= _EXACT_SQUARE and info.height >= _LEAST_VR_LINES
            return surface, Reason(f"each eye is {shape}", "likely" if is_likely else "a guess")
    return Projection.FLAT, Reason("the shape of the eyes", "a guess")


# Ratios of luma at 512 samples a frame. A pole is one direction, stretched over a whole row.
_SEAM_TO_NEIGHBOURS, _POLE_TO_PICTURE = 3.0, 0.35


def _goes_around(pictures: Sequence[Picture]) -> bool:
    """True if pictures are whole spheres: the right border continues at the left one, and the poles are uniform."""
    votes = []
    for picture in pictures:
        luma = picture.astype(np.float32)
        contrast = float(luma.std())
        if contrast < _LEAST_CONTRAST_LUMA or luma[:, 0].std() < _LEAST_CONTRAST_LUMA / 2:
            continue
        neighbours = float(np.abs(np.diff(luma, axis=1)).mean())
        seam = float(np.abs(luma[:, 0] - luma[:, -1]).mean())
        poles = max(float(luma[row].std()) for row in (0, -1))
        votes.append(
            seam <= _SEAM_TO_NEIGHBOURS * max(neighbours, 1.0) and poles <= _POLE_TO_PICTURE * contrast
        )
    return bool(votes) and sum(votes) * 2 > len(votes)


_FOV_OF = {
    Projection.HALF_EQUIRECTANGULAR: 180.0,
    Projection.EQUIRECTANGULAR: 360.0,
    Projection.FISHEYE: 180.0,
}


def _fov(
    info: VideoInfo,
    name: VrName,
    projection: Projection,
    projection_reason: Reason,
    declared: float | None,
    doubts: list[str],
    *,
    usual_of_fisheye: float,
) -> tuple[float | None, Reason]:
    if declared is not None:
        lens_of(projection, declared)
    boxed = info.fov_degrees if info.projection in (None, projection) else None
    if boxed is not None:
        try:
            lens_of(projection, boxed)
        except UsageError:
            doubts.append(
                f"the field of view box says {boxed:g} degrees, which no {projection.value} picture has"
            )
            boxed = None
    claims = [
        (declared, Reason("declared", "sure")),
        (boxed, Reason("field of view box", "sure")),
        (
            name.fov_degrees if projection is Projection.FISHEYE else None,
            Reason(f"file name ({name.projection_word})", "likely"),
        ),
    ]
    said = [(fov, reason) for fov, reason in claims if fov is not None]
    if not said:
        if projection is Projection.FISHEYE:
            doubts.append(
                f"the field of view of the fisheye is unknown: {usual_of_fisheye:g} degrees are assumed; "
                "if that is wrong, give --fov"
            )
            return usual_of_fisheye, Reason("usual for a fisheye", "a guess")
        if projection is Projection.FLAT:
            return None, Reason("unknown", "a guess")
        return _FOV_OF[projection], Reason(f"that of {projection.value}", projection_reason.sureness)
    taken, reason = said[0]
    doubts += [
        f"the {other.how}: {fov:g} degrees, which is not {taken:g} ({reason.how})"
        for fov, other in said[1:]
        if fov != taken
    ]
    return taken, reason


def _looks_squeezed(layout: StereoLayout, projection: Projection, aspect: float) -> bool:
    """True if the eyes' shape is half of the projection's; for flat pictures, half of 16:9."""
    whole = {Projection.EQUIRECTANGULAR: 2.0, Projection.FLAT: 16 / 9}.get(projection, 1.0)
    if layout is StereoLayout.SIDE_BY_SIDE:
        return 0.45 <= aspect / whole <= 0.55
    return 1.9 <= aspect / whole <= 2.1


def _circle(pictures: Sequence[Picture], aspect: float) -> Circle | None:
    """A circle in an eye's pictures that is round when displayed, or squeezed to half."""
    circle = find_circle(pictures)
    if circle is None:
        return None
    roundness = aspect * circle[1][0] / circle[1][1]
    return circle if any(0.85 <= roundness * factor <= 1.18 for factor in (1, 2, 0.5)) else None


def _eye(pictures: Sequence[Picture], region: Region, info: VideoInfo) -> list[Picture]:
    """An eye's part of reduced pictures."""
    eyes = []
    for picture in pictures:
        height, width = picture.shape
        top, bottom = (round(y * height / info.height) for y in (region.y, region.y + region.height))
        left, right = (round(x * width / info.width) for x in (region.x, region.x + region.width))
        eyes.append(picture[top:bottom, left:right])
    return eyes


# Share of the picture's sides. Circles are found within 0.02, even after strong compression.
_CENTERED = 0.03


def _is_off_centre(circle: Circle) -> bool:
    return max(abs(place - 0.5) for pair in circle for place in pair) > _CENTERED


def _size(region: Region) -> str:
    return f"{region.width}x{region.height}"


Circle = tuple[tuple[float, float], tuple[float, float]]
"""Centre (x, y) and radius (x, y), as fractions of the picture's width and height."""

# shares of the picture's sides; 8-bit luma
_CORNER, _DARKEST_CORNERS_LUMA, _ABOVE_CORNERS_LUMA = 0.05, 44.0, 10.0
_NEAR, _LEAST_NEAR_SHARE = 0.02, 0.5
_LEAST_OUTSIDE_SHARE, _LEAST_DARK_SHARE = 0.02, 0.98
_CENTERS, _RADII = (0.3, 0.7), (0.3, 0.75)
_FITS = 8


def find_circle(pictures: Sequence[npt.NDArray[np.uint8]]) -> Circle | None:
    """Find the circle that some pictures of one eye show, with black corners around it.

    Args:
        pictures: Luma of frames of one video, uint8 [h, w], all of one size.

    Returns:
        Centre and radius; None if there is no such circle.
    """
    if not pictures or min(pictures[0].shape) < 16:
        return None
    # whatever is ever bright is inside, however dark a single frame is
    brightest = np.max(np.stack(pictures), axis=0).astype(np.float32)
    height, width = brightest.shape
    deep, broad = max(round(height * _CORNER), 2), max(round(width * _CORNER), 2)
    corners = [
        brightest[rows, columns]
        for rows in (slice(0, deep), slice(height - deep, height))
        for columns in (slice(0, broad), slice(width - broad, width))
    ]
    corner_luma = max(float(np.percentile(corner, 95)) for corner in corners)
    if corner_luma > _DARKEST_CORNERS_LUMA:
        return None
    bright = brightest > corner_luma + _ABOVE_CORNERS_LUMA
    circle = _fitted(_border(bright))
    if circle is None:
        return None
    (x, y), (radius_x, radius_y) = circle
    if not all(_CENTERS[0] <= place <= _CENTERS[1] for place in (x, y)):
        return None
    if not all(_RADII[0] <= radius <= _RADII[1] for radius in (radius_x, radius_y)):
        return None
    rows, columns = (np.arange(height) + 0.5) / height, (np.arange(width) + 0.5) / width
    distance = np.hypot(((rows - y) / radius_y)[:, None], ((columns - x) / radius_x)[None])
    outside = distance > 1 + 2 * _NEAR
    if outside.mean() < _LEAST_OUTSIDE_SHARE or (~bright[outside]).mean() < _LEAST_DARK_SHARE:
        return None
    return circle


def _border(bright: npt.NDArray[np.bool_]) -> npt.NDArray[np.float64]:
    """The outermost bright points of each row and column inside the picture's own border: float64 [n, 2], x y."""
    height, width = bright.shape
    places: list[tuple[float, float]] = []
    for row in np.flatnonzero(bright.any(axis=1)):
        columns = np.flatnonzero(bright[row])
        places += [(edge / width, (row + 0.5) / height) for edge in (columns[0], columns[-1] + 1)]
    for column in np.flatnonzero(bright.any(axis=0)):
        rows = np.flatnonzero(bright[:, column])
        places += [((column + 0.5) / width, edge / height) for edge in (rows[0], rows[-1] + 1)]
    found = np.array(places, np.float64).reshape(-1, 2)
    one = 1.5 / np.array([width, height])
    return np.asarray(found[((found > one) & (found < 1 - one)).all(axis=1)])


def _fitted(border: npt.NDArray[np.float64]) -> Circle | None:
    """Fit an upright ellipse through border points; inner points, where the scene's rim is dark, do not count."""
    kept = border
    for turn in range(_FITS):
        if len(kept) < 16:
            return None
        x, y = kept[:, 0] - 0.5, kept[:, 1] - 0.5
        # a x^2 + b y^2 + c x + d y = 1
        (a, b, c, d), *_ = np.linalg.lstsq(np.stack([x**2, y**2, x, y], axis=1), np.ones(len(x)), rcond=None)
        if min(a, b) <= 0:
            return None
        center_x, center_y = -c / (2 * a), -d / (2 * b)
        size = 1 + a * center_x**2 + b * center_y**2
        radius_x, radius_y = (size / a) ** 0.5, (size / b) ** 0.5
        distance = np.hypot(
            (border[:, 0] - 0.5 - center_x) / radius_x, (border[:, 1] - 0.5 - center_y) / radius_y
        )
        # First remove points dark inside, which lie on one side only; at the end also glow around the circle.
        kept = border[distance > 1 - _NEAR] if turn < _FITS // 2 else border[np.abs(distance - 1) <= _NEAR]
    if (np.abs(distance - 1) <= _NEAR).mean() < _LEAST_NEAR_SHARE:
        return None
    return (float(center_x + 0.5), float(center_y + 0.5)), (float(radius_x), float(radius_y))
