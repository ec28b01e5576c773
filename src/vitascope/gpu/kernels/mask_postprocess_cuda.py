"""Launch of ``mask_postprocess.cu`` and ``morphology.cu`` for a network's scores."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np

from vitascope.gpu.kernels.cuda_module import cuda_kernel, nvtx_range
from vitascope.gpu.kernels.mask_postprocess import MAX_SIGMA, MaskSteps, vote_weights
from vitascope.gpu.kernels.morphology_cuda import launch_morphology

__all__ = ["launch_postprocess_mask"]

# As in mask_postprocess.cu.
_THREADS = 128
_LANES = 4
_TILE, _TILE_WARPS = 32, 8
_MAX_RADIUS = math.ceil(3 * MAX_SIGMA) + 1
_MOST_SHARED_BYTES = 48 << 10  # a block's, without asking for more
_GAUSSIAN = np.dtype([("radius", "i4"), ("weight", "u2", 2 * _MAX_RADIUS + 1), ("unused", "u2")])


def launch_postprocess_mask(scores: Any, steps: MaskSteps, *, previous: Any, out: Any) -> Any:
    """Run the kernels on the current CuPy stream; arguments and result as in ``postprocess_mask``.

    Raises:
        KernelCompileError: A CUDA source could not be built for this GPU.
    """
    import cupy

    with nvtx_range("mask_postprocess"):
        mask = _decide(scores, steps, out=None if previous is not None else out)
        for radius, erodes_first in ((steps.open_px, True), (steps.close_px, False)):
            if radius:
                for erode in (erodes_first, not erodes_first):
                    mask = launch_morphology(mask, radius, shape="disc", erode=erode)
        if steps.smoothing_sigma > 0:
            mask = _smooth(mask, steps)
        if previous is not None:
            target = cupy.empty_like(mask) if out is None else out
            _kernel("fade")(
                (math.ceil(mask.size / _THREADS),),
                (_THREADS,),
                (mask, previous, target, np.int64(mask.size), np.float32(steps.ema)),
            )
            return target
        if out is not None and mask is not out:
            cupy.copyto(out, mask)
            return out
    return mask


def _decide(scores: Any, steps: MaskSteps, *, out: Any) -> Any:
    import cupy

    count, classes, height, width = scores.shape
    pixels, itemsize = height * width, scores.dtype.itemsize
    shared_bytes = _THREADS * classes * itemsize if steps.kind == "argmax" else 0
    channels_last = _is_channels_last(scores) and shared_bytes <= _MOST_SHARED_BYTES
    if not channels_last:
        scores = cupy.ascontiguousarray(scores)
    mask = cupy.empty((count, height, width), cupy.uint8) if out is None else out
    if channels_last:
        has_whole_vectors = scores.data.ptr % 16 == 0 and pixels * classes * itemsize % 16 == 0
    else:
        has_whole_vectors = (
            pixels % _LANES == 0
            and scores.data.ptr % (_LANES * itemsize) == 0
            and mask.data.ptr % _LANES == 0
        )
    kernel = _kernel(
        steps.kind,
        SCORE="float" if scores.dtype == np.float32 else "__half",
        VECTORS=int(has_whole_vectors),
        CHANNELS_LAST=int(channels_last),
    )
    chosen = -1 if steps.class_index is None else steps.class_index
    extra = (np.float32(steps.threshold),) if steps.kind == "threshold" else ()
    lanes = _LANES if has_whole_vectors and not channels_last else 1
    kernel(
        (math.ceil(pixels / lanes / _THREADS), count),
        (_THREADS,),
        (scores, mask, np.int64(pixels), np.int32(classes), np.int32(chosen), *extra),
        shared_mem=shared_bytes if channels_last else 0,
    )
    return mask


def _is_channels_last(scores: Any) -> bool:
    """Whether [N, C, h, w] lies as [N, h, w, C] in memory, as PyTorch's ``channels_last`` has it."""
    count, classes, height, width = scores.shape
    itemsize = scores.dtype.itemsize
    pixel_bytes = classes * itemsize
    first, *inner = scores.strides
    return (
        not scores.flags.c_contiguous
        and inner == [itemsize, width * pixel_bytes, pixel_bytes]
        and (count == 1 or first == height * width * pixel_bytes)
    )


def _smooth(mask: Any, steps: MaskSteps) -> Any:
    import cupy

    count, height, width = mask.shape
    gaussian = _gaussian(steps.smoothing_sigma)
    side = _TILE + 2 * int(gaussian["radius"][0])
    smooth = cupy.empty_like(mask)
    _kernel("vote")(
        (math.ceil(width / _TILE), math.ceil(height / _TILE), count),
        (32, _TILE_WARPS),
        (
            mask,
            smooth,
            np.int32(height),
            np.int32(width),
            np.int32(not steps.is_class_map),
            gaussian,
        ),
        shared_mem=-(-side * side // 4) * 4 + side * _TILE * 2,
    )
    return smooth


def _kernel(name: str, **defines: str | int) -> Any:
    return cuda_kernel("mask_postprocess.cu", name, **defines)


@lru_cache(maxsize=64)
def _gaussian(sigma: float) -> Any:
    weights = vote_weights(sigma)
    gaussian = np.zeros(1, _GAUSSIAN)
    gaussian["radius"] = len(weights) // 2
    gaussian["weight"][0, : len(weights)] = weights
    return gaussian
