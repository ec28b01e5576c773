"""Tests of RVM's fused kernels on a GPU, each against PyTorch's operators."""

from __future__ import annotations

import numpy as np
import pytest
from rvm_torch_cases import random_weights

pytest.importorskip("torch")

import torch

from vitascope.models.rvm.torch_network import FoldedConvolution, GruWeights, HeadWeights, TorchOps

pytestmark = pytest.mark.cuda

SIZES = [(1, 1), (1, 7), (5, 3), (17, 31), (64, 96)]
# For values around 1: a few roundings to FP16, 2**-11 each.
HALF = {"atol": 4e-3, "rtol": 4e-3}


class Bench:
    """Records some parts, and runs them."""

    def __init__(self):
        pytest.importorskip("triton")
        import cupy

        from vitascope.gpu.engines.launch_plan import PlanRecorder, WeightBlock
        from vitascope.models.rvm.triton_ops import TritonOps

        self.recorder, self.block, self.given = PlanRecorder(), WeightBlock(), {}
        count = cupy.cuda.runtime.getDeviceProperties(0)["multiProcessorCount"]
        self.ops = TritonOps(self.recorder, multiprocessors=count)

    def put(self, values):
        """Make an input from a NumPy array."""
        name = f"x{len(self.given)}"
        self.given[name] = np.ascontiguousarray(values)
        return self.recorder.input(name, values.shape, values.dtype)

    def run(self, *arrays):
        """Run, and return the arrays' final content, as CuPy arrays."""
        import cupy

        from vitascope.gpu.engines.plan_engine import _compiled, _ReadyPlan

        names = [f"y{number}" for number in range(len(arrays))]
        for name, array in zip(names, arrays, strict=True):
            self.recorder.output(name, array)
        plan = self.recorder.plan()
        capability = int(cupy.cuda.Device().compute_capability)
        ready = _ReadyPlan(_compiled(plan, capability), cupy.asarray(self.block.content()))
        # Places that are not written must show, as other plans leave data there.
        ready.work_in(cupy.full(plan.memory_bytes // 2 + 1, np.nan, np.float16).view(np.uint8))
        inputs = {name: cupy.asarray(values) for name, values in self.given.items()}
        results = ready(inputs, cupy.cuda.get_current_stream())
        cupy.cuda.get_current_stream().synchronize()
        return [results[name] for name in names]


def layer(rng, outputs, inputs, taps, *, stride=1, dilation=1, groups=1, bias=True):
    """Make a convolution for PyTorch, and a function that makes it for the fused kernels of a bench."""
    from vitascope.models.rvm.triton_ops import Layer

    shape = (outputs, inputs // groups, taps, taps)
    weight = rng.normal(0, np.prod(shape[1:]) ** -0.5, shape).astype(np.float16).astype(np.float32)
    offsets = rng.normal(0, 0.2, outputs).astype(np.float16).astype(np.float32) if bias else None
    padding = dilation * (taps // 2)
    exact = FoldedConvolution(
        weight, offsets, stride=stride, padding=padding, dilation=dilation, groups=groups, dtype=torch.float32
    ).cuda()
    name = f"layer {rng.integers(1 << 40)}"
    return exact, lambda bench: Layer(name, weight, offsets, bench.block, stride, padding, dilation)


def activations(rng, count, channels, size):
    """Make random FP16 activations [N, H, W, C] in host memory, and the same in PyTorch's layout."""
    values = rng.normal(0, 1, (count, *size, channels)).astype(np.float16)
    return torch.from_numpy(values).cuda().float().permute(0, 3, 1, 2), values


def assert_close(got, expected):
    """Compare ``got`` [N, H, W, C] with ``expected`` [N, C, H, W]; or both are planes."""
    ours = torch.from_dlpack(got).float()
    ours = ours.permute(0, 3, 1, 2) if ours.ndim == 4 else ours
    torch.testing.assert_close(ours, expected.float().reshape(ours.shape), **HALF)


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
    exact, make = layer(rng, outputs, inputs, taps, stride=stride)
    full, x = activations(rng, 3, inputs, size)
    bench, kinds = Bench(), (None, "relu", "hard_swish")
    given, half = bench.put(x), make(bench)
    got = bench.run(*(bench.ops.convolve(given, half, activation) for activation in kinds))
    for ours, activation in zip(got, kinds, strict=True):
        assert_close(ours, TorchOps().convolve(full, exact, activation))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    ("channels", "taps", "stride", "dilation"),
    [(16, 3, 1, 1), (72, 5, 2, 1), (200, 3, 2, 1), (960, 5, 1, 2)],
)
def test_depthwise_squeeze_and_projection(rng, size, channels, taps, stride, dilation):
    exact, make = layer(rng, channels, channels, taps, stride=stride, dilation=dilation, groups=channels)
    squeeze, make_squeeze = layer(rng, 24, channels, 1)
    excite, make_excite = layer(rng, channels, 24, 1)
    project, make_project = layer(rng, 40, channels, 1)
    full, x = activations(rng, 2, channels, size)
    wide, scale = TorchOps().depthwise_squeezed(full, exact, "hard_swish", squeeze, excite)
    shortcut, half_shortcut = activations(rng, 2, 40, tuple(wide.shape[2:]))
    bench = Bench()
    ops, given, half = bench.ops, bench.put(x), make(bench)
    ours, our_scale = ops.depthwise_squeezed(
        given, half, "hard_swish", make_squeeze(bench), make_excite(bench)
    )
    projects, added = make_project(bench), bench.put(half_shortcut)
    got = bench.run(
        ops.depthwise(given, half, "relu"),
        ours,
        our_scale,
        ops.project(ours, projects, our_scale, added),
        ops.project(ours, projects, None, None),
        ops.project(ours, projects, None, added, "relu"),
    )
    expected = (
        TorchOps().depthwise(full, exact, "relu"),
        wide,
        scale,
        TorchOps().project(wide, project, scale, shortcut),
        TorchOps().project(wide, project, None, None),
        TorchOps().project(wide, project, None, shortcut, "relu"),
    )
    for one, other in zip(got, expected, strict=True):
        assert_close(one, other)


@pytest.mark.parametrize("size", SIZES)
def test_max_pool(rng, size):
    full, x = activations(rng, 2, 64, size)
    bench = Bench()
    (got,) = bench.run(bench.ops.max_pool(bench.put(x)))
    assert_close(got, TorchOps().max_pool(full))


@pytest.mark.parametrize("size", SIZES)
def test_attention(rng, size):
    exact, make = layer(rng, 128, 960, 1)
    attention, make_attention = layer(rng, 128, 960, 1, bias=False)
    full, x = activations(rng, 2, 960, size)
    bench = Bench()
    (got,) = bench.run(bench.ops.attend(bench.put(x), make(bench), make_attention(bench)))
    assert_close(got, TorchOps().attend(full, exact, attention))


@pytest.mark.parametrize("size", SIZES)
def test_source_pyramid(rng, size):
    pictures = rng.random((3, 3, *size)).astype(np.float16)
    expected = TorchOps().source_pyramid(torch.from_numpy(pictures).cuda().float(), 8, torch.float32)
    bench = Bench()
    for ours, theirs in zip(bench.run(*bench.ops.source_pyramid(bench.put(pictures))), expected, strict=True):
        assert_close(ours, theirs)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("with_skip", [True, False])
def test_upsampling_and_concatenation(rng, size, with_skip):
    below = (-(-size[0] // 2), -(-size[1] // 2))
    full_x, x = activations(rng, 2, 40, below)
    full_skip, skip = activations(rng, 2, 16, size)
    full_source, source = activations(rng, 2, 8, size)
    bench = Bench()
    between = bench.put(skip) if with_skip else None
    (got,) = bench.run(bench.ops.upsample_concat(bench.put(x), between, bench.put(source)))
    assert_close(got, TorchOps().upsample_concat(full_x, full_skip if with_skip else None, full_source))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("channels", [16, 20, 40, 64, 128])
def test_gru_over_frames_and_eyes(rng, size, channels):
    from vitascope.models.rvm.triton_ops import GruLayers

    tensors = {}
    for part, outputs in (("ih", 2 * channels), ("hh", channels)):
        shape = (outputs, 2 * channels, 3, 3)
        weight = rng.normal(0, (9 * shape[1]) ** -0.5, shape).astype(np.float16)
        tensors[f"gru.{part}.0.weight"] = weight.astype(np.float32)
        tensors[f"gru.{part}.0.bias"] = rng.normal(0, 0.2, outputs).astype(np.float16).astype(np.float32)
    exact = GruWeights(tensors, "gru", torch.float32).cuda()
    full, x = activations(rng, 3 * 2, 2 * channels, size)
    state = rng.uniform(-1, 1, (2, *size, channels)).astype(np.float32)
    expected, expected_state = TorchOps().gru(full, torch.from_numpy(state).cuda(), exact, 3)
    bench = Bench()
    given = bench.put(state)
    got, got_state, before = bench.run(
        *bench.ops.gru(bench.put(x), given, GruLayers.of(tensors, "gru", bench.block), 3), given
    )
    assert got_state.dtype == np.float32
    assert_close(got, expected)
    assert_close(got_state, expected_state.permute(0, 3, 1, 2))
    np.testing.assert_array_equal(before.get(), state)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_guided_head(rng, size, dtype):
    from vitascope.models.rvm.triton_ops import Layer
    from vitascope.models.rvm.weights import convolutions

    weights = random_weights("mobilenetv3").tensors
    exact = HeadWeights(weights, torch.float32).cuda()
    project, make_project = layer(rng, 4, 16, 1)
    full, hidden = activations(rng, 2, 16, size)
    pictures = rng.random((2, 3, *size)).astype(np.float16)
    bench = Bench()
    head = [
        Layer.of(conv, weights, bench.block)
        for conv in convolutions("mobilenetv3")
        if conv.name.startswith("refiner.")
    ]
    source = bench.ops.source_pyramid(bench.put(pictures))[0]
    gain, offset = bench.ops.guided_head(
        source, bench.put(hidden), make_project(bench), head, np.dtype(dtype)
    )
    seen, *got = bench.run(source, gain, offset)
    expected = TorchOps().guided_head(
        torch.from_dlpack(seen).float().permute(0, 3, 1, 2), full, project, exact, torch.float32
    )
    for ours, theirs in zip(got, expected, strict=True):
        assert ours.dtype == dtype
        # Only alpha's: the foreground's are not needed.
        torch.testing.assert_close(torch.from_dlpack(ours).float(), theirs[:, 3:], atol=1e-2, rtol=1e-2)
