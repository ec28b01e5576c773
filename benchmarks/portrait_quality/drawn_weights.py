"""Runs MediaPipe's network of weights on a portrait's drawn points.

Face Landmarker reads weights in two steps: one network finds points in the picture, another infers weights
from some of them. The first underestimates thin lips and unpainted brows. So the second gets the drawn points
themselves, and no picture: its result then shows what is drawn.

    pip install ai-edge-litert      # runs that network; Apache-2.0
"""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import numpy.typing as npt

from vitascope.animation.canonical_mesh import (
    EYES,
    FACE_OVAL,
    INNER_LOWER_LIP,
    INNER_UPPER_LIP,
    LEFT_BROW,
    OUTER_LOWER_LIP,
    OUTER_UPPER_LIP,
    RIGHT_BROW,
)
from vitascope.animation.face import BLENDSHAPE_INDEX, BLENDSHAPES, FloatArray
from vitascope.animation.mesh.deform import Bent
from vitascope.animation.mesh.eyes import Eyeball

__all__ = ["WEIGHTS_DRAWN", "WeightsReader", "points_drawn"]

WEIGHTS_DRAWN = {
    "smile": "mouthSmile",
    "pucker": "mouthPucker",
    "funnel": "mouthFunnel",
    "brows up": "browInnerUp",
    "brows down": "browDown",
}
"""Those of ``readings.READINGS`` that are weights, and their names; lids are not among them: where they are drawn their
lashes' roots are, beside the points that a tracker marks."""
_NOSE = (1, 4, 5, 6, 8, 168, 195, 197)
_SHOWN = sorted(
    {*_NOSE, *FACE_OVAL, *LEFT_BROW, *RIGHT_BROW}
    | {*INNER_UPPER_LIP, *INNER_LOWER_LIP, *OUTER_UPPER_LIP, *OUTER_LOWER_LIP}
    | {point for eye in EYES for point in (*eye.outline, *eye.iris)}
)
"""The 146 points that the network takes: contours, irises, and the ridge of the nose."""


class WeightsReader:
    """MediaPipe's network of weights.

    Args:
        model: The file ``face_landmarker.task``, which holds it.
    """

    def __init__(self, model: Path) -> None:
        from ai_edge_litert.interpreter import Interpreter

        with zipfile.ZipFile(model) as task:
            network = task.read("face_blendshapes.tflite")
        self._network = Interpreter(model_content=network, num_threads=1)
        self._network.allocate_tensors()
        (self._takes,), (self._gives,) = self._network.get_input_details(), self._network.get_output_details()

    def weights(self, points: npt.NDArray[np.floating]) -> FloatArray:
        """The weights of a face, float32 [52].

        Args:
            points: [478, 2 or more], pixels.
        """
        shown = np.asarray(points, np.float32)[_SHOWN, :2]
        self._network.set_tensor(self._takes["index"], shown.reshape(self._takes["shape"]))
        self._network.invoke()
        return np.array(self._network.get_tensor(self._gives["index"]), np.float32).reshape(len(BLENDSHAPES))

    def read(self, points: npt.NDArray[np.floating]) -> list[float]:
        """The values of ``WEIGHTS_DRAWN``, the mean of both sides."""
        weights = self.weights(points)
        sides = [
            [name] if name in BLENDSHAPE_INDEX else [f"{name}Left", f"{name}Right"]
            for name in WEIGHTS_DRAWN.values()
        ]
        return [float(np.mean([weights[BLENDSHAPE_INDEX[side]] for side in both])) for both in sides]


def points_drawn(bent: Bent, eyes: tuple[Eyeball, Eyeball], at_rest: FloatArray) -> FloatArray:
    """Where a face's points are drawn, irises too: float32 [478, 2], pixels.

    Args:
        bent: The rig in a motion.
        eyes: Of the portrait.
        at_rest: float32 [478, 2 or more]: the points of the portrait itself, pixels.
    """
    points = np.array(at_rest[:, :2], np.float32)
    points[: len(bent.vertices)] = bent.places[: len(bent.vertices)]
    for eye, ball in zip(EYES, eyes, strict=True):
        corners, iris, placed = [eye.outer_corner, eye.inner_corner], list(eye.iris), ball.placed(bent)
        points[iris] += bent.places[corners].mean(axis=0) - at_rest[corners, :2].mean(axis=0)
        if placed is not None:
            points[iris] += placed.gaze_shift
    return points
