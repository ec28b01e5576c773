"""Smooths the mattes of a shot along the motion in the picture, and restores parts that a frame misses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Final

import cv2
import numpy as np
import numpy.typing as npt

from vitascope.frames import Frame
from vitascope.gpu.interchange import on_its_way, one_after_the_other, to_cupy
from vitascope.gpu.kernels.along_motion import MEAN_RULES, REACH_FRAMES, mean_along_motion
from vitascope.gpu.kernels.cells import mean_around
from vitascope.gpu.kernels.cuda_module import array_module, is_on_gpu
from vitascope.gpu.kernels.morphology import dilate_box, erode_box
from vitascope.gpu.kernels.resize_normalize import resized
from vitascope.gpu.kernels.votes_along_motion import VOTE_RULES, votes_along_motion
from vitascope.gpu.memory.shortage import memory_errors
from vitascope.gpu.toolkit.batching.batch_sizes import AdaptiveBatchSizer
from vitascope.models.network import MatteEstimate, NetworkInput
from vitascope.segmentation.matting.estimates import plain_rgb, small_alpha
from vitascope.segmentation.matting.shots import Views, bounds_of_calls

_MOTION_SIDE: Final = 480
"""Longest side, in samples, of the pictures in which motion is found, usually half of the mattes': on clips
of ``benchmarks/matte_quality``, a quarter was too small, and the full size was no better."""
_LEAST_SIDE: Final = 16
"""Minimum side, in samples, for motion search: OpenCV refuses fewer than 12. Smaller pictures are padded with their
border."""
_FRAMES_OF_A_CALL: Final = 8
"""Frames of a window smoothed at a time, with their neighbours: the input takes more memory than the
result."""
_NOBODY: Final = 0.01
"""Maximum mean alpha of an empty cell."""
_LEAST_FRAMES = 2.0
"""Minimum number of other frames that show the same. This and the following constants were chosen on
``benchmarks/matte_quality``, seeds 101 to 118."""
_CHANGE, _DECIDED = 0.25, 0.3
"""Minimum increase of alpha for a part to count as missed, and maximum distance of the result from 1."""

SMOOTHING_RULES: Final = (_MOTION_SIDE, _NOBODY, *MEAN_RULES, *VOTE_RULES, _LEAST_FRAMES, _CHANGE, _DECIDED)
"""Constants that smoothed mattes depend on."""

Grey = npt.NDArray[np.uint8]
FloatArray = npt.NDArray[np.float32]


@dataclass
class Motion:
    """The motion in a window, while it is being computed."""

    box: tuple[slice, slice]
    """Rows and columns of the mattes that contain people."""
    moves: Sequence[Future[None]]
    """Done once ``found`` is filled."""
    found: npt.NDArray[np.float32]
    """Motion for ``mean_along_motion`` of all frames but the last, including the frames kept from the previous window:
    to the next frame, and from that back, float32 [2, T - 1, E, h', w', 2]."""
    before: tuple[Any, Any] | None = None
    """RGB [T, E, 3, h, w] and alpha [T, E, h, w] of the last frames before the window; None at a shot's beginning."""
    _uploaded: Any = None

    def ways(self, *, on_gpu: bool) -> Any:
        """Wait for the motion, and upload it once: float32 [2, T - 1, E, h', w', 2], NumPy or CuPy."""
        if self._uploaded is None:
            for move in self.moves:
                move.result()
            self._uploaded = to_cupy(self.found) if on_gpu else self.found
        return self._uploaded

    def cancel(self) -> None:
        """Cancel the work that has not started."""
        for move in self.moves:
            move.cancel()


class MotionSmoothing:
    """Smooths consecutive windows of a shot, in the area where people are.

    Motion is dense optical flow (Kroeger and others, "Fast Optical Flow using Dense Inverse Search", 2016), found on
    the CPU while the network sees the window. The last frames of a window are averaged only with frames before them.

    Args:
        views: Makes the pictures.
        wanted: The pictures that have the size of the mattes.
        threads: Threads that find motion, several frames at a time.
        sizer: Limits the frames smoothed at a time, below ``_FRAMES_OF_A_CALL``.
    """

    def __init__(
        self,
        views: Views,
        wanted: NetworkInput,
        threads: ThreadPoolExecutor,
        sizer: AdaptiveBatchSizer | None = None,
    ) -> None:
        self._views, self._wanted, self._threads, self._sizer = views, wanted, threads, sizer
        scale = min(_MOTION_SIDE / max(wanted.size), 1.0)
        height, width = (max(round(side * scale), 1) for side in wanted.size)
        self._small = replace(wanted, size=(height, width))
        self._greys: list[Any] = []
        """The last window's last frames, uint8 [E, h', w'] each."""
        self._last: tuple[Any, Any] | None = None
        """``Motion.before`` of the next window."""

    def begin_shot(self) -> None:
        """Forget all earlier frames."""
        self._greys, self._last = [], None

    def show(self, frames: Sequence[Frame]) -> Callable[[], npt.NDArray[np.uint8]]:
        """Start making the pictures in which motion is found; the result is for ``watch`` of the next window."""
        pictures = plain_rgb(self._views.make(frames, self._small), self._small)
        return on_its_way(
            (pictures.mean(axis=-3, dtype="float32") * 255).round().clip(0, 255).astype("uint8")
        )

    def watch(self, shown: Callable[[], npt.NDArray[np.uint8]], people: npt.NDArray[np.float32]) -> Motion:
        """Start finding the motion in the next window.

        Args:
            shown: Result of ``show``.
            people: Mean alpha of each cell over all of these frames, float32 [rows, columns], 0..1.

        Returns:
            The motion for ``smooth``; empty if nobody is there.
        """
        rows, columns = (np.flatnonzero((people > _NOBODY).any(axis=axis)) for axis in (1, 0))
        if not len(rows):
            self.begin_shot()
            return Motion((slice(0), slice(0)), [], np.empty((2, 0, self._views.eyes, 1, 1, 2), np.float32))
        box, small = (
            tuple(
                slice(max(at[0] - 1, 0) * side // cells, min(at[-1] + 2, cells) * side // cells)
                for at, side, cells in zip((rows, columns), wanted.size, people.shape, strict=True)
            )
            for wanted in (self._wanted, self._small)
        )
        seen = [*self._greys, *shown()]
        # Views would keep the whole window's memory.
        self._greys = [grey.copy() for grey in seen[-REACH_FRAMES:]]
        pairs = list(pairwise([grey[:, *small] for grey in seen]))
        height, width = (one.stop - one.start for one in small)
        # OpenCV finds flow at half the size and enlarges it, so a quarter of its samples is enough.
        half = -(-height // 2), -(-width // 2)
        found = np.empty((2, len(pairs), self._views.eyes, *half, 2), np.float32)
        moves = [
            self._threads.submit(_find_moves, *eye, out=found[:, at, number])
            for at, (one, other) in enumerate(pairs)
            for number, eye in enumerate(zip(one, other, strict=True))
        ]
        return Motion((box[0], box[1]), moves, found, self._last)

    def smooth(
        self, frames: Sequence[Frame], estimates: Sequence[MatteEstimate], motion: Motion
    ) -> list[MatteEstimate]:
        """Smooth the mattes of a window. The result may be smoothed again, together with other mattes.

        Args:
            frames: The window's frames.
            estimates: Alpha's coefficients, float32 of the size of ``wanted``.
            motion: Result of ``watch`` for these frames.
        """
        if not motion.box[0].stop:
            return list(estimates)
        known, count = motion.before, 0 if motion.before is None else len(motion.before[1])
        last: list[tuple[Any, Any]] = []

        def smooth_part(at: int, end: int) -> list[MatteEstimate]:
            shown = slice(max(at - REACH_FRAMES, 0), min(end + REACH_FRAMES, len(frames)))
            rgb, alpha = self._seen(frames[shown], estimates[shown])
            first, begin = at - shown.start, count + shown.start
            if at < REACH_FRAMES and known is not None:
                needed = min(REACH_FRAMES - at, count)
                rgb, alpha = (
                    np.concatenate((planes[count - needed :], after))
                    for planes, after in zip(known, (rgb, alpha), strict=True)
                )
                first, begin = at + needed, count - needed
            if end == len(frames):
                last[:] = [(rgb[-REACH_FRAMES:].copy(), alpha[-REACH_FRAMES:].copy())]
            moves = motion.ways(on_gpu=is_on_gpu(alpha))[:, begin : begin + len(rgb) - 1]
            inside, colors = alpha[..., *motion.box], rgb[..., *motion.box].astype("float32", copy=False)
            change = (mean_along_motion(inside, colors, *moves) - inside)[first:]
            return _with_added(estimates[at:end], change[: end - at], motion.box)

        smoothed = self._in_parts(len(frames), smooth_part)
        (self._last,) = last
        return smoothed

    def restored(
        self, frames: Sequence[Frame], estimates: Sequence[MatteEstimate], motion: Motion
    ) -> list[MatteEstimate]:
        """Restore parts of people that a window's mattes miss, see ``missed_parts``.

        Args:
            frames: As in ``smooth``, which comes after this.
            estimates: Likewise.
            motion: Likewise.
        """
        if not motion.box[0].stop or len(frames) == 1:
            return list(estimates)
        is_gpu = is_on_gpu(estimates[0].gain)
        ways = motion.ways(on_gpu=is_gpu)[:, 1 - len(frames) :]  # without those from frames before the window
        size, box = ways.shape[3:5], motion.box

        def shrink_part(at: int, end: int) -> list[Any]:
            rgb, alpha = self._seen(frames[at:end], estimates[at:end])
            seen = np.concatenate([rgb[..., *box], alpha[:, :, None][..., *box]], axis=2)
            return list(resized(seen.reshape(-1, *seen.shape[2:]), size).reshape(*seen.shape[:3], *size))

        small = np.stack(self._in_parts(len(frames), shrink_part))
        arrays = array_module(on_gpu=is_gpu)
        # Eye by eye, as a window's planes are large.
        found = [
            missed_parts(small[:, eye], *(arrays.ascontiguousarray(way[:, eye]) for way in ways))
            for eye in (slice(at, at + 1) for at in range(self._views.eyes))
        ]
        missed = np.concatenate(found, axis=1)
        height, width = (one.stop - one.start for one in box)

        def restore_part(at: int, end: int) -> list[MatteEstimate]:
            planes = missed[at:end].reshape(-1, 1, *size)
            large = resized(arrays.ascontiguousarray(planes), (height, width))
            return _with_added(estimates[at:end], large.reshape(end - at, -1, height, width), box)

        return self._in_parts(len(frames), restore_part)

    def _in_parts(self, count: int, call: Callable[[int, int], list[Any]]) -> list[Any]:
        """Call a function for all frames, a few at a time; fewer when memory is short."""
        with memory_errors():
            return bounds_of_calls(self._sizer, count).in_ranges(
                count, call, end_of=lambda first, most: first + min(most, _FRAMES_OF_A_CALL)
            )

    def _seen(self, frames: Sequence[Frame], estimates: Sequence[MatteEstimate]) -> tuple[Any, Any]:
        """RGB [T, E, 3, h, w] and alpha [T, E, h, w] of some frames, 0..1, on their device; alpha is float32."""
        images = self._views.make(frames, self._wanted)
        alpha = small_alpha(
            MatteEstimate.joined(estimates),
            images.reshape(-1, *images.shape[2:]),
            self._wanted,
        )
        return plain_rgb(images, self._wanted), alpha.reshape(len(frames), -1, *alpha.shape[1:])


def _with_added(
    estimates: Sequence[MatteEstimate], planes: Any, box: tuple[slice, slice]
) -> list[MatteEstimate]:
    """Add planes [T, E, h, w] to alpha within some rows and columns; the estimates themselves do not change."""
    offset = one_after_the_other([one.offset for one in estimates]).copy()  # coefficients, as was requested
    added = offset.reshape(*planes.shape[:2], *offset.shape[2:])
    added[..., *box] += planes
    return [
        MatteEstimate(gain=one.gain, offset=own[:, None]) for one, own in zip(estimates, added, strict=True)
    ]


def missed_parts(seen: FloatArray, ahead: FloatArray, back: FloatArray) -> FloatArray:
    """Find parts of people that a frame's matte misses, and most other frames of the shot show.

    A blurred arm is missed in a shot's first frames, and found in those after them; a shoulder is lost while its owner
    leaves. So each sample is followed along the motion, for as long as the picture looks the same there. Each frame
    votes with the weight of its sureness. Only parts at least three samples thick count, as edges are less certain.
    Nothing is removed where most frames show nobody: that lost people whom few frames see, and hardly any scenery.

    Args:
        seen: RGB and alpha of consecutive frames; like the motion, as for ``votes_along_motion``.
        ahead: Motion from each frame to the next.
        back: Motion from each frame to the one before.

    Returns:
        Addition to alpha, float32 [T, E, h, w], on the same device; mostly 0.

    Raises:
        KernelCompileError: The CUDA source could not be built for this GPU.
    """
    own = seen[:, :, 3]
    agreed, others = votes_along_motion(seen, ahead, back)
    change = np.maximum(agreed - own, 0) * (others > _LEAST_FRAMES)
    is_missed = _thick((change > _CHANGE) & (agreed > 1 - _DECIDED))
    return mean_around(change * is_missed)  # soft, so that its border is no edge


def _thick(where: Any) -> Any:
    """Keep what is at least three samples thick, and the samples beside it, bool [T, E, h, w]."""
    planes = where.astype("uint8").reshape(-1, *where.shape[2:])
    return dilate_box(erode_box(planes, 1), 2).reshape(where.shape) > 0


def _find_moves(picture: Grey, following: Grey, *, out: npt.NDArray[np.float32]) -> None:
    """Find the optical flow from a picture to the next, and from that one back: float32 [2, h', w', 2]."""
    flow: Any = cv2.DISOpticalFlow.create(cv2.DISOpticalFlow_PRESET_FAST)
    flow.setFinestScale(1)
    flow.setVariationalRefinementIterations(0)  # takes twice the time without better mattes
    height, width = picture.shape
    below, beside = max(_LEAST_SIDE - height, 0), max(_LEAST_SIDE - width, 0)
    one, other = (
        cv2.copyMakeBorder(each, 0, below, 0, beside, cv2.BORDER_REPLICATE) for each in (picture, following)
    )
    for move, (first, second) in zip(out, ((one, other), (other, one)), strict=True):
        found = flow.calc(first, second, None)[:height, :width]
        cv2.resize(found, move.shape[1::-1], dst=move, interpolation=cv2.INTER_AREA)
        move *= np.divide(move.shape[1::-1], (width, height), dtype=np.float32)
