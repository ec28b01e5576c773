"""Tests of mattes of some people only."""

from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest

from vitascope.config.result import PeopleSettings
from vitascope.errors import InputError, UsageError
from vitascope.models.network import MatteEstimate, NetworkInput
from vitascope.segmentation.people.choice import Choice, Rule, chosen_people
from vitascope.segmentation.people.kept import KeptFrames, KeptPeople, KeptSeen, PeopleLayer, notes_on_kept
from vitascope.segmentation.people.table import Look, Person, Seen

GRID, SIZE = (9, 16), (36, 64)


def frame(seconds=0.0):
    return SimpleNamespace(pts=0, pts_seconds=seconds, time_base=Fraction(1, 25))


class Table:
    """Finds person 1 on the left, 2 on the right, and nobody at the top."""

    def seconds_at(self, pts):
        return pts / 25

    def looks_around(self, _, *, since=None):
        labels = np.ones((2, *GRID), np.uint8)
        labels[:, :, 9:] = 2
        labels[:, :2] = 0
        return [(1.0, Look(labels))]

    def looks_beside(self, _, *, since=None):
        return []


class Looks:
    """Holds the looks at one frame, and at those before and after."""

    def __init__(self, *around, beside=()):
        self._around = [(1 / len(around), Look(labels)) for labels in around]
        self._beside = [[(1.0, Look(labels))] for labels in beside]

    def seconds_at(self, _):
        return 0.0

    def looks_around(self, *_, **__):
        return self._around

    def looks_beside(self, *_, **__):
        return self._beside


class Everybody:
    """Estimates random mattes, as alpha or as coefficients."""

    def __init__(self, form):
        random = np.random.default_rng(0)
        planes = random.random((2, 4, *SIZE), np.float32)
        self.answer = (
            MatteEstimate(alpha=planes[:, 0])
            if form == "alpha"
            else MatteEstimate(gain=planes, offset=planes)
        )

    def estimate(self, batch):
        return [self.answer for _ in batch.frames]


def kept(inner, *numbers, nobody=False, edges_add_up=True):
    choice = Choice((Rule(frozenset(numbers) | ({0} if nobody else set()), keeps=True),))
    link = KeptPeople(inner, [PeopleLayer(Table(), choice, edges_add_up=edges_add_up)])
    return link.estimate(SimpleNamespace(frames=[frame()], starts_shot=[False]))[0]


@pytest.mark.parametrize("form", ["alpha", "coefficients"])
def test_shares_add_up_to_the_whole(form):
    inner = Everybody(form)
    parts = [kept(inner, 1), kept(inner, 2), kept(inner, nobody=True)]
    if form == "alpha":
        assert np.allclose(sum(one.alpha for one in parts), inner.answer.alpha, atol=1e-5)
    else:
        for name in ("gain", "offset"):
            total = sum(getattr(one, name)[:, -1] for one in parts)
            assert np.allclose(total, getattr(inner.answer, name)[:, -1], atol=1e-5)
            # Channels that restore colour at edges do not change.
            assert (getattr(parts[0], name)[:, :3] == getattr(inner.answer, name)[:, :3]).all()


@pytest.mark.parametrize("edges_add_up", [True, False])
def test_the_other_is_gone_and_the_kept_one_whole(edges_add_up):
    inner = Everybody("alpha")
    one = kept(inner, 1, edges_add_up=edges_add_up).alpha
    assert not one[:, :, 54:].any()
    assert np.allclose(one[:, 24:, :20], inner.answer.alpha[:, 24:, :20], atol=1e-5)


def share_beside(columns, *, edges_add_up, keeps=1):
    """Return the share of each column; person 1 covers ``columns`` from the left, person 2 the rest."""
    labels = np.full((1, 9, 40), 2, np.uint8)
    labels[..., :columns] = 1
    choice = Choice((Rule(frozenset({keeps}), keeps=True),))
    return PeopleLayer(Looks(labels), choice, edges_add_up=edges_add_up).share_at(frame())[0, 4]


@pytest.mark.parametrize("columns", [8, 20, 32])
def test_beside_who_is_left_out_a_strip_is_nobodys(columns):
    whole, wary = (share_beside(columns, edges_add_up=add_up) for add_up in (True, False))
    assert (whole[:columns] == 1).all()
    assert (wary[:columns] <= whole[:columns]).all()
    assert (wary[columns:] == 0).all()
    assert wary[columns - 1] < 0.8
    assert (wary[: columns - 2] == 1).all()
    other = share_beside(columns, edges_add_up=False, keeps=2)
    assert ((wary + other) <= 1).all()


def test_the_smaller_of_two_gives_up_less():
    narrow, broad = (share_beside(columns, edges_add_up=False) for columns in (8, 32))
    assert narrow[7] > broad[31] + 0.2


def test_nobody_is_no_stranger():
    """Check that a kept person is whole up to their own edge if the only other person is far away."""
    labels = np.zeros((1, 9, 40), np.uint8)
    labels[..., 4:14], labels[..., 30:36] = 1, 2
    one = [Rule(frozenset({2}), keeps=False)], [Rule(frozenset({1}), keeps=True)]
    for rules in one:
        shares = [
            PeopleLayer(Looks(labels), Choice(tuple(rules)), edges_add_up=add_up).share_at(frame())
            for add_up in (True, False)
        ]
        assert (shares[0][..., :24] == shares[1][..., :24]).all()


def looks_at(place, other):
    """Label a kept person and one who is not kept."""
    labels = np.zeros((1, 24, 60), np.uint8)
    labels[:, 2:, place : place + 14] = 1
    labels[:, 2:, other : other + 10] = 2
    return labels


@pytest.mark.parametrize("edges_add_up", [True, False])
def test_an_arm_that_one_look_gives_to_the_wrong_one_is_left_out(edges_add_up):
    """Check that the looks before and after correct it."""
    wrong = looks_at(16, 30)
    right = wrong.copy()
    right[:, 10:14, 26:30] = 2
    choice = Choice((Rule(frozenset({1}), keeps=True),))
    layer = PeopleLayer(Looks(wrong, beside=(right, right)), choice, edges_add_up=edges_add_up)
    share = layer.share_at(frame())[0]
    assert (share[11:13, 27] == (1 if edges_add_up else 0)).all()
    assert (share[5:, 17:23] == 1).all()


@pytest.mark.parametrize("cells", [1, 12])
def test_of_two_who_pass_quickly_the_looks_beside_say_nothing(cells):
    """Check that these looks are ignored, as they would take half of the kept person."""
    now, before, after = looks_at(20, 30), looks_at(20 - cells, 30 + cells), looks_at(20 + cells, 30 - cells)
    choice = Choice((Rule(frozenset({1}), keeps=True),))
    alone, among = (
        PeopleLayer(Looks(now, beside=beside), choice).share_at(frame())[0, 12]
        for beside in ((), (before, after))
    )
    assert (alone[20:29] == 1).all()
    assert among[20:29].min() > 0.9
    assert abs(among[29] - alone[29]) < 0.1 if cells > 1 else among[29] < 0.1 < alone[29]


@pytest.mark.parametrize("cells", [2, 5, 8])
def test_an_arm_that_moves_far_from_others_stays(cells):
    """Check that these looks, in which nobody else was there, do not remove it."""

    def arm_at(row):
        labels = looks_at(4, 48)
        labels[:, row : row + 4, 18:28] = 1
        return labels

    choice = Choice((Rule(frozenset({1}), keeps=True),))
    looks = Looks(arm_at(10), beside=(arm_at(10 - cells), arm_at(10 + cells)))
    assert (PeopleLayer(looks, choice).share_at(frame())[0, 10:14, 18:28] == 1).all()


def test_the_order_of_looks_beside_makes_no_difference():
    now, before, after = looks_at(16, 30), looks_at(14, 27), looks_at(17, 30)
    before[:, 6:18, 20:27] = after[:, 8:20, 22:30] = 2
    choice = Choice((Rule(frozenset({1}), keeps=True),))
    one, other, alone = (
        PeopleLayer(Looks(now, beside=beside), choice).share_at(frame())
        for beside in ((before, after), (after, before), ())
    )
    assert np.allclose(one, other, atol=1e-5)
    assert abs(one - alone).max() > 0.5


def test_who_is_missed_in_one_look_is_left_out_where_they_were():
    seen = looks_at(10, 24)
    missed = np.minimum(seen, 1)
    choice = Choice((Rule(frozenset({1}), keeps=True),))
    share = PeopleLayer(Looks(missed, beside=(seen,)), choice).share_at(frame())[0, 12]
    assert not share[30:34].any()
    assert (share[12:20] == 1).all()


def test_between_two_frames_the_edge_of_who_moves_lies_midway():
    before, after = np.ones((2, 1, *GRID), np.uint8)
    before[..., 6:], after[..., 10:] = 2, 2
    choice = Choice((Rule(frozenset({1}), keeps=True),))
    share = PeopleLayer(Looks(before, after), choice, edges_add_up=True).share_at(frame())
    assert (share[..., :7] == 1).all()  # nothing is half theirs because of one frame only
    assert (share[..., 9:] == 0).all()


@pytest.mark.parametrize("edges_add_up", [True, False])
@pytest.mark.parametrize("known", [True, False])
def test_who_touches_is_told_apart_by_colour(edges_add_up, known):
    """Check that colour finds the edge to a sample: cells have four.

    The network has seen the picture or has not (``known``).
    """
    labels = np.full((1, *GRID), 2, np.uint8)
    labels[..., :7] = 1  # to sample 28, while the edge is at 30
    picture = np.zeros((1, 3, *SIZE), np.float32)
    picture[:, 0, :, :30], picture[:, 2, :, 30:] = 0.8, 0.8
    inner = SimpleNamespace(estimate=lambda _: [MatteEstimate(alpha=np.ones((1, *SIZE), np.float32))])
    layer = PeopleLayer(Looks(labels), Choice((Rule(frozenset({1}), keeps=True),)), edges_add_up=edges_add_up)
    made = []

    def make(frames, wanted):
        made.append(wanted.size)
        return picture[None]

    shown = NetworkInput(size=SIZE, layout="NCHW")
    link = KeptPeople(inner, [layer], shown=shown, views=SimpleNamespace(make=make))
    batch = SimpleNamespace(frames=[frame()], starts_shot=[False], images=None if known else picture[None])
    alpha = link.estimate(batch)[0].alpha[0, 18]
    assert made == ([SIZE] if known and not edges_add_up else [])
    if edges_add_up:
        assert alpha[29] < 0.5
    else:
        assert alpha[27:30].min() > 0.8
        assert alpha[30:].max() < 0.15


def test_frames_of_a_batch_are_each_as_alone(monkeypatch):
    """Check that shares computed side by side, in several groups, are the same."""
    monkeypatch.setattr("vitascope.segmentation.people.kept.available_cores", lambda: 3)
    random = np.random.default_rng(1)
    pictures = random.random((7, 1, 3, *SIZE), np.float32)
    mattes = [MatteEstimate(alpha=random.random((1, *SIZE), np.float32)) for _ in pictures]
    labels = np.full((1, *GRID), 2, np.uint8)
    labels[..., :7] = 1
    moved = np.roll(labels, 1, axis=2)

    class Two(Looks):
        def looks_around(self, pts, **_):
            return [(1 - pts / 7, self._around[0][1]), (pts / 7, self._around[1][1])]

    def estimate(first, count):
        link = KeptPeople(
            SimpleNamespace(estimate=lambda _: mattes[first : first + count]),
            [PeopleLayer(Two(labels, moved), Choice((Rule(frozenset({1}), keeps=True),)))],
            shown=NetworkInput(size=SIZE, layout="NCHW"),
        )
        frames = [SimpleNamespace(pts=pts) for pts in range(first, first + count)]
        batch = SimpleNamespace(
            frames=frames, starts_shot=[False] * count, images=pictures[first : first + count]
        )
        return [one.alpha for one in link.estimate(batch)]

    alone = [estimate(n, 1)[0] for n in range(7)]
    assert (np.stack(estimate(0, 7)) == np.stack(alone)).all()
    assert len({alpha.tobytes() for alpha in alone}) == 7


def test_a_table_that_cannot_be_read_ends_the_run_whichever_thread_finds_out():
    class Broken(Table):
        def looks_around(self, *_, **__):
            raise InputError("people.zip: the people of the video cannot be read from it")

    choice = Choice((Rule(frozenset({1}), keeps=True),))
    link = KeptPeople(Everybody("alpha"), [PeopleLayer(Broken(), choice)])
    with pytest.raises(InputError, match=r"people\.zip"):
        link.estimate(SimpleNamespace(frames=[frame()] * 3, starts_shot=[False] * 3))
    assert link.estimate(SimpleNamespace(frames=[], starts_shot=[])) == []


def test_what_everybody_keeps_is_left_as_it_is():
    inner = Everybody("coefficients")
    link = KeptPeople(inner, [PeopleLayer(Table(), Choice())])
    assert link.estimate(SimpleNamespace(frames=[frame()], starts_shot=[False]))[0] is inner.answer


def people(*numbers, low=0.0):
    return [
        Person(number=n, seen=(Seen(begin_seconds=0, end_seconds=n, sure=0.9),), largest=0.1 * n, low=low)
        for n in numbers
    ]


def chosen(there, **wanted):
    return Choice(tuple(chosen_people(PeopleSettings(**wanted), there, video="film.mp4")))


def test_words_are_people():
    assert chosen(people(1, 2, 3), keep="largest").kept_at(0)[:4].tolist() == [False, False, False, True]
    assert chosen([*people(1), *people(2, low=0.8)], exclude="pov").kept_at(0)[:3].tolist() == [
        True,
        True,
        False,
    ]
    assert chosen(people(1, 2, 3), keep=[1, 3]).kept_at(0)[:4].tolist() == [False, True, False, True]


@pytest.mark.parametrize(
    ("there", "wanted", "said"),
    [
        (
            (1, 2, 3),
            {"keep": 9},
            r"--keep 9: film\.mp4 has 3 people, numbers 1 to 3; run vitascope people to see",
        ),
        ((1,), {"exclude": "2"}, r"--exclude 2: film\.mp4 has 1 person, number 1;"),
        ((), {"keep": "1"}, r"--keep 1: film\.mp4 has nobody in it"),
        ((), {"keep": "largest"}, r"--keep largest: nobody was found in film\.mp4"),
        ((1, 2), {"keep": "pov"}, r"--keep pov: nobody in film\.mp4 is at the bottom"),
    ],
)
def test_who_is_not_there_is_one_clear_line(there, wanted, said):
    with pytest.raises(UsageError, match=said):
        chosen(people(*there), **wanted)


def test_of_rules_the_last_one_wins_and_that_is_said():
    one = frozenset({1})
    choice = Choice(
        (
            Rule(one, keeps=False, said_by="--exclude"),
            Rule(one, keeps=True, begin_seconds=2, end_seconds=4, said_by="a.yaml:3"),
        )
    )
    assert [bool(choice.kept_at(t)[1]) for t in (0, 2, 3.9, 4)] == [False, True, True, False]
    (said,) = choice.contradictions()
    assert said.startswith(
        "--exclude and a.yaml:3 contradict each other about person 1 from 2 s on; the later one wins"
    )


def test_rules_of_other_times_do_not_contradict_one_another():
    one = frozenset({1})
    assert not Choice((Rule(one, True, 0, 2), Rule(one, False, 2, 4))).contradictions()


class Painted:
    """Adds on the left, and keeps half of the rest."""

    def share_at(self, *_):
        return np.full((1, 2, 2), 0.5, np.float32)

    def added_at(self, _):
        added = np.zeros((1, 9, 16), np.float32)
        added[:, :, :8] = 1
        return added


@pytest.mark.parametrize("form", ["alpha", "coefficients"])
def test_what_is_added_is_there_whatever_the_network_says(form):
    inner = Everybody(form)
    made = KeptPeople(inner, [Painted()]).estimate(SimpleNamespace(frames=[frame()], starts_shot=[False]))[0]
    grey = np.float32(0.7)
    before, after = (
        one.alpha if form == "alpha" else one.gain[:, -1] * grey + one.offset[:, -1]
        for one in (inner.answer, made)
    )
    assert np.allclose(after[:, :, :28], 1, atol=1e-5)
    assert np.allclose(after[:, :, 36:], 0.5 * before[:, :, 36:], atol=1e-5)


class InTurn:
    """Finds person 1 in every fourth frame, and person 2 in all of them."""

    def estimate(self, batch):
        answers = []
        for one in batch.frames:
            alpha = np.zeros((2, *SIZE), np.float32)
            alpha[:, 20:, 40:] = 1
            alpha[:, 20:, :20] = one.pts % 4 == 0
            answers.append(MatteEstimate(alpha=alpha))
        return answers


def counted(rule, *, owns=None):
    seen = KeptSeen()
    if owns is not None:
        seen.owns = owns
    link = KeptPeople(InTurn(), [PeopleLayer(Table(), Choice((rule,)))], seen=seen)
    frames = [SimpleNamespace(pts=pts, pts_seconds=pts / 25, time_base=Fraction(1, 25)) for pts in range(40)]
    for begin in range(0, 40, 8):
        link.estimate(SimpleNamespace(frames=frames[begin : begin + 8], starts_shot=[False] * 8, images=None))
    return seen.frames


def test_frames_in_which_something_of_who_is_kept_is_seen_are_counted():
    assert counted(Rule(frozenset({1}), keeps=True)) == (KeptFrames(1, 40, 10),)
    assert counted(Rule(frozenset({1}), keeps=False)) == (KeptFrames(2, 40, 40),)
    assert counted(Rule(frozenset({1}), keeps=True, end_seconds=0.4)) == (KeptFrames(1, 10, 3),)
    assert counted(Rule(frozenset({1}), keeps=True), owns=lambda pts: pts >= 20) == (KeptFrames(1, 20, 5),)


@pytest.mark.parametrize(("label_eyes", "matte_eyes"), [(1, 1), (1, 2), (2, 1), (2, 2)])
def test_eyes_that_look_and_matte_do_not_share_are_counted(label_eyes, matte_eyes):
    labels = np.zeros((label_eyes, *GRID), np.uint8)
    labels[:, :, 9:] = 2
    kept = np.ones(256, bool)
    for share, seen in ((1.0, 1), (0.4, 0)):
        counting = KeptSeen()
        alpha = np.zeros((matte_eyes, *SIZE), np.float32)
        alpha[-1, 10:, 50:] = share
        counting.look(0, alpha, [(1.0, Look(labels))], kept)
        assert counting.frames == (KeptFrames(2, 1, seen),)


def test_who_is_hardly_seen_is_told_with_what_helps():
    def told(*frames, profile="fast", network="selfie"):
        return notes_on_kept(frames, network=network, scanned_by="rvm", profile=profile)

    assert told(KeptFrames(1, 40, 39), KeptFrames(2, 3, 3)) == ()
    (note,) = told(KeptFrames(1, 40, 4), KeptFrames(2, 3, 3), KeptFrames(1, 40, 5))
    assert "sees person 1 in only 9 of 80 frames" in note
    assert "person 2" not in note
    assert note.endswith("--profile balanced finds them")
    (note,) = told(KeptFrames(1, 40, 0), profile="balanced", network="own.onnx")
    assert note.endswith("--model rvm finds them")
    (note,) = told(KeptFrames(1, 40, 0), profile="balanced", network="rvm")
    assert note.endswith("where it misses them, they become background")
