from __future__ import annotations

import subprocess
import sys

import pytest

from vitascope.device import (
    available_cores,
    peak_memory_bytes,
    physical_memory_bytes,
    select_device,
    simd_features,
)
from vitascope.errors import UsageError


def test_figures_are_plausible():
    assert available_cores() >= 1
    memory = physical_memory_bytes()
    assert memory is None or memory > 2**28
    peak = peak_memory_bytes()
    assert peak is None or 2**22 < peak < 2**40
    assert all(isinstance(name, str) for name in simd_features())


def test_auto_is_the_cpu_and_cuda_is_refused():
    assert select_device("auto").kind == select_device("cpu").kind == "cpu"
    with pytest.raises(UsageError, match="CPU only"):
        select_device("cuda")


def test_importing_the_package_loads_no_heavy_library():
    heavy = ("torch", "cupy", "cv2", "av", "onnxruntime")
    code = f"import sys, vitascope; print([name for name in {heavy} if name in sys.modules])"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"
