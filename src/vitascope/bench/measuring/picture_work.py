"""How much the two passes over the picture have to compute and to move, counted from their formulas.

::

    preprocess   reads a frame's planes, writes the network's picture        kernels/preprocess.py
    composite    reads the planes and the coefficients, writes the planes    kernels/guided.py, kernels/composite.py

FLOPs of ``preprocess``: a multiply-add for each sample read, another for each column of each row that is left, and for
each sample of the network's picture three of the colour matrix for each of R, G and B, with bias, mean and deviation.
FLOPs of ``composite``, for each luma sample: gain and offset from the row above (2), grey (6), alpha (2), the blend
(3); for each chroma sample: the mean of four alphas (4) and the blend (3). A blurred background is not counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from vitascope.bench.results import PartWork

__all__ = ["PictureSizes", "picture_work"]

_LUMA_FLOPS, _CHROMA_FLOPS = 2 + 6 + 2 + 3, 4 + 3
_NETWORK_SAMPLE_FLOPS = 3 * (3 * 2 + 1 + 2)
_COEFFICIENT_PLANES = 2
"""Gain and offset of alpha; the foreground's are read only where the old background's colour is taken out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PictureSizes:
    """Sizes of one frame's way."""

    frame_bytes: int
    """Bytes of its planes."""
    picture_bytes: int
    """Bytes of the planes that are made of it."""
    height: int
    width: int
    network_size: tuple[int, int]
    """(height, width) of one eye's picture."""
    eye_count: int
    network_itemsize: int
    """Bytes of a sample of the network's picture, and of a coefficient."""


def picture_work(
    sizes: PictureSizes, *, device: Literal["cpu", "cuda"], kind: str
) -> tuple[PartWork, PartWork]:
    """Work of both passes.

    Args:
        sizes: Of the frame and the network's picture.
        device: Where the passes run.
        kind: Of the output, for example ``key``.
    """
    luma = sizes.height * sizes.width
    samples = luma * 3 // 2
    small = sizes.network_size[0] * sizes.network_size[1] * sizes.eye_count
    rows_left = min(sizes.network_size[0] / sizes.height, 1.0)
    before, behind = ("stage/preprocess", "stage/postprocess")
    if device == "cuda":
        before, behind = ("gpu/preprocess", "gpu/composite")
    return (
        PartWork(
            part="preprocess",
            device=device,
            precision="fp32",
            row=before,
            flops=2 * samples * (1 + rows_left) + _NETWORK_SAMPLE_FLOPS * small,
            nbytes=sizes.frame_bytes + 3 * small * sizes.network_itemsize,
        ),
        PartWork(
            part="composite",
            device=device,
            precision="fp32",
            row=behind,
            flops=None if kind == "blur" else _LUMA_FLOPS * luma + _CHROMA_FLOPS * (samples - luma),
            nbytes=sizes.frame_bytes
            + _COEFFICIENT_PLANES * small * sizes.network_itemsize
            + sizes.picture_bytes,
            note="the blur is not counted" if kind == "blur" else "",
        ),
    )
