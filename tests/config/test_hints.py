"""Files of hints: what they may say, and what is answered to what they may not."""

import pytest

from vitascope.config.hints import read_hints
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
        ("0.42, 0.31", "1.42, 0.31", r":10: marks\[0\]\.click\[0\]: .*less than or equal to 1, got 1\.42"),
        ("do: remove", "do: eat", r":11: marks\[0\]\.do: .*'keep' or 'remove', got eat"),
        ("eye: left", "ear: left", r":16: never\[0\]\.ear: there is no such field"),
        ("from: 0:10", "from: 0:30", r":4: people\[0\]: it ends at 20 s, not after it begins"),
        ("from: 0:10", "from: soon", r":5: people\[0\]\.from: not a time, got soon"),
        ("exclude: 2", "exclude: foo", r":7: people\[1\]\.exclude: 'foo' is no person"),
        ("exclude: 2", "to: 3", r":7: people\[1\]: it needs either keep or exclude"),
        ("    do: remove", "    box: [0, 0, 1, 1]", r":9: marks\[0\]: it needs one of click, box and stroke"),
        (
            "click: [0.42, 0.31]",
            "box: [1, 0, 0, 1]",
            r":9: marks\[0\]: a box is \[left, top, right, bottom\]",
        ),
        ("[[0, 0.9], [1, 0.9], [1, 1], [0, 1]]", "[[0, 1]]", r":15: never\[0\]: a region has three corners"),
        ("  - at: 12.5\n    click", "  - click", r":9: marks\[0\]\.at: is missing"),
        ("version: 1", "version: 2", r":1: version: .* 1, got 2"),
        (
            "    eye: left",
            "    eye: left\n    eye: right",
            r":17: 'eye' is set twice; the first is on line 16",
        ),
        ("video: film.mp4", "video: [", r":\d+: not valid YAML"),
        (FILE, "- 1", r": expected hints as"),
        (FILE, "people: 3", r":1: people: .*got 3"),
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
