"""Measures how far a portrait follows by the positions of its drawn points, not by a tracker.

A tracker underestimates the motion of thin painted lips, irises, unpainted brows, and a painted head's turn.
The positions of drawn points are known exactly.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import numpy as np
import numpy.typing as npt
from drawn_weights import points_drawn

from vitascope.animation.canonical_mesh import EYES, LEFT_BROW, RIGHT_BROW
from vitascope.animation.face import FaceMotion, FloatArray, angles_of
from vitascope.animation.face_reading import mouth_width_seen
from vitascope.animation.mesh.animator import MeshAnimator
from vitascope.animation.mesh.deform import Bent
from vitascope.animation.mesh.eyes import Eyeball

__all__ = ["DRAWN", "recorded"]

DRAWN = ("lip gap", "mouth width", "brows", "gaze sideways", "gaze up", "yaw", "pitch", "roll")
"""Known values of a drawn face, in the units of ``readings.READINGS``; gaze is relative to the portrait's
own."""
_UPPER, _LOWER = 13, 14
_OUTER = [eye.outer_corner for eye in EYES]
_CORNERS = [index for eye in EYES for index in (eye.outer_corner, eye.inner_corner)]
_BROWS = list(RIGHT_BROW + LEFT_BROW)


@contextmanager
def recorded(points: list[FloatArray] | None = None) -> Iterator[list[list[float]]]:
    """Collect the values of ``DRAWN`` for each face that the mesh animator bends in this block.

    Args:
        points: Collects where the points of each are drawn, float32 [478, 2].
    """
    faces: list[list[float]] = []
    bend = MeshAnimator.bent

    def bent(animator: MeshAnimator, motion: FaceMotion) -> Bent:
        made = bend(animator, motion)
        portrait = animator._loaded()
        faces.append(drawn(made, portrait.eyes, portrait.rig.sources))
        if points is not None:
            points.append(points_drawn(made, portrait.eyes, portrait.rig.face.landmarks))
        return made

    with patch.object(MeshAnimator, "bent", bent):
        yield faces


def drawn(bent: Bent, eyes: tuple[Eyeball, Eyeball], at_rest: FloatArray) -> list[float]:
    """The values of ``DRAWN``.

    Args:
        bent: The points as they are drawn.
        eyes: Of the portrait.
        at_rest: float32 [468 or more, 2]: the points of the portrait itself, pixels.
    """
    unit = float(np.linalg.norm(np.subtract(*bent.vertices[_OUTER])))
    gap = float(np.linalg.norm(bent.vertices[_UPPER] - bent.vertices[_LOWER])) / unit
    brows = float(bent.vertices[_BROWS, 1].mean() - bent.vertices[_CORNERS, 1].mean()) / unit
    glances = [_glance(ball, bent, at_rest, index) for index, ball in enumerate(eyes)]
    sideways, down = np.mean(glances, axis=0).tolist()
    shape = [gap, mouth_width_seen(bent.places), brows, sideways, -down]
    return [*shape, *angles_of(bent.pose.rotation)]


def _glance(ball: Eyeball, bent: Bent, at_rest: npt.NDArray[np.float32], index: int) -> tuple[float, float]:
    """How far an iris is drawn from its place at rest, to the picture's right and down, widths of the eye."""
    placed = ball.placed(bent)
    if placed is None:
        return 0.0, 0.0
    outer, inner = at_rest[[EYES[index].outer_corner, EYES[index].inner_corner]]
    along = inner - outer if index == 0 else outer - inner
    down = np.array([-along[1], along[0]])
    square = max(float(along @ along), 1e-6)
    return float(placed.gaze_shift @ along) / square, float(placed.gaze_shift @ down) / square
