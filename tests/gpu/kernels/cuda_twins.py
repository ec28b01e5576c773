"""What every kernel's tests share: planes on the GPU with rows as decoders pad them, and a compiler without a GPU."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from vitascope.frames import Frame
from vitascope.gpu.kernels.cuda_module import SOURCES

ARCHITECTURES = ["compute_75", "compute_90", "compute_120"]

needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs the CUDA compiler nvcc")


def plane_on_gpu(plane: Any, *, pad: int = 0) -> Any:
    """A CuPy copy whose rows are 16 samples apart or a multiple, plus ``pad`` samples, which breaks their alignment."""
    import cupy

    aligned = -(-plane.shape[1] // 16) * 16 + pad
    padded = cupy.full((plane.shape[0], aligned, *plane.shape[2:]), 255, plane.dtype)
    padded[:, : plane.shape[1]] = cupy.asarray(plane)
    return padded[:, : plane.shape[1]]


def frame_on_gpu(frame: Frame, *, pad: int = 0) -> Frame:
    return frame.with_planes(tuple(plane_on_gpu(plane, pad=pad) for plane in frame.planes))


def frame_on_cpu(frame: Frame) -> Frame:
    return frame.with_planes(tuple(plane.get() for plane in frame.planes))


def assert_compiles(
    folder: Path, source: str, architecture: str, entries: list[str], **defines: str | int
) -> None:
    """The source becomes PTX with every entry point, without a warning."""
    output = folder / "out.ptx"
    command = ["nvcc", "-std=c++17", "-ptx", "-Werror", "all-warnings", f"-arch={architecture}"]
    command += [f"-D{key}={value}" for key, value in defines.items()]
    answer = subprocess.run(
        [*command, str(SOURCES / source), "-o", str(output)], capture_output=True, text=True, check=False
    )
    assert answer.returncode == 0, answer.stderr
    text = output.read_text()
    for entry in entries:
        assert f".entry {entry}(" in text
