"""A GPU of 1000 MiB whose driver, and CuPy's and PyTorch's allocators, count memory as the real ones do."""

from __future__ import annotations

import types

from fake_cupy import fake_cupy

MIB = 1 << 20
TOTAL = 1000 * MIB


class Block:
    """Memory from cudaMalloc, freed when it is dropped."""

    def __init__(self, gpu: FakeVram, size: int) -> None:
        self.size = size
        self.gpu = gpu
        if gpu.used + size > TOTAL:
            self.size = 0
            raise gpu.cupy.cuda.runtime.CUDARuntimeError("cudaErrorMemoryAllocation")
        gpu.used += size

    def __del__(self) -> None:
        self.gpu.used -= self.size


class FakePool:
    """CuPy's default pool: blocks are not split, and reused for their own size; at its limit it frees nothing."""

    def __init__(self, gpu: FakeVram) -> None:
        self.gpu = gpu
        self.idle: list[Block] = []
        self.total = 0
        self.limit = 0

    def malloc(self, size: int) -> Block:
        for number, block in enumerate(self.idle):
            if block.size == size:
                return self.idle.pop(number)
        if self.limit and self.total + size > self.limit:
            raise self.gpu.cupy.cuda.memory.OutOfMemoryError(
                f"Out of memory allocating {size:,} bytes (allocated so far: {self.total:,} bytes, "
                f"limit set to: {self.limit:,} bytes)."
            )
        self.total += size
        return Block(self.gpu, size)

    def free(self, block: Block) -> None:
        self.idle.append(block)

    def free_all_blocks(self) -> None:
        self.total -= sum(block.size for block in self.idle)
        self.idle.clear()

    def total_bytes(self) -> int:
        return self.total

    def set_limit(self, *, size: int) -> None:
        self.limit = size

    def get_limit(self) -> int:
        return self.limit


class FakeVram:
    """The whole GPU; ``others`` is what other processes use, ``torch_reserved`` what PyTorch holds."""

    def __init__(self) -> None:
        self.used = 0
        self.cupy = cupy = fake_cupy()
        self.pool = FakePool(self)
        self.allocate = self.pool.malloc
        self.torch_reserved = 0
        self.torch_fraction = 1.0
        cupy.get_default_memory_pool = lambda: self.pool
        cupy.cuda.set_allocator = lambda allocate: setattr(self, "allocate", allocate)
        cupy.cuda.Memory = lambda size: Block(self, size)
        cupy.cuda.runtime.memGetInfo = lambda: (TOTAL - self.used, TOTAL)
        cupy.cuda.runtime.getDevice = lambda: 0
        self.torch = types.SimpleNamespace(
            cuda=types.SimpleNamespace(
                is_initialized=lambda: True,
                memory_reserved=lambda _: self.torch_reserved,
                set_per_process_memory_fraction=lambda share, _: setattr(self, "torch_fraction", share),
            )
        )

    def take_as_torch(self, size: int) -> None:
        self.torch_reserved += size
        self.used += size
