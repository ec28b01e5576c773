"""Tests of each installed engine of ONNX networks on a real GPU, against ONNX Runtime on the CPU.

Engines that are not installed, or do not support this GPU, are skipped with their reason.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from vitascope.errors import EngineError, MissingDependencyError
from vitascope.gpu.engines import ShapeRange
from vitascope.gpu.engines.selection import TOLERANCES, GpuOptions, compare, gpu_openers
from vitascope.models.network_check import network_runner, random_pictures
from vitascope.models.rvm.rvm import RvmNetwork, engine_profiles

pytestmark = pytest.mark.cuda

PICTURES = ShapeRange((1, 3, 16, 16), (3, 3, 144, 256), (8, 3, 288, 512))
WAYS = ["tensorrt", "ONNX Runtime with TensorRT", "ONNX Runtime with TensorRT-RTX", "ONNX Runtime with CUDA"]


@pytest.fixture(params=[(way, graph) for way in range(4) for graph in (False, True) if way or not graph])
def network(request, rvm_model_path, tmp_path):
    way, cuda_graph = request.param
    _, _, open_one = gpu_openers(GpuOptions(cache_dir=tmp_path, precision="fp32", cuda_graph=cuda_graph))[way]

    def open_engines(encoder, decoder):
        of_encoder, of_decoder = engine_profiles(encoder, decoder, PICTURES, most_eyes=2)
        return open_one(encoder, of_encoder), open_one(decoder, of_decoder)

    try:
        network = RvmNetwork(rvm_model_path, downsample_ratio=1.0, open_engines=open_engines)
    except MissingDependencyError as error:
        pytest.skip(f"{WAYS[way]}: {error}")
    except EngineError as error:
        if "offers 0 GPUs" not in str(error):
            raise
        pytest.skip(f"{WAYS[way]}: {error}")
    yield network
    network.close()


@pytest.mark.parametrize(("eyes", "size"), [(1, (144, 256)), (2, (65, 47))])
def test_coefficients_are_those_of_the_cpu(network, rvm_model_path, eyes, size):
    inputs = random_pictures(eyes=eyes, size=size)()
    reference = network_runner(RvmNetwork(rvm_model_path, downsample_ratio=1.0), on_gpu=False)
    run = partial(network_runner(network, on_gpu=True), inputs)
    for _ in range(4):  # the first run, capturing a graph, and replays
        verdict = compare(run(), reference(inputs), TOLERANCES["fp32"])
        assert verdict.passed, verdict.reason


def test_pictures_may_still_be_in_the_making_and_answers_are_waited_for(network):
    """Check a busy stream, with pictures that are written at the last moment."""
    import cupy

    pictures = np.random.default_rng(0).random((2, 1, 3, 144, 256), dtype=np.float32)
    on_gpu = cupy.asarray(pictures)
    expected = [estimate.gain.get() for estimate in network.infer(on_gpu, network.new_state())]
    big = cupy.random.default_rng(0).random((4096, 4096), dtype=cupy.float32)
    cupy.cuda.Device().synchronize()
    with cupy.cuda.Stream(non_blocking=True) as stream:
        for _ in range(5):
            late = cupy.zeros_like(on_gpu)
            for _ in range(4):
                big = big @ big * 1e-4
            late += on_gpu
            answers = [estimate.gain + 0 for estimate in network.infer(late, network.new_state())]
            late[...] = 0
            stream.synchronize()
            for answer, gain in zip(answers, expected, strict=True):
                np.testing.assert_allclose(answer.get(), gain, atol=1e-3)
