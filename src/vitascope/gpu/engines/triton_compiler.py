"""Triton kernels as machine code: compiled without a GPU and without PyTorch, and launched elsewhere."""

from __future__ import annotations

import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from vitascope.device import available_cores
from vitascope.errors import KernelCompileError, MissingDependencyError
from vitascope.gpu.engines.launch_plan import Array

_POINTERS: Final = {np.dtype(np.float16): "*fp16", np.dtype(np.float32): "*fp32"}
_WARP: Final = 32


@dataclass(frozen=True, slots=True)
class TritonKernel:
    """A function under ``@triton.jit`` with everything that its code depends on."""

    function: Any
    types: tuple[str | None, ...]
    """Triton's types of its leading parameters; None for one that is not given."""
    constants: tuple[tuple[str, Any], ...]
    """Its ``tl.constexpr`` parameters, sorted by name."""
    options: tuple[tuple[str, int], ...]
    """``num_warps`` and ``num_stages``, where they are not Triton's own."""

    @classmethod
    def of(
        cls, function: Any, arguments: Sequence[Array | int | None], constants: dict[str, Any]
    ) -> TritonKernel:
        """The kernel of a launch.

        Args:
            function: Under ``@triton.jit``; no integer of it is specialised.
        """
        types = tuple(
            _POINTERS[argument.dtype] if isinstance(argument, Array) else None if argument is None else "i32"
            for argument in arguments
        )
        options = {name: value for name, value in constants.items() if name.startswith("num_")}
        fixed = {name: value for name, value in constants.items() if name not in options}
        return cls(function, types, tuple(sorted(fixed.items())), tuple(sorted(options.items())))


@dataclass(frozen=True, slots=True)
class CompiledKernel:
    """Machine code of one kernel, and how it is launched."""

    code: bytes = field(repr=False)
    """A cubin."""
    name: str
    """Its entry point."""
    threads: int
    """Threads of a block."""
    shared_bytes: int
    """Dynamic shared memory of a block."""
    null_pointers: int
    """Parameters behind the kernel's own, for scratch memory that it does not use."""


def triton_version() -> str:
    """Triton's version; it is not imported.

    Raises:
        MissingDependencyError: It is not installed.
    """
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("triton")
    except PackageNotFoundError as error:
        raise MissingDependencyError(
            "the fused kernels need Triton: pip install 'vitascope[cuda]'"
        ) from error


def compile_kernels(kernels: Sequence[TritonKernel], *, capability: int) -> list[CompiledKernel]:
    """Compile kernels on several cores, which takes about half of the time.

    Args:
        capability: Compute capability of the GPU: 90 for 9.0.

    Raises:
        KernelCompileError: Triton refused one.
    """
    with ThreadPoolExecutor(available_cores(), thread_name_prefix="triton") as pool:
        return list(pool.map(lambda kernel: _compiled(kernel, capability), kernels))


def _compiled(kernel: TritonKernel, capability: int) -> CompiledKernel:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    names = kernel.function.arg_names
    fixed = dict(kernel.constants)
    signature, aligned = {}, {}
    for index, (name, kind) in enumerate(zip(names, kernel.types, strict=False)):
        if kind is None:
            fixed[name] = None
        else:
            signature[name] = kind
            if kind.startswith("*"):
                aligned[(index,)] = [["tt.divisibility", 16]]
    signature = {name: signature.get(name, "constexpr") for name in names}
    constants = {(names.index(name),): value for name, value in fixed.items()}
    try:
        made = triton.compile(
            ASTSource(kernel.function, signature, constants, aligned),
            target=GPUTarget("cuda", capability, _WARP),
            options=dict(kernel.options),
        )
        facts = made.metadata
        given = sum(kind != "constexpr" for kind in signature.values())
        entry = re.search(r"\.entry\s+\w+\s*\((.*?)\)", made.asm["ptx"], re.DOTALL)
        parameters = entry[1].count(".param") if entry else given
    except Exception as error:  # Triton, LLVM and ptxas share no base
        raise KernelCompileError(
            f"Triton cannot compile {kernel.function.__name__} for compute capability {capability / 10:.1f}"
        ) from error
    if facts.global_scratch_size or getattr(facts, "profile_scratch_size", 0):
        raise KernelCompileError(f"{facts.name}: Triton wants scratch memory, and none is provided here")
    return CompiledKernel(
        made.asm["cubin"], facts.name, facts.num_warps * _WARP, facts.shared, parameters - given
    )
