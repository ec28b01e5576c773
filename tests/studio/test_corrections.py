"""Tests of the hints file as the studio reads and writes it, and as the command reads it."""

from __future__ import annotations

import json
import os
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitascope.config import hints as hints_module
from vitascope.config import load_settings
from vitascope.config.hints import Hints, hints_yaml, read_hints
from vitascope.errors import ConfigError
from vitascope.studio import corrections as corrections_module
from vitascope.studio.corrections import (
    CorrectionsClashError,
    change_corrections,
    hints_path,
    read_corrections,
    write_corrections,
)

HINTS = {
    "people": [{"exclude": [2]}, {"exclude": [1], "from": 0.5, "to": 1.25}],
    "marks": [
        {"at": 0.2083, "stroke": [[0.4, 0.3], [0.45, 0.5]], "radius": 0.02, "do": "remove"},
        {"at": 0.5, "click": [0.1, 0.2], "do": "keep", "eye": "left"},
    ],
    "never": [{"polygon": [[0, 0.9], [1, 0.9], [1, 1]]}],
    "edges": {"grow_px": -1.5, "threshold": [0.1, 0.9], "decontaminate": False},
}


BY_HAND = """\
marks:   # all of them
  - {at: 1, click: [0.5, 0.5]}
  - {at: 2, click: [0.5, 0.5]}  # him
  - {at: 3,
     click: [0.5, 0.25]}
  - {at: 4, click: [0.5, 0.5], do: 'keep'}
people: [{keep: largest}, {exclude: pov}]
"""


@pytest.fixture
def video(tmp_path):
    path = tmp_path / "my wedding: 1.mp4"
    path.write_bytes(b"")
    return path


def plain(corrections):
    return {name: value for name, value in corrections.plain.items() if name not in ("version", "video")}


def test_what_is_written_is_read_again_by_the_studio_and_by_the_command(video):
    written = write_corrections(video, HINTS, revision="none")
    assert plain(written) == plain(read_corrections(video)) == HINTS
    hints = read_hints(hints_path(video))
    assert hints.video == video.name
    assert hints.people[1].to == 1.25
    text = hints_path(video).read_text()
    assert "  - {exclude: [2]}\n" in text
    umask = os.umask(0)
    os.umask(umask)
    assert hints_path(video).stat().st_mode & 0o777 == 0o666 & ~umask


shares = st.floats(0, 1)
marks = st.fixed_dictionaries(
    {
        "at": st.floats(0, 1e5),
        "stroke": st.lists(st.tuples(shares, shares), min_size=1, max_size=4),
        "do": st.sampled_from(["keep", "remove"]),
        "radius": st.floats(0.001, 0.5),
    }
)


@given(st.lists(marks, max_size=4), st.text(max_size=20))
def test_any_hints_are_read_as_they_were_written(tmp_path_factory, strokes, name):
    path = tmp_path_factory.mktemp("hints") / "x.yaml"
    hints = Hints.model_validate({"marks": strokes, "video": name, "label": ""})
    path.write_bytes(hints_yaml(hints))
    read = read_hints(path)
    assert read.video == name
    for one, other in zip(read.marks, hints.marks, strict=True):
        assert one.at == pytest.approx(other.at, rel=1e-9)
        assert one.do == other.do
        assert [x for point in one.stroke for x in point] == pytest.approx(
            [x for point in other.stroke for x in point], rel=1e-9, abs=1e-12
        )


def test_the_last_writer_is_told(video):
    first = write_corrections(video, {"edges": {"grow_px": 1}}, revision="none")
    second = write_corrections(video, {"edges": {"grow_px": 2}}, revision=first.revision)
    with pytest.raises(
        CorrectionsClashError, match=r"my wedding: 1\.hints\.yaml was changed in the meantime"
    ):
        write_corrections(video, {"edges": {"grow_px": 3}}, revision=first.revision)
    assert read_corrections(video) == second
    hints_path(video).write_text("edges: {grow_px: 9}\n")
    with pytest.raises(CorrectionsClashError):
        write_corrections(video, {}, revision=second.revision)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            "version: 1\nmarks:\n  - at: 1\n    click: [2, 0]\n",
            r"my wedding: 1\.hints\.yaml:4: marks\[0\]\.click",
        ),
        ("people:\n  - keep: 1\n  - kept: 1\n", r":3: people\[1\]\.kept: unknown field"),
        ("edges:\n  feather_px: 2\n  grow_px: much\n", r":3: edges\.grow_px"),
        ("people: [\n", "not valid YAML"),
        ("video: other.mp4\n", "these hints are for other.mp4, not for my wedding: 1.mp4"),
    ],
)
def test_an_error_made_by_hand_is_told_with_its_line_and_nothing_is_written_over_it_unasked(
    video, text, reason
):
    hints_path(video).write_text(text)
    read = read_corrections(video)
    assert read.hints is None
    assert re.search(reason, read.error)
    with pytest.raises(CorrectionsClashError):
        write_corrections(video, {}, revision="none")
    with pytest.raises(ConfigError, match=reason.removeprefix("^")):
        change_corrections(video, {"edges": {"grow_px": 1}}, revision=read.revision)
    assert hints_path(video).read_text() == text


@pytest.mark.parametrize(
    ("hints", "reason"),
    [
        ([], "a mapping"),
        ({"marks": [{"at": 1}]}, r"marks\[0\]: it needs one of click, box and stroke"),
        ({"edges": {"grow": 1}}, r"edges\.grow: unknown field"),
        ({"people": [{"keep": [1], "from": 2, "to": 1}]}, "not after it begins"),
        ({"marks": [{"at": float("nan"), "click": [0, 0]}]}, r"marks\[0\]\.at"),
    ],
)
def test_what_is_no_hint_is_not_written(video, hints, reason):
    with pytest.raises(ConfigError, match=reason):
        write_corrections(video, hints, revision="none")
    assert not hints_path(video).exists()


def test_more_strokes_than_a_file_holds_are_refused_with_the_reason(video, monkeypatch):
    monkeypatch.setattr(hints_module, "MAX_HINTS_BYTES", 10_000)
    stroke = {"at": 1.0, "stroke": [[0.5, 0.5]], "do": "keep"}
    with pytest.raises(ConfigError, match=r"300 hints take .* holds 10000 at most; remove some"):
        write_corrections(video, {"marks": [stroke] * 300}, revision="none")
    assert not hints_path(video).exists()
    kept = write_corrections(video, {"marks": [stroke] * 200}, revision="none")
    more = {"splices": [{"section": "marks", "at": 200, "insert": [stroke] * 100}]}
    with pytest.raises(ConfigError, match="300 hints take"):
        change_corrections(video, more, revision=kept.revision)
    assert read_corrections(video) == kept
    monkeypatch.setattr(hints_module, "_MAX_YAML_BYTES", 5_000)
    hints_path(video).write_text("marks:\n" + "- at: 1\n  click: [0.5, 0.5]\n" * 250)
    assert "5000 at most are read" in read_corrections(video).error


people = st.fixed_dictionaries({"exclude": st.lists(st.integers(1, 9), min_size=1, max_size=3)})
regions = st.just({"polygon": [[0, 0.9], [1, 0.9], [1, 1]]})
splices = st.one_of(
    [
        st.fixed_dictionaries(
            {
                "section": st.just(name),
                "at": st.integers(0, 6),
                "remove": st.integers(0, 3),
                "insert": st.lists(items, max_size=3),
            }
        )
        for name, items in (("people", people), ("marks", marks), ("never", regions))
    ]
)
edges = st.sampled_from([{}, {"grow_px": -1.5}, {"feather_px": 0.1, "decontaminate": False}])


ROWS = "version: 1\nmarks:\n" + "".join(f"  - {{at: {number}, click: [0.5, 0.25]}}\n" for number in range(4))
BREAKS = ["\n", "\r\n", "\r", "\x85", "\u2028", "\u2029"]
"""The line ends of YAML."""


@st.composite
def texts_by_hand(draw):
    """Draw texts with all kinds of line ends, after a comment written elsewhere."""
    text = draw(
        st.sampled_from(
            [
                "",
                "marks:\n- at: 1\n  click: [0.5, 0.5]  # him\n  - {at: 2}\n",
                BY_HAND,
                ROWS,
                f"{ROWS}people: []\n",
            ]
        )
    )
    breaks = st.sampled_from(BREAKS) if draw(st.booleans()) else st.just("\n")
    head = (
        f"# from a page{draw(st.sampled_from(BREAKS))}# more{draw(st.sampled_from(BREAKS))}" if text else ""
    )
    return head + "".join(line + draw(breaks) for line in text.split("\n")[:-1])


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
@pytest.mark.parametrize("line_break", BREAKS)
def test_a_line_break_that_only_yaml_knows_shifts_no_marks(video, line_break, encoding):
    text = (
        f"# from a page{line_break}# more\n{ROWS}  - {{at: 4,{line_break} click: [0.5, 0.25]}}\nnever: []\n"
    )
    hints_path(video).write_bytes(text.encode(encoding))
    now = read_corrections(video)
    assert [mark["at"] for mark in now.plain["marks"]] == [0, 1, 2, 3, 4]
    added = {"splices": [{"section": "marks", "at": 2, "insert": [{"at": 9, "click": [0.1, 0.1]}]}]}
    now = change_corrections(video, added, revision=now.revision)
    written = hints_module._read(hints_path(video), hints_path(video).read_bytes())
    assert [mark.at for mark in written.marks] == [mark.at for mark in now.hints.marks] == [0, 1, 9, 2, 3, 4]


@given(
    texts_by_hand(),
    st.lists(
        st.one_of(
            st.fixed_dictionaries({"splices": st.lists(splices, max_size=3)}),
            st.fixed_dictionaries({"edges": edges}),
        ),
        max_size=5,
    ),
)
def test_what_is_changed_is_what_would_be_written_anew_and_is_known_without_reading(
    tmp_path_factory, begins_with, changes
):
    video = tmp_path_factory.mktemp("film") / "film.mp4"
    if begins_with:
        hints_path(video).write_bytes(begins_with.encode())
    now = read_corrections(video)
    if now.error:
        with pytest.raises(ConfigError):
            change_corrections(video, {}, revision=now.revision)
        assert hints_path(video).read_bytes() == begins_with.encode()
        return
    wanted = {name: list(now.plain.get(name, [])) for name in ("people", "marks", "never")}
    for change in changes:
        tried = {name: list(items) for name, items in wanted.items()}
        is_place = True
        for splice in change.get("splices", ()):
            items, begin, end = tried[splice["section"]], splice["at"], splice["at"] + splice["remove"]
            is_place = is_place and end <= len(items)
            items[begin:end] = splice["insert"]
        if not is_place:
            with pytest.raises(ConfigError, match="cannot go, as there are"):
                change_corrections(video, change, revision=now.revision)
            continue
        wanted = tried
        now = change_corrections(video, change, revision=now.revision)
        if "edges" in change:
            assert now.plain.get("edges", {}) == change["edges"]
        read = hints_module._read(hints_path(video), hints_path(video).read_bytes())
        assert now.hints.model_dump() == read.model_dump()
        assert now.hints.edge_lines == read.edge_lines
        for name, items in wanted.items():
            assert list(map(now.hints.place, getattr(now.hints, name))) == list(
                map(read.place, getattr(read, name))
            )
            assert len(now.plain.get(name, [])) == len(items)
            for one, other in zip(now.plain.get(name, []), items, strict=True):
                assert one.keys() == other.keys()
                assert one.get("at", 0) == pytest.approx(other.get("at", 0), rel=1e-9)
                named = other.get("exclude")
                assert one.get("exclude") == (named and list(dict.fromkeys(named)))
        assert json.loads(now.json)["hints"] == json.loads(json.dumps(now.plain))


@pytest.mark.parametrize("way", ["anew", "change"])
def test_who_writes_is_answered_what_they_wrote_though_another_wrote_at_once(video, monkeypatch, way):
    before = write_corrections(video, HINTS, revision="none")

    def written_over(path, content, was=corrections_module._write):
        was(path, content)
        path.write_text("edges: {grow_px: 9}\n")

    monkeypatch.setattr(corrections_module, "_write", written_over)
    if way == "anew":
        answered = write_corrections(video, {"edges": {"grow_px": 1}}, revision=before.revision)
    else:
        answered = change_corrections(video, {"edges": {"grow_px": 1}}, revision=before.revision)
    assert answered.plain["edges"] == {"grow_px": 1}
    assert read_corrections(video).plain == {"edges": {"grow_px": 9}}
    with pytest.raises(CorrectionsClashError):
        change_corrections(video, {"edges": {}}, revision=answered.revision)


def test_contents_that_are_asked_for_stay_known(video, monkeypatch):
    path, reads = hints_path(video), []
    monkeypatch.setattr(
        hints_module,
        "_read",
        lambda path, text, was=hints_module._read: reads.append(text) or was(path, text),
    )
    contents = [f"edges: {{grow_px: {number}}}".encode() for number in range(9)]
    for content in contents:
        hints_module.hints_in(content, path)
        hints_module.hints_in(contents[0], path)
    assert reads == contents


def test_a_change_reads_and_writes_nothing_but_itself(video, monkeypatch):
    written = write_corrections(video, {**HINTS, "marks": HINTS["marks"] * 50}, revision="none")
    rows, reads = [], []
    monkeypatch.setattr(
        hints_module, "_row_of", lambda hint, was=hints_module._row_of: rows.append(1) or was(hint)
    )
    monkeypatch.setattr(
        hints_module,
        "_read",
        lambda path, text, was=hints_module._read: reads.append(len(text)) or was(path, text),
    )
    stroke = {"at": 1.0, "stroke": [[0.5, 0.5]], "do": "keep"}
    change = {"splices": [{"section": "marks", "at": 100, "insert": [stroke]}]}
    assert change_corrections(video, change, revision=written.revision).plain["marks"][100] == stroke
    assert len(rows) == 1
    assert max(reads) < 300


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ([], "changes"),
        ({"splice": []}, r"splice: unknown field"),
        ({"splices": [{"section": "edges", "at": 0}]}, r"splices\[0\]\.section"),
        ({"splices": [{"section": "marks", "at": 0}] * 101}, r"splices: .*at most 100"),
        ({"splices": [{"section": "marks", "at": -1}]}, r"splices\[0\]\.at"),
        ({"splices": [{"section": "marks", "at": 0, "insert": [{"at": 1}]}]}, r"marks\[0\]: it needs one of"),
        ({"edges": {"grow": 1}}, r"edges\.grow: unknown field"),
    ],
)
def test_what_is_no_change_changes_nothing(video, change, reason):
    written = write_corrections(video, HINTS, revision="none")
    with pytest.raises(ConfigError, match=reason):
        change_corrections(video, change, revision=written.revision)
    assert read_corrections(video) == written


def test_edges_of_the_hints_act_under_flags_and_over_settings_files(video, tmp_path):
    write_corrections(video, {"edges": {"grow_px": -2.0, "feather_px": 3.0}}, revision="none")
    own = tmp_path / "own.yaml"
    own.write_text("edges:\n  grow_px: 5\n  temporal_smoothing: 0.5\n")
    loaded = load_settings(
        files=[own], assignments=["edges.feather_px=1"], flags={"people.hints": hints_path(video)}
    )
    edges = loaded.settings.edges
    assert (edges.grow_px, edges.feather_px, edges.temporal_smoothing) == (-2.0, 1.0, 0.5)
    assert str(loaded.origin("edges.grow_px")).endswith("my wedding: 1.hints.yaml:5")
    assert load_settings(files=[own]).settings.edges.grow_px == 5
