"""Describe a face by 128 numbers, close together for pictures of the same person, with a network on the CPU.

The network is dlib's (King, 2017): a residual network (He, Zhang, Ren and Sun, "Deep Residual Learning for
Image Recognition", 2015) of 29 convolutions. Its file holds a list of arrays, in JSON, followed by their
bytes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import cv2
import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from vitascope.closing import Closing
from vitascope.errors import ModelError
from vitascope.gpu.engines.onnx_runtime import OnnxRuntimeEngine

FloatArray = npt.NDArray[np.float32]
Points = npt.NDArray[np.float64]
Rgb8 = npt.NDArray[np.uint8]

_SIDE: Final = 150
_MEAN: Final = np.array([122.782, 117.001, 104.298], np.float32)[:, None, None]
_SPREAD: Final = 256.0
_UPRIGHT: Final = np.array([[47, 47.5], [103, 47.5], [75, 79], [51, 103.5], [99, 103.5]])
"""Positions of eyes, nose and mouth corners in the network's input: medians over 188 photographs of faces,
rotated and scaled like its training data."""
_OPSET = 13
_NOT_THAT_FILE = (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError)
"""Errors from reading another or a modified file."""


def upright_face(rgb: Rgb8, points: Points, *, pixel_aspect: float = 1.0) -> tuple[Rgb8, float]:
    """Rotate and scale a face so that its points lie where the network expects them.

    Args:
        rgb: uint8 [H, W, 3].
        points: Eyes, nose and mouth corners (x, y) in pixels, float64 [5, 2].
        pixel_aspect: Displayed width of a pixel over its height.

    Returns:
        uint8 [150, 150, 3], and the points' root mean square error in its pixels: the larger, the more the
        face is turned away.
    """
    points = points * (pixel_aspect, 1.0)
    middle, wanted = points.mean(axis=0), _UPRIGHT.mean(axis=0)
    own, there = points - middle, _UPRIGHT - wanted
    along = (own * there).sum()
    across = (own[:, 0] * there[:, 1] - own[:, 1] * there[:, 0]).sum()
    turn = np.array([[along, -across], [across, along]]) / max((own**2).sum(), 1e-6)
    off = float(np.sqrt(((own @ turn.T - there) ** 2).sum(axis=1).mean()))
    move = np.hstack([turn * (pixel_aspect, 1.0), (wanted - turn @ middle)[:, None]])
    upright = cv2.warpAffine(rgb, move, (_SIDE, _SIDE), borderMode=cv2.BORDER_REPLICATE)
    return np.asarray(upright, np.uint8), off


class FaceDescriptor(Closing):
    """Describes faces, on the CPU. A context manager; calls come from one thread at a time.

    Args:
        path: ``face_recognition.weights``.
        threads: Threads of the engine; 0 uses every core.

    Raises:
        ModelError: The file does not hold this network.
        EngineError: The engine cannot load it.
    """

    def __init__(self, path: Path, *, threads: int = 0) -> None:
        try:
            network = _network(_weights(path.read_bytes()))
        except _NOT_THAT_FILE as error:
            raise ModelError(f"{path}: not the network that describes faces: {error}") from error
        self._engine = OnnxRuntimeEngine(
            network.SerializeToString(), threads=threads, label="face descriptor"
        )

    def describe(self, faces: Sequence[Rgb8]) -> FloatArray:
        """Describe each face: float32 [N, 128].

        Descriptions of one person are about 0.4 apart (Euclidean), of different people 0.8.

        Args:
            faces: At least one face, each uint8 [150, 150, 3], from ``upright_face``.
        """
        pictures = (np.stack(faces).astype(np.float32).transpose(0, 3, 1, 2) - _MEAN) / _SPREAD
        return np.asarray(self._engine.run({"picture": pictures})["description"], np.float32)

    def close(self) -> None:
        """Free the engine."""
        self._engine.close()


def _weights(content: bytes) -> dict[str, FloatArray]:
    """Read the file's arrays by name; most are bytes with a scale and an offset."""
    text_end = content.index(b"\n]") + 2
    listed = json.loads(content[:text_end])[0]["weights"]
    counts = [math.prod(entry["shape"]) for entry in listed]
    packed = [entry.get("quantization") for entry in listed]
    at = len(content) - sum(count * (1 if how else 4) for count, how in zip(counts, packed, strict=True))
    if at != text_end:
        raise ValueError(f"it has {len(content)} bytes, and lists {len(content) + text_end - at}")
    arrays: dict[str, FloatArray] = {}
    for entry, count, how in zip(listed, counts, packed, strict=True):
        values = np.frombuffer(content, np.uint8 if how else "<f4", count, at).astype(np.float32)
        if how:
            values = values * np.float32(how["scale"]) + np.float32(how["min"])
        arrays[entry["name"]] = values.reshape(entry["shape"])
        at += count * (1 if how else 4)
    return arrays


class _Graph:
    """A chain of operators."""

    def __init__(self, weights: dict[str, FloatArray]) -> None:
        self._weights = weights
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def constant(self, values: npt.NDArray[Any]) -> str:
        self.constants.append(
            numpy_helper.from_array(np.ascontiguousarray(values), f"c{len(self.constants)}")
        )
        return self.constants[-1].name

    def add(self, operator: str, *inputs: str, output: str | None = None, **attributes: Any) -> str:
        name = output or f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, inputs, [name], **attributes))
        return name

    def convolve(self, picture: str, name: str, *, halve: bool = False, pad: bool = True) -> str:
        """Add a convolution, with its scale folded into the kernels."""
        scale = self._weights[f"{name}/scale/weights"]
        kernels = self._weights[f"{name}/conv/filters"].transpose(3, 2, 0, 1) * scale[:, None, None, None]
        shift = self._weights[f"{name}/conv/bias"] * scale + self._weights[f"{name}/scale/biases"]
        inputs = picture, self.constant(kernels), self.constant(shift)
        return self.add("Conv", *inputs, strides=[1 + halve] * 2, pads=[int(pad)] * 4)

    def grow(self, picture: str, *, channels: int = 0, side: int = 0) -> str:
        """Pad with zero channels at the end, and with zeros on the right and at the bottom."""
        return self.add(
            "Pad", picture, self.constant(np.array([0, 0, 0, 0, 0, channels, side, side], np.int64))
        )


def _network(weights: dict[str, FloatArray]) -> onnx.ModelProto:
    graph = _Graph(weights)
    stem = graph.add("Relu", graph.convolve("picture", "conv32_down", halve=True, pad=False))
    flow = graph.add("MaxPool", stem, kernel_shape=[3, 3], strides=[2, 2])
    side, channels = 35, weights["conv32_down/conv/filters"].shape[3]
    for block in dict.fromkeys(name.split("/")[0] for name in weights):
        if block in {"conv32_down", "fc"}:
            continue
        halve = "down" in block
        first = graph.add("Relu", graph.convolve(flow, f"{block}/conv1", halve=halve, pad=not halve))
        second = graph.convolve(first, f"{block}/conv2")
        if halve:
            flow = graph.add("AveragePool", flow, kernel_shape=[2, 2], strides=[2, 2])
            convolved, side = (side - 3) // 2 + 1, side // 2
            if convolved < side:
                second = graph.grow(second, side=side - convolved)
            before, channels = channels, weights[f"{block}/conv2/conv/filters"].shape[3]
            if before < channels:
                flow = graph.grow(flow, channels=channels - before)
        flow = graph.add("Relu", graph.add("Add", second, flow))
    flat = graph.add("Flatten", graph.add("GlobalAveragePool", flow))
    graph.add("MatMul", flat, graph.constant(weights["fc"]), output="description")
    picture = helper.make_tensor_value_info("picture", TensorProto.FLOAT, ["n", 3, _SIDE, _SIDE])
    description = helper.make_tensor_value_info("description", TensorProto.FLOAT, ["n", 128])
    made = helper.make_graph(graph.nodes, "faces", [picture], [description], graph.constants)
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=8)
