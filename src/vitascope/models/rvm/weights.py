"""RobustVideoMatting's convolutions: what they are, and their weights with batch norm folded in.

The network is a sequence of convolutions with fixed arithmetic between them, so a table of the convolutions in the
order in which they run is all that is needed to read a checkpoint:

* the authors' ONNX file has its batch norms folded already, and most of its initialisers have lost their names. The
  graph lists the convolutions in order, the table names them; those that kept a name must agree with it.
* the authors' ``.pth`` is a state dict with the batch norms still apart. It is read with ``weights_only=True``, so that
  nothing in it is run.

Sources: S. Lin et al., "Robust High-Resolution Video Matting with Temporal Guidance", WACV 2022; A. Howard et al.,
"Searching for MobileNetV3", ICCV 2019; K. He et al., "Deep Residual Learning", CVPR 2016.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from vitascope.errors import MissingDependencyError, ModelError
from vitascope.models.network import FloatArray

Backbone = Literal["mobilenetv3", "resnet50"]

_DEFAULT_EPSILON: Final = 1e-5
# torchvision builds its MobileNetV3 with this one.
_MOBILENET_EPSILON: Final = 1e-3


@dataclass(frozen=True, slots=True)
class Convolution:
    """One convolution of the network."""

    name: str
    """Its key in the authors' state dict, without ``.weight``."""
    shape: tuple[int, int, int, int]
    """The weight's shape: outputs, inputs per group, kernel height, kernel width."""
    stride: int = 1
    dilation: int = 1
    groups: int = 1
    norm: str | None = None
    """Key of the batch norm behind it in the authors' state dict."""
    epsilon: float = _DEFAULT_EPSILON
    """The epsilon of that batch norm."""
    biased: bool = False
    """True when the convolution has a bias of its own; one with a batch norm gets its bias from that."""

    @property
    def padding(self) -> int:
        """Zeros on every side: the size stays what it is, divided by the stride and rounded up."""
        return self.dilation * (self.shape[2] // 2)


@dataclass(frozen=True, slots=True)
class InvertedResidual:
    """One block of MobileNetV3-Large, as RVM uses it: the last three dilated instead of strided."""

    kernel: int
    inputs: int
    expanded: int
    outputs: int
    squeezes: bool
    """True with squeeze-and-excitation."""
    hard_swish: bool
    """Activation: hard swish, else ReLU."""
    stride: int = 1
    dilation: int = 1

    @property
    def residual(self) -> bool:
        """True when the block's input is added to its output."""
        return self.stride == 1 and self.inputs == self.outputs


MOBILENET_BLOCKS: Final = (
    InvertedResidual(3, 16, 16, 16, False, False),
    InvertedResidual(3, 16, 64, 24, False, False, 2),
    InvertedResidual(3, 24, 72, 24, False, False),
    InvertedResidual(5, 24, 72, 40, True, False, 2),
    InvertedResidual(5, 40, 120, 40, True, False),
    InvertedResidual(5, 40, 120, 40, True, False),
    InvertedResidual(3, 40, 240, 80, False, True, 2),
    InvertedResidual(3, 80, 200, 80, False, True),
    InvertedResidual(3, 80, 184, 80, False, True),
    InvertedResidual(3, 80, 184, 80, False, True),
    InvertedResidual(3, 80, 480, 112, True, True),
    InvertedResidual(3, 112, 672, 112, True, True),
    InvertedResidual(5, 112, 672, 160, True, True, 1, 2),
    InvertedResidual(5, 160, 960, 160, True, True, 1, 2),
    InvertedResidual(5, 160, 960, 160, True, True, 1, 2),
)
"""Blocks 1 to 15 of the encoder; 0 and 16 are single convolutions."""

# Blocks, width and stride of ResNet50's layers; the last is dilated from its second block on.
_RESNET_LAYERS: Final = ((3, 64, 1, 1), (4, 128, 2, 1), (6, 256, 2, 1), (3, 512, 1, 2))

# Channels of the encoder's four taps and of the decoder's levels 4 to 0.
_TAPS: Final = {"mobilenetv3": (16, 24, 40, 128), "resnet50": (64, 256, 512, 256)}
_DECODED: Final = {"mobilenetv3": (128, 80, 40, 32, 16), "resnet50": (256, 128, 64, 32, 16)}


@dataclass(frozen=True, slots=True)
class RvmWeights:
    """Every convolution's weight and bias by name, batch norm folded in."""

    backbone: Backbone
    tensors: Mapping[str, FloatArray]
    """float32; ``NAME.weight`` [O, I, kh, kw] of every convolution, ``NAME.bias`` [O] of those that have one."""


def convolutions(backbone: Backbone) -> list[Convolution]:
    """The network's convolutions in the order in which they run."""
    encoder = _mobilenet() if backbone == "mobilenetv3" else _resnet()
    bottom, squeezed = (960, 128) if backbone == "mobilenetv3" else (2048, 256)
    pooling = [
        _normed("aspp.aspp1.0", (squeezed, bottom, 1, 1), norm="aspp.aspp1.1"),
        Convolution("aspp.aspp2.1", (squeezed, bottom, 1, 1)),
    ]
    return [*encoder, *pooling, *_decoder(backbone), *_refiner()]


def _normed(
    name: str,
    shape: tuple[int, int, int, int],
    *,
    norm: str,
    stride: int = 1,
    dilation: int = 1,
    groups: int = 1,
    epsilon: float = _DEFAULT_EPSILON,
) -> Convolution:
    return Convolution(name, shape, stride, dilation, groups, norm, epsilon)


def _mobilenet() -> Iterator[Convolution]:
    def normed(name: str, shape: tuple[int, int, int, int], **more: int) -> Convolution:
        return _normed(f"{name}.0", shape, norm=f"{name}.1", epsilon=_MOBILENET_EPSILON, **more)

    yield normed("backbone.features.0", (16, 3, 3, 3), stride=2)
    for number, block in enumerate(MOBILENET_BLOCKS, start=1):
        prefix = f"backbone.features.{number}.block"
        part = 0
        if block.expanded != block.inputs:
            yield normed(f"{prefix}.0", (block.expanded, block.inputs, 1, 1))
            part = 1
        yield normed(
            f"{prefix}.{part}",
            (block.expanded, 1, block.kernel, block.kernel),
            stride=block.stride,
            dilation=block.dilation,
            groups=block.expanded,
        )
        part += 1
        if block.squeezes:
            # A quarter of the channels, rounded to a multiple of 8, but never down by more than a tenth.
            quarter = block.expanded / 4
            squeezed = max(8, int(quarter + 4) // 8 * 8)
            squeezed += 8 if squeezed < 0.9 * quarter else 0
            yield Convolution(f"{prefix}.{part}.fc1", (squeezed, block.expanded, 1, 1), biased=True)
            yield Convolution(f"{prefix}.{part}.fc2", (block.expanded, squeezed, 1, 1), biased=True)
            part += 1
        yield normed(f"{prefix}.{part}", (block.outputs, block.expanded, 1, 1))
    yield normed("backbone.features.16", (960, 160, 1, 1))


def _resnet() -> Iterator[Convolution]:
    yield _normed("backbone.conv1", (64, 3, 7, 7), norm="backbone.bn1", stride=2)
    inputs = 64
    for layer, (blocks, width, stride, dilation) in enumerate(_RESNET_LAYERS, start=1):
        for block in range(blocks):
            prefix, first = f"backbone.layer{layer}.{block}", block == 0
            own_stride, own_dilation = (stride, 1) if first else (1, dilation)
            yield _normed(f"{prefix}.conv1", (width, inputs, 1, 1), norm=f"{prefix}.bn1")
            yield _normed(
                f"{prefix}.conv2",
                (width, width, 3, 3),
                norm=f"{prefix}.bn2",
                stride=own_stride,
                dilation=own_dilation,
            )
            yield _normed(f"{prefix}.conv3", (4 * width, width, 1, 1), norm=f"{prefix}.bn3")
            if first:
                yield _normed(
                    f"{prefix}.downsample.0",
                    (4 * width, inputs, 1, 1),
                    norm=f"{prefix}.downsample.1",
                    stride=own_stride,
                )
            inputs = 4 * width


def _decoder(backbone: Backbone) -> Iterator[Convolution]:
    taps, decoded = _TAPS[backbone], _DECODED[backbone]
    yield from _gru("decoder.decode4.gru", decoded[0] // 2)
    for level, skip, above, outputs in zip(
        (3, 2, 1), reversed(taps[:3]), decoded[:3], decoded[1:4], strict=True
    ):
        name = f"decoder.decode{level}"
        yield _normed(f"{name}.conv.0", (outputs, above + skip + 3, 3, 3), norm=f"{name}.conv.1")
        yield from _gru(f"{name}.gru", outputs // 2)
    name, outputs = "decoder.decode0.conv", decoded[4]
    yield _normed(f"{name}.0", (outputs, decoded[3] + 3, 3, 3), norm=f"{name}.1")
    yield _normed(f"{name}.3", (outputs, outputs, 3, 3), norm=f"{name}.4")
    yield Convolution("project_mat.conv", (4, outputs, 1, 1), biased=True)


def _gru(name: str, channels: int) -> Iterator[Convolution]:
    yield Convolution(f"{name}.ih.0", (2 * channels, 2 * channels, 3, 3), biased=True)
    yield Convolution(f"{name}.hh.0", (channels, 2 * channels, 3, 3), biased=True)


def _refiner() -> Iterator[Convolution]:
    yield Convolution("refiner.box_filter", (4, 1, 3, 3), groups=4)
    yield _normed("refiner.conv.0", (16, 24, 1, 1), norm="refiner.conv.1")
    yield _normed("refiner.conv.3", (16, 16, 1, 1), norm="refiner.conv.4")
    yield Convolution("refiner.conv.6", (4, 16, 1, 1), biased=True)


def load_rvm_weights(path: Path) -> RvmWeights:
    """Read an official checkpoint; its file name's ending says which kind it is.

    Args:
        path: ``rvm_*_fp32.onnx``, ``rvm_*_fp16.onnx`` or ``rvm_*.pth``, already verified.

    Raises:
        ModelError: Another network, or a file that cannot be read.
        MissingDependencyError: A ``.pth`` without PyTorch.
    """
    if path.suffix.lower() == ".pth":
        return fold_state_dict(_read_state_dict(path), source=str(path))
    return _read_onnx(path)


def fold_state_dict(state: Mapping[str, npt.NDArray[Any]], *, source: str = "state dict") -> RvmWeights:
    """Fold the batch norms of the authors' state dict into its convolutions.

    Each output channel is scaled by ``gamma / sqrt(variance + epsilon)`` and shifted by ``beta - mean * scale``,
    computed in double precision.

    Args:
        state: Arrays by the authors' names.
        source: Its name in messages.

    Raises:
        ModelError: Names are missing, or a shape is another one.
    """
    backbone: Backbone = "resnet50" if "backbone.conv1.weight" in state else "mobilenetv3"
    tensors: dict[str, FloatArray] = {}

    def read(key: str, shape: tuple[int, ...]) -> npt.NDArray[np.float64]:
        if key not in state or state[key].shape != shape:
            met = f"shape {list(state[key].shape)}" if key in state else "nothing"
            raise ModelError(
                f"{source}: not RobustVideoMatting's: {key} should be {list(shape)}, found {met}"
            )
        return np.asarray(state[key], np.float64)

    for conv in convolutions(backbone):
        weight, outputs = read(f"{conv.name}.weight", conv.shape), conv.shape[:1]
        if conv.norm is not None:
            gamma, beta, mean, variance = (
                read(f"{conv.norm}.{part}", outputs)
                for part in ("weight", "bias", "running_mean", "running_var")
            )
            scale = gamma / np.sqrt(variance + conv.epsilon)
            weight = weight * scale[:, None, None, None]
            tensors[f"{conv.name}.bias"] = (beta - mean * scale).astype(np.float32)
        elif conv.biased:
            tensors[f"{conv.name}.bias"] = read(f"{conv.name}.bias", outputs).astype(np.float32)
        tensors[f"{conv.name}.weight"] = weight.astype(np.float32)
    return RvmWeights(backbone, tensors)


def _read_state_dict(path: Path) -> dict[str, npt.NDArray[Any]]:
    try:
        import torch
    except ImportError as error:
        raise MissingDependencyError(
            f"{path}: a .pth needs PyTorch: pip install 'vitascope[torch]'"
        ) from error
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
        return {str(name): tensor.numpy() for name, tensor in state.items()}
    except Exception as error:  # pickle, zip and torch raise whatever the damage leads them to
        raise ModelError(f"{path}: not a PyTorch state dict") from error


def _read_onnx(path: Path) -> RvmWeights:
    # onnx takes 0.1 s to import, which a run with a .pth need not wait for.
    import onnx
    from onnx import numpy_helper

    try:
        graph = onnx.load(path).graph
    except Exception as error:  # protobuf's DecodeError shares no public base with OSError
        raise ModelError(f"{path}: not an ONNX file") from error
    stored = {tensor.name: tensor for tensor in graph.initializer}
    # The box filter runs four times, on four moments.
    nodes = [node for node in graph.node if node.op_type == "Conv"]
    inputs = list(dict.fromkeys(tuple(node.input[1:]) for node in nodes))
    backbone: Backbone = "resnet50" if len(inputs) == len(convolutions("resnet50")) else "mobilenetv3"
    expected = convolutions(backbone)
    if len(inputs) != len(expected):
        raise ModelError(
            f"{path}: not an official RobustVideoMatting network: "
            f"{len(inputs)} convolutions, expected {len(expected)}"
        )
    tensors: dict[str, FloatArray] = {}
    for conv, names in zip(expected, inputs, strict=True):
        kept_name = names[0].endswith(".weight")
        wanted_inputs = 2 if conv.norm is not None or conv.biased else 1
        fits = len(names) == wanted_inputs and all(name in stored for name in names)
        fits = fits and tuple(stored[names[0]].dims) == conv.shape
        if not fits or (kept_name and names[0] != f"{conv.name}.weight"):
            raise ModelError(
                f"{path}: not an official RobustVideoMatting network: {names[0]} stands where "
                f"{conv.name} of shape {list(conv.shape)} belongs"
            )
        for part, name in zip(("weight", "bias"), names, strict=False):
            tensors[f"{conv.name}.{part}"] = numpy_helper.to_array(stored[name]).astype(np.float32)
    return RvmWeights(backbone, tensors)
