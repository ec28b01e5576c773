"""The presence gate's second opinion: what a person detector sees in a picture.

The trunk of MediaPipe's pose detector (BlazePose), cut before its heads: 1152 feature maps of 7 x 7, each reduced to
its mean and its maximum. The heads would find whole people with faces; the features also tell a torso, a back or legs
from a lamp, a tower or a dog, which the selfie networks cannot. 2.1 MB in the wheel, about 10 ms a picture on one core.
Source: MediaPipe, Apache-2.0; provenance lies in ``data/NOTICE``.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import cv2
import numpy as np

from vitascope.errors import ModelError
from vitascope.gpu.engines.onnx_runtime import OnnxRuntimeEngine
from vitascope.models.network import FloatArray

__all__ = ["FEATURE_COUNT", "TRUNK_PATH", "PersonFeatures"]

TRUNK_PATH = Path(__file__).parents[1] / "data" / "pose_detection_trunk.onnx"
FEATURE_COUNT = 2304
"""1152 means, then 1152 maxima."""

_INPUT, _SIDE = "input_1", 224


class PersonFeatures:
    """The pose detector's trunk, opened when it is first asked: on most streams that is once, on empty ones never.

    Args:
        path: The network; the one that ships when None.
        threads: Threads inside one operator; 0 uses every core.
    """

    def __init__(self, path: Path | None = None, *, threads: int = 0) -> None:
        self._path, self._threads = TRUNK_PATH if path is None else path, threads
        self._engine: OnnxRuntimeEngine | None = None
        self._closed = False

    def of(self, views: Sequence[FloatArray]) -> FloatArray:
        """Features of one candidate: the mean over its views.

        Args:
            views: float32 [h, w, 3] each, RGB 0..1; at least one.

        Returns:
            float32 [2304]; 0..6, as the trunk ends in a clipped rectifier.

        Raises:
            ModelError: It was closed.
            EngineError: The engine cannot load the network.
        """
        if self._closed:
            raise ModelError("selfie: the network was closed")
        if self._engine is None:
            self._engine = OnnxRuntimeEngine(self._path, threads=self._threads)
        pictures = np.stack(
            [cv2.resize(view, (_SIDE, _SIDE), interpolation=cv2.INTER_AREA) for view in views]
        )
        found = self._engine.run({_INPUT: np.asarray(pictures * 2 - 1, np.float32)}, ["mean", "max"])
        features = np.concatenate([found["mean"], found["max"]], axis=1)
        return np.asarray(features.mean(axis=0), np.float32)

    def close(self) -> None:
        """Free the engine; harmless when called again."""
        self._closed = True
        if self._engine is not None:
            self._engine.close()
            self._engine = None
