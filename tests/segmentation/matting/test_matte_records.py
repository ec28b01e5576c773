"""Check that a stored matte refines to exactly the same alpha."""

from __future__ import annotations

import contextlib
import json
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pictures import random_frame
from vitascope.frames import PIXEL_FORMATS
from vitascope.gpu.kernels.guided import refine_alpha
from vitascope.gpu.kernels.region import Region
from vitascope.models.network import MatteEstimate
from vitascope.segmentation.matting.cache import DamagedRecordError, pack_estimates, unpack_estimates


def estimate_like_a_networks(seed, *, eyes=1, channels=1, size=(36, 64), dtype=np.float32):
    """Make a person in the middle with soft edges, and noise of a few thousandths everywhere."""
    rng = np.random.default_rng(seed)
    height, width = size
    y, x = np.mgrid[:height, :width]
    distance = 10 - np.hypot(y - height / 2, x - width / 2)
    gain = rng.normal(0, 0.01, (eyes, channels, *size)) + np.exp(-(distance**2) / 4)
    offset = 0.05 * distance * 4 + rng.normal(0, 0.01, gain.shape)
    return MatteEstimate(gain=gain.astype(dtype), offset=offset.astype(dtype))


def grey_frame(fmt, size, seed):
    """Make a grey frame with any brightness that its pixel format allows."""
    frame = random_frame(fmt, size, seed=seed)
    chroma = tuple(np.full_like(plane, 1 << (fmt.bit_depth - 1)) for plane in frame.planes[1:])
    low, high = 16 << (fmt.bit_depth - 8), 235 << (fmt.bit_depth - 8)
    return frame.with_planes((np.clip(frame.planes[0], low, high).astype(fmt.dtype), *chroma))


@pytest.mark.parametrize("name", ["yuv420p", "yuv420p10le"])
@given(seed=st.integers(0, 1000), dtype=st.sampled_from([np.float32, np.float16]))
def test_alpha_is_the_same_to_the_last_code(name, seed, dtype):
    estimate = estimate_like_a_networks(seed, dtype=dtype)
    (kept,) = unpack_estimates(pack_estimates([estimate]))
    assert kept.gain.dtype == kept.offset.dtype == dtype
    frame = grey_frame(PIXEL_FORMATS[name], (90, 160), seed)

    def refined(one):
        return refine_alpha(
            frame, regions=[Region(0, 0, 160, 90)], gain=one.gain[:, 0], offset=one.offset[:, 0]
        )

    assert np.array_equal(refined(estimate), refined(kept))


def test_what_is_plain_takes_no_room():
    estimates = [estimate_like_a_networks(n) for n in range(4)]
    plain = sum(one.gain.nbytes + one.offset.nbytes for one in estimates)
    assert pack_estimates(estimates).nbytes < plain / 3


def test_shapes_eyes_and_the_foreground_come_back():
    estimates = [
        estimate_like_a_networks(1, eyes=2, channels=4, dtype=np.float16),
        estimate_like_a_networks(2, size=(25, 31)),
    ]
    for one, other in zip(estimates, unpack_estimates(pack_estimates(estimates)), strict=True):
        assert one.gain.shape == other.gain.shape
        own = other.gain[:, -1] != 0
        assert own.any()
        for plane in range(one.gain.shape[1]):
            assert np.array_equal(one.gain[:, plane][own], other.gain[:, plane][own])


def test_a_matte_that_serves_again_is_kept_once():
    one, two = estimate_like_a_networks(1), estimate_like_a_networks(2)
    record = pack_estimates([one, one, two, one])
    assert record.nbytes < 1.1 * pack_estimates([one, two]).nbytes
    back = unpack_estimates(record)
    assert back[0] is back[1] is back[3]
    assert np.array_equal(back[2].offset, unpack_estimates(pack_estimates([two]))[0].offset)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"ab",
        struct.pack("<I", 99) + b"{",
        struct.pack("<I", 2) + b"{}",
        pytest.param(struct.pack("<I", 100_000) + b"[" * 100_000, id="nested"),
        *(
            struct.pack("<I", len(head)) + head
            for head in (
                json.dumps([{"same": 3}]).encode(),
                json.dumps([{"at": 0, "size": 9, "shape": [1, 1, 8, 8], "dtype": "<f4"}]).encode(),
                json.dumps([{"at": 0, "size": 9, "shape": [1], "dtype": "nonsense"}]).encode(),
            )
        ),
    ],
)
def test_what_is_no_record_is_said_to_be_none(content):
    with contextlib.suppress(DamagedRecordError):
        assert unpack_estimates(np.frombuffer(content, np.uint8)) == []
