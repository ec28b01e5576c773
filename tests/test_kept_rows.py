"""Check stored benchmark rows: a script measures each again, at a commit."""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path
from statistics import fmean, geometric_mean

import pytest

ROOT = Path(__file__).parents[1]
BENCHMARKS = ROOT / "benchmarks"


@pytest.fixture
def row_stamp(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.delitem(sys.modules, "row_stamp", raising=False)
    import row_stamp

    (tmp_path / "results").mkdir()
    monkeypatch.setattr(row_stamp, "RESULTS", tmp_path / "results")
    return row_stamp


def test_rows_of_uncommitted_sources_are_not_kept(row_stamp, monkeypatch, tmp_path, capsys):
    kept, elsewhere = tmp_path / "results" / "x.json", tmp_path / "x.json"
    monkeypatch.setattr(row_stamp, "commit", lambda: "0123abc+")
    with pytest.raises(SystemExit, match="sources differ from 0123abc; commit first"):
        row_stamp.write_rows(kept, [{"fps": 5}])
    assert not kept.exists()
    assert json.loads(capsys.readouterr().out) == [{"fps": 5}]  # an hour of measuring is not lost
    row_stamp.write_rows(elsewhere, [{"fps": 5}])
    monkeypatch.setattr(row_stamp, "commit", lambda: "0123abc")
    row_stamp.write_rows(kept, [{"fps": 5}])
    assert kept.read_text() == elsewhere.read_text() == '[\n {\n  "fps": 5\n }\n]\n'


def test_every_script_writes_through_it():
    for script in BENCHMARKS.glob("*.py"):
        text = script.read_text(encoding="utf-8")
        assert script.name == "row_stamp.py" or ".write_text(json.dumps(" not in text, script.name
        # A commit without a plus would hide uncommitted changes.
        assert script.name == "row_stamp.py" or '"rev-parse"' not in text, script.name


def test_every_kept_file_has_a_script():
    paths = [*BENCHMARKS.rglob("*.py"), *Path(__file__).with_name("fuzz").glob("*.py")]
    readers = {"readme_figures", "toolkit_tables", "levers_figures"}
    texts = [path.read_text(encoding="utf-8") for path in paths if path.stem not in readers]
    scripts = {path.stem for path in paths}
    for path in (BENCHMARKS / "results").glob("*.json"):
        named = any(path.name in text for text in texts)
        assert named or {path.stem, f"{path.stem}_cuda"} & scripts, path.name


def test_no_row_is_of_uncommitted_sources():
    found = {
        path.stem
        for path in (BENCHMARKS / "results").glob("*.json")
        for row in json.loads(path.read_text(encoding="utf-8"))
        if str(row.get("commit", "")).endswith("+")
    }
    assert found == set()


def _kept(name):
    return json.loads((BENCHMARKS / "results" / f"{name}.json").read_text(encoding="utf-8"))


def test_the_page_on_vr_says_what_agreement_of_two_eyes_gives():
    """Check that eyes differ by half as much or less along outlines, and mattes are no worse."""
    groups = defaultdict(list)
    for row in _kept("vr_stereo"):
        groups[row["lens"], row["profile"]].append(row)
    less, beyond, error = {}, [], []
    for group, rows in groups.items():
        less[group] = fmean(1 - row["apart_agreed"] / row["apart_alone"] for row in rows)
        own = [
            (row["apart_alone"] - row["apart_of_truth"], row["apart_agreed"] - row["apart_of_truth"])
            for row in rows
        ]
        beyond.append(fmean(1 - agreed / alone for alone, agreed in own))
        alone, agreed = (
            fmean(row[f"mad_on_sphere_1000_{name}"] for row in rows) for name in ("alone", "agreed")
        )
        error.append(1 - agreed / alone)
    assert min(less.values()) >= 0.5
    assert min(error) > 0
    vr180, flat = (
        [f"{less[lens, profile]:.0%}" for profile in profiles]
        for lens, profiles in (("VR180", ("balanced", "fast", "quality")), ("flat", ("balanced", "quality")))
    )
    page = " ".join((ROOT / "docs" / "stereo.md").read_text(encoding="utf-8").split())
    assert (
        f"differ along outlines {vr180[0]} less (`fast`: {vr180[1]}; `quality`: {vr180[2]}), flat ones of 1024 "
        f"{flat[0]} (`quality`: {flat[1]})" in page
    )
    assert f"{min(beyond) * 100:.0f}–{max(beyond):.0%} goes" in page
    assert f"alpha error falls by {min(error) * 100:.0f}–{max(error):.0%}" in page


def _mean_figures(rows):
    """SAD, Grad, dtSSD and the first frame's SAD, by class and column."""
    groups = defaultdict(list)
    for row in rows:
        figures = *(row["whole"][name] for name in ("sad", "grad", "dtssd")), row["first_frame_sad"]
        groups[row["class"], row["column"]].append(figures)
    return {of: [fmean(column) for column in zip(*figures, strict=True)] for of, figures in groups.items()}


def _gains(means, column):
    """How many percent less SAD, Grad and dtSSD than the official graph: geometric means over all classes of people."""
    kinds = sorted({kind for kind, _ in means} - {"empty"})
    ratios = [
        geometric_mean([means[kind, column][at] / means[kind, "official"][at] for kind in kinds])
        for at in range(3)
    ]
    return [f"{100 * (1 - ratio):.0f}" for ratio in ratios]


def test_the_page_on_networks_says_how_good_mattes_are():
    """Check that the table has the rows' means, and the page the profiles' gains over the official graph."""
    means = _mean_figures(_kept("matte_quality"))
    columns = "official", "fast", "balanced", "quality"
    lines = [
        f"| {kind} | "
        + " | ".join(" ".join(f"{one:.2f}" for one in means[kind, column]) for column in columns)
        + " |"
        for kind in dict.fromkeys(kind for kind, _ in means)
    ]
    page = (ROOT / "docs" / "networks.md").read_text(encoding="utf-8")
    assert page.split("<!-- mattes:begin -->")[1].split("<!-- mattes:end -->")[0].split("\n")[3:-1] == lines
    (sad, grad, flicker), of_quality = (_gains(means, column) for column in ("balanced", "quality"))
    assert (
        f"`balanced` has {sad} % less SAD, {grad} % less Grad and {flicker} % less dtSSD, "
        f"`quality` {of_quality[0]} %, {of_quality[1]} % and {of_quality[2]} %"
    ) in " ".join(page.split())


def test_the_page_on_networks_says_how_good_mattes_of_clips_are_that_nothing_was_chosen_on():
    rows, chosen_on = _kept("matte_unseen"), _kept("matte_quality")
    clips = {row["clip"] for row in rows}
    assert not clips & {row["clip"] for row in chosen_on}
    assert {row["class"] for row in rows} == {row["class"] for row in chosen_on}
    means = _mean_figures(rows)
    balanced, quality = (_gains(means, column) for column in ("balanced", "quality"))
    page = " ".join((ROOT / "docs" / "networks.md").read_text(encoding="utf-8").split())
    assert (
        f"On {len(clips)} clips that nothing was chosen on: {', '.join(balanced[:2])} and {balanced[2]} %, "
        f"{', '.join(quality[:2])} and {quality[2]} % ([rows]"
    ) in page


def test_people_near_the_poles_are_matted_as_those_at_the_horizon():
    """Check every elevation: nowhere noticeably worse than if the network sees the eye unchanged."""
    found = {
        (row["way"], row["clip"], row["distance_m"], row["azimuth_degrees"], row["elevation_degrees"]): row[
            "iou"
        ]
        for row in _kept("vr_elevation")
    }
    product = {tuple(place): iou for (way, *place), iou in found.items() if way == "product"}
    assert {elevation for *_, elevation in product} >= {-75, -60, -45, -30, 0, 30, 45, 60, 75}
    assert min(product.values()) >= 0.975
    assert min(iou - found[("raw", *place)] for place, iou in product.items()) >= -0.005


def test_the_page_on_people_says_who_is_known_again():
    rows = {(row["claim"], row["clip"]): row for row in _kept("known_again")}
    page = " ".join((ROOT / "docs" / "people.md").read_text(encoding="utf-8").split())
    for clip, missed in (
        ("the same photograph in each shot", ", all in one video where two cuts were missed"),
        ("the same photograph in each shot, by colours alone", ""),
        ("another photograph in each shot", ""),
    ):
        row = rows["people who are never seen together", clip]
        told = f"{row['merged']} of {row['pairs_of_two']}{missed} | {row['split']} of {row['pairs_of_one']} |"
        assert told in page
        assert row["films"] == 4 and row["people"] == 11
    small, large = (rows["distance of faces", f"{height} pixels high"] for height in (28, 56))
    one, two = "of_one_beyond_0.6_percent", "of_two_within_0.6_percent"
    assert f"taken for two people's in {small[one]:.1f} % of {small['pairs_of_one']} pairs" in page
    assert f"for one's in {small[two]:.1f} % of {small['pairs_of_two']:,} ({small['people']} people)" in page
    assert f"56 pixels high, {large[one]:.1f} and {large[two]:.1f} % ({large['people']} people" in page
