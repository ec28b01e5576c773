"""Tests of the structure in ``docs/architecture.md``."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).parents[1]
SOURCES = ROOT / "src" / "vitascope"
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
MOST_FILES_IN_A_FOLDER = 20
LISTS_OF_LIKE_THINGS = {"cli", "gpu/kernels"}
OPENED_ELSEWHERE = {
    "media/reading/container.py",
    "segmentation/film_job.py",
    "segmentation/gpu_job.py",
    "models/rvm/rvm.py",
    "models/rvm/fused_network.py",
    "gpu/engines/onnx_runtime.py",
}
"""Passed in by whoever chose it: decoder, job, network, engine.

Unlike all others, a file before it need not import it.
"""


@pytest.fixture(scope="module")
def graph():
    return grimp.build_graph("vitascope", exclude_type_checking_imports=True, cache_dir=None)


def way(name: str) -> list[str]:
    (listed,) = re.findall(rf"<!-- way-{name}:begin -->\n(.*?)<!-- way-{name}:end -->", PAGE, re.DOTALL)
    return re.findall(r"^\d+\. `([\w/]+\.py)`: ", listed, re.MULTILINE)


@cache
def imported_by(path: str) -> set[str]:
    """Return the modules that a file imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse((SOURCES / path).read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


@pytest.mark.parametrize("name", ["cpu", "gpu"])
def test_the_way_of_a_frame_is_short_and_each_file_knows_its_neighbours(name, graph):
    files = way(name)
    assert len(files) == len(set(files)) <= 18
    modules = ["vitascope." + path.removesuffix(".py").replace("/", ".") for path in files]
    for place, module in enumerate(modules[1:], start=1):
        if files[place] in OPENED_ELSEWHERE:
            assert graph.chain_exists("vitascope.segmentation.segmenter", module)
        else:
            assert any(module in imported_by(path) for path in files[:place]), (
                f"nobody before {files[place]} knows it"
            )


def test_no_import_goes_in_a_circle(graph):
    """Check by removing modules that nobody imports, again and again: the rest is a circle, or imported by one."""
    importers = {module: graph.find_modules_that_directly_import(module) for module in graph.modules}
    while free := [module for module, users in importers.items() if not users]:
        for module in free:
            del importers[module]
        for users in importers.values():
            users.difference_update(free)
    left = {module: sorted(users) for module, users in importers.items()}
    in_circles = [module for module in left if any(graph.chain_exists(module, user) for user in left[module])]
    assert in_circles == []


def test_no_folder_is_too_full():
    counts = {}
    for path in SOURCES.rglob("*.py"):
        if path.name != "__init__.py":
            counts.setdefault(path.parent.relative_to(SOURCES).as_posix(), []).append(path.name)
    full = {
        folder: len(files)
        for folder, files in counts.items()
        if len(files) > MOST_FILES_IN_A_FOLDER and folder not in LISTS_OF_LIKE_THINGS
    }
    assert full == {}


def test_every_folder_is_on_the_page():
    table = PAGE[PAGE.index("## The folders") : PAGE.index("## The import rule")]
    rooms = {path.parent.name for path in SOURCES.glob("*/__init__.py")}
    assert {room for room in rooms if f"`{room}/`" not in table} == set()


def names_in(module: str) -> set[str]:
    """Return a module's names, its own and imported ones; for a lazy package, those in its text."""
    path = SOURCES.parent / module.replace(".", "/")
    if path.is_dir():
        below = {one.stem for one in path.iterdir()}
        return below | set(re.findall(r"\w+", (path / "__init__.py").read_text(encoding="utf-8")))
    tree = ast.parse(path.with_suffix(".py").read_text(encoding="utf-8"))
    names = set()
    for node in tree.body:
        for part in (
            ast.walk(node) if isinstance(node, ast.Assign | ast.AnnAssign | ast.If | ast.Try) else [node]
        ):
            if isinstance(part, ast.Import | ast.ImportFrom):
                names |= {alias.asname or alias.name for alias in part.names}
            elif isinstance(part, ast.FunctionDef | ast.ClassDef):
                names.add(part.name)
            elif isinstance(part, ast.Name):
                names.add(part.id)
    return names


def test_benchmarks_import_what_is_there():
    """Check the names that benchmarks import: most need a GPU, and they seldom run."""
    wanted = {
        (node.module, alias.name, path.name)
        for path in sorted((ROOT / "benchmarks").rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("vitascope")
        for alias in node.names
    }
    known = {module: names_in(module) for module in {module for module, _, _ in wanted}}
    assert len(known) > 100
    assert [one for one in sorted(wanted) if one[1] not in known[one[0]]] == []
