"""Stores a portrait's landmarks beside its picture as ``PICTURE.landmarks``, so that no face network is needed.

The format, version 2, is one JSON object (UTF-8, at most 256 KiB) of numbers and three words:

- ``version``: 2; files of version 1, whose curves of the mouth's width have another unit, are read without these -
``sha256``: of the picture file, in hexadecimal: the landmarks are used only for this exact file - ``face``: which face
of the picture it is, ``largest`` or its number from the left, from 0 - ``size``: [width, height] of the picture, in
pixels, in which the face was found - ``landmarks``, ``blendshapes``, ``transform``: see the attributes of
``TrackedFace`` of these names - ``curves``: how the portrait's expressions read, which ``animation.calibrate``
measures: for each channel
  ``strengths`` and ``readings``; null where it was not measured
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vitascope.animation.face import FloatArray, TrackedFace
from vitascope.animation.mesh.response import CHANNELS, WIDTH_CHANNELS, Curve
from vitascope.errors import CorruptInputError, InputError
from vitascope.media.writing.output_target import write_whole

_VERSION = 2
_MOST_BYTES = 256 * 1024
_FARTHEST = 4.0
"""Maximum distance of landmarks beyond the picture's edge, in sides of the picture."""


@dataclass(frozen=True, slots=True, eq=False)
class SavedLandmarks:
    """A portrait's face, as found by the face network."""

    face: TrackedFace
    curves: Mapping[str, Curve] | None
    """Its measured response to expressions; None if not measured."""


def landmarks_path(picture: Path) -> Path:
    """Return the path of the file with a picture's landmarks."""
    return picture.with_name(f"{picture.name}.landmarks")


def write_landmarks(
    picture: Path, face: TrackedFace, *, chosen: str | int, curves: Mapping[str, Curve] | None
) -> Path:
    """Write a portrait's landmarks beside its picture.

    Args:
        picture: The picture file.
        face: The face found in it.
        chosen: Which of the picture's faces it is, as in ``animation.face``.
        curves: Its measured response to expressions; None if not measured.

    Returns:
        The file.

    Raises:
        InputError: The picture can no longer be read.
        OutputError: The file cannot be written.
    """
    path = landmarks_path(picture)
    values = {
        "version": _VERSION,
        "sha256": _sha256(picture),
        "face": chosen,
        "size": face.picture_size,
        "landmarks": _plain(face.landmarks),
        "blendshapes": _plain(face.blendshapes),
        "transform": _plain(face.transform),
        "curves": None
        if curves is None
        else {
            name: {"strengths": curve.strengths.tolist(), "readings": curve.readings.tolist()}
            for name, curve in curves.items()
        },
    }
    write_whole(path, (json.dumps(values, separators=(",", ":")) + "\n").encode())
    return path


def read_landmarks(picture: Path, *, chosen: str | int) -> SavedLandmarks | None:
    """Read the landmarks beside a picture; None if there are none for this exact picture and face.

    Args:
        picture: The picture file.
        chosen: Which of its faces to use, as in ``animation.face``.

    Raises:
        InputError: The picture or the file cannot be read.
        CorruptInputError: The file is damaged, or of an unknown version.
    """
    path = landmarks_path(picture)
    try:
        with path.open("rb") as file:
            text = file.read(_MOST_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error})") from error
    try:
        values = _values(text)
        saved = SavedLandmarks(_face(values), _curves(values["curves"]))
        made_of = values["sha256"], values["face"]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        raise CorruptInputError(
            f"{path}: its landmarks cannot be used ({error}); delete it, or write it again with --save-landmarks"
        ) from error
    return saved if made_of == (_sha256(picture), chosen) else None


def _sha256(picture: Path) -> str:
    try:
        with picture.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise InputError(f"{picture}: cannot be read ({error.strerror or error})") from error


def _plain(array: FloatArray) -> Any:
    """Convert to numbers for JSON, with the fewest digits that restore the same float32."""
    return [_plain(row) for row in array] if array.ndim > 1 else [float(str(value)) for value in array]


def _values(text: bytes) -> dict[str, Any]:
    if len(text) > _MOST_BYTES:
        raise ValueError(f"it is larger than {_MOST_BYTES} bytes")
    values: dict[str, Any] = json.loads(text)
    if (version := values["version"]) not in (1, _VERSION):
        raise ValueError(f"it has version {str(version)[:20]}; this program reads version {_VERSION}")
    if version == 1 and isinstance(values["curves"], dict):
        for channel in WIDTH_CHANNELS:
            values["curves"].pop(channel, None)
    return values


def _face(values: Mapping[str, Any]) -> TrackedFace:
    width, height = (int(side) for side in values["size"])
    face = TrackedFace(
        landmarks=np.array(values["landmarks"], np.float32),
        blendshapes=np.array(values["blendshapes"], np.float32),
        transform=np.array(values["transform"], np.float32),
        picture_size=(width, height),
    )
    farthest = _FARTHEST * min(max(width, height), 1 << 16)
    if min(width, height) < 1:
        raise ValueError("its picture has no size")
    for array, most in ((face.landmarks, farthest), (face.blendshapes, 1.0), (face.transform, 1e6)):
        if not (np.abs(array) <= most).all():  # also False for NaN
            raise ValueError("its numbers are not a face's")
    return face


def _curves(values: Any) -> dict[str, Curve] | None:
    if values is None:
        return None
    curves = {}
    for name, given in values.items():
        curve = Curve(np.array(given["strengths"], np.float64), np.array(given["readings"], np.float64))
        if name not in CHANNELS or curve.strengths.ndim != 1 or curve.strengths.shape != curve.readings.shape:
            raise ValueError("an unknown curve")
        if not (
            len(curve.strengths) > 1
            and all(np.diff(curve.strengths) > 0)
            and all(np.diff(curve.readings) >= 0)
        ):
            raise ValueError("a curve falls")
        curves[name] = curve
    return curves
