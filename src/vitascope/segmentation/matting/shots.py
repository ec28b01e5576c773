"""Runs a network over consecutive frames of one stream: its pictures, and its memory, reset at each shot."""

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
from vitascope.segmentation.matting.stereo_agreement import StereoAgreement
from vitascope.segmentation.report import Tally


class Views(Protocol):
    """Makes the network's pictures from frames: ``EyeViews``, or fisheye pictures of it."""

    @property
    def eyes(self) -> int:
        """Pictures of a frame."""
        ...

    def windows(self, parts: Sequence[Region], grid: tuple[int, int]) -> list[Region]:
        """Parts of the pictures, one each, upright in samples of a grid (height, width): as ``make`` takes them."""
        ...

    def make(
        self, frames: Sequence[Frame], wanted: NetworkInput, *, windows: Sequence[Region] | None = None
    ) -> Any:
        """Pictures [T, E, ...] of ``wanted.size``, on the frames' device.

        Args:
            frames: On the CPU, or NV12 or P010 on the GPU.
            wanted: Size and normalisation.
            windows: What to show of each picture, as ``windows`` gives it; all of it when omitted.
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
        """Parts of the eyes, one each, upright in samples of a grid (height, width): as coded luma samples."""
        return [
            coded_window(region, part, grid, self._rotation)
            for region, part in zip(self._regions, parts, strict=True)
        ]

    def make(
        self, frames: Sequence[Frame], wanted: NetworkInput, *, windows: Sequence[Region] | None = None
    ) -> Any:
        """Pictures [T, E, ...] of the eyes; whole ones on the CPU lie in memory that is used again once they go."""
        on_gpu = is_on_gpu(frames[0].planes[0])
        shape = (len(frames), self.eyes, *wanted.picture_shape())
        # Windows have sizes of their own: their memory would not be used again.
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
    """A part of an eye's upright picture as luma samples of the coded frame.

    Args:
        region: The eye, as coded.
        part: In samples of ``grid``.
        grid: (height, width) of the whole upright picture.
        rotation_degrees: Clockwise turn that makes the picture upright.

    Returns:
        At least one sample, rounded to whole ones.
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
    """A network as one stream uses it: all that a lever needs to ask it."""

    network: MattingNetwork
    wanted: NetworkInput
    """What the network is shown of a whole eye."""
    eye_size: tuple[int, int]
    """(height, width) of an eye, upright, in luma samples."""
    views: Views
    warm_up_frames: int
    look_ahead_frames: int
    """First frames of a shot that are seen backwards before it is matted; they come in one batch. 0: none."""
    tally: Tally = field(default_factory=Tally)
    """Counts what the network saw, and what became of the frames."""
    first_network: MattingNetwork | None = None
    """For ``early_exit="selfie"``."""
    sizer: AdaptiveBatchSizer | None = None
    """Bounds the frames of one call on a GPU."""
    times: Times | None = None
    """Times the calls on a GPU."""
    fisheye: FisheyeViews | None = None
    """What whole eyes are shown as; None if they are shown as they are."""
    agreement: StereoAgreement | None = None
    """Brings together what is known of two whole eyes; None if each keeps its own."""
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
        """Ask the network, or another one, for this stream; from the state of a shot that has begun, if it is given.

        Args:
            network: This one instead.
            state: To go on from.
            fisheye: What whole eyes are shown as.
            agreement: Brings together the answers about two eyes.
            looks_ahead: False where what is shown may begin again in the middle of a shot.
            follows_people: As ``ShotInference`` takes it.
            settles_again: Likewise; False where shots are not looked ahead to.
            is_main: True for whole pictures in their order: close-ups and people at the rim are told in these.
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
    """What the network says of one frame."""

    estimate: MatteEstimate
    """About the pictures that it was shown."""
    pictures: Any
    """[E, ...]: those pictures; None where nobody looks at them again."""
    fisheye: FisheyeViews | None
    """What they are of the eyes; None if they are the eyes' own."""
    agreement: StereoAgreement | None
    """Brings together what is said of two eyes."""
    usual_size: tuple[int, int] | None = None
    """(height, width) that an answer about a smaller picture is enlarged to; None if it was no smaller."""

    @property
    def nbytes(self) -> int:
        """Bytes held beside the estimate, for the queues."""
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
        """The frame's matte, at the places of the eyes."""
        return finished([self])[0]


def finished(answers: Sequence[Answer]) -> list[MatteEstimate]:
    """The frames' mattes, at the places of the eyes; on a GPU several are made in a launch."""
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
    """Runs one stream's frames through a network, whole and once; owns the stream's recurrent state.

    Args:
        network: Shared with other streams if need be; only this object's state is changed.
        warm_up_frames: How often a recurrent network sees the first picture of a shot before its answer counts.
        look_ahead_frames: First frames of a shot that a network with a memory in the plane sees backwards, too; as many
            of them as are there with the first. 0: none.
        state: State of a shot that has begun, to go on from; a new one when omitted.
        sizer: Bounds the frames of one call. When a GPU runs out of memory, what was matted before stays matted,
            and the call that failed is made again with fewer frames. All of a shot's in one call when omitted.
        times: Times the calls.
        tally: Counts the samples that ``estimate`` shows to the network.
        fisheye: What equirectangular eyes are shown as; they are shown as they are when omitted.
        agreement: Brings together the answers about two eyes; each keeps its own when omitted.
        follows_people: True where the network may compute what is near people alone, see ``FollowingState``: whole
            pictures, one after the other.
        settles_again: True if frames of a batch in which much is new, amid a shot, are shown small first, see
            ``settle_again``, where the network's memory is a ``SpatialState``.
        people: Where they are chooses the size of the pictures, or which fisheye pictures are shown and what brings
            answers about these together; the network's memory is a ``SpatialState``. As given when omitted.
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
        """The shot's last frame: its number, the answer and the picture; None where nobody asks."""

    @property
    def state(self) -> NetworkState:
        """What the network remembers of the stream."""
        return self._state

    @property
    def fisheye(self) -> FisheyeViews | None:
        """What eyes are shown as now; None if as they are."""
        return self._people.views if isinstance(self._people, RimPeople) else self._fisheye

    @property
    def agreement(self) -> StereoAgreement | None:
        """What brings together the answers about these; None if each eye keeps its own."""
        return self._people.agreement if isinstance(self._people, RimPeople) else self._agreement

    def memory(self) -> list[FloatArray] | None:
        """What the network remembers of the stream, to go on from in another run; None if that cannot be told."""
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
        return self.finish(
            self._answers(batch.images, batch.starts_shot, numbers, much_is_new=batch.much_is_new)
        )

    def begin(self, batch: Batch) -> list[Answer]:
        """As ``estimate``, but for what any thread may do on the CPU: ``Answer.finish`` makes a matte of one."""
        self._count(batch)
        numbers = [frame.index for frame in batch.frames]
        return self._answers(
            batch.images, batch.starts_shot, numbers, much_is_new=batch.much_is_new, shown=batch.shown
        )

    def run(
        self, images: Any, starts_shot: Sequence[bool], *, indices: Sequence[int] | None = None
    ) -> list[MatteEstimate]:
        """Matte the next frames, a shot at a time.

        Args:
            images: [T, E, ...] as the network's ``input_for`` says, NumPy or CuPy as the network takes them.
            starts_shot: For each of the T frames, True where a new shot begins.
            indices: The frames' numbers, growing; where some are left out, those that follow are not looked at further
                ahead for it. From 0 when omitted.

        Returns:
            T estimates.

        Raises:
            DeviceMemoryError: Memory ran out, and there is no sizer, or a single frame does not fit.
        """
        numbers = range(len(images)) if indices is None else indices
        return self.finish(self._answers(images, starts_shot, numbers))

    def finish(self, answers: Sequence[Answer]) -> list[MatteEstimate]:
        """Mattes of answers about consecutive frames.

        Raises:
            DeviceMemoryError: As ``run``.
        """
        if self._fisheye is None and self._agreement is None and self._people is None:
            return [answer.estimate for answer in answers]
        # By itself: a call that is made again must not find a state that has moved on.
        with self._timed(), memory_errors():
            return bounds_of_calls(self._sizer, len(answers)).in_ranges(
                len(answers), lambda first, end: finished(answers[first:end])
            )

    def _timed(self) -> AbstractContextManager[object]:
        return nullcontext() if self._times is None else self._times.profile("network")

    def _answers(
        self,
        images: Any,
        starts_shot: Sequence[bool],
        numbers: Sequence[int],
        *,
        much_is_new: Sequence[bool] = (),
        shown: Any = None,
    ) -> list[Answer]:
        """What the network answers.

        Args:
            images: As ``run`` takes them.
            starts_shot: Likewise.
            numbers: Likewise the indices.
            much_is_new: As a batch has it.
            shown: The fisheye pictures of ``images``, where they are made already.
        """
        people = self._people
        close_ups = people if isinstance(people, CloseUps) else None
        # Such a network takes frames one by one in any case: as they came, nothing is copied.
        one_by_one = (
            self._follows_people
            and isinstance(shown, JoinedPictures)
            and isinstance(self._state, FollowingState)
        )

        settles = [False] * len(images)
        if self._settles_again and much_is_new:
            settles = [is_new and not starts for is_new, starts in zip(much_is_new, starts_shot, strict=True)]

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
                settles[first] = False  # the call may be made again, with fewer frames
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
        """Where the frames end that the shot which begins at ``first`` is seen ahead."""
        end = next_part(starts_shot, first, max(self._look_ahead_frames, 1))
        last = numbers[first] + self._look_ahead_frames
        return next((at for at in range(first + 1, end) if numbers[at] >= last), end)

    def _begin(self, show: Callable[[], Any], *, most: int) -> None:
        """Give a shot's memory its beginning, and choose what is shown from then on.

        Args:
            show: Gives the pictures of the shot's first frames, or of the first, as they are shown now.
            most: Frames of one call.
        """
        people = self._people
        if people is not None:
            people.are_seen = False
        alpha = self._remember_beginning(show(), most=most)
        if people is None or alpha is None or not people.would_be_seen(alpha):
            return
        try:
            if isinstance(people, RimPeople):
                # Memory would keep what it mistook in the usual pictures.
                people.are_seen = True
                self._state.reset()
                self._remember_beginning(show(), most=most)
            else:
                self._choose(are_seen=True)
        except DeviceMemoryError:
            self._state.reset()  # else the next try would begin with this one's
            raise

    def _remember_beginning(self, pictures: Any, *, most: int) -> FloatArray | None:
        """What a shot's first frames are remembered as; the first one's alpha, None where nobody asks or it is unknown.

        Returns:
            float32 [E, h, w], 0..1, in the host's memory.
        """
        if len(pictures) > 1 and isinstance(self._state, SpatialState):
            self._state, alpha = look_ahead(self._network, pictures, calls=self._warm_up_frames, most=most)
            return alpha
        answers = settle(self._network, pictures[:1], self._state, calls=self._warm_up_frames)
        return None if self._people is None else settled_alpha(answers, pictures[:1])

    def _look_for_people(self, number: int) -> None:
        """Change what is shown where the last answer asks for it, before the first frame of a period."""
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
        """Show pictures of close-ups or of people at the rim, or the usual ones, from now on."""
        assert self._people is not None  # whoever asks knows
        if are_seen != self._people.are_seen and isinstance(self._state, SpatialState):
            with memory_errors():
                self._people.change(self._state, are_seen=are_seen)


def bounds_of_calls(sizer: AdaptiveBatchSizer | None, count: int) -> AdaptiveBatchSizer:
    """The sizer; one that takes all ``count`` frames in one call where there is none."""
    most = max(count, 1)
    return sizer or AdaptiveBatchSizer(most, max_batch_size=most, min_batch_size=most, growing=False)


def _period(number: int) -> int:
    """Which part of the video a frame lies in, at whose beginning it is asked who fills the picture.

    It follows from the frame's number, so neither batches nor frames that are left out change it.
    """
    return number // LOOK_EVERY_FRAMES


def next_part(starts_shot: Sequence[bool], first: int, most: int) -> int:
    """Where the part that begins at frame ``first`` ends: at the next shot, after ``most`` frames, or at the end."""
    end = min(first + most, len(starts_shot))
    return next((step for step in range(first + 1, end) if starts_shot[step]), end)
