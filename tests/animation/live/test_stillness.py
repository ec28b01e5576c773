"""Tests of when a driver counts as still."""

from __future__ import annotations

import numpy as np

from vitascope.animation.live.session import similarity


def test_similarity_is_one_for_the_same_and_falls_with_the_strongest_tile() -> None:
    picture = np.full((64, 64, 3), 100, np.uint8)
    assert similarity(picture, picture) == 1
    blink = picture.copy()
    blink[8:16, 8:16] = 110
    assert similarity(picture, blink) == 0
    faint = picture.copy()
    faint[0:8, 0:8] = 101
    assert 0.7 < similarity(picture, faint) < 0.9
