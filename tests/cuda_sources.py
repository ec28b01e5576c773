"""CUDA C++ sources, and a compiler that needs no GPU."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vitascope.gpu.kernels.cuda_module import SOURCES

OLDEST, NEWEST = "compute_75", "compute_120"
"""Targets to compile for; the first has the fewest instructions."""

_UNOPTIMISED = ("-Xcicc", "-O0")
"""Says as much of structures and syntax, in half the time; of loops that cannot be unrolled the optimiser warns."""

needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs the CUDA compiler nvcc")


def compiled(
    folder: Path, source: Path, *arguments: str, **defines: str | int
) -> subprocess.CompletedProcess[str]:
    """Compile with nvcc, and return its result; the output is ``out`` in the folder."""
    command = ["nvcc", "-std=c++17", *arguments, *(f"-D{key}={value}" for key, value in defines.items())]
    return subprocess.run(
        [*command, str(source), "-o", str(folder / "out")],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def architectures(source: str | Path) -> list[str]:
    """Return the architectures that a source (in the kernels' folder, or a path) is compiled for.

    Later ones have all that the oldest has. The newest is added if the source, or a file that it includes,
    asks for the architecture: otherwise both would compile the same lines.
    """
    asks = any(
        "__CUDA_ARCH__" in path.read_text(encoding="utf-8") for path in _with_includes(SOURCES / source)
    )
    return [OLDEST, NEWEST] if asks else [OLDEST]


def variants(names: str, *rows: tuple[str | int, ...]) -> list[dict[str, str | int]]:
    """List the macros of several variants of a source: the names, and a row of values for each."""
    return [dict(zip(names.split(), row, strict=True)) for row in rows]


def assert_compiles(
    folder: Path,
    source: str | Path,
    architecture: str,
    entries: Sequence[str],
    several: Sequence[Mapping[str, str | int]] = ({},),
    *,
    strict: bool = True,
) -> None:
    """Each variant of the source (of the kernels' folder, or a path) becomes PTX with every entry point.

    All in one go, each in a namespace of its own: most of what a compiler does is to read CUDA's headers. ``strict``
    is without a warning.
    """
    path, parts = SOURCES / source, ["#include <cuda_fp16.h>"]
    left_defined = _macros(path)
    for number, defines in enumerate(several):
        macros = {**defines, **{entry: f"{entry}_{number}" for entry in entries}}
        parts += [
            f"namespace variant_{number} {{",
            *(f"#define {name} {value}" for name, value in macros.items()),
            f'#include "{path}"',
            "}",
            *(f"#undef {name}" for name in sorted(left_defined | set(macros))),
        ]
    together = folder / "together.cu"
    together.write_text("\n".join(parts) + "\n", encoding="utf-8")
    warnings = ["-Werror", "all-warnings"] if strict else _UNOPTIMISED
    answer = compiled(folder, together, "-ptx", *warnings, f"-arch={architecture}")
    assert answer.returncode == 0, answer.stderr
    made = re.findall(r"\.entry (\w+)\(", (folder / "out").read_text())
    assert sorted(made) == sorted(f"{entry}_{n}" for entry in entries for n in range(len(several)))


def _with_includes(path: Path) -> set[Path]:
    """Join a source and the files that it includes from its folder."""
    names = re.findall(r'#\s*include "(.+)"', path.read_text(encoding="utf-8"))
    return {path}.union(*(_with_includes(path.parent / name) for name in names))


def _macros(path: Path) -> set[str]:
    """List the definitions in a source and in the files beside it that it includes."""
    texts = (one.read_text(encoding="utf-8") for one in _with_includes(path))
    return {name for text in texts for name in re.findall(r"^\s*#\s*define\s+(\w+)", text, re.MULTILINE)}


def assert_has_layout(
    folder: Path, source: Path, structs: dict[str, np.dtype[Any]], **defines: str | int
) -> None:
    """Check that structures of a source have NumPy's layout; fields named ``pad`` may be missing."""
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
    answer = compiled(folder, layout, "-ptx", *_UNOPTIMISED, "-arch=compute_90", **defines)
    assert answer.returncode == 0, answer.stderr
