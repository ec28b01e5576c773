"""The beginning of a report: how fast this machine is for each size, how long a video takes, and what limits it.

What limits a measured run, when what the encoder does after the last picture is counted, too.

The verdict on a cell is about its pipeline, which ends when the encoder has taken the last picture. Encoders hold
pictures back (x264 looks 40 ahead, several side by side hold a part of the film each), so in a film of some seconds one
that is too slow for the rest shows only there: afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from vitascope.bench.results import BenchResults, Cell
from vitascope.gpu.profiling.findings import Finding

__all__ = ["FASTER_ENCODER", "encoder_end", "fastest_cells", "in_short", "limit_of"]


FASTER_ENCODER = "output.speed=fast, or the GPU's encoder where it has one (gpu.encoder=nvenc)"
_FEW_FRAMES = 300
"""Fewer may leave some of several encoders without work: each takes chunks of 15 to 60."""
_WORTH_A_WORD = 0.1
"""Share of the time from which on the end is counted."""


def encoder_end(cell: Cell) -> tuple[float, float] | None:
    """Milliseconds a frame: until the last picture was taken, and what the encoder still did then.

    Args:
        cell: Any; None comes back where it was not measured, or nothing was encoded.
    """
    times, finish = cell.row("frame_time"), cell.row("stage/finish")
    if times is None or finish is None:
        return None
    return float(np.mean(times.samples)), finish.p50


def limit_of(cell: Cell) -> Finding | None:
    """The verdict on the whole run; None where there is none.

    After the last picture an encoder cannot have more left than the whole film. If it takes longer for that than
    everything took before, it is slower than all the rest, and limits the run; of several encoders, where the film is
    long enough for all of them. If it takes less long, the pipeline's verdict stands, with a gain that leaves the
    encoder's end as long as it is.

    Args:
        cell: Measured or not.
    """
    verdict, end = cell.verdict, encoder_end(cell)
    if verdict is None or end is None or verdict.urgent or verdict.kind == "encode_bound":
        return verdict
    before, after = end
    share = after / (before + after)
    if share < _WORTH_A_WORD:
        return verdict
    told = f"after the last picture the encoder went on for {after:.1f} ms a frame, {share:.0%} of the time"
    if after <= before:
        gain = (before + after) / (after + before / verdict.expected_gain)
        return replace(verdict, evidence=(*verdict.evidence, told), expected_gain=gain)
    is_short = cell.frames < _FEW_FRAMES
    if is_short:
        told += f"; a film of {cell.frames} frames may be too short to give all encoders work"
    return Finding(
        kind="encode_bound",
        stage="encode",
        title="the encoder does not keep up: most of the time passes after the last picture has reached it",
        evidence=(told, f"until then {verdict.title}"),
        advice=FASTER_ENCODER,
        expected_gain=(before + after) / (before + after / 2),
        confidence="medium" if is_short else "high",
    )


_FILM_FPS = 30
"""Frame rate of the video whose time is told."""


def in_short(run: BenchResults) -> list[str]:
    """A sentence for each size that was measured; without one, that nothing was.

    Args:
        run: Of one machine.
    """
    sentences = [_sentence(cell) for cell in fastest_cells(run.measured)]
    if not run.finished:
        sentences.append("the run was broken off: what it had measured by then is here, the rest is missing")
    return sentences or ["nothing could be measured"]


def fastest_cells(cells: Sequence[Cell]) -> list[Cell]:
    """The fastest of each size, in the order of their sizes' first cells.

    Args:
        cells: Measured ones.
    """
    found: dict[tuple[str, str], Cell] = {}
    for cell in cells:
        key = (cell.key.resolution, cell.key.stereo)
        if key not in found or _rate(cell) > _rate(found[key]):
            found[key] = cell
    return list(found.values())


def _sentence(cell: Cell) -> str:
    rate, limit = _rate(cell), limit_of(cell)
    told = (
        f"{cell.key.label()}: {rate:.0f} frames a second"
        if rate >= 10
        else f"{cell.key.label()}: {rate:.1f} fps"
    )
    if rate > 0:
        told += (
            f", so an hour of film with {_FILM_FPS} frames a second takes {_duration(_FILM_FPS / rate * 60)}"
        )
    return told if limit is None else f"{told}; {limit.title}"


def _duration(minutes: float) -> str:
    if minutes >= 90:
        return f"{minutes / 60:.1f} hours"
    return f"{minutes:.0f} minutes" if minutes >= 1.5 else f"{minutes * 60:.0f} seconds"


def _rate(cell: Cell) -> float:
    return cell.median("throughput") or 0.0
