"""W and G for speed: channels-last, batch norm folded, channels padded to multiples of eight for tensor cores.

Three steps of W are computed in another way than in the published network, with the same results:

- Candidates are written in the layout that the hourglass reads, [voxel, channel] with zero channels up to a multiple of
eight, instead of repeating, sampling and joining 22 volumes. - The 7x7x7 convolution that weighs the motions has 22
outputs, too few to fill tensor cores. Its seven columns become separate outputs: a 7x7x1 convolution with 154 outputs,
whose seven shifted parts are added where they are used. - The occlusion's 7x7 convolution has one output. Its 49 taps
become the columns of a matrix product, and their sum over
  the neighbours is an inverse ``im2col``.

Each of G's 18 adaptive norms computes its scale and shift from the guide with three convolutions. The first
convolutions of all norms of one size read the same guide, and are joined into one; those for scale and shift of a norm
are joined, too, with the 1 of ``1 + scale`` in the bias.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - the name that PyTorch's own documentation uses
from torch import Tensor, nn

from vitascope.models.liveportrait.published import (
    MOTIONS,
    VOLUME_CHANNELS,
    VOLUME_DEPTH,
    ConvNorm3d,
    SpadeGenerator,
    WarpingNetwork,
    candidate_features,
    warp_volume,
)

_Convolution = nn.Conv2d | nn.Conv3d
_Norm = nn.BatchNorm2d | nn.BatchNorm3d


def fold(convolution: _Convolution, norm: _Norm) -> Any:
    """Fold a norm into a convolution of the same class, which equals ``norm(convolution(x))`` in evaluation."""
    assert norm.running_mean is not None and norm.running_var is not None  # always tracked in these networks
    gain = norm.weight / torch.sqrt(norm.running_var + norm.eps)
    weight = convolution.weight * gain.view(-1, *[1] * (convolution.weight.ndim - 1))
    bias = norm.bias - gain * norm.running_mean
    if convolution.bias is not None:
        bias = bias + gain * convolution.bias
    return _like(convolution, weight, bias)


def padded_channels(count: int) -> int:
    """Round up to a multiple of 8."""
    return -(-count // 8) * 8


def with_channels(convolution: _Convolution, inputs: int, outputs: int) -> Any:
    """Pad a convolution with channels whose weights are zero; new outputs are zero."""
    more_inputs = inputs - convolution.in_channels
    more_outputs = outputs - convolution.out_channels
    pads = (0, 0) * (convolution.weight.ndim - 2) + (0, more_inputs, 0, more_outputs)
    weight = F.pad(convolution.weight, pads)
    bias = None if convolution.bias is None else F.pad(convolution.bias, (0, more_outputs))
    return _like(convolution, weight, bias)


def _like(convolution: _Convolution, weight: Tensor, bias: Tensor | None) -> Any:
    make: Any = type(convolution)
    made = make(
        weight.shape[1],
        weight.shape[0],
        tuple(weight.shape[2:]),
        padding=convolution.padding,
        bias=bias is not None,
    )
    made.weight = nn.Parameter(weight.detach(), requires_grad=False)
    if bias is not None:
        made.bias = nn.Parameter(bias.detach(), requires_grad=False)
    return made


COLUMNS = 7
"""Number of columns of the kernel that weighs the motions."""


class TorchWarpOps:
    """The operations between W's convolutions, in PyTorch's operators, on any device."""

    def candidates(self, compressed: Tensor, driving: Tensor, source: Tensor, channels: int) -> Tensor:
        """Like ``candidate_features``, with zero channels up to ``channels``, channels last.

        Args:
            compressed: [B, 4, D, H, W], channels last.
            driving: Float32 [B, 21, 3].
            source: Float32 [B, 21, 3].
            channels: At least 110.

        Returns:
            [B, channels, D, H, W] of the dtype of ``compressed``.
        """
        made = candidate_features(compressed.float(), driving, source).to(compressed.dtype)
        made = F.pad(made, (0, 0, 0, 0, 0, 0, 0, channels - made.shape[1]))
        return made.contiguous(memory_format=torch.channels_last_3d)

    def bend(self, volume: Tensor, parts: Tensor, driving: Tensor, source: Tensor) -> Tensor:
        """Add the columns' parts, turn the sums into weights, and warp the volume by these.

        Args:
            volume: [B, 32, D, H, W], channels last.
            parts: [B, 7 * 22, D, H, W], channels last: channel ``column * 22 + motion`` at x belongs to the logit of
                ``motion`` at x - (column - 3).
            driving: Float32 [B, 21, 3].
            source: Float32 [B, 21, 3].

        Returns:
            [B, D * 32, H, W], channels last, ordered by depth.
        """
        batch, _, depth, height, width = parts.shape
        edge = COLUMNS // 2
        wide = F.pad(parts.float(), (edge, edge)).view(
            batch, COLUMNS, MOTIONS, depth, height, width + 2 * edge
        )
        logits = sum(wide[:, column, ..., column : column + width] for column in range(COLUMNS))
        assert isinstance(logits, Tensor)
        bent = warp_volume(volume.float(), logits.softmax(1), driving, source)
        by_depth = bent.view(batch, VOLUME_CHANNELS, depth, height, width).transpose(1, 2).flatten(1, 2)
        return by_depth.to(volume.dtype).contiguous(memory_format=torch.channels_last)


class FastWarping(nn.Module):
    """``WarpingNetwork`` with the same arguments and result.

    Args:
        network: Its weights are copied.
        ops: The operations between the convolutions.
        dtype: The dtype of the convolutions; keypoints and sample positions stay float32.
    """

    _occlusion_taps: Tensor
    _occlusion_bias: Tensor

    def __init__(self, network: WarpingNetwork, ops: TorchWarpOps, *, dtype: torch.dtype) -> None:
        super().__init__()
        self._ops = ops
        dense = network.dense_motion_network
        hourglass = dense.hourglass
        candidates = dense.compress.out_channels * MOTIONS + MOTIONS
        self._channels = padded_channels(candidates)
        features = padded_channels(dense.mask.in_channels)
        self.compress = fold(dense.compress, dense.norm)
        self.down = nn.ModuleList(
            _folded(block)
            for block in hourglass.encoder.down_blocks  # type: ignore[union-attr]
        )
        self.down[0] = with_channels(self.down[0], self._channels, self.down[0].out_channels)  # type: ignore[arg-type]
        self.up = nn.ModuleList(
            _folded(block)
            for block in hourglass.decoder.up_blocks  # type: ignore[union-attr]
        )
        last = fold(hourglass.decoder.conv, hourglass.decoder.norm)  # type: ignore[arg-type]
        self.features = with_channels(last, features, features)
        self.weigh = _by_columns(dense.mask, features)
        assert dense.occlusion.bias is not None
        self.register_buffer(
            "_occlusion_taps", _tap_matrix(dense.occlusion, dense.mask.in_channels, features)
        )
        self.register_buffer("_occlusion_bias", dense.occlusion.bias.detach().clone())
        self.third = fold(network.third.conv, network.third.norm)
        shape = (-1, VOLUME_CHANNELS, VOLUME_DEPTH, 3, 3)
        by_depth = self.third.weight.view(*shape).transpose(1, 2).flatten(1, 2)
        self.third.weight = nn.Parameter(by_depth.contiguous(), requires_grad=False)
        self.fourth = nn.Conv2d(256, 256, 1)
        self.fourth.load_state_dict(network.fourth.state_dict())
        self.to(dtype)
        for convolution in self.modules():
            if isinstance(convolution, nn.Conv3d):
                convolution.to(memory_format=torch.channels_last_3d)  # type: ignore[call-overload]
            elif isinstance(convolution, nn.Conv2d):
                convolution.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, volume: Tensor, driving: Tensor, source: Tensor) -> Tensor:
        """See ``WarpingNetwork.forward``; a volume in channels-last memory saves a copy.

        Args:
            volume: [B, 32, 16, 64, 64] of this network's dtype.
            driving: Float32 [B, 21, 3].
            source: Float32 [B, 21, 3].
        """
        volume = volume.contiguous(memory_format=torch.channels_last_3d)
        compressed = F.relu(self.compress(volume))
        skips = [self._ops.candidates(compressed, driving, source, self._channels)]
        for block in self.down:
            skips.append(_halved(F.relu(block(skips[-1]))))
        x = skips.pop()
        for block in self.up:
            x = torch.cat((F.relu(block(_doubled_volume(x))), skips.pop()), dim=1)
        features = F.relu(self.features(x))
        bent = self._ops.bend(volume, self.weigh(features), driving, source)
        result: Tensor = self.fourth(F.leaky_relu(self.third(bent), 0.01)) * self._occlusion(features)
        return result

    def _occlusion(self, features: Tensor) -> Tensor:
        """[B, C, D, H, W] to [B, 1, H, W]."""
        batch, channels, depth, height, width = features.shape
        voxels = features.permute(0, 2, 3, 4, 1).reshape(batch, depth, height * width, channels)
        taps = torch.matmul(voxels, self._occlusion_taps).float().sum(1)  # [B, H * W, 49]
        total = F.fold(taps.transpose(1, 2), (height, width), 7, padding=3)
        return (total + self._occlusion_bias.float()).sigmoid().to(features.dtype)


def _folded(block: ConvNorm3d) -> nn.Conv3d:
    folded: nn.Conv3d = fold(block.conv, block.norm)
    return folded


def _by_columns(mask: nn.Conv3d, inputs: int) -> nn.Conv3d:
    """Convert a 7x7x7 convolution with 22 outputs to 7x7x1 with 7 * 22."""
    motions = mask.out_channels
    made = nn.Conv3d(inputs, COLUMNS * motions, (7, 7, 1), padding=(3, 3, 0))
    weight = F.pad(mask.weight.detach(), (0, 0, 0, 0, 0, 0, 0, inputs - mask.in_channels))
    columns = weight.unbind(-1)  # each [22, C, 7, 7]
    made.weight = nn.Parameter(torch.cat(columns)[..., None], requires_grad=False)
    bias = torch.zeros(COLUMNS * motions)
    assert mask.bias is not None
    # Only the middle column, which counts for every voxel, gets the bias.
    bias[COLUMNS // 2 * motions : (COLUMNS // 2 + 1) * motions] = mask.bias.detach()
    made.bias = nn.Parameter(bias, requires_grad=False)
    return made


def _tap_matrix(occlusion: nn.Conv2d, channels: int, padded: int) -> Tensor:
    """The kernel as [D, C, 49]; mirrored, because ``F.fold`` adds a value to its neighbours."""
    weight = occlusion.weight.detach().view(channels, VOLUME_DEPTH, 7, 7).flip(-1, -2)
    return F.pad(weight.permute(1, 0, 2, 3).flatten(2), (0, 0, 0, padded - channels)).contiguous()


def _halved(x: Tensor) -> Tensor:
    return F.avg_pool3d(x, (1, 2, 2))


def _doubled_volume(x: Tensor) -> Tensor:
    return F.interpolate(x, scale_factor=(1, 2, 2))


_SLOPE = 0.2
_EPSILON = 1e-5


class FastGenerator(nn.Module):
    """``SpadeGenerator`` with the same argument and result.

    Args:
        network: Its weights are copied.
        dtype: The dtype of the convolutions; instance norm's moments are float32.
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
    """Mean and reciprocal standard deviation of each channel of each picture, float32."""
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
    """Join convolutions of one input along their outputs."""
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
