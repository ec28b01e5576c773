"""PyTorch's global numeric switches, set for the length of a block."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

__all__ = ["torch_flags"]


@contextmanager
def torch_flags(*, allow_tf32: bool, cudnn_benchmark: bool, cudnn_deterministic: bool) -> Iterator[None]:
    """Set the switches, and put back what was there.

    They are the process's: whatever another thread launches meanwhile sees them too.

    Args:
        allow_tf32: FP32 convolutions and matrix products may round their inputs to TF32's 10 bits of mantissa.
        cudnn_benchmark: cuDNN times its algorithms when it first meets a shape, and takes the fastest.
        cudnn_deterministic: cuDNN uses only algorithms that give the same bits every time.
    """
    matmul = torch.backends.cuda.matmul
    before = matmul.allow_tf32
    with torch.backends.cudnn.flags(
        enabled=True, benchmark=cudnn_benchmark, deterministic=cudnn_deterministic, allow_tf32=allow_tf32
    ):
        matmul.allow_tf32 = allow_tf32
        try:
            yield
        finally:
            matmul.allow_tf32 = before
