"""CUDA C++ sources and the compiler that needs no GPU."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vitascope.gpu.kernels.cuda_module import SOURCES

ARCHITECTURES = ["compute_75", "compute_90", "compute_120"]

needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs the CUDA compiler nvcc")


def compiled(
    folder: Path, source: Path, *arguments: str, **defines: str | int
) -> subprocess.CompletedProcess[str]:
    """What nvcc answers; what it makes is ``out`` in the folder."""
    command = ["nvcc", "-std=c++17", *arguments, *(f"-D{key}={value}" for key, value in defines.items())]
    return subprocess.run(
        [*command, str(source), "-o", str(folder / "out")],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def assert_compiles(
    folder: Path, source: str | Path, architecture: str, entries: list[str], **defines: str | int
) -> None:
    """The source (of the kernels' folder, or a path) becomes PTX with every entry point, without a warning."""
    answer = compiled(
        folder, SOURCES / source, "-ptx", "-Werror", "all-warnings", f"-arch={architecture}", **defines
    )
    assert answer.returncode == 0, answer.stderr
    text = (folder / "out").read_text()
    for entry in entries:
        assert f".entry {entry}(" in text


def assert_has_layout(
    folder: Path, source: Path, structs: dict[str, np.dtype[Any]], **defines: str | int
) -> None:
    """Structures of a source lie in memory as NumPy's do; fields named ``pad`` need not be there."""
    checks = []

    def walk(struct: str, dtype: np.dtype[Any], path: str, start: int) -> None:
        assert dtype.fields is not None
        for name, (field, offset, *_) in dtype.fields.items():
            base = field.subdtype[0] if field.subdtype else field
            if name != "pad":
                checks.append(
                    f"static_assert(__builtin_offsetof({struct}, {path}{name}) == {start + offset});"
                )
            if base.fields:
                last = f"[{field.shape[0] - 1}]" if field.subdtype else ""
                walk(struct, base, f"{path}{name}{last}.", start + offset + field.itemsize - base.itemsize)

    for struct, dtype in structs.items():
        checks.append(f"static_assert(sizeof({struct}) == {dtype.itemsize});")
        walk(struct, dtype, "", 0)
    layout = folder / "layout.cu"
    layout.write_text(f'#include "{source}"\n' + "\n".join(checks), encoding="utf-8")
    answer = compiled(folder, layout, "-ptx", "-arch=compute_90", **defines)
    assert answer.returncode == 0, answer.stderr
