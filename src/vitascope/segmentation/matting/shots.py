"""Runs a network over the frames of one stream, with a memory that is reset at each shot."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Protocol

from vitascope.errors import DeviceMemoryError
from vitascope.frames import Frame, Rotation
from vitascope.gpu.interchange import to_numpy
from vitascope.gpu.kernels.cuda_module import array_module, is_on_gpu
from vitascope.gpu.kernels.preprocess import preprocess
from vitascope.gpu.kernels.region import Region
from vitascope.gpu.memory.host_arrays import RecycledArrays
from vitascope.gpu.memory.shortage import memory_errors
from vitascope.gpu.toolkit.batching.batch_sizes import AdaptiveBatchSizer
from vitascope.models.network import (
    FloatArray,
    FollowingState,
    MatteEstimate,
    MattingNetwork,
    NetworkInput,
    NetworkState,
    SpatialState,
    side_multiple,
)
from vitascope.segmentation.matting.batch import Batch, JoinedPictures
from vitascope.segmentation.matting.close_ups import LOOK_EVERY_FRAMES, CloseUps
from vitascope.segmentation.matting.estimates import enlarged, small_alpha
from vitascope.segmentation.matting.fisheye import FisheyeViews
from vitascope.segmentation.matting.look_ahead import look_ahead, settle, settle_again, settled_alpha
from vitascope.segmentation.matting.rim_people import RimPeople
from vitascope.segmentation.matting.scene_cuts import Change
from vitascope.segmentation.matting.stereo_agreement import StereoAgreement
from vitascope.segmentation.report import Tally


class Views(Protocol):
    """Makes the network's pictures from frames: of the eyes (``EyeViews``), or fisheye pictures of them."""

    @property
    def eyes(self) -> int:
        """Pictures of a frame."""
        ...

    def windows(self, parts: Sequence[Region], grid: tuple[int, int]) -> list[Region]:
        """Convert parts of the upright pictures, one each, from samples of a grid (height, width) for ``make``."""
        ...

    def make(
        self, frames: Sequence[Frame], wanted: NetworkInput, *, windows: Sequence[Region] | None = None
    ) -> Any:
        """Pictures [T, E, ...] of ``wanted.size``, on the frames' device.

        Args:
            frames: On the CPU, or NV12 or P010 on the GPU.
            wanted: Size and normalisation.
            windows: The part of each picture to show, from ``windows``; all of it when omitted.
        """
        ...


class EyeViews(Views):
    """Makes a network's pictures of the eyes, or of parts of them.

    Args:
        regions: Where each eye lies, in luma samples as coded.
        rotation_degrees: Clockwise turn that makes the picture upright.
    """

    def __init__(self, regions: Sequence[Region], rotation_degrees: Rotation) -> None:
        self._regions = tuple(regions)
        self._rotation: Rotation = rotation_degrees
        self._memory = RecycledArrays()

    @property
    def eyes(self) -> int:
        """Pictures of a frame."""
        return len(self._regions)

    def windows(self, parts: Sequence[Region], grid: tuple[int, int]) -> list[Region]:
        """Convert parts of the upright eyes, one each, from samples of a grid (height, width) to coded luma samples."""
        return [
            coded_window(region, part, grid, self._rotation)
            for region, part in zip(self._regions, parts, strict=True)
        ]

    def make(
        self, frames: Sequence[Frame], wanted: NetworkInput, *, windows: Sequence[Region] | None = None
    ) -> Any:
        """Pictures [T, E, ...] of the eyes; on the CPU, whole ones are in recycled memory."""
        on_gpu = is_on_gpu(frames[0].planes[0])
        shape = (len(frames), self.eyes, *wanted.picture_shape())
        # Windows vary in size, so their memory could not be reused.
        arrays: Any = self._memory if windows is None and not on_gpu else array_module(on_gpu=on_gpu)
        images = arrays.empty(shape, wanted.dtype)
        for frame, out in zip(frames, images, strict=True):
            preprocess(
                frame,
                regions=self._regions if windows is None else windows,
                size=wanted.size,
                mean=wanted.mean,
                std=wanted.std,
                layout=wanted.layout,
                rotation_degrees=self._rotation,
                dtype=wanted.dtype,
                out=out,
            )
        return images


def coded_window(region: Region, part: Region, grid: tuple[int, int], rotation_degrees: Rotation) -> Region:
    """Convert a part of an eye's upright picture to luma samples of the coded frame.

    Args:
        region: The eye, as coded.
        part: In samples of ``grid``.
        grid: (height, width) of the whole upright picture.
        rotation_degrees: Clockwise turn that makes the picture upright.

    Returns:
        Whole samples, at least one each way.
    """
    turned = rotation_degrees in (90, 270)
    width, height = (region.height, region.width) if turned else (region.width, region.height)
    left, right = _span(part.x, part.width, grid[1], width)
    top, bottom = _span(part.y, part.height, grid[0], height)
    # ``np.rot90(coded, -1)`` is upright for 90: its row is the coded column, its column counts coded rows from below.
    match rotation_degrees:
        case 0:
            spans = (left, right), (top, bottom)
        case 90:
            spans = (top, bottom), (width - right, width - left)
        case 180:
            spans = (width - right, width - left), (height - bottom, height - top)
        case _:
            spans = (height - bottom, height - top), (left, right)
    (x0, x1), (y0, y1) = spans
    return Region(region.x + x0, region.y + y0, x1 - x0, y1 - y0)


def _span(start: int, length: int, cells: int, samples: int) -> tuple[int, int]:
    first = min(round(start * samples / cells), samples - 1)
    return first, max(round((start + length) * samples / cells), first + 1)


class Times(Protocol):
    """Times the parts of a job on the GPU's clock."""

    def profile(self, name: str) -> AbstractContextManager[object]:
        """Time a part, by name."""
        ...


@dataclass(slots=True)
class StreamNetwork:
    """A network with everything that a lever needs to run it on one stream."""

    network: MattingNetwork
    wanted: NetworkInput
    """Format of the network's picture of a whole eye."""
    eye_size: tuple[int, int]
    """(height, width) of an eye, upright, in luma samples."""
    views: Views
    warm_up_frames: int
    look_ahead_frames: int
    """Number of a shot's first frames that are seen backwards before it is matted; they come in one batch. 0 for
    none."""
    tally: Tally = field(default_factory=Tally)
    """Counts the samples that the network saw, and what levers did with the frames."""
    first_network: MattingNetwork | None = None
    """For ``early_exit="selfie"``."""
    sizer: AdaptiveBatchSizer | None = None
    """Limits the number of frames in one call on a GPU."""
    times: Times | None = None
    """Times the calls on a GPU."""
    fisheye: FisheyeViews | None = None
    """The fisheye pictures in which whole eyes are shown; None if eyes are shown as they are."""
    agreement: StereoAgreement | None = None
    """Makes the estimates of two whole eyes agree; None if each keeps its own."""
    has_close_ups: bool = False
    """True if the network may be shown smaller pictures while people fill them."""

    def shots(
        self,
        network: MattingNetwork | None = None,
        *,
        state: NetworkState | None = None,
        fisheye: FisheyeViews | None = None,
        agreement: StereoAgreement | None = None,
        looks_ahead: bool = True,
        follows_people: bool = False,
        settles_again: bool = False,
        is_main: bool = False,
    ) -> ShotInference:
        """Set up inference of this stream, with its network or another one.

        Args:
            network: Replaces the stream's own.
            state: State of a shot that has begun, to continue from; a new one when omitted.
            fisheye: The fisheye pictures in which whole eyes are shown.
            agreement: Makes the estimates of two eyes agree.
            looks_ahead: False if inference may start anew in the middle of a shot.
            follows_people: See ``ShotInference``.
            settles_again: See ``ShotInference``; ignored where shots are not looked ahead to.
            is_main: True for whole pictures in frame order: close-ups and people at the rim are detected in these.
        """
        network = self.network if network is None else network
        people: CloseUps | RimPeople | None = None
        if is_main and fisheye is None and self.has_close_ups and CloseUps.may_need(self.wanted):
            people = CloseUps(self.wanted)
        elif is_main and fisheye is not None and network.recurrent and side_multiple(network) is not None:
            people = RimPeople(fisheye, agreement) if RimPeople.may_need(fisheye) else None
        return ShotInference(
            network,
            warm_up_frames=self.warm_up_frames,
            look_ahead_frames=self.look_ahead_frames if looks_ahead else 0,
            state=state,
            sizer=self.sizer,
            times=self.times,
            tally=self.tally,
            fisheye=fisheye,
            agreement=agreement,
            follows_people=follows_people,
            settles_again=settles_again and looks_ahead and self.look_ahead_frames > 0,
            people=people,
        )


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """The network's output for one frame."""

    estimate: MatteEstimate
    """Estimate of the pictures that the network was shown."""
    pictures: Any
    """[E, ...]: those pictures; None if they are not needed again."""
    fisheye: FisheyeViews | None
    """The fisheye pictures that were shown; None if the eyes' own were."""
    agreement: StereoAgreement | None
    """Makes the estimates of two eyes agree; None if each keeps its own."""
    usual_size: tuple[int, int] | None = None
    """(height, width) to which the estimate of a smaller picture is enlarged; None if it was no smaller."""

    @property
    def nbytes(self) -> int:
        """Bytes held in addition to the estimate, for the queues."""
        return 0 if self.pictures is None else int(self.pictures.nbytes)

    @property
    def usual(self) -> MatteEstimate:
        """The estimate, at the usual size."""
        estimate = self.estimate
        if self.usual_size is None or estimate.gain is None or estimate.offset is None:
            return estimate
        gain, offset = (enlarged(planes, self.usual_size) for planes in (estimate.gain, estimate.offset))
        return MatteEstimate(gain=gain, offset=offset)

    def finish(self) -> MatteEstimate:
        """The frame's matte, mapped to the eyes."""
        return finished([self])[0]


def finished(answers: Sequence[Answer]) -> list[MatteEstimate]:
    """Mattes of frames, mapped to the eyes; on a GPU, several are made in one launch."""
    mattes: list[MatteEstimate] = []
    for (fisheye, agreement), group in groupby(answers, lambda answer: (answer.fisheye, answer.agreement)):
        alike = list(group)
        estimates = [answer.usual for answer in alike]
        if agreement is not None:
            estimates = agreement.agree(estimates, [answer.pictures for answer in alike])
        if fisheye is not None:
            estimates = fisheye.take_back(estimates)
        mattes += estimates
    return mattes


class ShotInference:
    """Runs a network over the whole frames of one stream, and owns the recurrent state.

    Args:
        network: May be shared with other streams; only this object's state changes.
        warm_up_frames: How often a recurrent network sees the first picture of a shot before its output counts.
        look_ahead_frames: Number of a shot's first frames that a network with a spatial memory also sees backwards, as
            far as they come in one batch. 0 for none.
        state: State of a shot that has begun, to continue from; a new one when omitted.
        sizer: Limits the number of frames in one call. When a GPU runs out of memory, finished mattes are kept, and the
            failed call is repeated with fewer frames. When omitted, all frames of a shot go into one call.
        times: Times the calls.
        tally: Counts the samples that ``estimate`` shows to the network.
        fisheye: The fisheye pictures in which eyes are shown; when omitted, eyes are shown as they are.
        agreement: Makes the estimates of two eyes agree; when omitted, each keeps its own.
        follows_people: True if the network may compute only what is near people, see ``FollowingState``; for whole
            pictures in frame order.
        settles_again: True to show frames within a shot in which much is new in small pictures first, see
            ``settle_again``; needs a ``SpatialState``.
        people: Chooses the pictures by where people are: their size, or the kind of fisheye pictures and the agreement
            for these. Needs a ``SpatialState``. When omitted, the pictures never change.
    """

    def __init__(
        self,
        network: MattingNetwork,
        *,
        warm_up_frames: int,
        look_ahead_frames: int = 0,
        state: NetworkState | None = None,
        sizer: AdaptiveBatchSizer | None = None,
        times: Times | None = None,
        tally: Tally | None = None,
        fisheye: FisheyeViews | None = None,
        agreement: StereoAgreement | None = None,
        follows_people: bool = False,
        settles_again: bool = False,
        people: CloseUps | RimPeople | None = None,
    ) -> None:
        self._network = network
        self._warm_up_frames, self._look_ahead_frames = warm_up_frames, look_ahead_frames
        self._sizer, self._times = sizer, times
        self._fisheye, self._agreement = fisheye, agreement
        self._follows_people, self._settles_again = follows_people, settles_again
        self._tally = Tally() if tally is None else tally
        self._state = network.new_state() if state is None else state
        self._is_cold = network.recurrent and state is None
        self._people = people
        self._last_seen: tuple[int, MatteEstimate, Any] | None = None
        """Number, estimate and picture of the shot's last frame; None if not needed."""

    @property
    def state(self) -> NetworkState:
        """The network's memory of the stream."""
        return self._state

    @property
    def fisheye(self) -> FisheyeViews | None:
        """The fisheye pictures in use; None if eyes are shown as they are."""
        return self._people.views if isinstance(self._people, RimPeople) else self._fisheye

    @property
    def agreement(self) -> StereoAgreement | None:
        """Makes the estimates of the pictures in use agree; None if each eye keeps its own."""
        return self._people.agreement if isinstance(self._people, RimPeople) else self._agreement

    def memory(self) -> list[FloatArray] | None:
        """The network's memory, from which another run can continue; None if it cannot be saved."""
        if not isinstance(self._state, SpatialState):
            return None
        arrays = self._state.arrays()
        return arrays if self._people is None else self._people.with_choice(arrays)

    def remember(self, memory: Sequence[FloatArray]) -> bool:
        """Restore the result of ``memory``; False if the network cannot."""
        if not isinstance(self._state, SpatialState) or not memory:
            return False
        self._state.restore(memory if self._people is None else self._people.go_on_from(memory))
        self._last_seen = None
        self._is_cold = False  # the shot has begun
        return True

    def estimate(self, batch: Batch) -> list[MatteEstimate]:
        """Mattes of the next frames."""
        self._count(batch)
        numbers = [frame.index for frame in batch.frames]
        return self.finish(self._answers(batch.images, batch.changes, numbers))

    def begin(self, batch: Batch) -> list[Answer]:
        """Like ``estimate``, but leaves to ``Answer.finish`` what any thread may do on the CPU."""
        self._count(batch)
        numbers = [frame.index for frame in batch.frames]
        return self._answers(batch.images, batch.changes, numbers, shown=batch.shown)

    def run(
        self, images: Any, starts_shot: Sequence[bool], *, indices: Sequence[int] | None = None
    ) -> list[MatteEstimate]:
        """Matte the next frames, a shot at a time.

        Args:
            images: [T, E, ...] in the network's input format, NumPy or CuPy as it requires.
            starts_shot: For each of the T frames, True where a new shot begins.
            indices: Frame numbers, ascending. Frames that were left out count when a shot is looked ahead to. From 0
                when omitted.

        Returns:
            T estimates.

        Raises:
            DeviceMemoryError: Memory ran out, and there is no sizer, or a single frame does not fit.
        """
        numbers = range(len(images)) if indices is None else indices
        return self.finish(self._answers(images, list(map(Change, starts_shot)), numbers))

    def finish(self, answers: Sequence[Answer]) -> list[MatteEstimate]:
        """Finish the answers of consecutive frames.

        Raises:
            DeviceMemoryError: As ``run``.
        """
        if self._fisheye is None and self._agreement is None and self._people is None:
            return [answer.estimate for answer in answers]
        # Apart from inference: a repeated call must not find a state that has advanced.
        with self._timed(), memory_errors():
            return bounds_of_calls(self._sizer, len(answers)).in_ranges(
                len(answers), lambda first, end: finished(answers[first:end])
            )

    def _timed(self) -> AbstractContextManager[object]:
        return nullcontext() if self._times is None else self._times.profile("network")

    def _answers(
        self,
        images: Any,
        changes: Sequence[Change],
        numbers: Sequence[int],
        *,
        shown: Any = None,
    ) -> list[Answer]:
        """Run the network.

        Args:
            images: As in ``run``.
            changes: For each of the T frames.
            numbers: The ``indices`` of ``run``.
            shown: The fisheye pictures of ``images``, if they are made already.
        """
        people = self._people
        close_ups = people if isinstance(people, CloseUps) else None
        # Such a network takes frames one by one anyway; from the arrays that they came in, nothing is copied.
        one_by_one = (
            self._follows_people
            and isinstance(shown, JoinedPictures)
            and isinstance(self._state, FollowingState)
        )

        starts_shot = [change.starts_shot for change in changes]
        settles = [self._settles_again and change is Change.MUCH_IS_NEW for change in changes]

        def show(first: int, end: int) -> Any:
            views = self.fisheye
            is_made = shown is not None and views == self._fisheye
            part = shown[first:end] if is_made else images[first:end]
            if isinstance(part, JoinedPictures):
                part = part.together()
            if views is None or is_made:
                return part
            with memory_errors():
                return views.show(part)

        def run_part(first: int, end: int) -> list[Answer]:
            if starts_shot[first]:
                self._state.reset()
                self._last_seen = None
                self._is_cold = self._network.recurrent
            if self._is_cold:
                ahead = self._ahead(starts_shot, numbers, first)
                self._begin(lambda: show(first, ahead), most=end - first)
                self._is_cold = False
                settles[first] = False
            self._look_for_people(numbers[first])
            usual = seen = show(first, end)
            if close_ups is not None:
                with memory_errors():
                    seen = close_ups.shown_of(usual)
            if settles[first] and isinstance(self._state, SpatialState):
                with memory_errors():
                    self._state = settle_again(self._network, seen[:1], self._state)
                settles[first] = False  # the call may be repeated with fewer frames
            if self._follows_people and isinstance(self._state, FollowingState):
                self._state.follow_people()
            estimates = self._network.infer(seen, self._state)
            size = None
            if close_ups is not None and close_ups.are_seen:
                size = close_ups.size_of(close=False)
                self._tally.samples -= (usual.size - seen.size) // 3
                self._tally.close_up_frames += end - first
            if people is not None:
                self._last_seen = numbers[end - 1], estimates[-1], seen[-1]
            kept = [None] * len(usual) if self.agreement is None else usual
            return [
                Answer(estimate, pictures, self.fisheye, self.agreement, size)
                for estimate, pictures in zip(estimates, kept, strict=True)
            ]

        def end_of(first: int, most: int) -> int:
            if one_by_one:
                return first + 1
            end = next_part(starts_shot, first, most)
            end = next((at for at in range(first + 1, end) if settles[at]), end)
            if people is None:
                return end
            period = _period(numbers[first])
            return next((at for at in range(first + 1, end) if _period(numbers[at]) != period), end)

        with self._timed():
            return bounds_of_calls(self._sizer, len(images)).in_ranges(len(images), run_part, end_of=end_of)

    def _count(self, batch: Batch) -> None:
        pictures, views = batch.images, self._fisheye
        self._tally.samples += int(
            pictures.size // 3 if views is None else views.samples(*pictures.shape[:2])
        )

    def _ahead(self, starts_shot: Sequence[bool], numbers: Sequence[int], first: int) -> int:
        """End of the frames that are looked ahead to in the shot that begins at ``first``."""
        end = next_part(starts_shot, first, max(self._look_ahead_frames, 1))
        last = numbers[first] + self._look_ahead_frames
        return next((at for at in range(first + 1, end) if numbers[at] >= last), end)

    def _begin(self, show: Callable[[], Any], *, most: int) -> None:
        """Initialise the memory for a shot, and choose the pictures that are shown.

        Args:
            show: Gives the pictures of the shot's first frames, or of the first alone, in the format in use.
            most: Maximum frames in one call.
        """
        people = self._people
        if people is not None:
            people.are_seen = False
        alpha = self._remember_beginning(show(), most=most)
        if people is None or alpha is None or not people.would_be_seen(alpha):
            return
        try:
            if isinstance(people, RimPeople):
                # Else the memory would keep mistakes made in the usual pictures.
                people.are_seen = True
                self._state.reset()
                self._remember_beginning(show(), most=most)
            else:
                self._choose(are_seen=True)
        except DeviceMemoryError:
            self._state.reset()  # else a retry would start from this attempt's memory
            raise

    def _remember_beginning(self, pictures: Any, *, most: int) -> FloatArray | None:
        """Initialise the memory from a shot's first frames; gives the first one's alpha, None if not needed or unknown.

        Returns:
            float32 [E, h, w], 0..1, in the host's memory.
        """
        if len(pictures) > 1 and isinstance(self._state, SpatialState):
            self._state, alpha = look_ahead(self._network, pictures, calls=self._warm_up_frames, most=most)
            return alpha
        answers = settle(self._network, pictures[:1], self._state, calls=self._warm_up_frames)
        return None if self._people is None else settled_alpha(answers, pictures[:1])

    def _look_for_people(self, number: int) -> None:
        """Before the first frame of a period, choose its pictures by the last frame's matte."""
        if self._last_seen is None or self._people is None:
            return
        last, estimate, picture = self._last_seen
        if _period(last) == _period(number):
            return
        with memory_errors():
            alpha = to_numpy(small_alpha(estimate, picture, self._people.shown))
        self._choose(are_seen=self._people.would_be_seen(alpha))
        self._last_seen = None

    def _choose(self, *, are_seen: bool) -> None:
        """Switch to the pictures for close-ups or for people at the rim, or back to the usual ones."""
        assert self._people is not None  # callers check
        if are_seen != self._people.are_seen and isinstance(self._state, SpatialState):
            with memory_errors():
                self._people.change(self._state, are_seen=are_seen)


def bounds_of_calls(sizer: AdaptiveBatchSizer | None, count: int) -> AdaptiveBatchSizer:
    """The sizer; if there is none, one that takes all ``count`` frames in one call."""
    most = max(count, 1)
    return sizer or AdaptiveBatchSizer(most, max_batch_size=most, min_batch_size=most, growing=False)


def _period(number: int) -> int:
    """Number of a frame's period; at the start of each, the pictures are chosen again by where people are.

    It depends only on the frame's number, so neither batching nor skipped frames change it.
    """
    return number // LOOK_EVERY_FRAMES


def next_part(starts_shot: Sequence[bool], first: int, most: int) -> int:
    """End of the part that begins at frame ``first``: at the next shot, after ``most`` frames, or at the end."""
    end = min(first + most, len(starts_shot))
    return next((step for step in range(first + 1, end) if starts_shot[step]), end)
