"""Tests of the metrics for mattes, on cases small enough to compute by hand."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

FOLDER = Path(__file__).parents[3] / "benchmarks" / "matte_quality"
NONE, ALL = np.zeros((20, 30), np.float32), np.ones((20, 30), np.float32)


@pytest.fixture
def metrics(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    import metrics

    return metrics


@pytest.fixture
def disc():
    y, x = np.mgrid[:20, :30]
    return np.clip(8 - np.hypot(x - 15, y - 10), 0, 1).astype(np.float32)


def test_a_matte_equals_itself(metrics, disc):
    assert metrics.scores(disc, disc, before=(disc, disc)) == dict.fromkeys(metrics.METRICS, 0.0)


def test_differences(metrics, disc):
    assert metrics.sad(ALL, NONE) == pytest.approx(0.6)
    assert metrics.mse(ALL, NONE) == pytest.approx(1000)
    assert metrics.mse(disc / 2, disc) == pytest.approx(250 * float(np.square(disc).mean()), rel=1e-5)


def test_where_says_what_counts(metrics):
    left = np.zeros((20, 30), bool)
    left[:, :10] = True
    alpha = np.where(left, 0.5, 0).astype(np.float32)
    assert metrics.sad(alpha, NONE, left) == pytest.approx(0.1)
    assert metrics.mse(alpha, NONE, left) == pytest.approx(250)
    assert metrics.sad(alpha, NONE, ~left) == metrics.mse(alpha, NONE, np.zeros_like(left)) == 0


def test_a_softer_edge_is_a_gradient_error(metrics, disc):
    soft = np.clip((disc + np.roll(disc, 3, 1)) / 2, 0, 1)
    assert metrics.gradient_error(ALL, NONE) == pytest.approx(0, abs=1e-9)
    assert metrics.gradient_error(soft, disc) > metrics.gradient_error(np.roll(disc, 1, 1), disc) / 4 > 0


def test_a_part_that_hangs_on_nothing_is_a_connectivity_error(metrics, disc):
    apart = disc.copy()
    apart[2:5, 1:4] = 1
    assert metrics.connectivity_error(apart, disc) == pytest.approx(9 / 1000)


def test_flicker_is_change_that_the_truth_lacks(metrics):
    half = ALL / 2
    assert metrics.dtssd((NONE, NONE), (half, NONE)) == pytest.approx(50)
    assert metrics.dtssd((NONE, NONE), (half, half)) == 0
    assert metrics.dtssd((half, NONE), (half, NONE)) == 0


def test_the_band_lies_around_what_is_neither(metrics, disc):
    band = metrics.unknown_band(disc, 2)
    assert band[(disc > 0) & (disc < 1)].all()
    assert not band[10, 15]
    assert not band[0, 0]
    assert not metrics.unknown_band(NONE, 2).any()


def test_hard_moments_are_where_the_truth_says(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    from truth import make_film

    person = np.zeros((100, 60, 4), np.float32)
    person[20:, 15:45] = 0.5, 0.4, 0.3, 1
    made = {
        kind: make_film(kind, [[person]], [], seed=0, size=(54, 96), frames=12, on=(0, 255, 0))
        for kind in ("one", "entering", "occluded", "empty")
    }
    assert made["one"].moments == {"first": 0}
    assert made["empty"].moments == {}
    areas = made["entering"].alpha.sum(axis=(1, 2))
    entering = made["entering"].moments["entering"]
    assert areas[entering] > areas[0] or entering == 0
    areas, again = made["occluded"].alpha.sum(axis=(1, 2)), made["occluded"].moments["after occlusion"]
    assert areas.argmin() < again - 1
    assert areas[again - 1] < 0.97 * areas[0] < areas[again]


def test_who_is_cut_off_by_the_lower_edge_stands_on_it_in_every_frame(monkeypatch):
    """Check that a person cut off by the lower edge stands on it in every frame.

    The lowest rows of the cut-out are half transparent. In the truth, only the first frames would show them.
    """
    monkeypatch.syspath_prepend(str(FOLDER))
    from truth import make_film

    bust = np.zeros((200, 120, 4), np.float32)
    bust[40:, 30:90] = 0.5, 0.4, 0.3, 1
    bust[-3:] *= 0.55
    film = make_film("one", [[bust]], [], seed=0, size=(108, 192), frames=6, on=(0, 255, 0))
    wide = film.alpha[:, -20] > 0.99
    assert wide.any(axis=1).all()
    assert all(alpha[-20:, inside].min() > 0.98 for alpha, inside in zip(film.alpha, wide, strict=True))


def head_and_shoulders(temples: int = 50) -> np.ndarray:
    """Make a person [200, 160, 4] with red hair down to their brow and a rim of the green background."""
    rows, columns = np.mgrid[:200, :160]
    head = np.hypot((columns - 80) / 40, (rows - temples) / 45) <= 1
    shown = head | ((rows > 90) & (abs(columns - 80) < 70))
    figure = np.zeros((200, 160, 4), np.float32)
    figure[shown] = 0.5, 0.4, 0.3, 1
    figure[head & (rows < 40)] = 0.6, 0.1, 0.1, 1
    figure[head & (rows < 8)] = 0, 0.9, 0, 1
    return figure


def test_hair_of_a_close_up_is_of_the_persons_own_colour(monkeypatch):
    """Check the hair's colour: networks take strands of another colour for background in all mattes."""
    monkeypatch.syspath_prepend(str(FOLDER))
    from truth import make_film

    film = make_film(
        "close-up", [[head_and_shoulders()]], [], seed=1, size=(270, 480), frames=2, on=(0, 0, 255)
    )
    alpha, rgb = film.alpha[0], film.rgb[0].astype(np.float32) / 255
    partial = (alpha > 0.2) & (alpha < 0.8)
    assert partial.mean() > 0.02
    color = (rgb[partial] - (1 - alpha[partial, None]) * [0, 0, 1]) / alpha[partial, None]
    assert np.median(color, axis=0) == pytest.approx([0.6, 0.1, 0.1], abs=0.06)


def test_hair_holds_as_still_as_the_head(monkeypatch):
    """Check that hair is still: the widest row of a head moves with every sample of its outline."""
    monkeypatch.syspath_prepend(str(FOLDER))
    from truth import _head, _heads

    person = head_and_shoulders()
    other = person.copy()
    other[46, 36:125] = other[46, 80]
    assert _head(other).temples == 46
    assert _heads([person, person, other])[2] == _head(person)


def test_a_moment_is_told_against_the_median_of_its_shot(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    from measure import _against_median

    assert _against_median((3.0, 1.0, 2.0), 0, (1, 1, 1)) == 1.5
    assert _against_median((0.0, 0.0, 0.0), 0, (1, 1, 1)) == 0
    assert _against_median((3.0, 1.0, 2.0, None), 0, (1, 1, 1, 1)) == 1.5
    assert _against_median((None, 1.0, 2.0, 3.0), 0, (1, 1, 1, 1)) is None


def test_a_blurred_frame_is_told_by_its_edges_too(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    from measure import _moments
    from truth import Film

    alpha = np.zeros((5, 20, 30), np.float32)
    alpha[:, 5:15, 10:20] = 0.5
    alpha[0, 5:15, 10:25] = 0.5  # larger by half
    alpha[4] = 0
    rgb = np.zeros((5, 20, 30, 3), np.uint8)
    film = Film("one", "one_0", rgb, alpha, {"first": 0}, (1, 1, 1, 1, 1))
    assert _moments(film, [3.0, 2.0, 2.0, 2.0, 0.5]) == {"first": 1.5, "first, for its edges": 1.0}


def test_rows_that_are_there_are_told_of_again(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    from measure import told_again
    from truth import make_film

    person = np.zeros((100, 60, 4), np.float32)
    person[20:, 15:45] = 0.5, 0.4, 0.3, 1

    def remake(kind, seed):
        return make_film(kind, [[person]], [], seed=seed, size=(54, 96), frames=4)

    row = {"class": "one", "clip": "one_3", "people_in_frame": [1] * 4, "frame_sad": [2.0, 1.0, 1.0, 1.0]}
    row["people"] = ["her.mp4"]
    seen_last = {"first, against itself seen last": 0.9}
    (again,) = told_again([row | {"moments": {"first": 7.0, **seen_last}}], remake, people=["her.mp4"])
    assert again["moments"].keys() == {"first", "first, for its edges", *seen_last}
    assert again["moments"]["first"] == 2
    assert {name: again[name] for name in row} == row
    for other, people in (({"frame_sad": [1.0] * 5}, ["her.mp4"]), ({}, ["him.mp4"])):
        with pytest.raises(SystemExit, match="one_3: another clip was measured"):
            told_again([row | {"moments": {}} | other], remake, people=people)


def test_a_clip_is_the_same_file_on_any_number_of_cores(monkeypatch, tmp_path):
    """Check that the file is the same: with a thread per core, first frames' errors differed by half."""
    monkeypatch.syspath_prepend(str(FOLDER))
    from truth import Film, write_film

    random = np.random.default_rng(0)
    rgb = random.integers(0, 256, (8, 160, 240, 3), np.uint8)
    film = Film("one", "one_0", rgb, np.zeros((8, 160, 240), np.float32))
    written = []
    cores = os.sched_getaffinity(0)
    try:
        for some in (cores, {min(cores)}):
            os.sched_setaffinity(0, some)
            written.append(write_film(film, tmp_path / f"{len(some)}.mp4").read_bytes())
    finally:
        os.sched_setaffinity(0, cores)
    assert written[0] == written[1]


def test_who_leaves_takes_their_error_along(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    from measure import _against_median
    from truth import make_film

    person = np.zeros((100, 60, 4), np.float32)
    person[20:, 15:45] = 0.5, 0.4, 0.3, 1
    film = make_film("leaving", [[person]], [], seed=0, size=(54, 96), frames=12)
    assert film.people[0] == 2
    assert film.people[-1] == 1
    assert list(film.people) == sorted(film.people, reverse=True)
    frames = [4.0 if count == 2 else 1.0 for count in film.people]
    assert _against_median(frames, 0, film.people) == 1
    assert _against_median(frames[:3], 0, (2, 1, 1)) is None
