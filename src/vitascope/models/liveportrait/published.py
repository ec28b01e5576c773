"""LivePortrait's networks as published, with the authors' weights.

F (appearance), M (see ``motion``), W (warping), G (generator) and S (stitching and retargeting). Their modules are
named as in the published checkpoints, which are read as plain tensors, never as pickled code.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch
import torch.nn.functional as F  # noqa: N812 - the name that PyTorch's own documentation uses
from torch import Tensor, nn

from vitascope.errors import ModelError
from vitascope.models.liveportrait.folder import CHECKPOINTS, require_checkpoints
from vitascope.models.liveportrait.motion import KEYPOINTS, MotionExtractor


class ConvNorm2d(nn.Module):
    """Convolution, batch norm, (leaky) ReLU, and average pooling by 2 if ``halves``."""

    def __init__(self, inputs: int, outputs: int, *, halves: bool = False, negative_slope: float = 0) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.norm = nn.BatchNorm2d(outputs)
        self._halves = halves
        self._negative_slope = negative_slope

    def forward(self, x: Tensor) -> Tensor:
        """[B, C, H, W] to [B, C', H, W] or its half."""
        x = F.leaky_relu(self.norm(self.conv(x)), self._negative_slope)
        return F.avg_pool2d(x, 2) if self._halves else x


class ConvNorm3d(nn.Module):
    """Convolution 3x3x3, batch norm, ReLU; halves height and width after these, or doubles them before. Depth stays."""

    def __init__(self, inputs: int, outputs: int, *, halves: bool = False, doubles: bool = False) -> None:
        super().__init__()
        self.conv = nn.Conv3d(inputs, outputs, 3, padding=1)
        self.norm = nn.BatchNorm3d(outputs)
        self._halves = halves
        self._doubles = doubles

    def forward(self, x: Tensor) -> Tensor:
        """[B, C, D, H, W] to [B, C', D, H', W']."""
        if self._doubles:
            x = F.interpolate(x, scale_factor=(1, 2, 2))
        x = F.relu(self.norm(self.conv(x)))
        if self._halves:
            # Equals avg_pool3d over (1, 2, 2), which PyTorch lacks for FP16 on a CPU.
            *outer, height, width = x.shape
            x = F.avg_pool2d(x.flatten(1, 2), 2).reshape(*outer, height // 2, width // 2)
        return x


class Residual3d(nn.Module):
    """Norm, ReLU and convolution, twice, added to the identity."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv3d(channels, channels, 3, padding=1)
        self.conv2 = nn.Conv3d(channels, channels, 3, padding=1)
        self.norm1 = nn.BatchNorm3d(channels)
        self.norm2 = nn.BatchNorm3d(channels)

    def forward(self, x: Tensor) -> Tensor:
        """[B, C, D, H, W], same out."""
        y = self.conv1(F.relu(self.norm1(x)))
        result: Tensor = x + self.conv2(F.relu(self.norm2(y)))
        return result


def coordinate_grid(depth: int, height: int, width: int, *, like: Tensor) -> Tensor:
    """Positions x, y, z of every voxel, each -1 to 1 from the first to the last: [D, H, W, 3].

    The published networks sample with ``align_corners=False``, for which -1 and 1 are the volume's faces instead of the
    outer voxels' centres. They were trained with the resulting shift of up to half a voxel.
    """
    axes = [
        torch.linspace(-1, 1, count, device=like.device, dtype=like.dtype) for count in (depth, height, width)
    ]
    z, y, x = torch.meshgrid(*axes, indexing="ij")
    return torch.stack((x, y, z), dim=-1)


VOLUME_CHANNELS = 32
VOLUME_DEPTH = 16
_RESIDUALS = 6


class AppearanceExtractor(nn.Module):
    """F: picture to appearance volume, run once for each portrait. 107 tensors, 0.84 million parameters, 32 GMAC."""

    def __init__(self) -> None:
        super().__init__()
        self.first = ConvNorm2d(3, 64)
        self.down_blocks = nn.ModuleList(
            [ConvNorm2d(64, 128, halves=True), ConvNorm2d(128, 256, halves=True)]
        )
        self.second = nn.Conv2d(256, VOLUME_CHANNELS * VOLUME_DEPTH, 1)
        self.resblocks_3d = nn.Sequential()
        for index in range(_RESIDUALS):
            self.resblocks_3d.add_module(f"3dr{index}", Residual3d(VOLUME_CHANNELS))

    def forward(self, picture: Tensor) -> Tensor:
        """Extract.

        Args:
            picture: Float [B, 3, 256, 256], RGB 0..1.

        Returns:
            [B, 32, 16, 64, 64].
        """
        x = self.first(picture)
        for block in self.down_blocks:
            x = block(x)
        x = self.second(x)
        volume = x.view(x.shape[0], VOLUME_CHANNELS, VOLUME_DEPTH, *x.shape[2:])
        result: Tensor = self.resblocks_3d(volume)
        return result


MOTIONS = KEYPOINTS + 1
"""One for each keypoint, and one for the static background."""
_VARIANCE = 0.01
_COMPRESSED = 4
_CANDIDATES = MOTIONS * (_COMPRESSED + 1)
_ENCODER = (_CANDIDATES, 64, 128, 256, 512, 1024)
_DECODER = ((1024, 512), (1024, 256), (512, 128), (256, 64), (128, 32))
_FEATURES = 32 + _CANDIDATES


class WarpingNetwork(nn.Module):
    """W: volume and keypoints to features for the generator. 97 tensors, 46 million parameters, 171 GMAC."""

    def __init__(self) -> None:
        super().__init__()
        self.dense_motion_network = _DenseMotion()
        self.third = ConvNorm2d(VOLUME_CHANNELS * VOLUME_DEPTH, 256, negative_slope=0.01)
        self.fourth = nn.Conv2d(256, 256, 1)

    def forward(self, volume: Tensor, driving: Tensor, source: Tensor) -> Tensor:
        """Bend.

        Args:
            volume: [B, 32, 16, 64, 64], the portrait's appearance, of this network's dtype.
            driving: Float32 [B, 21, 3], target keypoints x, y, z; -1..1 spans the crop. They, and the positions
                computed from them, stay float32 whatever the dtype is.
            source: Float32 [B, 21, 3], keypoints of the portrait.

        Returns:
            [B, 256, 64, 64].
        """
        weights, occlusion = self.dense_motion_network(volume, driving, source)
        bent = warp_volume(volume.float(), weights.float(), driving, source).to(volume.dtype)
        result: Tensor = self.fourth(self.third(bent)) * occlusion
        return result


class _DenseMotion(nn.Module):
    """Estimates which candidate motion each voxel follows, and what the warped volume does not cover."""

    def __init__(self) -> None:
        super().__init__()
        self.hourglass = _Hourglass()
        self.mask = nn.Conv3d(_FEATURES, MOTIONS, 7, padding=3)
        self.compress = nn.Conv3d(VOLUME_CHANNELS, _COMPRESSED, 1)
        self.norm = nn.BatchNorm3d(_COMPRESSED)
        self.occlusion = nn.Conv2d(_FEATURES * VOLUME_DEPTH, 1, 7, padding=3)

    def forward(self, volume: Tensor, driving: Tensor, source: Tensor) -> tuple[Tensor, Tensor]:
        """Weights [B, 22, 16, 64, 64] that sum to 1, and occlusion [B, 1, 64, 64] in 0..1."""
        compressed = F.relu(self.norm(self.compress(volume)))
        candidates = candidate_features(compressed.float(), driving, source).to(volume.dtype)
        features = self.hourglass(candidates)
        occlusion = self.occlusion(features.flatten(1, 2)).sigmoid()
        return self.mask(features).softmax(1), occlusion


class _Hourglass(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Module()
        self.encoder.down_blocks = nn.ModuleList(
            ConvNorm3d(before, after, halves=True) for before, after in itertools.pairwise(_ENCODER)
        )
        self.decoder = nn.Module()
        self.decoder.up_blocks = nn.ModuleList(
            ConvNorm3d(before, after, doubles=True) for before, after in _DECODER
        )
        self.decoder.conv = nn.Conv3d(_FEATURES, _FEATURES, 3, padding=1)
        self.decoder.norm = nn.BatchNorm3d(_FEATURES)

    def forward(self, x: Tensor) -> Tensor:
        skips = [x]
        for block in self.encoder.down_blocks:  # type: ignore[union-attr]  # a ModuleList, which nn.Module hides
            skips.append(block(skips[-1]))
        x = skips.pop()
        for block in self.decoder.up_blocks:  # type: ignore[union-attr]
            x = torch.cat((block(x), skips.pop()), dim=1)
        return F.relu(self.decoder.norm(self.decoder.conv(x)))  # type: ignore[operator]


def candidate_features(compressed: Tensor, driving: Tensor, source: Tensor) -> Tensor:
    """For each motion: a heatmap of its keypoint's change, and the volume moved with it.

    Args:
        compressed: [B, 4, D, H, W].
        driving: [B, 21, 3].
        source: [B, 21, 3].

    Returns:
        [B, 22 * 5, D, H, W]: for each motion a heatmap (driving less source, none for the background) and the four
        channels, sampled trilinearly at the voxel moved by source less driving.
    """
    batch, channels, *size = compressed.shape
    grid = coordinate_grid(*size, like=compressed)
    moved = grid + _shifts(driving, source)[:, :, None, None, None]  # [B, 22, D, H, W, 3]
    samples = F.grid_sample(
        compressed.repeat_interleave(MOTIONS, dim=0), moved.flatten(0, 1), align_corners=False
    ).view(batch, MOTIONS, channels, *size)
    heat = _heatmap(grid, driving) - _heatmap(grid, source)
    heat = torch.cat((torch.zeros_like(heat[:, :1]), heat), dim=1)
    return torch.cat((heat[:, :, None], samples), dim=2).flatten(1, 2)


def warp_volume(volume: Tensor, weights: Tensor, driving: Tensor, source: Tensor) -> Tensor:
    """Move every voxel by the weighted sum of the motions.

    Args:
        volume: [B, 32, D, H, W].
        weights: [B, 22, D, H, W], sum 1.
        driving: [B, 21, 3].
        source: [B, 21, 3].

    Returns:
        [B, 32 * D, H, W].
    """
    grid = coordinate_grid(*volume.shape[2:], like=volume)
    shift = torch.einsum("bmdhw,bmc->bdhwc", weights, _shifts(driving, source))
    bent = F.grid_sample(volume, grid + shift, align_corners=False)
    return bent.flatten(1, 2)


def _shifts(driving: Tensor, source: Tensor) -> Tensor:
    """[B, 22, 3]: where each motion takes its samples from, relative to the voxel; 0 for the background."""
    return F.pad(source - driving, (0, 0, 1, 0))


def _heatmap(grid: Tensor, keypoints: Tensor) -> Tensor:
    """A Gaussian around each keypoint, [B, 21, D, H, W]."""
    distance = grid - keypoints[:, :, None, None, None]
    return torch.exp(-0.5 / _VARIANCE * distance.square().sum(-1))


_GUIDE_CHANNELS = 256
_HIDDEN_CHANNELS = 128
_SLOPE = 0.2
_MIDDLE_BLOCKS = 6


class SpadeGenerator(nn.Module):
    """G: features to picture, by SPADE (Park et al. 2019, arXiv:1903.07291). 55 million parameters, 446 GMAC.

    182 tensors with spectral norm, 146 without: it is folded when a checkpoint is read (``fold_spectral_norm``).
    """

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Conv2d(_GUIDE_CHANNELS, 512, 3, padding=1)
        for index in range(_MIDDLE_BLOCKS):
            self.add_module(f"G_middle_{index}", _SpadeResidual(512, 512))
        self.up_0 = _SpadeResidual(512, 256)
        self.up_1 = _SpadeResidual(256, 64)
        self.conv_img = nn.Sequential(nn.Conv2d(64, 3 * 4, 3, padding=1), nn.PixelShuffle(2))

    def forward(self, features: Tensor) -> Tensor:
        """Paint.

        Args:
            features: Float [B, 256, 64, 64] from the warping network.

        Returns:
            [B, 3, 512, 512], RGB 0..1.
        """
        x = self.fc(features)
        for index in range(_MIDDLE_BLOCKS):
            x = getattr(self, f"G_middle_{index}")(x, features)
        x = self.up_0(F.interpolate(x, scale_factor=2), features)
        x = self.up_1(F.interpolate(x, scale_factor=2), features)
        result: Tensor = self.conv_img(F.leaky_relu(x, _SLOPE)).sigmoid()
        return result


class _SpadeResidual(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        middle = min(inputs, outputs)
        self.conv_0 = nn.Conv2d(inputs, middle, 3, padding=1)
        self.conv_1 = nn.Conv2d(middle, outputs, 3, padding=1)
        self.norm_0 = _Spade(inputs)
        self.norm_1 = _Spade(middle)
        self.is_learned_shortcut = inputs != outputs
        if self.is_learned_shortcut:
            self.conv_s = nn.Conv2d(inputs, outputs, 1, bias=False)
            self.norm_s = _Spade(inputs)

    def forward(self, x: Tensor, guide: Tensor) -> Tensor:
        shortcut = self.conv_s(self.norm_s(x, guide)) if self.is_learned_shortcut else x
        y = self.conv_0(F.leaky_relu(self.norm_0(x, guide), _SLOPE))
        y = self.conv_1(F.leaky_relu(self.norm_1(y, guide), _SLOPE))
        result: Tensor = shortcut + y
        return result


class _Spade(nn.Module):
    """Instance norm with scale and shift maps computed from the guide."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.mlp_shared = nn.Sequential(nn.Conv2d(_GUIDE_CHANNELS, _HIDDEN_CHANNELS, 3, padding=1), nn.ReLU())
        self.mlp_gamma = nn.Conv2d(_HIDDEN_CHANNELS, channels, 3, padding=1)
        self.mlp_beta = nn.Conv2d(_HIDDEN_CHANNELS, channels, 3, padding=1)

    def forward(self, x: Tensor, guide: Tensor) -> Tensor:
        hidden = self.mlp_shared(F.interpolate(guide, size=x.shape[2:]))
        result: Tensor = F.instance_norm(x) * (1 + self.mlp_gamma(hidden)) + self.mlp_beta(hidden)
        return result


class KeypointPerceptron(nn.Module):
    """S, and other linear layers on keypoints, with ReLU between them."""

    def __init__(self, *widths: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for before, after in itertools.pairwise(widths):
            layers += [nn.Linear(before, after), nn.ReLU()]
        self.mlp = nn.Sequential(*layers[:-1])

    def forward(self, *parts: Tensor) -> Tensor:
        """Concatenated parts [B, …] to [B, outputs]."""
        result: Tensor = self.mlp(torch.cat([part.flatten(1) for part in parts], dim=1))
        return result


def stitching_perceptron() -> KeypointPerceptron:
    """Source and driving keypoints to 63 keypoint deltas and a shift in x and y, so that the neck stays attached."""
    return KeypointPerceptron(6 * KEYPOINTS, 128, 128, 64, 3 * KEYPOINTS + 2)


def lip_perceptron() -> KeypointPerceptron:
    """Source keypoints, the lips' openness and the wanted one, to 63 keypoint deltas."""
    return KeypointPerceptron(3 * KEYPOINTS + 2, 128, 128, 64, 3 * KEYPOINTS)


def read_checkpoint(path: Path) -> dict[str, Any]:
    """The state dict in a ``.pth``, on the CPU.

    Raises:
        ModelError: The file is missing, damaged, or contains more than tensors.
    """
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError as error:
        raise ModelError(f"{path}: no such file") from error
    except Exception as error:  # zipfile, pickle and torch raise many errors for damaged files
        raise ModelError(f"{path}: not a checkpoint of plain tensors") from error
    if not isinstance(state, dict):
        raise ModelError(f"{path}: holds a {type(state).__name__}, not a state dict")
    return state


def fold_spectral_norm(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Divide weights by their largest singular value, as PyTorch's ``spectral_norm`` does in evaluation.

    Its three tensors ``…weight_orig`` W, ``…weight_u`` u and ``…weight_v`` v become ``…weight`` = W / (uᵀ W v), W as a
    matrix of its first axis (Miyato et al. 2018, arXiv:1802.05957).
    """
    folded: dict[str, Tensor] = {}
    for key, tensor in state.items():
        if key.endswith(("weight_u", "weight_v")):
            continue
        if key.endswith("weight_orig"):
            base = key.removesuffix("_orig")
            matrix = tensor.flatten(1)
            sigma = torch.dot(state[f"{base}_u"], matrix @ state[f"{base}_v"])
            folded[base] = tensor / sigma
        else:
            folded[key] = tensor
    return folded


def load_strictly(network: nn.Module, state: Mapping[str, Tensor], *, label: str) -> None:
    """Load weights into a network; requires all of its tensors in their shapes, and no others.

    The prefix ``module.`` of names, left by parallel training, is removed.

    Raises:
        ModelError: A tensor does not fit; the message names the first of these.
    """
    state = {key.removeprefix("module."): tensor for key, tensor in state.items()}
    if any(key.endswith("weight_orig") for key in state):
        state = fold_spectral_norm(state)
    try:
        network.load_state_dict(state, strict=True)
    except RuntimeError as error:
        raise ModelError(f"{label}: {' '.join(str(error).split())[:300]}") from error


class PublishedNetworks(NamedTuple):
    """The networks that the animator runs, in the published form."""

    appearance: AppearanceExtractor
    motion: MotionExtractor
    warping: WarpingNetwork
    generator: SpadeGenerator
    stitching: KeypointPerceptron
    lips: KeypointPerceptron

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read the authors' checkpoints, onto the CPU.

        Args:
            folder: See ``folder.require_checkpoints``.

        Raises:
            ModelError: A file is missing, damaged, or of another network.
        """
        require_checkpoints(folder)
        networks = (AppearanceExtractor(), MotionExtractor(), WarpingNetwork(), SpadeGenerator())
        for network, part in zip(networks, ("appearance", "motion", "warping", "generator"), strict=True):
            path = folder / CHECKPOINTS[part]
            load_strictly(network, read_checkpoint(path), label=str(path))
        path = folder / CHECKPOINTS["retargeting"]
        states = read_checkpoint(path)
        perceptrons = stitching_perceptron(), lip_perceptron()
        for perceptron, name in zip(perceptrons, ("retarget_shoulder", "retarget_mouth"), strict=True):
            if not isinstance(states.get(name), dict):
                raise ModelError(f"{path}: contains no {name}")
            load_strictly(perceptron, states[name], label=f"{path}, {name}")
        for network in (*networks, *perceptrons):
            network.eval().requires_grad_(False)
        return cls(*networks, *perceptrons)
