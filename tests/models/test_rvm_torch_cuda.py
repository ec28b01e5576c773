"""RVM on PyTorch on a GPU: each fused kernel against PyTorch's operators, and the network against the ONNX file."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from rvm_torch_cases import alpha_of, drifting_pictures, random_weights

pytest.importorskip("torch")

import torch

from vitascope.errors import DeviceMemoryError, ModelError
from vitascope.models.rvm import RvmNetwork
from vitascope.models.rvm_torch import RvmTorchNetwork
from vitascope.models.rvm_torch_network import RvmCoarseNetwork, state_shapes
from vitascope.models.rvm_torch_ops import FoldedConvolution, GruWeights, HeadWeights, TorchOps

pytestmark = pytest.mark.cuda

SIZES = [(1, 1), (1, 7), (5, 3), (17, 31), (64, 96)]
# Of values around 1: a few roundings to FP16, 2**-11 each.
HALF = {"atol": 4e-3, "rtol": 4e-3}


def fused_ops():
    from vitascope.models.rvm_torch_triton import TritonOps

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


@pytest.fixture(scope="module")
def reference(rvm_model_path):
    network = RvmNetwork(rvm_model_path)
    yield network
    network.close()


def infer_on_gpu(network, pictures, state=None):
    import cupy

    state = network.new_state() if state is None else state
    return network.infer(cupy.asarray(pictures), state)


def on_host(estimates):
    import cupy

    from vitascope.models.network import MatteEstimate

    return [MatteEstimate(gain=cupy.asnumpy(one.gain), offset=cupy.asnumpy(one.offset)) for one in estimates]


@pytest.fixture(
    scope="module",
    params=[("fp16", "triton"), ("mixed", "triton"), ("fp16", "torch"), ("tf32", "torch"), ("fp32", "auto")],
    ids=" ".join,
)
def variant(rvm_model_path, request):
    precision, kernels = request.param
    network = RvmTorchNetwork(rvm_model_path, precision=precision, kernels=kernels, cudnn_benchmark=False)
    yield precision, network
    network.close()


@pytest.mark.parametrize(("size", "eyes"), [((144, 256), 1), ((61, 95), 2), ((17, 16), 1)])
def test_the_matte_is_the_onnx_files(variant, reference, size, eyes):
    precision, network = variant
    pictures = drifting_pictures(6, eyes, size, dtype=network.input_for(size).dtype)
    expected = alpha_of(reference.infer(pictures.astype(np.float32), reference.new_state()), pictures)
    estimates = infer_on_gpu(network, pictures)
    assert estimates[0].gain.dtype == (np.float16 if precision == "fp16" else np.float32)
    error = np.abs(alpha_of(on_host(estimates), pictures) - expected).mean() * 255
    assert error < (0.02 if precision == "fp32" else 1.5)
    assert expected.std() * 255 > 10


@pytest.fixture(scope="module")
def network(rvm_model_path):
    network = RvmTorchNetwork(rvm_model_path, kernels="triton")
    yield network
    network.close()


def test_host_pictures_come_back_to_the_host(network):
    pictures = drifting_pictures(3, 1, (64, 96), dtype="float16")
    state = network.new_state()
    estimates = network.infer(pictures, state)
    assert all(isinstance(one.gain, np.ndarray) and one.gain.dtype == np.float32 for one in estimates)
    for here, there in zip(estimates, on_host(infer_on_gpu(network, pictures)), strict=True):
        np.testing.assert_allclose(here.gain, there.gain, atol=1e-3)
    assert all(tensor.is_cuda and tensor.dtype == torch.float32 for tensor in state.tensors)


def test_a_batch_of_frames_gives_what_single_frames_give(network):
    pictures = drifting_pictures(13, 2, (61, 95), dtype="float16")
    together = on_host(infer_on_gpu(network, pictures))
    state = network.new_state()
    singles = [on_host(infer_on_gpu(network, picture[None], state))[0] for picture in pictures]
    # Tiles differ with the batch, and so does the order in which products are summed.
    for single, batched in zip(singles, together, strict=True):
        assert np.abs(single.gain.astype(np.float32) - batched.gain.astype(np.float32)).mean() < 4e-3


def test_results_stay_what_they_were(network):
    import cupy

    pictures = drifting_pictures(2, 1, (64, 96), dtype="float16")
    state = network.new_state()
    first = infer_on_gpu(network, pictures[:1], state)[0]
    copy = cupy.asnumpy(first.gain)
    for _ in range(20):
        infer_on_gpu(network, pictures[1:], state)
    np.testing.assert_array_equal(cupy.asnumpy(first.gain), copy)


def test_the_same_call_gives_the_same_bits(network):
    pictures = drifting_pictures(4, 1, (61, 95), dtype="float16")
    first, second = (on_host(infer_on_gpu(network, pictures)) for _ in range(2))
    for one, other in zip(first, second, strict=True):
        np.testing.assert_array_equal(one.gain, other.gain)


def test_it_works_on_the_callers_stream_and_does_not_wait(network):
    import cupy

    pictures = drifting_pictures(4, 1, (64, 96), dtype="float16")
    expected = on_host(infer_on_gpu(network, pictures))
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        late = cupy.zeros(pictures.shape, np.float16)
        busy = cupy.ones(1 << 26, np.float32)
        for _ in range(50):
            busy = cupy.sin(busy)
        late[...] = cupy.asarray(pictures)
        estimates = network.infer(late, network.new_state())
        stream.synchronize()
    for got, wanted in zip(on_host(estimates), expected, strict=True):
        np.testing.assert_array_equal(got.gain, wanted.gain)


def test_graphs_are_recorded_while_another_thread_allocates(rvm_model_path):
    import cupy

    stop, failures = threading.Event(), []

    def decode_like():
        try:
            with cupy.cuda.Stream(non_blocking=True):
                while not stop.is_set():
                    cupy.asnumpy(cupy.zeros(1 << 16))
                    cupy.get_default_memory_pool().free_all_blocks()
        except Exception as error:
            failures.append(error)

    thread = threading.Thread(target=decode_like, name="decode-like")
    thread.start()
    try:
        network = RvmTorchNetwork(rvm_model_path)
        for frames in (1, 2, 4):
            assert (
                len(infer_on_gpu(network, drifting_pictures(frames, 1, (64, 96), dtype="float16"))) == frames
            )
        network.close()
    finally:
        stop.set()
        thread.join()
    assert failures == []


def test_plans_are_bounded_and_their_memory_comes_back(rvm_model_path):
    network = RvmTorchNetwork(rvm_model_path, most_plans=2)
    reserved = []
    for round_ in range(3):
        for size in ((64, 96), (96, 160), (128, 224), (160, 288)):
            infer_on_gpu(network, drifting_pictures(2, 1, size, dtype="float16"))
            assert network.plan_count <= 2
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        reserved.append(torch.cuda.memory_reserved())
        assert round_ == 0 or reserved[-1] <= reserved[0] + 2**24
    network.close()


def test_too_little_memory_is_an_error_with_numbers(rvm_model_path):
    network = RvmTorchNetwork(rvm_model_path)
    pictures = np.zeros((16, 1, 3, 512, 512), np.float16)
    torch.cuda.empty_cache()
    # What is reserved already, and a little.
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + 2**26) / total)
    try:
        with pytest.raises(DeviceMemoryError, match=r"(?s)Tried to allocate .*iB"):
            infer_on_gpu(network, pictures)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert len(infer_on_gpu(network, pictures[:1])) == 1
    network.close()


def test_states_of_another_size_are_refused(network):
    state = network.new_state()
    infer_on_gpu(network, drifting_pictures(1, 1, (64, 96), dtype="float16"), state)
    with pytest.raises(ModelError, match="another size"):
        infer_on_gpu(network, drifting_pictures(1, 2, (64, 96), dtype="float16"), state)


def test_resnet50_on_the_fused_kernels():
    weights = random_weights("resnet50")
    size = (33, 50)
    pictures = torch.from_numpy(drifting_pictures(2, 1, size, dtype="float16")).cuda()
    blank = [torch.zeros(shape, device="cuda") for shape in state_shapes(weights, 1, size)]
    exact = RvmCoarseNetwork(weights).cuda()(pictures.float(), *blank)
    fused = RvmCoarseNetwork(weights, precision="mixed", ops=fused_ops()).cuda()(pictures, *blank)
    for got, wanted in zip(fused, exact, strict=True):
        error = (got.float() - wanted).abs().mean() / wanted.abs().mean()
        assert float(error) < 0.05


@pytest.mark.slow
def test_half_precision_does_not_drift_over_five_thousand_frames(rvm_model_path):
    """The recurrent state is FP32; were it not, FP16's error would grow with the film (benchmarks/rvm_drift.py)."""
    import cupy

    size, frames, batch = (72, 128), 5000, 16
    half = RvmTorchNetwork(rvm_model_path, precision="fp16")
    exact = RvmTorchNetwork(rvm_model_path, precision="fp32", cudnn_benchmark=False)
    states = half.new_state(), exact.new_state()
    errors = []
    still = drifting_pictures(batch, 1, size, dtype="float16")
    for first in range(0, frames, batch):
        count = min(batch, frames - first)
        pictures = cupy.asarray(np.roll(still, first // batch, axis=-1)[:count])
        ours = half.infer(pictures, states[0])
        theirs = exact.infer(pictures.astype(np.float32), states[1])
        alphas = [
            cupy.stack([one.gain[:, 3].astype(np.float32) for one in estimates])
            * pictures.astype(np.float32).mean(axis=2)
            + cupy.stack([one.offset[:, 3].astype(np.float32) for one in estimates])
            for estimates in (ours, theirs)
        ]
        errors.append(cupy.abs(alphas[0] - alphas[1]).mean() * 255)
    errors = cupy.stack(errors).get()
    early, late = errors[10:60].mean(), errors[-50:].mean()
    # Of alpha before it is clipped, which in noise is mostly far below 0; of people in clips it is below 0.1.
    assert errors.mean() < 3
    assert late < 2 * early + 0.1
    half.close()
    exact.close()
