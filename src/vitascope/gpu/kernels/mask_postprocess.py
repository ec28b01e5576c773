"""Turn a segmentation network's scores into masks: decide, clean up, smooth, average over time."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import cv2
import numpy as np
import numpy.typing as npt

from vitascope.gpu.kernels.cuda_module import cuda_kernel, is_on_gpu, nvtx_range
from vitascope.gpu.kernels.morphology import MAX_RADIUS_PX, dilate_disc, erode_disc, launch_morphology

MaskKind = Literal["argmax", "threshold"]

MAX_CLASSES = 256
"""A class map has one byte per pixel."""

MAX_SIGMA = 21.0
"""Largest sigma: three deviations to each side fit the GPU's tile."""

WEIGHT_BITS = 12
"""Bits of a Gaussian weight: a window's votes, products over both axes, fit 24 bits, which float32 represents
exactly."""


@dataclass(frozen=True, slots=True)
class MaskSteps:
    """Parameters of the steps; validated by ``postprocess_mask``."""

    kind: MaskKind
    class_index: int | None
    threshold: float
    smoothing_sigma: float
    open_px: int
    close_px: int
    ema: float

    @property
    def is_class_map(self) -> bool:
        """Whether the result is a class map rather than a mask."""
        return self.kind == "argmax" and self.class_index is None


def postprocess_mask(
    scores: npt.NDArray[Any],
    *,
    kind: MaskKind = "argmax",
    class_index: int | None = None,
    threshold: float = 0.5,
    smoothing_sigma: float = 0.0,
    open_px: int = 0,
    close_px: int = 0,
    previous: npt.NDArray[np.uint8] | None = None,
    ema: float = 0.0,
    out: npt.NDArray[np.uint8] | None = None,
) -> npt.NDArray[np.uint8]:
    """Turn a network's scores into a class map, or the mask of one class.

    ==============================  ======================================================================
    result                          when
    ==============================  ======================================================================
    class map, values 0..C - 1      ``argmax`` without a class: the class with the largest score, the first
                                    of equals
    mask, values 0..255             ``argmax`` with a class: 255 where that class wins
    mask, values 0..255             ``threshold``: 255 where the class's score is at least ``threshold``
    ==============================  ======================================================================

    Then, in this order: opening and closing with discs (masks only), a Gaussian (it softens a mask; in a
    class map each pixel takes the class with the most Gaussian-weighted votes around it, the lowest on ties),
    and the moving average with the previous result (masks only).

    Runs on the scores' device: NumPy on the CPU; CuPy on the GPU, on the current stream. Results are
    bit-for-bit equal: the Gaussian's weights are multiples of 1/4096.

    Args:
        scores: float16 or float32 [N, C, h, w]: logits or probabilities, C up to 256 for ``argmax``.
            C-contiguous, or channels-last as in PyTorch (``argmax``: up to 96 classes of float32 and 192 of
            float16); other layouts cost a copy.
        kind: How scores become decisions.
        class_index: Class to select. Optional for ``threshold`` when C is 1.
        threshold: Lowest score of a selected pixel, in the scores' own units; ``threshold`` only.
        smoothing_sigma: Standard deviation of the Gaussian in pixels of the scores, 0 (none) to 21.
        open_px: Radius of the opening disc, which removes specks, 0 to 256.
        close_px: Radius of the closing disc, which fills holes, 0 to 256.
        previous: uint8 [N, h, w]: result of the previous frame, on the scores' device; None for the first
            frame, which is not averaged.
        ema: Weight of ``previous``, 0 (none) to below 1.
        out: Output array, uint8 [N, h, w], C-contiguous; may be ``previous``; a new array if omitted.

    Returns:
        uint8 [N, h, w], C-contiguous, on the scores' device.

    Raises:
        ValueError: Shapes, dtypes or numbers do not match, or a step does not apply to class maps.
        KernelCompileError: A CUDA source could not be built for this GPU.
    """
    if kind == "threshold" and class_index is None and scores.ndim == 4 and scores.shape[1] == 1:
        class_index = 0
    steps = MaskSteps(kind, class_index, threshold, smoothing_sigma, open_px, close_px, ema)
    _check_steps(steps)
    _check_scores(scores, steps)
    shape = (scores.shape[0], *scores.shape[2:])
    for name, array in (("previous", previous), ("out", out)):
        if array is not None and (
            array.shape != shape or array.dtype != np.uint8 or not array.flags["C_CONTIGUOUS"]
        ):
            raise ValueError(f"{name} is {array.dtype} {array.shape}, expected C-contiguous uint8 {shape}")
    if ema == 0:
        previous = None
    mask: npt.NDArray[np.uint8]
    if is_on_gpu(scores):
        mask = _launch_postprocess_mask(scores, steps, previous=previous, out=out)
        return mask
    mask = _decide(scores, steps)
    for picture in mask:
        if open_px:
            picture[...] = dilate_disc(erode_disc(picture, open_px), open_px)
        if close_px:
            picture[...] = erode_disc(dilate_disc(picture, close_px), close_px)
        if smoothing_sigma > 0:
            picture[...] = (
                _vote(picture, smoothing_sigma) if steps.is_class_map else _soften(picture, smoothing_sigma)
            )
    if previous is not None:
        change = previous.astype(np.float32) - mask
        mask = np.rint(mask + np.float32(ema) * change).astype(np.uint8)
    if out is None:
        return mask
    out[...] = mask
    return out


@lru_cache(maxsize=64)
def vote_weights(sigma: float) -> npt.NDArray[np.int64]:
    """Weights of the Gaussian along one axis, int64 [2 radius + 1], symmetric; they sum to 4096."""
    radius = math.ceil(3 * sigma)
    share = np.exp(-0.5 * (np.arange(-radius, radius + 1) / sigma) ** 2)
    weights: npt.NDArray[np.int64] = np.rint(share / share.sum() * (1 << WEIGHT_BITS)).astype(np.int64)
    weights[radius] += (1 << WEIGHT_BITS) - weights.sum()
    return weights


def _check_scores(scores: npt.NDArray[Any], steps: MaskSteps) -> None:
    if scores.ndim != 4 or scores.size == 0 or scores.dtype not in (np.float16, np.float32):
        raise ValueError(
            f"scores are {scores.dtype} {scores.shape}, expected float16 or float32 [N, C, h, w]"
        )
    classes = scores.shape[1]
    if steps.kind == "argmax" and classes > MAX_CLASSES:
        raise ValueError(f"scores have {classes} classes, expected at most {MAX_CLASSES}")
    if steps.class_index is None:
        if steps.kind == "threshold":
            raise ValueError(f"threshold needs a class index: scores have {classes} classes")
    elif not 0 <= steps.class_index < classes:
        raise ValueError(f"class index is {steps.class_index}, expected 0 to {classes - 1}")


def _check_steps(steps: MaskSteps) -> None:
    if steps.kind not in ("argmax", "threshold"):
        raise ValueError(f"kind is {steps.kind!r}, expected argmax or threshold")
    if math.isnan(steps.threshold):
        raise ValueError("threshold is nan, expected a number")
    if not 0 <= steps.smoothing_sigma <= MAX_SIGMA:
        raise ValueError(f"smoothing_sigma is {steps.smoothing_sigma}, expected 0 to {MAX_SIGMA}")
    for name, radius in (("open_px", steps.open_px), ("close_px", steps.close_px)):
        if not 0 <= radius <= MAX_RADIUS_PX:
            raise ValueError(f"{name} is {radius}, expected 0 to {MAX_RADIUS_PX}")
    if not 0 <= steps.ema < 1:
        raise ValueError(f"ema is {steps.ema}, expected 0 to below 1")
    if steps.is_class_map and (steps.open_px or steps.close_px or steps.ema):
        raise ValueError(
            "a class map cannot have opening, closing or a moving average; name a class with class_index"
        )


def _decide(scores: npt.NDArray[Any], steps: MaskSteps) -> npt.NDArray[np.uint8]:
    if steps.kind == "threshold":
        shown = scores[:, steps.class_index].astype(np.float32) >= np.float32(steps.threshold)
    else:
        winners: npt.NDArray[np.uint8] = scores.argmax(axis=1).astype(np.uint8)
        if steps.class_index is None:
            return winners
        shown = winners == steps.class_index
    mask: npt.NDArray[np.uint8] = shown.astype(np.uint8) * np.uint8(255)
    return mask


def _votes(shown: npt.NDArray[np.bool_], sigma: float) -> npt.NDArray[Any]:
    """Votes around each pixel, integers up to 2^24 in float32."""
    weights = vote_weights(sigma).astype(np.float32)
    return cv2.sepFilter2D(
        shown.astype(np.float32), cv2.CV_32F, weights, weights, borderType=cv2.BORDER_REPLICATE
    )


def _vote(classes: npt.NDArray[np.uint8], sigma: float) -> npt.NDArray[np.uint8]:
    present = np.unique(classes)
    winners: npt.NDArray[np.uint8] = present[
        np.argmax([_votes(classes == index, sigma) for index in present], axis=0)
    ]
    return winners


def _soften(mask: npt.NDArray[np.uint8], sigma: float) -> npt.NDArray[np.uint8]:
    votes = _votes(mask > 0, sigma).astype(np.int64)
    soft: npt.NDArray[np.uint8] = ((votes * 255 + (1 << 2 * WEIGHT_BITS - 1)) >> 2 * WEIGHT_BITS).astype(
        np.uint8
    )
    return soft


# Same as in mask_postprocess.cu.
_THREADS = 128
_LANES = 4
_TILE, _TILE_WARPS = 32, 8
_MAX_RADIUS = math.ceil(3 * MAX_SIGMA) + 1
_MOST_SHARED_BYTES = 48 << 10  # per block, without opting in to more
_GAUSSIAN = np.dtype([("radius", "i4"), ("weight", "u2", 2 * _MAX_RADIUS + 1), ("unused", "u2")])


def _launch_postprocess_mask(scores: Any, steps: MaskSteps, *, previous: Any, out: Any) -> Any:
    """Run the kernels on the current CuPy stream; takes and returns the same as ``postprocess_mask``.

    Raises:
        KernelCompileError: A CUDA source could not be built for this GPU.
    """
    import cupy

    with nvtx_range("mask_postprocess"):
        mask = _decide_cuda(scores, steps, out=None if previous is not None else out)
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


def _decide_cuda(scores: Any, steps: MaskSteps, *, out: Any) -> Any:
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
    """Whether [N, C, h, w] is stored as [N, h, w, C], PyTorch's ``channels_last``."""
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
