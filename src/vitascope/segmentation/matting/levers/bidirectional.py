"""Mattes a shot forwards and backwards, so that the network knows both earlier and later frames."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import reduce
from typing import Any, Final, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from vitascope.device import available_cores
from vitascope.frames import Frame
from vitascope.gpu.interchange import on_its_way
from vitascope.gpu.kernels.cells import greatest_around, mean_around
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
from vitascope.segmentation.matting.scene_cuts import Change
from vitascope.segmentation.matting.shot_windows import FOLLOWING_FRAMES
from vitascope.segmentation.matting.shots import ShotInference, StreamNetwork, bounds_of_calls, next_part

BACKWARD_SCALE: Final = 2 / 3
"""Size of the pictures in the backward pass, relative to the usual ones: the network recognises people best where one
of its features covers more of a body. In clips of 640x360, which are too small for larger edges, it made alpha's error
2 to 8 percent larger in seven of eight classes of ``benchmarks/matte_quality`` (seeds 111 to 114), and no smaller in
the eighth."""
NEAR_SIDE: Final = 384
"""Longest side of the backward pass's pictures, in samples, while one person is near: smaller ones show more of the
hair. Chosen against 512, on close-ups of the seeds 111 to 126."""
EDGE_SCALE: Final = 1.25
"""Size of the pictures that edges are taken from, relative to the usual ones: edges are finer in them, but people who
fill them are lost."""
_AGREEMENT_SCALE = 1.6
"""Maximum size of the pictures in which the two eyes are made to agree, relative to the edges' pictures: reached by
eyes of 1536 samples. If eyes agree in smaller pictures, their full-size mattes, refined over two backgrounds, differ
again. In pictures of 2048 samples the eyes of two clips were 57 % nearer along outlines, with this limit 52 %, in the
edges' own size 43 %; but 2048 samples take 1.8 times the memory."""
_FRAMES_THAT_AGREE = 4
"""Frames whose eyes are made to agree at once: their pictures take about as much memory as those of a call."""
_FRAMES_OF_A_CALL = 8
"""Frames of a window shown in one call, unless more are looked ahead to: the network's output is larger than what is
kept of it."""
_CELLS = 24
"""Cells along the longest side, in each of which the answers are weighed. This and the following constants were chosen
on clips of ``benchmarks/matte_quality`` with the seeds 2, 3, 20 to 22, 50 and 51, trust and decision on 60, 70 to 72
and 75."""
_TRUST = 3
"""Exponent that turns an answer's sureness (0..1) into its weight."""
_LEAST_WEIGHT = 0.002
"""Added to every answer's weight, so that both count the same where neither is sure."""
_FAVOUR = 10
"""Additional weight of an answer that sees somebody, relative to one that sees nobody: one direction loses people more
often than it invents them."""
_YOUNG: Final = (0.25, 0.5, 0.75)
"""Weight of "nobody" from the forward pass in the first frames of a shot; 1 in later frames. In the first frames, its
memory comes from smaller pictures; people who leave are visible in these as usual."""
_DECISION = 2
"""Exponent that turns a weight into a share: a person whom only one direction sees would look veiled if a tenth of them
were lost."""
_DOUBT = 3.0
"""Slope of the doubt about a cell, by the difference of the two directions' mean alpha: from a difference of a third
on, the larger look starts without memory there; below, with a part of it. With memory, it would repeat what one of them
saw. Chosen on ``several`` of seed 2."""
_AGREES = 0.1
"""Difference of a cell's mean alpha above which the finer answer has little weight."""
_FINER = 1.5
"""Weight of the finer answer, relative to the others, where it agrees with them. Chosen on seeds 111 to 115."""
_WORD_FOR_SOMEBODY, _WORD_FOR_NOBODY = 1.0, 0.3
"""Weight of the finer answer where the two others differ: if it sees somebody, and if it sees nobody. The first is
higher, as it loses people who fill the picture. This and the following constants were chosen on seeds 60 and 70 to
76."""
_WITNESS, _WITNESS_TRUST = 2.0, 12
"""Weight of the finer answer by itself where it sees somebody, and the exponent of its sureness: real people whom it
alone sees have a sureness of 0.9 and more; false ones seldom reach 0.8."""
_WIDE_CELLS, _ALONE = 4, 0.3
"""Cells next to each other in a row from which on what the finer answer alone sees is wider than somebody small, and
the minimum difference of a cell's mean alpha to count: the tank of a motorcycle, or a crowd. Somebody must then be sure
on average, as false ones have sure parts, and whom another look sees beside it before or after does not count. Chosen
on ``crossing`` and ``several``, seeds 103, 106 and 117."""
_MET_TRUST = 2
"""The same exponent where both others miss the person now, but one of them sees somebody there within
``_LASTING_FRAMES``: small people are found late, and no cell of a small body is sure. Chosen on the seeds 111 to
118."""
_SOLID, _SOLID_TRUST = 3.0, 4
"""Additional weight of the forward pass where it is sure of somebody at least three cells thick, and in the cells
beside them; and the exponent of its sureness. This keeps parts of people who leave that the two others miss. Chosen on
seeds 111 to 118."""
_LASTING_FRAMES, _LASTING = 3, 2
"""Number of frames before and after in which a look should see somebody there, too, and the exponent of the share in
which it does. Both apply to the finer answer's weight, and to where the forward pass is sure."""
_SEEN = 0.5
"""Minimum mean alpha of a cell with somebody in it."""
_NEAR = 0.2
"""Minimum share of the picture of one person who counts as near."""
_MISSED = 0.1
"""Minimum difference of a cell's mean alpha at which the finer answer misses somebody whom another answer sees. This
and the following constants were chosen on close-ups of the seeds 111 to 126."""
_BESIDE, _HAIR_CELLS = 0.6, 3
"""Minimum mean alpha of a cell with somebody in it, and how many cells away their hair may reach."""
_LEAST_FINE = 2.5e-4
"""Minimum fineness of an answer in a cell (how much of alpha follows the picture's detail); lower values are raised to
it, so that they all count as no detail."""
_FINENESS = 2
"""Exponent that turns an answer's fineness into its share of the hair."""

BIDIRECTIONAL_RULES: Final = (
    "eyes agree last, in larger pictures, their fisheye pictures are seen in all sizes, the way back is smaller beside "
    "larger edges, and who is seen in these alone is small",
    (BACKWARD_SCALE, NEAR_SIDE, EDGE_SCALE, _AGREEMENT_SCALE, _CELLS),
    (_TRUST, _LEAST_WEIGHT, _FAVOUR, _YOUNG, _DECISION, _DOUBT),
    (
        _AGREES,
        _FINER,
        _WORD_FOR_SOMEBODY,
        _WORD_FOR_NOBODY,
        _WITNESS,
        _WITNESS_TRUST,
        _WIDE_CELLS,
        _ALONE,
        _MET_TRUST,
    ),
    (_SOLID, _SOLID_TRUST, _LASTING_FRAMES, _LASTING, _SEEN),
    (_NEAR, _MISSED, _BESIDE, _HAIR_CELLS, _LEAST_FINE, _FINENESS),
)
"""Constants that this lever's mattes depend on, in addition to those for missed people and for smoothing."""


class Bidirectional:
    """Runs each window of a shot forwards, backwards and once more for its edges, and merges the answers.

    The backward pass has its own memory, which starts a few frames after the window (``Batch.following``): it knows who
    will enter and who was hidden, and repeats no false person of the forward pass. Its pictures are smaller, unless no
    larger look makes up for the edges that this costs. In each cell, a direction is weighted by its sureness, the mean
    of ``|2 alpha - 1|`` over the cell, to the sixth power; and by far more where it sees somebody. So people who leave
    are taken from one direction and people who enter from the other, if it is sure. The pictures are mirrored, so that
    the mistakes resemble those of the forward pass less.

    Then the window is shown larger, if the picture has the samples, from its last frame back. This look uses the
    forward pass's memory, except in places where the two directions differ, which it judges for itself. It has finer
    edges and finds small people, but loses people who fill the picture. So its edges count where it agrees; its verdict
    counts where the two others differ, and on its own where it is very sure of somebody small for several frames, or
    fairly sure of somebody whom another look sees there a moment before or after. It is skipped if the eye has no more
    samples. It is mirrored, too. Where the forward pass is sure of somebody for several frames, it counts more than
    this look, unless they are thin: both others miss people nearby who leave.

    The hair of one person nearby is seen best in even smaller pictures, and worst in the larger ones; an answer that
    misses it is sure that nobody is there. So around such a person, where the larger look misses what another one sees,
    the two others are weighted by how much their alpha follows the picture's detail. A window in which somebody comes
    near, or moves away, is shown backwards in both sizes, and fades from one to the other.

    Finally, scenery is removed where the looks differ (``Scenery``), people hidden from the network by larger ones are
    added (``MissedPeople``), parts of people that most other frames show are restored where the looks differ and
    nothing large passes by (``missed_parts``), mattes are smoothed over time (``MotionSmoothing``), and the two eyes
    are made to agree, in larger pictures, if that is requested.

    Args:
        stream: The network, which takes pictures of any size, and how it is shown frames; its memory is a
            ``SpatialState``. ``fisheye`` is ignored: eyes are shown as they are, see ``FisheyeLooks``.
    """

    def __init__(self, stream: StreamNetwork) -> None:
        self._stream = stream
        self._wanted = _resized(stream.wanted, EDGE_SCALE, stream.eye_size)
        self._has_edges = self._wanted.size != stream.wanted.size  # False if the eye has no more samples
        self._backward = stream.wanted
        if self._has_edges:
            self._backward = _resized(stream.wanted, BACKWARD_SCALE, stream.eye_size)
        near = min(BACKWARD_SCALE, NEAR_SIDE / max(stream.wanted.size))
        self._backward_near = _resized(stream.wanted, near, stream.eye_size)
        # Threads start when needed and last as long as the lever, as starting them for each window takes longer. The
        # camera's motion has its own: it takes little time, and would queue behind all other motion.
        threads, camera_threads = (
            ThreadPoolExecutor(available_cores(), thread_name_prefix=f"vitascope-{name}")
            for name in ("motion", "camera")
        )
        self._scenery = Scenery(stream.wanted, camera_threads)
        self._missed = MissedPeople(stream, self._wanted, self._backward)
        self._smoothing = MotionSmoothing(stream.views, self._wanted, threads, stream.sizer)
        # Eyes agree last: smoothing after that moves them apart again.
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
        """Number of the shot's frames that the forward pass has seen."""
        self._was_near = False
        """True if one person was near in the last of them."""

    def estimate(self, batch: Batch) -> list[MatteEstimate]:
        """Mattes of the next frames: alpha's coefficients, of the size of the edges' or the agreement's pictures."""
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
        """Mattes of frames of one shot; the batch's ``following`` frames come after its last frame."""
        ahead, beyond, back = self._seen_ahead(batch), batch.following if is_last else (), {}
        told, shown = on_its_way(ahead.mean), self._smoothing.show(batch.frames)
        if self._age and len(batch) > 1 and is_on_gpu(ahead.mean):
            # Queued before the forward answers are read: the GPU works on this while the host waits for those. On the
            # CPU it comes later, beside the search for motion.
            back[self._was_near] = self._seen_far_back(batch, beyond, near=self._was_near)
        people = told()
        motion = self._smoothing.watch(shown, people.max(axis=(0, 1, 2)))
        try:
            is_near = CloseUps.would_be_seen(people[-1, :, 0], from_share=_NEAR)
            seen, doubted = self._seen_all_ways(batch, ahead, beyond, back, is_near=is_near)
            del ahead  # a window's planes take hundreds of MB
            judged, smoothed, cleared = self._missed.judge(batch, seen), None, seen
            is_doubtful = bool(doubted().all())
            if is_doubtful:
                cleared = self._scenery.cleared(batch, seen)
            elif is_on_gpu(seen[0].gain):
                # Queued before asking who is missed: usually nobody is, and the GPU goes on while the host waits.
                smoothed = self._smoothing.smooth(batch.frames, seen, motion)
            completed = self._missed.complete(batch, cleared, judged())
            if smoothed is not None and completed is seen:
                return smoothed
            # Where something large passes, motion points to the wrong places.
            if is_doubtful and Change.MUCH_IS_NEW not in batch.changes[1:]:
                completed = self._smoothing.restored(batch.frames, completed, motion)
            return self._smoothing.smooth(batch.frames, completed, motion)
        except BaseException:
            motion.cancel()  # else the interpreter would wait for it at exit
            raise

    def _seen_ahead(self, batch: Batch) -> _Known:
        """Answers of the forward pass about frames of one shot."""
        parts: list[_Known] = []
        for at in range(0, len(batch), self._most):
            part = batch.take(range(at, min(at + self._most, len(batch))))
            parts.append(self._known(self._forward.estimate(part), part.images, self._stream.wanted))
        return _Known.joined(parts)

    def _agreed(self, frames: Sequence[Frame], estimates: list[MatteEstimate]) -> list[MatteEstimate]:
        """The mattes of a window, with the two eyes made to agree if that is requested."""
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
        """Merge all looks at a window into its mattes; also gives whether the looks differ (``in_doubt``).

        Args:
            batch: The window.
            ahead: Answers of the forward pass.
            beyond: The following frames to start the backward pass with.
            back: Answers of the backward pass, as far as they are known, in pictures for somebody near (True) or for
                others; emptied to save memory.
            is_near: True if somebody is near in the last frame.
        """
        stream = self._stream
        was_near = self._was_near if self._age and len(batch) > 1 else is_near
        self._was_near = is_near
        for near in {was_near, is_near} - back.keys():
            back[near] = self._seen_far_back(batch, beyond, near=near)
        edges: list[_Known] = []
        if self._has_edges:
            memory = self._forward.state
            assert isinstance(memory, SpatialState)  # StreamMatting checks
            memory = memory.copy()
            memory.take(None, _doubt(ahead.mean[-1], back[is_near].mean[-1]))
            memory.stretch(self._wanted.size)
            memory.mirror()
            larger = stream.shots(state=memory)
            edges.append(self._seen_back(batch.frames, larger, self._wanted, count=len(batch)))
        # Downloaded before the mattes are made: the GPU makes them while the host waits for this.
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
        """Merge the looks at a window's frames into one matte each."""
        eyes = seen[0].gain.shape[1]
        shares = _shares(seen, young=_YOUNG[self._age :], has_hair=has_hair)
        estimates: list[MatteEstimate] = []
        for at in range(0, len(seen[0].gain), _FRAMES_OF_A_CALL):
            part, of_eyes = (slice(at * each, (at + _FRAMES_OF_A_CALL) * each) for each in (1, eyes))
            planes = [
                [_of_all_eyes(each[part]) for each in looks]
                for looks in zip(*((one.gain, one.offset) for one in seen), strict=True)
            ]
            gain, offset = weighted_sums(planes, [one[of_eyes] for one in shares], self._wanted.size)
            estimates += (
                MatteEstimate(gain=gain[first : first + eyes], offset=offset[first : first + eyes])
                for first in range(0, len(gain), eyes)
            )
        return estimates

    def _seen_far_back(self, batch: Batch, beyond: Sequence[Frame], *, near: bool) -> _Known:
        """Answers about a window, run backwards from the following frames; in smaller pictures if somebody is near."""
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
        """Answers about the first of some frames, which are run from the last to the first.

        Args:
            frames: Consecutive.
            shots: Runs the network on them.
            wanted: Their pictures.
            count: Number of first frames to return.
        """
        parts: list[_Known] = []
        for end in range(len(frames), 0, -self._most):
            shown = frames[max(end - self._most, 0) : end][::-1]
            images = self._stream.views.make(shown, wanted)
            images = mirrored(images, wanted.layout)
            answers = shots.estimate(Batch(shown, images, [Change.SMALL] * len(shown)))
            beyond = max(end - count, 0)
            if beyond < len(shown):
                known = self._known(answers[beyond:], images[beyond:], wanted, mirrored=True)
                parts.insert(0, known.of(slice(None, None, -1)))
        return _Known.joined(parts)

    def _known(
        self, estimates: Sequence[MatteEstimate], images: Any, wanted: NetworkInput, *, mirrored: bool = False
    ) -> _Known:
        """Answers about frames, whose pictures may be mirrored, with sureness, mean and fineness by cell."""
        gain, offset, said = bounded(estimates, images, wanted, is_mirrored=mirrored)
        said = resized(said, self._cells)
        return _Known(
            *(
                planes.reshape(len(images), -1, 1, *planes.shape[2:])
                for planes in (gain, offset, said[:, :1], said[:, 1:2], said[:, 2:])
            )
        )


class _Known(NamedTuple):
    """One look's answers about consecutive frames, on their device."""

    gain: Any
    """Gain of alpha, float32 [N, E, 1, h, w]."""
    offset: Any
    """Likewise."""
    sure: Any
    """Sureness of each cell, float32 [N, E, 1, rows, columns], 0..1."""
    mean: Any
    """Mean alpha of each cell, likewise."""
    fine: Any
    """Fineness of each cell, likewise: how much of alpha follows the picture's detail."""

    def of(self, frames: slice) -> _Known:
        """The answers about some of the frames."""
        return _Known(*(planes[frames] for planes in self))

    @classmethod
    def joined(cls, parts: list[Self]) -> Self:
        """Join the answers of all parts in new memory; the parts are freed plane by plane, to save memory."""
        planes_of_parts = [list(planes) for planes in zip(*parts, strict=True)]
        parts.clear()
        return cls(*(np.concatenate(planes_of_parts.pop(0)) for _ in cls._fields))


def _shares(answers: Sequence[_Known], *, young: Sequence[float], has_hair: bool) -> list[Any]:
    """Share of each answer about some frames by cell: forward, backward and, if there is one, for edges.

    Args:
        answers: One for each look, about the same consecutive frames.
        young: Weight of "nobody" from the forward pass, for the first frames; 1 in those beyond.
        has_hair: True if hair may be visible.

    Returns:
        float32 [N * E, 1, rows, columns] each, on their device.
    """
    sures, means, fines = (
        [_of_all_eyes(planes) for planes in part]
        for part in zip(*((one.sure, one.mean, one.fine) for one in answers), strict=True)
    )
    eyes = answers[0].mean.shape[1]
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
        there, back, larger = (_of_all_eyes(_lasting(one.mean)) for one in answers)
        solid = _SOLID * _solid(means[0] * sures[0] ** _SOLID_TRUST) * there
        alone = (means[2] - np.maximum(*means[:2])).clip(0.0, 1.0)
        wide = _wide((alone > _ALONE).astype("float32"))
        met = (alone / _MISSED).clip(0.0, 1.0) * (there + back > 0) * (1 - wide)
        trust = _WITNESS_TRUST + np.float32(_MET_TRUST - _WITNESS_TRUST) * met
        on_average = mean_around(alone * sures[2]) / mean_around(alone).clip(_LEAST_WEIGHT, None)
        sure = sures[2] + wide * (np.minimum(sures[2], on_average) - sures[2])
        witness = _WITNESS * sure**trust * (1 + _FAVOUR) * around[2] * larger
        # People whom only this look sees are small; what is three cells thick or more is scenery between two people who
        # move apart.
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
    return shares


def _between(one: Any, other: Any, share: float) -> Any:
    """Mix two planes, on their device; ``share`` is the weight of the second."""
    return one + np.float32(share) * (other - one)


def _with_hair(
    shares: Sequence[Any], means: Sequence[Any], fines: Sequence[Any], around: Sequence[Any]
) -> list[Any]:
    """Shares of the answers where the one for edges misses hair: forward and backward, by how fine each is.

    Args:
        shares: Of each answer by cell, float32 [N, 1, rows, columns]: forward, backward, and for edges.
        means: Mean alpha of each answer.
        fines: Fineness of each answer.
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
    """Share of the frames around each frame in which somebody is seen in or beside each cell, to a power.

    At a window's ends, the nearest frames of the same number are used; if the window is shorter, the missing frames
    count as empty.

    Args:
        means: Mean alpha by cell of one look at consecutive frames, float32 [N, E, 1, rows, columns].

    Returns:
        float32 of the same shape, 0..1, on their device.
    """
    seen = (greatest_around(_of_all_eyes(means)) > _SEEN).astype("float32").reshape(means.shape)
    until = np.concatenate([np.zeros_like(seen[:1]), seen.cumsum(axis=0)])
    frames = 2 * _LASTING_FRAMES + 1
    # Only slices: copying indices to the GPU would make the host wait for it.
    counts = until[frames:] - until[:-frames] if len(seen) > frames else until[-1:]
    middle = len(seen) - len(counts)
    ends = [counts[:1]] * min(_LASTING_FRAMES, middle), [counts[-1:]] * max(middle - _LASTING_FRAMES, 0)
    return (np.concatenate([*ends[0], counts, *ends[1]]) / np.float32(frames)) ** _LASTING


def _of_all_eyes(planes: Any) -> Any:
    """Flatten planes of frames and eyes, [N, E, 1, h, w], to [N * E, 1, h, w]."""
    return planes.reshape(-1, *planes.shape[2:])


def _doubt(one: Any, other: Any) -> Any:
    """How much two answers about a frame differ in each cell, or in one beside it.

    Args:
        one: Mean alpha of the first, float32 [E, 1, rows, columns].
        other: Mean alpha of the second, likewise.

    Returns:
        float32 [E, rows, columns], 0..1, on their device.
    """
    return greatest_around((_DOUBT * abs(one - other)).clip(0.0, 1.0))[:, 0]


def _solid(cells: Any) -> Any:
    """Keep what is at least three cells thick, and the cells beside it; the picture is continued beyond its border.

    Args:
        cells: float32 [N, 1, rows, columns], 0..1.

    Returns:
        float32 of the same shape, 0..1, on its device.
    """
    inner = 1 - greatest_around(1 - cells)
    return greatest_around(greatest_around(inner))


def _wide(cells: Any) -> Any:
    """Keep what is at least ``_WIDE_CELLS`` cells wide, and the cells beside it.

    Args:
        cells: float32 [N, 1, rows, columns], 0 or 1.

    Returns:
        float32 of the same shape, 0 or 1, on its device.
    """
    starts = max(cells.shape[-1] - _WIDE_CELLS + 1, 0)
    parts = [np.s_[..., at : at + starts] for at in range(_WIDE_CELLS)]
    rows = reduce(np.minimum, [cells[part] for part in parts])
    wide = np.zeros_like(cells)
    for part in parts:
        wide[part] = np.maximum(wide[part], rows)
    return greatest_around(wide)


def _resized(wanted: NetworkInput, scale: float, eye_size: tuple[int, int]) -> NetworkInput:
    """A network's picture at another size; it is enlarged at most to the eye's own size."""
    height, width = (
        max(round(side * scale), 1) if scale <= 1 else max(min(round(side * scale), own), side)
        for side, own in zip(wanted.size, eye_size, strict=True)
    )
    return replace(wanted, size=(height, width))
