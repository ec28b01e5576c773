"""Mattes of a shot smoothed over time, along the motion of what the picture shows."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise
from typing import Any, Final

import cv2
import numpy as np
import numpy.typing as npt

from vitascope.device import available_cores
from vitascope.frames import Frame
from vitascope.gpu.interchange import to_numpy
from vitascope.gpu.kernels.along_motion import mean_along_motion
from vitascope.gpu.kernels.cuda_module import array_module, is_on_gpu
from vitascope.models.network import MatteEstimate, NetworkInput
from vitascope.segmentation.matting.estimates import plain_rgb, small_alpha
from vitascope.segmentation.matting.shots import Views

_MOTION_SIDE: Final = 480
"""Longest side, in samples, of the pictures that motion is found in: half of what mattes have, as a rule. A quarter
was too little on clips of ``benchmarks/matte_quality``, and with the whole nothing was better."""
_LEAST_SIDE: Final = 16
"""Below 12 samples OpenCV refuses to look for motion; the border of smaller pictures is repeated."""
_FRAMES_OF_A_CALL: Final = 8
"""A window is smoothed in such parts, and with the frames beside them: what is read is larger than what is kept."""

Grey = npt.NDArray[np.uint8]
Moves = Sequence[Future[npt.NDArray[np.float32]]]


class MotionSmoothing:
    """Smooths windows of a shot, one after the other; a window's last frame is mixed with the one before it alone.

    Motion is dense optical flow (Kroeger and others, "Fast Optical Flow using Dense Inverse Search", 2016), found on
    the CPU, by as many threads as there are cores, while the network sees the window.

    Args:
        views: Makes the pictures.
        wanted: The pictures whose size mattes have.
    """

    def __init__(self, views: Views, wanted: NetworkInput) -> None:
        self._views, self._wanted = views, wanted
        scale = min(_MOTION_SIDE / max(wanted.size), 1.0)
        height, width = (max(round(side * scale), 1) for side in wanted.size)
        self._small = replace(wanted, size=(height, width))
        self._grey: list[Any] = []
        self._last: tuple[Any, Any] | None = None
        """RGB and alpha of the last window's last frame, [1, E, ...]."""

    def begin_shot(self) -> None:
        """Nothing of before counts."""
        self._grey, self._last = [], None

    def watch(self, frames: Sequence[Frame]) -> Moves:
        """Begin to find the motion in the next window, and from the last one to it.

        Returns:
            For each frame, eye and neighbour the motion to it, as ``smooth`` takes them.
        """
        pictures = plain_rgb(self._views.make(frames, self._small), self._small)
        greys = (pictures.mean(axis=-3, dtype="float32") * 255).round().clip(0, 255).astype("uint8")
        seen = [*self._grey, *to_numpy(greys)]
        self._grey = seen[-1:]
        pairs = list(pairwise(seen))
        threads = ThreadPoolExecutor(available_cores(), thread_name_prefix="vitascope-motion")
        moves = [
            threads.submit(_move, *eye)
            for one, other in (*pairs, *((later, earlier) for earlier, later in pairs))
            for eye in zip(one, other, strict=True)
        ]
        threads.shutdown(wait=False)  # they end with the last
        return moves

    def smooth(
        self, frames: Sequence[Frame], estimates: Sequence[MatteEstimate], moves: Moves
    ) -> list[MatteEstimate]:
        """Smooth the mattes of a window.

        Args:
            frames: The window's.
            estimates: Alpha's coefficients, float32 of the size of ``wanted``.
            moves: What ``watch`` gave for these frames.
        """
        before = self._last
        smoothed: list[MatteEstimate] = []
        found = np.array([move.result() for move in moves], np.float32)
        if not len(found):
            found = np.zeros((0, 1, 1, 2), np.float32)
        ahead, back = found.reshape(2, -1, self._views.eyes, *found.shape[1:])
        is_known = 0 if before is None else 1
        for at in range(0, len(frames), _FRAMES_OF_A_CALL):
            end = min(at + _FRAMES_OF_A_CALL, len(frames))
            shown = slice(max(at - 1, 0), min(end + 1, len(frames)))
            rgb, alpha = self._seen(frames[shown], estimates[shown])
            first = at - shown.start
            if at == 0 and before is not None:
                rgb, alpha = (np.concatenate(parts) for parts in zip(before, (rgb, alpha), strict=True))
                first = 1
            self._last = rgb[-1:], alpha[-1:]
            pairs = slice(at - first + is_known, at - first + is_known + len(rgb) - 1)
            arrays = array_module(on_gpu=is_on_gpu(alpha))
            mean = mean_along_motion(alpha, rgb, arrays.asarray(ahead[pairs]), arrays.asarray(back[pairs]))
            change = (mean - alpha)[first : first + end - at]
            smoothed += [
                MatteEstimate(gain=one.gain, offset=one.offset + plane[:, None])
                for one, plane in zip(estimates[at:end], change, strict=True)
            ]
        return smoothed

    def _seen(self, frames: Sequence[Frame], estimates: Sequence[MatteEstimate]) -> tuple[Any, Any]:
        """RGB [T, E, 3, h, w] and alpha [T, E, h, w] of some frames, float32, 0..1, on their device."""
        images = self._views.make(frames, self._wanted)
        alpha = small_alpha(
            MatteEstimate(
                gain=np.concatenate([one.gain for one in estimates]),
                offset=np.concatenate([one.offset for one in estimates]),
            ),
            images.reshape(-1, *images.shape[2:]),
            self._wanted,
        )
        rgb = plain_rgb(images, self._wanted).astype("float32")
        return rgb, alpha.reshape(len(frames), -1, *alpha.shape[1:])


def _move(picture: Grey, other: Grey) -> npt.NDArray[np.float32]:
    """Where each sample of a picture lies in another one, as ``mean_along_motion`` takes it, float32 [h', w', 2]."""
    flow: Any = cv2.DISOpticalFlow.create(cv2.DISOpticalFlow_PRESET_FAST)
    flow.setFinestScale(1)
    flow.setVariationalRefinementIterations(0)  # twice the time, and no better mattes
    height, width = picture.shape
    below, beside = max(_LEAST_SIDE - height, 0), max(_LEAST_SIDE - width, 0)
    large = [cv2.copyMakeBorder(one, 0, below, 0, beside, cv2.BORDER_REPLICATE) for one in (picture, other)]
    found = flow.calc(*large, None)[:height, :width]
    # It was found at half the size, and enlarged: a quarter of it goes to the GPU.
    half: Any = cv2.resize(found, (-(-width // 2), -(-height // 2)), interpolation=cv2.INTER_AREA)
    half *= np.divide(half.shape[1::-1], (width, height), dtype=np.float32)
    return np.asarray(half, np.float32)
