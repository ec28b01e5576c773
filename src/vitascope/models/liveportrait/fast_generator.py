"""G as it is run: channels last, and what depends on the guide alone in few large convolutions.

Each of G's 18 adaptive norms makes its scale and its shift from the guide with three convolutions. The first of all
norms of one size read the same guide and are one convolution; scale and shift of a norm are one, too, with the 1 of
``1 + scale`` in its bias.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - the name that PyTorch's own documentation uses
from torch import Tensor, nn

from vitascope.models.liveportrait.generator import SpadeGenerator

__all__ = ["FastGenerator"]

_SLOPE = 0.2
_EPSILON = 1e-5


class FastGenerator(nn.Module):
    """``SpadeGenerator`` with the same argument and result.

    Args:
        network: Its weights are copied.
        dtype: Of the convolutions; instance norm's moments are float32.
    """

    def __init__(self, network: SpadeGenerator, *, dtype: torch.dtype) -> None:
        super().__init__()
        middle = [module for name, module in network.named_children() if name.startswith("G_middle_")]
        self.fc = _copied(network.fc)
        self.middle = _Level(middle)
        self.up_0 = _Level([network.up_0])
        self.up_1 = _Level([network.up_1])
        self.picture = _copied(network.conv_img[0])
        self.to(dtype)
        for convolution in self.modules():
            if isinstance(convolution, nn.Conv2d):
                convolution.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, features: Tensor) -> Tensor:
        """See ``SpadeGenerator.forward``."""
        features = features.contiguous(memory_format=torch.channels_last)
        x = self.middle(self.fc(features), features)
        x = self.up_0(_doubled(x), _doubled(features))
        x = self.up_1(_doubled(x), _doubled(_doubled(features)))
        return F.pixel_shuffle(self.picture(F.leaky_relu(x, _SLOPE)), 2).sigmoid()


class _Level(nn.Module):
    """Blocks of one size."""

    def __init__(self, blocks: Sequence[Any]) -> None:
        super().__init__()
        norms = [norm for block in blocks for norm in _norms(block)]
        shared = [norm.mlp_shared[0] for norm in norms]
        self.shared = _joined(shared)
        self.blocks = nn.ModuleList(_Block(block) for block in blocks)
        self._hidden = shared[0].out_channels

    def forward(self, x: Tensor, guide: Tensor) -> Tensor:
        hidden = iter(torch.split(F.relu(self.shared(guide)), self._hidden, dim=1))
        for block in self.blocks:
            x = block(x, hidden)
        return x


class _Block(nn.Module):
    def __init__(self, block: Any) -> None:
        super().__init__()
        self.modulations = nn.ModuleList(_modulation(norm) for norm in _norms(block))
        self.conv_0, self.conv_1 = _copied(block.conv_0), _copied(block.conv_1)
        self.shortcut = _copied(block.conv_s) if block.is_learned_shortcut else None

    def forward(self, x: Tensor, hidden: Iterator[Tensor]) -> Tensor:
        moments = _moments(x)
        first, second, *third = self.modulations
        y = self.conv_0(F.leaky_relu(_modulated(x, moments, first(next(hidden))), _SLOPE))
        y = self.conv_1(F.leaky_relu(_modulated(y, _moments(y), second(next(hidden))), _SLOPE))
        if self.shortcut is not None:
            x = self.shortcut(_modulated(x, moments, third[0](next(hidden))))
        result: Tensor = x + y
        return result


def _norms(block: Any) -> list[Any]:
    return [block.norm_0, block.norm_1, *([block.norm_s] if block.is_learned_shortcut else [])]


def _moments(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and reciprocal deviation of every channel of every picture, float32."""
    variance, mean = torch.var_mean(x.float(), dim=(2, 3), keepdim=True, correction=0)
    return mean, torch.rsqrt(variance + _EPSILON)


def _modulated(x: Tensor, moments: tuple[Tensor, Tensor], modulation: Tensor) -> Tensor:
    mean, reciprocal = moments
    scale, shift = modulation.chunk(2, dim=1)
    return ((x.float() - mean) * reciprocal * scale + shift).to(x.dtype)


def _modulation(norm: Any) -> nn.Conv2d:
    made = _joined([norm.mlp_gamma, norm.mlp_beta])
    assert made.bias is not None
    with torch.no_grad():
        made.bias[: norm.mlp_gamma.out_channels] += 1
    return made


def _joined(convolutions: Sequence[nn.Conv2d]) -> nn.Conv2d:
    """Convolutions of one input side by side."""
    first = convolutions[0]
    made = nn.Conv2d(first.in_channels, sum(one.out_channels for one in convolutions), 3, padding=1)
    with torch.no_grad():
        made.weight.copy_(torch.cat([one.weight for one in convolutions]))
        assert made.bias is not None
        made.bias.copy_(torch.cat([one.bias for one in convolutions if one.bias is not None]))
    return made.requires_grad_(False)


def _copied(convolution: Any) -> nn.Conv2d:
    made = nn.Conv2d(
        convolution.in_channels,
        convolution.out_channels,
        convolution.kernel_size,
        padding=convolution.padding,
        bias=convolution.bias is not None,
    )
    made.load_state_dict(convolution.state_dict())
    return made.requires_grad_(False)


def _doubled(x: Tensor) -> Tensor:
    return F.interpolate(x, scale_factor=2)
