"""Tests of recognising people in other shots, and of how certain that is."""

import numpy as np

from vitascope.segmentation.people.appearance import Appearance, FaceLooks, color_codes
from vitascope.segmentation.people.following import Track
from vitascope.segmentation.people.identities import MOST_PEOPLE, Identities

COLORS = {"red": (200, 40, 40), "blue": (40, 60, 200), "green": (50, 180, 60)}


def face(who, *, off=0.3):
    """Describe a face; faces of two people differ as much as those of strangers."""
    random = np.random.default_rng(who)
    looks, seen = FaceLooks(), np.zeros(128, np.float32)
    seen[who] = 0.6
    noise = random.normal(0, 1, 128)
    looks.learn((seen + off / 2 * noise / np.linalg.norm(noise)).astype(np.float32))
    return looks


def track(number, color, *, begin=0, end=10, x=0.5, light=1.0, who=None):
    random = np.random.default_rng(number)
    rgb = np.clip((np.array(COLORS[color]) + random.normal(0, 8, (30, 20, 3))) * light, 0, 255).astype(
        np.uint8
    )
    looks = Appearance()
    mask = np.ones((30, 20), np.float32)
    looks.learn(color_codes(rgb), mask)
    made = Track(number, looks, begin, end, mask, frames=10, first_x=x, largest=0.2)
    if who is not None:
        made.face = face(who)
    return made


def test_numbers_go_by_appearance_from_left_to_right():
    named = Identities().recognise(
        [track(1, "red", x=0.8), track(2, "blue", x=0.2), track(3, "green", begin=5, x=0.1)]
    )
    assert named == {2: 1, 1: 2, 3: 3}


def test_people_are_known_again_after_a_cut():
    people = Identities()
    people.recognise([track(1, "red", x=0.2), track(2, "blue", x=0.8)])
    named = people.recognise(
        [track(1, "blue", begin=20, end=30, light=0.9), track(2, "green", begin=20, end=30, x=0.9)]
    )
    assert named == {1: 2, 2: 3}
    assert [presence.person for presence in people.presences] == [1, 2, 2, 3]
    assert all(0 < presence.sure <= 0.99 for presence in people.presences)


def test_two_who_are_seen_together_are_two():
    people = Identities()
    people.recognise([track(1, "red")])
    twins = people.recognise([track(1, "red", x=0.2), track(2, "red", x=0.8)])
    assert sorted(twins.values()) == [1, 2]


def test_how_sure_look_alikes_are_who_are_seen_together():
    """Check that certainty is high: nobody is two people, so only an exchange of both could be right, too.

    It was 6 %.
    """
    people = Identities()
    people.recognise([track(1, "red", who=1)])
    for begin in (20, 40):
        both = [
            track(1, "red", begin=begin, end=begin + 10, x=0.2, who=1),
            track(2, "red", begin=begin, end=begin + 10),
        ]
        named = people.recognise(both)
        assert named == {1: 1, 2: 2}
        assert all(presence.sure >= 0.45 for presence in people.presences[-2:])
    both = [track(number, "red", begin=60, end=70, x=number / 3, who=number) for number in (1, 2)]
    assert people.recognise(both) == {1: 1, 2: 2}
    assert people.presences[-2].sure > 0.9


def test_who_leaves_and_comes_back_in_a_shot_is_one():
    people = Identities()
    assert people.recognise([track(1, "red", end=5)]) == {1: 1}
    assert people.recognise([track(1, "red", end=5), track(2, "red", begin=8)]) == {1: 1, 2: 1}


def test_numbers_end_before_labels_do():
    people = Identities()
    for _ in range(3):
        # All at the same time, so no two of them are the same person.
        named = people.recognise([track(number, "red", x=number / 100) for number in range(1, 101)])
    assert len(named) == 100  # all recognised
    named = people.recognise([track(number, "blue", x=number / 200) for number in range(1, 201)])
    assert max(named.values()) == MOST_PEOPLE
    assert len(named) == MOST_PEOPLE - 100


def test_two_in_the_same_clothes_who_are_never_seen_together_are_told_apart_by_their_faces():
    people = Identities()
    named = [
        people.recognise([track(1, "red", begin=20 * shot, end=20 * shot + 10, who=who)])[1]
        for shot, who in enumerate([1, 2, 1, 2, 2, 1])
    ]
    assert named == [1, 2, 1, 2, 2, 1]
    assert min(presence.sure for presence in people.presences) > 0.9


def test_somebody_in_other_clothes_is_known_by_their_face():
    people = Identities()
    assert people.recognise([track(1, "red", who=1)]) == {1: 1}
    assert people.recognise([track(1, "blue", begin=20, end=30, who=1)]) == {1: 1}
    assert people.recognise([track(1, "green", begin=40, end=50, who=2)]) == {1: 2}


def test_who_shows_no_face_is_known_by_colours_and_it_says_how_little_that_is():
    people = Identities()
    people.recognise([track(1, "red", who=1)])
    assert people.recognise([track(1, "red", begin=20, end=30, light=0.97)]) == {1: 1}
    first, again = people.presences
    assert first.sure == 0.99
    assert 0.5 < again.sure < 0.95


def test_who_is_hardly_another_is_not_sure_to_be_new():
    people = Identities()
    people.recognise([track(1, "red")])
    alike = next(
        light
        for light in np.arange(1, 0.1, -0.02)
        if track(1, "red", light=light).appearance.similarity(track(1, "red").appearance) < 0.7
    )
    assert people.recognise([track(1, "red", begin=20, end=30, light=alike)]) == {1: 2}
    assert 0.5 <= people.presences[-1].sure < 0.8
