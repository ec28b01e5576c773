"""Check that the fast networks give what the published form gives."""

from __future__ import annotations

import pytest
import torch
from portrait_networks import keypoints, randomised, relative_error
from torch import nn

from vitascope.models.liveportrait.fast import FastGenerator, FastWarping, TorchWarpOps, fold, with_channels
from vitascope.models.liveportrait.published import SpadeGenerator, WarpingNetwork


@pytest.mark.parametrize("convolution", [nn.Conv2d(3, 5, 3, padding=1), nn.Conv2d(3, 5, 1, bias=False)])
def test_a_folded_norm_changes_nothing(convolution: nn.Conv2d) -> None:
    norm = randomised(nn.BatchNorm2d(5))
    norm.weight.uniform_(0.5, 2)
    norm.bias.normal_()
    x = torch.randn(2, 3, 7, 6)
    torch.testing.assert_close(fold(convolution, norm)(x), norm(convolution(x)), rtol=1e-4, atol=1e-5)


def test_channels_that_are_not_there_are_zero() -> None:
    convolution = nn.Conv3d(3, 5, 3, padding=1)
    wide = with_channels(convolution, 8, 8)
    x = torch.randn(1, 3, 2, 4, 4)
    made = wide(torch.cat((x, torch.randn(1, 5, 2, 4, 4)), dim=1))
    torch.testing.assert_close(made[:, :5], convolution(x), rtol=1e-4, atol=1e-5)
    assert float(made[:, 5:].abs().max()) == 0


def test_fast_warping_is_the_published_one() -> None:
    network = randomised(WarpingNetwork())
    driving, source = keypoints()
    volume = torch.randn(1, 32, 16, 32, 32)
    fast = FastWarping(network, TorchWarpOps(), dtype=torch.float32)
    assert relative_error(fast(volume, driving, source), network(volume, driving, source)) < 1e-5


def test_fast_generator_is_the_published_one() -> None:
    network = randomised(SpadeGenerator())
    features = torch.randn(2, 256, 4, 5)
    fast = FastGenerator(network, dtype=torch.float32)
    torch.testing.assert_close(fast(features), network(features), rtol=1e-4, atol=1e-5)


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("size", [(16, 64, 64), (3, 7, 33), (2, 5, 70)])
def test_kernels_are_pytorchs_operators(size: tuple[int, int, int], dtype: torch.dtype) -> None:
    from vitascope.models.liveportrait.warp_triton import TritonWarpOps

    driving, source = (points.cuda() for points in keypoints(2))

    def made(channels: int) -> torch.Tensor:
        return torch.randn(2, channels, *size, device="cuda", dtype=dtype).contiguous(
            memory_format=torch.channels_last_3d
        )

    plain, fused = TorchWarpOps(), TritonWarpOps()
    bound = 1e-4 if dtype == torch.float32 else 2e-3
    compressed = made(4)
    assert (
        relative_error(
            fused.candidates(compressed, driving, source, 112),
            plain.candidates(compressed, driving, source, 112),
        )
        < bound
    )
    volume, parts = made(32), made(154)
    assert (
        relative_error(fused.bend(volume, parts, driving, source), plain.bend(volume, parts, driving, source))
        < bound
    )


@pytest.mark.cuda
def test_half_precision_stays_close() -> None:
    from vitascope.models.liveportrait.warp_triton import TritonWarpOps

    network, painter = randomised(WarpingNetwork()).cuda(), randomised(SpadeGenerator()).cuda()
    driving, source = (points.cuda() for points in keypoints())
    volume = torch.randn(1, 32, 16, 64, 64, device="cuda")
    features = network(volume, driving, source)
    fast = FastWarping(network, TritonWarpOps(), dtype=torch.float16).cuda()
    got = fast(volume.half(), driving, source)
    assert relative_error(got, features) < 0.02
    painted = FastGenerator(painter, dtype=torch.float16).cuda()(features.half())
    assert float((painted.float() - painter(features)).abs().max()) < 0.02
