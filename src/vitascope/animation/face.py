"""Types that the animator's parts share: a tracked face, its motion, the interface of an animator.

A *face* is the position of a face in one picture. A *motion* is its change from the neutral picture, without
the driver's proportions, so any portrait can follow it. A *portrait animator* owns a portrait and draws it in
each motion.

Left and right are the person's own, as in ARKit: ``eyeBlinkLeft`` closes the eye on the right of an unmirrored picture.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, Self

import numpy as np
import numpy.typing as npt

from vitascope.errors import UsageError, did_you_mean
from vitascope.gpu.number_checks import check_number

FloatArray = npt.NDArray[np.float32]
RgbPicture = npt.NDArray[np.uint8]
"""uint8 [H, W, 3], gamma-encoded R'G'B', C-contiguous, upright."""

LANDMARK_COUNT = 478
"""Points of MediaPipe's face mesh (468) and of the two irises (centre and four points each)."""
MESH_VERTEX_COUNT = 468
"""The landmarks that are vertices of the canonical face mesh."""

BLENDSHAPES: tuple[str, ...] = (
    "_neutral",
    "browDownLeft", "browDownRight", "browInnerUp", "browOuterUpLeft", "browOuterUpRight",
    "cheekPuff", "cheekSquintLeft", "cheekSquintRight",
    "eyeBlinkLeft", "eyeBlinkRight", "eyeLookDownLeft", "eyeLookDownRight", "eyeLookInLeft", "eyeLookInRight",
    "eyeLookOutLeft", "eyeLookOutRight", "eyeLookUpLeft", "eyeLookUpRight",
    "eyeSquintLeft", "eyeSquintRight", "eyeWideLeft", "eyeWideRight",
    "jawForward", "jawLeft", "jawOpen", "jawRight",
    "mouthClose", "mouthDimpleLeft", "mouthDimpleRight", "mouthFrownLeft", "mouthFrownRight", "mouthFunnel",
    "mouthLeft", "mouthLowerDownLeft", "mouthLowerDownRight", "mouthPressLeft", "mouthPressRight", "mouthPucker",
    "mouthRight", "mouthRollLower", "mouthRollUpper", "mouthShrugLower", "mouthShrugUpper",
    "mouthSmileLeft", "mouthSmileRight", "mouthStretchLeft", "mouthStretchRight",
    "mouthUpperUpLeft", "mouthUpperUpRight", "noseSneerLeft", "noseSneerRight",
)  # fmt: skip
"""Names of the 52 expression weights, in the order of MediaPipe's blendshape network (ARKit's names)."""

BLENDSHAPE_INDEX: dict[str, int] = {name: index for index, name in enumerate(BLENDSHAPES)}
"""Index of each weight, by name."""


@dataclass(frozen=True, slots=True, eq=False)
class TrackedFace:
    """One face in one picture.

    Raises:
        ValueError: An array has another shape.
    """

    landmarks: FloatArray
    """float32 [478, 3], pixels: x to the right, y down, 0 at the left and top edge of the picture; z away from the
    camera, on the scale of x, relative to the head's centre. Points 468..477 are the irises: right eye's centre and
    its four rim points (468..472), then the left eye's (473..477)."""
    blendshapes: FloatArray
    """float32 [52], 0..1, in the order of ``BLENDSHAPES``; absolute, not relative to a neutral."""
    transform: FloatArray
    """float32 [4, 4], column vectors: the canonical face in centimetres to the camera's space (x right, y up, looking
    along -z), as MediaPipe estimates it for a camera with a vertical field of view of 63 degrees."""
    picture_size: tuple[int, int]
    """(width, height) of the picture, pixels."""
    pts_seconds: float = 0.0
    """Time at which the picture is shown; for live input, at which it was captured."""
    track: int = 0
    """Number of the followed person; constant while the face is followed."""
    is_new: bool = False
    """True in the first picture after the face was found (again): it is unrelated to the previous face."""
    mouth_covered: bool = False
    """True if something covers the mouth: its points are then guesses."""

    def __post_init__(self) -> None:
        """Check the shapes."""
        shapes = (self.landmarks.shape, self.blendshapes.shape, self.transform.shape)
        if shapes != ((LANDMARK_COUNT, 3), (len(BLENDSHAPES),), (4, 4)):
            raise ValueError(f"a face of {shapes}, expected ((478, 3), (52,), (4, 4))")

    def blendshape(self, name: str) -> float:
        """Return one expression weight, 0..1."""
        return float(self.blendshapes[BLENDSHAPE_INDEX[name]])

    @property
    def box(self) -> tuple[float, float, float, float]:
        """Left, top, right, bottom of the landmarks, in pixels; may be outside the picture."""
        low, high = self.landmarks[:, :2].min(axis=0), self.landmarks[:, :2].max(axis=0)
        return float(low[0]), float(low[1]), float(high[0]), float(high[1])

    @property
    def size_pixels(self) -> float:
        """Side of a square as large as ``box``."""
        left, top, right, bottom = self.box
        return math.sqrt(max(right - left, 0.0) * max(bottom - top, 0.0))

    @property
    def angles_degrees(self) -> tuple[float, float, float]:
        """(yaw, pitch, roll) of the head as seen in the picture; signs as in ``rotation_from_degrees``."""
        # The transform's axes are x right, y up, z to the camera; ours are x right, y down, z away from it.
        flip = np.diag([1.0, -1.0, -1.0])
        linear = self.transform[:3, :3].astype(np.float64)
        scale = np.cbrt(max(float(np.linalg.det(linear)), 1e-12))
        return angles_of(flip @ (linear / scale) @ flip)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class FaceMotion:
    """Motion of a driver's head and face, relative to the driver's neutral picture.

    ``FaceMotion()`` is neutral: an animator shows the portrait unchanged, except for rounding.
    """

    rotation: FloatArray = field(default_factory=lambda: np.eye(3, dtype=np.float32))
    """float32 [3, 3], column vectors in picture axes (x right, y down, z away from the camera): rotates the neutral
    head to this one, ``R_driver @ R_neutral.T``. See ``rotation_from_degrees`` for signs."""
    scale: float = 1.0
    """Size of the head relative to the neutral picture's."""
    translation: FloatArray = field(default_factory=lambda: np.zeros(2, np.float32))
    """float32 [2]: motion of the head's centre in the picture, x right and y down, in units of the neutral head's size
    (the centimetres of the canonical face; an adult face is about 16 wide)."""
    blendshapes: FloatArray = field(default_factory=lambda: np.zeros(len(BLENDSHAPES), np.float32))
    """float32 [52], 0..1, absolute."""
    neutral_blendshapes: FloatArray = field(default_factory=lambda: np.zeros(len(BLENDSHAPES), np.float32))
    """float32 [52], 0..1: the weights of the neutral picture; expressions are differences from these."""
    vertices: FloatArray | None = None
    """float32 [468, 3] or None: displacement of the canonical mesh's vertices in its own axes (x to the picture's
    right, y up, z to the camera) and centimetres, without the head's pose, relative to the neutral. None if only
    blendshapes are known (authored, or recorded without); the animator then computes the expression from these."""
    eye_closure: FloatArray = field(default_factory=lambda: np.zeros(2, np.float32))
    """float32 [2]: right and left eye; 0 as open as in the neutral, 1 closed, negative wider."""
    gaze: FloatArray = field(default_factory=lambda: np.zeros((2, 2), np.float32))
    """float32 [2, 2]: motion of the right and the left iris within the eye since the neutral, in widths of the eye: x
    to the picture's right and y down, along the eye's own axes."""
    presence: float = 1.0
    """1 while the face is visible; falls to 0 while it is lost and the motion relaxes to neutral."""
    pts_seconds: float = 0.0
    """Time of the driver's picture; for live input, when it was captured."""
    face: TrackedFace | None = None
    """The driver's face tracked in this picture; None in replayed motion and while the face is lost."""
    driver_rgb: RgbPicture | None = None
    """The driver's picture, for animators that read it; None in replayed motion."""
    neutral_face: TrackedFace | None = None
    """The face used as neutral: the same object until it changes; None in replayed motion."""
    neutral_rgb: RgbPicture | None = None
    """The picture of that face, if pictures are kept."""

    @classmethod
    def authored(
        cls,
        weights: Mapping[str, float] | None = None,
        *,
        yaw_degrees: float = 0.0,
        pitch_degrees: float = 0.0,
        roll_degrees: float = 0.0,
        pts_seconds: float = 0.0,
    ) -> FaceMotion:
        """Make a motion from expression weights and head angles.

        Args:
            weights: 0..1, by name from ``BLENDSHAPES``, for example ``{"jawOpen": 0.5}``; the others are 0.
            yaw_degrees: As in ``rotation_from_degrees``.
            pitch_degrees: The same.
            roll_degrees: The same.
            pts_seconds: Time of the motion.

        Raises:
            UsageError: A name is unknown, or a weight or an angle is not finite.
        """
        for angle, degrees in (("yaw", yaw_degrees), ("pitch", pitch_degrees), ("roll", roll_degrees)):
            check_number(f"{angle}_degrees", degrees)
        blendshapes = np.zeros(len(BLENDSHAPES), np.float32)
        for name, weight in (weights or {}).items():
            if name not in BLENDSHAPE_INDEX:
                hint = did_you_mean(name, BLENDSHAPES) or "; BLENDSHAPES lists all names"
                raise UsageError(f"no expression weight is called {name!r}{hint}")
            check_number(f"the weight {name}", weight)
            blendshapes[BLENDSHAPE_INDEX[name]] = weight
        rotation = rotation_from_degrees(yaw_degrees, pitch_degrees, roll_degrees)
        return cls(rotation=rotation, blendshapes=blendshapes, pts_seconds=pts_seconds)

    @property
    def angles_degrees(self) -> tuple[float, float, float]:
        """(yaw, pitch, roll) of ``rotation``."""
        return angles_of(self.rotation)

    def expression(self, name: str) -> float:
        """Return one expression weight relative to the neutral, -1..1."""
        index = BLENDSHAPE_INDEX[name]
        return float(self.blendshapes[index] - self.neutral_blendshapes[index])

    def relaxed(self, share: float) -> FaceMotion:
        """Scale this motion, for a lost face.

        Args:
            share: 1 leaves it unchanged, 0 makes it neutral.
        """
        neutral = replace(
            FaceMotion(pts_seconds=self.pts_seconds),
            blendshapes=self.neutral_blendshapes,
            neutral_blendshapes=self.neutral_blendshapes,
            vertices=None if self.vertices is None else np.zeros_like(self.vertices),
            presence=0.0,
        )
        return neutral.towards(self, share)

    def towards(self, other: FaceMotion, share: float) -> FaceMotion:
        """Blend pose and expression with those of another motion; take everything else from the other.

        Args:
            other: The result for a share of 1.
            share: 0..1.
        """
        share = min(max(share, 0.0), 1.0)
        turn = rotation_vector(other.rotation @ self.rotation.T) * share

        def mix(mine: FloatArray, theirs: FloatArray) -> FloatArray:
            return (mine + (theirs - mine) * np.float32(share)).astype(np.float32)

        vertices = other.vertices
        if self.vertices is not None and other.vertices is not None:
            vertices = mix(self.vertices, other.vertices)
        return replace(
            other,
            rotation=(rotation_from_vector(turn) @ self.rotation).astype(np.float32),
            scale=self.scale ** (1 - share) * other.scale**share,
            translation=mix(self.translation, other.translation),
            blendshapes=mix(self.blendshapes, other.blendshapes),
            neutral_blendshapes=mix(self.neutral_blendshapes, other.neutral_blendshapes),
            vertices=vertices,
            eye_closure=mix(self.eye_closure, other.eye_closure),
            gaze=mix(self.gaze, other.gaze),
            presence=self.presence + (other.presence - self.presence) * share,
        )


class PortraitAnimator(Protocol):
    """Moves a portrait. A context manager; used by one thread at a time.

    ``set_portrait`` may be called again with another picture; ``animate`` needs one first.
    """

    @property
    def name(self) -> str:
        """Name for the user: ``mesh``, ``liveportrait``."""
        ...

    @property
    def needs_driver_picture(self) -> bool:
        """True if ``animate`` reads ``motion.driver_rgb``, and so cannot replay recorded motion."""
        ...

    def set_portrait(self, rgb: RgbPicture, *, face: TrackedFace) -> None:
        """Set the portrait and do the slow work that does not depend on the driver.

        Args:
            rgb: uint8 [H, W, 3], upright; not modified, and may be modified afterwards.
            face: The face to move, as tracked in this picture.

        Raises:
            InputError: The face cannot be animated, for example because it is too small; the message says why.
        """
        ...

    def animate(self, motion: FaceMotion, *, out: RgbPicture | None = None) -> RgbPicture:
        """Draw the portrait in a motion.

        Args:
            motion: Relative to the driver's neutral.
            out: Array of the portrait's shape for the result; a new one when omitted.

        Returns:
            uint8 [H, W, 3] of the portrait's size, owned by the caller: a NumPy array, or a CuPy array on the
            animator's GPU (on the current stream).

        Raises:
            UsageError: No portrait was set, or the motion lacks what this animator needs.
        """
        ...

    def close(self) -> None:
        """Free all resources; further calls do nothing."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...


# --- rotations ----------------------------------------------------------------------------------------------------


def rotation_from_degrees(yaw: float, pitch: float, roll: float) -> FloatArray:
    """Make ``Rz(roll) @ Ry(yaw) @ Rx(pitch)`` in picture axes (x right, y down, z away from the camera).

    Args:
        yaw: Positive turns the nose to the right of the picture.
        pitch: Positive lifts the nose.
        roll: Positive tilts the head clockwise in the picture.

    Returns:
        float32 [3, 3], for column vectors.
    """
    yaw, pitch, roll = -math.radians(yaw), -math.radians(pitch), math.radians(roll)
    sin_x, cos_x, sin_y, cos_y = math.sin(pitch), math.cos(pitch), math.sin(yaw), math.cos(yaw)
    sin_z, cos_z = math.sin(roll), math.cos(roll)
    # The product is written out: three matrices would take eight times as long.
    return np.array(
        [
            [cos_z * cos_y, cos_z * sin_y * sin_x - sin_z * cos_x, cos_z * sin_y * cos_x + sin_z * sin_x],
            [sin_z * cos_y, sin_z * sin_y * sin_x + cos_z * cos_x, sin_z * sin_y * cos_x - cos_z * sin_x],
            [-sin_y, cos_y * sin_x, cos_y * cos_x],
        ],
        np.float32,
    )


def angles_of(rotation: npt.NDArray[Any]) -> tuple[float, float, float]:
    """Return (yaw, pitch, roll) in degrees: inverts ``rotation_from_degrees`` for yaws within 90 degrees."""
    yaw = math.asin(min(max(float(rotation[2, 0]), -1.0), 1.0))
    pitch = -math.atan2(float(rotation[2, 1]), float(rotation[2, 2]))
    roll = math.atan2(float(rotation[1, 0]), float(rotation[0, 0]))
    return math.degrees(yaw), math.degrees(pitch), math.degrees(roll)


def rotation_vector(rotation: npt.NDArray[Any]) -> FloatArray:
    """Return a rotation as axis times angle (radians), float32 [3] (Rodrigues)."""
    matrix = np.asarray(rotation, np.float64)
    axis = np.array([matrix[2, 1] - matrix[1, 2], matrix[0, 2] - matrix[2, 0], matrix[1, 0] - matrix[0, 1]])
    sine, cosine = np.linalg.norm(axis) / 2, (np.trace(matrix) - 1) / 2
    angle = math.atan2(float(sine), float(cosine))
    if sine < 1e-9:
        return np.zeros(3, np.float32)  # heads do not turn by 180 degrees between two pictures
    return np.asarray(axis / (2 * sine) * angle, np.float32)


def rotation_from_vector(vector: npt.NDArray[Any]) -> FloatArray:
    """Rotate about a vector by its length in radians: float32 [3, 3]; inverts ``rotation_vector``."""
    x, y, z = (float(part) for part in vector)
    angle = math.sqrt(x * x + y * y + z * z)
    cross = np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]])
    if angle < 1e-9:
        return np.asarray(np.eye(3) + cross, np.float32)
    return np.asarray(
        np.eye(3) + cross * (math.sin(angle) / angle) + cross @ cross * ((1 - math.cos(angle)) / angle**2),
        np.float32,
    )
