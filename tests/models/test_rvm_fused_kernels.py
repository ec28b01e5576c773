"""Check that the fused kernels are recorded without a GPU, and compile for every supported GPU."""

from __future__ import annotations

import numpy as np
import pytest
from rvm_torch_cases import random_weights

pytest.importorskip("triton")

from vitascope.gpu.engines.launch_plan import compile_kernels
from vitascope.models.rvm.structure import state_shapes
from vitascope.models.rvm.triton_ops import record_network

SIZE = (288, 512)


def recorded(backbone, *, steps=1, eyes=1, size=SIZE, result_dtype="float16"):
    weights = random_weights(backbone)
    plan, block = record_network(
        weights, steps=steps, eyes=eyes, size=size, result_dtype=result_dtype, multiprocessors=132
    )
    return weights, plan, block


@pytest.mark.slow
@pytest.mark.parametrize("capability", [80, 90, 120])
def test_every_kernel_compiles(capability):
    for steps, result_dtype in ((1, "float16"), (16, "float32")):
        _, plan, _ = recorded("mobilenetv3", steps=steps, result_dtype=result_dtype)
        compiled = compile_kernels(plan.kernels, capability=capability)
        assert len({kernel.code for kernel in compiled}) > 20
        assert all(kernel.threads in (64, 128) and kernel.code[:4] == b"\x7fELF" for kernel in compiled)


@pytest.mark.parametrize("backbone", ["mobilenetv3", "resnet50"])
@pytest.mark.parametrize(("steps", "eyes", "size"), [(1, 1, (16, 17)), (3, 2, (61, 95))])
def test_a_plan_takes_pictures_and_states_and_gives_coefficients_and_states(backbone, steps, eyes, size):
    weights, plan, _ = recorded(backbone, steps=steps, eyes=eyes, size=size)
    states = dict(zip(("r1", "r2", "r3", "r4"), state_shapes(weights, eyes, size), strict=True))
    planes = (steps * eyes, 1, *size)
    assert {name: at.shape for name, at in plan.inputs.items()} == {
        "pictures": (steps * eyes, 3, *size),
        **states,
    }
    assert {name: at.shape for name, at in plan.outputs.items()} == {
        "gain": planes,
        "offset": planes,
        **states,
    }


def test_memory_is_used_again():
    _, plan, _ = recorded("mobilenetv3", steps=16)
    _, single, _ = recorded("mobilenetv3")
    features = 16 * SIZE[0] * SIZE[1]
    assert plan.memory_bytes < 200 * features  # side by side, all arrays would take 1100 bytes a pixel
    assert single.memory_bytes < plan.memory_bytes / 10


def test_weights_are_the_same_for_every_size():
    blocks = [
        recorded("mobilenetv3", steps=steps, size=size)[2] for steps, size in ((1, (16, 16)), (4, SIZE))
    ]
    assert np.array_equal(*blocks)
