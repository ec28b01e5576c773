"""Soaks with known memory, speed and latency."""

from __future__ import annotations

import numpy as np

from vitascope.bench.soak import Soak, SoakLook

MB = 1e6


def looks(sizes, *, seconds=1000.0, latency=0.04, rate=30.0):
    """Make looks at equal intervals; latency and rate may be functions of the share of time passed."""
    times = np.linspace(0, seconds, len(sizes))
    frames, waited, found = 0.0, 0.0, []
    for n, (at, size) in enumerate(zip(times, sizes, strict=True)):
        share = n / len(sizes)
        if n:
            done = (rate(share) if callable(rate) else rate) * (at - times[n - 1])
            frames += done
            waited += done * (latency(share) if callable(latency) else latency)
        found.append(
            SoakLook(seconds=at, frames=frames, latency_seconds=waited, resident_bytes=size, gpu_bytes=None)
        )
    return tuple(found)


def soak_of(sizes=None, **words):
    noise = np.random.default_rng(3).normal(0, 1 * MB, 200)
    found = looks(400 * MB + noise if sizes is None else np.asarray(sizes) + noise[: len(sizes)], **words)
    return Soak(
        seconds=found[-1].seconds,
        pass_frames=(24,) * len(found),
        damaged_count=0,
        dropped_count=0,
        looks=found,
        rests=found,
    )
