"""Tests of the gate's memory, with scripted second looks and scores."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest

from vitascope.errors import ModelError
from vitascope.models.network import FloatArray
from vitascope.models.selfie import presence
from vitascope.models.selfie.presence import (
    EVIDENCE_SIZE,
    FEATURE_COUNT,
    LOOK_SIZE,
    Claimant,
    Look,
    PresenceClassifier,
    PresenceGate,
    QuickJudge,
    SlowJudge,
)

SIZE = 64


def one_number(
    *,
    general: float = 0.0,
    landscape: float = 0.0,
    surely_not: float = -100.0,
    surely: float = 100.0,
    number: int = 0,
    weight: float = 1.0,
) -> PresenceClassifier:
    """Use the first number of the general network's summary as the score; ``number`` of the evidence is added."""
    quick, hidden = (
        np.zeros(EVIDENCE_SIZE, np.float32),
        np.zeros((2, EVIDENCE_SIZE + FEATURE_COUNT), np.float32),
    )
    quick[0] = 1
    hidden[:, 0] = 1, -1
    hidden[:, number] = weight, -weight
    both = {"general": surely_not, "landscape": surely_not}, {"general": surely, "landscape": surely}
    return PresenceClassifier(
        quick=QuickJudge(weights=quick, surely_not=both[0], surely=both[1]),
        slow=SlowJudge(
            centre=np.zeros(EVIDENCE_SIZE + FEATURE_COUNT, np.float32),
            scale=np.ones(EVIDENCE_SIZE + FEATURE_COUNT, np.float32),
            hidden=hidden,
            hidden_bias=np.zeros(2, np.float32),
            output=np.array([1, -1], np.float32),
            bias={"general": general, "landscape": landscape},
        ),
    )


def look_scoring(score: float) -> Look:
    """Make a look whose score is ``score`` for ``one_number``."""
    empty = np.zeros((LOOK_SIZE, LOOK_SIZE), np.float32)
    summary = np.zeros(32, np.float32)
    summary[0] = score
    return Look(alpha=empty, general_summary=summary, landscape_summary=np.zeros(32, np.float32))


class ScriptedLooks:
    """Answers both views of each second look with the next score, repeating the last, and counts the looks."""

    def __init__(self, scores: Sequence[float]) -> None:
        self.scores = list(scores)
        self.pictures: list[FloatArray] = []

    @property
    def count(self) -> int:
        return len(self.pictures) // 2

    def __call__(self, picture: FloatArray) -> Look:
        score = self.scores[min(self.count, len(self.scores) - 1)]
        self.pictures.append(picture)
        return look_scoring(score)


def no_features(shown: Sequence[FloatArray]) -> FloatArray:
    assert len(shown) == 2
    return np.zeros(FEATURE_COUNT, np.float32)


def blob(x: int = 16, *, side: int = 24) -> FloatArray:
    alpha = np.zeros((SIZE, SIZE), np.float32)
    alpha[20 : 20 + side, x : x + side] = 1
    return alpha


GREY = np.full((1, SIZE, SIZE, 3), 0.5, np.float32)
NOBODY = np.zeros((SIZE, SIZE), np.float32)


def play(gate: PresenceGate, mattes: Sequence[FloatArray], looks: ScriptedLooks) -> list[float]:
    """Return the maximum alpha of each frame after the gate, for a stream of one eye."""
    return [
        float(gate.apply(matte[None], GREY, looks, no_features, claimant="general").max()) for matte in mattes
    ]


@pytest.mark.parametrize(("claimant", "shown"), [("general", 0), ("landscape", 1)])
def test_each_network_has_its_own_bias(claimant: Claimant, shown: float) -> None:
    gate = PresenceGate(one_number(general=-1, landscape=1))
    assert gate.apply(blob()[None], GREY, ScriptedLooks([0.0]), no_features, claimant=claimant).max() == shown


def test_an_empty_matte_costs_no_look_and_stays_empty() -> None:
    looks = ScriptedLooks([5.0])
    speck = NOBODY.copy()
    speck[3, 3] = 1
    assert play(PresenceGate(one_number()), [NOBODY, speck, NOBODY], looks) == [0, 0, 0]
    assert not looks.pictures


def test_a_confirmed_person_is_shown_whole_from_the_first_frame_on() -> None:
    gate, matte = PresenceGate(one_number()), blob()
    gated = gate.apply(
        matte[None],
        np.full((1, SIZE, SIZE, 3), 0.5, np.float32),
        ScriptedLooks([2.0]),
        no_features,
        claimant="general",
    )
    np.testing.assert_array_equal(gated[0], matte)


def test_an_invention_is_never_shown_and_is_not_looked_at_every_frame() -> None:
    looks = ScriptedLooks([-3.0])
    assert play(PresenceGate(one_number()), [blob()] * 80, looks) == [0] * 80
    assert looks.count <= 80 / presence.DOUBTFUL_INTERVALS[1] + 3


def test_a_still_person_costs_few_looks() -> None:
    looks = ScriptedLooks([3.0])
    assert play(PresenceGate(one_number()), [blob()] * 200, looks) == [1] * 200
    assert looks.count <= 200 / presence.CONFIRMED_INTERVALS[1] + 2


def test_a_walking_person_is_one_person() -> None:
    looks = ScriptedLooks([3.0])
    assert play(PresenceGate(one_number()), [blob(x) for x in range(40)], looks) == [1] * 40
    assert looks.count == 1


def test_whoever_enters_is_looked_at_soon_and_fades_in() -> None:
    looks = ScriptedLooks([3.0])
    shown = play(PresenceGate(one_number()), [NOBODY] * 10 + [blob()] * 6, looks)
    assert shown[:10] == [0] * 10
    assert shown[10:] == [0.25, 0.5, 0.75, 1, 1, 1]


def test_a_clear_person_is_shown_at_once_though_nobody_was_there_before() -> None:
    looks = ScriptedLooks([-4.0, 3.0])
    shown = play(PresenceGate(one_number()), [blob()] * 3 + [blob(40, side=20)] * 6, looks)
    assert shown == [0, 0, 0, 0.25, 0.5, 0.75, 1, 1, 1]


def test_one_lucky_look_at_a_phantom_shows_nobody_and_two_in_a_row_do() -> None:
    lucky = ScriptedLooks([-2.0, -2.0, 0.8, -2.0, -2.0, -2.0])
    assert play(PresenceGate(one_number()), [blob()] * 120, lucky) == [0] * 120
    doubtful = ScriptedLooks([-2.0, 0.8])
    shown = play(PresenceGate(one_number()), [blob()] * 3 + [blob(40, side=20)] * 12, doubtful)
    assert shown[: 3 + presence.MIN_INTERVAL] == [0] * (3 + presence.MIN_INTERVAL)
    assert shown[-1] == 1


def test_whoever_is_not_settled_is_looked_at_again_soon() -> None:
    looks = ScriptedLooks([0.3, -2.0])
    shown = play(PresenceGate(one_number()), [blob()] * 12, looks)
    first = presence.UNSETTLED_INTERVALS[0]
    assert shown[:first] == [1] * first
    assert shown[first + presence.FADE_FRAMES - 1 :] == [0] * (12 - first - presence.FADE_FRAMES + 1)


def test_whoever_left_speaks_for_nobody_who_comes_later() -> None:
    gone = [NOBODY] * (presence.PATIENCE_FRAMES + 6)
    shown = play(PresenceGate(one_number()), [blob()] * 3 + gone + [blob()] * 40, ScriptedLooks([4.0, -0.5]))
    assert shown[0] == 1
    assert shown[-40:] == [0] * 40


def test_a_score_that_wavers_around_zero_does_not_flicker() -> None:
    looks = ScriptedLooks([1.0, -0.8, 0.6, -0.9, 0.5, -0.7, 0.6] * 20)
    assert play(PresenceGate(one_number()), [blob()] * 300, looks) == [1] * 300
    rejected = ScriptedLooks([-0.5, -0.2, -0.6, -0.1])
    assert play(PresenceGate(one_number()), [blob()] * 300, rejected) == [0] * 300


def test_openness_changes_by_at_most_one_fade_step() -> None:
    rng = np.random.default_rng(0)
    mattes = [blob(int(x)) if x >= 0 else NOBODY for x in rng.integers(-10, 40, 400)]
    gate = PresenceGate(one_number())
    looks = ScriptedLooks(list(rng.normal(0, 3, 400)))
    play(gate, mattes[:1], looks)
    picture = np.full((1, SIZE, SIZE, 3), 0.5, np.float32)
    probe = [float(gate.apply(blob()[None], picture, looks, no_features, claimant="general").max())]
    for matte in mattes:
        gate.apply(matte[None], picture, looks, no_features, claimant="general")
        probe.append(float(gate.apply(blob()[None], picture, looks, no_features, claimant="general").max()))
    assert np.abs(np.diff(probe)).max() <= 2 / presence.FADE_FRAMES + 1e-6  # two frames between samples


def test_a_person_may_vanish_briefly_but_not_for_long() -> None:
    looks = ScriptedLooks([3.0, -5.0])
    brief = [blob()] * 3 + [NOBODY] * presence.PATIENCE_FRAMES + [blob()] * 3
    assert play(PresenceGate(one_number()), brief, looks)[-3:] == [1] * 3
    looks = ScriptedLooks([3.0, -5.0])
    long = [blob()] * 3 + [NOBODY] * (presence.PATIENCE_FRAMES + 6) + [blob()] * 3
    assert play(PresenceGate(one_number()), long, looks)[-3:] == [0] * 3


def test_what_stays_behind_when_the_person_left_is_found_out() -> None:
    looks = ScriptedLooks([3.0, -4.0])
    shown = play(PresenceGate(one_number()), [blob()] * 3 + [blob(40, side=20)] * 40, looks)
    assert shown[0] == 1
    assert shown[-1] == 0


def test_a_confirmed_person_whose_matte_crumbles_is_judged_by_the_looks_alone() -> None:
    extent = EVIDENCE_SIZE - 4
    classifier = one_number(general=-3, number=extent, weight=10)
    crumbs = [blob(x, side=8) for x in (18, 20, 22) for _ in range(100)]
    assert play(PresenceGate(classifier), crumbs, ScriptedLooks([0.0])) == [0] * 300
    assert play(PresenceGate(classifier), [blob(), *crumbs], ScriptedLooks([0.0])) == [1] * 301
    shown = play(PresenceGate(classifier), [blob(), *crumbs], ScriptedLooks([0.0, -4.0]))
    assert shown[-1] == 0


def test_reset_forgets_the_person_and_the_fade() -> None:
    gate = PresenceGate(one_number())
    assert play(gate, [blob()], ScriptedLooks([3.0])) == [1]
    gate.reset()
    assert play(gate, [blob()], ScriptedLooks([-3.0])) == [0]


def test_one_eye_confirmed_carries_the_doubtful_other() -> None:
    both, picture = np.stack([blob(10), blob(14)]), np.full((2, SIZE, SIZE, 3), 0.5, np.float32)
    gated = PresenceGate(one_number()).apply(
        both, picture, ScriptedLooks([-0.5, 2.0]), no_features, claimant="general"
    )
    np.testing.assert_array_equal(gated, both)
    apart = np.stack([blob(0, side=20), blob(40)])
    gated = PresenceGate(one_number()).apply(
        apart, picture, ScriptedLooks([-4.0, 2.0]), no_features, claimant="general"
    )
    assert gated[0].max() == 0
    assert gated[1].max() == 1
    alone = np.stack([NOBODY, blob(14)])
    np.testing.assert_array_equal(
        PresenceGate(one_number()).apply(
            alone, picture, ScriptedLooks([2.0]), no_features, claimant="general"
        ),
        alone,
    )


@pytest.mark.parametrize(
    ("scores", "shown"), [([0.03, -1.53], 0), ([-1.53, 0.03], 0), ([2.0, -4.0], 1), ([0.2, -1.0], 1)]
)
def test_eyes_that_show_one_thing_decide_together(scores: list[float], shown: float) -> None:
    both, picture = np.stack([blob(10), blob(14)]), np.full((2, SIZE, SIZE, 3), 0.5, np.float32)
    gate, looks = PresenceGate(one_number()), ScriptedLooks(scores)
    for _ in range(4):
        gated = gate.apply(both, picture, looks, no_features, claimant="general")
        assert [float(eye.max()) for eye in gated] == [shown, shown]
    assert looks.count == 2


@pytest.mark.parametrize("scores", [(1.4, -3.0), (0.8, -2.0), (1.0, -2.4), (0.03, -1.53), (1.0, -4.0)])
def test_steady_looks_of_two_eyes_give_a_steady_verdict(scores: tuple[float, float]) -> None:
    both, gate = np.stack([blob(10), blob(14)]), PresenceGate(one_number())
    pictures, shown = np.full((2, SIZE, SIZE, 3), 0.5, np.float32), []
    pictures[0, :, ::2] += 0.1  # stripes identify the left eye's look
    pictures[0, :, 1::2] -= 0.1

    def look(picture: FloatArray) -> Look:
        return look_scoring(scores[int(picture.std() < 0.02)])

    for _ in range(200):
        gated = gate.apply(both, pictures, look, no_features, claimant="general")
        shown.append(tuple(gated.max(axis=(1, 2)) > 0.5))
    assert all(left == right for left, right in shown)
    assert sum(one != other for one, other in pairwise(shown)) <= 1
    assert gate.look_count < 60


@pytest.mark.parametrize("scores", [[1.0, -4.0], [1.4, -3.0], [0.8, -2.0]])
def test_what_lies_ahead_and_behind_is_decided_apart(scores: list[float]) -> None:
    """Check that views of 360 degrees are treated like eyes: a chair behind says nothing of a person ahead."""
    both = np.stack([blob(10), blob(14)])
    pictures = np.stack([np.full((SIZE, SIZE, 3), shade, np.float32) for shade in (0.5, 0.3)])
    gate, looks = PresenceGate(one_number()), ScriptedLooks(scores)
    for _ in range(4):
        gated = gate.apply(both, pictures, looks, no_features, claimant="general")
        assert [float(eye.max()) for eye in gated] == [1, 0]


def test_two_eyes_that_found_nobody_together_are_looked_at_again_soon() -> None:
    both, picture = np.stack([blob(10), blob(14)]), np.full((2, SIZE, SIZE, 3), 0.5, np.float32)
    gate, looks = PresenceGate(one_number()), ScriptedLooks([0.1, -3.0, 4.0])
    shown = [
        gate.apply(both, picture, looks, no_features, claimant="general").max(axis=(1, 2)).tolist()
        for _ in range(presence.DOUBTFUL_INTERVALS[0] + presence.FADE_FRAMES)
    ]
    assert all(left == right for left, right in shown)
    assert shown[0] == [0, 0]
    assert shown[-1] == [1, 1]


def test_a_stream_keeps_its_eye_count() -> None:
    gate = PresenceGate(one_number())
    play(gate, [blob()], ScriptedLooks([3.0]))
    with pytest.raises(ModelError, match="a stream of 1 eyes went on with 2"):
        gate.apply(
            np.stack([blob()] * 2),
            np.zeros((2, SIZE, SIZE, 3), np.float32),
            ScriptedLooks([3.0]),
            no_features,
            claimant="general",
        )


def test_the_matte_given_is_left_as_it_was() -> None:
    matte = blob()[None]
    kept = matte.copy()
    PresenceGate(one_number()).apply(
        matte,
        np.full((1, SIZE, SIZE, 3), 0.5, np.float32),
        ScriptedLooks([-3.0]),
        no_features,
        claimant="general",
    )
    np.testing.assert_array_equal(matte, kept)


def test_the_time_to_the_next_look_doubles_while_the_answer_stays() -> None:
    looks, gate, at = ScriptedLooks([3.0]), PresenceGate(one_number()), []
    for frame in range(400):
        before = looks.count
        play(gate, [blob()], looks)
        if looks.count > before:
            at.append(frame)
    assert np.diff(at).tolist() == [48, 96, 96, 96]


def test_the_detector_is_asked_once_for_somebody_who_is_plainly_there() -> None:
    gate = PresenceGate(one_number(surely=2))
    assert play(gate, [blob()] * 300, ScriptedLooks([3.0])) == [1] * 300
    assert gate.look_count >= 4
    assert gate.opinion_count == 1


def test_the_detector_is_not_asked_about_what_is_plainly_nobody() -> None:
    gate = PresenceGate(one_number(surely_not=-2))
    assert play(gate, [blob()] * 100, ScriptedLooks([-3.0])) == [0] * 100
    assert gate.look_count >= 3
    assert gate.opinion_count == 0
    play(doubtful := PresenceGate(one_number(surely_not=-2)), [blob()] * 100, ScriptedLooks([-1.0]))
    assert doubtful.opinion_count == doubtful.look_count
