"""RobustVideoMatting (Lin et al., WACV 2022) from the authors' ONNX file, on any engine that runs ONNX networks.

``cut_official_graph`` cuts the file, on the user's machine and in memory, into an encoder and a recurrent decoder that
never see the full picture. The last multiply-add is done by ``guided.py``, with the authors' arithmetic. The shrinking
is done by ``preprocess``, and differs: the authors interpolate without antialiasing, which flickers on fine texture at
the ratios of 4K and 8K; the kernel averages. Given the same small picture, gain and offset equal the official graph's
within rounding.

The weights are GPL-3.0 and are fetched, never shipped.

The authors' file is cut where its full-resolution work begins.

::

    small RGB ── encoder ──> features ── decoder (recurrent) ──> guided-filter gain and offset
                 batched over frames     frame by frame

The official graph shrinks the picture, runs a recurrent network on the small one, and refines the matte at full
size; neither part here sees the full picture.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
from onnx import helper, numpy_helper

from vitascope.errors import ModelError
from vitascope.gpu.engines import Engine, OnnxRuntimeEngine
from vitascope.gpu.engines.engine import ShapeRange
from vitascope.gpu.engines.onnx_network import ancestors, sub_network
from vitascope.gpu.engines.selection import Candidate, GpuOptions, Opener, gpu_openers
from vitascope.gpu.kernels.cuda_module import array_module
from vitascope.gpu.pipeline.pipeline import leave_if_halted
from vitascope.models.host_network import HostNetwork
from vitascope.models.network import (
    FloatArray,
    MatteEstimate,
    MattingNetwork,
    NetworkInput,
    NetworkState,
    engine_notes,
)
from vitascope.models.network_check import CHECK_STEPS, network_runner
from vitascope.models.rvm.blocked_decoder import BlockedDecoder
from vitascope.models.rvm.near_people import NearPeople, cut_parts
from vitascope.models.rvm.state import RvmInput, RvmState, state_sizes

SMALL_RGB: Final = "small_rgb"
GAIN: Final = "gain"
OFFSET: Final = "offset"
STATES_IN: Final = ("r1i", "r2i", "r3i", "r4i")
STATES_OUT: Final = ("r1o", "r2o", "r3o", "r4o")


def cut_official_graph(path: Path) -> tuple[bytes, bytes]:
    """Cut an official RVM file into encoder and decoder.

    The cut points are found by structure: the small picture is the output of the resize of ``src``, gain and offset are
    the inputs of the last two resizes before ``pha``, and the encoder is everything that depends on no recurrent state.

    Returns:
        Two serialised ONNX networks. Encoder: ``small_rgb`` [N, 3, h, w] to features. Decoder: features, ``small_rgb``
        and ``r1i``..``r4i`` to ``gain``, ``offset`` [N, 4, h, w] and ``r1o``..``r4o``.

    Raises:
        ModelError: The cut points are missing: this is another network.
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
    decoder_outputs = [GAIN, OFFSET, *STATES_OUT]
    needed = ancestors(graph, decoder_outputs, stop={SMALL_RGB})
    recurrent: set[str] = set(STATES_IN)
    for node in needed:
        if recurrent.intersection(node.input):
            recurrent.update(node.output)
    # Constants and shapes are recomputed instead of passed on: they have no batch axis to split into frames.
    weights = {tensor.name for tensor in graph.initializer}
    light: set[str] = set()
    for node in needed:
        if node.op_type in ("Constant", "Shape") or light.union(weights).issuperset(node.input):
            light.update(node.output)
    heavy = {name for node in needed for name in node.output} - light - recurrent
    decoder_nodes = ancestors(graph, decoder_outputs, stop={SMALL_RGB, *STATES_IN, *heavy})
    features = sorted({name for node in decoder_nodes for name in node.input} & heavy)
    encoder_nodes = ancestors(graph, features, stop={SMALL_RGB})
    return (
        sub_network(model, encoder_nodes, [SMALL_RGB], features),
        sub_network(model, decoder_nodes, [SMALL_RGB, *features, *STATES_IN], decoder_outputs),
    )


def state_channels(decoder: bytes) -> tuple[int, ...]:
    """Channels of the decoder's four recurrent states, r1 to r4.

    Each state is stretched to the size of the features beside it, joined to them, and read by a convolution: half of
    that convolution's input channels are state.
    """
    graph = onnx.load_from_string(decoder).graph
    reader = {name: node for node in graph.node for name in node.input}
    weights = {tensor.name: tensor for tensor in graph.initializer}
    channels = []
    for state in STATES_IN:
        stretched = reader[state].output[0]
        joined = next(node for node in graph.node if node.op_type == "Concat" and stretched in node.input)
        convolution = next(
            node for node in graph.node if node.op_type == "Conv" and node.input[0] == joined.output[0]
        )
        channels.append(int(weights[convolution.input[1]].dims[1]) // 2)
    return tuple(channels)


def engine_profiles(
    encoder: bytes, decoder: bytes, pictures: ShapeRange, *, most_eyes: int
) -> tuple[dict[str, ShapeRange], dict[str, ShapeRange]]:
    """Sizes of all inputs of encoder and decoder, for engines that are built for ranges of sizes.

    Args:
        encoder: From ``cut_official_graph``.
        decoder: Likewise.
        pictures: Sizes [T * E, 3, h, w] for the encoder.
        most_eyes: Maximum pictures of one time step, which the decoder takes at once; at least 1.

    Returns:
        Profiles of the encoder's inputs, and of the decoder's.
    """
    channels = state_channels(decoder)
    per_limit: list[Mapping[str, tuple[int, ...]]] = []
    limits = ((pictures.smallest, 1), (pictures.usual, most_eyes), (pictures.largest, most_eyes))
    for (_, colours, height, width), eyes in limits:
        shapes = _feature_shapes(encoder, (eyes, colours, height, width))
        shapes[SMALL_RGB] = (eyes, colours, height, width)
        for name, count, level in zip(STATES_IN, channels, state_sizes((height, width)), strict=True):
            shapes[name] = (eyes, count, *level)
        per_limit.append(shapes)
    smallest, usual, largest = per_limit
    inputs = [tensor.name for tensor in onnx.load_from_string(decoder).graph.input]
    return (
        {SMALL_RGB: pictures},
        {name: ShapeRange(smallest[name], usual[name], largest[name]) for name in inputs},
    )


def _feature_shapes(encoder: bytes, picture_shape: Sequence[int]) -> dict[str, tuple[int, ...]]:
    """Sizes of the encoder's outputs for one picture size."""
    model = onnx.load_from_string(encoder)
    for dimension, side in zip(model.graph.input[0].type.tensor_type.shape.dim, picture_shape, strict=True):
        dimension.dim_value = side
    for output in model.graph.output:
        output.type.tensor_type.ClearField("shape")
    inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True).graph
    return {
        output.name: tuple(int(side.dim_value) for side in output.type.tensor_type.shape.dim)
        for output in inferred.output
    }


def _name_cut_points(graph: onnx.GraphProto) -> None:
    """Name the small picture, gain and offset, which the exporter only numbered.

    Raises:
        LookupError: The graph has another structure.
    """
    producer = {name: node for node in graph.node for name in node.output}

    def made_by(name: str, operator: str) -> onnx.NodeProto:
        node: onnx.NodeProto = producer[name]
        if node.op_type != operator:
            raise LookupError(f"{name} is made by {node.op_type}, expected {operator}")
        return node

    if not {"src", *STATES_IN} <= {tensor.name for tensor in graph.input} or "r4o" not in producer:
        raise LookupError("inputs and outputs are not RVM's")
    shrink = [node for node in graph.node if node.op_type == "Resize" and node.input[0] == "src"]
    split = made_by(made_by("pha", "Clip").input[0], "Split")
    total = made_by(split.input[0], "Add")
    grown_gain = made_by(made_by(total.input[0], "Mul").input[0], "Resize")
    grown_offset = made_by(total.input[1], "Resize")
    names = {shrink[0].output[0]: SMALL_RGB, grown_gain.input[0]: GAIN, grown_offset.input[0]: OFFSET}
    for node in graph.node:
        for fields in (node.input, node.output):
            for slot, name in enumerate(fields):
                fields[slot] = names.get(name, name)


def _align_decoder_channels(graph: onnx.GraphProto) -> None:
    """Give the decoder's pictures a fourth, zero channel, and its weights a zero column for it.

    The decoder concatenates a 3-channel picture to its features, which makes channel counts of 35, 59, 107 and 171;
    ONNX Runtime's blocked convolution needs multiples of 4, and takes a slower path otherwise. On two AVX-512 cores at
    480x270, this reduced the network's time from about 71 to 65 ms when it was written (no row is kept); sums only gain
    a zero.
    """
    weights = {tensor.name: tensor for tensor in graph.initializer}
    padded = f"{SMALL_RGB}_padded"
    pyramid = {SMALL_RGB, padded}
    for node in graph.node:
        if node.op_type == "AveragePool" and node.input[0] in pyramid:
            node.input[0] = padded if node.input[0] == SMALL_RGB else node.input[0]
            pyramid.add(node.output[0])
    for node in graph.node:
        if node.op_type != "Concat" or node.input[-1] not in pyramid:
            continue
        node.input[-1] = padded if node.input[-1] == SMALL_RGB else node.input[-1]
        for reader in graph.node:
            if reader.op_type == "Conv" and reader.input[0] == node.output[0]:
                tensor = weights[reader.input[1]]
                kernel = numpy_helper.to_array(tensor)
                widened = np.concatenate([kernel, np.zeros_like(kernel[:, :1])], axis=1)
                tensor.CopyFrom(numpy_helper.from_array(widened, tensor.name))
    amounts = f"{padded}_amounts"
    graph.initializer.append(numpy_helper.from_array(np.array([0, 0, 0, 0, 0, 1, 0, 0]), amounts))
    graph.node.insert(0, helper.make_node("Pad", [SMALL_RGB, amounts], [padded], name="pad_small_rgb"))


RvmEngines = Callable[[bytes, bytes], tuple[Engine, Engine]]
"""Opens the serialised encoder and decoder, both on the same device."""


class RvmNetwork:
    """RobustVideoMatting (MobileNetV3 or ResNet50) from its ONNX file.

    Pictures, states and estimates are NumPy arrays on a CPU engine, CuPy arrays on a GPU engine: nothing leaves the
    GPU between a picture and its coefficients.

    Args:
        path: An official ``rvm_*_fp32.onnx``, already verified.
        name: Its name in reports.
        downsample_ratio: Size of the network's picture relative to the region; None chooses it for full bodies.
        longest_side: Longest side of the network's picture; sets the ratio when that is None.
        threads: CPU threads of ONNX Runtime when no ``open_engines`` is given; 0 uses every core.
        open_engines: Opens the engines; ONNX Runtime on the CPU when omitted.
        int8_decoder: The quantised decoder, which replaces the decoder.
        near_people: On the CPU, compute the large levels only near people, for streams that allow it; see
            ``NearPeople``.

    Raises:
        ModelError: The file is not an official RVM network.
        EngineError: An engine cannot load it.
    """

    recurrent = True
    side_multiple = 16

    def __init__(
        self,
        path: Path,
        *,
        name: str = "rvm",
        downsample_ratio: float | None = None,
        longest_side: int | None = None,
        threads: int = 0,
        open_engines: RvmEngines | None = None,
        int8_decoder: bytes | None = None,
        near_people: bool = False,
    ) -> None:
        encoder, decoder = cut_official_graph(path)
        self.name = name
        self._input = RvmInput(downsample_ratio, longest_side)
        self._channels = state_channels(decoder)
        channels = self._channels if int8_decoder is None else None
        self._encoder, self._decoder = (open_engines or _on_cpu(threads, channels))(
            encoder, int8_decoder or decoder
        )
        self._precision = "" if int8_decoder is None else ", decoder in INT8"
        self._on_gpu = self._encoder.spec.device == "cuda"
        self._near: NearPeople | None = None
        """Opened for the first stream that allows it."""
        self._open_near: Callable[[], NearPeople] | None = None
        if near_people and int8_decoder is None and not self._on_gpu:
            cut = partial(cut_parts, encoder, decoder, self._channels)
            self._open_near = partial(NearPeople, cut, threads=threads)
        read = {tensor.name for tensor in self._decoder.spec.inputs}
        self._feature_names = [tensor.name for tensor in self._encoder.spec.outputs if tensor.name in read]
        self.encoder_calls = 0

    @property
    def engine_name(self) -> str:
        """The engine that runs both halves."""
        return f"{self._encoder.name}{self._precision}"

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on stored engines that were rebuilt, and why, one line each."""
        return (*engine_notes(self._encoder), *engine_notes(self._decoder))

    def input_for(self, region_size: tuple[int, int]) -> NetworkInput:
        """RGB 0..1, NCHW; mean and std are applied inside the network. Sizes are rounded down, like the authors'."""
        return self._input.input_for(region_size)

    def new_state(self) -> RvmState:
        """The state of a new stream."""
        return RvmState(on_gpu=self._on_gpu)

    def infer(self, images: FloatArray, state: NetworkState) -> list[MatteEstimate]:
        """Matte T consecutive frames of E eyes; see ``MattingNetwork.infer``.

        Args:
            images: float32 [T, E, 3, h, w], RGB 0..1, C-contiguous; CuPy on a GPU engine.
            state: This stream's; modified in place.

        Raises:
            ModelError: The pictures or the state are not this network's.
            EngineError: The engine failed, or the pictures are on another device.
        """
        if not isinstance(state, RvmState) or images.ndim != 5 or images.shape[2] != 3:
            raise ModelError(f"rvm: takes float32 [T, E, 3, h, w] and its own state, got {images.shape}")
        eyes = images.shape[1]
        tensors = state.tensors if state.tensors is not None else self._blank(eyes, images.shape[3:])
        if len(tensors[0]) != eyes:
            raise ModelError(f"rvm: got {eyes} eyes and a state of {len(tensors[0])}; reset it first")
        if self._open_near is not None and state.follows_people:
            return self._infer_near(images, state, tensors)
        # Memory grows with the frames of a call, and on a CPU large pictures gain no speed from it.
        is_large = not self._on_gpu and eyes * images.shape[3] * images.shape[4] > _SAMPLES_AT_ONCE
        parts = [slice(eye, eye + 1) for eye in range(eyes)] if is_large else [slice(None)]
        answers = [self._infer_eyes(images[:, part], [tensor[part] for tensor in tensors]) for part in parts]
        # Only now, so that a failed call leaves the state unchanged.
        if len(parts) > 1:
            tensors = [np.concatenate(level) for level in zip(*(after for _, after in answers), strict=True)]
        else:
            tensors = answers[0][1]
        state.tensors, state.people = tensors, None
        return [MatteEstimate.joined(frame) for frame in zip(*(found for found, _ in answers), strict=True)]

    def _infer_eyes(
        self, images: FloatArray, tensors: Sequence[FloatArray]
    ) -> tuple[list[MatteEstimate], list[FloatArray]]:
        """Infer from these features; returns the mattes and the next features."""
        steps, eyes = images.shape[:2]
        estimates = []
        at_once = steps
        if not self._on_gpu:
            at_once = max(_SAMPLES_AT_ONCE // (eyes * images.shape[3] * images.shape[4]), 1)
        for first in range(0, steps, at_once):
            leave_if_halted()  # a window of frames can take minutes on a CPU
            pictures = images[first : first + at_once].reshape(-1, *images.shape[2:])
            features = self._encoder.run({SMALL_RGB: pictures}, self._feature_names)
            self.encoder_calls += 1
            for begin in range(0, len(pictures), eyes):
                rows = slice(begin, begin + eyes)
                inputs: dict[str, Any] = {name: features[name][rows] for name in self._feature_names}
                inputs[SMALL_RGB] = pictures[rows]
                inputs.update(zip(STATES_IN, tensors, strict=True))
                result = self._decoder.run(inputs)
                tensors = [result[name] for name in STATES_OUT]
                estimates.append(MatteEstimate(gain=result[GAIN], offset=result[OFFSET]))
            del features, inputs, result  # freed before the next call's are made
        return estimates, list(tensors)

    def _infer_near(
        self, images: FloatArray, state: RvmState, tensors: list[FloatArray]
    ) -> list[MatteEstimate]:
        """Infer the next frames, with the large levels computed only near people."""
        if self._near is None:
            assert self._open_near is not None  # the caller checks
            self._near = self._open_near()
        known = state.people
        if known is None or known.gain.shape != (images.shape[1], 1, *images.shape[3:]):
            known = self._near.begin(int(images.shape[1]), (int(images.shape[3]), int(images.shape[4])))
        if len(images) > 1 or state.tensors is None:
            # Copies, so that a failed call leaves the state unchanged, as a single step does anyway.
            known = known.copy()
            tensors = [*(tensor.copy() for tensor in tensors[:3]), tensors[3]]
        estimates = []
        for picture in images:
            gain, offset, tensors = self._near.step(picture, tensors, known)
            self.encoder_calls += 1
            estimates.append(MatteEstimate(gain=gain, offset=offset))
        state.tensors, state.people = tensors, known
        return estimates

    def close(self) -> None:
        """Free the engines."""
        for engine in (self._encoder, self._decoder, self._near):
            if engine is not None:
                engine.close()

    def _blank(self, eyes: int, size: tuple[int, ...]) -> list[FloatArray]:
        """States before the first frame, in full size, so that engines built or captured for sizes need one less."""
        arrays: Any = array_module(on_gpu=self._on_gpu)
        return [
            arrays.zeros((eyes, channels, *level), np.float32)
            for channels, level in zip(self._channels, state_sizes(size), strict=True)
        ]


_SAMPLES_AT_ONCE = 4 * 512 * 288  # on the CPU: four frames of 16:9


def _on_cpu(threads: int, channels: Sequence[int] | None) -> RvmEngines:
    """Open ONNX Runtime; given the channels of the states, with the decoder in blocks, see ``BlockedDecoder``."""

    def open_engines(encoder: bytes, decoder: bytes) -> tuple[Engine, Engine]:
        if channels is None:
            return OnnxRuntimeEngine(encoder, threads=threads), OnnxRuntimeEngine(decoder, threads=threads)
        return OnnxRuntimeEngine(encoder, threads=threads), BlockedDecoder(decoder, channels, threads=threads)

    return open_engines


# Sizes that TensorRT builds for; it refuses others. The usual one is a 16:9 picture, the largest a square VR eye.
_SMALLEST_SIDE, _USUAL_SIZE, _LARGEST_SIDE = 16, (288, 512), 1024


def rvm_candidates(
    open_network: Callable[[RvmEngines | None], RvmNetwork],
    options: GpuOptions,
    *,
    most_frames: int,
    most_eyes: int = 2,
) -> list[Candidate[MattingNetwork]]:
    """Candidates for running the network: ``tensorrt``, ``onnxruntime`` and, last and always available, ``processor``.

    Args:
        open_network: Opens the network on given engines, or on the CPU for None.
        options: Settings for the GPU.
        most_frames: Maximum frames of one call.
        most_eyes: Maximum pictures of one frame.
    """
    height, width = _USUAL_SIZE
    usual = most_frames * most_eyes
    pictures = ShapeRange(
        (1, 3, _SMALLEST_SIDE, _SMALLEST_SIDE),
        (usual, 3, height, width),
        (max(usual, CHECK_STEPS), 3, _LARGEST_SIDE, _LARGEST_SIDE),
    )

    def both_parts(open_one: Opener, encoder: bytes, decoder: bytes) -> tuple[Engine, Engine]:
        of_encoder, of_decoder = engine_profiles(encoder, decoder, pictures, most_eyes=most_eyes)
        first = open_one(encoder, of_encoder)
        try:
            return first, open_one(decoder, of_decoder)
        except BaseException:
            first.close()
            raise

    def on_gpu(open_one: Opener) -> RvmNetwork:
        return open_network(partial(both_parts, open_one))

    return [
        *(
            Candidate[MattingNetwork](
                name=name,
                precision=precision,
                open=partial(on_gpu, open_one),
                describe=lambda network: network.engine_name,
                runner=partial(network_runner, on_gpu=True),
            )
            for name, precision, open_one in gpu_openers(options)
        ),
        Candidate[MattingNetwork](
            name="processor",
            precision="fp32",
            open=lambda: HostNetwork(open_network(None)),
            describe=lambda network: network.engine_name,
            runner=partial(network_runner, on_gpu=True),
            is_reference=True,
        ),
    ]
