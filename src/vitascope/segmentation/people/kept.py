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
"""By how many cells somebody may lie less deep in a cell than somebody else and still have a share of it. With more,
the other shows more when two cross."""
_WARY, _WARY_OF_SMALLER, _WARY_BETWEEN = 2.25, 0.55, (1.5, 3.0)
"""By how many cells deeper than they are people who are left out count beside who is kept, as large and twice as large
as they; and its bounds. Half of it is taken from the kept one's edge: where two cross, a strip of the other is seen
more than one that is missing, and it is a larger part of them the smaller they are. With 0, 4.1 % of the other show at
worst and 0.2 % of the kept one are missing on the mean; with 2 throughout 2.7 and 0.7 %; with these 2.2 and 1.1 %:
means of eight pairs, each of whom was kept."""


_BESIDE = np.float32(1)
"""By how many cells less deep people who are left out count where they were a look before or will be a look after, and
deeper who is kept, each moved to where they are now: an arm that moves, or a ball, is given to the wrong one for a look
or two, and is theirs in those beside it. Of seed 503 of ``benchmarks/people.py`` the other showed 5.2 % at worst
without it and ``strip_colors``, and shows 2.4 % with both; of the kept one 3.8 % are missing where they cross, not 3.1.
Two who cross four times as quickly stay as they were."""
_MOST_BESIDE = np.float32(3)
"""By how many cells that changes somebody who is seen now, at most."""
_SLOW, _QUICK = 4.0, 8.0
"""Cells that who is kept and who is left out move from look to look, against each other, up to which looks beside count
wholly, and from which they say nothing: of two who run past one another a face went."""
_NEAR = np.float32(6)
"""Cells from who is left out within which looks beside take from who is kept, half as much one cell less: elsewhere an
arm that moves is the kept one's own."""
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
        """What is added to the matte whatever the network finds; None for nothing."""
        ...


class PeopleLayer:
    """The share of kept people at each place, from a scan.

    Shares of all people, and of nobody, add up to one everywhere: each cell of the scan's grid is one person's, and
    where two touch their shares go over into one another within a cell. Unless edges are to add up, who is kept has a
    little less beside who is left out, in the looks before and after, too: the strip where one becomes the other is
    nobody's.

    Args:
        table: Whose each cell is.
        choice: Who is kept.
        edges_add_up: Whoever is kept has their whole share, as for layers that are put together again.
    """

    def __init__(self, table: PeopleTable, choice: Choice, *, edges_add_up: bool = False) -> None:
        self._table, self._choice = table, choice
        self._edges_add_up = edges_add_up

    def share_at(self, frame: Frame, shot_pts: int | None = None) -> FloatMap | None:
        """As ``Layer``."""
        kept = self._choice.kept_at(self._table.seconds_at(frame.pts))
        if kept.all():
            return None
        around = self._table.looks_around(frame.pts, since=shot_pts)
        if not around:
            return None if kept[0] else np.zeros((1, 1, 1), np.float32)
        beside = [] if self._edges_add_up else self._table.looks_beside(frame.pts, since=shot_pts)
        looks = [one for some in (around, *beside) for one in some]
        numbers = np.unique(np.concatenate([look.numbers for _, look in looks]))
        if kept[numbers].all():  # who is left out is not seen
            return None
        depths = _depths(around, numbers)
        if not self._edges_add_up:
            out = (numbers > 0) & ~kept[numbers]
            is_person = numbers > 0
            changes = [_change_by(depths, _depths(some, numbers), is_person, out) for some in beside]
            if changes:  # of two that say the same, the larger one
                depths[out] += np.max([change[out] for change in changes], axis=0)
                depths[~out] += np.min([change[~out] for change in changes], axis=0)
            depths[out] += _wariness(looks, kept)
        shares = np.square((1 - (depths.max(axis=0) - depths) / _SOFTNESS).clip(0, None))
        own: FloatMap = shares[kept[numbers]].sum(axis=0) / shares.sum(axis=0)
        return own

    def count_at(self, frame: Frame, alpha: FloatMap, seen: KeptSeen, shot_pts: int | None = None) -> None:
        """Count a frame by the kept people in it.

        Args:
            frame: As of ``share_at``.
            alpha: float32 [E, h, w], 0..1: everybody's matte.
            seen: Counts it.
            shot_pts: As of ``share_at``.
        """
        kept = self._choice.kept_at(self._table.seconds_at(frame.pts))
        if not kept[1:].all():  # else nobody was chosen
            seen.look(frame.pts, alpha, self._table.looks_around(frame.pts, since=shot_pts), kept)

    def added_at(self, _: Frame) -> FloatMap | None:
        """Nothing."""
        return None

    @property
    def edges_add_up(self) -> bool:
        """Shares of all people add up everywhere."""
        return self._edges_add_up


def _depths(around: Sequence[tuple[float, Look]], numbers: npt.NDArray[np.int64]) -> FloatMap:
    """Depth of each cell in each person, in cells, negative outside: float32 [numbers, E, rows, columns].

    Between two frames somebody's edge lies midway between its places in both; who was missed in one is where the other
    has them.
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
        depths: In the frame, by number, float32 [numbers, E, rows, columns].
        beside: In the look.
        is_person: bool [numbers]; False for nobody.
        out: bool [numbers], who is left out.

    Returns:
        As ``depths``: 0 or more of who is left out, 0 or less of who is kept, 0 of nobody.
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
        if is_seen and np.abs(shifts[place]).max() >= _SEARCH:  # or more
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
    """Move a person of another look to their present place; also by how many cells (x, y): the mean of the eyes."""
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
        if misfit[_SEARCH, _SEARCH] <= misfit.flat[best] + _ALIKE:  # they stay: a wall fits everywhere
            best = _SEARCH * misfit.shape[1] + _SEARCH
        top, left = divmod(best, misfit.shape[1])
        own[:] = room[top : top + own.shape[0], left : left + own.shape[1]]
        shifts.append((_SEARCH - left, _SEARCH - top))
    return moved, np.mean(shifts, axis=0) if shifts else np.zeros(2)


def _wariness(around: Sequence[tuple[float, Look]], kept: npt.NDArray[np.bool_]) -> np.float32:
    """Number of cells by which people who are left out count as deeper; 0 if only they are visible, or none of them.

    Args:
        around: As ``_depths`` takes it.
        kept: bool [256], for each number.
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
        inner: Gives everybody's mattes.
        layers: How much of them is kept.
        things: Follows what kept people hold; None where that is not asked for. Batches have pictures, then.
        shown: How the network's pictures are prepared; None where colours say nothing of whose a sample is.
        views: Makes pictures of frames whose mattes were known; None where batches have them.
        seen: Counts in how many frames something of who is kept is seen, where mattes are plain. Coefficients are not
            counted: RVM gives them, which found who is there, and a cache keeps them, and sizes that are averaged.
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
        """Shares of the frames of a batch, made finer by colour; side by side, so many frames as there are cores."""
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
                for begin in range(0, len(batch.frames), at_once):  # pictures of so many are held at once
                    these = range(begin, min(begin + at_once, len(batch.frames)))
                    seen = [self._seen_by_color(batch, at, estimates[at], shares[layer][at]) for at in these]
                    shares[layer][begin : these.stop] = threads.map(
                        _by_color, shares[layer][begin : these.stop], seen
                    )
        return shares

    def _seen_by_color(
        self, batch: Batch, at: int, estimate: MatteEstimate, share: FloatMap | None
    ) -> tuple[FloatMap, FloatMap] | None:
        """Matte and picture, as of ``_seen``, where who is kept touches others; None elsewhere.

        On a GPU they come down for it, in frames in which somebody is left out.
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
            own = small[: estimate.eye_count]  # of a video with one eye the left one's
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
        assert estimate.gain is not None  # MatteEstimate holds either form
        assert estimate.offset is not None
        gain, offset = estimate.gain.copy(), estimate.offset.copy()  # the cache may have kept them
        gain[:, -1:] *= share
        offset[:, -1:] *= share
        if added is not None:
            offset[:, -1:] += added.astype(planes.dtype)
        return MatteEstimate(gain=gain, offset=offset)

    def _seen(self, estimate: MatteEstimate, images: Any) -> tuple[FloatMap, FloatMap]:
        """Everybody's matte, float32 [E, h, w], and the pictures as large, [E, 3, h, w], 0..1, in the host's memory."""
        assert self._shown is not None  # who asks has seen to it
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
"""Share of full alpha from which on somebody is there."""
_RARELY = 0.5
"""Share of the frames with a person below which a note is given."""


class KeptFrames(NamedTuple):
    """Number of frames with kept people, in a part of a video."""

    person: int
    known: int
    """Frames in which they are, according to the scan."""
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
            pts: The frame's.
            alpha: float [E, h, w], 0..1: everybody's matte.
            around: Whose each cell is, as ``PeopleTable.looks_around``.
            kept: bool [256], True for the numbers of those who are kept.
        """
        if not around or not self.owns(pts):
            return
        _, look = max(around, key=lambda one: one[0])
        size = alpha.shape[:0:-1]
        # One eye's labels may be those of both, and of two eyes' labels the left ones those of one matte.
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
        frames: Of all parts of a video.
        network: The run's.
        scanned_by: The network that found who is in the video.
        profile: The run's.
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
