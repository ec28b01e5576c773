"""Why a kernel cannot be built, in our own words."""

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
