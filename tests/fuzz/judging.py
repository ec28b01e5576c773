"""Bad ends: a traceback, a hang, an unnamed error, a leftover, a wrong exit code, frames lost without a word."""

from __future__ import annotations

import json
from pathlib import Path

import av

from fuzz.forking import Outcome
from fuzz.victims import FRAMES, GOP_FRAMES, frame_count

__all__ = ["what_is_bad"]

_WELL_KNOWN = {0, 2, 3, 4, 5}
"""Exit codes of errors that are raised on purpose; 1 is for what nobody foresaw."""
_MOST_MB = 1500.0
_LOST = "frames lost without a word"
_WORDS_ON_LOSS = ("damaged", "missing", "truncated", "promises", "breaks off", "ends at", "could not be read")


def what_is_bad(
    outcome: Outcome, *, hurt: Path, whole: Path, out: Path | None, whole_frames: int | None
) -> str | None:
    """What is wrong with how a try ended, in a few words; None where nothing is.

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
    # How many are missing can only be told where the file says how many there were; that some are must be said.
    if whole_frames is None or made >= whole_frames or report["corrupt_count"]:
        return None
    words = outcome.stderr + json.dumps(report["notes"])
    if any(word in words for word in _WORDS_ON_LOSS):
        return None
    return f"{_LOST} [{made} of {whole_frames}]"


def _cannot_tell(hurt: Path, whole: Path, out: Path | None) -> bool:
    """True for what no reader of the file alone can know."""
    if whole.suffix == ".ts" and out is not None:
        heads, of_whole = _packet_heads(hurt), _packet_heads(whole)
        if heads == of_whole:
            return _begins_late(hurt, frame_count(out))
        before, after = whole.read_bytes(), hurt.read_bytes()
        is_cut = before.startswith(after) and len(after) % 188 == 0
        return is_cut and _is_between_pictures(of_whole[len(heads) :])
    return _lacks_a_run_of_blocks(hurt, whole)


def _packet_heads(stream: Path) -> list[bytes]:
    data = stream.read_bytes()
    return [data[at : at + 4] for at in range(0, len(data), 188)]


def _is_between_pictures(rest: list[bytes]) -> bool:
    """True where a stream that is cut before these packets is a shorter recording; FFmpeg calls the video 256."""
    following = next(head for head in rest if int.from_bytes(head[1:3], "big") & 0x1FFF == 256)
    return bool(following[1] & 0x40)


def _begins_late(hurt: Path, made: int) -> bool:
    """True for a transport stream that lacks nothing but what stands before its first keyframe: recordings may."""
    with av.open(str(hurt)) as container:
        keyframes = [packet.is_keyframe for packet in container.demux(video=0) if packet.size]
    late = keyframes.index(True) if True in keyframes else 0
    return late > 0 and made == len(keyframes) - late and (FRAMES - made) % GOP_FRAMES == 0


def _lacks_a_run_of_blocks(hurt: Path, whole: Path) -> bool:
    """True for a GIF that lacks one run of bytes, and whose blocks fit all the same.

    A GIF counts neither its images nor their bytes: where such a run is missing, nothing in the file tells.
    """
    if whole.suffix != ".gif":
        return False
    before, after = whole.read_bytes(), hurt.read_bytes()
    head = _alike(before, after)
    tail = _alike(before[::-1], after[::-1])
    return len(after) < len(before) and head + tail >= len(after) and _blocks_fit(after)


def _alike(one: bytes, other: bytes) -> int:
    return next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), len(other))


def _blocks_fit(gif: bytes) -> bool:
    """GIF89a: extensions and images up to the trailer, and sub-blocks of 255 bytes in an image but for its last."""
    at = 13 + (3 << (gif[10] & 7) + 1)  # the palette that the whole file has
    while gif[at] != 0x3B:
        inside = at + {0x21: 2, 0x2C: 11}[gif[at]]
        lengths = []
        while gif[inside]:
            lengths.append(gif[inside])
            inside += 1 + gif[inside]
        if gif[at] == 0x2C and set(lengths[:-1]) - {255}:
            return False
        at = inside + 1
    return at + 1 == len(gif)
