"""Runs any ONNX network of the user, given its kind: matte, binary, semantic or yolo-seg.

An ONNX file says how many numbers go in and out, not what they mean. The declared kind settles the meaning (see
``decoders``); what the file does say (layout, sizes, dtypes, whether a sigmoid or softmax is already inside) is read
from it and never asked. A network is run once on a black picture when it is opened, so that a wrong
kind is refused before the video starts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path
from typing import Any, get_args

import numpy as np
import numpy.typing as npt
import onnx

from vitascope.errors import EngineError, ModelError
from vitascope.gpu.engines.engine import Engine, ShapeRange, TensorSpec
from vitascope.gpu.engines.onnx_runtime import OnnxRuntimeEngine
from vitascope.gpu.engines.selection import (
    Arrays,
    Candidate,
    Chosen,
    GpuOptions,
    Machine,
    Opener,
    choose_engine,
    gpu_openers,
    host_runner,
)
from vitascope.gpu.kernels.cuda_module import import_cupy, is_on_gpu
from vitascope.models.custom.decoders import NetworkKind, Outputs, choose_decoder
from vitascope.models.host_network import HostNetwork
from vitascope.models.network import (
    FloatArray,
    InputLayout,
    MatteEstimate,
    MattingNetwork,
    NetworkInput,
    NetworkState,
    StatelessState,
    engine_notes,
    join_pictures,
)

# For networks that take any size: near what MODNet, U²-Net and DeepLab were trained at, and the deepest common
# stride of segmentation encoders.
LONGEST_SIDE, SIDE_MULTIPLE = 512, 32

_LONGEST_DECLARED_SIDE, _MOST_SAMPLES = 1 << 14, 1 << 24
"""4096x4096 pixels, which are 200 MB as network input, and 16384 along a side; a file may declare any size."""

TRIAL_REGION = (1080, 1920)
"""(height, width) of the region used to try a network when it is opened."""


@dataclass(frozen=True, slots=True)
class PictureInput:
    """The picture input of a network with a single input."""

    name: str
    layout: InputLayout
    dtype: np.dtype[Any]
    free_batch: bool
    fixed_size: tuple[int | None, int | None]
    """(height, width); None if the network takes any."""

    def size_for(self, region_size: tuple[int, int]) -> tuple[int, int]:
        """(height, width) of the pictures for a region of (height, width)."""
        scale = LONGEST_SIDE / max(region_size)
        height, width = (
            fixed or max(round(side * scale / SIDE_MULTIPLE), 1) * SIDE_MULTIPLE
            for fixed, side in zip(self.fixed_size, region_size, strict=True)
        )
        return height, width

    def shape_for(self, count: int, size: tuple[int, int]) -> tuple[int, ...]:
        """Shape of ``count`` pictures of (height, width)."""
        return (count, 3, *size) if self.layout == "NCHW" else (count, *size, 3)

    def encode(self, pictures: FloatArray) -> npt.NDArray[Any]:
        """Convert the pictures to the input's dtype."""
        return pictures.astype(self.dtype, copy=False)


def picture_input(path: Path, inputs: tuple[TensorSpec, ...]) -> PictureInput:
    """Find the picture input among the declared inputs of a file.

    Raises:
        ModelError: It takes no pictures, or several inputs.
    """
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
    sides = (height or 1, width or 1)
    if max(sides) > _LONGEST_DECLARED_SIDE or prod(sides) > _MOST_SAMPLES:
        raise ModelError(
            f"{path}: it takes pictures of {width or 'any'}x{height or 'any'}; a network may take at most "
            f"{_MOST_SAMPLES / 1e6:.0f} million samples, and {_LONGEST_DECLARED_SIDE} along a side"
        )
    return PictureInput(inputs[0].name, layout, inputs[0].dtype, not isinstance(batch, int), (height, width))


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
"""Defaults for each kind: those of its best-known network."""

_NORMALISING = frozenset({"Sigmoid", "HardSigmoid", "Softmax"})
# Operators that move or round values, but keep 0..1 within 0..1.
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
    open_engine: Callable[[Path], Engine] | None = None,
) -> CustomNetwork:
    """Open the user's ONNX file as a matting network.

    Args:
        path: The ``.onnx`` file.
        kind: The meaning of its outputs.
        person_class: Index of the person's class; when omitted, from ``PERSON_CLASSES`` for channels, 0 for yolo-seg.
        normalisation: Mean and standard deviation it was trained with; the kind's default when omitted.
        threads: Threads inside one operator on the CPU, without ``open_engine``; 0 uses every core.
        open_engine: Opens the file; ONNX Runtime on the CPU when omitted.

    Returns:
        The network; the caller closes it.

    Raises:
        ModelError: No such file, an input other than one picture, or outputs that do not fit the kind.
        EngineError: The file is not an ONNX network, or uses operators that the engine lacks.
    """
    require_file(path, kind)
    engine = OnnxRuntimeEngine(path, threads=threads) if open_engine is None else open_engine(path)
    try:
        return CustomNetwork(path, engine, kind=kind, person_class=person_class, normalisation=normalisation)
    except BaseException:
        engine.close()
        raise


def require_file(path: Path, kind: NetworkKind) -> None:
    """Refuse a path that cannot be opened.

    Raises:
        ModelError: The kind is unknown, or the file does not exist.
    """
    if kind not in get_args(NetworkKind):
        raise ModelError(f"{path}: unknown kind {kind!r}, expected one of {', '.join(get_args(NetworkKind))}")
    if not path.is_file():
        what = "it is no file" if path.exists() else "no such file"
        raise ModelError(
            f"{path}: {what}; --model takes an .onnx file or a name from `vitascope models list`"
        )


class CustomNetwork:
    """A user's network of a declared kind, without memory; made by ``open_custom_network``.

    With a GPU engine, pictures may be CuPy arrays, or NumPy arrays, which are uploaded. Mattes are decoded on the CPU
    and are always NumPy arrays.

    Other arguments are those of ``open_custom_network``.

    Args:
        engine: The opened engine; closed with this network.

    Raises:
        ModelError: The network is not of this kind, or takes no pictures.
    """

    recurrent = False

    def __init__(
        self,
        path: Path,
        engine: Engine,
        *,
        kind: NetworkKind,
        person_class: int | None = None,
        normalisation: Normalisation | None = None,
    ) -> None:
        self._path, self._engine, self._closed = path, engine, False
        self._input = picture_input(path, engine.spec.inputs)
        self._mean, self._std = normalisation or NORMALISATIONS[kind]
        self._decode = choose_decoder(
            kind,
            self._trial_outputs(),
            input_size=self._input.size_for(TRIAL_REGION),
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
        """The engine's name, for reports."""
        return self._engine.name

    @property
    def notes(self) -> tuple[str, ...]:
        """Cached engines that were rebuilt, and why, one line each."""
        return engine_notes(self._engine)

    @property
    def side_multiple(self) -> int | None:
        """The multiple that suits its encoder's strides; None if the file fixes the size."""
        return SIDE_MULTIPLE if self._input.fixed_size == (None, None) else None

    def input_for(self, region_size: tuple[int, int]) -> NetworkInput:
        """The size declared in the file; if it is free, the region's aspect with 512 on the longest side."""
        return NetworkInput(
            size=self._input.size_for(region_size), layout=self._input.layout, mean=self._mean, std=self._std
        )

    def new_state(self) -> NetworkState:
        """Make an empty state, since the network has no memory."""
        return StatelessState()

    def infer(self, images: FloatArray, state: NetworkState) -> list[MatteEstimate]:
        """Matte T frames of E eyes; see ``MattingNetwork.infer``.

        Raises:
            ModelError: Pictures were not prepared by ``input_for``, are on the GPU while the engine is on the CPU, or
                gave outputs that do not fit the kind.
            EngineError: The engine failed.
        """
        if not isinstance(state, StatelessState):
            raise ModelError(f"{self._path}: the stream's state was made by another network")
        pictures = self._joined(images)
        batches = (
            [pictures] if self._input.free_batch else [pictures[i : i + 1] for i in range(len(pictures))]
        )
        height, width = pictures.shape[2:] if self._input.layout == "NCHW" else pictures.shape[1:3]
        alpha = np.concatenate([self._decode(self._run(batch), (height, width)) for batch in batches])
        if len(alpha) != len(pictures):
            raise ModelError(
                f"{self._path}: {len(pictures)} pictures gave {len(alpha)} mattes; it takes one at a time"
            )
        return [MatteEstimate(alpha=step) for step in alpha.reshape(*images.shape[:2], *alpha.shape[1:])]

    def close(self) -> None:
        """Free the engine; idempotent."""
        if not self._closed:
            self._engine.close()
            self._closed = True

    def _joined(self, images: FloatArray) -> FloatArray:
        """Join the pictures of all steps and eyes into one batch, on their device."""
        if not is_on_gpu(images):
            return join_pictures(
                images, name=str(self._path), layout=self._input.layout, size=self._input.fixed_size
            )
        if self._engine.spec.device == "cpu" or images.ndim != 5:
            raise ModelError(
                f"{self._path}: got pictures {list(images.shape)} on the GPU, expected [frames, eyes, …] "
                f"on the {'CPU' if self._engine.spec.device == 'cpu' else 'GPU'}"
            )
        return images.reshape(-1, *images.shape[2:])  # the engine checks dtype and size

    def _run(self, pictures: FloatArray) -> Outputs:
        if self._closed:
            raise ModelError(f"{self._path}: the network was closed")
        if self._engine.spec.device == "cpu":
            return self._engine.run({self._input.name: self._input.encode(pictures)})
        cupy = import_cupy()
        outputs = self._engine.run({self._input.name: self._input.encode(cupy.asarray(pictures))})
        return {name: cupy.asnumpy(array) for name, array in outputs.items()}

    def _trial_outputs(self) -> Outputs:
        height, width = self._input.size_for(TRIAL_REGION)
        picture = np.zeros(self._input.shape_for(1, (height, width)), np.float32)
        try:
            return self._run_interruptibly(picture)
        except EngineError as error:
            raise ModelError(f"{self._path}: it does not take a {width}x{height} picture: {error}") from error

    def _run_interruptibly(self, picture: FloatArray) -> Outputs:
        """Run so that Ctrl-C works: a file may contain an endless loop, and native code handles no signals."""
        if not isinstance(self._engine, OnnxRuntimeEngine):
            return self._run(picture)
        with ThreadPoolExecutor(1, thread_name_prefix="vitascope-trial") as pool:
            trial: Future[Outputs] = pool.submit(self._run, picture)
            try:
                return trial.result()
            except BaseException:
                self._engine.interrupt()
                raise


def _normalised_outputs(path: Path) -> frozenset[str]:
    """Names of the outputs whose values come from a sigmoid or softmax, even if moved afterwards."""
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


def choose_custom_network(
    path: Path,
    options: GpuOptions,
    *,
    kind: NetworkKind,
    person_class: int | None = None,
    threads: int = 0,
    wanted: str = "auto",
    most_pictures: int,
    model: str,
    machine: Machine,
    cache_dir: Path | None,
) -> Chosen[MattingNetwork]:
    """Open the user's file for a job on the GPU.

    Args:
        path: The ``.onnx`` file.
        options: Options for the GPU.
        kind: The meaning of its outputs.
        person_class: See ``open_custom_network``.
        threads: Threads of ONNX Runtime on the CPU; 0 uses every core.
        wanted: ``tensorrt``, ``onnxruntime`` (on the GPU), ``processor`` or ``auto``.
        most_pictures: Maximum number of pictures in a call.
        model: The file's sha256.
        machine: The machine that verdicts apply to.
        cache_dir: Folder for verdicts; None checks again each time.

    Returns:
        A network that takes CuPy pictures, and the reason for its engine; the caller closes it.

    Raises:
        ModelError: As ``open_custom_network``.
        EngineError: As ``choose_engine``.
    """
    require_file(path, kind)

    def on_cpu() -> Engine:
        return OnnxRuntimeEngine(path, threads=threads)

    def on_gpu(open_one: Opener) -> Engine:
        return open_one(path, profiles)

    def make_inputs() -> Arrays:
        shape = wanted_input.shape_for(1, wanted_input.size_for(TRIAL_REGION))
        normal = np.random.default_rng(0).standard_normal(shape)
        return {wanted_input.name: normal.astype(wanted_input.dtype)}

    with OnnxRuntimeEngine(path, threads=threads) as reference:
        wanted_input = picture_input(path, reference.spec.inputs)
        profiles = {wanted_input.name: _sizes(wanted_input, most_pictures)}
        candidates = [
            Candidate[Engine](
                name=name,
                precision=precision,
                open=partial(on_gpu, open_one),
                describe=lambda engine: engine.name,
                runner=host_runner,
            )
            for name, precision, open_one in gpu_openers(options)
        ]
        candidates.append(
            Candidate[Engine](
                name="processor",
                precision="fp32",
                open=on_cpu,
                describe=lambda engine: engine.name,
                runner=host_runner,
                is_reference=True,
            )
        )
        chosen = choose_engine(
            candidates,
            wanted=wanted,
            reference=host_runner(reference),
            make_inputs=make_inputs,
            model=model,
            machine=machine,
            cache_dir=cache_dir,
        )
    network: MattingNetwork = open_custom_network(
        path,
        kind=kind,
        person_class=person_class,
        open_engine=lambda _: chosen.engine,
    )
    if chosen.engine.spec.device == "cpu":
        network = HostNetwork(network)
    return Chosen(network, chosen.name, chosen.reasons)


def _sizes(wanted: PictureInput, most_pictures: int) -> ShapeRange:
    """The sizes that the input will meet: the size written in the file, or every size that ``size_for`` gives."""
    smallest = tuple(side or SIDE_MULTIPLE for side in wanted.fixed_size)
    largest = tuple(side or LONGEST_SIDE for side in wanted.fixed_size)
    most = most_pictures if wanted.free_batch else 1
    return ShapeRange(
        wanted.shape_for(1, (smallest[0], smallest[1])),
        wanted.shape_for(most, wanted.size_for(TRIAL_REGION)),
        wanted.shape_for(most, (largest[0], largest[1])),
    )
