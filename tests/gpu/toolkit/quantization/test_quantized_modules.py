"""Tests of PyTorch modules in 8 bits and half precision, on the CPU."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from torch import nn

from tiny_modules import expected, pictures, tiny_network
from vitascope.errors import EngineError, UsageError
from vitascope.gpu import ModelQuantizer
from vitascope.gpu.engines.torch_export import HalfPrecision
from vitascope.gpu.toolkit.quantization.torch_layers import EightBitConv2d, EightBitLinear, quantized_module


def relative(got, wanted):
    got, wanted = np.asarray(got), np.asarray(wanted)
    return np.abs(got - wanted).mean() / np.abs(wanted).mean()


def wide_network():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 64, 3), nn.ReLU(), nn.Conv2d(64, 64, 1), nn.Flatten(), nn.Linear(12544, 16)
    )


@pytest.mark.parametrize("method", ["entropy", "percentile", "minmax"])
def test_static_int8_is_near_and_almost_four_times_smaller(method):
    network, given = tiny_network(), pictures(8)
    quantized = ModelQuantizer.quantize_int8(network, pictures(8, seed=3), method=method)
    assert 0 < relative(expected(quantized, given), expected(network, given)) < 0.03
    wide = wide_network()
    size = ModelQuantizer.measure_model_size
    assert size(wide) / size(ModelQuantizer.quantize_int8(wide, pictures(2), method=method)) >= 3.9


def test_dynamic_follows_what_it_is_fed():
    """Check input ten times louder than the calibration: static scales clip it, dynamic ones follow."""
    network, loud = tiny_network(), 10 * pictures(4)
    wanted = expected(network, loud)
    static = ModelQuantizer.quantize_int8(network, pictures(8), method="minmax")
    dynamic = ModelQuantizer.quantize_dynamic(network)
    assert relative(expected(dynamic, loud), wanted) < 0.03 < relative(expected(static, loud), wanted)


def test_fp16_halves_and_the_original_stays():
    network = tiny_network()
    half = ModelQuantizer.quantize_fp16(network)
    size = ModelQuantizer.measure_model_size
    assert 1.9 < size(network) / size(half) <= 2  # BatchNorm's integer counter does not shrink
    assert next(network.parameters()).dtype == torch.float32
    comparison = ModelQuantizer.compare(network, half, pictures(3), iterations=1)
    assert 0 < comparison.relative_error < 5e-3


def test_the_original_stays_as_it_was():
    network = tiny_network().train()
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    ModelQuantizer.quantize_int8(network, pictures(2))
    assert network.training
    assert [type(layer) for layer in network][:1] == [nn.Conv2d]
    assert all(torch.equal(before[name], tensor) for name, tensor in network.state_dict().items())
    assert not network[0]._forward_pre_hooks


def test_every_layer_is_replaced_but_those_that_are_skipped():
    quantized = ModelQuantizer.quantize_int8(tiny_network(), pictures(2), skip=["7"])
    assert [type(layer) for layer in (quantized[0], quantized[3], quantized[7])] == [
        EightBitConv2d,
        EightBitConv2d,
        nn.Linear,
    ]
    with pytest.raises(UsageError, match="'head', which is not part"):
        ModelQuantizer.quantize_int8(tiny_network(), pictures(2), skip=["head"])
    with pytest.raises(UsageError, match="no convolution or linear layer"):
        ModelQuantizer.quantize_int8(nn.ReLU(), pictures(2))


def test_a_layer_alone_is_a_module_too():
    layer = nn.Linear(8, 4)
    rows = np.random.default_rng(0).random((5, 8), dtype=np.float32)
    assert isinstance(ModelQuantizer.quantize_int8(layer, rows), EightBitLinear)


@pytest.mark.parametrize("groups", [1, 2, 8])
@pytest.mark.parametrize("kernel", [1, 3])
@pytest.mark.parametrize("bias", [True, False])
def test_convolutions_of_every_kind(groups, kernel, bias):
    torch.manual_seed(0)
    layer = nn.Conv2d(8, 16, kernel, stride=2, padding=1, dilation=2, groups=groups, bias=bias)
    given = np.random.default_rng(0).standard_normal((2, 8, 12, 12)).astype(np.float32)
    quantized = ModelQuantizer.quantize_int8(layer, given, method="minmax")
    assert relative(expected(quantized, given), expected(layer, given)) < 0.02


@pytest.mark.parametrize("number", ["int8", "fp8"])
def test_products_in_8_bits_are_those_of_the_rounded_values(number):
    """Check what tensor cores compute, with the operators' CPU implementations."""
    torch.manual_seed(0)
    layer = nn.Linear(64, 32)
    x = torch.randn(48, 64)
    (scale,) = [float(x.abs().max()) / (127 if number == "int8" else 448)]
    eight = EightBitLinear(layer, number=number, input_scale=scale)
    with torch.inference_mode():
        rounded = eight(x)
        product = eight.product(x)
        # FP8 sums are returned as bfloat16, with 8 bits of mantissa.
        assert float((product - rounded).abs().max()) < (1e-4 if number == "int8" else 2e-2)
        assert relative(rounded.numpy(), layer(x).numpy()) < (0.02 if number == "int8" else 0.06)


@pytest.mark.parametrize("memory", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("count", [1, 2])
def test_fp8_products_are_row_major_times_column_major(monkeypatch, count, memory):
    """Check the only order that cuBLASLt accepts for FP8; the CPU accepts any."""
    layer = EightBitConv2d(nn.Conv2d(32, 16, 1), number="fp8", input_scale=0.01)
    orders, product = [], torch._scaled_mm

    def noted(a, b, **options):
        orders.append((a.stride(), b.stride()))
        return product(a, b, **options)

    monkeypatch.setattr(torch, "_scaled_mm", noted)
    monkeypatch.setattr(EightBitConv2d, "multiplies_in_8_bits", lambda *_: True)
    layer(torch.randn(count, 32, 6, 6).to(memory_format=memory))
    assert orders == [((32, 1), (1, 32))]


@pytest.mark.cuda
@pytest.mark.parametrize("memory", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("number", ["int8", "fp8"])
def test_single_pictures_on_a_gpu(number, memory):
    torch.manual_seed(0)
    layer = EightBitConv2d(nn.Conv2d(32, 16, 1), number=number, input_scale=0.05)
    x = torch.randn(1, 32, 6, 6)
    with torch.inference_mode():
        wanted = layer(x)
        got = layer.cuda()(x.cuda().to(memory_format=memory)).cpu()
    assert float((got - wanted).abs().max()) < 2e-2


def test_half_precision_leaves_8_bit_weights_and_their_scales_alone():
    network = tiny_network()
    for number in ("int8", "fp8"):
        quantized = quantized_module(network, {"input": pictures(4)}, number=number, method="minmax")
        half = HalfPrecision(quantized)
        layer = half.inner[3]
        assert layer.weight.dtype == (torch.int8 if number == "int8" else torch.float8_e4m3fn)
        assert layer.weight_scale.dtype == layer.input_scale.dtype == torch.float32
        # A value that FP16 moves across the edge between two FP8 values changes by a sixteenth.
        most = 5e-3 if number == "int8" else 2e-2
        assert relative(expected(half, pictures(4)), expected(quantized, pictures(4))) < most


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_half_precision_takes_and_gives_what_the_module_did(dtype):
    half = HalfPrecision(nn.Conv2d(3, 4, 1).to(dtype))
    assert half.inner.weight.dtype == torch.float16
    with torch.inference_mode():
        assert half(torch.rand(1, 3, 4, 4, dtype=dtype)).dtype == dtype


def test_frames_that_do_not_fit_are_named():
    with pytest.raises(EngineError, match=r"does not take calibration frames \[1, 5, 16, 16\]"):
        ModelQuantizer.quantize_int8(tiny_network(), np.zeros((2, 5, 16, 16), np.float32))
    bad = pictures(2)
    bad[1, 0, 0, 0] = np.nan
    with pytest.raises(UsageError, match="not finite"):
        ModelQuantizer.quantize_int8(tiny_network(), bad)


def test_modules_of_several_inputs_are_calibrated_by_name():
    class Product(nn.Module):
        def __init__(self):
            super().__init__()
            self.left, self.right = nn.Linear(8, 8), nn.Linear(4, 8)

        def forward(self, a, b):
            return self.left(a) * self.right(b)

    module = Product().eval()
    random = np.random.default_rng(0)
    calibration = {"a": random.random((6, 8), np.float32), "b": random.random((6, 4), np.float32)}
    quantized = ModelQuantizer.quantize_int8(module, calibration)
    comparison = ModelQuantizer.compare(module, quantized, calibration, iterations=1)
    assert 0 < comparison.relative_error < 0.05


def test_measured_sizes_count_shared_weights_once():
    layer = nn.Linear(8, 8, bias=False)
    assert ModelQuantizer.measure_model_size(nn.Sequential(layer, layer)) == 8 * 8 * 4
