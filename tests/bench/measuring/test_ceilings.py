"""Ceilings: what is counted, how often, and on what."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from fake_cupy import fake_cupy
from measured_cells import SMALL_CEILINGS
from vitascope.bench.measuring import ceilings as module
from vitascope.bench.measuring.ceilings import CeilingEffort, measure_ceilings
from vitascope.device import Device, select_device


def test_the_processor():
    (found,) = measure_ceilings(select_device("cpu"), SMALL_CEILINGS)
    assert found.device == "cpu"
    copy, products = found.rows
    assert (copy.name, copy.unit, products.name, products.unit) == (
        "copy",
        "bytes/s",
        "matmul/fp32",
        "FLOP/s",
    )
    assert copy.n == products.n == SMALL_CEILINGS.samples
    assert 1e7 < copy.p5 <= copy.p50 <= copy.p95 < 1e13
    assert 1e7 < products.p5 <= products.p50 <= products.p95 < 1e15
    assert len(found.methods) == 2
    assert found.missing == ()
    assert found.median("copy") == copy.p50
    assert found.median("matmul/fp16") is None


@pytest.fixture
def tenths(monkeypatch):
    """Everything takes a tenth of a second."""
    ran = []

    def timed(work, effort):
        for _ in range(effort.warm_ups + effort.samples):
            work()
            ran.append(work)
        return [0.1] * effort.samples

    monkeypatch.setattr(module, "_host_seconds", timed)
    return ran


def test_a_copy_reads_and_writes_and_products_are_two_operations_each(tenths):
    effort = CeilingEffort(copy_bytes=1 << 26, warm_ups=1, samples=2)
    (found,) = measure_ceilings(Device("cpu", "CPU"), effort)
    assert found.median("copy") == pytest.approx(2 * (1 << 26) / 0.1, rel=1e-5)
    # The first matrices take long enough.
    assert found.median("matmul/fp32") == pytest.approx(2 * 1024**3 / 0.1, rel=1e-5)
    assert len(tenths) == 3 + 2 + 3


def test_everything_is_copied(monkeypatch):
    copied = []
    monkeypatch.setattr(module.np, "copyto", lambda to, given: copied.append((to.nbytes, given.std())))
    module._host_copies(1 << 26, 3, replace(SMALL_CEILINGS, warm_ups=0, samples=1))
    assert sum(nbytes for nbytes, _ in copied) == 1 << 26
    assert min(spread for _, spread in copied) > 70  # random bytes: 255 / sqrt(12) = 73.6


def test_larger_matrices_where_small_ones_are_too_quick(monkeypatch):
    sides = []

    def quick(work, effort):
        sides.append(len(work.args[0]))
        return [1e-6] * effort.samples

    monkeypatch.setattr(module, "_host_seconds", quick)
    row = module._host_products(replace(SMALL_CEILINGS, largest_side=4096))
    assert sides == [1024, 2048, 4096, 4096]
    assert row.p50 == pytest.approx(2 * 4096**3 / 1e-6, rel=1e-5)
    assert np.isfinite(row.p95)


@pytest.fixture
def gpu(monkeypatch):
    """CuPy on the host's memory; everything takes two milliseconds on its clock."""
    cupy = fake_cupy()
    cupy.tile = lambda array, count: cupy.asarray(np.tile(array, count))
    cupy.empty_like = lambda array: cupy.empty(array.shape, array.dtype)
    cupy.matmul = lambda one, other, out: np.matmul(one, other, out=out)
    cupy.get_default_memory_pool = lambda: SimpleNamespace(free_all_blocks=lambda: cupy.diary.append("freed"))
    cupy.cuda.get_elapsed_time = lambda start, stop: 2.0
    cupy.cuda.runtime.memcpyDeviceToDevice = 3
    monkeypatch.setattr(module, "import_cupy", lambda: cupy)
    monkeypatch.setattr(module, "_torch_with_gpu", lambda: None)
    return cupy


GPU = Device("cuda", "a GPU", index=1)


def test_a_gpu_without_pytorch(gpu):
    processor, found = measure_ceilings(GPU, SMALL_CEILINGS)
    assert processor.device == "cpu"
    assert found.device == "cuda"
    assert found.median("copy") == pytest.approx(2 * (1 << 25) / 2e-3, rel=1e-5)
    assert (
        found.median("matmul/fp32")
        == found.median("matmul/fp16")
        == pytest.approx(2 * 256**3 / 2e-3, rel=1e-5)
    )
    assert found.missing == ("matmul/tf32: needs PyTorch",)
    copies = [entry for entry in gpu.diary if entry[0] == "copy"]
    assert len(copies) == SMALL_CEILINGS.warm_ups + SMALL_CEILINGS.samples
    assert {(stream > 0, nbytes) for _, stream, nbytes in copies} == {(True, 1 << 25)}
    assert gpu.diary[-1] == "freed"


def test_what_a_gpu_cannot_do_is_named_and_the_rest_measured(gpu, monkeypatch):
    def refuse(*_, out):
        raise RuntimeError("no cuBLAS here\nand more lines")

    gpu.matmul = refuse
    found = measure_ceilings(GPU, SMALL_CEILINGS)[1]
    assert [row.name for row in found.rows] == ["copy"]
    assert found.missing == (
        "matmul/fp32: no cuBLAS here",
        "matmul/tf32: needs PyTorch",
        "matmul/fp16: no cuBLAS here",
    )


def test_a_gpu_without_memory_for_matrices_keeps_its_other_ceilings(gpu):
    def full(*_, out):
        raise gpu.cuda.memory.OutOfMemoryError("Out of memory allocating 268,435,456 bytes")

    gpu.matmul = full
    found = measure_ceilings(GPU, SMALL_CEILINGS)[1]
    assert [row.name for row in found.rows] == ["copy"]
    assert found.missing[0] == "matmul/fp32: Out of memory allocating 268,435,456 bytes"
