"""Lets ``Bidirectional`` work on fisheye pictures of eyes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

from vitascope.frames import Frame
from vitascope.gpu.interchange import on_its_way
from vitascope.gpu.kernels.cuda_module import array_module, is_on_gpu
from vitascope.gpu.kernels.region import Region
from vitascope.gpu.memory.shortage import memory_errors
from vitascope.models.network import FloatArray, MatteEstimate, NetworkInput
from vitascope.segmentation.matting.batch import Batch
from vitascope.segmentation.matting.estimates import small_alpha
from vitascope.segmentation.matting.fisheye import FisheyeViews
from vitascope.segmentation.matting.levers.bidirectional import Bidirectional
from vitascope.segmentation.matting.rim_people import RimPeople
from vitascope.segmentation.matting.shots import StreamNetwork, Views, next_part
from vitascope.segmentation.matting.stereo_agreement import StereoAgreement

_FRAMES_OF_A_CALL: Final = 4
"""Frames mapped back at a time; their fisheye mattes are freed afterwards, as those of a window take hundreds of MB."""
_STEPS: Final = 1 << 20
"""Steps, along each side, of the grid that gives parts of pictures: exact enough for pictures of any size."""


class FisheyePictures(Views):
    """Makes a network's pictures from fisheye pictures of the eyes, or from parts of these.

    Args:
        views: Makes pictures of the eyes.
        fisheye: The fisheye pictures.
    """

    def __init__(self, views: Views, fisheye: FisheyeViews) -> None:
        self._views, self._fisheye = views, fisheye

    @property
    def eyes(self) -> int:
        """Number of fisheye pictures of a frame."""
        return self._views.eyes * self._fisheye.count

    def windows(self, parts: Sequence[Region], grid: tuple[int, int]) -> list[Region]:
        """Convert parts of the pictures, one each, from samples of a grid (height, width) to ``_STEPS`` a side."""
        down, across = (_STEPS / side for side in grid)
        return [
            Region(
                round(part.x * across),
                round(part.y * down),
                round(part.width * across),
                round(part.height * down),
            )
            for part in parts
        ]

    def make(
        self, frames: Sequence[Frame], wanted: NetworkInput, *, windows: Sequence[Region] | None = None
    ) -> Any:
        """Pictures [T, E * count, ...] of ``wanted.size``, on the frames' device.

        Args:
            frames: As in ``Views``.
            wanted: Size and normalisation.
            windows: The part of each picture to show, the same for all frames; the whole picture when
                omitted.
        """
        if windows is None:
            shown = self._fisheye.resized(wanted.size)
            return shown.show(self._views.make(frames, shown.eye))
        part, (height, width) = windows[0], wanted.size
        rows, columns = round(height * _STEPS / part.height), round(width * _STEPS / part.width)
        whole = self.make(frames, replace(wanted, size=(rows, columns)))
        top, left = round(part.y * rows / _STEPS), round(part.x * columns / _STEPS)
        inside = slice(top, top + height), slice(left, left + width)
        seen = whole[..., *inside] if wanted.layout == "NCHW" else whole[..., *inside, :]
        return array_module(on_gpu=is_on_gpu(whole)).ascontiguousarray(seen)


class FisheyeLooks:
    """Runs ``Bidirectional`` on fisheye pictures of the eyes, in all its sizes, and maps the mattes back.

    While people stand at the rim of VR180, bent pictures are used, see ``RimPeople``: this is decided from the first
    frames of a shot, and again from the last matte of each window. After a change, the lever starts anew.

    Args:
        stream: As in ``Bidirectional``; with ``fisheye``.
    """

    def __init__(self, stream: StreamNetwork) -> None:
        fisheye = stream.fisheye
        assert fisheye is not None  # build_chain checks
        self._stream = stream
        self._rim = RimPeople(fisheye, stream.agreement) if RimPeople.may_need(fisheye) else None
        self._begin(fisheye, stream.agreement)
        self._is_first = True
        """True until the first frame, which starts a shot."""
        self._last_seen: Callable[[], FloatArray] | None = None
        """Gives alpha of the last window's last frame, in its fisheye pictures; None if not needed."""

    def _begin(self, fisheye: FisheyeViews, agreement: StereoAgreement | None) -> None:
        """Use these pictures from now on, with a new lever that has no memory."""
        stream = self._stream
        scale = max(own / shown for own, shown in zip(stream.eye_size, fisheye.eye.size, strict=True))
        # Rounding up would add a look in pictures one sample larger, which show nothing new.
        height, width = (max(int(side * scale), side) for side in fisheye.size)
        self._fisheye = fisheye
        self._shown = replace(
            stream,
            wanted=fisheye.as_pictures[1],
            eye_size=(height, width),
            views=FisheyePictures(stream.views, fisheye),
            fisheye=None,
            agreement=agreement,
            has_close_ups=False,
        )
        self._lever = Bidirectional(self._shown)

    def estimate(self, batch: Batch) -> list[MatteEstimate]:
        """Mattes of the next frames: alpha's coefficients, mapped to the eyes."""
        estimates: list[MatteEstimate] = []
        first = 0
        while first < len(batch):
            end = next_part(batch.starts_shot, first, len(batch) - first)
            is_last = end == len(batch)
            part = replace(batch.take(range(first, end)), following=batch.following if is_last else ())
            estimates += self._of_shot(part)
            first = end
        return estimates

    def _of_shot(self, batch: Batch) -> list[MatteEstimate]:
        """Mattes of frames of one shot."""
        if self._rim is not None and (self._is_first or batch.starts_shot[0]):
            self._is_first = False
            self._choose(are_at_rim=False)
            first = self._shown_of(batch.take(range(min(self._stream.look_ahead_frames or 1, len(batch)))))
            estimates = self._shown.shots().estimate(first)
            self._choose(are_at_rim=self._are_at_rim(self._seen(estimates[0], first.images[0])))
        elif self._last_seen is not None:
            # Only now: at the end of the last window, the host would have waited for the GPU.
            self._choose(are_at_rim=self._are_at_rim(self._last_seen))
        shown = self._shown_of(batch)
        estimates = self._lever.estimate(shown)
        back = self._fisheye.resized((int(estimates[0].size[0]), int(estimates[0].size[1])))
        if self._rim is not None:
            self._last_seen = self._seen(estimates[-1], shown.images[-1])
        with memory_errors():
            for at in range(0, len(estimates), _FRAMES_OF_A_CALL):
                part = slice(at, at + _FRAMES_OF_A_CALL)
                estimates[part] = back.take_back(estimates[part])
        return estimates

    def _shown_of(self, batch: Batch) -> Batch:
        """The same frames with the fisheye pictures of their eyes."""
        with memory_errors():
            return replace(batch, images=self._fisheye.show(batch.images))

    def _seen(self, estimate: MatteEstimate, pictures: Any) -> Callable[[], FloatArray]:
        """A function that gives a frame's alpha in its fisheye pictures when called."""
        assert self._rim is not None  # whoever asks knows
        with memory_errors():
            return on_its_way(small_alpha(estimate, pictures, self._rim.shown))

    def _are_at_rim(self, seen: Callable[[], FloatArray]) -> bool:
        """True if a frame's people stand at the rim."""
        assert self._rim is not None  # whoever asks knows
        with memory_errors():
            return self._rim.would_be_seen(seen())

    def _choose(self, *, are_at_rim: bool) -> None:
        """Use bent pictures, or the usual ones, from now on."""
        assert self._rim is not None  # whoever asks knows
        if are_at_rim != self._rim.are_seen:
            self._rim.are_seen = are_at_rim
            self._begin(self._rim.views, self._rim.agreement)
