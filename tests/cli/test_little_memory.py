"""Check limits of address space (``ulimit -v``): one line, an exit code, no partial file, no segmentation fault."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from clips import write_clip

if sys.platform == "win32":
    pytest.skip("resource limits are of POSIX", allow_module_level=True)

EXAMPLES = Path(__file__).parents[2] / "examples"
PROGRAM = """
import resource, sys
limit = int(sys.argv.pop(1)) << 20
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
from vitascope.cli import main
main()
"""


def run(limit_mib, folder, *words):
    command = [sys.executable, "-c", PROGRAM, str(limit_mib), *map(str, words)]
    return subprocess.run(
        command,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        stdin=subprocess.DEVNULL,
    )


@pytest.fixture(scope="module")
def films(tmp_path_factory):
    folder = tmp_path_factory.mktemp("films")
    write_clip(folder / "small.mp4", width=160, height=96, frame_count=24)
    write_clip(folder / "large.mp4", width=1920, height=1080, frame_count=16)
    return folder


@pytest.mark.parametrize("limit_mib", [300, 450, 550, 600, 1000, 1100, 1200, 2000])
@pytest.mark.parametrize("job", ["small", "large", "portrait"])
def test_a_job_ends_well_or_says_in_a_line_what_it_lacks(tmp_path, films, limit_mib, job):
    words = {
        "portrait": ["animate", EXAMPLES / "astronaut.jpg", "-d", EXAMPLES / "talk.motion", "--end", "0.5"],
    }.get(job, ["segment", films / f"{job}.mp4", "--profile", "fast", "--device", "cpu"])
    ended = run(limit_mib, tmp_path, *words, "-o", tmp_path / "out.mp4")
    left = [path.name for path in tmp_path.iterdir()]
    if ended.returncode == 0:
        assert left == ["out.mp4"]
        return
    assert ended.returncode in (1, 3, 4, 5), ended.stderr  # not a signal
    assert left == []
    told = [line for line in ended.stderr.splitlines() if not line.startswith("x264 ")]  # x264's own
    assert len(told) == 1, ended.stderr
    assert told[0].startswith("vitascope: ")
    if limit_mib <= 600:
        assert f"may use {limit_mib} MiB of memory (ulimit -v)" in told[0]


def test_help_is_given_all_the_same(tmp_path):
    ended = run(300, tmp_path, "segment", "--help")
    assert (ended.returncode, ended.stderr) == (0, "")
