"""RVM's fused kernels on a GPU, each against PyTorch's operators."""

from __future__ import annotations

import numpy as np
import pytest
from rvm_torch_cases import random_weights

pytest.importorskip("torch")

import torch

from vitascope.models.rvm.coarse_network import FoldedConvolution, GruWeights, HeadWeights, TorchOps

pytestmark = pytest.mark.cuda

SIZES = [(1, 1), (1, 7), (5, 3), (17, 31), (64, 96)]
# Of values around 1: a few roundings to FP16, 2**-11 each.
HALF = {"atol": 4e-3, "rtol": 4e-3}


def fused_ops():
    from vitascope.models.rvm.triton_ops import TritonOps

    return TritonOps(torch.cuda.get_device_properties(0).multi_processor_count)


def layer(rng, outputs, inputs, taps, *, stride=1, dilation=1, groups=1, bias=True):
    """The same convolution for PyTorch (FP32, of the rounded weights) and for the fused kernels (FP16)."""
    shape = (outputs, inputs // groups, taps, taps)
    weight = rng.normal(0, np.prod(shape[1:]) ** -0.5, shape).astype(np.float16).astype(np.float32)
    offsets = rng.normal(0, 0.2, outputs).astype(np.float16).astype(np.float32) if bias else None
    padding = dilation * (taps // 2)
    made = [
        FoldedConvolution(
            weight, offsets, stride=stride, padding=padding, dilation=dilation, groups=groups, dtype=dtype
        ).cuda()
        for dtype in (torch.float32, torch.float16)
    ]
    fused_ops().prepare(made[1])
    return made


def activations(rng, count, channels, size):
    """Random FP16 activations in channels-last memory, and the same in FP32."""
    values = rng.normal(0, 1, (count, channels, *size)).astype(np.float16)
    half = torch.from_numpy(values).cuda().contiguous(memory_format=torch.channels_last)
    return half.float().contiguous(memory_format=torch.channels_last), half


def assert_close(got, expected):
    torch.testing.assert_close(got.float(), expected.float(), **HALF)


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.fixture(autouse=True)
def exact_reference():
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False), torch.inference_mode():
        yield


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    ("outputs", "inputs", "taps", "stride"),
    [
        (16, 8, 3, 2),
        (16, 40, 3, 1),
        (80, 176, 3, 1),
        (960, 160, 1, 1),
        (24, 64, 1, 1),
        (64, 8, 7, 2),
        (64, 32, 1, 2),
    ],
)
def test_convolution(rng, size, outputs, inputs, taps, stride):
    exact, half = layer(rng, outputs, inputs, taps, stride=stride)
    full, x = activations(rng, 3, inputs, size)
    for activation in (None, "relu", "hard_swish"):
        expected = TorchOps().convolve(full, exact, activation)
        assert_close(fused_ops().convolve(x, half, activation), expected)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    ("channels", "taps", "stride", "dilation"),
    [(16, 3, 1, 1), (72, 5, 2, 1), (200, 3, 2, 1), (960, 5, 1, 2)],
)
def test_depthwise_squeeze_and_projection(rng, size, channels, taps, stride, dilation):
    exact, half = layer(rng, channels, channels, taps, stride=stride, dilation=dilation, groups=channels)
    squeezes = layer(rng, 24, channels, 1)
    excites = layer(rng, channels, 24, 1)
    projects = layer(rng, 40, channels, 1)
    full, x = activations(rng, 2, channels, size)
    expected = TorchOps().depthwise(full, exact, "relu")
    assert_close(fused_ops().depthwise(x, half, "relu"), expected)
    wide, scale = TorchOps().depthwise_squeezed(full, exact, "hard_swish", squeezes[0], excites[0])
    ours, our_scale = fused_ops().depthwise_squeezed(x, half, "hard_swish", squeezes[1], excites[1])
    assert_close(ours, wide)
    assert_close(our_scale, scale)
    shortcut, half_shortcut = activations(rng, 2, 40, tuple(wide.shape[2:]))
    expected = TorchOps().project(wide, projects[0], scale, shortcut)
    assert_close(fused_ops().project(ours, projects[1], our_scale, half_shortcut), expected)
    assert_close(
        fused_ops().project(ours, projects[1], None, None), TorchOps().project(wide, projects[0], None, None)
    )


@pytest.mark.parametrize("size", SIZES)
def test_attention(rng, size):
    exact, half = layer(rng, 128, 960, 1)
    attention, half_attention = layer(rng, 128, 960, 1, bias=False)
    full, x = activations(rng, 2, 960, size)
    expected = TorchOps().attend(full, exact, attention)
    assert_close(fused_ops().attend(x, half, half_attention), expected)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_source_pyramid(rng, size, dtype):
    pictures = torch.from_numpy(rng.random((3, 3, *size)).astype(dtype)).cuda()
    expected = TorchOps().source_pyramid(pictures.float(), 8, torch.float32)
    got = fused_ops().source_pyramid(pictures, 8, torch.float16)
    assert [level.shape for level in got] == [level.shape for level in expected]
    for ours, theirs in zip(got, expected, strict=True):
        assert_close(ours, theirs)


@pytest.mark.parametrize("size", SIZES)
def test_upsampling_and_concatenation(rng, size):
    below = (-(-size[0] // 2), -(-size[1] // 2))
    full_x, x = activations(rng, 2, 40, below)
    full_skip, skip = activations(rng, 2, 16, size)
    full_source, source = activations(rng, 2, 8, size)
    expected = TorchOps().upsample_concat(full_x, full_skip, full_source)
    assert_close(fused_ops().upsample_concat(x, skip, source), expected)
    expected = TorchOps().upsample_concat(full_x, None, full_source)
    assert_close(fused_ops().upsample_concat(x, None, source), expected)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("channels", [16, 20, 40, 64, 128])
def test_gru_over_frames_and_eyes(rng, size, channels):
    tensors = {}
    for part, outputs in (("ih", 2 * channels), ("hh", channels)):
        shape = (outputs, 2 * channels, 3, 3)
        weight = rng.normal(0, (9 * shape[1]) ** -0.5, shape).astype(np.float16)
        tensors[f"gru.{part}.0.weight"] = weight.astype(np.float32)
        tensors[f"gru.{part}.0.bias"] = rng.normal(0, 0.2, outputs).astype(np.float16).astype(np.float32)
    exact, half = (GruWeights(tensors, "gru", dtype).cuda() for dtype in (torch.float32, torch.float16))
    ops = fused_ops()
    ops.prepare(half)
    full, x = activations(rng, 3 * 2, 2 * channels, size)
    state = torch.from_numpy(rng.uniform(-1, 1, (2, *size, channels)).astype(np.float32)).cuda()
    before = state.clone()
    expected, expected_state = TorchOps().gru(full, state, exact, 3)
    got, got_state = ops.gru(x, state, half, 3)
    assert got_state.dtype == torch.float32
    assert_close(got, expected)
    assert_close(got_state, expected_state)
    torch.testing.assert_close(state, before, atol=0, rtol=0)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_guided_head(rng, size, dtype):
    weights = random_weights("mobilenetv3").tensors
    exact, half = (HeadWeights(weights, of).cuda() for of in (torch.float32, torch.float16))
    projects = layer(rng, 4, 16, 1)
    ops = fused_ops()
    ops.prepare(half)
    pictures = torch.from_numpy(rng.random((2, 3, *size)).astype(np.float16)).cuda()
    source = ops.source_pyramid(pictures, 8, torch.float16)[0]
    full, hidden = activations(rng, 2, 16, size)
    expected = TorchOps().guided_head(source.float(), full, projects[0], exact, torch.float32)
    got = ops.guided_head(source, hidden, projects[1], half, dtype)
    for ours, theirs in zip(got, expected, strict=True):
        assert ours.dtype == dtype
        assert ours.is_contiguous()
        torch.testing.assert_close(ours.float(), theirs, atol=1e-2, rtol=1e-2)
