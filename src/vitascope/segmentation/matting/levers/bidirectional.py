"""Mattes a shot in both directions, so that the network knows earlier and later frames."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Final, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from vitascope.device import available_cores
from vitascope.frames import Frame
from vitascope.gpu.interchange import on_its_way
from vitascope.gpu.kernels.cells import greatest_around
from vitascope.gpu.kernels.cuda_module import array_module, is_on_gpu
from vitascope.gpu.kernels.resize_normalize import resized
from vitascope.gpu.kernels.weighted_planes import weighted_sums
from vitascope.gpu.memory.shortage import memory_errors
from vitascope.models.network import MatteEstimate, NetworkInput, SpatialState
from vitascope.segmentation.matting.batch import Batch, mirrored
from vitascope.segmentation.matting.close_ups import CloseUps
from vitascope.segmentation.matting.estimates import bounded
from vitascope.segmentation.matting.levers.missed_people import MissedPeople
from vitascope.segmentation.matting.levers.motion_smoothing import MotionSmoothing
from vitascope.segmentation.matting.levers.scenery import Scenery, in_doubt
from vitascope.segmentation.matting.shot_windows import FOLLOWING_FRAMES
from vitascope.segmentation.matting.shots import ShotInference, StreamNetwork, bounds_of_calls, next_part

BACKWARD_SCALE: Final = 2 / 3
"""Size of the pictures on the way back: who is there is told best where more of a body lies in what a feature sees. In
clips of 640x360, which have no samples for edges, it made alpha's error 2 to 8 percent larger in seven of eight
classes of ``benchmarks/matte_quality`` (seeds 111 to 114), and no smaller in the other."""
NEAR_SIDE: Final = 384
"""Their longest side, in samples, where one person is near: more of their hair is seen in them. Chosen against 512, on
close-ups of the seeds 111 to 126."""
EDGE_SCALE: Final = 1.25
"""Size of the pictures that edges are taken from: finer, and people who fill them are lost."""
_AGREEMENT_SCALE = 1.6
"""How much larger than those the pictures are at most in which eyes are brought together: as large as eyes of 1536
samples. Brought together in smaller ones, mattes differ again where large ones are drawn from two backgrounds. In those
of 2048 the eyes of two clips were 57 % nearer along outlines, here 52 %, in their own 43 %; they take 1.8 times the
memory."""
_FRAMES_THAT_AGREE = 4
"""At once: their pictures take about as much memory as those of a call."""
_FRAMES_OF_A_CALL = 8
"""A window is shown in such parts, or as many as are looked ahead to: what the network answers is larger than what is
kept of it."""
_CELLS = 24
"""Along the longest side: places at which answers are weighed. This and what follows was chosen on clips of
``benchmarks/matte_quality`` with the seeds 2, 3, 20 to 22, 50 and 51, trust and decision on 60, 70 to 72 and 75."""
_TRUST = 3
"""The power of sureness that is its weight."""
_LEAST_WEIGHT = 0.002
"""Where neither is sure, both count the same."""
_FAVOUR = 10
"""How much more an answer counts where it sees somebody: people are lost in one direction more often than invented."""
_YOUNG: Final = (0.25, 0.5, 0.75)
"""How much it counts in a shot's first frames that the way there sees nobody, where else it is 1: what it remembers
then is of smaller pictures. Who leaves is seen in them as ever."""
_DECISION = 2
"""The power of a weight that is its share: of somebody whom one direction alone sees, a tenth less would be a veil."""
_DOUBT = 3.0
"""Where the two directions' mean alpha of a cell differs by a third or more, the larger look begins without a memory
there; where by less, with a part of it. It would repeat what one of them saw. Chosen on ``several`` of seed 2."""
_AGREES = 0.1
"""Difference of a cell's mean alpha from which the finer answer counts for little."""
_FINER = 1.5
"""How much the finer answer counts against the others where it agrees. Chosen on seeds 111 to 115."""
_WORD_FOR_SOMEBODY, _WORD_FOR_NOBODY = 1.0, 0.3
"""What the finer answer's word is worth where the two others differ: for somebody more, as it loses who fills it. This
and what follows was chosen on seeds 60 and 70 to 76."""
_WITNESS, _WITNESS_TRUST = 2.0, 12
"""How much the finer answer counts by itself where it sees somebody, and the power of its sureness: of people whom it
alone sees, and who are there, it is sure to 0.9 and more; of others seldom to 0.8."""
_MET_TRUST = 2
"""That power where both others miss whom it sees, and one sees somebody there within ``_LASTING_FRAMES``: who is small
is found late, and no cell of a small body is sure. Chosen on the seeds 111 to 118."""
_SOLID, _SOLID_TRUST = 3.0, 4
"""How much more the way there counts where it is sure of somebody three cells thick and more, and beside, and the power
of its sureness: so who leaves keeps parts that the two others miss. Chosen on seeds 111 to 118."""
_LASTING_FRAMES, _LASTING = 3, 2
"""To either side: frames in which it must see somebody there, too; the power of the share in which it does. Both hold
for the finer answer's word, and for what the way there is sure of."""
_SEEN = 0.5
"""A cell's mean alpha from which somebody is seen there."""
_NEAR = 0.2
"""The share of the picture from which on one person in it is near."""
_MISSED = 0.1
"""The difference of a cell's mean alpha from which on the finer answer misses what another one sees. This and what
follows was chosen on close-ups of the seeds 111 to 126."""
_BESIDE, _HAIR_CELLS = 0.6, 3
"""A cell's mean alpha from which somebody is there, and how many cells away their hair may reach."""
_LEAST_FINE = 2.5e-4
"""Less fine is as good as not at all."""
_FINENESS = 2
"""The power of an answer's fineness that is its share of hair."""

BIDIRECTIONAL_RULES: Final = (
    "eyes agree last, in larger pictures, their fisheye pictures are seen in all sizes, the way back is smaller beside "
    "larger edges, and who is seen in these alone is small",
    (BACKWARD_SCALE, NEAR_SIDE, EDGE_SCALE, _AGREEMENT_SCALE, _CELLS),
    (_TRUST, _LEAST_WEIGHT, _FAVOUR, _YOUNG, _DECISION, _DOUBT),
    (_AGREES, _FINER, _WORD_FOR_SOMEBODY, _WORD_FOR_NOBODY, _WITNESS, _WITNESS_TRUST, _MET_TRUST),
    (_SOLID, _SOLID_TRUST, _LASTING_FRAMES, _LASTING, _SEEN),
    (_NEAR, _MISSED, _BESIDE, _HAIR_CELLS, _LEAST_FINE, _FINENESS),
)
"""What mattes of this lever depend on, beside those of people who were missed and of smoothing."""


class Bidirectional:
    """Shows each window of a shot forwards, backwards and once more for its edges, and brings the answers together.

    The way back has a memory of its own, which begins a few frames beyond the window (``Batch.following``): it knows
    who will enter, who was hidden, and nothing of what the way there mistook for somebody. It is smaller, but where no
    larger look makes up for the edges that this costs. Place by place, each direction counts as much as it is sure: the
    mean of ``|2 alpha - 1|`` over a cell, to the sixth; and far more where it sees somebody. So who leaves is taken
    from the one, who enters from the other, if that is sure. The pictures are mirrored, so that mistakes are less like
    those of the way there.

    Then the window is seen larger, where the picture has the samples, from its last frame back and with what the way
    there remembers of it, except of places where the two directions differ: there it judges for itself. The larger
    look has finer edges, finds who is small, and loses who fills the picture: its edges count where it agrees, its
    word where the two others differ, and by itself where it is very sure of somebody small for several frames, or
    fairly sure of one whom another look sees there a moment before or after. It is left out where the eye has no more
    samples. It is mirrored, too. Beside it the way there counts more where it is sure of somebody for several frames,
    unless they are thin: both others miss somebody near who leaves.

    The hair of one person who is near is seen best in still smaller pictures, least in the larger ones, and an answer
    that misses it is sure that nobody is there. So around them, where the larger look misses what another one sees, the
    two others count by how much their alpha follows the picture's detail. A window in which somebody comes near, or
    goes, is seen back in both sizes, and passes from the one to the other.

    Then scenery is taken out, see ``Scenery``, where looks differ; people are looked for whom larger ones hide, see
    ``MissedPeople``; mattes are smoothed over time, see ``MotionSmoothing``; and eyes that are to agree do so, in
    larger pictures.

    Args:
        stream: The network, which takes pictures of any size, and how it is shown frames; its memory is a
            ``SpatialState``. Eyes are shown as they are, whatever ``fisheye`` says: see ``FisheyeLooks``.
    """

    def __init__(self, stream: StreamNetwork) -> None:
        self._stream = stream
        self._wanted = _resized(stream.wanted, EDGE_SCALE, stream.eye_size)
        self._has_edges = self._wanted.size != stream.wanted.size  # as where the eye has no more samples
        self._backward = stream.wanted
        if self._has_edges:
            self._backward = _resized(stream.wanted, BACKWARD_SCALE, stream.eye_size)
        near = min(BACKWARD_SCALE, NEAR_SIDE / max(stream.wanted.size))
        self._backward_near = _resized(stream.wanted, near, stream.eye_size)
        # They begin when they are needed, and end with the lever: to begin anew for each window takes longer. The
        # camera's motion is found in a moment, and would wait behind that of all the rest: it has its own.
        threads, camera_threads = (
            ThreadPoolExecutor(available_cores(), thread_name_prefix=f"vitascope-{name}")
            for name in ("motion", "camera")
        )
        self._scenery = Scenery(stream.wanted, camera_threads)
        self._missed = MissedPeople(stream, self._wanted, self._backward)
        self._smoothing = MotionSmoothing(stream.views, self._wanted, threads)
        # Eyes agree last: smoothed after that, they were further apart again.
        self._shown_to_agree = _resized(self._wanted, _AGREEMENT_SCALE, stream.eye_size)
        self._agreement = stream.agreement
        if self._agreement is not None:
            self._agreement = replace(self._agreement, wanted=self._shown_to_agree)
        shrink = max(max(stream.wanted.size) / _CELLS, 1.0)
        self._cells = (
            max(round(stream.wanted.size[0] / shrink), 1),
            max(round(stream.wanted.size[1] / shrink), 1),
        )
        self._most = max(_FRAMES_OF_A_CALL, stream.look_ahead_frames)
        self._forward = stream.shots(is_main=True)
        self._age = 0
        """Frames that the way there has seen of the shot."""
        self._was_near = False
        """Whether one person was near in the last of them."""

    def estimate(self, batch: Batch) -> list[MatteEstimate]:
        """Mattes of the next frames: alpha's coefficients at the size of the edges' pictures, or of eyes that agree."""
        estimates: list[MatteEstimate] = []
        first = 0
        while first < len(batch):
            end = next_part(batch.starts_shot, first, len(batch) - first)
            if batch.starts_shot[first]:
                self._age = 0
                self._smoothing.begin_shot()
            part = batch.take(range(first, end))
            estimates += self._agreed(part.frames, self._of_shot(part, is_last=end == len(batch)))
            self._age += end - first
            first = end
        return estimates

    def _of_shot(self, batch: Batch, *, is_last: bool) -> list[MatteEstimate]:
        """Mattes of frames of one shot, of which those that follow come next where they are the batch's last."""
        ahead, beyond, back = self._seen_ahead(batch), batch.following if is_last else (), {}
        told, shown = on_its_way(ahead.mean), self._smoothing.show(batch.frames)
        if self._age and len(batch) > 1 and is_on_gpu(ahead.mean):
            # Before what was seen ahead is asked for: the GPU goes on with this while the host waits for that. Without
            # a GPU motion is looked for beside it.
            back[self._was_near] = self._seen_far_back(batch, beyond, near=self._was_near)
        people = told()
        motion = self._smoothing.watch(shown, people.max(axis=(0, 1, 2)))
        try:
            is_near = CloseUps.would_be_seen(people[-1, :, 0], from_share=_NEAR)
            seen, doubted = self._seen_all_ways(batch, ahead, beyond, back, is_near=is_near)
            del ahead  # a window's planes take hundreds of MB
            judged, smoothed, cleared = self._missed.judge(batch, seen), None, seen
            if doubted().all():
                cleared = self._scenery.cleared(batch, seen)
            elif is_on_gpu(seen[0].gain):
                # Before who is missed is asked for: nobody is as a rule, and the GPU goes on while the host waits.
                smoothed = self._smoothing.smooth(batch.frames, seen, motion)
            completed = self._missed.complete(batch, cleared, judged())
            if smoothed is not None and completed is seen:
                return smoothed
            return self._smoothing.smooth(batch.frames, completed, motion)
        except BaseException:
            motion.cancel()  # Python's end would wait for it
            raise

    def _seen_ahead(self, batch: Batch) -> _Known:
        """Answers about frames of one shot, shown in their order."""
        parts: list[_Known] = []
        for at in range(0, len(batch), self._most):
            part = batch.take(range(at, min(at + self._most, len(batch))))
            parts.append(self._known(self._forward.estimate(part), part.images, self._stream.wanted))
        return _Known.joined(parts)

    def _agreed(self, frames: Sequence[Frame], estimates: list[MatteEstimate]) -> list[MatteEstimate]:
        """Mattes of a window whose eyes agree, if they are to."""
        agreement = self._agreement
        if agreement is None:
            return estimates

        def agree(first: int, end: int) -> list[MatteEstimate]:
            images = self._stream.views.make(frames[first:end], self._shown_to_agree)
            return agreement.agree(estimates[first:end], list(images))

        with memory_errors():
            return bounds_of_calls(self._stream.sizer, len(frames)).in_ranges(
                len(frames), agree, end_of=lambda first, most: first + min(most, _FRAMES_THAT_AGREE)
            )

    def _seen_all_ways(
        self,
        batch: Batch,
        ahead: _Known,
        beyond: Sequence[Frame],
        back: dict[bool, _Known],
        *,
        is_near: bool,
    ) -> tuple[list[MatteEstimate], Callable[[], npt.NDArray[np.bool_]]]:
        """Mattes of a window, with what all looks say of it; and what tells whether they differ, see ``in_doubt``.

        Args:
            batch: The window.
            ahead: What the look at it ahead says.
            beyond: The frames that follow, as far as they are looked at.
            back: What the look back says, in pictures for somebody near (True) or for others, as far as it is known;
                given up.
            is_near: Whether somebody is near in the last frame.
        """
        stream = self._stream
        was_near = self._was_near if self._age and len(batch) > 1 else is_near
        self._was_near = is_near
        for near in {was_near, is_near} - back.keys():
            back[near] = self._seen_far_back(batch, beyond, near=near)
        edges: list[_Known] = []
        if self._has_edges:
            memory = self._forward.state
            assert isinstance(memory, SpatialState)  # as StreamMatting sees to
            memory = memory.copy()
            memory.take(None, _doubt(ahead.mean[-1], back[is_near].mean[-1]))
            memory.stretch(self._wanted.size)
            memory.mirror()
            larger = stream.shots(state=memory)
            edges.append(self._seen_back(batch.frames, larger, self._wanted, count=len(batch)))
        # On its way before the mattes are made: the GPU makes them while the host waits for it.
        doubted = on_its_way(in_doubt([one.mean for one in (ahead, *back.values(), *edges)]))
        made = {near: self._as_one([ahead, back.pop(near), *edges], has_hair=near) for near in tuple(back)}
        if was_near == is_near:
            return made[is_near], doubted
        mixed = [
            MatteEstimate(
                gain=_between(one.gain, other.gain, at / len(batch)),
                offset=_between(one.offset, other.offset, at / len(batch)),
            )
            for at, (one, other) in enumerate(zip(made[was_near], made[is_near], strict=True), start=1)
        ]
        return mixed, doubted

    def _as_one(self, seen: Sequence[_Known], *, has_hair: bool) -> list[MatteEstimate]:
        """What each side says of a window's frames, as one; see ``_together``."""
        lasting = [_lasting(one.mean) for one in seen] if self._has_edges else []
        return [
            estimate
            for at in range(0, len(seen[0].mean), _FRAMES_OF_A_CALL)
            for estimate in _together(
                [one.of(slice(at, at + _FRAMES_OF_A_CALL)) for one in seen],
                self._wanted.size,
                young=_YOUNG[self._age + at :],
                lasting=[one[at : at + _FRAMES_OF_A_CALL] for one in lasting],
                has_hair=has_hair,
            )
        ]

    def _seen_far_back(self, batch: Batch, beyond: Sequence[Frame], *, near: bool) -> _Known:
        """Answers about a window, seen back from the frames that follow; smaller where somebody is near."""
        # As many are a beginning by themselves.
        alone = self._stream.shots(looks_ahead=len(beyond) < FOLLOWING_FRAMES)
        shown = self._backward_near if near else self._backward
        return self._seen_back([*batch.frames, *beyond], alone, shown, count=len(batch))

    def _seen_back(
        self,
        frames: Sequence[Frame],
        shots: ShotInference,
        wanted: NetworkInput,
        *,
        count: int,
    ) -> _Known:
        """Answers about the first of these frames, shown from the last to the first in pictures of this size.

        Args:
            frames: Consecutive.
            shots: Is shown them.
            wanted: Their pictures.
            count: How many are asked about.
        """
        parts: list[_Known] = []
        for end in range(len(frames), 0, -self._most):
            shown = frames[max(end - self._most, 0) : end][::-1]
            images = self._stream.views.make(shown, wanted)
            images = mirrored(images, wanted.layout)
            answers = shots.estimate(Batch(shown, images, [False] * len(shown)))
            beyond = max(end - count, 0)
            if beyond < len(shown):
                known = self._known(answers[beyond:], images[beyond:], wanted, mirrored=True)
                parts.insert(0, known.of(slice(None, None, -1)))
        return _Known.joined(parts)

    def _known(
        self, estimates: Sequence[MatteEstimate], images: Any, wanted: NetworkInput, *, mirrored: bool = False
    ) -> _Known:
        """Answers about frames, whose pictures may be mirrored, and what they say of each cell."""
        gain, offset, said = bounded(estimates, images, wanted, is_mirrored=mirrored)
        said = resized(said, self._cells)
        return _Known(
            *(
                planes.reshape(len(images), -1, 1, *planes.shape[2:])
                for planes in (gain, offset, said[:, :1], said[:, 1:2], said[:, 2:])
            )
        )


class _Known(NamedTuple):
    """What one side says of consecutive frames, on their device."""

    gain: Any
    """Alpha's, float32 [N, E, 1, h, w]."""
    offset: Any
    """Likewise."""
    sure: Any
    """By cell, how sure it is, float32 [N, E, 1, rows, columns], 0..1."""
    mean: Any
    """Likewise, what alpha's mean is."""
    fine: Any
    """Likewise, how much of it follows the picture's detail."""

    def of(self, frames: slice) -> _Known:
        """What it says of some of them."""
        return _Known(*(planes[frames] for planes in self))

    @classmethod
    def joined(cls, parts: list[Self]) -> Self:
        """What it says of the frames of all parts, in memory of its own; the parts are given up, plane by plane."""
        planes_of_parts = [list(planes) for planes in zip(*parts, strict=True)]
        parts.clear()
        return cls(*(np.concatenate(planes_of_parts.pop(0)) for _ in cls._fields))


def _together(
    answers: Sequence[_Known],
    size: tuple[int, int],
    *,
    young: Sequence[float],
    lasting: Sequence[Any] = (),
    has_hair: bool = False,
) -> Iterator[MatteEstimate]:
    """The answers about each frame as one: there, back, and for edges, if there is one.

    Args:
        answers: Of each side, about the same frames.
        size: Of the result, (height, width).
        young: What it counts that the way there sees nobody, in the first frames; 1 in those beyond.
        lasting: How much longer than a moment each sees somebody in each cell, float32 [N, E, 1, rows, columns], 0..1,
            as ``_lasting`` gives it; only with an answer for edges.
        has_hair: True where hair may be seen.
    """
    gains, offsets, sures, means, fines = (
        [_of_all_eyes(planes) for planes in part] for part in zip(*answers, strict=True)
    )
    eyes = answers[0].gain.shape[1]
    nobody: list[Any] = [1.0, 1.0]
    if young:
        counts = np.ones((len(means[0]), 1, 1, 1), np.float32)
        counts[: len(young) * eyes, 0, 0, 0] = np.repeat(young, eyes)[: len(counts)]
        nobody[0] = array_module(on_gpu=is_on_gpu(means[0])).asarray(counts)
    around = [greatest_around(mean) for mean in means]
    weights = [
        (sure**_TRUST + _LEAST_WEIGHT) * (no + (1 + _FAVOUR - no) * near)
        for sure, near, no in zip(sures[:2], around[:2], nobody, strict=True)
    ]
    if len(answers) > 2:
        nearer = abs(means[2] - means[1]) - abs(means[2] - means[0])
        word = np.exp(nearer * (_WORD_FOR_NOBODY + (_WORD_FOR_SOMEBODY - _WORD_FOR_NOBODY) * means[2]))
        there, back, larger = (_of_all_eyes(one) for one in lasting)
        solid = _SOLID * _solid(means[0] * sures[0] ** _SOLID_TRUST) * there
        alone = (means[2] - np.maximum(*means[:2])).clip(0.0, 1.0)
        met = (alone / _MISSED).clip(0.0, 1.0) * (there + back > 0)
        trust = _WITNESS_TRUST + np.float32(_MET_TRUST - _WITNESS_TRUST) * met
        witness = _WITNESS * sures[2] ** trust * (1 + _FAVOUR) * around[2] * larger
        # Whom it alone sees is small. Three cells of it and more are the scene that was seen between two who part.
        witness *= 1 - _solid((alone > _SEEN).astype("float32"))
        weights = [weights[0] * word * (1 + solid), weights[1] / word, witness]
    weights = [one**_DECISION for one in weights]
    total = sum(weights)
    shares = [one / total for one in weights]
    if len(answers) > 2:
        who = sum(share * mean for share, mean in zip(shares, means, strict=True))
        finer = _FINER * np.exp(-(((means[2] - who) / _AGREES) ** 2))
        shares = [one / (1 + finer) for one in (*shares[:2], shares[2] + finer)]
        if has_hair:
            shares = _with_hair(shares, means, fines, around)
    gain, offset = weighted_sums((gains, offsets), shares, size)
    for at in range(0, len(gain), eyes):
        yield MatteEstimate(gain=gain[at : at + eyes], offset=offset[at : at + eyes])


def _between(one: Any, other: Any, share: float) -> Any:
    """Two planes mixed, on their device: so much of the other."""
    return one + np.float32(share) * (other - one)


def _with_hair(
    shares: Sequence[Any], means: Sequence[Any], fines: Sequence[Any], around: Sequence[Any]
) -> list[Any]:
    """Shares of the answers where the one for edges misses hair: there, and back, by how fine each is.

    Args:
        shares: Of each answer by cell, float32 [N, 1, rows, columns]: there, back, and for edges.
        means: What alpha's mean is.
        fines: How much of it follows the picture's detail.
        around: The greatest mean of each cell and those around it.
    """
    reach = np.minimum(*around[:2])
    for _ in range(_HAIR_CELLS - 1):
        reach = greatest_around(reach)
    hair = ((np.maximum(*means[:2]) - means[2]) / _MISSED).clip(0.0, 1.0) * (reach > _BESIDE)
    weights = [fine.clip(_LEAST_FINE, None) ** _FINENESS for fine in fines[:2]]
    total = sum(weights)
    others = [share + hair * (one / total - share) for share, one in zip(shares[:2], weights, strict=True)]
    return [*others, shares[2] * (1 - hair)]


def _lasting(means: Any) -> Any:
    """In what share of the frames around each frame somebody is seen in or beside each cell, to a power.

    At a window's ends these are the nearest as many; frames that a shorter window lacks show nobody.

    Args:
        means: What one side says of alpha's mean in consecutive frames, float32 [N, E, 1, rows, columns].

    Returns:
        float32 of the same shape, 0..1, on their device.
    """
    seen = (greatest_around(_of_all_eyes(means)) > _SEEN).astype("float32").reshape(means.shape)
    until = np.concatenate([np.zeros_like(seen[:1]), seen.cumsum(axis=0)])
    frames = 2 * _LASTING_FRAMES + 1
    # Slices alone: to bring indices up, the host would wait for the GPU.
    counts = until[frames:] - until[:-frames] if len(seen) > frames else until[-1:]
    middle = len(seen) - len(counts)
    ends = [counts[:1]] * min(_LASTING_FRAMES, middle), [counts[-1:]] * max(middle - _LASTING_FRAMES, 0)
    return (np.concatenate([*ends[0], counts, *ends[1]]) / np.float32(frames)) ** _LASTING


def _of_all_eyes(planes: Any) -> Any:
    """Planes of frames and eyes, [N, E, 1, h, w], one after the other: [N * E, 1, h, w]."""
    return planes.reshape(-1, *planes.shape[2:])


def _doubt(one: Any, other: Any) -> Any:
    """How much two answers about a frame differ in each cell, or in one beside it.

    Args:
        one: What the first says of alpha's mean, float32 [E, 1, rows, columns].
        other: Likewise, the second.

    Returns:
        float32 [E, rows, columns], 0..1, on their device.
    """
    return greatest_around((_DOUBT * abs(one - other)).clip(0.0, 1.0))[:, 0]


def _solid(cells: Any) -> Any:
    """What is at least three cells thick, and the cells beside it; beyond the picture's border it goes on.

    Args:
        cells: float32 [N, 1, rows, columns], 0..1.

    Returns:
        float32 of the same shape, 0..1, on its device.
    """
    inner = 1 - greatest_around(1 - cells)
    return greatest_around(greatest_around(inner))


def _resized(wanted: NetworkInput, scale: float, eye_size: tuple[int, int]) -> NetworkInput:
    """A network's picture at another size, no larger than the eye's own or than what it was."""
    height, width = (
        max(round(side * scale), 1) if scale <= 1 else max(min(round(side * scale), own), side)
        for side, own in zip(wanted.size, eye_size, strict=True)
    )
    return replace(wanted, size=(height, width))
