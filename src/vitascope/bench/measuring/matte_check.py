"""Whether a combination's mattes are right: the speed of wrong ones is worth nothing."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from vitascope.bench.results import CellKey
from vitascope.errors import VitascopeError

__all__ = ["CHECKED_FRAMES", "WrongMattesError", "alpha_error"]

CHECKED_FRAMES = 4
_MOST_ALPHA_ERROR = 0.02
"""Mean absolute difference of alpha to fp32 above which a combination is wrong."""
_PERSON_SHARE = (0.01, 0.9)
"""The person's share of the picture; outside, the network did not see the person, and mattes prove nothing."""


class WrongMattesError(VitascopeError):
    """A combination whose mattes are not those of fp32: its speed is worth nothing."""


def alpha_error(
    key: CellKey, expected: Sequence[npt.NDArray[np.float32]], alphas: Sequence[npt.NDArray[np.float32]]
) -> float:
    """Mean absolute difference, 0..1, of mattes to those in fp32 with one frame a call.

    Args:
        key: Whose mattes they are.
        expected: float32 [H, W] each.
        alphas: Of the same frames.

    Raises:
        WrongMattesError: It is too large, or the person was not seen.
    """
    if len(alphas) != len(expected):
        raise WrongMattesError(f"wrong output: {len(alphas)} mattes instead of {len(expected)}")
    error = float(np.mean([np.abs(one - other).mean() for one, other in zip(alphas, expected, strict=True)]))
    if not error <= _MOST_ALPHA_ERROR:
        raise WrongMattesError(
            f"wrong output: alpha differs by {error:.3f} on average from fp32 with one frame a call; "
            f"at most {_MOST_ALPHA_ERROR} is right"
        )
    share = float(np.mean([(alpha > 0.5).mean() for alpha in alphas]))
    low, high = _PERSON_SHARE
    if key.clip == "synthetic" and not low <= share <= high:
        raise WrongMattesError(
            f"wrong output: the network takes {share:.1%} of the synthetic film for a person"
        )
    return error
