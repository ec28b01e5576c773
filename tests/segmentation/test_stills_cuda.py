"""Check that single pictures, close-ups and others together, agree on the GPU and the CPU."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import cv2
import numpy as np
import pytest

from photographs import astronaut
from vitascope.segmentation.stills import StillSegmenter

pytestmark = pytest.mark.cuda


def near_and_far():
    """Make two pictures of 1024 x 768: a person who fills it, and the same person small on grey."""
    near = cv2.resize(astronaut()[:384], (1024, 768), interpolation=cv2.INTER_AREA)
    far = np.full_like(near, 120)
    far[384:, 400:660] = cv2.resize(near[:, 150:900], (260, 384), interpolation=cv2.INTER_AREA)
    return [near, far]


def masks(device, store):
    settings = {
        "model.name": "rvm",
        "gpu.device": device,
        "batching.dynamic.max_batch_size": 2,
        "batching.dynamic.timeout_ms": 10_000,
    }
    with StillSegmenter(settings=settings, store=store) as segmenter:
        alone = [segmenter.mask(one) for one in near_and_far()]
        with segmenter._batcher.client(), ThreadPoolExecutor(2) as clients:
            together = list(clients.map(segmenter.mask, near_and_far()))
    return np.stack([*alone, *together]).astype(int)


def test_close_ups_on_the_gpu_are_the_processors(rvm_model_path, model_store):
    found, expected = masks("cuda", model_store), masks("cpu", model_store)
    assert (expected[0] > 127).mean() > 0.25 > (expected[1] > 127).mean()
    assert np.abs(found - expected).mean() < 1
    assert np.abs(found[2:] - found[:2]).mean() < 0.5
