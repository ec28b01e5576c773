"""The fused kernels compile for every GPU they are meant for, without one."""

from __future__ import annotations

import re

import pytest
from rvm_torch_cases import random_weights

pytest.importorskip("torch")
pytest.importorskip("triton")

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from vitascope.models.rvm.coarse_network import RvmCoarseNetwork, state_shapes
from vitascope.models.rvm.triton_ops import TritonOps, _variant

pytestmark = pytest.mark.slow

POINTERS = {torch.float16: "*fp16", torch.float32: "*fp32"}


def launches(frames, precision):
    """Each kernel that a call of 512x288 needs, once; nothing is run."""
    weights = random_weights("mobilenetv3")
    ops = TritonOps(multiprocessors=132)
    network = RvmCoarseNetwork(weights, precision=precision, ops=ops)
    pictures = torch.zeros((frames, 1, 3, 288, 512), dtype=torch.float16)
    ops._planned = []
    with torch.inference_mode():
        network(pictures, *(torch.zeros(shape) for shape in state_shapes(weights, 1, (288, 512))))
    return list({_variant(launch): launch for launch in ops._planned}.values())


def compiled(launch, capability):
    kernel, _, arguments, constants = launch
    names = kernel.arg_names
    fixed = {name: value for name, value in constants.items() if not name.startswith("num_")}
    signature, aligned = dict.fromkeys(fixed, "constexpr"), {}
    for index, (name, argument) in enumerate(zip(names, arguments, strict=False)):
        if isinstance(argument, torch.Tensor):
            signature[name], aligned[(index,)] = POINTERS[argument.dtype], [["tt.divisibility", 16]]
        elif argument is None:
            signature[name], fixed[name] = "constexpr", None
        else:
            signature[name] = "i32"
    values = {(names.index(name),): value for name, value in fixed.items()}
    source = ASTSource(kernel, {name: signature[name] for name in names}, values, aligned)
    options = {name: value for name, value in constants.items() if name.startswith("num_")}
    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)


@pytest.mark.parametrize("capability", [80, 90, 120])
def test_every_kernel_compiles_and_multiplies_on_tensor_cores(capability):
    for frames, precision in ((1, "fp16"), (16, "mixed")):
        for launch in launches(frames, precision):
            ptx = compiled(launch, capability).asm["ptx"]
            assert f".target sm_{capability}" in ptx
            if "EXACT" in launch[3]:  # its products stay FP32 in mixed networks
                continue
            if "tl.dot" in launch[0].src:
                assert re.search(r"wgmma\.mma_async|mma\.sync", ptx), launch[0].fn.__name__
