"""RobustVideoMatting's coarse network in PyTorch: inference only, batch norm folded, several frames in one call.

::

    pictures [T, E, 3, h, w] ── encoder ── LR-ASPP ──> f1..f4          all T * E pictures in one batch
             └ source and its halves ┐
    level 4..1: convolution over the batch, then T steps of a ConvGRU   only the step needs the frame before it
    level 0: two convolutions ── guided-filter head ──> gain, offset   the whole batch again

A ConvGRU's gates see its input and its state through one convolution, which is linear: the input's share is computed
for all frames at once, and each step adds the state's share.

Tensors inside are [N, C, H, W] in channels-last memory, N = T * E with the eyes of a frame side by side. Every
source picture has eight channels, R, G, B, their mean, 1 and three zeros: tensor cores take channels by eight, and the
constant channel carries the encoder's mean and standard deviation through zero padding exactly.
"""

from __future__ import annotations

from typing import Any, Final, Literal, cast

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - the name that PyTorch's own documentation uses
from torch import Tensor, nn

from vitascope.models.rvm.graph import state_sizes
from vitascope.models.rvm.torch_ops import Activation, FoldedConvolution, GruWeights, HeadWeights, TorchOps
from vitascope.models.rvm.weights import MOBILENET_BLOCKS, InvertedResidual, RvmWeights, convolutions

__all__ = ["Precision", "RvmCoarseNetwork", "state_shapes"]

Precision = Literal["fp32", "mixed", "fp16"]

_MEAN: Final = (0.485, 0.456, 0.406)
_STD: Final = (0.229, 0.224, 0.225)
_SOURCE_CHANNELS: Final = 8


def state_shapes(
    weights: RvmWeights, eyes: int, size: tuple[int, int]
) -> tuple[tuple[int, int, int, int], ...]:
    """Shapes of r1 to r4, [E, h, w, C], for pictures of (height, width): halved, rounded up, from level to level."""
    shapes = []
    for level, (height, width) in enumerate(state_sizes(size), start=1):
        channels = weights.tensors[f"decoder.decode{level}.gru.hh.0.weight"].shape[0]
        shapes.append((eyes, height, width, channels))
    return tuple(shapes)


class RvmCoarseNetwork(nn.Module):
    """Encoder, LR-ASPP, recurrent decoder, and the learned half of the deep guided filter.

    Args:
        weights: Folded weights.
        precision: ``fp32``: everything. ``mixed``: convolutions multiply in FP16 and add in FP32; recurrent states,
            gates, the guided filter's moments and coefficients, and the results are FP32. ``fp16``: as ``mixed``, but
            the coefficients are computed and returned in FP16 (half the traffic); the moments stay FP32, because
            variance is a small difference of large numbers.
        ops: What computes the parts; PyTorch's own operators when omitted.
    """

    def __init__(
        self, weights: RvmWeights, *, precision: Precision = "fp32", ops: TorchOps | None = None
    ) -> None:
        super().__init__()
        self.backbone = weights.backbone
        self.compute_dtype = torch.float32 if precision == "fp32" else torch.float16
        self.result_dtype = torch.float16 if precision == "fp16" else torch.float32
        self.ops = ops if ops is not None else TorchOps()
        self.convolutions = nn.ModuleDict()
        tensors = {name: np.array(tensor) for name, tensor in weights.tensors.items()}
        self._fold_normalisation(tensors)
        skipped = (
            "refiner.",
            "decoder.decode4.gru",
            "decoder.decode3.gru",
            "decoder.decode2.gru",
            "decoder.decode1.gru",
        )
        for conv in convolutions(weights.backbone):
            if not conv.name.startswith(skipped):
                weight = tensors[f"{conv.name}.weight"]
                if conv.name.startswith("decoder.") and weight.shape[1] % _SOURCE_CHANNELS == 3:
                    weight = _widened(weight, _SOURCE_CHANNELS - 3)
                self.convolutions[_key(conv.name)] = FoldedConvolution(
                    weight,
                    tensors.get(f"{conv.name}.bias"),
                    stride=conv.stride,
                    padding=conv.padding,
                    dilation=conv.dilation,
                    groups=conv.groups,
                    dtype=self.compute_dtype,
                )
        self.grus = nn.ModuleDict(
            {
                str(level): GruWeights(tensors, f"decoder.decode{level}.gru", self.compute_dtype)
                for level in (1, 2, 3, 4)
            }
        )
        self.head = HeadWeights(tensors, self.compute_dtype)
        self.ops.prepare(self)

    def forward(
        self, pictures: Tensor, r1: Tensor, r2: Tensor, r3: Tensor, r4: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Matte T frames of E eyes.

        Args:
            pictures: [T, E, 3, h, w], RGB 0..1, float16 or float32.
            r1: float32 [E, h/2, w/2, C], the state of decoder level 1 before the first frame; zeros at the start.
            r2: Of level 2, [E, h/4, w/4, C].
            r3: Of level 3.
            r4: Of level 4.

        Returns:
            gain and offset, [T, E, 4, h, w] of ``result_dtype``, then the four states after the last frame.
        """
        steps, eyes = pictures.shape[:2]
        sources = self.ops.source_pyramid(pictures.flatten(0, 1), _SOURCE_CHANNELS, self.compute_dtype)
        if self.backbone == "mobilenetv3":
            f1, f2, f3, f4 = self._mobilenet(sources[0])
        else:
            f1, f2, f3, f4 = self._resnet(sources[0])
        bottom = self.ops.attend(f4, self._layer("aspp.aspp1.0"), self._layer("aspp.aspp2.1"))
        x, r4 = self._gru(4, bottom, r4, steps)
        x, r3 = self._decode(3, x, f3, sources[3], r3, steps)
        x, r2 = self._decode(2, x, f2, sources[2], r2, steps)
        x, r1 = self._decode(1, x, f1, sources[1], r1, steps)
        x = self.ops.upsample_concat(x, None, sources[0])
        x = self.ops.convolve(x, self._layer("decoder.decode0.conv.0"), "relu")
        hidden = self.ops.convolve(x, self._layer("decoder.decode0.conv.3"), "relu")
        gain, offset = self.ops.guided_head(
            sources[0], hidden, self._layer("project_mat.conv"), self.head, self.result_dtype
        )
        planes = (steps, eyes, *gain.shape[1:])
        return gain.view(planes), offset.view(planes), r1, r2, r3, r4

    def _layer(self, name: str) -> FoldedConvolution:
        return cast("FoldedConvolution", self.convolutions[_key(name)])

    def _decode(
        self, level: int, x: Tensor, skip: Tensor, source: Tensor, state: Tensor, steps: int
    ) -> tuple[Tensor, Tensor]:
        x = self.ops.upsample_concat(x, skip, source)
        x = self.ops.convolve(x, self._layer(f"decoder.decode{level}.conv.0"), "relu")
        return self._gru(level, x, state, steps)

    def _gru(self, level: int, x: Tensor, state: Tensor, steps: int) -> tuple[Tensor, Tensor]:
        """The second half of the channels goes through the ConvGRU, the first passes by."""
        return self.ops.gru(x, state, cast("GruWeights", self.grus[str(level)]), steps)

    def _mobilenet(self, source: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        x = self.ops.convolve(source, self._layer("backbone.features.0.0"), "hard_swish")
        taps = []
        for number, block in enumerate(MOBILENET_BLOCKS, start=1):
            x = self._inverted_residual(x, f"backbone.features.{number}.block", block)
            if number in (1, 3, 6):
                taps.append(x)
        bottom = self.ops.convolve(x, self._layer("backbone.features.16.0"), "hard_swish")
        return taps[0], taps[1], taps[2], bottom

    def _inverted_residual(self, x: Tensor, prefix: str, block: InvertedResidual) -> Tensor:
        activation: Activation = "hard_swish" if block.hard_swish else "relu"
        shortcut = x if block.residual else None
        part = 0
        if block.expanded != block.inputs:
            x = self.ops.convolve(x, self._layer(f"{prefix}.0.0"), activation)
            part = 1
        depthwise = self._layer(f"{prefix}.{part}.0")
        if block.squeezes:
            squeeze = (self._layer(f"{prefix}.{part + 1}.fc1"), self._layer(f"{prefix}.{part + 1}.fc2"))
            x, scale = self.ops.depthwise_squeezed(x, depthwise, activation, *squeeze)
            part += 1
        else:
            x, scale = self.ops.depthwise(x, depthwise, activation), None
        return self.ops.project(x, self._layer(f"{prefix}.{part + 1}.0"), scale, shortcut)

    def _resnet(self, source: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        x = self.ops.convolve(source, self._layer("backbone.conv1"), "relu")
        taps = [x]
        x = F.max_pool2d(x, 3, stride=2, padding=1)
        for layer, blocks in enumerate((3, 4, 6, 3), start=1):
            for block in range(blocks):
                prefix = f"backbone.layer{layer}.{block}"
                shortcut = x
                if block == 0:
                    shortcut = self.ops.convolve(x, self._layer(f"{prefix}.downsample.0"), None)
                x = self.ops.convolve(x, self._layer(f"{prefix}.conv1"), "relu")
                x = self.ops.convolve(x, self._layer(f"{prefix}.conv2"), "relu")
                x = torch.relu(self.ops.project(x, self._layer(f"{prefix}.conv3"), None, shortcut))
            taps.append(x)
        return taps[0], taps[1], taps[2], taps[4]

    def _fold_normalisation(self, tensors: dict[str, np.ndarray[Any, Any]]) -> None:
        """Widen the first convolution to eight channels, with MobileNet's mean and std in its weights.

        ``w * (x - mean) / std`` is ``(w / std) * x - (w * mean / std) * 1``, and the 1 is read from a channel that is,
        like the normalised picture, zero outside it.
        """
        name = "backbone.features.0.0.weight" if self.backbone == "mobilenetv3" else "backbone.conv1.weight"
        weight = tensors[name].astype(np.float64)
        wide = _widened(weight, _SOURCE_CHANNELS - 3)
        if self.backbone == "mobilenetv3":
            mean, std = (np.array(value)[None, :, None, None] for value in (_MEAN, _STD))
            wide[:, :3] = weight / std
            wide[:, 4] = -(weight * mean / std).sum(axis=1)
        tensors[name] = wide.astype(np.float32)


def _widened(weight: np.ndarray[Any, Any], channels: int) -> np.ndarray[Any, Any]:
    """A weight with zeros for more input channels."""
    outputs, _, height, width = weight.shape
    return np.concatenate([weight, np.zeros((outputs, channels, height, width), weight.dtype)], axis=1)


def _key(name: str) -> str:
    """Module names hold no dots."""
    return name.replace(".", "_")
