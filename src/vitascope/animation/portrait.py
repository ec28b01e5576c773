"""Loads a portrait: reads a picture file, makes it upright and opaque, and finds its face."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import cv2
import numpy as np
import numpy.typing as npt

from vitascope.animation.face import FloatArray, RgbPicture, TrackedFace
from vitascope.animation.landmarks_file import landmarks_path, read_landmarks
from vitascope.animation.mesh.response import Curve
from vitascope.animation.mesh.rig import MIN_FACE_PIXELS
from vitascope.animation.tracking import FaceModel, FaceTracker
from vitascope.errors import InputError, ModelUnavailableError, UsageError
from vitascope.gpu.kernels.look_alike import look_alike
from vitascope.media.metadata.icc import picture_primaries
from vitascope.media.planes import RGB_COLOR
from vitascope.media.reading.images import is_tiff_with_alpha, picture_size

PortraitFace = Literal["largest"] | int
"""The face to animate: the largest, or the n-th from the left, counted from 0."""

_PROFILE_DEGREES = 50.0
_MOST_FACES = 16
_WEAKEST = 0.05
"""Minimum confidence of the detector's best guess, which is only shown."""
_OTHERS_VIEW = 2.5
"""Minimum side of the squares in which to look for more faces around a face, in sizes of that face."""
_LOOKED_AT_AGAIN, _SAME_PLACE, _LOOKS_AGAIN = 2.0, 0.05, 4
"""Side of the square in which a face is detected again, in sizes of the face; the motion of its points below
which this ends, in the same unit; and the maximum number of repeats. Points moved by 0.001 to 0.014 in 18
portraits, by 0.11 and 0.31 in two with wrong points."""
_MAX_PIXELS = 1 << 28
"""Maximum number of pixels: above the 200 million of the largest phone cameras; FFmpeg cannot read the size
of larger pictures."""
_HEIC = frozenset(
    b"ftyp" + brand for brand in (b"heic", b"heif", b"heim", b"heis", b"heix", b"mif1", b"mif2")
)
"""First bytes of a phone's photo file (ISO/IEC 23008-12)."""
_MAX_FILE_BYTES = 1 << 30
_ROWS_BLENDED = 256
"""Process one block at a time: a portrait of 200 million pixels in floating point takes 3 GB."""
_PROFILE_BYTES = 1 << 20
"""Size of the beginning of a file that contains its ICC profile."""
_SMALL_PIXELS = 96
"""Sides below which even a face that fills the picture is too small, or nearly so."""
_TRANSPARENT = 255.0
"""Value behind transparent pixels: white, as in picture viewers."""


@dataclass(frozen=True, slots=True, eq=False)
class Portrait:
    """A portrait that can be animated."""

    rgb: RgbPicture
    face: TrackedFace
    notes: tuple[str, ...] = ()
    """Notes for the user, one line each."""
    curves: Mapping[str, Curve] | None = None
    """Its measured response to expressions, if stored with its landmarks."""


def load_portrait(
    picture: Path | npt.NDArray[Any],
    *,
    model: FaceModel,
    face: PortraitFace = "largest",
    max_side: int = 3840,
    guess: Path | None = None,
    finds_anew: bool = False,
) -> Portrait:
    """Read a portrait and find its face, or read the face from ``PICTURE.landmarks``.

    Args:
        picture: A picture file, or uint8 [H, W, 3], upright R'G'B', which is copied.
        model: Returns the file ``face_landmarker.task``; not called if the landmarks were stored.
        face: Which face to use, if there are several.
        max_side: Maximum side in pixels; larger pictures are shrunk.
        guess: PNG file for the detector's best guess if no face is found; None writes none.
        finds_anew: Find the face again even if it was stored.

    Raises:
        InputError: The file cannot be read, or the face is missing, not among those found, or too small.
        UsageError: The array is not a picture.
        ModelError: The network that finds faces is unavailable.
        MissingDependencyError: MediaPipe is not installed.
    """
    saved = None
    if isinstance(picture, Path):
        name = str(picture)
        rgb, notes = read_picture(picture, max_side=max_side)
        saved = None if finds_anew else read_landmarks(picture, chosen=face)
        if saved is not None and saved.face.picture_size[0] < rgb.shape[1]:
            saved = None  # it was found less exactly, in a smaller version of the picture
    else:
        name = "the portrait"
        rgb, notes = _shrunk(require_rgb(picture, what=name).copy(), max_side)
    if saved is not None:
        chosen = _resized(saved.face, (rgb.shape[1], rgb.shape[0]))
        more = [f"the face comes from {landmarks_path(Path(name))}; no network was needed"]
    else:
        try:
            file = model()
        except ModelUnavailableError as error:
            raise ModelUnavailableError(f"{name}: finding its face needs a network: {error}") from error
        faces = _find(rgb, file, confidence=0.5)
        if not faces:
            raise InputError(_no_face(name, rgb, file, guess))
        chosen, more = _choose(name, faces, face)
    if chosen.size_pixels < MIN_FACE_PIXELS:
        hint = "use a larger picture"
        if max(rgb.shape[:2]) == max_side:
            hint = f"crop the picture: larger ones are shrunk to {max_side} pixels (animation.max_side)"
        raise InputError(
            f"{name}: the face is {chosen.size_pixels:.0f} pixels wide, and {MIN_FACE_PIXELS} are needed; {hint}"
        )
    yaw = chosen.angles_degrees[0]
    if abs(yaw) > _PROFILE_DEGREES:
        more.append(f"the face is turned by {abs(yaw):.0f} degrees; its hidden side cannot be shown")
    return Portrait(rgb, chosen, (*notes, *more), None if saved is None else saved.curves)


def _resized(face: TrackedFace, size: tuple[int, int]) -> TrackedFace:
    """Scale a face to its picture's new size."""
    scale = size[0] / face.picture_size[0]
    return replace(face, landmarks=_moved(face.landmarks, scale, np.zeros(3, np.float32)), picture_size=size)


def read_picture(path: Path, *, max_side: int) -> tuple[RgbPicture, list[str]]:
    """Read a picture file as upright opaque sRGB: EXIF rotation applied, alpha on white; CMYK, grey and P3 converted.

    Returns:
        uint8 [H, W, 3], and notes for the user.

    Raises:
        InputError: The file cannot be read, or OpenCV cannot decode it.
    """
    try:
        if path.exists() and not path.is_file():
            raise InputError(f"{path}: a portrait must be a picture file, not a folder, a pipe or a device")
        if path.stat().st_size > _MAX_FILE_BYTES:
            raise InputError(
                f"{path}: larger than {_MAX_FILE_BYTES / 1e9:.1f} GB; a portrait is a picture file"
            )
        size = picture_size(path)
        if size is not None and not 0 < size[0] * size[1] < _MAX_PIXELS:
            raise _unreadable(path, size)
        data = np.frombuffer(path.read_bytes(), np.uint8)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error})") from error
    logging = cv2.utils.logging
    before = logging.setLogLevel(logging.LOG_LEVEL_SILENT)  # the error below replaces its output
    try:
        # IMREAD_COLOR rotates by EXIF and converts CMYK, grey and 16 bits; only IMREAD_UNCHANGED keeps alpha.
        bgr = cv2.imdecode(data, cv2.IMREAD_COLOR) if len(data) else None
        raw = cv2.imdecode(data, cv2.IMREAD_UNCHANGED) if bgr is not None else None
    except cv2.error as error:
        raise InputError(f"{path}: cannot be decoded ({' '.join(str(error).split())[:120]})") from error
    finally:
        logging.setLogLevel(before)
    if bgr is None:
        if data[4:12].tobytes() in _HEIC:
            raise InputError(f"{path}: HEIC pictures cannot be read; save it as JPEG or PNG first")
        raise _unreadable(path, (0, 0))
    if bgr.shape[0] * bgr.shape[1] >= _MAX_PIXELS:
        raise _unreadable(path, (bgr.shape[1], bgr.shape[0]))
    notes = []
    if raw is not None and raw.ndim == 3 and raw.shape[2] == 4 and raw.shape[:2] == bgr.shape[:2]:
        peak = {"uint8": 255.0, "uint16": 65535.0}.get(raw.dtype.name, 1.0)
        if raw[..., 3].min() < peak:
            # OpenCV converts TIFF to 8 bits by libtiff, which multiplies colours by the alpha channel.
            _show_on_white(bgr, raw[..., 3:], peak, is_premultiplied=is_tiff_with_alpha(data))
            notes.append("transparent parts of the portrait are shown on white")
    bgr, more = _shrunk(bgr, max_side)
    rgb: RgbPicture = np.ascontiguousarray(bgr[..., ::-1]).astype(np.uint8, copy=False)
    _show_as_srgb(rgb, picture_primaries(data[:_PROFILE_BYTES].tobytes()))
    return rgb, notes + more


def _show_as_srgb(rgb: RgbPicture, primaries: int) -> None:
    """Convert a wider gamut (H.273 ColourPrimaries) to sRGB, in place: phones take photos in P3."""
    convert = look_alike(replace(RGB_COLOR, primaries=primaries), RGB_COLOR)
    if convert is None:
        return
    for first in range(0, len(rgb), _ROWS_BLENDED):
        rows = rgb[first : first + _ROWS_BLENDED]
        planes = convert(np.moveaxis(rows, -1, 0).astype(np.float32) / 255)
        rows[...] = np.moveaxis(np.rint(planes * 255), 0, -1).astype(np.uint8)


def require_rgb(picture: object, *, what: str) -> RgbPicture:
    """Check that an array is a picture, uint8 [H, W, 3], and return a C-contiguous view or copy.

    Raises:
        UsageError: It is another kind of array, or not an array, such as None from a camera without a frame.
    """
    if not isinstance(picture, np.ndarray):
        found = type(picture).__name__
        raise UsageError(f"{what} is {found}, expected a NumPy array, uint8 [height, width, 3], R'G'B'")
    if picture.dtype != np.uint8 or picture.shape[2:] != (3,) or not picture.size:
        found = f"{picture.dtype} {list(picture.shape)}"
        raise UsageError(f"{what} is {found}, expected uint8 [height, width, 3], R'G'B'")
    return np.ascontiguousarray(picture)


def _shrunk(picture: npt.NDArray[Any], max_side: int) -> tuple[npt.NDArray[Any], list[str]]:
    """Shrink a picture to a maximum side, with a note if that was necessary."""
    height, width = picture.shape[:2]
    if max(height, width) <= max_side:
        return picture, []
    scale = max_side / max(height, width)
    size = (max(2, round(width * scale)), max(2, round(height * scale)))
    note = f"the portrait of {width}x{height} was shrunk to {size[0]}x{size[1]} (animation.max_side)"
    return cv2.resize(picture, size, interpolation=cv2.INTER_AREA), [note]


def _unreadable(path: Path, size: tuple[int, int]) -> InputError:
    if all(size):
        most = f"the limit is {_MAX_PIXELS / 1e6:.3g} million"
        return InputError(f"{path}: {size[0]}x{size[1]} is too many pixels ({most}); shrink it")
    return InputError(
        f"{path}: not a readable picture (JPEG, PNG, WebP, TIFF, BMP …), or damaged; a video goes with --driver"
    )


def _show_on_white(
    bgr: npt.NDArray[Any], alpha: npt.NDArray[Any], peak: float, *, is_premultiplied: bool
) -> None:
    """Blend a picture with white where it is transparent, in place.

    Args:
        bgr: uint8 [H, W, 3].
        alpha: [H, W, 1], 0..``peak``.
        peak: The value of opaque alpha.
        is_premultiplied: ``bgr`` is multiplied by alpha already.
    """
    for first in range(0, len(bgr), _ROWS_BLENDED):
        rows = slice(first, first + _ROWS_BLENDED)
        share = alpha[rows].astype(np.float32) / peak
        colours = bgr[rows] if is_premultiplied else bgr[rows] * share
        bgr[rows] = np.rint(np.minimum(colours + _TRANSPARENT * (1 - share), 255)).astype(np.uint8)


def with_even_sides(portrait: Portrait) -> Portrait:
    """Remove a last odd row and column: players and encoders need 4:2:0, whose sides are even."""
    height, width = portrait.rgb.shape[:2]
    if height % 2 == 0 and width % 2 == 0:
        return portrait
    rgb = portrait.rgb[: height // 2 * 2, : width // 2 * 2].copy()
    return replace(portrait, rgb=rgb, face=replace(portrait.face, picture_size=(rgb.shape[1], rgb.shape[0])))


def _find(rgb: RgbPicture, model: Path, *, confidence: float) -> list[TrackedFace]:
    """Find the faces of a picture, largest first, in several crops of it.

    The detector reads 128x128 pixels and finds faces that fill a tenth to most of them. So it finds a small
    face in a crop, and one that fills the picture with a border added.
    """
    found: list[TrackedFace] = []
    with FaceTracker(model, mode="image", max_faces=_MOST_FACES, min_confidence=confidence) as tracker:
        height, width = rgb.shape[:2]
        for cut in _cuts(width, height):
            # A portrait's face fills a third of it; beside a smaller face, others may be too small to detect.
            if found and cut[0][2] < _OTHERS_VIEW * found[0].size_pixels:
                break
            faces = [
                face
                for left, top, side in cut
                for face in _find_in(tracker, rgb, left=left, top=top, side=side)
            ]
            # If two crops show a face, use the larger crop: the smaller one may cut it off.
            found = _distinct([*found, *sorted(faces, key=lambda face: -face.size_pixels)])
            found.sort(key=lambda face: -face.size_pixels)
        if confidence > _WEAKEST:
            settled = (_settled(tracker, rgb, face) for face in found)
            found = _distinct([face for face in settled if face is not None])
    return sorted(found, key=lambda face: -face.size_pixels)


def _settled(tracker: FaceTracker, rgb: RgbPicture, face: TrackedFace) -> TrackedFace | None:
    """Detect a face again around where it was found, until it stays; None if it is not a face.

    MediaPipe put a mouth on a throat in a picture of several people, and a face around an ear in a profile.
    """
    for _ in range(_LOOKS_AGAIN):
        left, top, right, bottom = face.box
        side = round(_LOOKED_AT_AGAIN * max(right - left, bottom - top))
        middle = (left + right - side) / 2, (top + bottom - side) / 2
        again = _find_in(tracker, rgb, left=round(middle[0]), top=round(middle[1]), side=side)
        if not again:
            return None

        def away(one: TrackedFace, before: TrackedFace = face) -> float:
            apart = one.landmarks[:, :2] - before.landmarks[:, :2]
            return float(np.linalg.norm(apart, axis=1).mean()) / before.size_pixels

        nearest = min(again, key=away)
        if away(nearest) < _SAME_PLACE:
            return face
        face = nearest
    return None


def _cuts(width: int, height: int) -> list[list[tuple[int, int, int]]]:
    """List the squares (left, top, side) to search, in order; they may extend beyond the picture."""
    longest, shortest = max(width, height), min(width, height)
    whole = [((width - longest) // 2, (height - longest) // 2, longest)]
    wide = round(1.6 * longest)
    border = [((width - wide) // 2, (height - wide) // 2, wide)]
    tries = [whole, border]
    for parts in (2, 4, 8):
        side = max(round(1.5 * longest / parts), 64)
        if side >= longest or shortest < 64:
            continue
        step = max(side // 2, 1)
        tries.append(
            [(left, top, side) for top in range(0, max(height - side // 2, 1), step)
             for left in range(0, max(width - side // 2, 1), step)]
        )  # fmt: skip
    return tries


def _find_in(tracker: FaceTracker, rgb: RgbPicture, *, left: int, top: int, side: int) -> list[TrackedFace]:
    """Find the faces in a square of the picture, in the picture's pixels."""
    height, width = rgb.shape[:2]
    x0, y0, x1, y1 = max(left, 0), max(top, 0), min(left + side, width), min(top + side, height)
    if x1 - x0 < 2 or y1 - y0 < 2:
        return []
    part: npt.NDArray[Any] = rgb[y0:y1, x0:x1]
    if left < 0 or top < 0 or left + side > width or top + side > height:
        part = cv2.copyMakeBorder(
            part,
            y0 - top,
            top + side - y1,
            x0 - left,
            left + side - x1,
            cv2.BORDER_CONSTANT,
            value=(127, 127, 127),
        )
    # MediaPipe refines landmarks on 256 pixels of face: a larger square only takes longer.
    scale = min(1.0, 1920 / side)
    if scale < 1:
        part = cv2.resize(part, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA)
    shift = np.array([left, top, 0], np.float32)
    return [
        replace(
            face, landmarks=_moved(face.landmarks, side / part.shape[0], shift), picture_size=(width, height)
        )
        for face in tracker.find(np.ascontiguousarray(part, np.uint8))
    ]


def _moved(landmarks: FloatArray, scale: float, shift: npt.NDArray[np.float32]) -> FloatArray:
    return np.asarray(landmarks * np.float32(scale) + shift, np.float32)


def _distinct(faces: list[TrackedFace]) -> list[TrackedFace]:
    """Keep each person's first face: overlapping crops show a person several times."""
    kept: list[TrackedFace] = []
    for face in faces:
        centre = face.landmarks[:, :2].mean(axis=0)
        if all(
            np.linalg.norm(centre - other.landmarks[:, :2].mean(axis=0)) > 0.5 * other.size_pixels
            for other in kept
        ):
            kept.append(face)
    return kept


def _choose(name: str, faces: list[TrackedFace], wanted: PortraitFace) -> tuple[TrackedFace, list[str]]:
    if wanted == "largest":
        if len(faces) == 1:
            return faces[0], []
        return faces[0], [
            f"{len(faces)} faces; the largest is animated (for another: animation.face=0, 1 … from the left)"
        ]
    from_left = sorted(faces, key=lambda face: face.box[0] + face.box[2])
    if wanted >= len(from_left):
        raise InputError(f"{name}: there is no face {wanted}, only {len(faces)} (counted from 0 at the left)")
    return from_left[wanted], []


def _no_face(name: str, rgb: RgbPicture, model: Path, guess: Path | None) -> str:
    """Explain a picture without a face; draw the detector's best guess."""
    height, width = rgb.shape[:2]
    hint = "use a picture with one face from the front that fills at least a tenth of the width"
    if max(height, width) < _SMALL_PIXELS:
        hint = f"the picture has only {width}x{height} pixels: use a larger one"
    weak = _find(rgb, model, confidence=_WEAKEST)
    if not weak:
        return f"{name}: no face found in the portrait; {hint}"
    left, top, right, bottom = (round(edge) for edge in weak[0].box)
    where = f"the best guess is at {left},{top} to {right},{bottom}"
    if guess is not None:
        shown = np.ascontiguousarray(rgb[..., ::-1])
        thickness = max(2, max(shown.shape[:2]) // 300)
        cv2.rectangle(shown, (left, top), (right, bottom), (0, 0, 255), thickness)
        made, data = cv2.imencode(".png", shown)
        if made:
            try:
                guess.write_bytes(data.tobytes())
                where += f", shown in {guess}"
            except OSError:
                where += f" ({guess} cannot be written)"
    return f"{name}: no face found with confidence in the portrait; {where}; {hint}"
