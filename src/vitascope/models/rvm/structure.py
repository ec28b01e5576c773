"""RobustVideoMatting's coarse network as a sequence of parts, on any backend.

::

    pictures [T, E, 3, h, w] ── encoder ── LR-ASPP ──> f1..f4          all T * E pictures in one batch
             └ source and its halves ┐
    level 4..1: convolution over the batch, then T steps of a ConvGRU   only the step needs the frame before it
    level 0: two convolutions ──> hidden features, from which the guided filter's head finds gain and offset

A ConvGRU's gates see its input and its state through one convolution, which is linear: the input's share is computed
for all frames at once, and each step adds the state's share.

Every source picture has eight channels, R, G, B, their mean, 1 and three zeros: tensor cores take channels by eight,
and the constant channel carries the encoder's mean and standard deviation through zero padding exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Literal, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from vitascope.models.rvm.state import state_sizes
from vitascope.models.rvm.weights import (
    MOBILENET_BLOCKS,
    Backbone,
    InvertedResidual,
    RvmWeights,
    convolutions,
)

Activation = Literal["relu", "hard_swish"] | None

SOURCE_CHANNELS: Final = 8

_MEAN: Final = (0.485, 0.456, 0.406)
_STD: Final = (0.229, 0.224, 0.225)

ArrayT = TypeVar("ArrayT")
LayerT = TypeVar("LayerT", contravariant=True)
GruT = TypeVar("GruT", contravariant=True)


class Parts(Protocol[ArrayT, LayerT, GruT]):
    """The parts that the network is put together from; N = T * E pictures, the eyes of a frame side by side."""

    def convolve(self, x: ArrayT, layer: LayerT, activation: Activation) -> ArrayT:
        """Convolution, bias and activation."""
        ...

    def depthwise(self, x: ArrayT, layer: LayerT, activation: Activation) -> ArrayT:
        """One filter a channel, bias and activation."""
        ...

    def depthwise_squeezed(
        self, x: ArrayT, layer: LayerT, activation: Activation, squeeze: LayerT, excite: LayerT
    ) -> tuple[ArrayT, ArrayT]:
        """``depthwise``, and the factor that squeeze-and-excitation finds for each channel."""
        ...

    def project(
        self,
        x: ArrayT,
        layer: LayerT,
        scale: ArrayT | None,
        shortcut: ArrayT | None,
        activation: Activation = None,
    ) -> ArrayT:
        """1x1 convolution of ``x * scale``, plus the shortcut, then the activation."""
        ...

    def max_pool(self, x: ArrayT) -> ArrayT:
        """The largest of 3x3, every second pixel."""
        ...

    def attend(self, x: ArrayT, layer: LayerT, attention: LayerT) -> ArrayT:
        """LR-ASPP: ``relu(conv(x)) * sigmoid(conv(mean(x)))``."""
        ...

    def upsample_concat(self, x: ArrayT, skip: ArrayT | None, source: ArrayT) -> ArrayT:
        """``x`` doubled bilinearly and cropped to the source's size, then ``skip`` and the source as more channels."""
        ...

    def gru(self, x: ArrayT, state: ArrayT, weights: GruT, steps: int) -> tuple[ArrayT, ArrayT]:
        """T steps of a ConvGRU on the second half of the channels: the features, and the state after them."""
        ...


def encoder_and_decoder(
    parts: Parts[ArrayT, LayerT, GruT],
    layer: Callable[[str], LayerT],
    gru: Callable[[int], GruT],
    *,
    backbone: Backbone,
    sources: Sequence[ArrayT],
    states: Sequence[ArrayT],
    steps: int,
) -> tuple[ArrayT, tuple[ArrayT, ...]]:
    """Run T frames through the network up to its last features.

    Args:
        parts: Who computes.
        layer: Gives the convolution of a name of ``weights.convolutions``.
        gru: Gives the ConvGRU of a decoder level, 1 to 4.
        backbone: The encoder.
        sources: The pictures at 1/1, 1/2, 1/4 and 1/8, of ``SOURCE_CHANNELS`` channels.
        states: r1 to r4 before the first frame.
        steps: T.

    Returns:
        The last features, of 16 channels, and r1 to r4 after the last frame.
    """
    r1, r2, r3, r4 = states
    encode = _mobilenet if backbone == "mobilenetv3" else _resnet
    f1, f2, f3, f4 = encode(parts, layer, sources[0])
    x = parts.attend(f4, layer("aspp.aspp1.0"), layer("aspp.aspp2.1"))
    x, r4 = parts.gru(x, r4, gru(4), steps)

    def decode(level: int, x: ArrayT, skip: ArrayT, state: ArrayT) -> tuple[ArrayT, ArrayT]:
        x = parts.upsample_concat(x, skip, sources[level])
        x = parts.convolve(x, layer(f"decoder.decode{level}.conv.0"), "relu")
        return parts.gru(x, state, gru(level), steps)

    x, r3 = decode(3, x, f3, r3)
    x, r2 = decode(2, x, f2, r2)
    x, r1 = decode(1, x, f1, r1)
    x = parts.upsample_concat(x, None, sources[0])
    x = parts.convolve(x, layer("decoder.decode0.conv.0"), "relu")
    return parts.convolve(x, layer("decoder.decode0.conv.3"), "relu"), (r1, r2, r3, r4)


def _mobilenet(
    parts: Parts[ArrayT, LayerT, GruT], layer: Callable[[str], LayerT], source: ArrayT
) -> tuple[ArrayT, ArrayT, ArrayT, ArrayT]:
    x = parts.convolve(source, layer("backbone.features.0.0"), "hard_swish")
    taps = []
    for number, block in enumerate(MOBILENET_BLOCKS, start=1):
        x = _inverted_residual(parts, layer, x, f"backbone.features.{number}.block", block)
        if number in (1, 3, 6):
            taps.append(x)
    bottom = parts.convolve(x, layer("backbone.features.16.0"), "hard_swish")
    return taps[0], taps[1], taps[2], bottom


def _inverted_residual(
    parts: Parts[ArrayT, LayerT, GruT],
    layer: Callable[[str], LayerT],
    x: ArrayT,
    prefix: str,
    block: InvertedResidual,
) -> ArrayT:
    activation: Activation = "hard_swish" if block.hard_swish else "relu"
    shortcut = x if block.residual else None
    part = 0
    if block.expanded != block.inputs:
        x = parts.convolve(x, layer(f"{prefix}.0.0"), activation)
        part = 1
    depthwise = layer(f"{prefix}.{part}.0")
    scale: ArrayT | None = None
    if block.squeezes:
        squeeze, excite = layer(f"{prefix}.{part + 1}.fc1"), layer(f"{prefix}.{part + 1}.fc2")
        x, scale = parts.depthwise_squeezed(x, depthwise, activation, squeeze, excite)
        part += 1
    else:
        x = parts.depthwise(x, depthwise, activation)
    return parts.project(x, layer(f"{prefix}.{part + 1}.0"), scale, shortcut)


def _resnet(
    parts: Parts[ArrayT, LayerT, GruT], layer: Callable[[str], LayerT], source: ArrayT
) -> tuple[ArrayT, ArrayT, ArrayT, ArrayT]:
    x = parts.convolve(source, layer("backbone.conv1"), "relu")
    taps = [x]
    x = parts.max_pool(x)
    for number, blocks in enumerate((3, 4, 6, 3), start=1):
        for block in range(blocks):
            prefix = f"backbone.layer{number}.{block}"
            shortcut = x
            if block == 0:
                shortcut = parts.convolve(x, layer(f"{prefix}.downsample.0"), None)
            x = parts.convolve(x, layer(f"{prefix}.conv1"), "relu")
            x = parts.convolve(x, layer(f"{prefix}.conv2"), "relu")
            x = parts.project(x, layer(f"{prefix}.conv3"), None, shortcut, "relu")
        taps.append(x)
    return taps[0], taps[1], taps[2], taps[4]


def layer_tensors(weights: RvmWeights) -> dict[str, npt.NDArray[np.float32]]:
    """The weights as the parts take them: every convolution that reads a source picture reads its eight channels.

    MobileNet's mean and std lie in its first convolution: ``w * (x - mean) / std`` is
    ``(w / std) * x - (w * mean / std) * 1``, and the 1 is read from a channel that is, like the normalised picture,
    zero outside it.
    """
    tensors = {name: np.array(tensor) for name, tensor in weights.tensors.items()}
    for conv in convolutions(weights.backbone):
        name = f"{conv.name}.weight"
        if (
            conv.name.startswith("decoder.decode")
            and ".gru." not in name
            and conv.shape[1] % SOURCE_CHANNELS == 3
        ):
            tensors[name] = _widened(tensors[name])
    first = "backbone.features.0.0.weight" if weights.backbone == "mobilenetv3" else "backbone.conv1.weight"
    weight = tensors[first].astype(np.float64)
    wide = _widened(weight)
    if weights.backbone == "mobilenetv3":
        mean, std = (np.array(value)[None, :, None, None] for value in (_MEAN, _STD))
        wide[:, :3] = weight / std
        wide[:, 4] = -(weight * mean / std).sum(axis=1)
    tensors[first] = wide.astype(np.float32)
    return tensors


def _widened(weight: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """A weight with zeros for the source channels beyond R, G, B."""
    outputs, _, height, width = weight.shape
    zeros = np.zeros((outputs, SOURCE_CHANNELS - 3, height, width), weight.dtype)
    return np.concatenate([weight, zeros], axis=1)


def state_shapes(
    weights: RvmWeights, eyes: int, size: tuple[int, int]
) -> tuple[tuple[int, int, int, int], ...]:
    """Shapes of r1 to r4, [E, h, w, C], for pictures of (height, width): halved, rounded up, from level to level."""
    shapes = []
    for level, (height, width) in enumerate(state_sizes(size), start=1):
        channels = weights.tensors[f"decoder.decode{level}.gru.hh.0.weight"].shape[0]
        shapes.append((eyes, height, width, channels))
    return tuple(shapes)
