"""Describes a person by the colours of body parts, which tell people of one video apart, and by the face.

The colours are histograms of CIE Lab in three bands from the crown down, for hair and face, the upper body and the
lower body. They are smoothed over neighbouring colours, so that noise and small changes of light do not matter. A face
is the mean of vectors that are close for pictures of the same one. There are no names.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple, Self

import cv2
import numpy as np
import numpy.typing as npt

_SHAPE: Final = (8, 12, 12)
"""Bins of L, a and b."""
_CODES: Final = 8 * 12 * 12
_CHROMA = 48
"""Limit of a and b on either side of 0; few things in a video exceed it."""
_BANDS: Final = (0.2, 0.6)
"""Start of the upper and of the lower body, as shares of the height from the crown."""
_FLOOR = 0.02 / _CODES
"""Minimum likelihood of a colour, also of one that was never seen."""

_LEVELS: Final = np.arange(256)
_LIGHT_CODE: Final = (_LEVELS * _SHAPE[0] // 256 * _SHAPE[1] * _SHAPE[2]).astype(np.int16)
_CHROMA_BIN: Final = (
    ((_LEVELS - 128 + _CHROMA) * _SHAPE[1] // (2 * _CHROMA)).clip(0, _SHAPE[1] - 1).astype(np.int16)
)
_A_CODE: Final = _CHROMA_BIN * np.int16(_SHAPE[2])

Codes = npt.NDArray[np.int16]
FloatMap = npt.NDArray[np.float32]


def color_codes(rgb: npt.NDArray[np.uint8]) -> Codes:
    """The colour of each cell as one number.

    Args:
        rgb: uint8 [h, w, 3].

    Returns:
        int16 [h, w].
    """
    lab: Any = cv2.cvtColor(rgb, cv2.COLOR_RGB2Lab)  # L 0..255, a and b around 128
    codes: Codes = _LIGHT_CODE[lab[..., 0]] + _A_CODE[lab[..., 1]] + _CHROMA_BIN[lab[..., 2]]
    return codes


class Appearance:
    """Colours of a person's parts, learned frame by frame.

    Args:
        counts: float32 [3, codes], the colours counted so far; nothing when omitted.
    """

    def __init__(self, counts: FloatMap | None = None) -> None:
        self.counts: FloatMap = np.zeros((len(_BANDS) + 1, _CODES), np.float32) if counts is None else counts
        self._smooth: FloatMap | None = None
        self._likely: FloatMap | None = None

    def copy(self) -> Self:
        """Return an independent copy."""
        return type(self)(self.counts.copy())

    def learn(
        self, codes: Codes, mask: FloatMap, *, span: tuple[int, int] | None = None, keep: float = 0.97
    ) -> None:
        """Learn from another frame of the person.

        Args:
            codes: int16 [h, w], from ``color_codes``.
            mask: float32 [h, w], 0..1: the person's presence.
            span: Rows from the crown to the feet; the mask's when omitted.
            keep: Weight of the earlier observations.
        """
        rows = np.flatnonzero(mask.max(axis=1) > 0.5)
        if not len(rows):
            return
        self.counts *= keep
        self._smooth = self._likely = None
        top, bottom = int(rows[0]), int(rows[-1]) + 1
        bands = _bands(mask.shape[0], *(span or (top, bottom)))
        weights = mask * (mask > 0.5)
        seen = np.bincount(
            (bands[:, None] * _CODES + codes)[top:bottom].ravel(),
            weights=weights[top:bottom].ravel(),
            minlength=self.counts.size,
        ).reshape(self.counts.shape)
        self.counts += (seen / max(float(seen.sum()), 1.0)).astype(np.float32)

    def join(self, other: Appearance, *, weight: float = 1.0) -> None:
        """Merge the observations of another appearance of the same person."""
        self.counts = self.counts + weight * other.counts
        self._smooth = self._likely = None

    @property
    def is_blank(self) -> bool:
        """True until something was learned."""
        return not self.counts.any()

    def log_likelihood(self, codes: Codes, span: tuple[int, int], *, top: int = 0) -> FloatMap:
        """Log-likelihood of each cell's colour for this person, as a density over colours.

        Args:
            codes: int16 [h, w].
            span: Rows at which the person begins and ends.
            top: Row of the first row of ``codes``.

        Returns:
            float32 [h, w].
        """
        if self._likely is None:
            parts, whole = self._densities()
            self._likely = np.log(np.float32(0.5) * (parts + whole) + np.float32(_FLOOR))
        bands = _bands(codes.shape[0], span[0] - top, span[1] - top)
        return self._likely.take(bands[:, None] * _CODES + codes)

    def similarity(self, other: Appearance) -> float:
        """Similarity, 0 to 1, from Bhattacharyya coefficients of the whole, and of parts that both have."""
        own_parts, own = self._densities()
        other_parts, others = other._densities()
        whole = float(np.sqrt(own * others).sum())
        weights = np.minimum(self.counts.sum(axis=1), other.counts.sum(axis=1))
        parts = np.sqrt(own_parts * other_parts).sum(axis=1)
        return 0.5 * whole + 0.5 * float((parts * weights).sum() / max(float(weights.sum()), 1e-6))

    def _densities(self) -> tuple[FloatMap, FloatMap]:
        """Smoothed densities of the parts [3, codes] and of the whole [codes]."""
        if self._smooth is None:
            cubes = self.counts.reshape(-1, *_SHAPE)
            for axis in (1, 2, 3):
                padded = np.pad(cubes, [(1, 1) if at == axis else (0, 0) for at in range(4)], mode="edge")
                low, high = (np.take(padded, range(at, at + cubes.shape[axis]), axis) for at in (0, 2))
                cubes = 0.5 * cubes + 0.25 * (low + high)
            smooth = cubes.reshape(self.counts.shape)
            self._smooth = np.concatenate([smooth, smooth.sum(axis=0, keepdims=True)])
            self._smooth /= np.maximum(self._smooth.sum(axis=1, keepdims=True), 1e-6)
        return self._smooth[:-1], self._smooth[-1]


def _bands(height: int, top: int, bottom: int) -> npt.NDArray[np.int64]:
    """The body band of each row."""
    place = (np.arange(height) - top) / max(bottom - top, 1)
    return np.digitize(place, _BANDS)


class SeenFace(NamedTuple):
    """A face in a frame; positions are in cells."""

    left: float
    top: float
    width: float
    height: float
    description: FloatMap | None = None
    """Vector from ``FaceDescriptor``, float32 [128]; None for a face that tells little about identity."""


class FaceLooks:
    """The mean description of a person's face."""

    def __init__(self) -> None:
        self._total: FloatMap = np.zeros(128, np.float32)
        self._count = 0

    def learn(self, description: FloatMap) -> None:
        """Learn from another picture of the face."""
        self._total = self._total + description
        self._count += 1

    def join(self, other: FaceLooks) -> None:
        """Merge the observations of another description of the same face."""
        self._total = self._total + other._total
        self._count += other._count

    @property
    def is_blank(self) -> bool:
        """True until something was learned."""
        return not self._count

    def distance(self, other: FaceLooks) -> float:
        """Distance to another face; neither may be blank."""
        return float(np.linalg.norm(self._total / self._count - other._total / other._count))
