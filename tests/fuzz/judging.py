"""Judges bad ends: a traceback, a hang, an unnamed error, a leftover, a wrong exit code, frames lost silently."""

from __future__ import annotations

import json
from pathlib import Path

import av

from fuzz.forking import Outcome
from fuzz.victims import FRAMES, GOP_FRAMES, frame_count

__all__ = ["what_is_bad"]

_WELL_KNOWN = {0, 2, 3, 4, 5}
"""Exit codes of expected errors; 1 means an unexpected one."""
_MOST_MB = 1500.0
_LOST = "frames lost without a word"
_WORDS_ON_LOSS = (
    "damaged",
    "missing",
    "truncated",
    "promises",
    "breaks off",
    "ends at",
    "could not be read",
    "are left out",
)


def what_is_bad(
    outcome: Outcome, *, hurt: Path, whole: Path, out: Path | None, whole_frames: int | None
) -> str | None:
    """Describe what is wrong with the end of a try, in a few words; None if nothing is.

    Args:
        outcome: How it ended.
        hurt: The damaged file, which an error must name.
        whole: The file before it was damaged.
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
        return _bad_refusal(said, hurt.name, out)
    bad = None if out is None else _bad_output(outcome, out, whole_frames)
    if bad is not None and bad.startswith(_LOST) and _cannot_tell(hurt, whole, out):
        return None
    return bad


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
    # The number of missing frames is only known if the file stores its total, but a loss must always be
    # reported.
    if whole_frames is None or made >= whole_frames or report["corrupt_count"]:
        return None
    words = outcome.stderr + json.dumps(report["notes"])
    if any(word in words for word in _WORDS_ON_LOSS):
        return None
    return f"{_LOST} [{made} of {whole_frames}]"


def _cannot_tell(hurt: Path, whole: Path, out: Path | None) -> bool:
    """Return True if no reader of the file alone can know the loss."""
    if whole.suffix == ".ts" and out is not None:
        before, after = whole.read_bytes(), hurt.read_bytes()
        heads, of_whole = _packet_heads(after), _packet_heads(before)
        later = _packet_heads(after[_first_packet_at(hurt) :])
        if later == of_whole[-len(later) :] and _begins_late(hurt, frame_count(out)):
            return True
        is_cut = before.startswith(after) and len(after) % 188 == 0
        return is_cut and frame_count(out) == _begun_pictures(heads)
    return _lacks_a_run_of_blocks(hurt, whole)


def _first_packet_at(hurt: Path) -> int:
    """Return where the video begins; a recording need not have what is before it."""
    with av.open(str(hurt)) as container:
        return next(packet.pos for packet in container.demux(video=0) if packet.size)


def _packet_heads(data: bytes) -> list[bytes]:
    return [data[at : at + 4] for at in range(0, len(data), 188)]


def _begun_pictures(heads: list[bytes]) -> int:
    """Count the pictures that begin in a truncated stream: a shorter recording. FFmpeg calls the video 256."""
    return sum(int.from_bytes(head[1:3], "big") & 0x5FFF == 0x4000 | 256 for head in heads)


def _begins_late(hurt: Path, made: int) -> bool:
    """Return True if a transport stream only lacks what is before its first keyframe, as recordings may."""
    with av.open(str(hurt)) as container:
        keyframes = [packet.is_keyframe for packet in container.demux(video=0) if packet.size]
    late = keyframes.index(True) if True in keyframes else 0
    return late > 0 and made == len(keyframes) - late and (FRAMES - made) % GOP_FRAMES == 0


def _lacks_a_run_of_blocks(hurt: Path, whole: Path) -> bool:
    """Return True for a GIF that lacks one run of blocks, and is complete except for the content of others.

    A GIF counts neither its images nor their bytes, so nothing in the file shows that such a run is missing.
    """
    if whole.suffix != ".gif":
        return False
    before, after = _blocks(whole.read_bytes()), _blocks(hurt.read_bytes())
    if before is None or after is None:
        return False
    # If bytes are missing from inside one block to inside another, the rest of both forms a block.
    head = _alike(before, after)
    tail = _alike(before[::-1], after[::-1])
    return len(after) < len(before) and head + tail >= len(after) - 1


def _alike(one: list[tuple[int, ...]], other: list[tuple[int, ...]]) -> int:
    return next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), len(other))


def _blocks(gif: bytes) -> list[tuple[int, ...]] | None:
    """Kind and sub-blocks' lengths of extensions and images up to the trailer; None where they do not fit (GIF89a)."""
    blocks: list[tuple[int, ...]] = []
    at = 13 + (3 << (gif[10] & 7) + 1)  # the global palette
    gif += bytes(16)
    while gif[at] in (0x21, 0x2C):
        inside = at + (2 if gif[at] == 0x21 else 11)
        lengths = []
        while gif[inside]:
            lengths.append(gif[inside])
            inside += 1 + gif[inside]
        if gif[at] == 0x2C and set(lengths[:-1]) - {255}:
            return None
        blocks.append((gif[at], *lengths))
        at = inside + 1
    return blocks if gif[at:] == b";" + bytes(16) else None
