"""RobustVideoMatting's coarse network in PyTorch: inference only, batch norm folded, several frames in one call.

``structure.py`` puts it together; the parts here are PyTorch's own operators. Tensors inside are [N, C, H, W] in
channels-last memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, cast

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - the name that PyTorch's own documentation uses
from torch import Tensor, nn

from vitascope.models.rvm.structure import (
    SOURCE_CHANNELS,
    Activation,
    encoder_and_decoder,
    layer_tensors,
)
from vitascope.models.rvm.weights import RvmWeights, convolutions

__all__ = [
    "FoldedConvolution",
    "GruWeights",
    "HeadWeights",
    "Precision",
    "RvmCoarseNetwork",
    "TorchOps",
]


_Arrays = Mapping[str, np.ndarray[Any, Any]]


class FoldedConvolution(nn.Module):
    """A convolution's weight [O, I, kh, kw] in channels-last memory and its bias [O], and how it is applied."""

    weight: Tensor
    bias: Tensor | None

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
        self,
        x: Tensor,
        layer: FoldedConvolution,
        scale: Tensor | None,
        shortcut: Tensor | None,
        activation: Activation = None,
    ) -> Tensor:
        """1x1 convolution of ``x * scale``, plus the shortcut, then the activation."""
        x = layer(x if scale is None else x * scale)
        return _activated(x if shortcut is None else x + shortcut, activation)

    def max_pool(self, x: Tensor) -> Tensor:
        """The largest of 3x3, every second pixel."""
        return F.max_pool2d(x, 3, stride=2, padding=1)

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


class RvmCoarseNetwork(nn.Module):
    """Encoder, LR-ASPP, recurrent decoder, and the learned half of the deep guided filter.

    Args:
        weights: Folded weights.
        precision: ``fp32``: everything. ``mixed``: convolutions multiply in FP16 and add in FP32; recurrent states,
            gates, the guided filter's moments and coefficients, and the results are FP32. ``fp16``: as ``mixed``, but
            the coefficients are computed and returned in FP16 (half the traffic); the moments stay FP32, because
            variance is a small difference of large numbers.
    """

    def __init__(self, weights: RvmWeights, *, precision: Precision = "fp32") -> None:
        super().__init__()
        self.backbone = weights.backbone
        self.compute_dtype = torch.float32 if precision == "fp32" else torch.float16
        self.result_dtype = torch.float16 if precision == "fp16" else torch.float32
        self.ops = TorchOps()
        self.convolutions = nn.ModuleDict()
        tensors = layer_tensors(weights)
        for conv in convolutions(weights.backbone):
            if not conv.name.startswith("refiner.") and ".gru." not in conv.name:
                self.convolutions[_key(conv.name)] = FoldedConvolution(
                    tensors[f"{conv.name}.weight"],
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
        sources = self.ops.source_pyramid(pictures.flatten(0, 1), SOURCE_CHANNELS, self.compute_dtype)
        hidden, states = encoder_and_decoder(
            self.ops,
            self._layer,
            lambda level: cast("GruWeights", self.grus[str(level)]),
            backbone=self.backbone,
            sources=sources,
            states=(r1, r2, r3, r4),
            steps=steps,
        )
        gain, offset = self.ops.guided_head(
            sources[0], hidden, self._layer("project_mat.conv"), self.head, self.result_dtype
        )
        planes = (steps, eyes, *gain.shape[1:])
        return gain.view(planes), offset.view(planes), states[0], states[1], states[2], states[3]

    def _layer(self, name: str) -> FoldedConvolution:
        return cast("FoldedConvolution", self.convolutions[_key(name)])


def _key(name: str) -> str:
    """Module names hold no dots."""
    return name.replace(".", "_")
