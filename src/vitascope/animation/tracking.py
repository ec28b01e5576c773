"""Follows faces through a video with MediaPipe's Face Landmarker (Tasks API).

developers.google.com/edge/mediapipe/solutions/vision/face_landmarker/python
"""

from __future__ import annotations

import importlib
import math
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import cv2
import numpy as np

from vitascope.animation.covered_mouth import MouthWatch
from vitascope.animation.face import BLENDSHAPES, LANDMARK_COUNT, FloatArray, RgbPicture, TrackedFace
from vitascope.closing import Closing
from vitascope.errors import EngineError, MissingDependencyError, ModelError
from vitascope.frames import Frame, Rotation
from vitascope.gpu.kernels.preprocess import preprocess
from vitascope.gpu.kernels.region import Region
from vitascope.gpu.toolkit.temporal import change
from vitascope.models.store.store import ModelStore
from vitascope.observe.standard_streams import quiet_native_stderr

MODEL_NAME = "face-landmarker"
"""The tracker's model in the catalogue."""

FaceModel = Callable[[], Path]
"""Returns the file ``face_landmarker.task``, which is found or downloaded on first use: with a portrait's landmarks and
recorded motion it is not needed. Raises the errors of ``fetch_face_model``."""

Follow = Literal["largest"] | int
"""The face to follow: the largest when one has to be chosen, or the n-th from the left, counted from 0."""

_SAME_FACE_DISTANCE = 0.75
"""Maximum distance between the centres of one face in consecutive pictures, in sizes of the face."""
_CUT_PICTURE, _CUT_SUDDEN, _CUT_FACE = 0.08, 4.0, 0.02
"""Minimum changes at a cut: of the picture, as a mean share of full scale; of the picture relative to the
changes before; and of the landmarks, in sizes of the face. Switching on a light reaches only the first two, a
panning camera only the first and last, a nod only the last. Between two videos with the same framing, picture
and landmarks changed by 0.17 and 0.033."""
_THUMBNAIL = 48
_MOST_SEEN = 8
"""Maximum number of faces among which the largest is chosen."""


def driver_picture(frame: Frame, *, rotation_degrees: Rotation = 0, max_side: int = 768) -> RgbPicture:
    """Convert a driver's frame to an upright picture, shrunk for a tracker.

    Args:
        frame: The frame, in the CPU's memory.
        rotation_degrees: Clockwise turn that makes it upright.
        max_side: Longest side of the result, pixels; smaller frames keep their size.

    Returns:
        uint8 [h, w, 3].
    """
    width, height = frame.width, frame.height
    scale = min(1.0, max_side / max(width, height))
    size = max(1, round(height * scale)), max(1, round(width * scale))
    upright = (size[1], size[0]) if rotation_degrees in (90, 270) else size
    picture = preprocess(
        frame,
        regions=[Region(0, 0, width, height)],
        size=upright,
        layout="NHWC",
        rotation_degrees=rotation_degrees,
    )[0]
    return np.asarray(cv2.convertScaleAbs(picture, alpha=255), np.uint8)


def fetch_face_model(store: ModelStore, progress: Callable[[str, int, int], None] | None = None) -> Path:
    """Find or fetch the file ``face_landmarker.task``.

    Args:
        store: Where it is, or is downloaded to.
        progress: Called with (model, bytes so far, bytes in all) during a download.

    Raises:
        MissingDependencyError: MediaPipe, which runs it, is not installed.
        ModelError: It is unavailable.
    """
    require_mediapipe()
    return store.pull(MODEL_NAME, progress=None if progress is None else partial(progress, MODEL_NAME))


def require_mediapipe() -> Any:
    """Import ``mediapipe``.

    Raises:
        MissingDependencyError: It is not installed, or cannot be loaded.
    """
    if "mediapipe" not in sys.modules:
        # MediaPipe keeps its failed imports forever, with the stack frames that called them. A new thread has none of
        # ours.
        loading = threading.Thread(target=_import_mediapipe, name="vitascope-mediapipe")
        loading.start()
        loading.join()
    try:
        import mediapipe
    except ImportError as error:
        raise MissingDependencyError(
            f"following a face needs MediaPipe ({error}); install it with `pip install 'vitascope[animate]'`"
        ) from error
    return mediapipe


def _import_mediapipe() -> None:
    with suppress(ImportError):  # raised when it is used
        importlib.import_module("mediapipe")


class FaceTracker(Closing):
    """Finds and follows faces. A context manager; used by one thread.

    Args:
        model: The file ``face_landmarker.task``.
        mode: ``video`` for consecutive frames, ``image`` for unrelated pictures.
        max_faces: Maximum faces to find in a picture.
        follow: Which of them ``track`` follows.
        refine: Also run the blendshape network; without it all weights are 0.
        min_confidence: 0..1, of detection, presence and tracking.

    Raises:
        MissingDependencyError: MediaPipe is not installed.
        ModelError: The file is not a Face Landmarker.
    """

    def __init__(
        self,
        model: Path,
        *,
        mode: Literal["image", "video"] = "video",
        max_faces: int = 1,
        follow: Follow = "largest",
        refine: bool = True,
        min_confidence: float = 0.5,
    ) -> None:
        mediapipe = require_mediapipe()
        vision = mediapipe.tasks.vision
        self._image = mediapipe.Image
        self._srgb = mediapipe.ImageFormat.SRGB
        self._mode = mode
        self._follow: Follow = follow
        self._last_ms = -1
        self._followed: TrackedFace | None = None
        self._track = 0
        self._mouth = MouthWatch()
        self.most_faces = 0
        """Largest number of faces from which one had to be chosen."""
        self._thumbnail: RgbPicture | None = None
        self._usual_change = 0.0
        self._max_faces = max_faces
        self._model, self._min_confidence = model, min_confidence
        self._finder: FaceTracker | None = None
        try:
            with quiet_native_stderr():
                self._landmarker = vision.FaceLandmarker.create_from_options(
                    vision.FaceLandmarkerOptions(
                        base_options=mediapipe.tasks.BaseOptions(model_asset_path=str(model)),
                        running_mode=vision.RunningMode[mode.upper()],
                        num_faces=max_faces,
                        min_face_detection_confidence=min_confidence,
                        min_face_presence_confidence=min_confidence,
                        min_tracking_confidence=min_confidence,
                        output_face_blendshapes=refine,
                        output_facial_transformation_matrixes=True,
                    )
                )
                # Networks open on first use, and print messages that do not help the user.
                self.find(np.zeros((64, 64, 3), np.uint8))
        except (RuntimeError, ValueError, OSError) as error:
            raise ModelError(f"{model}: not a Face Landmarker that MediaPipe can load ({error})") from error

    def close(self) -> None:
        """Free the networks."""
        finder, self._finder = self._finder, None
        if finder is not None:
            finder.close()
        landmarker, self._landmarker = self._landmarker, None
        if landmarker is None:
            return
        try:
            landmarker.close()
        except KeyboardInterrupt:
            # MediaPipe's thread still frees the networks; its finaliser would free them again, and crash.
            landmarker._handle = None
            raise

    def find(self, rgb: RgbPicture, *, pts_seconds: float = 0.0) -> list[TrackedFace]:
        """Find all faces of a picture, the largest first.

        Args:
            rgb: uint8 [H, W, 3], upright.
            pts_seconds: The picture's time; must increase from call to call in ``video`` mode.

        Raises:
            EngineError: MediaPipe failed.
        """
        picture = self._image(image_format=self._srgb, data=np.ascontiguousarray(rgb))
        try:
            if self._mode == "image":
                result = self._landmarker.detect(picture)
            else:
                # MediaPipe requires increasing whole milliseconds.
                self._last_ms = max(round(pts_seconds * 1000), self._last_ms + 1)
                result = self._landmarker.detect_for_video(picture, self._last_ms)
        except (RuntimeError, ValueError) as error:
            raise EngineError(f"MediaPipe failed to look for faces: {error}") from error
        return _faces(result, (rgb.shape[1], rgb.shape[0]), pts_seconds)

    def track(self, rgb: RgbPicture, *, pts_seconds: float) -> TrackedFace | None:
        """Find the followed face in the next picture; None while it is not visible.

        After a cut, every face is new. MediaPipe, asked for one face, returns the one it is surest of; so
        when one has to be chosen, this looks for the largest and hides the others from MediaPipe in that
        picture.

        Args:
            rgb: uint8 [H, W, 3], upright.
            pts_seconds: Its time; must increase from picture to picture.

        Raises:
            EngineError: MediaPipe failed.
        """
        before, cut = self._followed, self._is_cut(rgb)
        face = self.choose(self.find(rgb, pts_seconds=pts_seconds))
        if face is None:
            return None
        if cut and before is not None and not face.is_new and _moved(face, before) > _CUT_FACE:
            self._track += 1
            face = self._followed = replace(face, track=self._track, is_new=True)
        if face.is_new and self._max_faces == 1 and self._follow == "largest" and self._mode == "video":
            face = self._largest(rgb, face)
        return replace(face, mouth_covered=self._mouth.is_covered(rgb, face))

    def _is_cut(self, rgb: RgbPicture) -> bool:
        """True if the picture suddenly differs much from the one before."""
        height, width = rgb.shape[:2]
        thumbnail = rgb[:: max(height // _THUMBNAIL, 1), :: max(width // _THUMBNAIL, 1)].copy()
        before, self._thumbnail = self._thumbnail, thumbnail
        if before is None or before.shape != thumbnail.shape:
            return False
        changed = change(before, thumbnail)
        if changed > max(_CUT_PICTURE, _CUT_SUDDEN * self._usual_change):
            return True
        self._usual_change += 0.1 * (changed - self._usual_change)
        return False

    def _largest(self, rgb: RgbPicture, found: TrackedFace) -> TrackedFace:
        """Switch to the largest face if another one was found."""
        if self._finder is None:
            self._finder = FaceTracker(
                self._model,
                mode="image",
                max_faces=_MOST_SEEN,
                refine=False,
                min_confidence=self._min_confidence,
            )
        faces = self._finder.find(rgb)
        self.most_faces = max(self.most_faces, len(faces))
        if not faces or _distance(faces[0], found) < _SAME_FACE_DISTANCE * faces[0].size_pixels:
            return found
        hidden = rgb.copy()
        for other in faces[1:]:
            left, top, right, bottom = (max(round(edge), 0) for edge in other.box)
            hidden[top:bottom, left:right] = 0
        left, top, right, bottom = (max(round(edge), 0) for edge in faces[0].box)
        hidden[top:bottom, left:right] = rgb[top:bottom, left:right]
        self.find(np.zeros_like(rgb), pts_seconds=found.pts_seconds)  # makes MediaPipe forget the face
        again = self.find(hidden, pts_seconds=found.pts_seconds)
        if not again or _distance(again[0], faces[0]) > _SAME_FACE_DISTANCE * faces[0].size_pixels:
            return found
        self._followed = replace(again[0], track=self._track, is_new=True)
        return self._followed

    def choose(self, faces: list[TrackedFace]) -> TrackedFace | None:
        """Choose which of a picture's faces to follow: the same person while they are visible."""
        if not faces:
            self._followed = None
            return None
        before = self._followed
        if before is not None:
            nearest = min(faces, key=lambda face: _distance(face, before))
            if _distance(nearest, before) < _SAME_FACE_DISTANCE * before.size_pixels:
                self._followed = replace(nearest, track=self._track, is_new=False)
                return self._followed
        self.most_faces = max(self.most_faces, len(faces))
        if self._follow == "largest":
            chosen = max(faces, key=lambda face: face.size_pixels)
        else:
            from_left = sorted(faces, key=lambda face: face.box[0] + face.box[2])
            if self._follow >= len(from_left):
                self._followed = None
                return None
            chosen = from_left[self._follow]
        self._track += 1
        self._followed = replace(chosen, track=self._track, is_new=True)
        return self._followed


def _faces(result: Any, size: tuple[int, int], pts_seconds: float) -> list[TrackedFace]:
    width, height = size
    scale = np.array([width, height, width], np.float32)
    found = []
    for index, points in enumerate(result.face_landmarks):
        landmarks = np.array([(point.x, point.y, point.z) for point in points], np.float32) * scale
        if landmarks.shape[0] != LANDMARK_COUNT:
            raise ModelError(
                f"the Face Landmarker gives {landmarks.shape[0]} points, expected {LANDMARK_COUNT}"
            )
        found.append(
            TrackedFace(
                landmarks=landmarks,
                blendshapes=_blendshapes(result, index),
                transform=np.asarray(result.facial_transformation_matrixes[index], np.float32),
                picture_size=size,
                pts_seconds=pts_seconds,
            )
        )
    return sorted(found, key=lambda face: -face.size_pixels)


def _blendshapes(result: Any, index: int) -> FloatArray:
    weights = np.zeros(len(BLENDSHAPES), np.float32)
    if result.face_blendshapes:
        for category in result.face_blendshapes[index]:
            weights[category.index] = category.score
    return weights


def _moved(face: TrackedFace, before: TrackedFace) -> float:
    """Measure how far landmarks moved, in sizes of the face."""
    apart = np.linalg.norm(face.landmarks[:, :2] - before.landmarks[:, :2], axis=1).mean()
    return float(apart) / max(before.size_pixels, 1.0)


def _distance(face: TrackedFace, other: TrackedFace) -> float:
    (left, top, right, bottom), (left2, top2, right2, bottom2) = face.box, other.box
    return math.hypot((left + right - left2 - right2) / 2, (top + bottom - top2 - bottom2) / 2)
