"""Tests of the hand-written pages: links lead somewhere, commands parse, snippets run."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml
from cyclopts import MissingArgumentError

from clips import write_clip
from shown_lines import refusal
from vitascope.config import load_settings
from vitascope.frames import StereoLayout
from vitascope.media.reading.reader import probe
from vitascope.vr.detection import detect_layout

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    [ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/**/*.md")]
)
FENCE = re.compile(r"^```([\w-]*)[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
GENERATED = {"commands.md"}
"""Pages whose code blocks are the program's own output; another test compares them with it."""
TABLES_OF_ROWS = {"guides.md"}
"""Pages whose commands other tests check row by row, each against when it works."""


class Shown(NamedTuple):
    """A command line on a page."""

    page: str
    command: str
    whole: bool
    """False for a mention in a sentence, which may leave out what the command needs."""
    later: bool
    """True if the line says that the command arrives later."""


def prose(page: Path) -> str:
    """Return a page without its code blocks."""
    return FENCE.sub("", page.read_text(encoding="utf-8"))


def links(page: Path) -> Iterator[str]:
    text = prose(page)
    text = re.sub(r"`[^`\n]*`", "", text)
    yield from re.findall(r"\[[^\]]*\]\(([^)\s]+)\)", text)
    yield from re.findall(r"(?:src|href)=\"([^\"]+)\"", text)


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub makes from a page's headings."""
    headings = re.findall(r"^#+ +(.*?)\s*$", prose(page), re.MULTILINE)
    return {
        re.sub(r"[^\w\- ]", "", heading.replace("`", "").lower()).replace(" ", "-") for heading in headings
    }


def shown_commands(page: Path) -> Iterator[Shown]:
    name = page.relative_to(ROOT).as_posix()
    if page.name in GENERATED | TABLES_OF_ROWS:
        return
    for _, body in FENCE.findall(page.read_text(encoding="utf-8")):
        for line in re.sub(r"\\\n\s*", "", body).splitlines():
            if re.match(r"(\$ )?vitascope ", line):
                # A comment begins with a single #, unlike the one in #78FF9B.
                command = re.split(r"\s#\s", line.removeprefix("$ "))[0].strip()
                yield Shown(name, command, whole=True, later="arrives with" in line)
    for line in prose(page).splitlines():
        for span in re.findall(r"`(vitascope [^`]+)`", line):
            if "…" not in span:
                yield Shown(name, span, whole=False, later="arrives with" in line)


COMMANDS = [shown for page in PAGES for shown in shown_commands(page)]
LINKS = [(page, link) for page in PAGES for link in links(page) if not re.match(r"\w+:", link)]


def snippets(page: Path) -> list[str]:
    return [
        body for language, body in FENCE.findall(page.read_text(encoding="utf-8")) if language == "python"
    ]


def test_links_lead_somewhere() -> None:
    faults = []
    for page, link in LINKS:
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists():
            faults.append(f"{page.name} links to {link}, which is not there")
        elif not target.is_relative_to(ROOT):
            faults.append(f"{page.name} links to {link}, outside the repository")
        elif anchor and target.suffix == ".md" and anchor not in anchors(target):
            faults.append(f"{page.name} links to {link}; {target.name} has no such heading")
    assert faults == []


def test_the_index_names_every_page() -> None:
    index = ROOT / "docs" / "README.md"
    linked = {(index.parent / link.partition("#")[0]).resolve() for link in links(index)}
    pages = {page for page in (ROOT / "docs").glob("*.md") if page != index}
    assert pages - linked == set()


@pytest.mark.parametrize("shown", COMMANDS, ids=lambda shown: f"{shown.page}: {shown.command}")
def test_a_command_that_is_shown_parses(shown: Shown) -> None:
    words = [word for word in shlex.split(shown.command)[1:] if word != "--debug"]
    error = refusal(*words)
    if isinstance(error, MissingArgumentError):
        assert not shown.whole
    elif error is not None:
        assert shown.later, f"{shown.page} shows {shown.command!r}: {error}"


ASSIGNMENTS = sorted(
    {
        (page.name, assignment)
        for page in PAGES
        for assignment in re.findall(r"--set ([a-z_]+\.[a-z_.]+=[^\s`]+)", page.read_text(encoding="utf-8"))
    }
)


@pytest.mark.parametrize(("page", "assignment"), ASSIGNMENTS)
def test_a_setting_that_is_shown_can_be_set(page: str, assignment: str) -> None:
    key = assignment.partition("=")[0]
    assert load_settings(assignments=[assignment]).origin(key).explicit, f"{page} shows {assignment}"


def test_options_of_segment_exist_when_a_page_of_its_own_names_them() -> None:
    known = set(re.findall(r"--[a-z-]+", (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")))
    for name in ("outputs", "stereo", "edges-and-time", "troubleshooting"):
        page = (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")
        assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", page)) - known - {"--debug"} == set()


def test_enough_commands_were_found() -> None:
    assert sum(shown.whole for shown in COMMANDS) > 15


@pytest.mark.parametrize(
    "snippet", snippets(ROOT / "docs" / "python.md"), ids=lambda text: text.splitlines()[2]
)
def test_a_snippet_runs(
    snippet: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.chdir(tmp_path)
    if "Animator" in snippet:
        face_model: Path = request.getfixturevalue("face_model")
        monkeypatch.setenv("VITASCOPE_HOME", str(face_model.parents[1]))
        shutil.copy(ROOT / "examples" / "astronaut.jpg", "portrait.jpg")
        shutil.copy(ROOT / "examples" / "talk.motion", "talk.motion")
    write_clip(Path("in.mp4"), frame_count=18, audio="aac", codec_options={"preset": "ultrafast"})
    exec(compile(snippet, "docs/python.md", "exec"), {"__name__": "snippet"})


@pytest.mark.slow
def test_snippets_of_the_page_on_python_are_typed(tmp_path: Path) -> None:
    files = []
    for number, snippet in enumerate(snippets(ROOT / "docs" / "python.md")):
        files.append(tmp_path / f"snippet_{number}.py")
        files[-1].write_text(snippet, encoding="utf-8")
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--no-error-summary", *map(str, files)],
        cwd=ROOT,
        env={**os.environ, "MYPYPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (checked.returncode, checked.stdout) == (0, "")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_snippets_of_every_page_compile(page: Path) -> None:
    for snippet in snippets(page):
        compile(snippet, str(page), "exec")


@pytest.mark.parametrize(
    ("row", "layout"),
    [
        ("side by side", StereoLayout.SIDE_BY_SIDE),
        ("top-bottom", StereoLayout.TOP_BOTTOM),
        ("mono", StereoLayout.MONO),
    ],
)
def test_the_words_of_a_file_name_mean_what_the_page_says(
    row: str, layout: StereoLayout, tmp_path: Path
) -> None:
    page = (ROOT / "docs" / "stereo.md").read_text(encoding="utf-8")
    (words,) = re.findall(rf"^\| {row} \| (`.*`) \|$", page, re.MULTILINE)
    clip = probe(write_clip(tmp_path / "clip.mp4", frame_count=2))
    for word in re.findall(r"`([^`]+)`", words):
        found = detect_layout(replace(clip, path=Path(f"wedding_{word}.mp4")))
        assert (found.layout, found.reason) == (layout, f"file name ({word})")


def test_exit_codes_are_those_of_the_errors() -> None:
    from vitascope import errors

    page = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    named = {int(code) for code in re.findall(r"^\| (\d+) \|", page, re.MULTILINE)}
    raised = {
        error.exit_code
        for error in vars(errors).values()
        if isinstance(error, type) and isinstance(getattr(error, "exit_code", None), int)
    }
    assert named == raised | {0, 130}


def test_hooks_run_what_make_check_runs() -> None:
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))
    hooks = [hook for repo in config["repos"] for hook in repo["hooks"]]
    assert all(repo["repo"] == "local" for repo in config["repos"])
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for hook in hooks:
        tool = hook["entry"].removeprefix(".venv/bin/").split()[0]
        assert f"$(BIN)/{tool}" in makefile
    assert [hook["id"] for hook in hooks] == ["ruff-check", "ruff-format", "mypy", "lint-imports"]


def test_no_docstring_begins_as_a_fragment() -> None:
    """Check docstrings: one that begins with *Of* says whose something is, and leaves out what it is."""
    folders = ("src", "tests", "benchmarks", "examples")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in files
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if line.lstrip().startswith('"""Of ')
    ]
    assert len(files) > 500
    assert found == []
