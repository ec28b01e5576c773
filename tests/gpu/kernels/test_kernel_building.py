"""Tests of our messages when a kernel cannot be built."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from fake_cupy import fake_cupy
from vitascope.errors import KernelCompileError
from vitascope.gpu.kernels import cuda_module


class CompileException(Exception):  # noqa: N818 - CuPy's name
    pass


class CUDADriverError(RuntimeError):
    pass


@pytest.mark.parametrize(
    ("failure", "words"),
    [
        (CompileException("error: expected a ';'"), "NVRTC could not build argmax"),
        (CUDADriverError("CUDA_ERROR_NO_BINARY_FOR_GPU"), "NVRTC could not build argmax"),
        (RuntimeError("CuPy failed to load libnvrtc.so.13"), "failed to load libnvrtc"),
    ],
)
def test_every_failure_is_told_as_one(monkeypatch, failure, words):
    cupy = fake_cupy()
    cupy.cuda.compiler = SimpleNamespace(CompileException=CompileException)
    cupy.cuda.driver = SimpleNamespace(CUDADriverError=CUDADriverError)

    class RawModule:
        def __init__(self, **_):
            pass

        def get_function(self, name):
            raise failure

    cupy.RawModule = RawModule
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    cuda_module._compiled.cache_clear()
    with pytest.raises(KernelCompileError, match=words) as caught:
        cuda_module.cuda_kernel("mask_postprocess.cu", "argmax")
    assert caught.value.__cause__ is failure


def test_the_compiler_gets_what_a_source_includes_as_one_text(tmp_path, monkeypatch):
    """CuPy's disk cache would miss changes in a file that the compiler includes itself."""
    monkeypatch.setattr(cuda_module, "SOURCES", tmp_path)
    (tmp_path / "whole.cu").write_text('#include <cuda_fp16.h>\n#include "part.cuh"\nlast\n')
    (tmp_path / "part.cuh").write_text('first\n#include "inner.cuh"')
    (tmp_path / "inner.cuh").write_text("second")
    assert cuda_module.kernel_source("whole.cu") == "#include <cuda_fp16.h>\nfirst\nsecond\nlast\n"


@pytest.mark.parametrize("source", sorted(path.name for path in cuda_module.SOURCES.glob("*.cu")))
def test_no_source_leaves_an_include_to_the_compiler(source):
    """NVRTC gets no include folders."""
    text = cuda_module.kernel_source(source)
    assert '#include "' not in text
    assert 'extern "C" __global__' in text
