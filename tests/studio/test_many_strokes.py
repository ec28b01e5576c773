"""Check that one more stroke costs little, with as many as a hints file holds. Work is counted, not timed."""

from __future__ import annotations

import json
from itertools import chain, repeat
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from clips import write_clip
from vitascope.config import hints as hints_module
from vitascope.config.hints import Hints, read_hints
from vitascope.config.yaml_file import document_of
from vitascope.errors import ConfigError
from vitascope.gpu.kernels.region import Region
from vitascope.segmentation.people import choice as choice_module
from vitascope.segmentation.people import strokes as strokes_module
from vitascope.segmentation.people.choice import Choice, Rule
from vitascope.segmentation.people.strokes import carried_strokes, stroke_bounds
from vitascope.studio.corrections import (
    change_corrections,
    hints_path,
    read_corrections,
    write_corrections,
)

COUNT = 15_000
"""Strokes in tests that look at each; a hints file holds 100,000 and more."""


def stroke(at, **fields):
    return {"at": at, "stroke": [[0.5, 0.5]], "radius": 0.03, "do": "keep", **fields}


@pytest.fixture
def video(tmp_path):
    path = tmp_path / "film.mp4"
    path.write_bytes(b"")
    return path


@pytest.fixture
def yaml_lines(monkeypatch):
    """Count the non-empty lines that YAML parses, for each reading of a file."""
    counts = []

    def counted(content, **how):
        counts.append(sum(bool(line.strip()) for line in content.split(b"\n")))
        return document_of(content, **how)

    monkeypatch.setattr(hints_module, "document_of", counted)
    return counts


def test_yaml_reads_none_of_the_strokes_and_each_state_of_a_file_is_read_once(video, yaml_lines):
    marks = [stroke(number / 100) for number in range(COUNT)]
    revision = "none"
    for changed in (marks, [*marks, stroke(150.5, do="remove")], marks):  # all, one more, and undo
        yaml_lines.clear()
        written = write_corrections(video, {"marks": changed}, revision=revision)
        revision = written.revision
        for _ in range(4):  # as for a picture: settings, network, and twice for who is kept
            assert read_corrections(video) == written
            read_hints(hints_path(video))
        assert sum(yaml_lines) <= 5
        assert [mark["at"] for mark in written.plain["marks"]] == [mark["at"] for mark in changed]
    assert written.hints.place(written.hints.marks[-1]) == f"film.hints.yaml:{COUNT + 4}"


def test_what_is_wrong_in_a_long_file_is_found_once_and_with_its_line(video, yaml_lines):
    marks = [stroke(number / 100) for number in range(2000)]
    write_corrections(video, {"marks": marks}, revision="none")
    path = hints_path(video)
    path.write_text(path.read_text().replace("{at: 15, ", "{at: 15, colour: 3, "))
    yaml_lines.clear()
    for _ in range(3):
        with pytest.raises(ConfigError, match=r"hints\.yaml:1505: marks\[1500\]\.colour: unknown field"):
            read_hints(path)
    assert len(yaml_lines) == 1


SECTIONS = st.sampled_from(["people", "marks", "never", "edges", "version", "video"])
ITEMS = st.sampled_from(
    [
        "{at: 1, click: [0.1, 0.2], do: remove}",
        "{at: 1e-3, box: [0, 0.1, 0.5, 1], eye: left, to: 4}",
        "{at: 2, stroke: [[0.1, 0.2], [1, 1]], radius: 0.5}",
        "{exclude: [2]}",
        "{exclude: [2], exclude: [3]}",  # a repeated name
        "{keep: [largest]}",
        "{exclude: 1, from: 1:30}",  # 90 seconds
        "{exclude: 010}",  # 8
        "{exclude: 1_0}",
        "{exclude: [1, 2], from: .5, to: +2}",
        "{exclude: 1} # her",
        "{exclude: 1}, {keep: 1}",
        "{exclude: [1}",
        "{exclude: 'x'}",
        '{exclude: "x"}',
        "{exclude: NaN}",
        "{exclude: yes}",
        "{exclude: ~}",
        "{exclude: }",
        "{}",
        "{keep: keep, do: {a: 1}}",
        "{polygon: [[0, 0], [1, 0], [1, 1]], eye: right}",
        "{exclude:1}",
        "{exclude:\r 1}",
        "{exclude: [1,\u2028 2]}",
        "{exclude: &x 1}",
    ]
)
LINES = st.one_of(
    SECTIONS.map("{}:".format),
    SECTIONS.map("{}: [".format),
    SECTIONS.map("{}: |".format),
    SECTIONS.map('{}: "'.format),
    ITEMS.map("  - {}".format),
    ITEMS.map("- {}".format),
    ITEMS.map("    - {}".format),
    st.sampled_from(
        ["", "]", "# words", "version: 1", "  grow_px: 2", '"', "---", "  x", "  - at: 1", "    do: keep"]
    ),
)


def told(read):
    try:
        return read()
    except ConfigError as error:
        return str(error)


@given(
    st.one_of(
        st.lists(LINES, max_size=8),
        st.tuples(SECTIONS, st.lists(ITEMS, max_size=5)).map(
            lambda parts: [f"{parts[0]}:", *(f"  - {item}" for item in parts[1])]
        ),
    ),
    st.lists(st.sampled_from(["\n", "\n", "\r\n", "\r", "\x85", "\u2028", "\u2029"]), max_size=3),
)
@example(["people: [", "people:", "  - {at: 1, click: [0.1, 0.2], do: remove}"], [])
def test_what_is_read_without_yaml_is_what_yaml_reads(tmp_path_factory, lines, breaks):
    path = tmp_path_factory.mktemp("hints") / "x.yaml"
    content = "".join(
        line + end for line, end in zip(lines, chain(breaks, repeat("\n")), strict=False)
    ).encode()
    quick = told(lambda: hints_module._read(path, content))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hints_module, "taken_out", lambda text, _: (text, []))
        slow = told(lambda: hints_module._read(path, content))
    assert quick == slow
    if isinstance(quick, Hints):
        assert json.dumps(quick.model_dump(mode="json")) == json.dumps(slow.model_dump(mode="json"))
        assert list(map(quick.place, (*quick.people, *quick.marks, *quick.never))) == list(
            map(slow.place, (*slow.people, *slow.marks, *slow.never))
        )


class Table:
    """Simulates one shot of 100 seconds, in milliseconds, and counts its queries."""

    facts = SimpleNamespace(fingerprint="a film")

    def __init__(self):
        self.asked = 0

    def pts_at(self, seconds):
        return round(seconds * 1000)

    def seconds_at(self, pts):
        return pts / 1000

    def shot_at(self, _):
        self.asked += 1
        return 0, 100_000


class CountedMark:
    """A stroke that counts how often its time is read."""

    asked = 0
    from_, to = 0.0, None

    def __init__(self, at):
        self._at = at

    @property
    def at(self):
        CountedMark.asked += 1
        return self._at


def test_when_strokes_act_is_known_without_comparing_each_with_each():
    generator = np.random.default_rng(25)
    marks = [CountedMark(float(at)) for at in generator.integers(0, 100_000, COUNT) / 1000]
    table = Table()
    CountedMark.asked = 0
    bounds = list(stroke_bounds(marks, table))
    assert CountedMark.asked <= 10 * COUNT
    assert table.asked <= COUNT
    for number in range(0, COUNT, 1000):  # by definition half-way to the next stroke on either side
        at = marks[number].at
        begin = max([max(at - 10, 0), *((one.at + at) / 2 for one in marks if one.at < at)])
        end = min([min(at + 10, 100), *((one.at + at) / 2 for one in marks if one.at > at)])
        assert bounds[number] == (begin, end)


def test_all_strokes_of_a_frame_read_the_video_once(tmp_path, monkeypatch):
    clip, opened = write_clip(tmp_path / "in.mp4", frame_count=24), []
    open_video = strokes_module.open_video
    monkeypatch.setattr(
        strokes_module, "open_video", lambda *words, **how: opened.append(1) or open_video(*words, **how)
    )
    table = Table()
    table.facts = SimpleNamespace(fingerprint=str(tmp_path))
    hints = Hints.model_validate(
        {"marks": [stroke(0.5, stroke=[[x / 100, 0.5]]) for x in range(100)], "label": ""}
    )
    carried = carried_strokes(
        clip, hints.painted, table, regions=[Region(0, 0, 96, 64)], rotation_degrees=0, moment=0.5
    )
    assert len(carried) == 1  # painted over one another
    assert len(opened) == 1


def test_one_more_stroke_carries_those_of_its_frame_and_no_others(tmp_path, monkeypatch):
    video = write_clip(tmp_path / "film.mp4", frame_count=24)
    table = Table()
    table.facts = SimpleNamespace(fingerprint=str(tmp_path))
    carried, carry = [], strokes_module._carried
    monkeypatch.setattr(
        strokes_module,
        "_carried",
        lambda pts, greys, painted, *where: (
            carried.append(len(painted)) or carry(pts, greys, painted, *where)
        ),
    )

    def pictured(corrections):
        carried.clear()
        found = carried_strokes(
            video,
            corrections.hints.painted,
            table,
            regions=[Region(0, 0, 96, 64)],
            rotation_degrees=0,
            moment=0.4,
        )
        return len(found), sorted(carried)

    def changed(corrections, section, at, *items, remove=0):
        splice = {"section": section, "at": at, "insert": list(items), "remove": remove}
        return change_corrections(video, {"splices": [splice]}, revision=corrections.revision)

    dense = [stroke(number % 12 / 15, stroke=[[number / 1200, 0.5]]) for number in range(1200)]
    first = write_corrections(video, {"marks": dense}, revision="none")
    assert pictured(first) == (7, [100] * 7)  # those around this moment
    more = changed(first, "marks", 1200, stroke(0.4, stroke=[[0.1, 0.1], [0.9, 0.9]]))
    assert pictured(more) == (7, [101])
    # People come before strokes in the file: strokes move by two lines, and stay the same.
    without_her = changed(more, "people", 0, {"exclude": [1]})
    assert all(one is other for one, other in zip(without_her.hints.marks, more.hints.marks, strict=True))
    assert without_her.hints.place(without_her.hints.marks[0]).endswith(":7")
    assert pictured(without_her) == (7, [])
    assert pictured(changed(without_her, "marks", 1200, remove=1)) == (7, [])  # undo finds the earlier result
    # A stroke inserted and one removed: the number is the same, but not the strokes.
    other = changed(read_corrections(video), "marks", 606, stroke(0.4, stroke=[[0.2, 0.2]]), remove=1)
    assert pictured(other) == (7, [100])


def test_rows_of_strokes_that_stay_are_looked_at_once(video, monkeypatch):
    looked, is_item = [], hints_module.is_item
    monkeypatch.setattr(hints_module, "is_item", lambda line: looked.append(1) or is_item(line))
    now = write_corrections(video, {"marks": [stroke(number) for number in range(500)]}, revision="none")
    for number in range(3):
        splice = {"section": "marks", "at": 500 + number, "insert": [stroke(3.5)]}
        now = change_corrections(video, {"splices": [splice]}, revision=now.revision)
    assert len(looked) == 500 + 503  # once as kept rows, and once as each is read
    assert hints_path(video).read_bytes().count(b"\n  - ") == 503


def test_rules_are_not_compared_each_with_each(monkeypatch):
    rules = tuple(
        Rule(frozenset({number % 5 + 1}), number % 3 == 0, number / 10, number / 10 + 0.25)
        for number in range(3000)
    )
    choice, looked, kept_by = Choice(rules), [], choice_module._kept_by
    monkeypatch.setattr(
        choice_module, "_kept_by", lambda acting: looked.append(len(acting)) or kept_by(acting)
    )
    parts = choice.left_out(0, 400, {0, 1, 2, 3, 4, 5})
    assert max(looked) <= 4
    monkeypatch.undo()
    for begin, end, out in parts[::100]:
        kept = choice.kept_at((begin + end) / 2)
        assert out == tuple(number for number in range(6) if not kept[number])
    assert sum(end - begin for begin, end, _ in parts) <= 400


def test_so_many_contradictions_are_told_and_no_more():
    rules = tuple(Rule(frozenset({1}), number % 2 == 0, said_by=f"rule {number}") for number in range(COUNT))
    told = Choice(rules).contradictions()
    assert len(told) == 21
    assert told[0].startswith("rule 0 and rule 1 contradict")
    assert told[-1] == "more rules contradict each other"
    assert len(Choice(rules[:4]).contradictions()) == 4
