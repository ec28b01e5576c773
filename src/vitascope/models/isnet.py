"""Find what stands out of a picture, with ISNet.

Qin, Dai, Hu, Fan, Shao and Van Gool, "Highly Accurate Dichotomous Image Segmentation", 2022.

The file as it comes has one size of picture written into it, 1024 x 1024; others are written in memory.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import cv2
import numpy as np
import numpy.typing as npt
import onnx
from onnx import numpy_helper

from vitascope.closing import Closing
from vitascope.errors import ModelError
from vitascope.gpu.engines.onnx_runtime import OnnxRuntimeEngine

_OWN_SIDE: Final = 1024
_SIDE: Final = 640
"""Rows and columns of the picture that is looked at. On two clips of held things 640 found what 1024 did, at a third
of the work; 384 and 512 lost a pot and a cup."""
_MEAN, _SPREAD = 128.0, 256.0


class SalientObjects(Closing):
    """Finds what stands out of a picture, people or things, on the CPU. A context manager; one thread at a time.

    Args:
        path: ``isnet.onnx``.
        threads: Threads of the engine; 0 uses every core.

    Raises:
        ModelError: The file is not that network.
        EngineError: The engine cannot load it.
    """

    def __init__(self, path: Path, *, threads: int = 0) -> None:
        try:
            network = onnx.load(str(path))
            self._resize(network.graph)
        except Exception as error:  # protobuf has errors of its own
            raise ModelError(f"{path}: not ISNet: {error}") from error
        self._engine = OnnxRuntimeEngine(network.SerializeToString(), threads=threads, label="isnet")

    def close(self) -> None:
        """Free the engine."""
        self._engine.close()

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

    @staticmethod
    def _resize(graph: onnx.GraphProto) -> None:
        """Write another side into a graph: into input, output, and what its maps are enlarged to."""
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
