"""The picture that tests of whole jobs segment, and functions that read their videos."""

from __future__ import annotations

import av
import numpy as np

import photographs


def astronaut(_: int):
    return np.ascontiguousarray(photographs.astronaut()[:256:2, 60:316:2])


def packets(path, kind):
    with av.open(str(path)) as container:
        stream = next(s for s in container.streams if s.type == kind)
        return [(p.pts, bytes(p)) for p in container.demux(stream) if p.size]


def luma(path):
    with av.open(str(path)) as container:
        return [frame.to_ndarray(format="gray") for frame in container.decode(video=0)]
