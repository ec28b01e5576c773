"""A network for testing levers, of any size and with a memory in the plane, and frames for it."""

from __future__ import annotations

from dataclasses import replace

import cv2
import numpy as np

from pictures import solid_frame
from vitascope.frames import PIXEL_FORMATS
from vitascope.gpu.interchange import to_cupy, to_numpy
from vitascope.gpu.kernels.cuda_module import is_on_gpu
from vitascope.models.network import MatteEstimate, NetworkInput, each_part
from vitascope.segmentation.matting.levers.motion_smoothing import MotionSmoothing
from vitascope.segmentation.matting.stereo_agreement import StereoAgreement

FMT = PIXEL_FORMATS["yuv420p"]
EYE = (128, 192)


class TrailState:
    """Bright areas of the previous frame, at half size: [E, h / 2, w / 2]."""

    def __init__(self):
        self.seen = None

    def reset(self):
        self.seen = None

    def window(self, parts):
        state = TrailState()
        if self.seen is not None:
            ((seen, places),) = each_part([self.seen], parts)
            state.seen = np.stack([seen[eye, at.rows, at.columns] for eye, at in enumerate(places)])
        return state

    def put(self, parts, state):
        ((seen, places),) = each_part([self.seen.copy()], parts)
        for eye, at in enumerate(places):
            seen[eye, at.rows, at.columns] = state.seen[eye]
        self.seen = seen

    def copy(self):
        state = TrailState()
        state.seen = None if self.seen is None else self.seen.copy()
        return state

    def take(self, state, share):
        share = np.stack([cv2.resize(eye, self.seen.shape[:0:-1]) for eye in to_numpy(share)])
        other = 0 if state is None else to_numpy(state.seen)
        self.seen = to_numpy(self.seen) * (1 - share) + other * share

    def stretch(self, size):
        level = -(-size[0] // 2), -(-size[1] // 2)
        self.seen = np.stack([cv2.resize(eye, level[::-1]) for eye in to_numpy(self.seen)])

    def mirror(self):
        self.seen = None if self.seen is None else np.flip(self.seen, -1).copy()

    def arrays(self):
        return [] if self.seen is None else [to_numpy(self.seen)]

    def restore(self, arrays):
        self.seen = arrays[0].copy()


class TrailNetwork:
    """Sees people where the picture is bright, and half of them where it was a frame ago.

    Takes NumPy or CuPy pictures, and returns the same kind. Every sample is judged by itself and its own
    memory, so a part gives what the whole picture gives there.
    """

    name = "trail"
    engine_name = "trail"
    side_multiple = 16

    def __init__(self, *, recurrent=True, size=EYE):
        self.recurrent = recurrent
        self.size = size
        self.calls = []

    def input_for(self, region_size):
        return NetworkInput(self.size, "NCHW")

    def new_state(self):
        return TrailState()

    def infer(self, images, state):
        self.calls.append(tuple(images.shape))
        answers = []
        for picture in images:
            bright = np.clip((picture.mean(axis=1) - 0.4) * 5, 0, 1)
            small = bright[:, ::2, ::2]
            before = np.zeros_like(small)
            if state.seen is not None and self.recurrent:
                before = to_cupy(state.seen) if is_on_gpu(small) else state.seen
            trail = before.repeat(2, axis=1).repeat(2, axis=2)[:, : bright.shape[1], : bright.shape[2]]
            offset = np.maximum(bright, trail / 2).astype(np.float32)
            state.seen = small.astype(np.float32)
            answers.append(MatteEstimate(gain=np.zeros_like(offset)[:, None], offset=offset[:, None]))
        return answers

    def close(self):
        pass


class Proud(TrailNetwork):
    """Sees bright people, but nobody beside a person who covers a quarter of the picture. NumPy judges."""

    def __init__(self, **options):
        super().__init__(recurrent=True, **options)

    def infer(self, images, state):
        self.calls.append(tuple(images.shape))
        state.seen = np.zeros((images.shape[1], images.shape[3] // 2, images.shape[4] // 2), np.float32)
        answers = []
        for picture in to_numpy(images):
            alphas = []
            for bright in np.clip((picture.mean(axis=1) - 0.4) * 5, 0, 1):
                _, labels, boxes, _ = cv2.connectedComponentsWithStats((bright > 0.5).astype(np.uint8))
                areas = boxes[:, cv2.CC_STAT_AREA].copy()
                areas[0] = 0
                hidden = (areas < areas.max()) & (areas.max() > bright.size / 4)
                hidden[0] = False
                alphas.append(np.where(hidden[labels], 0, bright))
            offset = np.stack(alphas)[:, None].astype(np.float32)
            offset = to_cupy(offset) if is_on_gpu(images) else offset
            answers.append(MatteEstimate(gain=0 * offset, offset=offset))
        return answers


class LongTrail(TrailNetwork):
    """Remembers bright places for a long time."""

    def infer(self, images, state):
        answers = []
        for image in images:
            before = state.seen
            answers += super().infer(image[None], state)
            if before is not None:
                state.seen = np.maximum(state.seen, 0.8 * np.asarray(before, np.float32))
        return answers


def last_steps(monkeypatch):
    """Record, in order, the smoothing of windows, and the shapes of pictures whose two eyes were made to agree."""
    steps, agree, smooth = [], StereoAgreement.agree, MotionSmoothing.smooth

    def agreeing(agreement, estimates, images):
        for estimate, seen in zip(estimates, images, strict=True):
            assert seen.shape[2:] == agreement.wanted.size >= estimate.size
            steps.append(seen.shape)
        return agree(agreement, estimates, images)

    def smoothing(*given):
        steps.append("smoothed")
        return smooth(*given)

    monkeypatch.setattr(StereoAgreement, "agree", agreeing)
    monkeypatch.setattr(MotionSmoothing, "smooth", smoothing)
    return steps


def frame_of(spots, *, index=0, eyes=1, size=EYE, noise=0.0, seed=0):
    """Make a dark frame with bright squares; two eyes side by side see the same rows.

    Args:
        spots: (eye, x, y, side) each, in luma samples of an eye.
    """
    height, width = size
    frame = solid_frame(FMT, (height, width * eyes), (0.1, 0.1, 0.1))
    luma = frame.planes[0].astype(np.float64)
    for eye, x, y, side in spots:
        luma[max(y, 0) : y + side, eye * width + max(x, 0) : eye * width + min(x + side, width)] = 220
    if noise:
        luma += np.random.default_rng(seed + index).normal(0, noise, luma.shape)
    planes = (np.clip(luma, 16, 235).astype(np.uint8), *frame.planes[1:])
    return replace(frame.with_planes(planes), index=index)
