"""Tests of InductorEngine on a GPU: every precision, every kind of array, and loading from a file."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from tiny_modules import SHAPES, expected, pictures, tiny_network
from vitascope.gpu import InductorEngine, ModelQuantizer, open_engine

pytestmark = [
    pytest.mark.cuda,
    # torch's own code warns inside the compiler
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"),
]


def relative(got, wanted):
    return np.abs(np.asarray(got) - wanted).mean() / np.abs(wanted).mean()


@pytest.mark.parametrize("cuda_graph", [True, False])
@pytest.mark.parametrize(
    ("fp16", "tf32", "most"), [(False, False, 1e-5), (False, True, 2e-3), (True, True, 5e-3)]
)
def test_every_batch_is_right(fp16, tf32, most, cuda_graph):
    network = tiny_network()
    with InductorEngine(
        fp16_mode=fp16, device="cuda", mode="eager", allow_tf32=tf32, cuda_graph=cuda_graph
    ) as engine:
        engine.build_engine_from_pytorch(network, SHAPES)
        for count in (1, 3, 16, 3):
            given = pictures(count, seed=count)
            assert relative(engine.infer(given), expected(network, given)) < most
        assert engine.spec.inputs[0].dtype == engine.spec.outputs[0].dtype == np.float32


def test_arrays_come_back_as_they_went_in():
    import cupy

    network, given = tiny_network(), pictures(3)
    wanted = expected(network, given)
    with InductorEngine(device="cuda", mode="eager") as engine:
        engine.build_engine_from_pytorch(network, SHAPES)
        on_gpu = engine.infer(cupy.asarray(given))
        assert isinstance(on_gpu, cupy.ndarray)
        tensor = engine.infer(torch.from_numpy(given).cuda())
        assert tensor.is_cuda
        on_host = engine.infer(torch.from_numpy(given))
        assert not on_host.is_cuda
        for got in (on_gpu.get(), tensor.cpu().numpy(), on_host.numpy(), engine.infer(given)):
            assert relative(got, wanted) < 2e-3


def test_a_tensor_of_another_stream_is_waited_for():
    network, given = tiny_network(), pictures(16)
    wanted = expected(network, given)
    with InductorEngine(device="cuda", mode="eager") as engine:
        engine.build_engine_from_pytorch(network, SHAPES)
        engine.infer(torch.zeros(16, 3, 16, 16, device="cuda"))
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            large = torch.rand(4096, 4096, device="cuda")
            for _ in range(20):
                large = large @ large.clamp(0, 1e-3)  # makes the input late
            tensor = torch.from_numpy(given).cuda() + large.sum() * 0
            result = engine.infer(tensor)
        stream.synchronize()
        assert relative(result.cpu().numpy(), wanted) < 2e-3


def test_compiled_and_loaded_from_a_file(tmp_path):
    network, given = tiny_network(), pictures(4)
    path = tmp_path / "network.pt2"
    with InductorEngine(fp16_mode=True, device="cuda") as engine:
        assert engine.build_engine_from_pytorch(network, SHAPES, path) == path
        first = engine.infer(given)
        assert "compile" in engine.name
        report = engine.benchmark(5, warmup=2)
        assert report["batch_size"] == 4
        assert report["precision"] == "fp16"
    with InductorEngine(fp16_mode=True, device="cuda") as again:
        again.load_engine(path)
        assert relative(again.infer(given), first) < 1e-3
        assert relative(first, expected(network, given)) < 5e-3


@pytest.mark.parametrize("number", ["int8", "fp8"])
@pytest.mark.parametrize("fp16", [False, True])
def test_eight_bit_products_agree_with_their_rounded_twins(number, fp16):
    """A GPU multiplies in 8 bits, and a CPU multiplies the rounded values in FP32."""
    network, given = tiny_network(), pictures(16)
    quantize = ModelQuantizer.quantize_int8 if number == "int8" else ModelQuantizer.quantize_fp8
    quantized = quantize(network, pictures(8, seed=9))
    on_cpu = expected(quantized, given)
    with InductorEngine(fp16_mode=fp16, device="cuda", mode="eager", allow_tf32=False) as engine:
        engine.build_engine_from_pytorch(quantized, SHAPES)
        assert relative(engine.infer(given), on_cpu) < 2e-2
    assert relative(on_cpu, expected(network, given)) < (2e-2 if number == "int8" else 8e-2)


def test_open_engine_checks_what_it_takes(tmp_path):
    reasons = []
    network = tiny_network()
    with open_engine(
        network, "inductor", input_shapes=SHAPES, device="cuda", cache_dir=tmp_path, on_reason=reasons.append
    ) as engine:
        assert relative(engine.infer(pictures(2)), expected(network, pictures(2))) < 2e-3
    assert "differs from the CPU's by" in reasons[-1]
    assert list(tmp_path.glob("*.verdict.json"))
