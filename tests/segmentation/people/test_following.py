"""Tests of following people through a shot, with synthetic people whose place is known to the cell."""

import numpy as np
import pytest

from vitascope.segmentation.people.appearance import FaceLooks, SeenFace
from vitascope.segmentation.people.following import GivingOut, ShotFollower, everywhere
from vitascope.segmentation.people.small_frames import SmallFrames

SIZE = (60, 120)
CLOTHES = {
    1: ((200, 150, 120), (220, 60, 40), (60, 40, 40)),
    2: ((110, 80, 60), (60, 90, 210), (210, 200, 190)),
    3: ((230, 200, 180), (70, 180, 90), (30, 30, 90)),
}


def shot(walks, frames, *, order=lambda time: (), size=SIZE, clothes=CLOTHES):
    """Simulate people who walk: pictures, mattes and truth; ``walks`` maps time, 0 to 1, to a person's middle."""
    random = np.random.default_rng(7)
    ground = random.integers(60, 120, (*size, 3))
    for n in range(frames):
        time = n / max(frames - 1, 1)
        rgb, truth = ground.copy(), np.zeros(size, np.uint8)
        for who in order(time) or walks:
            middle = round(walks[who](time))
            columns = slice(max(middle - 8, 0), max(middle + 8, 0))
            for rows, color in zip(((10, 20), (20, 40), (40, 60)), clothes[who], strict=True):
                texture = random.integers(-12, 12, rgb[slice(*rows), columns].shape)
                rgb[slice(*rows), columns] = np.array(color) + texture
                truth[slice(*rows), columns] = who
        yield (rgb.clip(0, 255) / 255).astype(np.float32), (truth > 0).astype(np.float32), truth


def done(steps):
    """Return the frames whose labels are settled, after finishing the crossings before them."""
    labels = []
    for step in steps:
        if isinstance(step, GivingOut):
            step.finish()
        else:
            labels.append(step)
    return labels


def followed(steps, *, faces=lambda n: ()):
    frames, follower, labels, truths = SmallFrames(), ShotFollower(SIZE), [], []
    for n, (rgb, alpha, truth) in enumerate(steps):
        truths.append(truth)
        frame, _ = frames.next(n, rgb.transpose(2, 0, 1)[None], alpha[None], n == 0)
        labels += done(follower.follow(frame, faces=[SeenFace(*face) for face in faces(n)]))
    labels += done(follower.finish())
    assert [one.pts for one in labels] == list(range(len(truths)))
    return follower, np.stack([one.labels for one in labels]), np.stack(truths)


def wrong(labels, truths, who):
    """Return a person's main number, and the share of their cells in each frame that have another."""
    name = np.bincount(labels[truths == who]).argmax()
    area = np.maximum((truths == who).sum(axis=(1, 2)), 1)
    return name, ((truths == who) & (labels != name)).sum(axis=(1, 2)) / area


def test_two_people_are_numbered_and_kept_apart():
    follower, labels, truths = followed(shot({1: lambda t: 30 + 5 * t, 2: lambda t: 90 - 5 * t}, 20))
    assert len(follower.confirmed) == 2
    for who in (1, 2):
        name, lost = wrong(labels, truths, who)
        assert name
        assert lost.max() < 0.02


@pytest.mark.parametrize("front", [(1, 2), (2, 1)])
def test_nobody_is_exchanged_when_people_cross(front):
    walks = {1: lambda t: 25 + 70 * t, 2: lambda t: 95 - 70 * t}
    follower, labels, truths = followed(shot(walks, 60, order=lambda _: front))
    assert len(follower.confirmed) == 2
    names = []
    for who in (1, 2):
        name, lost = wrong(labels, truths, who)
        names.append(name)
        apart = np.abs([walks[1](n / 59) - walks[2](n / 59) for n in range(60)]) > 20
        assert lost[apart].max() < 0.03
    assert len(set(names)) == 2


def test_what_the_network_misses_of_somebody_in_a_crossing_is_rarely_given_to_the_other():
    walks = {1: lambda t: 25 + 70 * t, 2: lambda t: 95 - 70 * t}
    missed = np.zeros(SIZE, bool)
    missed[40:56] = True
    _, labels, truths = followed(
        (rgb, np.where(missed & (truth == 2), 0, alpha), truth)
        for rgb, alpha, truth in shot(walks, 60, order=lambda _: (2, 1))
    )
    surroundings = np.stack([everywhere(one, reach=8) for one in labels])
    other = np.bincount(labels[truths == 1]).argmax()
    gone = missed & (truths == 2)
    crossing = slice(18, 42)
    given = (gone & (surroundings == other)).sum(axis=(1, 2)) / np.maximum(gone.sum(axis=(1, 2)), 1)
    assert given[crossing].mean() < 0.2  # 0.29 if the nearest person got it


def test_people_who_turn_round_behind_one_another_keep_their_numbers():
    """Check that appearance overrides motion: by motion alone, these two would have crossed."""
    walks = {1: lambda t: 35 + 25 * np.sin(np.pi * t), 2: lambda t: 85 - 25 * np.sin(np.pi * t)}
    _, labels, truths = followed(shot(walks, 50))
    for who in (1, 2):
        _, lost = wrong(labels, truths, who)
        assert lost[[0, 1, -2, -1]].max() < 0.03


def test_somebody_wholly_hidden_comes_back_as_themselves():
    walks = {2: lambda t: 60, 1: lambda t: 20 + 80 * t}
    follower, labels, truths = followed(shot(walks, 61))
    assert (truths == 2).sum(axis=(1, 2)).min() == 0  # fully hidden at some time
    assert len(follower.confirmed) == 2
    for who in (1, 2):
        _, lost = wrong(labels, truths, who)
        assert lost[[0, 1, -2, -1]].max() < 0.03


def test_who_comes_out_behind_somebody_like_them_is_not_taken_for_a_part_of_them():
    alike = {
        1: ((60, 60, 60), (170, 180, 220), (50, 45, 45)),
        2: ((20, 40, 20), (125, 135, 200), (110, 60, 50)),
    }
    walks = {
        1: lambda t: 40 + 40 * t,
        2: lambda t: 76 - 10 * t,
    }  # they touch to the end, so no crossing is settled later
    _, labels, truths = followed(shot(walks, 60, order=lambda _: (2, 1), clothes=alike))
    _, lost = wrong(labels, truths, 2)
    assert lost[-10:].max() < 0.1  # 0.8 if the hidden person is searched for on the one who hides them


def test_faces_tell_people_apart_who_touch_from_the_first_frame():
    walks = {1: lambda t: 50, 2: lambda t: 64}
    follower, labels, truths = followed(
        shot(walks, 12), faces=lambda n: [(47, 12, 6, 8), (61, 12, 6, 8)] * (n == 0)
    )
    assert len(follower.confirmed) == 2
    for who in (1, 2):
        _, lost = wrong(labels, truths, who)
        assert lost.max() < 0.1


@pytest.mark.parametrize("apart", [8, 16])
def test_who_touched_from_the_first_frame_on_is_told_apart_there_too_once_they_part(apart):
    walks = {
        1: lambda t: 60 - apart / 2 - 35 * max(t - 0.3, 0),
        2: lambda t: 60 + apart / 2 + 35 * max(t - 0.3, 0),
    }
    follower, labels, truths = followed(shot(walks, 60, order=lambda _: (1, 2)))
    assert [one.first_pts for one in follower.confirmed] == [0, 0]
    names = []
    for who in (1, 2):
        name, lost = wrong(labels, truths, who)
        names.append(name)
        assert lost.max() < 0.05
    assert names == [1, 2]


@pytest.mark.parametrize(("width", "frames"), [(3, 40), (6, 8)])
def test_who_stands_behind_something_narrow_or_for_a_moment_is_one_person(width, frames):
    steps = []
    for n, (rgb, alpha, truth) in enumerate(shot({1: lambda t: 60}, 60)):
        if 10 <= n < 10 + frames:
            hidden = slice(60 - width // 2, 60 - width // 2 + width)
            alpha[:, hidden], truth[:, hidden], rgb[:, hidden] = 0, 0, 0.3
        steps.append((rgb, alpha, truth))
    follower, labels, _ = followed(steps)
    assert len(follower.confirmed) == 1
    assert set(np.unique(labels)) == {0, 1}


def behind_a_gap(steps, gap_at):
    """Hide the columns (first, end) that ``gap_at`` returns for a frame, if any."""
    for n, (rgb, alpha, truth) in enumerate(steps):
        if columns := gap_at(n):
            hidden = slice(*columns)
            alpha[:, hidden], truth[:, hidden], rgb[:, hidden] = 0, 0, 0.3
        yield rgb, alpha, truth


def wide(steps):
    """Make the person fill half of the picture's width."""
    for rgb, _, _ in steps:
        rgb[10:, 30:90] = np.repeat(rgb[10:, 52:68], 4, axis=1)[:, :60]
        truth = np.zeros(SIZE, np.uint8)
        truth[10:, 30:90] = 1
        yield rgb, truth.astype(np.float32), truth


@pytest.mark.parametrize("gap", [3, 6, 9, 18])  # 5 % and 15 % of the person's width, and of the picture's
@pytest.mark.parametrize("frames", [12, 60])
def test_who_was_whole_and_then_has_a_gap_that_stays_as_wide_is_one_person(gap, frames):
    steps = behind_a_gap(
        wide(shot({1: lambda t: 60}, 50 + frames)),
        lambda n: (60 - gap // 2, 60 - gap // 2 + gap) if 30 <= n < 30 + frames else None,
    )
    follower, labels, truths = followed(steps)
    assert len(follower.confirmed) == 1
    assert np.array_equal(labels, truths)


def test_whose_middle_the_matte_loses_more_and_more_is_one_person():
    follower, labels, _ = followed(
        behind_a_gap(
            wide(shot({1: lambda t: 60}, 70)),
            lambda n: (60 - (n - 20) // 2, 60 + (n - 20) // 2) if n > 20 else None,
        )
    )
    assert len(follower.confirmed) == 1
    assert set(np.unique(labels)) == {0, 1}


def test_two_whom_the_network_loses_for_a_moment_while_they_cross_keep_their_numbers():
    steps = list(shot({1: lambda t: 20 + 80 * t, 2: lambda t: 100 - 80 * t}, 60, order=lambda _: (1, 2)))
    for n in (27, 28):
        rgb, alpha, truth = steps[n]
        steps[n] = rgb, np.zeros_like(alpha), np.zeros_like(truth)
    follower, labels, truths = followed(steps)
    assert len(follower.confirmed) == 2
    for who in (1, 2):
        name, share = wrong(labels, truths, who)
        assert name == who and share.max() < 0.3


def test_who_comes_in_later_gets_the_next_number():
    follower, _, _ = followed(shot({1: lambda t: 30, 2: lambda t: 130 - 50 * t}, 30))
    first, second = sorted(follower.confirmed, key=lambda track: track.first_pts)
    assert first.first_pts == 0 < second.first_pts


def test_who_is_followed_does_not_wait_until_a_crossing_is_given_out():
    """Check one person who passes two others: the second crossing ends before the labels of the first are settled."""
    walks = {1: lambda t: 10 + 110 * t, 2: lambda t: 40, 3: lambda t: 92}
    crossings = []

    def later(steps):
        steps = list(steps)
        crossings.extend(step for step in steps if isinstance(step, GivingOut))
        return [step for step in steps if not isinstance(step, GivingOut)]

    _, at_once, _ = followed(shot(walks, 100))
    frames, follower, waiting = SmallFrames(), ShotFollower(SIZE), []
    for n, (rgb, alpha, _) in enumerate(shot(walks, 100)):
        frame, _ = frames.next(n, rgb.transpose(2, 0, 1)[None], alpha[None], n == 0)
        waiting += later(follower.follow(frame))
    waiting += later(follower.finish())
    assert len(crossings) == 2
    before = np.stack([one.labels for one in waiting])
    for crossing in crossings:
        crossing.finish()
    labels = np.stack([one.labels for one in waiting])
    assert (before != labels).any()
    assert (labels == at_once).all()
    crossings[-1].finish()  # the second call does nothing
    assert (labels == np.stack([one.labels for one in waiting])).all()


def test_specks_are_nobody():
    random = np.random.default_rng(0)
    rgb = random.random((*SIZE, 3)).astype(np.float32)
    alpha = np.zeros(SIZE, np.float32)
    alpha[5:8, 5:8] = 1
    follower = ShotFollower(SIZE)
    frame, _ = SmallFrames().next(0, rgb.transpose(2, 0, 1)[None], alpha[None], True)
    labels = done([*follower.follow(frame), *follower.finish()])
    assert not follower.confirmed
    assert not labels[0].labels.any()


def test_surroundings_belong_to_the_nearest_within_reach():
    labels = np.zeros((20, 40), np.uint8)
    labels[8:12, 8:12], labels[8:12, 28:32] = 1, 2
    filled = everywhere(labels, reach=8)
    assert (filled[labels > 0] == labels[labels > 0]).all()
    assert filled[10, 15] == 1
    assert filled[10, 24] == 2
    assert filled[0, 0] == 0
    assert not everywhere(np.zeros((4, 4), np.uint8), reach=3).any()


@pytest.mark.parametrize("late", [48, 56, 66])
def test_a_shoulder_that_comes_out_from_behind_somebody_is_no_new_person(late):
    """Check a shoulder that the network sees late: it is large then, and far from the rest of the person."""
    random = np.random.default_rng(3)
    ground = random.integers(60, 120, (*SIZE, 3))
    steps = []
    for n in range(70):
        middle = 22 + n
        truth = np.zeros(SIZE, np.uint8)
        truth[10:60, middle - 6 : middle + 6] = truth[40:60, max(middle - 20, 0) : middle + 20] = 2
        alpha = truth > 0
        alpha[:, 68:] &= middle >= late
        alpha[:, 68 : middle + 10] &= middle >= late + 4  # at first only its tip
        truth[14:60, 52:68] = 1
        alpha[14:60, 52:68] = True
        rgb = ground.copy()
        for who in (1, 2):
            for rows, color in zip((slice(0, 24), slice(24, 44), slice(44, 60)), CLOTHES[who], strict=True):
                rgb[rows][truth[rows] == who] = color
        rgb = (rgb + random.integers(-8, 8, rgb.shape)).clip(0, 255)
        steps.append(((rgb / 255).astype(np.float32), alpha.astype(np.float32), truth * alpha))
    follower, labels, truths = followed(iter(steps))
    names = [wrong(labels, truths, who) for who in (1, 2)]
    assert names[0][0] != names[1][0]
    shoulder = labels[:, 40:60, 68:][truths[:, 40:60, 68:] == 2]
    assert (shoulder == names[1][0]).mean() > 0.95
    assert len([one for one in follower.confirmed if one.number not in follower.limbs]) == 2


def test_halves_of_a_person_whose_waist_the_network_misses_are_one_person():
    steps = []
    for rgb, alpha, truth in shot({1: lambda t: 40 + 20 * t}, 20):
        alpha[36:40] = 0
        steps.append((rgb, alpha, truth))
    follower, labels, truths = followed(steps, faces=lambda n: [(35 + n, 11, 8, 8)])
    assert len(follower.confirmed) == 1
    whole = (truths == 1) & (np.stack([alpha for _, alpha, _ in steps]) > 0)
    assert (labels[whole] == 1).all()


def test_who_sits_below_another_is_somebody():
    """Check rows of seats: the lower person has a face."""
    steps = []
    for rgb, alpha, truth in shot({1: lambda _: 40}, 20):
        alpha[34:40] = 0
        steps.append((rgb, alpha, truth))
    follower, _, _ = followed(steps, faces=lambda n: [(36, 11, 8, 8), (36, 41, 8, 8)])
    assert len(follower.confirmed) == 2


@pytest.mark.parametrize("seed", [19, 20])
def test_people_whom_the_network_tears_at_random_are_followed_to_the_end(seed):
    """Check parts that are taken for people, meet, and become parts of others one after the other."""
    random = np.random.default_rng(seed)
    count = int(random.integers(2, 4))
    ways = [(random.uniform(0, 120), random.uniform(-120, 120), random.uniform(0, 3)) for _ in range(count)]
    walks = {
        who: lambda time, way=way: way[0] + way[1] * np.sin(3 * way[2] * time)
        for who, way in enumerate(ways, start=1)
    }
    front = tuple(int(who) for who in random.permutation(list(walks)))
    missed, faces, steps = np.zeros(SIZE, bool), [], []
    for n, (rgb, alpha, truth) in enumerate(shot(walks, 60, order=lambda _: front)):
        if n % 4 == 0:
            missed = np.zeros(SIZE, bool)
            for _ in range(int(random.integers(0, 5))):
                top, left = random.integers(0, 60), random.integers(0, 120)
                height, width = random.integers(2, 20), random.integers(3, 50)
                missed[top : top + height, left : left + width] = True
        steps.append((rgb, np.where(missed, np.float32(0), alpha), truth))
        middles = [np.flatnonzero((truth == who).any(axis=0)) for who in walks] if n % 8 == 0 else []
        faces.append(
            [
                (float(own.mean() - 4), 10.0, 8.0, 10.0)
                for own in middles
                if len(own) and random.random() < 0.5
            ]
        )
    followed(steps, faces=lambda n: faces[n])


def test_the_faces_of_who_crosses_are_not_mixed_up():
    walks = {1: lambda t: 20 + 90 * t, 2: lambda t: 110 - 90 * t}
    own = {who: np.eye(128, dtype=np.float32)[who] for who in walks}

    def faces(n):
        places = {who: walk(n / 39) for who, walk in walks.items()}
        hidden = abs(places[1] - places[2]) < 12  # here only the one in front shows a face
        return [(x - 4, 11, 8, 8, own[who]) for who, x in places.items() if not (hidden and who == 1)]

    follower, labels, truths = followed(shot(walks, 40), faces=faces)
    for who in walks:
        number, _ = wrong(labels, truths, who)
        looks = FaceLooks()
        looks.learn(own[who])
        assert follower.tracks[number].face.distance(looks) < 1e-6


def test_who_turns_out_to_be_the_other_after_a_crossing_shows_their_own_face_from_then_on():
    """Check two people who differ only in their hair.

    They are followed by motion, and named by colour once they are apart.
    """
    alike = {1: CLOTHES[1], 2: ((170, 180, 150), *CLOTHES[1][1:])}
    walks = {1: lambda t: 25 + 70 * t, 2: lambda t: 95 - 70 * t}
    own = {who: np.eye(128, dtype=np.float32)[who] for who in walks}
    apart = (*range(18), *range(35, 50))

    def faces(n):
        return [(walk(n / 49) - 4, 11, 8, 8, own[who]) for who, walk in walks.items() if n in apart]

    follower, labels, truths = followed(shot(walks, 50, order=lambda _: (1, 2), clothes=alike), faces=faces)
    for who in walks:
        number = np.bincount(labels[:18][truths[:18] == who]).argmax()
        assert number == np.bincount(labels[35:][truths[35:] == who]).argmax()
        looks = FaceLooks()
        looks.learn(own[who])
        assert follower.tracks[number].face.distance(looks) < 1e-6
