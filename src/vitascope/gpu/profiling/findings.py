"""What can be found wrong with a run, and the findings that have nothing to do with which stage is slow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from vitascope.gpu.pipeline.report import Latency, PipelineReport
from vitascope.gpu.profiling.utilisation import Utilisation

__all__ = ["Confidence", "Finding", "Kind", "Role", "risk_findings", "role_of"]

Kind = Literal[
    "cpu_bound",
    "gpu_bound",
    "decode_bound",
    "encode_bound",
    "transfer_bound",
    "latency_bound",
    "low_gpu_use",
    "vram_pressure",
    "thermal",
    "unstable",
]
Role = Literal["decode", "encode", "transfer", "gpu", "cpu"]
Confidence = Literal["high", "medium", "low"]

_ROLES: dict[Role, tuple[str, ...]] = {
    "decode": ("decode", "read", "capture", "source"),
    "encode": ("encode", "write"),
    "transfer": ("download", "upload", "transfer", "copy"),
    "gpu": ("infer", "network", "matte", "composite", "model"),
}
_THROTTLED = 0.1
"""Share of looks that find the GPU slowed by heat before that is worth a word."""
_SPIKE, _DRAG = 4.0, 1.15
"""A stage is unstable when its p99 is so many times its median, and its mean so many times."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that limits a run, or endangers it."""

    kind: Kind
    stage: str | None
    """The stage that it is about; None for the whole machine."""
    title: str
    """What is the matter, in one sentence."""
    evidence: tuple[str, ...]
    """What was measured, a sentence each."""
    advice: str
    """The one change that helps most."""
    expected_gain: float
    """How many times faster the run would be, if the stage took half as long or the fault were gone; 1.0 where the
    change makes it safe, not fast."""
    confidence: Confidence
    urgent: bool = False
    """True where the run may fail."""

    def lines(self) -> list[str]:
        """For people."""
        gain = f"; expected: up to {self.expected_gain:.2f}x" if self.expected_gain >= 1.01 else ""
        return [
            f"{self.kind.replace('_', '-')}: {self.title}",
            *(f"  {sentence}" for sentence in self.evidence),
            f"  do this: {self.advice}{gain} (confidence {self.confidence})",
        ]


def role_of(stage: str, *, on_gpu: bool) -> Role:
    """What a stage does, by its name.

    Args:
        stage: Its name.
        on_gpu: The run uses a GPU, so that networks are computed there.
    """
    name = stage.lower()
    for role, words in _ROLES.items():
        if any(word in name for word in words):
            return role if role != "gpu" or on_gpu else "cpu"
    return "cpu"


def risk_findings(
    report: PipelineReport, utilisation: Utilisation | None, *, pace_stage: str | None, memory_full: float
) -> list[Finding]:
    """Heat, memory and spikes.

    Args:
        report: Of the run.
        utilisation: Measured beside it.
        pace_stage: The stage that sets the pace.
        memory_full: Share of the GPU's memory from which it counts as full.
    """
    found = _spikes(report, utilisation, pace_stage)
    if utilisation is not None:
        found += _heat(utilisation) + _memory(utilisation, memory_full)
    return found


def _heat(load: Utilisation) -> list[Finding]:
    if load.throttled_share < _THROTTLED:
        return []
    most = None if load.limits is None else load.limits.sm_clock_mhz
    gain, evidence = 1.0, [f"slowed down by heat in {load.throttled_share:.0%} of the looks"]
    if load.temperature_celsius_max is not None:
        evidence.append(f"it reached {load.temperature_celsius_max:.0f} °C")
    if most and load.sm_clock_mhz:
        evidence.append(f"its clock was {load.sm_clock_mhz:.0f} MHz on average, of {most:.0f} MHz")
        if (load.gpu_percent or 0.0) >= 70:  # a GPU that has time to spare loses nothing by a lower clock
            gain = most / load.sm_clock_mhz
    return [
        Finding(
            kind="thermal",
            stage=None,
            title="the GPU slows itself down because it is too hot",
            evidence=tuple(evidence),
            advice="better cooling, or a lower power limit, which keeps the clock steady",
            expected_gain=gain,
            confidence="high" if load.throttled_share > 0.3 else "medium",
        )
    ]


def _memory(load: Utilisation, full: float) -> list[Finding]:
    share = load.memory_share
    if share is None or share < min(full, 0.9):
        return []
    assert load.memory_used_bytes_max is not None  # it has a share
    return [
        Finding(
            kind="vram_pressure",
            stage=None,
            title=f"the GPU's memory is {'full' if share >= full else 'nearly full'}",
            evidence=(
                f"{load.memory_used_bytes_max / 2**30:.1f} GiB were in use, {share:.0%} of it, by all processes",
            ),
            advice="halve the batch, or the number of decoder sessions, before an allocation fails",
            expected_gain=1.0,
            confidence="high",
            urgent=share >= full,
        )
    ]


def _spikes(report: PipelineReport, load: Utilisation | None, pace_stage: str | None) -> list[Finding]:
    found = []
    for stage in report.stages:
        latency = stage.latency
        if stage.name != pace_stage or latency.count < 100 or not _is_unstable(latency):
            continue
        if role_of(stage.name, on_gpu=True) in ("decode", "encode"):
            continue  # keyframes take long, and what was held back comes at once
        evidence = [
            f"{stage.name} takes {latency.p50_seconds * 1e3:.1f} ms, but 1 in 100 takes "
            f"{latency.p99_seconds * 1e3:.1f} ms or more"
        ]
        advice = "allocate before the loop and reuse buffers, and look for synchronisation points in a trace"
        if load is not None and load.gc_count:
            evidence.append(
                f"the garbage collector stopped Python {load.gc_count} times, for {load.gc_seconds * 1e3:.0f} ms "
                f"in all, {load.gc_seconds_max * 1e3:.1f} ms at most"
            )
            if load.gc_seconds > 0.05 * load.seconds:
                advice = "call gc.freeze() after start-up, and make fewer objects for each item"
        found.append(
            Finding(
                kind="unstable",
                stage=stage.name,
                title=f"{stage.name} stumbles: its slowest items take "
                f"{latency.p99_seconds / latency.p50_seconds:.0f} times as long as most",
                evidence=tuple(evidence),
                advice=advice,
                expected_gain=latency.mean_seconds / latency.p50_seconds,
                confidence="medium",
            )
        )
    return found


def _is_unstable(latency: Latency) -> bool:
    median = latency.p50_seconds
    # Without the longest: first calls compile, allocate and load, once.
    mean = (latency.mean_seconds * latency.count - latency.max_seconds) / (latency.count - 1)
    return median > 0 and latency.p99_seconds > _SPIKE * median and mean > _DRAG * median
