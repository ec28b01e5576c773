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

from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, cast

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - the name that PyTorch's own documentation uses
from torch import Tensor, nn

from vitascope.models.rvm.graph import state_sizes
from vitascope.models.rvm.weights import MOBILENET_BLOCKS, InvertedResidual, RvmWeights, convolutions

__all__ = [
    "Activation",
    "FoldedConvolution",
    "GruWeights",
    "HeadWeights",
    "Precision",
    "RvmCoarseNetwork",
    "TorchOps",
    "state_shapes",
]


Activation = Literal["relu", "hard_swish"] | None

_Arrays = Mapping[str, np.ndarray[Any, Any]]


class FoldedConvolution(nn.Module):
    """A convolution's weight [O, I, kh, kw] in channels-last memory and its bias [O], and how it is applied."""

    weight: Tensor
    bias: Tensor | None
    packed_weight: Tensor
    """Read by the fused kernels, which add it and the two below."""
    packed_bias: Tensor | None
    exact_weight: Tensor

    def __init__(
        self,
        weight: np.ndarray[Any, Any],
        bias: np.ndarray[Any, Any] | None,
        *,
        stride: int,
        padding: int,
        dilation: int,
        groups: int,
        dtype: torch.dtype,
    ) -> None:
        super().__init__()
        self.stride, self.padding, self.dilation, self.groups = stride, padding, dilation, groups
        tensor = torch.from_numpy(np.ascontiguousarray(weight, np.float32)).to(dtype)
        self.register_buffer("weight", tensor.contiguous(memory_format=torch.channels_last))
        self.register_buffer(
            "bias", None if bias is None else torch.from_numpy(np.array(bias, np.float32)).to(dtype)
        )

    def forward(self, x: Tensor) -> Tensor:
        """The convolution with its bias."""
        return F.conv2d(x, self.weight, self.bias, self.stride, self.padding, self.dilation, self.groups)


class GruWeights(nn.Module):
    """A ConvGRU's convolutions, apart by what they read: the input, or the state.

    ``inputs`` gives the input's share of reset gate, update gate and candidate, [3 C, C, 3, 3] with all biases;
    ``gates`` the state's share of both gates, [2 C, C, 3, 3]; ``candidate`` that of the candidate, [C, C, 3, 3].
    """

    packed_gates: Tensor
    """Read by the fused kernels, which add both."""
    packed_candidate: Tensor

    def __init__(self, tensors: _Arrays, name: str, dtype: torch.dtype) -> None:
        super().__init__()
        gates, candidate = tensors[f"{name}.ih.0.weight"], tensors[f"{name}.hh.0.weight"]
        self.channels = candidate.shape[0]

        def layer(
            weight: np.ndarray[Any, Any], bias: np.ndarray[Any, Any] | None = None
        ) -> FoldedConvolution:
            return FoldedConvolution(weight, bias, stride=1, padding=1, dilation=1, groups=1, dtype=dtype)

        bias = np.concatenate([tensors[f"{name}.ih.0.bias"], tensors[f"{name}.hh.0.bias"]])
        self.inputs = layer(np.concatenate([gates, candidate])[:, : self.channels], bias)
        self.gates = layer(gates[:, self.channels :])
        self.candidate = layer(candidate[:, self.channels :])


class HeadWeights(nn.Module):
    """The deep guided filter's learned box filter and 1x1 convolutions; the box filter is always FP32."""

    def __init__(self, tensors: _Arrays, dtype: torch.dtype) -> None:
        super().__init__()

        def layer(name: str, of: torch.dtype = dtype, groups: int = 1) -> FoldedConvolution:
            weight = tensors[f"refiner.{name}.weight"]
            return FoldedConvolution(
                weight,
                tensors.get(f"refiner.{name}.bias"),
                stride=1,
                padding=weight.shape[2] // 2,
                dilation=1,
                groups=groups,
                dtype=of,
            )

        self.box_filter = layer("box_filter", torch.float32, groups=4)
        self.first, self.second, self.third = layer("conv.0"), layer("conv.3"), layer("conv.6")


class TorchOps:
    """Each part as PyTorch's operators."""

    name = "torch"

    def prepare(self, network: nn.Module) -> None:
        """Rearrange a network's weights; PyTorch's operators take them as they are."""

    def compile_for(self, call: Callable[[], object]) -> None:
        """Compile what a call will launch before it is launched; PyTorch's operators are compiled already."""

    def source_pyramid(self, pictures: Tensor, channels: int, dtype: torch.dtype) -> list[Tensor]:
        """Pictures [N, 3, h, w] with their grey, a 1 and zeros for further channels, and their halves: 1/1 to 1/8.

        A window that hangs over the edge averages what it has.
        """
        grey = pictures.float().mean(1, keepdim=True).to(pictures.dtype)
        ones = torch.ones_like(grey)
        zeros = torch.zeros_like(grey).expand(-1, channels - 5, -1, -1)
        source = torch.cat([pictures, grey, ones, zeros], dim=1).to(dtype, memory_format=torch.channels_last)
        levels = [source]
        for _ in range(3):
            levels.append(F.avg_pool2d(levels[-1], 2, 2, ceil_mode=True, count_include_pad=False))
        return levels

    def convolve(self, x: Tensor, layer: FoldedConvolution, activation: Activation) -> Tensor:
        """Convolution, bias and activation."""
        return _activated(layer(x), activation)

    def depthwise(self, x: Tensor, layer: FoldedConvolution, activation: Activation) -> Tensor:
        """One filter a channel, bias and activation."""
        return _activated(layer(x), activation)

    def depthwise_squeezed(
        self,
        x: Tensor,
        layer: FoldedConvolution,
        activation: Activation,
        squeeze: FoldedConvolution,
        excite: FoldedConvolution,
    ) -> tuple[Tensor, Tensor]:
        """``depthwise``, and the factor [N, C, 1, 1] that squeeze-and-excitation finds for each channel."""
        x = self.depthwise(x, layer, activation)
        mean = x.mean((2, 3), keepdim=True)
        return x, F.hardsigmoid(excite(torch.relu(squeeze(mean))))

    def project(
        self, x: Tensor, layer: FoldedConvolution, scale: Tensor | None, shortcut: Tensor | None
    ) -> Tensor:
        """1x1 convolution of ``x * scale``, plus the shortcut."""
        x = layer(x if scale is None else x * scale)
        return x if shortcut is None else x + shortcut

    def attend(self, x: Tensor, layer: FoldedConvolution, attention: FoldedConvolution) -> Tensor:
        """LR-ASPP: ``relu(conv(x)) * sigmoid(conv(mean(x)))``."""
        weight = torch.sigmoid(attention(x.mean((2, 3), keepdim=True)))
        return torch.relu(layer(x)) * weight

    def upsample_concat(self, x: Tensor, skip: Tensor | None, source: Tensor) -> Tensor:
        """``x`` doubled bilinearly and cropped to the source's size, then ``skip`` and the source as more channels."""
        height, width = source.shape[2:]
        grown = F.interpolate(x, scale_factor=2.0, mode="bilinear", align_corners=False)
        parts = [grown[:, :, :height, :width], *([] if skip is None else [skip]), source]
        return torch.cat(parts, dim=1)

    def gru(self, x: Tensor, state: Tensor, weights: GruWeights, steps: int) -> tuple[Tensor, Tensor]:
        """T steps of a ConvGRU on the second half of the channels.

        ``r, z = sigmoid(conv[x, h]); c = tanh(conv[x, r h]); h' = (1 - z) h + z c``, gates and state in FP32.

        Args:
            x: [T * E, 2 C, H, W].
            state: float32 [E, H, W, C].
            weights: The convolutions.
            steps: T.

        Returns:
            [T * E, 2 C, H, W] with the state of each step in the second half, and the last state.
        """
        channels = weights.channels
        kept, read = x[:, :channels], x[:, channels:]
        shares = weights.inputs(read.contiguous(memory_format=torch.channels_last)).unflatten(0, (steps, -1))
        hidden = state.permute(0, 3, 1, 2)
        outputs = []
        for share in shares:
            gates = (weights.gates(hidden.to(x.dtype)).float() + share[:, : 2 * channels].float()).sigmoid()
            reset, update = gates[:, :channels], gates[:, channels:]
            seen = weights.candidate((reset * hidden).to(x.dtype)).float()
            candidate = torch.tanh(seen + share[:, 2 * channels :].float())
            hidden = hidden + update * (candidate - hidden)
            outputs.append(hidden.to(x.dtype))
        joined = torch.cat([kept, torch.cat(outputs)], dim=1)
        return joined, hidden.permute(0, 2, 3, 1).contiguous()

    def guided_head(
        self,
        source: Tensor,
        hidden: Tensor,
        project: FoldedConvolution,
        head: HeadWeights,
        result_dtype: torch.dtype,
    ) -> tuple[Tensor, Tensor]:
        """Gain and offset [N, 4, h, w], contiguous, of the deep guided filter (Wu et al., CVPR 2018).

        With x the source and its grey, y foreground residual and alpha, and means by the learned box filter:
        ``gain = conv(mean(xy) - mean(x) mean(y), mean(xx) - mean(x)^2, hidden)``,
        ``offset = mean(y) - gain * mean(x)``.
        """
        y = project(hidden).float()
        rgb = source[:, :3].float()
        x = torch.cat([rgb, rgb.mean(1, keepdim=True)], dim=1)
        mean_x, mean_y = head.box_filter(x), head.box_filter(y)
        covariance = head.box_filter(x * y) - mean_x * mean_y
        variance = head.box_filter(x * x) - mean_x * mean_x
        moments = torch.cat([covariance, variance], dim=1).to(hidden.dtype)
        z = torch.relu(head.first(torch.cat([moments, hidden], dim=1)))
        gain = head.third(torch.relu(head.second(z))).float()
        offset = mean_y - gain * mean_x
        return gain.to(result_dtype).contiguous(), offset.to(result_dtype).contiguous()


def _activated(x: Tensor, activation: Activation) -> Tensor:
    if activation == "relu":
        return torch.relu(x)
    return F.hardswish(x) if activation == "hard_swish" else x


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
        ops: The implementation of the parts; PyTorch's own operators when omitted.
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
            r2: The state of level 2, [E, h/4, w/4, C].
            r3: The state of level 3.
            r4: The state of level 4.

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
