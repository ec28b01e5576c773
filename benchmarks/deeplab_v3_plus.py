"""DeepLabV3+ with a ResNet backbone and random weights: the network that the speed tables name, without its training.

Written from the papers: atrous spatial pyramid pooling (Chen et al., "Rethinking Atrous Convolution for Semantic Image
Segmentation", 2017), the decoder (Chen et al., "Encoder-Decoder with Atrous Separable Convolution for Semantic Image
Segmentation", ECCV 2018) and the backbone (He et al., "Deep Residual Learning for Image Recognition", CVPR 2016, with
the stride of a bottleneck in its 3x3 convolution, as trained networks have it). Output stride 16: the last stage is not
strided, and its convolutions are dilated by 2.

A network's time does not depend on its weights, so random ones suffice; they are scaled so that activations
neither vanish nor overflow FP16, and low precisions can be compared with FP32.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

__all__ = ["DeepLabV3Plus"]

_BLOCKS = {"resnet50": (3, 4, 6, 3), "resnet101": (3, 4, 23, 3)}
_EXPANSION = 4
_RATES = (6, 12, 18)  # of the pyramid at output stride 16: Chen et al. 2017, section 3.3
_PYRAMID, _LOW_LEVEL = 256, 48  # channels: Chen et al. 2018, section 4.1
# Share of each residual branch; sixteen blocks of variance 1 + 0.25² end at 2.6 times what they began with.
_BRANCH_GAIN = 0.25


def _unit(channels: int, out: int, kernel: int, *, stride: int = 1, dilation: int = 1) -> nn.Sequential:
    """Convolution and batch normalisation, of the same size where it is not strided."""
    padding = dilation * (kernel // 2)
    return nn.Sequential(
        nn.Conv2d(channels, out, kernel, stride, padding, dilation, bias=False), nn.BatchNorm2d(out)
    )


def _rectified(channels: int, out: int, kernel: int, *, stride: int = 1, dilation: int = 1) -> nn.Sequential:
    unit = _unit(channels, out, kernel, stride=stride, dilation=dilation)
    return unit.append(nn.ReLU(inplace=True))


class Bottleneck(nn.Module):
    """1x1, 3x3, 1x1, and the way around them."""

    def __init__(self, channels: int, width: int, *, stride: int = 1, dilation: int = 1) -> None:
        super().__init__()
        out = width * _EXPANSION
        self.branch = nn.Sequential(
            *_rectified(channels, width, 1),
            *_rectified(width, width, 3, stride=stride, dilation=dilation),
            *_unit(width, out, 1),
        )
        same = stride == 1 and channels == out
        self.around = nn.Identity() if same else _unit(channels, out, 1, stride=stride)

    def forward(self, features: Tensor) -> Tensor:
        """[N, C, h, w] to [N, 4 * width, h / stride, w / stride]."""
        return functional.relu(self.branch(features) + self.around(features), inplace=True)


class Pyramid(nn.Module):
    """Atrous spatial pyramid pooling: five views of one feature map, and their mixture."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.views = nn.ModuleList([_rectified(channels, _PYRAMID, 1)])
        self.views.extend(_rectified(channels, _PYRAMID, 3, dilation=rate) for rate in _RATES)
        self.whole = _rectified(channels, _PYRAMID, 1)
        self.mix = _rectified(_PYRAMID * (len(_RATES) + 2), _PYRAMID, 1)

    def forward(self, features: Tensor) -> Tensor:
        """[N, C, h, w] to [N, 256, h, w]."""
        # Enlarging a picture of one pixel repeats it.
        whole = self.whole(features.mean((2, 3), keepdim=True)).expand(-1, -1, *features.shape[2:])
        return self.mix(torch.cat([*(view(features) for view in self.views), whole], dim=1))


class DeepLabV3Plus(nn.Module):
    """Semantic segmentation by an encoder of output stride 16 and the decoder of the 2018 paper.

    Args:
        num_classes: Channels of the result; 21 are those of Pascal VOC 2012.
        backbone: ``resnet50`` or ``resnet101``.
        seed: Seed of the weights; the same seed gives the same network everywhere.

    The network is in evaluation mode, in FP32, on the CPU.
    """

    def __init__(
        self,
        num_classes: int = 21,
        *,
        backbone: Literal["resnet50", "resnet101"] = "resnet50",
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.stem = nn.Sequential(*_rectified(3, 64, 7, stride=2), nn.MaxPool2d(3, 2, 1))
        stages, channels = [], 64
        for index, count in enumerate(_BLOCKS[backbone]):
            width = 64 * 2**index
            stride, dilation = [(1, 1), (2, 1), (2, 1), (1, 2)][index]
            first = Bottleneck(channels, width, stride=stride, dilation=dilation)
            channels = width * _EXPANSION
            rest = (Bottleneck(channels, width, dilation=dilation) for _ in range(count - 1))
            stages.append(nn.Sequential(first, *rest))
        self.stages = nn.ModuleList(stages)
        self.pyramid = Pyramid(channels)
        self.low_level = _rectified(64 * _EXPANSION, _LOW_LEVEL, 1)
        self.refine = nn.Sequential(
            *_rectified(_PYRAMID + _LOW_LEVEL, _PYRAMID, 3), *_rectified(_PYRAMID, _PYRAMID, 3)
        )
        self.classify = nn.Conv2d(_PYRAMID, num_classes, 1)
        self._scale(seed)
        self.eval()

    def forward(self, pictures: Tensor) -> Tensor:
        """Class scores of each pixel.

        Args:
            pictures: [N, 3, H, W], normalised RGB (mean 0, deviation 1); H and W are multiples of 16.

        Returns:
            [N, num_classes, H, W], the logits, of the same dtype.
        """
        features = self.stem(pictures)
        features = low_level = self.stages[0](features)
        for stage in list(self.stages)[1:]:
            features = stage(features)
        context = functional.interpolate(
            self.pyramid(features), size=low_level.shape[2:], mode="bilinear", align_corners=False
        )
        scores = self.classify(self.refine(torch.cat([context, self.low_level(low_level)], dim=1)))
        return functional.interpolate(scores, size=pictures.shape[2:], mode="bilinear", align_corners=False)

    def _scale(self, seed: int) -> None:
        """Weights that keep the variance (He et al., ICCV 2015); the statistics of BatchNorm stay 0 and 1."""
        random = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for module in self.modules():
                if isinstance(module, nn.Conv2d):
                    fan_in = module.weight[0].numel()
                    module.weight.normal_(0, (2 / fan_in) ** 0.5, generator=random)
                if isinstance(module, Bottleneck):
                    last = module.branch[-1]
                    assert isinstance(last, nn.BatchNorm2d)
                    last.weight.fill_(_BRANCH_GAIN)
            assert self.classify.bias is not None
            self.classify.bias.zero_()
