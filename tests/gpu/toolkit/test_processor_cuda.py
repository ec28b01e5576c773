"""Check that the processor gives the same results on a GPU, in the kind of its input, in stream order."""

from __future__ import annotations

import numpy as np
import pytest
from test_processor import MEAN, NV12, RGB, RNG, STD

from pictures import random_frame
from vitascope.frames import PIXEL_FORMATS, ColorSpec
from vitascope.gpu import CUDAKernelProcessor

pytestmark = pytest.mark.cuda

# With cosited chroma, the reference shifts it after resizing, which changes noise.
CENTRED = ColorSpec(chroma_location="center")


@pytest.fixture
def host():
    with CUDAKernelProcessor(device="cpu") as processor:
        yield processor


@pytest.fixture
def gpu():
    with CUDAKernelProcessor(device_id=0, device="cuda") as processor:
        yield processor


def to_torch(array):
    import torch

    return torch.from_numpy(np.ascontiguousarray(array)).cuda()


def to_cupy(array):
    import cupy

    return cupy.asarray(array)


def to_torch_on_host(array):
    import torch

    return torch.from_numpy(np.ascontiguousarray(array))


MAKERS = [np.asarray, to_cupy, to_torch, to_torch_on_host]


def on_host(array):
    if isinstance(array, np.ndarray):
        return array
    return array.get() if hasattr(array, "get") else array.cpu().numpy()


def same_home(result, given):
    return type(result) is type(given) and str(getattr(result, "device", "")) == str(
        getattr(given, "device", "")
    )


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("async_exec", [False, True])
def test_every_kind_comes_back_as_it_came(host, gpu, make, async_exec):
    options = {"target_size": (32, 40), "mean": MEAN, "std": STD}
    given = make(RGB)
    result = gpu.fused_preprocess(given, async_exec=async_exec, **options)
    if async_exec:
        result = result.wait()
    assert same_home(result, given)
    np.testing.assert_allclose(on_host(result), host.fused_preprocess(RGB, **options), atol=3e-4)

    scores = RNG.normal(size=(2, 5, 24, 32)).astype(np.float32)
    mask = gpu.postprocess_mask(make(scores), smoothing_sigma=1.5, async_exec=async_exec)
    mask = mask.wait() if async_exec else mask
    np.testing.assert_array_equal(on_host(mask), host.postprocess_mask(scores, smoothing_sigma=1.5))

    batch = np.stack([RGB, RGB[::-1]])
    normal = gpu.batch_normalize(make(batch), mean=MEAN, std=STD, async_exec=async_exec)
    normal = normal.wait() if async_exec else normal
    np.testing.assert_allclose(
        on_host(normal), host.batch_normalize(batch, mean=MEAN, std=STD), rtol=1e-5, atol=1e-5
    )

    rgb = gpu.nv12_to_rgb(make(NV12), async_exec=async_exec)
    rgb = rgb.wait() if async_exec else rgb
    assert np.abs(on_host(rgb).astype(int) - host.nv12_to_rgb(NV12)).max() <= 1
    small = gpu.fused_preprocess(make(NV12), (20, 30), color=CENTRED, async_exec=async_exec)
    small = small.wait() if async_exec else small
    expected = host.fused_preprocess(NV12, (20, 30), color=CENTRED)
    np.testing.assert_allclose(on_host(small), expected, atol=3e-3)


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("make_out", MAKERS)
@pytest.mark.parametrize("async_exec", [False, True])
def test_out_of_any_kind_takes_the_result(host, gpu, make, make_out, async_exec):
    out = make_out(np.full((1, 3, 32, 40), np.nan, np.float32))
    result = gpu.fused_preprocess(make(RGB), (32, 40), out=out, async_exec=async_exec)
    if async_exec:
        result = result.synchronize()
    assert result is out
    np.testing.assert_allclose(on_host(out), host.fused_preprocess(RGB, (32, 40)), atol=1e-4)


@pytest.mark.parametrize("name", ["nv12", "p010le", "yuv420p", "yuv420p10le"])
def test_frames_of_the_host_go_up(host, gpu, name):
    frame = random_frame(PIXEL_FORMATS[name], (64, 96), color=CENTRED)
    result = gpu.fused_preprocess(frame, (16, 24))
    assert isinstance(result, np.ndarray)
    np.testing.assert_allclose(result, host.fused_preprocess(frame, (16, 24)), atol=3e-3)


def test_many_asynchronous_calls_while_their_inputs_and_results_are_let_go(host, gpu):
    """Check memory that is reused at once: a stream that reads too late would see another picture."""
    import cupy

    pictures = [
        np.full((270, 480, 3), value, np.uint8) for value in RNG.integers(0, 256, 200, dtype=np.uint8)
    ]
    for first in range(0, len(pictures), 20):
        part = pictures[first : first + 20]
        pending = [gpu.fused_preprocess(cupy.asarray(picture), (64, 64), async_exec=True) for picture in part]
        cupy.asarray(RGB)  # reuses memory of a freed picture
        means = [float(result.wait().mean()) for result in pending]
        np.testing.assert_allclose(means, [picture[0, 0, 0] / 255 for picture in part], atol=1e-5)


def test_a_tensor_is_ordered_on_torchs_own_stream(host, gpu):
    import torch

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        tensor = torch.zeros(RGB.shape, dtype=torch.uint8, device="cuda")
        torch.cuda._sleep(20_000_000)  # the picture arrives late
        tensor.copy_(torch.from_numpy(RGB).pin_memory(), non_blocking=True)
        at_once = gpu.fused_preprocess(tensor, (32, 40)) + 0
        later = gpu.fused_preprocess(tensor, (32, 40), async_exec=True).wait() + 0
    stream.synchronize()
    expected = host.fused_preprocess(RGB, (32, 40))
    for result in (at_once, later):
        np.testing.assert_allclose(result.cpu().numpy(), expected, atol=1e-4)


def test_it_is_used_from_many_threads(host, gpu):
    from concurrent.futures import ThreadPoolExecutor

    pictures = [np.ascontiguousarray(np.roll(RGB, n, 0)) for n in range(32)]

    def work(picture):
        return gpu.fused_preprocess(picture, (32, 40), async_exec=True).wait()

    with ThreadPoolExecutor(8) as threads:
        for picture, result in zip(pictures, threads.map(work, pictures), strict=True):
            np.testing.assert_allclose(result, host.fused_preprocess(picture, (32, 40)), atol=1e-4)
