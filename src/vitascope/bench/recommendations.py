"""Finds the bottleneck of a measured run, the encoder's end included, and recommends changes.

The verdict on a cell is about its pipeline, which ends when the encoder has taken the last picture. Encoders hold
pictures back (x264 looks 40 ahead, and of several side by side each holds a part of the video), so in a video of a
few seconds an encoder that is too slow for the rest shows only afterwards.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from operator import attrgetter
from typing import Any

import numpy as np

from vitascope.bench.comparison import gain_of
from vitascope.bench.results import BenchResults, Cell
from vitascope.gpu.profiling.bottleneck import Finding

FASTER_ENCODER = "output.speed=fast"
_FEW_FRAMES = 300
"""With fewer frames some of several encoders may get no work: each takes chunks of 15 to 60."""
_COUNTED_END = 0.1
"""The end counts from this share of the time on."""


def encoder_end(cell: Cell) -> tuple[float, float] | None:
    """Milliseconds per frame until the last picture was taken, and in the encoder after that.

    Args:
        cell: Any cell; returns None if this was not measured, or nothing was encoded.
    """
    times, finish = cell.row("frame_time"), cell.row("stage/finish")
    if times is None or finish is None:
        return None
    return float(np.mean(times.samples)), finish.p50


def limit_of(cell: Cell) -> Finding | None:
    """The verdict on the whole run; None if there is none.

    After the last picture, an encoder has at most the whole video left to encode. If that takes longer than
    everything before, it is slower than all the rest and limits the run; with several encoders, only if the video is
    long enough to occupy all of them. If it takes less time, the pipeline's verdict stands, with a gain that leaves
    the encoder's end as long as it is.

    Args:
        cell: Measured or not.
    """
    verdict, end = cell.verdict, encoder_end(cell)
    if verdict is None or end is None or verdict.urgent or verdict.kind == "encode_bound":
        return verdict
    before, after = end
    share = after / (before + after)
    if share < _COUNTED_END:
        return verdict
    told = f"after the last picture the encoder went on for {after:.1f} ms a frame, {share:.0%} of the time"
    if after <= before:
        gain = (before + after) / (after + before / verdict.expected_gain)
        return replace(verdict, evidence=(*verdict.evidence, told), expected_gain=gain)
    is_short = cell.frames < _FEW_FRAMES
    if is_short:
        told += f"; a video of {cell.frames} frames may be too short to give all encoders work"
    return Finding(
        kind="encode_bound",
        stage="encode",
        title="the encoder does not keep up: most of the time passes after the last picture has reached it",
        evidence=(told, f"until then {verdict.title}"),
        advice=FASTER_ENCODER,
        expected_gain=(before + after) / (before + after / 2),
        confidence="medium" if is_short else "high",
    )


def fastest_cells(cells: Sequence[Cell]) -> list[Cell]:
    """The fastest cell of each size, in the order of the sizes' first cells.

    Args:
        cells: Measured cells.
    """
    found: dict[tuple[str, str], Cell] = {}
    for cell in cells:
        key = (cell.key.resolution, cell.key.stereo)
        if key not in found or cell.frames_per_second > found[key].frames_per_second:
            found[key] = cell
    return list(found.values())


_BY_SPEED = attrgetter("frames_per_second")
_WORTHWHILE_GAIN = 1.03
_UNSTEADY = 1.5
"""Ratio of a frame's P99 to its median from which a run is unsteady."""
_LONG_END = 0.25
"""The encoder's end gets its own recommendation from this share of the time on."""
_THREADS_OF = {
    "decode": "pipeline.stages.decode.threads",
    "preprocess": "model.num_workers",
    "postprocess": "pipeline.stages.postprocess.threads",
}
_CHEAPER_NETWORK = "a smaller model.input_size or --model selfie, for a coarser matte"
_MORE_SESSIONS = "gpu.decoder_sessions=4: several decoders of the GPU share the video; one reads it now"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """One recommended change."""

    change: str
    """The change as a user would make it: a setting, or a sentence."""
    why: str
    """The measurement behind it."""
    gain: float
    """Gain in speed, as a factor; 1.0 if the change makes a run safe or steady, not fast."""
    certainty: str
    """``measured``, or the certainty of the bottleneck's model: ``high``, ``medium``, ``low``."""

    def lines(self) -> str:
        """The change in words, followed by its benefit and reason."""
        gain = f"{self.gain:.2f}x as fast" if self.gain > 1 else "no faster, but safer"
        sure = "measured" if self.certainty == "measured" else f"certainty: {self.certainty}"
        return f"{self.change}\nexpected: {gain} ({sure})\nwhy: {self.why}"


def recommend(results: BenchResults) -> list[Recommendation]:
    """Recommend changes for this machine, the most useful first.

    Args:
        results: Results of one machine.
    """
    found: list[Recommendation] = []
    for _, grouped in groupby(results.cells, key=lambda cell: (cell.key.resolution, cell.key.stereo)):
        cells = list(grouped)
        measured = [cell for cell in cells if cell.status == "measured" and _rounds(cell) >= 2]
        found += [*_batch(measured), *_precision(measured), *_memory(cells)]
        found += _steadiness(measured)
    found += _bottlenecks(results.measured)
    found += _encoders_end(results.measured)
    faster = _faster_encoder(results.settings)
    best: dict[str, Recommendation] = {}  # repeated advice is listed once, where it gains most
    for one in sorted(found, key=lambda one: -one.gain):
        told = replace(one, change=faster) if one.change == FASTER_ENCODER else one
        best.setdefault(told.change, told)
    return list(best.values())


def _rounds(cell: Cell) -> int:
    row = cell.row("throughput")
    return 0 if row is None else row.n


def _batch(cells: Sequence[Cell]) -> list[Recommendation]:
    """Compare the best batch with the smallest, in the fastest precision."""
    if not cells:
        return []
    best = max(cells, key=_BY_SPEED)
    alike = [cell for cell in cells if cell.key.precision == best.key.precision]
    least = min(alike, key=lambda cell: cell.key.batch)
    gain, low, high = gain_of(least, best)
    if best is least or gain < _WORTHWHILE_GAIN or low <= 1:
        return []
    why = (
        f"{best.key.resolution}, {best.key.precision}: {best.frames_per_second:.1f} fps instead of "
        f"{least.frames_per_second:.1f} with batch {least.key.batch} (95% sure of {low:.2f}x to {high:.2f}x)"
    )
    return [
        Recommendation(change=f"model.batch_size={best.key.batch}", why=why, gain=gain, certainty="measured")
    ]


def _precision(cells: Sequence[Cell]) -> list[Recommendation]:
    """Compare half with single precision, in the batch where it helps most."""
    pairs = [
        (one, other)
        for one in cells
        for other in cells
        if one.key.batch == other.key.batch and (one.key.precision, other.key.precision) == ("fp32", "fp16")
    ]
    if not pairs:
        return []
    one, other = max(pairs, key=lambda pair: pair[1].frames_per_second)
    gain, low, high = gain_of(one, other)
    if gain < _WORTHWHILE_GAIN or low <= 1:
        return []
    error = "" if other.alpha_error is None else f"; alpha differs by {other.alpha_error:.4f} on average"
    why = (
        f"{one.key.resolution}, batch {one.key.batch}: {other.frames_per_second:.1f} fps instead of "
        f"{one.frames_per_second:.1f} in fp32 (95% sure of {low:.2f}x to {high:.2f}x){error}"
    )
    return [Recommendation(change="gpu.precision=fp16", why=why, gain=gain, certainty="measured")]


def _memory(cells: Sequence[Cell]) -> list[Recommendation]:
    """Find batches that did not run where a smaller one did."""
    failed = [cell for cell in cells if cell.status == "failed"]
    found = []
    for cell in failed:
        smaller = [
            other.key.batch
            for other in cells
            if other.status == "measured"
            and other.key.precision == cell.key.precision
            and other.key.batch < cell.key.batch
        ]
        if smaller and "memory" in (cell.reason or ""):
            change = (
                f"model.batch_size={max(smaller)} or less at {cell.key.resolution} in {cell.key.precision}"
            )
            why = f"{cell.key.batch} failed: {cell.reason}"
            found.append(Recommendation(change=change, why=why, gain=1.0, certainty="measured"))
    return found[:1]


def _steadiness(cells: Sequence[Cell]) -> list[Recommendation]:
    best = max(cells, key=_BY_SPEED, default=None)
    times = None if best is None else best.row("frame_time")
    if best is None or times is None or times.n < 50 or times.p99 < _UNSTEADY * times.p50:
        return []
    why = f"{best.key.label()}: {times.p50:.2f} ms a frame, but {times.p99:.2f} ms for one in a hundred"
    if best.load is not None and best.load.gc_count:
        why += f"; the garbage collector stopped Python for {best.load.gc_seconds_max * 1e3:.0f} ms at most"
    change = (
        "look for other programs on this machine, and for irregular stages in a trace of vitascope profile"
    )
    return [Recommendation(change=change, why=why, gain=1.0, certainty="medium")]


def _bottlenecks(cells: Sequence[Cell]) -> list[Recommendation]:
    """Find what limits the fastest cell of each size; among sizes with the same limit, keep the largest gain."""
    found: dict[tuple[str, str | None], Recommendation] = {}
    for cell in fastest_cells(cells):
        limit = limit_of(cell)
        if limit is None:
            continue
        one = Recommendation(
            change=_in_settings(limit, cell),
            why=f"{cell.key.label()}: {limit.title}; {'; '.join(limit.evidence)}",
            gain=max(limit.expected_gain, 1.0),
            certainty=limit.confidence,
        )
        known = found.get((limit.kind, limit.stage))
        if known is None or known.gain < one.gain:
            found[limit.kind, limit.stage] = one
    return list(found.values())


def _in_settings(limit: Finding, cell: Cell) -> str:
    """The advice, with the setting that implements it if there is one."""
    if limit.kind == "decode_bound" and "nvdec" in cell.decoder and "sessions" not in cell.decoder:
        return _MORE_SESSIONS
    if limit.kind == "latency_bound" and limit.advice.startswith("let the queue"):
        return f"{limit.advice}: processing.max_queue_size, and processing.max_queue_mb for large frames"
    if limit.kind != "cpu_bound":
        return limit.advice
    if limit.stage == "infer" and cell.model == "rvm":
        return f"{limit.advice}: {_CHEAPER_NETWORK}"
    setting = _THREADS_OF.get(limit.stage or "")
    return f"{limit.advice}: {setting}" if setting and limit.advice.startswith("give ") else limit.advice


def _faster_encoder(settings: Mapping[str, Any]) -> str:
    """The advice, without what is already set."""
    is_fast = settings.get("output.speed") == "fast" or "output.preset" in settings
    changes = ["a narrower output" if is_fast else FASTER_ENCODER]
    if settings.get("gpu.encoder") == "cpu":
        changes.append("the GPU's encoder where it has one (gpu.encoder=auto)")
    return ", or ".join(changes)


def _encoders_end(cells: Sequence[Cell]) -> list[Recommendation]:
    """Recommend a faster encoder where it does not limit a video this short, but takes much time at the end."""
    for cell in sorted(fastest_cells(cells), key=_BY_SPEED, reverse=True):
        end, limit = encoder_end(cell), limit_of(cell)
        if end is None or (limit is not None and limit.kind == "encode_bound"):
            continue
        before, after = end
        if after < _LONG_END * (before + after):
            continue
        why = (
            f"{cell.key.label()}: the encoder takes {after / (before + after):.0%} of the time after the last picture "
            "has reached it, and half of that is gone with one twice as fast; in a longer video the end counts less"
        )
        gain = (before + after) / (before + after / 2)
        return [Recommendation(change=FASTER_ENCODER, why=why, gain=gain, certainty="medium")]
    return []
