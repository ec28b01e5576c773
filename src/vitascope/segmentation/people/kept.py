"""Restricts mattes to some people: an estimator around the network, the levers and the cache."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, Protocol

import cv2
import numpy as np
import numpy.typing as npt

from vitascope.device import available_cores
from vitascope.frames import Frame
from vitascope.gpu.interchange import to_numpy
from vitascope.gpu.kernels.cuda_module import array_module, is_on_gpu
from vitascope.gpu.kernels.resize_normalize import resized
from vitascope.models.network import MatteEstimate, NetworkInput
from vitascope.segmentation.matting.batch import Batch, Estimator
from vitascope.segmentation.matting.estimates import plain_rgb, small_alpha
from vitascope.segmentation.matting.shots import Views
from vitascope.segmentation.people.choice import Choice
from vitascope.segmentation.people.held import HeldThings
from vitascope.segmentation.people.strip_colors import shares_by_color
from vitascope.segmentation.people.table import FAR_CELLS, Look, PeopleTable

FloatMap = npt.NDArray[np.float32]

_SOFTNESS = np.float32(1.4)
"""A person gets a share of a cell if they are at most this many cells less deep than the deepest person in
it. A larger value shows more of the other person when two cross."""
_WARY, _WARY_OF_SMALLER, _WARY_BETWEEN = 2.25, 0.55, (1.5, 3.0)
"""Number of cells added to the depth of people who are left out: when kept people cover as many cells as they do, and
its increase for each doubling of the kept people's size; and the bounds of the sum. Half of it is lost at the kept
people's edge. When two cross, a visible strip of the other person is noticed more than a missing one, but a missing
strip is a larger part of a smaller person. With 0, at worst 4.1 % of the other person show, and on average 0.2 % of
the kept one are missing; with 2 throughout, 2.7 and 0.7 %; with these values 2.2 and 1.1 % (means over eight pairs,
each person kept in turn)."""


_BESIDE = np.float32(1)
"""Tolerance in cells for neighbouring looks, in which each person is moved to their present place: a person left out
counts there as this much less deep, a kept one as this much deeper. A moving arm, or a ball, may be assigned to the
wrong person for a look or two, but not in the looks beside them. For seed 503 of ``benchmarks/people.py``, at worst
5.2 % of the other person show without this and ``strip_colors``, 2.4 % with both; where they cross, 3.8 % of the kept
one are missing instead of 3.1. Two people who cross four times as fast are unaffected."""
_MOST_BESIDE = np.float32(3)
"""Maximum change of depth, in cells, for somebody visible in the frame."""
_SLOW, _QUICK = 4.0, 8.0
"""Relative motion of kept and left out people, in cells per look, up to which neighbouring looks count fully, and
from which they do not count; with more, two people running past each other lost a face."""
_NEAR = np.float32(6)
"""Distance in cells from people who are left out at which neighbouring looks stop reducing kept people: half at one
cell less, fully at two. Farther away, an arm that moves is the kept person's own."""
_FRAMES_AT_ONCE = 8
"""Maximum frames of a batch computed in parallel: all their pictures are in memory meanwhile."""
_SEARCH, _ALIKE = 6, 0.01
"""Search radius for a person in a neighbouring look, in cells; and the difference of misfits, in square cells, that
counts as equal."""


class Layer(Protocol):
    """Defines the share of the matte to keep at each place, and what to add to it.

    Maps are float32 [E, rows, columns], 0..1, upright, of any size; one of a single eye is that of both.
    """

    def share_at(self, frame: Frame, shot_pts: int | None = None) -> FloatMap | None:
        """Share of alpha to keep; None for all of it.

        Args:
            frame: The next frame, in order.
            shot_pts: pts of the frame with which its shot began; None for the first shot.
        """
        ...

    def added_at(self, frame: Frame) -> FloatMap | None:
        """Return what to add to the matte, whatever the network finds; None for nothing."""
        ...


class PeopleLayer:
    """The share of kept people at each place, from a scan.

    The shares of all people, and of nobody, add up to one everywhere: each cell of the scan's grid belongs to
    one person, and where two touch, their shares blend within a cell. Unless edges must add up, kept people
    get a little less beside people who are left out, also judged by the looks before and after: the strip
    between them then belongs to nobody.

    Args:
        table: The owner of each cell.
        choice: The people to keep.
        edges_add_up: Kept people get their whole share, for layers that will be put together again.
    """

    def __init__(self, table: PeopleTable, choice: Choice, *, edges_add_up: bool = False) -> None:
        self._table, self._choice = table, choice
        self._edges_add_up = edges_add_up

    def share_at(self, frame: Frame, shot_pts: int | None = None) -> FloatMap | None:
        """See ``Layer``."""
        kept = self._choice.kept_at(self._table.seconds_at(frame.pts))
        if kept.all():
            return None
        around = self._table.looks_around(frame.pts, since=shot_pts)
        if not around:
            return None if kept[0] else np.zeros((1, 1, 1), np.float32)
        beside = [] if self._edges_add_up else self._table.looks_beside(frame.pts, since=shot_pts)
        looks = [one for some in (around, *beside) for one in some]
        numbers = np.unique(np.concatenate([look.numbers for _, look in looks]))
        if kept[numbers].all():  # nobody who is left out is visible
            return None
        depths = _depths(around, numbers)
        if not self._edges_add_up:
            out = (numbers > 0) & ~kept[numbers]
            is_person = numbers > 0
            changes = [_change_by(depths, _depths(some, numbers), is_person, out) for some in beside]
            if changes:  # of two agreeing changes, the larger one
                depths[out] += np.max([change[out] for change in changes], axis=0)
                depths[~out] += np.min([change[~out] for change in changes], axis=0)
            depths[out] += _wariness(looks, kept)
        shares = np.square((1 - (depths.max(axis=0) - depths) / _SOFTNESS).clip(0, None))
        own: FloatMap = shares[kept[numbers]].sum(axis=0) / shares.sum(axis=0)
        return own

    def count_at(self, frame: Frame, alpha: FloatMap, seen: KeptSeen, shot_pts: int | None = None) -> None:
        """Count a frame by the kept people in it.

        Args:
            frame: Frame, as for ``share_at``.
            alpha: float32 [E, h, w], 0..1: everybody's matte.
            seen: The counter.
            shot_pts: As for ``share_at``.
        """
        kept = self._choice.kept_at(self._table.seconds_at(frame.pts))
        if not kept[1:].all():  # otherwise nobody was chosen
            seen.look(frame.pts, alpha, self._table.looks_around(frame.pts, since=shot_pts), kept)

    def added_at(self, _: Frame) -> FloatMap | None:
        """None: the layer adds nothing."""
        return None

    @property
    def edges_add_up(self) -> bool:
        """True if the shares of all people add up everywhere."""
        return self._edges_add_up


def _depths(around: Sequence[tuple[float, Look]], numbers: npt.NDArray[np.int64]) -> FloatMap:
    """Depth of each cell in each person, in cells, negative outside: float32 [numbers, E, rows, columns].

    Between two looks, a person's edge is midway between its positions in both; a person missing in one look has the
    position from the other.
    """
    depths = np.zeros((len(numbers), *around[0][1].labels.shape), np.float32)
    for own, number in zip(depths, numbers.tolist(), strict=True):
        seen = [one for one in around if one[1].cell_counts[number]] or around
        total = sum(weight for weight, _ in seen)
        for weight, look in seen:
            own += np.float32(weight / total) * look.depth(number)
    return depths


def _change_by(
    depths: FloatMap, beside: FloatMap, is_person: npt.NDArray[np.bool_], out: npt.NDArray[np.bool_]
) -> FloatMap:
    """Change of depth by a neighbouring look: deeper for people who are left out, less deep for kept people near them.

    Args:
        depths: Depths in the frame, by number, float32 [numbers, E, rows, columns].
        beside: Depths in the neighbouring look.
        is_person: bool [numbers]; False for nobody.
        out: bool [numbers], True for people who are left out.

    Returns:
        As ``depths``: at least 0 for people who are left out, at most 0 for kept people, 0 for nobody.
    """
    moved, shifts = beside.copy(), np.full((len(depths), 2), np.nan)
    people = np.flatnonzero(is_person).tolist()
    for place in people:
        if depths[place].max() > 0 and beside[place].max() > 0:
            moved[place], shifts[place] = _moved_onto(beside[place], depths[place])
    kept_shifts = shifts[is_person & ~out]
    stays = np.zeros(2) if np.isnan(kept_shifts).all() else np.nanmean(kept_shifts, axis=0)
    most = np.zeros(len(depths), np.float32)
    for place in np.flatnonzero(out).tolist():
        is_seen = not np.isnan(shifts[place]).any()
        speed = float(np.hypot(*(shifts[place] - stays if is_seen else stays)))
        if is_seen and np.abs(shifts[place]).max() >= _SEARCH:  # or beyond the search
            speed = _QUICK
        counts = np.clip((_QUICK - speed) / (_QUICK - _SLOW), 0, 1)
        most[place] = counts * (_MOST_BESIDE if is_seen else 2 * FAR_CELLS)
    most[is_person & ~out] = min(most[out].max(initial=0), _MOST_BESIDE)
    change = np.zeros_like(depths)
    if not out.any():
        return change
    others = np.maximum(depths[out].max(axis=0), moved[out].max(axis=0))
    near = ((others + _NEAR) / 2).clip(0, 1)
    for place in people:
        now, reach = depths[place], most[place]
        if out[place]:
            change[place] = (moved[place] - _BESIDE - now).clip(0, reach)
        else:
            change[place] = -near * (now - moved[place] - _BESIDE).clip(0, reach)
    return change


def _moved_onto(depths: FloatMap, now: FloatMap) -> tuple[FloatMap, npt.NDArray[np.float64]]:
    """Move a person of another look to their present place; also return the mean shift (x, y) of the eyes, in cells."""
    moved, shifts = np.empty_like(depths), []
    for own, there, wanted in zip(moved, depths, now, strict=True):
        shape = np.clip(wanted, -2, 2)
        rows, columns = np.flatnonzero((shape > -2).any(axis=1)), np.flatnonzero((shape > -2).any(axis=0))
        if not len(rows):
            own[:] = there
            continue
        part = slice(rows[0], rows[-1] + 1), slice(columns[0], columns[-1] + 1)
        wide = slice(rows[0], rows[-1] + 1 + 2 * _SEARCH), slice(columns[0], columns[-1] + 1 + 2 * _SEARCH)
        room = np.pad(there, _SEARCH, mode="edge")
        misfit: Any = cv2.matchTemplate(np.clip(room, -2, 2)[wide], shape[part], cv2.TM_SQDIFF)
        best = int(misfit.argmin())
        if misfit[_SEARCH, _SEARCH] <= misfit.flat[best] + _ALIKE:  # prefer no shift: a wall fits everywhere
            best = _SEARCH * misfit.shape[1] + _SEARCH
        top, left = divmod(best, misfit.shape[1])
        own[:] = room[top : top + own.shape[0], left : left + own.shape[1]]
        shifts.append((_SEARCH - left, _SEARCH - top))
    return moved, np.mean(shifts, axis=0) if shifts else np.zeros(2)


def _wariness(around: Sequence[tuple[float, Look]], kept: npt.NDArray[np.bool_]) -> np.float32:
    """Number of cells by which people who are left out count as deeper; 0 if only they are visible, or none of them.

    Args:
        around: Looks, as for ``_depths``.
        kept: bool [256], by number.
    """
    cells = np.asarray(sum(weight * look.cell_counts for weight, look in around))[1:]
    own, others = float(cells[kept[1:]].sum()), float(cells[~kept[1:]].sum())
    if not own or not others:
        return np.float32(0)
    return np.float32(np.clip(_WARY + _WARY_OF_SMALLER * np.log2(own / others), *_WARY_BETWEEN))


def _by_color(share: FloatMap | None, seen: tuple[FloatMap, FloatMap] | None) -> FloatMap | None:
    """Refine a share by colour: float32 [E, h, w], at the size of the matte."""
    if share is None or seen is None:
        return share
    alpha, rgb = seen
    size: tuple[int, int] = alpha.shape[1:]
    whole = resized(np.ascontiguousarray(share[: len(alpha)][:, None]), size)[:, 0]
    cell = size[1] / share.shape[2]
    eyes = [
        shares_by_color(picture.transpose(1, 2, 0), own, matte, cell=cell)
        for picture, own, matte in zip(rgb, np.broadcast_to(whole, alpha.shape), alpha, strict=True)
    ]
    return np.stack(eyes)


class KeptPeople:
    """Multiplies mattes by the layers' shares, and adds what they add; an ``Estimator``.

    Coefficients of the guided filter are multiplied: alpha is linear in them, so the full-size alpha is scaled, and
    edges stay in place.

    Args:
        inner: Estimates everybody's mattes.
        layers: Determine how much of them is kept.
        things: Follows what kept people hold; None if that is not requested. If given, batches must have pictures.
        shown: How the network's pictures are prepared; None if colours do not refine the shares.
        views: Makes pictures of frames whose mattes came from the cache; None if batches have them.
        seen: Counts the frames in which kept people are visible, if mattes are plain. Coefficients are not counted:
            they come from RVM, which found the people, from a cache, or from averaged sizes.
    """

    def __init__(
        self,
        inner: Estimator,
        layers: Sequence[Layer],
        *,
        things: HeldThings | None = None,
        shown: NetworkInput | None = None,
        views: Views | None = None,
        seen: KeptSeen | None = None,
    ) -> None:
        self._inner, self._layers, self._counted = inner, layers, seen
        self._things, self._shown, self._views = things, shown, views
        self._shot_pts: int | None = None

    def estimate(self, batch: Batch) -> list[MatteEstimate]:
        """The mattes of the next frames, of kept people only."""
        estimates = self._inner.estimate(batch)
        shots = []
        for frame, starts_shot in zip(batch.frames, batch.starts_shot, strict=True):
            if starts_shot:
                self._shot_pts = frame.pts
            shots.append(self._shot_pts)
        self._count(batch, estimates, shots)
        people = self._shares_of_people(batch, estimates, shots)
        kept = []
        for at, (frame, starts_shot, estimate) in enumerate(
            zip(batch.frames, batch.starts_shot, estimates, strict=True)
        ):
            images = None if self._shown is None or batch.images is None else batch.images[at]
            shares = [
                people[layer][at] if isinstance(layer, PeopleLayer) else layer.share_at(frame, shots[at])
                for layer in self._layers
            ]
            kept.append(self._kept(frame, estimate, images, shares, starts_shot=starts_shot))
        return kept

    def _count(self, batch: Batch, estimates: Sequence[MatteEstimate], shots: Sequence[int | None]) -> None:
        if self._counted is None:
            return
        for frame, estimate, shot in zip(batch.frames, estimates, shots, strict=True):
            if estimate.alpha is None:
                continue
            for layer in self._layers:
                if isinstance(layer, PeopleLayer):
                    layer.count_at(frame, to_numpy(estimate.alpha), self._counted, shot)

    def _shares_of_people(
        self, batch: Batch, estimates: Sequence[MatteEstimate], shots: Sequence[int | None]
    ) -> dict[PeopleLayer, list[FloatMap | None]]:
        """The shares for a batch's frames, refined by colour; as many frames in parallel as there are cores."""
        shares: dict[PeopleLayer, list[FloatMap | None]] = {}
        layers = [layer for layer in self._layers if isinstance(layer, PeopleLayer)]
        at_once = min(len(batch.frames), available_cores(), _FRAMES_AT_ONCE)
        if not layers or not at_once:
            return {layer: [] for layer in layers}
        with ThreadPoolExecutor(at_once, thread_name_prefix="vitascope-people") as threads:
            for layer in layers:
                shares[layer] = list(threads.map(layer.share_at, batch.frames, shots))
                if layer.edges_add_up:
                    continue
                for begin in range(0, len(batch.frames), at_once):  # limits the pictures held at once
                    these = range(begin, min(begin + at_once, len(batch.frames)))
                    seen = [self._seen_by_color(batch, at, estimates[at], shares[layer][at]) for at in these]
                    shares[layer][begin : these.stop] = threads.map(
                        _by_color, shares[layer][begin : these.stop], seen
                    )
        return shares

    def _seen_by_color(
        self, batch: Batch, at: int, estimate: MatteEstimate, share: FloatMap | None
    ) -> tuple[FloatMap, FloatMap] | None:
        """Matte and picture, as from ``_seen``, if kept people touch others; otherwise None.

        On a GPU they are downloaded for this, in frames in which somebody is left out.
        """
        if self._shown is None or share is None or not ((share > 0.5).any() and (share < 0.5).any()):
            return None
        if batch.images is not None:
            return self._seen(estimate, batch.images[at])
        if self._views is None:
            return None
        return self._seen(estimate, self._views.make([batch.frames[at]], self._shown)[0])

    def _kept(
        self,
        frame: Frame,
        estimate: MatteEstimate,
        images: Any,
        shares: Sequence[FloatMap | None],
        *,
        starts_shot: bool,
    ) -> MatteEstimate:
        additions = [layer.added_at(frame) for layer in self._layers]
        if self._things is not None:
            additions.insert(0, self._held(estimate, images, shares, starts_shot=starts_shot))
        planes: Any = estimate.alpha if estimate.gain is None else estimate.gain
        on_gpu = is_on_gpu(planes)

        def fitting(small: FloatMap) -> Any:
            arrays = array_module(on_gpu=on_gpu)
            own = small[: estimate.eye_count]  # a video with one eye uses the left one's
            return resized(arrays.ascontiguousarray(arrays.asarray(own)[:, None]), estimate.size)

        share: Any = None
        for one in shares:
            if one is not None:
                share = fitting(one) if share is None else share * fitting(one)
        added: Any = None
        for one in additions:
            if one is not None:
                added = fitting(one) if added is None else 1 - (1 - added) * (1 - fitting(one))
        if share is None and added is None:
            return estimate
        if added is not None:
            share = 1 - added if share is None else share * (1 - added)
        share = share.astype(planes.dtype)
        if estimate.alpha is not None:
            alpha = estimate.alpha * share[:, 0]
            return MatteEstimate(alpha=alpha if added is None else alpha + added[:, 0].astype(planes.dtype))
        assert estimate.gain is not None  # MatteEstimate has one form or the other
        assert estimate.offset is not None
        gain, offset = estimate.gain.copy(), estimate.offset.copy()  # the cache may have kept these arrays
        gain[:, -1:] *= share
        offset[:, -1:] *= share
        if added is not None:
            offset[:, -1:] += added.astype(planes.dtype)
        return MatteEstimate(gain=gain, offset=offset)

    def _seen(self, estimate: MatteEstimate, images: Any) -> tuple[FloatMap, FloatMap]:
        """Everybody's matte, float32 [E, h, w], and pictures of the same size, [E, 3, h, w], 0..1, in host memory."""
        assert self._shown is not None  # checked by the caller
        alpha = to_numpy(small_alpha(estimate, images, self._shown)).astype(np.float32)
        rgb = to_numpy(plain_rgb(images, self._shown)).astype(np.float32)
        if rgb.shape[2:] != alpha.shape[1:]:
            rgb = resized(np.ascontiguousarray(rgb), estimate.size)
        return alpha, rgb

    def _held(
        self,
        estimate: MatteEstimate,
        images: Any,
        shares: Sequence[FloatMap | None],
        *,
        starts_shot: bool,
    ) -> FloatMap | None:
        """Things held by kept people, unless another layer leaves them out."""
        assert self._things is not None
        alpha, rgb = self._seen(estimate, images)
        of_people: FloatMap | None = None
        of_others: FloatMap | None = None
        for layer, share in zip(self._layers, shares, strict=True):
            if share is None:
                continue
            own = resized(np.ascontiguousarray(share[: len(alpha)][:, None]), estimate.size)[:, 0]
            own = np.broadcast_to(own, alpha.shape)
            if isinstance(layer, PeopleLayer):
                of_people = own if of_people is None else of_people * own
            else:
                of_others = own if of_others is None else of_others * own
        held = self._things.added(rgb, alpha, of_people, starts_shot=starts_shot)
        return held if held is None or of_others is None else held * of_others


_SEEN = 0.5
"""Alpha from which a person is visible."""
_RARELY = 0.5
"""A note is given if kept people are visible in less than this share of their frames."""


class KeptFrames(NamedTuple):
    """Number of frames with kept people, in a part of a video."""

    person: int
    known: int
    """Frames with them, according to the scan."""
    seen: int
    """Those of these frames in whose matte they are visible."""


class KeptSeen:
    """Counts frames with kept people; for one thread."""

    def __init__(self) -> None:
        self.owns: Callable[[int], bool] = lambda _: True
        """Tells by a frame's pts whether it counts."""
        self._known: Counter[int] = Counter()
        self._seen: Counter[int] = Counter()

    def look(
        self,
        pts: int,
        alpha: npt.NDArray[np.floating],
        around: Sequence[tuple[float, Look]],
        kept: npt.NDArray[np.bool_],
    ) -> None:
        """Count a frame.

        Args:
            pts: The frame's pts.
            alpha: float [E, h, w], 0..1: everybody's matte.
            around: Looks from ``PeopleTable.looks_around``.
            kept: bool [256], True for the numbers of kept people.
        """
        if not around or not self.owns(pts):
            return
        _, look = max(around, key=lambda one: one[0])
        size = alpha.shape[:0:-1]
        # One eye's labels may stand for both; of two eyes' labels, the left ones are used for a single matte.
        eyes = [cv2.resize(eye, size, interpolation=cv2.INTER_NEAREST) for eye in look.labels[: len(alpha)]]
        labels = np.broadcast_to(np.stack(eyes), alpha.shape)
        there = np.bincount(labels[alpha >= _SEEN], minlength=256)
        for number in look.numbers.tolist():
            if number and kept[number]:
                self._known[number] += 1
                self._seen[number] += bool(there[number])

    @property
    def frames(self) -> tuple[KeptFrames, ...]:
        """The counts, by person."""
        return tuple(KeptFrames(one, self._known[one], self._seen[one]) for one in sorted(self._known))


def notes_on_kept(
    frames: Iterable[KeptFrames], *, network: str, scanned_by: str, profile: str
) -> tuple[str, ...]:
    """A note on kept people who are hardly visible; none if all are usually visible.

    Args:
        frames: Counts from all parts of a video.
        network: The run's network.
        scanned_by: The network that found the video's people.
        profile: The run's profile.
    """
    known, seen = Counter[int](), Counter[int]()
    for one in frames:
        known[one.person] += one.known
        seen[one.person] += one.seen
    rarely = [one for one in sorted(known) if seen[one] < _RARELY * known[one]]
    if not rarely:
        return ()
    people = ", ".join(f"person {one} in only {seen[one]} of {known[one]} frames" for one in rarely)
    help_ = "--profile balanced" if (network, profile) == ("selfie", "fast") else f"--model {scanned_by}"
    return (
        f"{network} sees {people} in which {scanned_by} found them; where it misses them, they become background"
        + ("" if network == scanned_by else f": {help_} finds them"),
    )
