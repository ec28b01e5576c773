"""Tests of hints files: what they may contain, and the errors for the rest."""

import copy
import pickle

import pytest

from vitascope.config.hints import Hints, read_hints
from vitascope.errors import ConfigError

FILE = """\
version: 1
video: film.mp4
people:
  - keep: [1, 3]
    from: 0:10
    to: 0:20
  - exclude: 2
marks:
  - at: 12.5
    click: [0.42, 0.31]
    do: remove
  - at: 14
    stroke: [[0.4, 0.3], [0.45, 0.5]]
never:
  - polygon: [[0, 0.9], [1, 0.9], [1, 1], [0, 1]]
    eye: left
"""


@pytest.fixture
def write(tmp_path):
    def written(text):
        path = tmp_path / "film.hints.yaml"
        path.write_text(text, encoding="utf-8")
        return path

    return written


def test_a_file_of_everything(write):
    hints = read_hints(write(FILE))
    first, second = hints.people
    assert (first.keep, first.from_, first.to, hints.place(first)) == (
        (1, 3),
        10.0,
        20.0,
        "film.hints.yaml:4",
    )
    assert (second.exclude, second.from_, second.to) == ((2,), 0.0, None)
    click, stroke = hints.marks
    assert (click.at, click.click, click.do, stroke.do, stroke.radius) == (
        12.5,
        (0.42, 0.31),
        "remove",
        "keep",
        0.02,
    )
    assert hints.never[0].eye == "left"
    assert len(hints.never[0].polygon) == 4
    assert hints.needs_people


def test_regions_alone_need_nobody_to_look_for_people(write):
    assert not read_hints(write("never:\n  - polygon: [[0, 0], [1, 0], [1, 1]]\npeople:\n")).needs_people


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            "0.42, 0.31",
            "1.42, 0.31",
            r":10: marks\[0\]\.click\[0\]: places are shares .* not pixels; got 1\.42",
        ),
        ("do: remove", "do: eat", r":11: marks\[0\]\.do: expected 'keep' or 'remove', got eat"),
        ("eye: left", "ear: left", r":16: never\[0\]\.ear: unknown field"),
        ("do: remove", "doo: remove", r":11: marks\[0\]\.doo: unknown field; did you mean do\?"),
        ("from: 0:10", "form: 0:10", r":5: people\[0\]\.form: unknown field; did you mean from\?"),
        ("video: film", "vidoe: film", r":2: vidoe: unknown field; did you mean video\?"),
        (
            "exclude: 2",
            "exclude: 2\nedges:\n  feather: 1",
            r":9: edges\.feather: .* did you mean feather_px\?",
        ),
        ("from: 0:10", "from: 0:30", r":4: people\[0\]: it ends at 20 s, not after it begins"),
        ("from: 0:10", "from: soon", r":5: people\[0\]\.from: not a time, got soon"),
        ("exclude: 2", "exclude: foo", r":7: people\[1\]\.exclude: 'foo' is not a person"),
        ("exclude: 2", "to: 3", r":7: people\[1\]: it needs either keep or exclude"),
        ("    do: remove", "    box: [0, 0, 1, 1]", r":9: marks\[0\]: it needs one of click, box and stroke"),
        (
            "click: [0.42, 0.31]",
            "box: [1, 0, 0, 1]",
            r":9: marks\[0\]: a box is \[left, top, right, bottom\]",
        ),
        (
            "[[0, 0.9], [1, 0.9], [1, 1], [0, 1]]",
            "[[0, 1]]",
            r":15: never\[0\]: a region has at least three corners",
        ),
        ("  - at: 12.5\n    click", "  - click", r":9: marks\[0\]\.at: is missing"),
        ("version: 1", "version: 2", r":1: version: .* 1, got 2"),
        (
            "    eye: left",
            "    eye: left\n    eye: right",
            r":17: 'eye' is set twice; the first is on line 16",
        ),
        ("video: film.mp4", "video: [", r":\d+: not valid YAML"),
        (FILE, "- 1", r": expected hints as"),
        (FILE, "people: 3", r":1: people: expected a list, got 3"),
    ],
)
def test_what_is_wrong_is_said_with_line_and_field(write, old, new, said):
    assert old in FILE
    with pytest.raises(ConfigError, match=r"film\.hints\.yaml" + said) as caught:
        read_hints(write(FILE.replace(old, new, 1)))
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(ConfigError, match=r"none\.yaml: no such"):
        read_hints(tmp_path / "none.yaml")


@pytest.mark.parametrize(
    "copied",
    [
        copy.copy,
        copy.deepcopy,
        lambda hints: pickle.loads(pickle.dumps(hints)),
        Hints.model_copy,
        lambda hints: hints.model_copy(deep=True),
    ],
    ids=["copy", "deepcopy", "pickle", "model_copy", "deep model_copy"],
)
def test_a_copy_knows_its_own_items(write, copied):
    hints = read_hints(write(FILE))
    items = (*hints.people, *hints.marks, *hints.never)
    places = list(map(hints.place, items))
    assert (hints.last[0], len(hints.painted), len(hints.pointed)) == (14.0, 1, 1)
    other = copied(hints)
    assert other == hints
    assert "line_of" not in vars(other)
    assert list(map(other.place, (*other.people, *other.marks, *other.never))) == places
    assert other.painted[0][0] is other.marks[1]
    assert other.pointed[0] is other.marks[0]
    assert other.last[1] is other.marks[1]
    assert list(map(hints.place, items)) == places


def test_a_copy_with_other_marks_groups_those_and_places_none_of_them(write):
    hints = read_hints(write(FILE))
    assert hints.place(hints.marks[1]).endswith(":12")
    assert hints.painted
    assert hints.last[0] == 14.0
    for deep in (False, True):
        other = hints.model_copy(update={"marks": hints.marks[:1]}, deep=deep)
        assert other.painted == ()
        assert other.pointed == hints.marks[:1]
        assert other.last[0] == 12.5
        assert other.place(other.marks[0]) == "film.hints.yaml"
        assert other.place(other.people[1]) == "film.hints.yaml:7"
