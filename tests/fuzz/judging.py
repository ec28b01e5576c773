"""Bad ends: a traceback, a hang, an unnamed error, a leftover, a wrong exit code, frames lost without a word."""

from __future__ import annotations

import json
from pathlib import Path

from fuzz.forking import Outcome
from fuzz.victims import frame_count

__all__ = ["what_is_bad"]

_WELL_KNOWN = {0, 2, 3, 4, 5}
"""Exit codes of errors that are raised on purpose; 1 is for what nobody foresaw."""
_MOST_MB = 1500.0
_WORDS_ON_LOSS = ("damaged", "missing", "truncated", "promises", "breaks off", "ends at", "could not be read")


def what_is_bad(outcome: Outcome, *, victim: str, out: Path | None, whole_frames: int | None) -> str | None:
    """What is wrong with how a try ended, in a few words; None where nothing is.

    Args:
        outcome: How it ended.
        victim: Name of the damaged file, which an error must name.
        out: The output that was asked for; None where none was.
        whole_frames: Frames of the undamaged video; None for what is no video.
    """
    said = outcome.stderr
    if outcome.timed_out:
        return "hang"
    if outcome.exit_code < 0:
        return f"ended by signal {-outcome.exit_code}"
    if "Traceback (most recent call last)" in said or "Traceback" in outcome.stdout:
        return "traceback"
    if outcome.exit_code not in _WELL_KNOWN:
        return f"exit code {outcome.exit_code}"
    if outcome.peak_mb > _MOST_MB:
        return f"{outcome.peak_mb:.0f} MB of memory"
    if "\x1b" in said.replace("\x1b[", ""):
        return "a command to the terminal"
    if outcome.exit_code:
        return _bad_refusal(said, victim, out)
    return None if out is None else _bad_output(outcome, out, whole_frames)


def _bad_refusal(said: str, victim: str, out: Path | None) -> str | None:
    complaints = [line for line in said.splitlines() if line.startswith("vitascope: ")]
    if len(complaints) != 1:
        return f"{len(complaints)} lines of complaint"
    if victim not in complaints[0]:
        return "an error that does not name the file"
    left = [] if out is None else [path.name for path in out.parent.iterdir()]
    return f"leftover {left}" if left else None


def _bad_output(outcome: Outcome, out: Path, whole_frames: int | None) -> str | None:
    if not out.exists():
        return "exit code 0 without an output"
    left = [path.name for path in out.parent.iterdir() if path != out]
    if left:
        return f"leftover {left}"
    try:
        made = frame_count(out)
    except Exception as error:
        return f"an output that cannot be read: {error}"
    (report,) = json.loads(outcome.stdout)
    if made != report["frame_count"]:
        return f"{made} frames written, {report['frame_count']} reported"
    # How many are missing can only be told where the file says how many there were; that some are must be said.
    if whole_frames is None or made >= whole_frames or report["corrupt_count"]:
        return None
    words = outcome.stderr + json.dumps(report["notes"])
    if any(word in words for word in _WORDS_ON_LOSS):
        return None
    return f"frames lost without a word [{made} of {whole_frames}]"
