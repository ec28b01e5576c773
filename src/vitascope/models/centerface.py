"""CenterFace (Xu, Yan, Sun and others, "CenterFace: Joint Face Detection and Alignment Using Face as Point", 2019).

A face is a peak of a heat map at a quarter of the picture's size; other planes give its size and where in the cell its
middle lies. The file as it comes has one size of picture written into it, which is freed in memory.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np
import numpy.typing as npt
import onnx

from vitascope.closing import Closing
from vitascope.errors import ModelError
from vitascope.gpu.engines.onnx_runtime import OnnxRuntimeEngine

_STRIDE, _MULTIPLE = 4, 32
_LEAST_SCORE = 0.5
"""From which a peak of the heat map is a face."""
_OVERLAP = 0.3


class Face(NamedTuple):
    """A face, in pixels of the picture."""

    left: float
    top: float
    width: float
    height: float
    score: float
    """0 to 1."""


class CenterFace(Closing):
    """Finds faces, on the CPU. A context manager; calls come from one thread at a time.

    Args:
        path: ``centerface.onnx``.
        threads: Threads of the engine; 0 uses every core.

    Raises:
        ModelError: The file is not that network.
        EngineError: The engine cannot load it.
    """

    def __init__(self, path: Path, *, threads: int = 0) -> None:
        try:
            network = onnx.load(str(path))
        except Exception as error:  # protobuf has errors of its own
            raise ModelError(f"{path}: not an ONNX network: {error}") from error
        for value in (*network.graph.input, *network.graph.output):
            shape = value.type.tensor_type.shape.dim
            if value.name in {"input.1", "537", "538", "539", "540"} and len(shape) == 4:
                shape[0].dim_value = 1
                shape[2].dim_param, shape[3].dim_param = f"{value.name}_rows", f"{value.name}_columns"
        del network.graph.value_info[:]
        self._engine = OnnxRuntimeEngine(network.SerializeToString(), threads=threads, label="centerface")

    def close(self) -> None:
        """Free the engine."""
        self._engine.close()

    def find(self, rgb: npt.NDArray[np.uint8]) -> list[Face]:
        """The faces of a picture, the surest first.

        Args:
            rgb: uint8 [H, W, 3].
        """
        height, width = rgb.shape[:2]
        rows, columns = -(-height // _MULTIPLE) * _MULTIPLE, -(-width // _MULTIPLE) * _MULTIPLE
        picture = np.zeros((1, 3, rows, columns), np.float32)
        picture[0, :, :height, :width] = rgb.transpose(2, 0, 1)
        found = self._engine.run({"input.1": picture})
        heat, scale, shift = (np.asarray(found[name])[0] for name in ("537", "538", "539"))
        peaks = np.argwhere(heat[0] >= _LEAST_SCORE)
        boxes: list[tuple[float, float, float, float]] = []
        scores: list[float] = []
        for row, column in peaks:
            size = np.exp(scale[:, row, column]) * _STRIDE  # height, width
            middle = (np.array([row, column]) + shift[:, row, column] + 0.5) * _STRIDE
            top, left = middle - size / 2
            boxes.append((float(left), float(top), float(size[1]), float(size[0])))
            scores.append(float(heat[0, row, column]))
        kept = cv2.dnn.NMSBoxes(boxes, scores, _LEAST_SCORE, _OVERLAP) if boxes else []
        faces = [Face._make((*boxes[at], scores[at])) for at in np.asarray(kept, int).ravel()]
        return sorted(faces, key=lambda face: -face.score)
