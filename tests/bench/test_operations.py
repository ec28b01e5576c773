"""Tests of operator tables: sums, shares and orders."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from vitascope.bench.network_probe import (
    TOP,
    operations_of_calls,
    operations_of_kernels,
    trace_network,
)
from vitascope.gpu.engines.onnx_runtime import OperatorCall
from vitascope.gpu.profiling.cuda import KernelRow
from vitascope.models.selfie.selfie import SelfieNetwork

CONV = OperatorCall(
    kind="Conv",
    name="conv",
    seconds=0.006,
    input_shapes=((2, 3, 8, 8), (4, 3, 3, 3)),
    output_shapes=((2, 4, 8, 8),),
    activation_bytes=1000,
    parameter_bytes=200,
    output_bytes=3000,
)
RESIZE = replace(CONV, kind="Resize", name="resize", seconds=0.002, output_bytes=90_000)
VIEW = replace(CONV, kind="Reshape", name="view", seconds=0.0, output_bytes=10_000_000)


def test_sums_are_for_a_frame():
    # Two calls of four frames each.
    found = operations_of_calls(
        [[CONV, RESIZE, VIEW, CONV, RESIZE, VIEW]], source="onnxruntime", calls=2, frames=4
    )
    assert found.ms == pytest.approx(2 * 8 / 8)
    assert found.operator_count == 3
    first, second, _ = found.by_time
    assert (first.name, first.calls, first.shape) == ("conv", 1, "2x4x8x8")
    assert first.ms == pytest.approx(2 * 6 / 8)
    assert first.share == pytest.approx(0.75)
    assert first.mbytes == pytest.approx(2 * 4200 / 1e6 / 8)
    assert second.name == "resize"
    assert [row.name for row in found.by_memory] == ["resize", "conv", "view"]
    assert found.by_memory[2].mbytes == 0  # the same memory under another name
    assert found.share_by_kind == pytest.approx({"Conv": 0.75, "Resize": 0.25, "Reshape": 0.0})


def test_sessions_may_name_their_operators_alike():
    found = operations_of_calls([[CONV], [CONV]], source="x", calls=1, frames=1)
    assert [row.calls for row in found.by_time] == [1, 1]


def test_the_ten_most_expensive():
    calls = [replace(CONV, name=f"conv{n}", seconds=n / 1e3, output_bytes=n) for n in range(1, 31)]
    found = operations_of_calls([calls], source="x", calls=1, frames=1)
    assert [row.name for row in found.by_time] == [f"conv{n}" for n in range(30, 30 - TOP, -1)]
    assert found.operator_count == 30
    assert found.ms == pytest.approx(sum(range(1, 31)))


def test_kernels_of_a_gpu():
    rows = [
        KernelRow(
            name="gemm", count=6, total_seconds=0.03, mean_seconds=0.005, max_seconds=0.006, share=0.75
        ),
        KernelRow(
            name="relu", count=3, total_seconds=0.01, mean_seconds=0.003, max_seconds=0.004, share=0.25
        ),
    ]
    found = operations_of_kernels(SimpleNamespace(kernels=lambda: rows), calls=3, frames=2)
    assert found.ms == pytest.approx(40 / 6)
    assert [(row.name, row.calls, row.mbytes) for row in found.by_time] == [
        ("gemm", 2, None),
        ("relu", 1, None),
    ]
    assert found.by_memory == ()
    nothing = operations_of_kernels(SimpleNamespace(kernels=list), calls=3, frames=2)
    assert nothing.missing == "no kernel was recorded"


def test_warm_ups_are_left_out(model_store):
    def opened():
        paths = model_store.path("selfie"), model_store.path("selfie-landscape")
        return SelfieNetwork(*paths, gate=False, choice="landscape")

    pictures = np.zeros((2, 1, 144, 256, 3), np.float32)
    sessions = trace_network(opened, pictures, calls=3, warm_ups=2, optimised=True)
    ran = [session for session in sessions if session]
    assert len(ran) == 1  # the general network and the features were opened, but not needed
    found = operations_of_calls(ran, source="x", calls=3, frames=2)
    assert {row.calls for row in found.by_time} == {1}
    assert found.share_by_kind["Conv"] > 0.05
