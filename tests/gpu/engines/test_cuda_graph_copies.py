"""Check that copies in recorded calls are merged."""

from __future__ import annotations

import torch

from vitascope.gpu.engines.torch_engine import same_dtypes


def test_tensors_of_one_dtype_are_one_copy() -> None:
    tensors = [torch.zeros(2, dtype=kind) for kind in (torch.half, torch.float, torch.half, torch.uint8)]
    assert same_dtypes(tensors) == ((0, 2), (1,), (3,))
    assert same_dtypes([]) == ()
