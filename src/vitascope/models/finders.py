"""Find faces, or salient objects, in a picture, with small networks on the CPU.

CenterFace (Xu, Yan, Sun and others, "CenterFace: Joint Face Detection and Alignment Using Face as Point",
2019): a face is a peak of a heat map at a quarter of the picture's size; other planes give its size and its
centre's offset in the cell. ISNet (Qin, Dai, Hu, Fan, Shao and Van Gool, "Highly Accurate Dichotomous Image
Segmentation", 2022) finds what is salient, people or things.

Both files fix the picture's size: CenterFace's is made variable in memory, ISNet's (1024 x 1024) is replaced.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

import cv2
import numpy as np
import numpy.typing as npt
import onnx
from onnx import numpy_helper

from vitascope.closing import Closing
from vitascope.errors import ModelError
from vitascope.gpu.engines.onnx_runtime import OnnxRuntimeEngine

_STRIDE, _MULTIPLE = 4, 32
_LEAST_SCORE = 0.5
"""Lowest score of a peak that counts as a face."""
_OVERLAP = 0.3


class Face(NamedTuple):
    """A face, in pixels of the picture."""

    left: float
    top: float
    width: float
    height: float
    score: float
    """0 to 1."""
    points: npt.NDArray[np.float64]
    """Eyes, nose and mouth corners, (x, y), float64 [5, 2]."""


class _Finder(Closing):
    """A network on ONNX Runtime; a context manager, called from one thread at a time."""

    def __init__(
        self, path: Path, prepare: Callable[[onnx.GraphProto], None], *, name: str, threads: int
    ) -> None:
        try:
            network = onnx.load(str(path))
            prepare(network.graph)
        except Exception as error:  # protobuf raises errors of its own
            raise ModelError(f"{path}: not {name}: {error}") from error
        self._engine = OnnxRuntimeEngine(network.SerializeToString(), threads=threads, label=name.lower())

    def close(self) -> None:
        """Free the engine."""
        self._engine.close()


class CenterFace(_Finder):
    """Finds faces, on the CPU. A context manager; calls come from one thread at a time.

    Args:
        path: ``centerface.onnx``.
        threads: Threads of the engine; 0 uses every core.

    Raises:
        ModelError: The file does not hold this network.
        EngineError: The engine cannot load it.
    """

    def __init__(self, path: Path, *, threads: int = 0) -> None:
        super().__init__(path, _free_size, name="CenterFace", threads=threads)

    def find(self, rgb: npt.NDArray[np.uint8]) -> list[Face]:
        """Find the faces of a picture, highest score first.

        Args:
            rgb: uint8 [H, W, 3].
        """
        height, width = rgb.shape[:2]
        rows, columns = -(-height // _MULTIPLE) * _MULTIPLE, -(-width // _MULTIPLE) * _MULTIPLE
        picture = np.zeros((1, 3, rows, columns), np.float32)
        picture[0, :, :height, :width] = rgb.transpose(2, 0, 1)
        found = self._engine.run({"input.1": picture})
        heat, scale, shift, marks = (np.asarray(found[name])[0] for name in ("537", "538", "539", "540"))
        peaks = np.argwhere(heat[0] >= _LEAST_SCORE)
        boxes: list[tuple[float, float, float, float]] = []
        scores: list[float] = []
        points: list[npt.NDArray[np.float64]] = []
        for row, column in peaks:
            size = np.exp(scale[:, row, column]) * _STRIDE  # height, width
            middle = (np.array([row, column]) + shift[:, row, column] + 0.5) * _STRIDE
            top, left = middle - size / 2
            boxes.append((float(left), float(top), float(size[1]), float(size[0])))
            scores.append(float(heat[0, row, column]))
            points.append(
                (marks[:, row, column].reshape(5, 2) * size + (top, left))[:, ::-1].astype(np.float64)
            )
        kept = cv2.dnn.NMSBoxes(boxes, scores, _LEAST_SCORE, _OVERLAP) if boxes else []
        faces = [Face._make((*boxes[at], scores[at], points[at])) for at in np.asarray(kept, int).ravel()]
        return sorted(faces, key=lambda face: -face.score)


_OWN_SIDE: Final = 1024
_SIDE: Final = 640
"""Rows and columns of the network's input. On two clips of held objects, 640 found the same as 1024 in a third of the
time; 384 and 512 missed a pot and a cup."""
_MEAN, _SPREAD = 128.0, 256.0


class SalientObjects(_Finder):
    """Finds salient people or things, on the CPU. A context manager; call it from one thread at a time.

    Args:
        path: ``isnet.onnx``.
        threads: Threads of the engine; 0 uses every core.

    Raises:
        ModelError: The file does not hold this network.
        EngineError: The engine cannot load it.
    """

    def __init__(self, path: Path, *, threads: int = 0) -> None:
        super().__init__(path, _resize, name="ISNet", threads=threads)

    def find(self, rgb: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
        """Estimate how salient each pixel is: float32 [H, W], 0..1.

        Args:
            rgb: uint8 [H, W, 3].
        """
        square = cv2.resize(rgb, (_SIDE, _SIDE), interpolation=cv2.INTER_AREA).astype(np.float32)
        picture = np.ascontiguousarray(((square - _MEAN) / _SPREAD).transpose(2, 0, 1)[None])
        found = np.asarray(self._engine.run({"input": picture})["output"])[0, 0]
        large = cv2.resize(found, rgb.shape[1::-1], interpolation=cv2.INTER_LINEAR)
        return np.asarray(large, np.float32).clip(0, 1)


def _resize(graph: onnx.GraphProto) -> None:
    """Change the side in a graph: in input, output, and the size its maps are upsampled to."""
    constants = {node.output[0]: node for node in graph.node if node.op_type == "Constant"}
    joined = {node.output[0]: node for node in graph.node if node.op_type == "Concat"}
    for node in graph.node:
        if node.op_type == "Resize":
            size = constants[joined[node.input[3]].input[1]].attribute[0].t
            sides = -(-numpy_helper.to_array(size) * _SIDE // _OWN_SIDE)
            size.CopyFrom(numpy_helper.from_array(sides))
    outputs = [value for value in graph.output if value.name == "output"]
    del graph.output[:]
    graph.output.extend(outputs)
    del graph.value_info[:]
    for value in (*graph.input, *graph.output):
        for axis in value.type.tensor_type.shape.dim[2:]:
            axis.dim_value = _SIDE


def _free_size(graph: onnx.GraphProto) -> None:
    """Make CenterFace accept pictures of any size."""
    for value in (*graph.input, *graph.output):
        shape = value.type.tensor_type.shape.dim
        if value.name in {"input.1", "537", "538", "539", "540"} and len(shape) == 4:
            shape[0].dim_value = 1
            shape[2].dim_param, shape[3].dim_param = f"{value.name}_rows", f"{value.name}_columns"
    del graph.value_info[:]
