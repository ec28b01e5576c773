"""RobustVideoMatting (Lin et al., WACV 2022) from the authors' ONNX file, cut where its full-resolution work begins.

The official graph shrinks the picture, runs a recurrent network on the small one, and refines the matte at full
size. Here the file is cut, on the user's machine and in memory, into two small networks that never see the full
picture::

    small RGB ── encoder ──> features ── decoder (recurrent) ──> guided-filter gain and offset
                 batched over frames     frame by frame

The last multiply-add belongs to ``guided.py``, and is the authors' arithmetic. The shrinking belongs to ``preprocess``
and is not: the authors read single samples (bilinear, no antialiasing), which flickers on fine texture at the ratios of
4K and 8K; the kernel averages. Given the same small picture, gain and offset are the official graph's within rounding.

The weights are GPL-3.0 and are fetched, never shipped.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from vitascope.errors import ModelError
from vitascope.gpu.engines import OnnxRuntimeEngine
from vitascope.models.network import FloatArray, MatteEstimate, NetworkInput, NetworkState

__all__ = ["RvmNetwork", "RvmState", "body_downsample_ratio", "cut_official_graph"]

_SMALL_RGB: Final = "small_rgb"
_GAIN: Final = "gain"
_OFFSET: Final = "offset"
_STATES_IN: Final = ("r1i", "r2i", "r3i", "r4i")
_STATES_OUT: Final = ("r1o", "r2o", "r3o", "r4o")
_DEEPEST_STRIDE: Final = 16


def body_downsample_ratio(size: tuple[int, int]) -> float:
    """The authors' ratio for full bodies (README of RobustVideoMatting), continued between and beyond its rows.

    Up to 512 samples nothing is shrunk; 1280 gives 0.6 in their table and 0.4 at 1920, 0.2 at 3840: a network picture
    of 768 samples on the longest side.

    Args:
        size: (height, width) of one eye, upright.
    """
    return min(1.0, 768.0 / max(size))


class RvmState:
    """The recurrent features of one stream: four float32 arrays [E, C, h, w], zeros before the first frame."""

    __slots__ = ("tensors",)

    def __init__(self) -> None:
        self.tensors: list[FloatArray] = []
        self.reset()

    def reset(self) -> None:
        """Forget the past. The graph broadcasts a single zero to whatever shape it needs."""
        self.tensors = [np.zeros((1, 1, 1, 1), np.float32) for _ in _STATES_IN]


class RvmNetwork:
    """RobustVideoMatting (MobileNetV3 or ResNet50) on ONNX Runtime.

    Args:
        path: An official ``rvm_*_fp32.onnx``, already verified.
        name: What reports call it.
        downsample_ratio: Size of the network's picture relative to the region; None chooses it for full bodies.
        longest_side: Bound on the network picture's longest side; sets the ratio when that is None.
        threads: CPU threads; 0 uses every core.

    Raises:
        ModelError: The file is not an official RVM network.
        EngineError: ONNX Runtime cannot load it.
    """

    recurrent = True

    def __init__(
        self,
        path: Path,
        *,
        name: str = "rvm",
        downsample_ratio: float | None = None,
        longest_side: int | None = None,
        threads: int = 0,
    ) -> None:
        encoder, decoder = cut_official_graph(path)
        self.name = name
        self._ratio = downsample_ratio
        self._longest_side = longest_side
        self._encoder = OnnxRuntimeEngine(encoder, threads=threads)
        self._decoder = OnnxRuntimeEngine(decoder, threads=threads)
        self._feature_names = [tensor.name for tensor in self._encoder.spec.outputs]
        self.encoder_calls = 0

    @property
    def engine_name(self) -> str:
        """The engine that runs both halves."""
        return self._encoder.name

    def ratio_for(self, region_size: tuple[int, int]) -> float:
        """The downsample ratio in effect for a region of (height, width)."""
        if self._ratio is not None:
            return self._ratio
        if self._longest_side is not None:
            return min(1.0, self._longest_side / max(region_size))
        return body_downsample_ratio(region_size)

    def input_for(self, region_size: tuple[int, int]) -> NetworkInput:
        """RGB 0..1, NCHW; mean and std are applied inside the network. Sizes floor, as the official graph's do."""
        ratio = self.ratio_for(region_size)
        height, width = (max(int(length * ratio), _DEEPEST_STRIDE) for length in region_size)
        return NetworkInput((height, width), "NCHW")

    def new_state(self) -> RvmState:
        """A stream that has seen nothing."""
        return RvmState()

    def infer(self, images: FloatArray, state: NetworkState) -> list[MatteEstimate]:
        """Matte T consecutive frames of E eyes; see ``MattingNetwork.infer``.

        Args:
            images: float32 [T, E, 3, h, w], RGB 0..1.
            state: This stream's; changed in place.

        Raises:
            ModelError: The pictures or the state are not this network's.
            EngineError: The engine failed.
        """
        if not isinstance(state, RvmState) or images.ndim != 5 or images.shape[2] != 3:
            raise ModelError(f"rvm: takes float32 [T, E, 3, h, w] and its own state, got {images.shape}")
        steps, eyes = images.shape[:2]
        pictures = images.reshape(steps * eyes, *images.shape[2:])
        features = self._encoder.run({_SMALL_RGB: pictures})
        self.encoder_calls += 1
        estimates = []
        for step in range(steps):
            rows = slice(step * eyes, (step + 1) * eyes)
            inputs: dict[str, npt.NDArray[Any]] = {name: features[name][rows] for name in self._feature_names}
            inputs[_SMALL_RGB] = pictures[rows]
            inputs.update(zip(_STATES_IN, state.tensors, strict=True))
            result = self._decoder.run(inputs)
            state.tensors = [result[name] for name in _STATES_OUT]
            estimates.append(MatteEstimate(gain=result[_GAIN], offset=result[_OFFSET]))
        return estimates

    def close(self) -> None:
        """Free both engines."""
        self._encoder.close()
        self._decoder.close()


def cut_official_graph(path: Path) -> tuple[bytes, bytes]:
    """Cut an official RVM file into encoder and decoder.

    The cut points are found by what they are: the small picture is what the resize of ``src`` gives, gain and offset
    are what the last two resizes before ``pha`` take, and the encoder is whatever depends on no recurrent state.

    Returns:
        Two serialised ONNX networks. Encoder: ``small_rgb`` [N, 3, h, w] to features. Decoder: features, ``small_rgb``
        and ``r1i``..``r4i`` to ``gain``, ``offset`` [N, 4, h, w] and ``r1o``..``r4o``.

    Raises:
        ModelError: The cut points are not there: this is another network.
    """
    try:
        model = onnx.load(path)
    except Exception as error:  # protobuf's DecodeError shares no public base with OSError
        raise ModelError(f"{path}: not an ONNX file") from error
    graph = model.graph
    try:
        _name_cut_points(graph)
    except LookupError as error:
        raise ModelError(
            f"{path}: not an official RobustVideoMatting network; for another network name its --kind"
        ) from error
    _align_decoder_channels(graph)
    decoder_outputs = [_GAIN, _OFFSET, *_STATES_OUT]
    needed = _ancestors(graph, decoder_outputs, stop={_SMALL_RGB})
    recurrent: set[str] = set(_STATES_IN)
    for node in needed:
        if recurrent.intersection(node.input):
            recurrent.update(node.output)
    # Constants and shapes are recomputed rather than handed over: they have no batch axis to cut frames from.
    weights = {tensor.name for tensor in graph.initializer}
    light: set[str] = set()
    for node in needed:
        if node.op_type in ("Constant", "Shape") or light.union(weights).issuperset(node.input):
            light.update(node.output)
    heavy = {name for node in needed for name in node.output} - light - recurrent
    decoder_nodes = _ancestors(graph, decoder_outputs, stop={_SMALL_RGB, *_STATES_IN, *heavy})
    features = sorted({name for node in decoder_nodes for name in node.input} & heavy)
    encoder_nodes = _ancestors(graph, features, stop={_SMALL_RGB})
    return (
        _network(model, encoder_nodes, [_SMALL_RGB], features),
        _network(model, decoder_nodes, [_SMALL_RGB, *features, *_STATES_IN], decoder_outputs),
    )


def _name_cut_points(graph: onnx.GraphProto) -> None:
    """Rename the small picture, gain and offset, whatever the exporter numbered them.

    Raises:
        LookupError: The graph is not built like this.
    """
    producer = {name: node for node in graph.node for name in node.output}

    def made_by(name: str, operator: str) -> onnx.NodeProto:
        node: onnx.NodeProto = producer[name]
        if node.op_type != operator:
            raise LookupError(f"{name} is made by {node.op_type}, expected {operator}")
        return node

    if not {"src", *_STATES_IN} <= {tensor.name for tensor in graph.input} or "r4o" not in producer:
        raise LookupError("inputs and outputs are not RVM's")
    shrink = [node for node in graph.node if node.op_type == "Resize" and node.input[0] == "src"]
    split = made_by(made_by("pha", "Clip").input[0], "Split")
    total = made_by(split.input[0], "Add")
    grown_gain = made_by(made_by(total.input[0], "Mul").input[0], "Resize")
    grown_offset = made_by(total.input[1], "Resize")
    names = {shrink[0].output[0]: _SMALL_RGB, grown_gain.input[0]: _GAIN, grown_offset.input[0]: _OFFSET}
    for node in graph.node:
        for fields in (node.input, node.output):
            for slot, name in enumerate(fields):
                fields[slot] = names.get(name, name)


def _align_decoder_channels(graph: onnx.GraphProto) -> None:
    """Give the decoder's pictures a fourth, zero channel, and its weights a zero column for it.

    The decoder concatenates a 3-channel picture to its features, which makes channel counts of 35, 59, 107 and 171;
    ONNX Runtime's blocked convolution wants multiples of 4 and takes a slower path otherwise. On two AVX-512 cores
    at 480x270 this took the network from about 71 to 65 ms when it was written (no row is kept); the sum gains a zero.
    """
    weights = {tensor.name: tensor for tensor in graph.initializer}
    padded = f"{_SMALL_RGB}_padded"
    pyramid = {_SMALL_RGB, padded}
    for node in graph.node:
        if node.op_type == "AveragePool" and node.input[0] in pyramid:
            node.input[0] = padded if node.input[0] == _SMALL_RGB else node.input[0]
            pyramid.add(node.output[0])
    for node in graph.node:
        if node.op_type != "Concat" or node.input[-1] not in pyramid:
            continue
        node.input[-1] = padded if node.input[-1] == _SMALL_RGB else node.input[-1]
        for reader in graph.node:
            if reader.op_type == "Conv" and reader.input[0] == node.output[0]:
                tensor = weights[reader.input[1]]
                kernel = numpy_helper.to_array(tensor)
                widened = np.concatenate([kernel, np.zeros_like(kernel[:, :1])], axis=1)
                tensor.CopyFrom(numpy_helper.from_array(widened, tensor.name))
    amounts = f"{padded}_amounts"
    graph.initializer.append(numpy_helper.from_array(np.array([0, 0, 0, 0, 0, 1, 0, 0]), amounts))
    graph.node.insert(0, helper.make_node("Pad", [_SMALL_RGB, amounts], [padded], name="pad_small_rgb"))


def _ancestors(graph: onnx.GraphProto, outputs: Sequence[str], *, stop: set[str]) -> list[onnx.NodeProto]:
    """The nodes that the outputs depend on, in graph order, not looking behind the tensors in ``stop``."""
    producer = {name: node for node in graph.node for name in node.output}
    wanted: set[str] = set()
    pending = list(outputs)
    while pending:
        name = pending.pop()
        if name in wanted or name in stop or name not in producer:
            continue
        wanted.add(name)
        pending.extend(producer[name].input)
    return [node for node in graph.node if any(name in wanted for name in node.output)]


def _network(
    model: onnx.ModelProto, nodes: list[onnx.NodeProto], inputs: Sequence[str], outputs: Sequence[str]
) -> bytes:
    """A stand-alone network of some of a model's nodes; tensors are float32 [N, C, H, W] of free sizes."""
    read = {name for node in nodes for name in node.input}
    weights = [tensor for tensor in model.graph.initializer if tensor.name in read]

    def tensors(names: Sequence[str]) -> list[onnx.ValueInfoProto]:
        free = ("n", "c", "h", "w")
        return [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, [f"{name}_{axis}" for axis in free])
            for name in names
        ]

    graph = helper.make_graph(nodes, "rvm", tensors(inputs), tensors(outputs), weights)
    cut = helper.make_model(graph, opset_imports=model.opset_import, ir_version=model.ir_version)
    return bytes(cut.SerializeToString())
