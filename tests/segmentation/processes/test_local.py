"""Tests of processes started by a script, however the script is written."""

from __future__ import annotations

import subprocess
import sys

from clips import write_clip

SCRIPT = """
import sys
import vitascope
print("imported")
report = vitascope.segment(
    sys.argv[1], sys.argv[2], profile="fast", output="mask",
    settings={
        "processing.use_multiprocessing": True, "processing.chunk_size": 20, "gpu.device": "cpu",
        "debug.profile_performance": True,
    },
)
print(report.device)
print(*report.notes, sep="\\n")
"""


def test_a_script_without_a_guard_and_from_standard_input(tmp_path):
    clip = write_clip(tmp_path / "in.mp4", frame_count=48, codec_options={"g": "8"})
    run = subprocess.run(
        [sys.executable, "-", str(clip), str(tmp_path / "o.mp4")],
        input=SCRIPT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    first, device, *notes = run.stdout.splitlines()
    assert first == "imported"
    assert device.endswith("2 of 2 processes at work")
    assert {note.partition(" ")[0] for note in notes} == {"nobody", "debug.profile_performance"}
    assert run.stderr == ""
