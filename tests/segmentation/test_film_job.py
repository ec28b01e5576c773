"""Tests of the CPU's stages between decoder and encoder."""

from __future__ import annotations

import weakref
from types import SimpleNamespace

import pytest

from vitascope.segmentation.film_job import _Inferring


class Carrier:
    """Represents a frame with its matte."""


@pytest.mark.parametrize("is_end", [False, True])
def test_a_window_holds_no_frame_that_was_handed_on(is_end):
    """Drawn frames also hold their colours: gigabytes for large eyes."""
    made = []

    def window(*_):
        carriers = [Carrier() for _ in range(5)]
        made.extend(weakref.ref(one) for one in carriers)
        return carriers

    job = SimpleNamespace(
        matting=SimpleNamespace(find_cuts=lambda batch: batch),
        infer=window,
        infer_rest=window if is_end else list,
    )
    inferring = _Inferring(job, size=1)
    results = iter(inferring.flush() if is_end else inferring.accumulate(None))
    order = []
    for result in results:
        order.append(next(at for at, one in enumerate(made) if one() is result))
        del result
        assert [one() is None for one in made] == [at <= order[-1] for at in range(5)]
    assert order == [0, 1, 2, 3, 4]
