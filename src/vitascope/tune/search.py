"""Searches a grid of settings for the best cell with few measurements.

Bayesian optimisation: a model of the measurements predicts where an improvement is likely, that cell is measured, and
so on (Jones, Schonlau and Welch, Journal of Global Optimization 13, 1998). Limits have models of their own, and a
cell's value is its expected gain times the probability that it keeps them (Gardner et al., ICML 2014), times the
probability that it runs at all, since cells may fail.

The model is a Gaussian process over the cells (Rasmussen and Williams, Gaussian Processes for Machine Learning, 2006,
chapters 2 and 5). Its covariance is a sum over the knobs (independent effects) plus a product over them (joint
effects), with Matérn 5/2 for each.
"""

from __future__ import annotations

import itertools
import json
import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt

from vitascope.errors import UsageError
from vitascope.file_lock import write_file

_Floats = npt.NDArray[np.float64]

_LENGTHS = (0.2, 0.5, 1.2, 3.0)
_SHARES_ALONE = (0.3, 0.6, 0.9)
_NOISES = (1e-3, 1e-2, 6e-2)
_JITTER = 1e-8


@dataclass(frozen=True, slots=True)
class _Shape:
    """Shape of the covariance over distance."""

    lengths: tuple[float, ...]
    """For each knob, the distance over which results stay similar; its whole range is 1."""
    share_alone: float = 0.6
    """Share of the variance that the knobs explain independently, 0..1."""
    noise: float = 1e-2
    """Variance of the noise in a measurement, as a share of the total."""


@dataclass(slots=True)
class _Fit:
    inverse: _Floats
    weights: _Floats
    mean: float
    scale: float


def _matern(distance: _Floats) -> _Floats:
    scaled = math.sqrt(5.0) * distance
    return np.asarray((1 + scaled + scaled**2 / 3) * np.exp(-scaled))


class _Surrogate:
    """Predicts a figure for every cell from the measured ones.

    Args:
        cells: intp [N, K]: the index of each cell's value for each of K knobs.
        apart: For each knob float64 [V, V]: the distances between its V values, 0..1.
    """

    def __init__(self, cells: npt.NDArray[np.intp], apart: Sequence[_Floats]) -> None:
        self._cells = cells
        self._apart = tuple(apart)
        self._shape = _Shape((1.2,) * len(self._apart))
        self._known: list[int] = []
        self._fit: _Fit | None = None
        self._columns: _Floats = np.empty((len(cells), 0))
        self._columns_of: list[int] = []
        self._columns_shape = self._shape
        """The shape that the covariances in the first columns were computed for."""

    def learn(self, rows: Sequence[int], values: Sequence[float], *, reshape: bool) -> None:
        """Add a measurement.

        Args:
            rows: Measured cells; a cell may appear several times.
            values: Their figures.
            reshape: Search for the shape that makes the figures most likely; otherwise the previous shape stays.
        """
        self._known = list(rows)
        figures = np.asarray(values, np.float64)
        mean = float(figures.mean())
        scale = float(figures.std()) or 1.0
        standard = (figures - mean) / scale
        if reshape and len(rows) >= 4:
            self._shape = self._most_likely(standard)
        cells = self._cells[self._known]
        near = (self._near(knob, length, cells, cells) for knob, length in enumerate(self._shape.lengths))
        covariance = self._joined(self._shape, near)
        covariance[np.diag_indices_from(covariance)] += self._shape.noise + _JITTER
        inverse: _Floats = np.asarray(np.linalg.inv(covariance), np.float64)
        self._fit = _Fit(inverse, np.asarray(inverse @ standard, np.float64), mean, scale)

    def predict(self) -> tuple[_Floats, _Floats]:
        """Mean and standard deviation of every cell's figure, float64 [N] each."""
        fit = self._fit
        assert fit is not None  # it has learnt
        across = self._covariance_with_all()
        mean = across @ fit.weights
        explained = across @ fit.inverse
        explained *= across
        variance = 1 - explained.sum(axis=1)
        return mean * fit.scale + fit.mean, np.sqrt(np.maximum(variance, 1e-12)) * fit.scale

    def _covariance_with_all(self) -> _Floats:
        """Covariance between all cells and the measured ones, float64 [N, M]; each trial adds a column."""
        known, shape = self._known, self._shape
        kept = len(self._columns_of)
        if shape is not self._columns_shape or known[:kept] != self._columns_of:
            kept = 0
        if self._columns.shape[1] < len(known):
            wider: _Floats = np.empty((len(self._cells), 2 * len(known)))
            wider[:, :kept] = self._columns[:, :kept]
            self._columns = wider
        if kept < len(known):
            right = self._cells[known[kept:]]
            near = (self._near(knob, one, self._cells, right) for knob, one in enumerate(shape.lengths))
            self._columns[:, kept : len(known)] = self._joined(shape, near)
        self._columns_of, self._columns_shape = list(known), shape
        return self._columns[:, : len(known)]

    def _near(
        self, knob: int, length: float, left: npt.NDArray[np.intp], right: npt.NDArray[np.intp]
    ) -> _Floats:
        """Similarity of cells by one knob: float64 [L, R], 0..1."""
        # There are few values but many cells, so the costly function is called only for values.
        values = _matern(self._apart[knob] / length)[:, right[:, knob]]
        near: _Floats = np.empty((len(left), len(right)))
        return np.take(values, left[:, knob], axis=0, out=near, mode="clip")

    def _joined(self, shape: _Shape, near: Iterable[_Floats]) -> _Floats:
        """Combine the similarities by each knob into a covariance."""
        first, *others = near
        alone, together = first.copy(), first.copy()
        # In place from here on, because allocating memory costs more than the sums.
        for one in others:
            alone += one
            together *= one
        alone *= shape.share_alone
        alone /= len(self._apart)
        together *= 1 - shape.share_alone
        alone += together
        return alone

    def _most_likely(self, standard: _Floats) -> _Shape:
        """Run one sweep of coordinate ascent on the marginal likelihood, starting from the previous shape."""
        cells = self._cells[self._known]
        kept: dict[tuple[int, float], _Floats] = {}

        def near(knob: int, length: float) -> _Floats:
            """Like ``_near`` for the measured cells; shapes tried in sequence differ in one length."""
            if (knob, length) not in kept:
                kept[knob, length] = self._near(knob, length, cells, cells)
            return kept[knob, length]

        def likelihood(shape: _Shape) -> float:
            covariance = self._joined(shape, itertools.starmap(near, enumerate(shape.lengths)))
            return self._likelihood(covariance, shape.noise, standard)

        best, best_score = self._shape, likelihood(self._shape)

        def offer(candidate: _Shape) -> None:
            nonlocal best, best_score
            score = likelihood(candidate)
            if score > best_score:
                best, best_score = candidate, score

        for share in _SHARES_ALONE:
            offer(replace(best, share_alone=share))
        for noise in _NOISES:
            offer(replace(best, noise=noise))
        for knob in range(len(self._apart)):
            for length in _LENGTHS:
                offer(replace(best, lengths=(*best.lengths[:knob], length, *best.lengths[knob + 1 :])))
        return best

    @staticmethod
    def _likelihood(covariance: _Floats, noise: float, standard: _Floats) -> float:
        """Log likelihood of the figures, up to a constant; ``covariance`` is overwritten."""
        covariance[np.diag_indices_from(covariance)] += noise + _JITTER
        try:
            lower = np.linalg.cholesky(covariance)
        except np.linalg.LinAlgError:
            return -math.inf
        half = np.linalg.solve(lower, standard)
        return float(-0.5 * half @ half - np.log(np.diag(lower)).sum())


_erf = np.vectorize(math.erf, otypes=[np.float64])


def _normal_cdf(x: _Floats) -> _Floats:
    """Share of a standard normal distribution below ``x``."""
    return np.asarray(0.5 * (1 + _erf(x / math.sqrt(2.0))))


def _expected_gain(mean: _Floats, deviation: _Floats, best: float) -> _Floats:
    """Expected improvement over ``best`` (Mockus 1974; Jones, Schonlau and Welch 1998, equation 15)."""
    ahead = mean - best
    z = ahead / deviation
    density = np.exp(-0.5 * z**2) / math.sqrt(2 * math.pi)
    return np.asarray(ahead * _normal_cdf(z) + deviation * density)


Cell = tuple[int, ...]
"""The index of the chosen value of each knob."""


@dataclass(frozen=True, slots=True)
class Knob:
    """A setting and its candidate values."""

    key: str
    values: tuple[Any, ...]
    """Plain values; if they are numbers or marked as ordered, neighbours are expected to behave alike."""
    ordered: bool = True

    def apart(self) -> _Floats:
        """Distances between values, 0..1, float64 [V, V]."""
        count = len(self.values)
        if not self.ordered or count < 2:
            return np.asarray(1.0 - np.eye(count))
        places = np.arange(count) / (count - 1)
        return np.asarray(np.abs(places[:, None] - places[None, :]))


@dataclass(frozen=True, slots=True)
class Limit:
    """The limit of a measured figure."""

    figure: str
    """Key of ``Measured.figures``."""
    most: float
    decided_by: tuple[str, ...] = ()
    """Keys of the knobs that alone determine the figure, without noise; if empty, any knob may, and measurements
    vary."""


@dataclass(frozen=True, slots=True)
class Measured:
    """The measurement of a cell."""

    score: float = 0.0
    """More is better; above 0 unless the measurement failed."""
    figures: Mapping[str, float] = field(default_factory=dict)
    """Figures that have limits, 0 or more."""
    failure: str | None = None
    """Why it could not be measured, in a few words."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One measurement, and the reason for it."""

    cell: Cell
    measured: Measured
    why: str


@dataclass(frozen=True, slots=True)
class Effect:
    """The effect of one knob at the best cell."""

    key: str
    value: Any
    scores: tuple[tuple[Any, float], ...]
    """The model's prediction for each of its values."""


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The result of a search."""

    best: Cell | None
    """None if no measured cell keeps the limits."""
    score: float
    """The best cell's score, without the noise of single measurements as far as the model can separate it."""
    trials: tuple[Trial, ...]
    effects: tuple[Effect, ...]
    grid_size: int
    ended: str
    """Why it ended, in words."""


def in_turns(
    measure: Callable[[Mapping[str, Any]], Measured], values: Mapping[str, Any], *, turns: int
) -> tuple[list[Measured], list[Measured]]:
    """Measure old and new settings alternately, so that disturbances affect both.

    Args:
        measure: Measures changed settings.
        values: The values found; if empty, nothing is measured twice.
        turns: Number of turns.
    """
    old, new = [], []
    for _ in range(turns):
        old.append(measure({}))
        new.append(measure(values) if values else old[-1])
    return old, new


def middle(runs: Sequence[Measured]) -> Measured:
    """The median of each figure over runs that did not fail."""
    names = runs[0].figures
    return Measured(
        median(one.score for one in runs), {name: median(one.figures[name] for one in runs) for name in names}
    )


_SCHEMA = "vitascope.search"
_VERSION = 1


def save_trials(
    path: Path, identity: Mapping[str, Any], trials: Sequence[Trial], *, replaces: str | None = None
) -> None:
    """Write all trials; after a crash the previous file is still there.

    Raises:
        OutputError: It cannot be written.
    """
    rows = [
        {
            "cell": list(trial.cell),
            "score": trial.measured.score,
            "figures": dict(trial.measured.figures),
            "failure": trial.measured.failure,
            "why": trial.why,
        }
        for trial in trials
    ]
    document = {
        "schema": _SCHEMA,
        "version": _VERSION,
        "search": dict(identity),
        "replaces": replaces,
        "trials": rows,
    }
    write_file(path, (json.dumps(document, indent=1) + "\n").encode())


def content_mark(file: Path) -> str | None:
    """A hash of a file's content; None if there is no file, or for a pipe or device.

    Raises:
        UsageError: It cannot be read.
    """
    if file.exists() and not file.is_file():
        return None  # reading it might block for ever
    try:
        return blake2b(file.read_bytes(), digest_size=20).hexdigest()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UsageError(f"{file}: cannot be read ({error.strerror or error})") from error


def may_go_on_to_replace(file: Path, state: Path) -> bool:
    """True if the search kept in ``state`` was allowed to replace this file, whatever its date."""
    try:
        document = json.loads(state.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):  # no search is left, or continuing it reports the error
        return False
    allowed = document.get("replaces") if isinstance(document, dict) else None
    return allowed is not None and allowed == content_mark(file)


def load_trials(path: Path, identity: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Load the trials of the same search.

    Raises:
        UsageError: It is not a search's state, or one of another version or search.
    """
    again = "search again without --resume"
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"{path}: not a search that can be resumed; {again}") from error
    if not isinstance(document, dict) or document.get("schema") != _SCHEMA:
        raise UsageError(f"{path}: not a search that can be resumed; {again}")
    if document.get("version") != _VERSION:
        raise UsageError(f"{path}: version {document.get('version')} of a search is unknown here; {again}")
    if document.get("search") != json.loads(json.dumps(dict(identity))):
        raise UsageError(f"{path}: belongs to a search with other settings, limits or clip; {again}")
    sizes = [len(values) for _, values in identity["knobs"]]
    rows = document.get("trials")
    if not isinstance(rows, list) or not all(_is_trial(row, sizes) for row in rows):
        raise UsageError(f"{path}: its trials are damaged; {again}")
    return rows


def _is_trial(row: Any, sizes: Sequence[int]) -> bool:
    if not isinstance(row, dict) or set(row) != {"cell", "score", "figures", "failure", "why"}:
        return False
    cell, figures = row["cell"], row["figures"]
    return (
        isinstance(cell, list)
        and len(cell) == len(sizes)
        and all(type(place) is int and 0 <= place < size for place, size in zip(cell, sizes, strict=True))
        and _is_number(row["score"])
        and isinstance(figures, dict)
        and all(_is_number(figure) for figure in figures.values())
        and isinstance(row["failure"], str | None)
        and isinstance(row["why"], str)
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


_MOST_CELLS = 20_000
_SPREAD_BEYOND_KNOBS = 5
_SPREAD_PART = 3
"""Once something ran, at most one in this many trials is drawn without the model; the few trials are best spent where
it points."""
_LEAST_SPREAD = 2
"""The first cell and one elsewhere: the model learns nothing from a single one."""
_NOT_WORTH_A_TRIAL = 0.0005
_RESHAPE_EVERY = 4
_CONFIRM_SHARE = 0.12
_NEARLY_EQUAL = 0.01
_SMALLEST = 1e-6


class GridSearch:
    """Finds the best cell of a grid within limits.

    Args:
        knobs: The grid: every combination of their values is a cell.
        limits: Limits that a cell must keep.
        start: The first cell to measure: the current settings, or a guess.
        most_trials: Limit of the number of measurements; a fifth of the cells when omitted.
        unit: Unit of the score, for explanations.
        seed: Random seed for the cells first spread over the grid.
        state: File that keeps the trials during the search, so that another one can continue; none when omitted.
        subject: Description of what is measured; a state with another subject is refused.
        resume: Continue from ``state`` if it exists.
        replaces: Hash of the file that the search may replace at the end, kept in ``state``.

    Raises:
        UsageError: The grid is too large, or the state belongs to another search.
        OutputError: The state cannot be written.
    """

    def __init__(
        self,
        knobs: Sequence[Knob],
        limits: Sequence[Limit] = (),
        *,
        start: Cell | None = None,
        most_trials: int | None = None,
        unit: str = "fps",
        seed: int = 0,
        state: Path | None = None,
        subject: str = "",
        resume: bool = False,
        replaces: str | None = None,
    ) -> None:
        size = math.prod(len(knob.values) for knob in knobs)
        if not knobs or size < 1 or size > _MOST_CELLS:
            raise UsageError(f"a search must have 1 to {_MOST_CELLS} combinations of settings, not {size}")
        self.knobs, self.limits = tuple(knobs), tuple(limits)
        self.cells: list[Cell] = list(itertools.product(*(range(len(knob.values)) for knob in knobs)))
        self._number = {cell: number for number, cell in enumerate(self.cells)}
        self._start = start if start is not None else (0,) * len(knobs)
        self.most_trials = max(size // 5 if most_trials is None else most_trials, 1)
        self._unit, self._state, self._replaces = unit, state, replaces
        self._identity = {
            "subject": subject,
            "knobs": [[knob.key, [str(value) for value in knob.values]] for knob in knobs],
            "limits": [[limit.figure, limit.most] for limit in limits],
        }
        self.trials: list[Trial] = []
        if state is not None and resume and state.exists():
            for words in load_trials(state, self._identity):
                measured = Measured(words["score"], words["figures"], words["failure"])
                self.trials.append(Trial(tuple(words["cell"]), measured, words["why"]))
        indices = np.array(self.cells, np.intp)
        apart = [knob.apart() for knob in knobs]
        self._speed, self._runs = _Surrogate(indices, apart), _Surrogate(indices, apart)
        self._figures = {limit.figure: _Surrogate(indices, apart) for limit in limits}
        self._spread = self._spread_cells(random.Random(seed))
        self._ended, self._next_shape = "", _RESHAPE_EVERY

    def values(self, cell: Cell) -> dict[str, Any]:
        """The settings of a cell, by key."""
        return {knob.key: knob.values[place] for knob, place in zip(self.knobs, cell, strict=True)}

    def keeps_limits(self, measured: Measured) -> bool:
        """True if a measurement did not fail and breaks no limit."""
        return measured.failure is None and all(
            measured.figures[limit.figure] <= limit.most for limit in self.limits
        )

    def ran_elsewhere(self, values: Mapping[str, Any]) -> tuple[Measured, ...]:
        """Keep the trials whose settings are known to differ from ``values``; ``auto`` may stand for any value."""
        known = {knob.key: values[knob.key] for knob in self.knobs if values[knob.key] in knob.values}
        return tuple(
            trial.measured
            for trial in self.trials
            if trial.measured.failure is None
            and any(self.values(trial.cell)[key] != value for key, value in known.items())
        )

    def run(
        self,
        measure: Callable[[dict[str, Any]], Measured],
        *,
        on_trial: Callable[[GridSearch, Trial], object] | None = None,
        enough: Callable[[Measured], bool] = lambda _: False,
        is_late: Callable[[], bool] = lambda: False,
    ) -> SearchResult:
        """Run the search to its end.

        Args:
            measure: Measures the settings of a cell.
            on_trial: Called after each measurement, with this search.
            enough: True for a measurement within the limits that is good enough to stop.
            is_late: True once the time is over; at least one cell is measured.

        Raises:
            OutputError: The state cannot be written.
            Exception: Raised by ``measure``; the trials before it are in the state.
        """
        while not self._has_enough(enough):
            if self.trials and is_late():
                self._ended = "the time was up"
                break
            if (step := self.propose()) is None:
                break
            cell, why = step
            trial = self.record(cell, measure(self.values(cell)), why)
            if on_trial is not None:
                on_trial(self, trial)
        return self.result()

    def _has_enough(self, enough: Callable[[Measured], bool]) -> bool:
        if any(self.keeps_limits(trial.measured) and enough(trial.measured) for trial in self.trials):
            self._ended = "the target was reached"
            return True
        return False

    def record(self, cell: Cell, measured: Measured, why: str) -> Trial:
        """Record a measurement and save it."""
        trial = Trial(cell, measured, why)
        self.trials.append(trial)
        if self._state is not None:
            save_trials(self._state, self._identity, self.trials, replaces=self._replaces)
        return trial

    def propose(self) -> tuple[Cell, str] | None:
        """The next cell to measure, and why; None at the end."""
        done, tried = len(self.trials), {trial.cell for trial in self.trials}
        if done >= self.most_trials:
            self._ended = f"{done} trials were allowed"
            return None
        if not tried:
            return self._start, "start: what the settings say"
        confirming = self._confirming()
        if done < self.most_trials - confirming:
            while self._spread:
                cell = self._spread.pop(0)
                if cell in tried or self._is_pointless(cell):
                    continue
                if done < self._spread_trials():
                    return cell, "spread: over the values of all knobs"
            if (step := self._most_promising(tried)) is not None:
                return step
        return self._confirm()

    def _spread_trials(self) -> int:
        """Number of trials up to which cells are drawn without the model, which knows nothing before one ran."""
        most = len(self.knobs) + _SPREAD_BEYOND_KNOBS
        if all(trial.measured.failure is not None for trial in self.trials):
            return most
        return min(most, max(self.most_trials // _SPREAD_PART, _LEAST_SPREAD))

    def result(self) -> SearchResult:
        """The result so far."""
        best = self._best()
        if best is None:
            return SearchResult(None, 0.0, tuple(self.trials), (), len(self.cells), self._ended)
        mean, _ = self._predicted()
        scores = np.exp(mean)
        effects = []
        for place, knob in enumerate(self.knobs):
            siblings = [
                self._number[(*best[:place], other, *best[place + 1 :])] for other in range(len(knob.values))
            ]
            expected = tuple(zip(knob.values, (float(scores[row]) for row in siblings), strict=True))
            effects.append(Effect(knob.key, knob.values[best[place]], expected))
        score = float(scores[self._number[best]])
        return SearchResult(best, score, tuple(self.trials), tuple(effects), len(self.cells), self._ended)

    def _spread_cells(self, order: random.Random) -> list[Cell]:
        """Order the cells by Latin hypercubes, so that each value of each knob comes about equally often."""
        count = 2 * max(len(knob.values) for knob in self.knobs)
        columns = []
        for knob in self.knobs:
            column = [place % len(knob.values) for place in range(count)]
            order.shuffle(column)
            columns.append(column)
        return list(dict.fromkeys(zip(*columns, strict=True)))

    def _learnt(self) -> list[Trial]:
        """Fit the models to the trials; return those that ran."""
        ran = [trial for trial in self.trials if trial.measured.failure is None]
        reshape = len(self.trials) >= self._next_shape
        if reshape:  # ever more rarely, because one more trial changes less and less
            self._next_shape = len(self.trials) + max(_RESHAPE_EVERY, len(self.trials) // 3)
        if ran:
            rows = [self._number[trial.cell] for trial in ran]
            self._speed.learn(
                rows, [math.log(max(t.measured.score, _SMALLEST)) for t in ran], reshape=reshape
            )
            for name, model in self._figures.items():
                # Codes of 255 and bytes alike: what matters is the ratio to the limit.
                most = next(limit.most for limit in self.limits if limit.figure == name)
                floor = max(most, _SMALLEST) * 0.05
                model.learn(rows, [math.log(t.measured.figures[name] + floor) for t in ran], reshape=reshape)
        if len(ran) < len(self.trials):
            rows = [self._number[trial.cell] for trial in self.trials]
            labels = [1.0 if trial.measured.failure is None else -1.0 for trial in self.trials]
            self._runs.learn(rows, labels, reshape=reshape)
        return ran

    def _predicted(self) -> tuple[_Floats, _Floats]:
        self._learnt()
        return self._speed.predict()

    def _chances(self, ran: Sequence[Trial]) -> _Floats:
        """Probability that each cell runs and keeps the limits, 0..1."""
        chance: _Floats = np.ones(len(self.cells))
        if len(ran) < len(self.trials):
            mean, deviation = self._runs.predict()
            chance *= _normal_cdf(mean / np.maximum(deviation, 0.05))
        for limit in self.limits:
            mean, deviation = self._figures[limit.figure].predict()
            bound = math.log(max(limit.most, 0.0) + max(limit.most, _SMALLEST) * 0.05)
            chance *= _normal_cdf((bound - mean) / np.maximum(deviation, 0.01))
            for row, keeps in self._decided(limit, ran):
                chance[row] = chance[row] if keeps else 0.0
        return chance

    def _decided(self, limit: Limit, ran: Sequence[Trial]) -> Iterator[tuple[int, bool]]:
        """Cells already known to keep or break a limit."""
        if not limit.decided_by:
            return
        places = [place for place, knob in enumerate(self.knobs) if knob.key in limit.decided_by]
        known = {
            tuple(trial.cell[place] for place in places): trial.measured.figures[limit.figure] <= limit.most
            for trial in ran
        }
        for row, cell in enumerate(self.cells):
            keeps = known.get(tuple(cell[place] for place in places))
            if keeps is not None:
                yield row, keeps

    def _is_pointless(self, cell: Cell) -> bool:
        """True if the cell is known to break a limit."""
        ran = [trial for trial in self.trials if trial.measured.failure is None]
        number = self._number[cell]
        return any(
            row == number and not keeps for limit in self.limits for row, keeps in self._decided(limit, ran)
        )

    def _most_promising(self, tried: set[Cell]) -> tuple[Cell, str] | None:
        ran = self._learnt()
        if not ran:
            rest = [cell for cell in self.cells if cell not in tried]
            if not rest:
                self._ended = "no cell of the grid runs"
                return None
            mean, _ = self._runs.predict()
            cell = max(rest, key=lambda one: mean[self._number[one]])
            return cell, "nothing ran yet: the farthest from what failed"
        mean, deviation = self._speed.predict()
        chance = self._chances(ran)
        worth = chance.copy()
        best = self._best_of(mean)
        if best is not None:
            worth *= _expected_gain(mean, deviation, float(mean[self._number[best]]))
        for cell in tried:
            worth[self._number[cell]] = -1.0
        row = int(np.argmax(worth))
        if worth[row] < 0:
            self._ended = "every cell was measured"
            return None
        if best is None:
            return self.cells[row], f"nothing keeps the limits yet: {chance[row]:.0%} likely that this does"
        if worth[row] < _NOT_WORTH_A_TRIAL / max(len(self.knobs), 1) and len(self.trials) > 3 * len(
            self.knobs
        ):
            self._ended = "no remaining cell promises a gain worth a trial"
            return None
        expected, spread = math.exp(mean[row]), math.exp(mean[row]) * deviation[row]
        gain = math.exp(mean[row] - mean[self._number[best]]) - 1
        limits = f", {chance[row]:.0%} likely to run within the limits" if chance[row] < 0.995 else ""
        return (
            self.cells[row],
            f"promising: {expected:.3g} ± {spread:.2g} {self._unit} expected, {gain:+.0%} against the best{limits}",
        )

    def _confirming(self) -> int:
        """Number of trials reserved for measuring the best cells again."""
        return min(max(round(self.most_trials * _CONFIRM_SHARE), 1), 4) if self.most_trials >= 8 else 0

    def _confirm(self) -> tuple[Cell, str] | None:
        """Measure again the least measured of the best cells."""
        self._ended = self._ended or f"{self.most_trials} trials were allowed"
        again = [trial for trial in self.trials if trial.why.startswith("again")]
        if len(again) >= self._confirming():
            return None
        good = self._feasible()
        if not good:
            return None
        mean, _ = self._predicted()
        counts: dict[Cell, int] = {}
        for trial in self.trials:
            counts[trial.cell] = counts.get(trial.cell, 0) + 1
        top = sorted(good, key=lambda cell: -mean[self._number[cell]])[:3]
        cell = min(top, key=lambda one: (counts[one], top.index(one)))
        return cell, "again: one of the best, so that chance does not choose"

    def _feasible(self) -> list[Cell]:
        """Cells whose measurements keep the limits on average."""
        by_cell: dict[Cell, list[Measured]] = {}
        for trial in self.trials:
            by_cell.setdefault(trial.cell, []).append(trial.measured)
        return [
            cell
            for cell, found in by_cell.items()
            if all(one.failure is None for one in found)
            and all(
                sum(one.figures[limit.figure] for one in found) / len(found) <= limit.most
                for limit in self.limits
            )
        ]

    def _best_of(self, mean: _Floats) -> Cell | None:
        return max(self._feasible(), key=lambda cell: float(mean[self._number[cell]]), default=None)

    def _best(self) -> Cell | None:
        """The cell with the fewest changes among those nearly as good as the best."""
        good = self._feasible()
        if not good:
            return None
        mean, _ = self._predicted()
        top = max(float(mean[self._number[cell]]) for cell in good)
        near = [cell for cell in good if mean[self._number[cell]] >= top + math.log1p(-_NEARLY_EQUAL)]
        changed = {cell: sum(a != b for a, b in zip(cell, self._start, strict=True)) for cell in near}
        return min(near, key=lambda cell: (changed[cell], -mean[self._number[cell]]))
