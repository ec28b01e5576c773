"""The gate's arithmetic and its memory, with a scripted second look."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from vitascope.errors import ModelError
from vitascope.models import presence
from vitascope.models.network import FloatArray
from vitascope.models.presence import (
    EVIDENCE,
    Claimant,
    Look,
    PresenceClassifier,
    PresenceGate,
    candidate_box,
    enlarged,
    evidence,
    shipped_classifier,
    views,
)

SIZE = 64


def one_number(*, general: float = 0.0, landscape: float = 0.0) -> PresenceClassifier:
    """Takes the first number of the general network's summary for the score."""
    weights = np.zeros(sum(EVIDENCE.values()), np.float32)
    weights[0] = 1
    return PresenceClassifier(weights=weights, bias={"general": general, "landscape": landscape})


def look_scoring(score: float) -> Look:
    """A look whose score is ``score`` to ``one_number``."""
    empty = np.zeros((presence.LOOK_SIZE, presence.LOOK_SIZE), np.float32)
    summary = np.zeros(32, np.float32)
    summary[0] = score
    return Look(alpha=empty, general_summary=summary, landscape_summary=np.zeros(32, np.float32))


class ScriptedLooks:
    """Answers both views of each second look with the next score, the last one for ever; counts the looks."""

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


def blob(x: int = 16, *, side: int = 24) -> FloatArray:
    alpha = np.zeros((SIZE, SIZE), np.float32)
    alpha[20 : 20 + side, x : x + side] = 1
    return alpha


def play(gate: PresenceGate, mattes: Sequence[FloatArray], looks: ScriptedLooks) -> list[float]:
    """Largest alpha of each frame after the gate, of a one-eyed stream."""
    picture = np.full((1, SIZE, SIZE, 3), 0.5, np.float32)
    return [float(gate.apply(matte[None], picture, looks, claimant="general").max()) for matte in mattes]


NOBODY = np.zeros((SIZE, SIZE), np.float32)


# --- evidence ----------------------------------------------------------------------------------------------------


def numbers(found: FloatArray) -> dict[str, float]:
    """The single numbers of evidence, by name."""
    starts = np.cumsum([0, *EVIDENCE.values()])
    return {
        name: float(found[start])
        for (name, count), start in zip(EVIDENCE.items(), starts[:-1], strict=True)
        if count == 1
    }


def test_evidence_measures_the_claim() -> None:
    alpha = np.zeros((100, 200), np.float32)
    alpha[:50, :100] = 1
    found = evidence(alpha, [look_scoring(0)])
    assert found.shape == (71,)
    assert numbers(found) == pytest.approx(
        {
            "certainty": 0,
            "extent": 0,
            "claim_certainty": 1,
            "claim_extent": 0.5,
            "claim_height": 1,
            "claim_at_top": 0.5,
            "claim_at_sides": 0.5,
        },
        abs=2e-3,
    )
    inside = np.zeros_like(alpha)
    inside[50:60, 90:100] = 0.6
    measured = numbers(evidence(inside, [look_scoring(0)]))
    assert measured["claim_certainty"] == measured["claim_at_top"] == measured["claim_at_sides"] == 0
    assert measured["claim_height"] == pytest.approx(0.36, abs=0.01)


def test_evidence_averages_both_views() -> None:
    found = evidence(blob(), [look_scoring(1), look_scoring(4)])
    np.testing.assert_allclose(found[0], 2.5)


def test_the_mirrored_matte_is_the_same_evidence() -> None:
    rng = np.random.default_rng(0)
    alpha = np.asarray(rng.random((31, 47)), np.float32)
    np.testing.assert_allclose(
        numbers(evidence(alpha, [look_scoring(0)]))["claim_at_sides"],
        numbers(evidence(np.ascontiguousarray(alpha[:, ::-1]), [look_scoring(0)]))["claim_at_sides"],
    )


def test_the_shipped_classifier_trusts_a_certain_matte_at_the_border_more() -> None:
    classifier = shipped_classifier()
    assert classifier.weights.shape == (71,)
    assert np.isfinite(classifier.weights).all()
    assert set(classifier.bias) == {"general", "landscape"}

    def score(alpha: FloatArray) -> float:
        return classifier.score(evidence(alpha, [look_scoring(0)]), claimant="general")

    assert score(blob()) > score(blob() * np.float32(0.6))
    top = np.roll(blob(), -20, axis=0)
    assert score(top) > score(blob())


@pytest.mark.parametrize(("claimant", "shown"), [("general", 0), ("landscape", 1)])
def test_each_network_has_its_own_bias(claimant: Claimant, shown: float) -> None:
    picture = np.full((1, SIZE, SIZE, 3), 0.5, np.float32)
    gate = PresenceGate(one_number(general=-1, landscape=1))
    assert gate.apply(blob()[None], picture, ScriptedLooks([0.0]), claimant=claimant).max() == shown


def test_the_views_are_one_with_surroundings_and_one_closer_and_mirrored() -> None:
    picture = np.zeros((200, 200, 3), np.float32)
    picture[80:120, 80:100], picture[80:120, 100:120] = (1, 0, 0), (0, 0, 1)
    alpha = (picture.max(axis=2) > 0).astype(np.float32)
    first, second = views(picture, alpha)
    assert (first > 0.5).any(axis=2).mean() < (second > 0.5).any(axis=2).mean()
    assert first[128, 100].tolist() == [1, 0, 0]
    assert second[128, 100].tolist() == [0, 0, 1]
    assert views(picture, alpha * 0) == []


@settings(max_examples=60, deadline=None)
@given(
    hnp.arrays(
        np.float32,
        st.tuples(st.integers(1, 48), st.integers(1, 48)),
        elements=st.floats(0, 1, width=32),
    )
)
def test_a_box_lies_in_the_frame_and_holds_most_of_the_matte(alpha: FloatArray) -> None:
    box = candidate_box(alpha)
    mass = np.clip(alpha - 0.3, 0, 1)
    if box is None:
        assert mass.sum() == 0
        return
    rows, columns = box
    assert 0 <= rows.start < rows.stop <= alpha.shape[0]
    assert 0 <= columns.start < columns.stop <= alpha.shape[1]
    assert mass[box].sum() >= 0.9 * mass.sum() - 1e-3


def test_a_box_is_a_square_with_a_margin_where_the_frame_has_room() -> None:
    alpha = np.zeros((200, 300), np.float32)
    alpha[80:120, 140:160] = 1
    rows, columns = candidate_box(alpha) or (slice(0, 0), slice(0, 0))
    assert rows.stop - rows.start == columns.stop - columns.start == pytest.approx(60, abs=3)
    assert (rows.start + rows.stop) / 2 == pytest.approx(100, abs=2)
    assert (columns.start + columns.stop) / 2 == pytest.approx(150, abs=2)


def test_a_dark_box_is_lifted_a_bright_one_is_not_and_black_stays_black() -> None:
    box = (slice(0, 8), slice(0, 8))
    grey = np.full((8, 8, 3), 0.2, np.float32)
    assert enlarged(grey, box).max() == pytest.approx(0.8, abs=1e-3)
    assert enlarged(grey * 4.5, box).max() == pytest.approx(0.9, abs=1e-3)
    assert enlarged(grey * 0, box).max() == 0
    assert enlarged(grey * np.float32(0.1), box).max() == pytest.approx(0.12, abs=1e-3)  # noise is not lifted
    assert enlarged(grey, box).shape == (256, 256, 3)


def test_an_empty_matte_costs_no_look_and_stays_empty() -> None:
    looks = ScriptedLooks([5.0])
    speck = NOBODY.copy()
    speck[3, 3] = 1
    assert play(PresenceGate(one_number()), [NOBODY, speck, NOBODY], looks) == [0, 0, 0]
    assert not looks.pictures


def test_a_confirmed_person_is_shown_whole_from_the_first_frame_on() -> None:
    gate, matte = PresenceGate(one_number()), blob()
    gated = gate.apply(
        matte[None], np.full((1, SIZE, SIZE, 3), 0.5, np.float32), ScriptedLooks([2.0]), claimant="general"
    )
    np.testing.assert_array_equal(gated[0], matte)


def test_an_invention_is_never_shown_and_is_not_looked_at_every_frame() -> None:
    looks = ScriptedLooks([-3.0])
    assert play(PresenceGate(one_number()), [blob()] * 80, looks) == [0] * 80
    assert looks.count <= 80 / presence.DOUBTFUL_INTERVAL + 1


def test_a_still_person_costs_few_looks() -> None:
    looks = ScriptedLooks([3.0])
    assert play(PresenceGate(one_number()), [blob()] * 200, looks) == [1] * 200
    assert looks.count <= 200 / presence.CONFIRMED_INTERVAL + 1


def test_a_walking_person_is_one_person() -> None:
    looks = ScriptedLooks([3.0])
    assert play(PresenceGate(one_number()), [blob(x) for x in range(40)], looks) == [1] * 40
    assert looks.count == 1


def test_whoever_enters_is_looked_at_soon_and_fades_in() -> None:
    looks = ScriptedLooks([3.0])
    shown = play(PresenceGate(one_number()), [NOBODY] * 10 + [blob()] * 6, looks)
    assert shown[:10] == [0] * 10
    assert shown[10:] == [0.25, 0.5, 0.75, 1, 1, 1]


def test_a_score_that_wavers_around_zero_does_not_flicker() -> None:
    looks = ScriptedLooks([1.0, -0.8, 0.6, -0.9, 0.5, -0.7])
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
    probe = [float(gate.apply(blob()[None], picture, looks, claimant="general").max())]
    for matte in mattes:
        gate.apply(matte[None], picture, looks, claimant="general")
        probe.append(float(gate.apply(blob()[None], picture, looks, claimant="general").max()))
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
    classifier = one_number(general=-3)
    classifier.weights[list(EVIDENCE).index("claim_extent") - len(EVIDENCE)] = 10
    crumbs = [blob(x, side=8) for x in (18, 20, 22) for _ in range(60)]
    assert play(PresenceGate(classifier), crumbs, ScriptedLooks([0.0])) == [0] * 180
    assert play(PresenceGate(classifier), [blob(), *crumbs], ScriptedLooks([0.0])) == [1] * 181
    shown = play(PresenceGate(classifier), [blob(), *crumbs], ScriptedLooks([0.0, -4.0]))
    assert shown[-1] == 0


def test_reset_forgets_the_person_and_the_fade() -> None:
    gate = PresenceGate(one_number())
    assert play(gate, [blob()], ScriptedLooks([3.0])) == [1]
    gate.reset()
    assert play(gate, [blob()], ScriptedLooks([-3.0])) == [0]


def test_one_eye_confirmed_carries_the_doubtful_other() -> None:
    both, picture = np.stack([blob(10), blob(14)]), np.full((2, SIZE, SIZE, 3), 0.5, np.float32)
    gated = PresenceGate(one_number()).apply(both, picture, ScriptedLooks([-0.5, 2.0]), claimant="general")
    np.testing.assert_array_equal(gated, both)
    gated = PresenceGate(one_number()).apply(both, picture, ScriptedLooks([-4.0, 2.0]), claimant="general")
    assert gated[0].max() == 0
    assert gated[1].max() == 1
    alone = np.stack([NOBODY, blob(14)])
    np.testing.assert_array_equal(
        PresenceGate(one_number()).apply(alone, picture, ScriptedLooks([2.0]), claimant="general"), alone
    )


def test_a_stream_keeps_its_eye_count() -> None:
    gate = PresenceGate(one_number())
    play(gate, [blob()], ScriptedLooks([3.0]))
    with pytest.raises(ModelError, match="a stream of 1 eyes went on with 2"):
        gate.apply(
            np.stack([blob()] * 2),
            np.zeros((2, SIZE, SIZE, 3), np.float32),
            ScriptedLooks([3.0]),
            claimant="general",
        )


def test_the_matte_given_is_left_as_it_was() -> None:
    matte = blob()[None]
    kept = matte.copy()
    PresenceGate(one_number()).apply(
        matte, np.full((1, SIZE, SIZE, 3), 0.5, np.float32), ScriptedLooks([-3.0]), claimant="general"
    )
    np.testing.assert_array_equal(matte, kept)
