"""The parts of RVM's coarse network in PyTorch's own operators: anywhere, and the fused kernels' oracle.

Tensors are [N, C, H, W] in channels-last memory unless said otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - the name that PyTorch's own documentation uses
from torch import Tensor, nn

__all__ = ["Activation", "FoldedConvolution", "GruWeights", "HeadWeights", "TorchOps"]

Activation = Literal["relu", "hard_swish"] | None

_Arrays = Mapping[str, np.ndarray[Any, Any]]


class FoldedConvolution(nn.Module):
    """A convolution's weight [O, I, kh, kw] in channels-last memory and its bias [O], and how it is applied."""

    weight: Tensor
    bias: Tensor | None
    packed_weight: Tensor
    """What the fused kernels read; they add it, with the two below."""
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
    """What the fused kernels read; they add both."""
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
