"""Who people of another shot are, and how sure that is."""

import numpy as np

from vitascope.segmentation.people.appearance import Appearance, color_codes
from vitascope.segmentation.people.following import Track
from vitascope.segmentation.people.identities import MOST_PEOPLE, Identities

COLORS = {"red": (200, 40, 40), "blue": (40, 60, 200), "green": (50, 180, 60)}


def track(number, color, *, begin=0, end=10, x=0.5, light=1.0):
    random = np.random.default_rng(number)
    rgb = np.clip((np.array(COLORS[color]) + random.normal(0, 8, (30, 20, 3))) * light, 0, 255).astype(
        np.uint8
    )
    looks = Appearance()
    mask = np.ones((30, 20), np.float32)
    looks.learn(color_codes(rgb), mask)
    return Track(number, looks, begin, end, mask, frames=10, first_x=x, largest=0.2)


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


def test_who_leaves_and_comes_back_in_a_shot_is_one():
    people = Identities()
    assert people.recognise([track(1, "red", end=5)]) == {1: 1}
    assert people.recognise([track(1, "red", end=5), track(2, "red", begin=8)]) == {1: 1, 2: 1}


def test_numbers_end_before_labels_do():
    people = Identities()
    for _ in range(3):
        # All at the same time: no two of them are one.
        named = people.recognise([track(number, "red", x=number / 100) for number in range(1, 101)])
    assert len(named) == 100  # known again
    named = people.recognise([track(number, "blue", x=number / 200) for number in range(1, 201)])
    assert max(named.values()) == MOST_PEOPLE
    assert len(named) == MOST_PEOPLE - 100
