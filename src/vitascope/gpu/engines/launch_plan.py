"""A network as a list of kernel launches: recorded once for one set of sizes, kept as JSON, replayed from it.

Code that would compute with arrays works with descriptions of them instead, and each kernel that it would launch is
noted with its grid and arguments. What is known then is everything that a replay needs: which memory each launch reads
and writes, when it is last read, and so where it can lie. Recording needs neither a GPU nor a library of one,
and Triton compiles the kernels without either.
"""

from __future__ import annotations

import math
import re
from collections.abc import Hashable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final, Generic, Literal, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from vitascope.device import available_cores
from vitascope.errors import KernelCompileError, MissingDependencyError

ALIGNMENT_BYTES: Final = 256
"""Each array begins at a multiple of it, as ``cudaMalloc`` gives memory."""

KernelT = TypeVar("KernelT", bound=Hashable)


@dataclass(eq=False, slots=True)
class _Block:
    """Memory that belongs to one array and its views."""

    size_bytes: int
    is_weight: bool = False
    is_input: bool = False
    is_output: bool = False
    offset: int = 0
    """Among the weights, where they lie; among the rest, once the plan is made."""
    first: int = -1
    """The first launch that touches it."""
    last: int = -1


@dataclass(frozen=True, eq=False, slots=True)
class Array:
    """A C-contiguous array that a recording speaks of."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    _block: _Block
    _begin: int = 0

    @property
    def size_bytes(self) -> int:
        """Bytes of its elements."""
        return math.prod(self.shape) * self.dtype.itemsize

    def view(self, *shape: int) -> Array:
        """The same elements in another shape."""
        if math.prod(shape) != math.prod(self.shape):
            raise ValueError(f"{list(self.shape)} cannot be seen as {list(shape)}")
        return Array(shape, self.dtype, self._block, self._begin)

    def __getitem__(self, index: int) -> Array:
        """One element of the first axis."""
        if not 0 <= index < self.shape[0]:
            raise IndexError(f"{index} of {self.shape[0]}")
        part = self.size_bytes // self.shape[0]
        return Array(self.shape[1:], self.dtype, self._block, self._begin + index * part)


class WeightBlock:
    """The constants of a network, one behind the other, in the order in which they are first asked for."""

    def __init__(self) -> None:
        self._arrays: dict[Hashable, Array] = {}
        self._contents: list[npt.NDArray[Any]] = []
        self._end = 0

    def array(self, name: Hashable, make: Any) -> Array:
        """The constant of a name.

        Args:
            name: Tells it from others.
            make: Called without arguments when the name is new; returns its NumPy array.
        """
        known = self._arrays.get(name)
        if known is None:
            content = np.ascontiguousarray(make())
            block = _Block(content.nbytes, is_weight=True, offset=self._end)
            known = self._arrays[name] = Array(content.shape, content.dtype, block)
            self._contents.append(content)
            self._end += _aligned(content.nbytes)
        return known

    def content(self) -> npt.NDArray[np.uint8]:
        """All constants, uint8, each at a multiple of ``ALIGNMENT_BYTES``."""
        whole = np.zeros(self._end, np.uint8)
        begin = 0
        for content in self._contents:
            whole[begin : begin + content.nbytes] = content.reshape(-1).view(np.uint8)
            begin += _aligned(content.nbytes)
        return whole


Argument: TypeAlias = tuple[Literal["memory", "weights", "int32"], int]
"""An address, as an offset into the plan's memory or the weights, or a number."""


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch of a plan."""

    kernel: int
    """Its place in the plan's list of kernels."""
    grid: tuple[int, int, int]
    arguments: tuple[Argument, ...]


@dataclass(frozen=True, slots=True)
class ArrayPlace:
    """Place of an input or an output in the plan's memory."""

    offset: int
    shape: tuple[int, ...]
    dtype: str
    """NumPy's name of it."""


@dataclass(frozen=True)
class LaunchPlan(Generic[KernelT]):
    """Everything that a replay needs, except the kernels' code and the weights."""

    kernels: tuple[KernelT, ...]
    launches: tuple[Launch, ...]
    memory_bytes: int
    inputs: Mapping[str, ArrayPlace]
    outputs: Mapping[str, ArrayPlace]

    def to_json(self) -> dict[str, Any]:
        """All but the kernels, as JSON holds it."""
        return {
            "launches": [
                [one.kernel, list(one.grid), [list(argument) for argument in one.arguments]]
                for one in self.launches
            ],
            "memory_bytes": self.memory_bytes,
            **{
                role: {name: [at.offset, list(at.shape), at.dtype] for name, at in places.items()}
                for role, places in (("inputs", self.inputs), ("outputs", self.outputs))
            },
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any], kernels: Sequence[KernelT]) -> LaunchPlan[KernelT]:
        """Read what ``to_json`` wrote.

        Raises:
            ValueError, TypeError, KeyError: The document is not a plan's.
        """
        launches = tuple(
            Launch(int(kernel), _triple(grid), tuple(_argument(*argument) for argument in arguments))
            for kernel, grid, arguments in document["launches"]
        )
        if any(not 0 <= launch.kernel < len(kernels) for launch in launches):
            raise ValueError("a launch of a kernel that is not in the plan")
        inputs, outputs = (
            {
                str(name): ArrayPlace(int(offset), tuple(map(int, shape)), np.dtype(dtype).name)
                for name, (offset, shape, dtype) in document[role].items()
            }
            for role in ("inputs", "outputs")
        )
        return cls(tuple(kernels), launches, int(document["memory_bytes"]), inputs, outputs)


class PlanRecorder(Generic[KernelT]):
    """Records launches, and places each array where nothing lies that is still read."""

    def __init__(self) -> None:
        self._kernels: dict[KernelT, int] = {}
        self._launches: list[tuple[int, tuple[int, int, int], tuple[Array | int, ...]]] = []
        self._blocks: list[_Block] = []
        self._inputs: dict[str, Array] = {}
        self._outputs: dict[str, Array] = {}

    def input(self, name: str, shape: Sequence[int], dtype: npt.DTypeLike) -> Array:
        """Add an array that exists before the first launch."""
        made = self._inputs[name] = self.empty(shape, dtype)
        made._block.is_input = True
        return made

    def empty(self, shape: Sequence[int], dtype: npt.DTypeLike) -> Array:
        """An array whose content is unknown until a launch writes it."""
        made = np.dtype(dtype)
        block = _Block(math.prod(shape) * made.itemsize)
        self._blocks.append(block)
        return Array(tuple(shape), made, block)

    def output(self, name: str, array: Array) -> None:
        """Keep an array until after the last launch."""
        array._block.is_output = True
        self._outputs[name] = array

    def launch(self, kernel: KernelT, grid: Sequence[int], arguments: Sequence[Array | int]) -> None:
        """Note a launch.

        Args:
            kernel: Equal ones are one.
            grid: One to three numbers of blocks.
            arguments: Arrays and int32 numbers, in the kernel's order.
        """
        at = len(self._launches)
        for argument in arguments:
            if isinstance(argument, Array):
                block = argument._block
                block.first = at if block.first < 0 else block.first
                block.last = at
            elif not -(2**31) <= argument < 2**31:
                raise ValueError(f"{argument} is not an int32")
        number = self._kernels.setdefault(kernel, len(self._kernels))
        self._launches.append((number, _triple([*grid, 1, 1][:3]), tuple(arguments)))

    def plan(self) -> LaunchPlan[KernelT]:
        """Build the plan of all that was recorded, with a place for each array."""
        size = self._place_blocks()

        def argument(given: Array | int) -> Argument:
            if isinstance(given, int):
                return "int32", given
            kind: Literal["weights", "memory"] = "weights" if given._block.is_weight else "memory"
            return kind, given._block.offset + given._begin

        def place(array: Array) -> ArrayPlace:
            return ArrayPlace(array._block.offset + array._begin, array.shape, array.dtype.name)

        return LaunchPlan(
            tuple(self._kernels),
            tuple(
                Launch(kernel, grid, tuple(map(argument, arguments)))
                for kernel, grid, arguments in self._launches
            ),
            size,
            {name: place(array) for name, array in self._inputs.items()},
            {name: place(array) for name, array in self._outputs.items()},
        )

    def _place_blocks(self) -> int:
        """Give each block its offset, the largest first, as low as those allow that live at the same time.

        Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net Inference", 2020: greedy by size.

        Returns:
            Bytes of the whole.
        """
        end = len(self._launches)

        def life(block: _Block) -> tuple[int, int]:
            return -1 if block.is_input else block.first, end if block.is_output else block.last

        placed: list[_Block] = []
        for block in sorted(self._blocks, key=lambda one: -one.size_bytes):
            first, last = life(block)
            offset = 0
            for other in placed:  # by offset
                begins, ends = life(other)
                if begins > last or ends < first:
                    continue
                if offset + block.size_bytes <= other.offset:
                    break
                offset = max(offset, other.offset + _aligned(other.size_bytes))
            block.offset = offset
            placed.append(block)
            placed.sort(key=lambda one: one.offset)
        return max((block.offset + _aligned(block.size_bytes) for block in self._blocks), default=0)


def _aligned(size_bytes: int) -> int:
    return -(-size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def _triple(grid: Sequence[Any]) -> tuple[int, int, int]:
    x, y, z = grid
    return int(x), int(y), int(z)


def _argument(kind: Any, value: Any) -> Argument:
    if kind not in ("memory", "weights", "int32"):
        raise ValueError(f"no argument is a {kind!r}")
    return kind, int(value)


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
            arguments: Its leading parameters.
            constants: The others, and Triton's options.
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
        kernels: All different.
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
