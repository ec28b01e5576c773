"""Any ONNX network of the user's, once its kind is declared: matte, binary, semantic or yolo-seg.

An ONNX file says how many numbers go in and out, not what they mean. The declared kind settles the meaning (see
``vitascope.models.decoders``); what the file does say (layout, sizes, dtypes, whether a sigmoid or softmax is already
inside) is read from it and never asked. A network is run once on a black picture when it is opened, so that a wrong
kind is refused before the video starts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np
import numpy.typing as npt
import onnx

from vitascope.errors import EngineError, ModelError
from vitascope.gpu.engines.engine import TensorSpec
from vitascope.gpu.engines.onnx_runtime import OnnxRuntimeEngine
from vitascope.models.decoders import NetworkKind, Outputs, choose_decoder
from vitascope.models.network import (
    FloatArray,
    InputLayout,
    MatteEstimate,
    NetworkInput,
    NetworkState,
    StatelessState,
    join_pictures,
)

__all__ = ["CustomNetwork", "NetworkKind", "Normalisation", "open_custom_network"]

Normalisation = tuple[tuple[float, float, float], tuple[float, float, float]]
"""Mean and standard deviation of R, G, B in 0..1."""

_CENTRED: Normalisation = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
_IMAGENET: Normalisation = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
_AS_IT_IS: Normalisation = ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))

NORMALISATIONS: Mapping[NetworkKind, Normalisation] = {
    "matte": _CENTRED,  # MODNet
    "binary": _IMAGENET,  # U²-Net
    "semantic": _IMAGENET,  # torchvision
    "yolo-seg": _AS_IT_IS,  # YOLOv8
}
"""The kinds' defaults: those of the best-known network of each."""

# For networks that take any size: near what MODNet, U²-Net and DeepLab were trained at, and the deepest common
# stride of segmentation encoders.
_LONGEST_SIDE, _SIDE_MULTIPLE = 512, 32

_TRIAL_REGION = (1080, 1920)

_NORMALISING = frozenset({"Sigmoid", "HardSigmoid", "Softmax"})
# Operators that move values about or round them, but keep 0..1 within 0..1.
_VALUE_KEEPING = frozenset(
    {"Cast", "Clip", "Flatten", "Identity", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze"}
)


def open_custom_network(
    path: Path,
    *,
    kind: NetworkKind,
    person_class: int | None = None,
    normalisation: Normalisation | None = None,
    threads: int = 0,
) -> CustomNetwork:
    """Open the user's ONNX file as a matting network.

    Args:
        path: The ``.onnx`` file.
        kind: What its outputs mean.
        person_class: Index of the person's class; by ``PERSON_CLASSES`` for channels, 0 for yolo-seg when omitted.
        normalisation: Mean and standard deviation it was trained with; the kind's default when omitted.
        threads: Threads inside one operator; 0 uses every core.

    Returns:
        The network; the caller closes it.

    Raises:
        ModelError: No such file, an input that is not one picture, or outputs that the kind does not have.
        EngineError: The file is not an ONNX network, or uses operators that the engine lacks.
    """
    if kind not in get_args(NetworkKind):
        raise ModelError(f"{path}: unknown kind {kind!r}, expected one of {', '.join(get_args(NetworkKind))}")
    if not path.is_file():
        raise ModelError(
            f"{path}: no such file; --model takes an .onnx file or a name from `vitascope models list`"
        )
    engine = OnnxRuntimeEngine(path, threads=threads)
    try:
        return CustomNetwork(path, engine, kind=kind, person_class=person_class, normalisation=normalisation)
    except BaseException:
        engine.close()
        raise


class CustomNetwork:
    """A user's network of a declared kind, which looks at every frame alone; made by ``open_custom_network``.

    Args:
        path: The file that the engine runs.
        engine: The opened engine; closed with this network.
        kind: What the outputs mean.
        person_class: As in ``open_custom_network``.
        normalisation: As in ``open_custom_network``.

    Raises:
        ModelError: The network is not of this kind, or takes no pictures.
    """

    recurrent = False

    def __init__(
        self,
        path: Path,
        engine: OnnxRuntimeEngine,
        *,
        kind: NetworkKind,
        person_class: int | None = None,
        normalisation: Normalisation | None = None,
    ) -> None:
        self._path, self._engine, self._closed = path, engine, False
        self._input = _picture_input(path, engine.spec.inputs)
        self._mean, self._std = normalisation or NORMALISATIONS[kind]
        self._decode = choose_decoder(
            kind,
            self._trial_outputs(),
            input_size=self._input.size_for(_TRIAL_REGION),
            normalised=_normalised_outputs(path),
            person_class=person_class,
            source=str(path),
        )

    @property
    def name(self) -> str:
        """The file's name without suffix."""
        return self._path.stem

    @property
    def engine_name(self) -> str:
        """What runs it, for reports."""
        return self._engine.name

    def input_for(self, region_size: tuple[int, int]) -> NetworkInput:
        """The size written in the file, or the region's aspect with 512 on the longest side where it is free."""
        return NetworkInput(
            size=self._input.size_for(region_size), layout=self._input.layout, mean=self._mean, std=self._std
        )

    def new_state(self) -> NetworkState:
        """An empty state: nothing is remembered."""
        return StatelessState()

    def infer(self, images: FloatArray, state: NetworkState) -> list[MatteEstimate]:
        """Matte T frames of E eyes; see ``MattingNetwork.infer``.

        Raises:
            ModelError: Pictures not prepared as ``input_for`` says, or outputs that break what the kind promises.
            EngineError: The engine failed.
        """
        if not isinstance(state, StatelessState):
            raise ModelError(f"{self._path}: the stream's state was made by another network")
        pictures = join_pictures(
            images, name=str(self._path), layout=self._input.layout, size=self._input.fixed_size
        )
        batches = [pictures] if self._input.free_batch else np.split(pictures, len(pictures))
        height, width = pictures.shape[2:] if self._input.layout == "NCHW" else pictures.shape[1:3]
        alpha = np.concatenate([self._decode(self._run(batch), (height, width)) for batch in batches])
        if len(alpha) != len(pictures):
            raise ModelError(
                f"{self._path}: {len(pictures)} pictures gave {len(alpha)} mattes; it takes one at a time"
            )
        return [MatteEstimate(alpha=step) for step in alpha.reshape(*images.shape[:2], *alpha.shape[1:])]

    def close(self) -> None:
        """Free the engine; harmless when called again."""
        if not self._closed:
            self._engine.close()
            self._closed = True

    def _run(self, pictures: FloatArray) -> Outputs:
        if self._closed:
            raise ModelError(f"{self._path}: the network was closed")
        return self._engine.run({self._input.name: self._input.encode(pictures)})

    def _trial_outputs(self) -> Outputs:
        height, width = self._input.size_for(_TRIAL_REGION)
        shape = (1, 3, height, width) if self._input.layout == "NCHW" else (1, height, width, 3)
        try:
            return self._run(np.zeros(shape, np.float32))
        except EngineError as error:
            raise ModelError(f"{self._path}: it does not take a {width}x{height} picture: {error}") from error


@dataclass(frozen=True, slots=True)
class _PictureInput:
    """The one input of a network that takes pictures."""

    name: str
    layout: InputLayout
    dtype: np.dtype[Any]
    free_batch: bool
    fixed_size: tuple[int | None, int | None]
    """(height, width); None where the network takes any."""

    def size_for(self, region_size: tuple[int, int]) -> tuple[int, int]:
        scale = _LONGEST_SIDE / max(region_size)
        height, width = (
            fixed or max(round(side * scale / _SIDE_MULTIPLE), 1) * _SIDE_MULTIPLE
            for fixed, side in zip(self.fixed_size, region_size, strict=True)
        )
        return height, width

    def encode(self, pictures: FloatArray) -> npt.NDArray[Any]:
        """The pictures in the input's dtype."""
        return pictures.astype(self.dtype, copy=False)


def _picture_input(path: Path, inputs: tuple[TensorSpec, ...]) -> _PictureInput:
    described = ", ".join(f"{tensor.name} {tensor.dtype} {list(tensor.shape)}" for tensor in inputs)
    refusal = ModelError(
        f"{path}: got inputs {described}, expected one picture, float [1 or N, 3, H, W] or [1 or N, H, W, 3]"
    )
    if len(inputs) != 1 or len(inputs[0].shape) != 4 or not np.issubdtype(inputs[0].dtype, np.floating):
        raise refusal
    batch, *axes = inputs[0].shape
    layout: InputLayout
    if axes[0] == 3:
        layout, size = "NCHW", axes[1:]
    elif axes[2] == 3:
        layout, size = "NHWC", axes[:2]
    else:
        raise refusal
    if isinstance(batch, int) and batch != 1:
        raise refusal
    height, width = (side if isinstance(side, int) else None for side in size)
    return _PictureInput(inputs[0].name, layout, inputs[0].dtype, not isinstance(batch, int), (height, width))


def _normalised_outputs(path: Path) -> frozenset[str]:
    """Names of the outputs whose values come out of a sigmoid or softmax, whatever moves them about afterwards."""
    graph = onnx.load(str(path), load_external_data=False).graph
    producers = {name: node for node in graph.node for name in node.output}
    found = set()
    for output in graph.output:
        node = producers.get(output.name)
        while node is not None and node.op_type in _VALUE_KEEPING:
            node = producers.get(node.input[0])
        if node is not None and node.op_type in _NORMALISING:
            found.add(output.name)
    return frozenset(found)
