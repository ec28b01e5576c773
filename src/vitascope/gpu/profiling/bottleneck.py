"""Explain what limits a run, and which single change helps most."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from vitascope.device import available_cores
from vitascope.gpu.pipeline.report import Latency, PipelineReport, StageReport
from vitascope.gpu.profiling.pace import StagePace, find_bottleneck, stage_paces, tight_queues
from vitascope.gpu.profiling.utilisation import Utilisation

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
"""Share of samples with thermal throttling from which the verdict mentions it."""
_CORES_OF_A_BUSY_MACHINE = 0.5
"""Cores kept busy by other programs from which they affect the measurement."""
_SPIKE, _DRAG = 4.0, 1.15
"""A stage is unstable if its p99 and its mean exceed its median by these factors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A limit of a run, or a risk to it."""

    kind: Kind
    stage: str | None
    """The stage concerned; None for the whole machine."""
    title: str
    """The finding, in one sentence."""
    evidence: tuple[str, ...]
    """Measurements, one sentence each."""
    advice: str
    """The one change that helps most."""
    expected_gain: float
    """Speed-up of the run if the stage took half the time or the fault were gone; 1.0 if the change improves
    safety, not speed."""
    confidence: Confidence
    urgent: bool = False
    """True if the run may fail."""

    def lines(self) -> list[str]:
        """Format for people."""
        gain = f"; expected: up to {self.expected_gain:.2f}x" if self.expected_gain >= 1.01 else ""
        return [
            f"{self.kind.replace('_', '-')}: {self.title}",
            *(f"  {sentence}" for sentence in self.evidence),
            f"  do this: {self.advice}{gain} (confidence {self.confidence})",
        ]


def role_of(stage: str, *, on_gpu: bool) -> Role:
    """Derive a stage's role from its name.

    Args:
        stage: The stage's name.
        on_gpu: Whether the run computes networks on a GPU.
    """
    name = stage.lower()
    for role, words in _ROLES.items():
        if any(word in name for word in words):
            return role if role != "gpu" or on_gpu else "cpu"
    return "cpu"


def risk_findings(
    report: PipelineReport, utilisation: Utilisation | None, *, pace_stage: str | None, memory_full: float
) -> list[Finding]:
    """Find risks: heat, memory and spikes.

    Args:
        report: Report of the run.
        utilisation: Utilisation measured during the run.
        pace_stage: The stage that sets the pace.
        memory_full: Share of GPU memory that counts as full.
    """
    found = _spikes(report, utilisation, pace_stage)
    if utilisation is not None:
        found += _heat(utilisation) + _memory(utilisation, memory_full)
    return found


def _heat(load: Utilisation) -> list[Finding]:
    if load.throttled_share < _THROTTLED:
        return []
    most = None if load.limits is None else load.limits.sm_clock_mhz
    gain, evidence = 1.0, [f"throttled by heat in {load.throttled_share:.0%} of the samples"]
    if load.temperature_celsius_max is not None:
        evidence.append(f"it reached {load.temperature_celsius_max:.0f} °C")
    if most and load.sm_clock_mhz:
        evidence.append(f"its clock was {load.sm_clock_mhz:.0f} MHz on average, of {most:.0f} MHz")
        if (load.gpu_percent or 0.0) >= 70:  # a GPU with spare time loses nothing to a lower clock
            gain = most / load.sm_clock_mhz
    return [
        Finding(
            kind="thermal",
            stage=None,
            title="the GPU is throttled because it is too hot",
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
    assert load.memory_used_bytes_max is not None  # implied by its share
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
            continue  # keyframes are slow, and buffered results arrive at once
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
                advice = "call gc.freeze() after start-up, and create fewer objects per item"
        found.append(
            Finding(
                kind="unstable",
                stage=stage.name,
                title=f"{stage.name} is irregular: its slowest items take "
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
    # Without the longest, because first calls compile, allocate and load.
    mean = (latency.mean_seconds * latency.count - latency.max_seconds) / (latency.count - 1)
    return median > 0 and latency.p99_seconds > _SPIKE * median and mean > _DRAG * median


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What limits the run."""

    main: Finding
    """The first thing to do."""
    others: tuple[Finding, ...]
    """Other findings, most useful first."""
    paces: tuple[StagePace, ...]
    """The effect of halving each stage."""

    def text(self) -> str:
        """Format the verdict for people, in a few lines."""
        lines = [*self.main.lines()]
        for finding in self.others:
            lines.append(f"also: {finding.title}; {finding.advice}")
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return asdict(self)


class BottleneckDetector:
    """Finds what limits a run, from a pipeline's report and measurements taken during the run.

    The model in ``pace.py`` finds the stage; the other figures say why it is slow. Default thresholds are
    those usual in the field: a GPU is busy from 80 % and idle below 50 %, its memory full from 95 %.

    Args:
        roles: Roles of stages by name, if the name does not tell: ``decode``, ``encode``, ``transfer``
            (between host and GPU), ``gpu`` or ``cpu``.
        cores: CPU cores available to the run; this machine's if omitted.
        gpu_busy_percent: Load from which the GPU itself is the limit.
        gpu_idle_percent: Load below which the GPU waits for other stages.
        memory_full_share: Share of GPU memory from which the run is close to running out.

    Raises:
        ValueError: A role is unknown, or a threshold out of range.
    """

    def __init__(
        self,
        *,
        roles: Mapping[str, Role] | None = None,
        cores: int | None = None,
        gpu_busy_percent: float = 80.0,
        gpu_idle_percent: float = 50.0,
        memory_full_share: float = 0.95,
    ) -> None:
        unknown = set(roles.values()) - {"decode", "encode", "transfer", "gpu", "cpu"} if roles else set()
        if unknown:
            raise ValueError(f"a role is decode, encode, transfer, gpu or cpu, not {sorted(unknown)}")
        if not 0 < gpu_idle_percent <= gpu_busy_percent <= 100 or not 0 < memory_full_share <= 1:
            raise ValueError("thresholds are shares of the whole, and idle must be below busy")
        self._roles = dict(roles or {})
        self._cores = cores or available_cores()
        self._busy = gpu_busy_percent
        self._idle = gpu_idle_percent
        self._memory_full = memory_full_share

    def analyze(
        self,
        report: PipelineReport,
        *,
        utilisation: Utilisation | None = None,
        gpu_seconds: Mapping[str, float] | None = None,
    ) -> Verdict:
        """Find what limits a run.

        Args:
            report: Report of a pipeline, finished or not.
            utilisation: Figures of a ``UtilisationSampler`` that ran at the same time. Without them the
                verdict leaves out the GPU's load, memory and temperature.
            gpu_seconds: GPU time by stage (``Profiler.gpu_seconds``, if spans are named like stages).

        Raises:
            ValueError: No items have been processed.
        """
        paces = stage_paces(
            report.stages,
            report.queues,
            wall_seconds=report.wall_seconds,
            cores_busy=report.cores_busy,
            cores=self._cores,
            gpu_seconds=gpu_seconds,
        )
        if not paces:
            raise ValueError("no bottleneck can be found: nothing has run yet")
        case = _Case(report, tuple(paces), utilisation, gpu_seconds or {}, self._cores)
        pace = self._pace_finding(case)
        risks = risk_findings(report, utilisation, pace_stage=pace.stage, memory_full=self._memory_full)
        urgent = [finding for finding in risks if finding.urgent]
        ordered = [
            *urgent,
            *sorted(
                [pace, *(finding for finding in risks if not finding.urgent), *self._idle_gpu(case, pace)],
                key=lambda finding: -finding.expected_gain,
            ),
        ]
        return Verdict(main=ordered[0], others=tuple(ordered[1:]), paces=tuple(paces))

    def _pace_finding(self, case: _Case) -> Finding:
        """Name the stage that sets the pace, and how to improve it."""
        top = max(case.paces, key=lambda pace: (pace.saving, pace.load))
        found = find_bottleneck(
            case.report.stages, case.report.queues, wall_seconds=case.report.wall_seconds, paces=case.paces
        )
        assert found is not None  # not empty
        stage = case.stage(found.stage)
        base = Finding(
            kind="cpu_bound",
            stage=stage.name,
            title="",
            evidence=(found.evidence,),
            advice="",
            expected_gain=top.gain,
            confidence=_confidence(case),
        )
        tight = tight_queues(case.report.stages, case.report.queues, wall_seconds=case.report.wall_seconds)
        if tight and stage.load < 0.85:
            return self._tight_queue(case, base, *max(tight, key=lambda pair: pair[1]))
        if case.cores_share >= 0.9:
            return replace(
                base,
                title=f"the CPU is full: all {self._cores} cores are busy, {stage.name} takes most of them",
                evidence=(*base.evidence, f"{case.report.cores_busy:.1f} of {self._cores} cores were busy"),
                advice=f"make {stage.name} cheaper, or move it to the GPU; more threads cannot help",
            )
        if max(pace.load for pace in case.paces) < 0.6 and top.gpu_share < 0.6:
            return self._nobody_is_busy(case, base)
        return self._by_role(case, base, stage)

    def _by_role(self, case: _Case, base: Finding, stage: StageReport) -> Finding:
        role = self._roles.get(stage.name) or role_of(stage.name, on_gpu=case.has_gpu)
        load = case.utilisation
        gpu = None if load is None else load.gpu_percent
        pcie = None if load is None else load.pcie_share
        if pcie is not None and pcie >= 0.8:
            return replace(
                base,
                kind="transfer_bound",
                title="the link between host and GPU is full",
                evidence=(*base.evidence, f"PCIe carried {pcie:.0%} of what it can in its busier direction"),
                advice="keep frames on the GPU from decoder to encoder, or send fewer bytes (8 bits, smaller masks)",
            )
        waits_for_gpu = role == "transfer" and gpu is not None and gpu >= self._busy
        if role == "gpu" or waits_for_gpu:
            return self._on_gpu(case, base, stage, gpu)
        if role == "decode":
            return self._chip(
                base,
                "decode_bound",
                "reading and decoding the input sets the pace",
                None if load is None else load.decoder_percent,
                unit="decoder",
                advice="decode on the GPU, in several sessions at once, or give the decoder more threads",
            )
        if role == "encode":
            return self._chip(
                base,
                "encode_bound",
                "encoding and writing the output sets the pace",
                None if load is None else load.encoder_percent,
                unit="encoder",
                advice="a faster preset, several encoders side by side, or the GPU's encoder",
            )
        if role == "transfer":
            return replace(
                base,
                kind="transfer_bound",
                title=f"moving data between host and GPU sets the pace ({stage.name})",
                advice="use page-locked buffers and a stream of their own for copies, or keep frames on the GPU",
            )
        return self._on_host(case, base, stage)

    def _on_host(self, case: _Case, base: Finding, stage: StageReport) -> Finding:
        computing = stage.cpu_seconds / stage.busy_seconds if stage.busy_seconds else 0.0
        spare, others = self._cores - case.report.cores_busy, case.cores_of_others
        if others is not None:
            spare = min(spare, (os.cpu_count() or 1) - case.report.cores_busy - others)
        if spare < 1 and others is not None and others >= _CORES_OF_A_BUSY_MACHINE:
            return replace(
                base,
                title=f"other programs share the CPU with {stage.name}",
                advice="measure again while the machine does nothing else",
                evidence=(*base.evidence, f"they kept {others:.1f} cores busy"),
                confidence="low",
            )
        if spare >= 1:
            change = f"give {stage.name} another worker or more threads ({spare:.1f} cores are idle)"
        else:
            change = f"make {stage.name} cheaper"
        title = f"{stage.name} on the CPU sets the pace"
        evidence = f"its own thread computed for {computing:.0%} of its time"
        if computing < 0.5:
            evidence += "; for the rest it waited for threads of a library, a device or a disk"
        return replace(
            base, title=title, advice=f"{change}, or move it to the GPU", evidence=(*base.evidence, evidence)
        )

    def _on_gpu(self, case: _Case, base: Finding, stage: StageReport, gpu: float | None) -> Finding:
        if gpu is None:
            return replace(
                base,
                kind="gpu_bound",
                title=f"{stage.name} on the GPU sets the pace",
                advice="a smaller network input, lower precision or a quantised network",
                confidence="low",  # GPU load was not measured
            )
        evidence = (*base.evidence, f"the GPU ran kernels {gpu:.0f} % of the time")
        if gpu < self._busy:
            possible = stage.load * 100 / max(gpu, 1.0)
            return replace(
                base,
                kind="low_gpu_use",
                title=f"{stage.name} is busy, but the GPU is not: it waits for launches and copies of the host",
                evidence=evidence,
                advice="larger batches, CUDA graphs, and no synchronisation between launches",
                expected_gain=max(min(possible, 2.0), base.expected_gain)
                if gpu < self._idle
                else base.expected_gain,
            )
        longest = max(case.gpu_seconds, key=lambda name: case.gpu_seconds[name], default=stage.name)
        return replace(
            base,
            kind="gpu_bound",
            stage=longest,
            title=f"the GPU is busy; {longest} takes most of it",
            evidence=evidence,
            advice="a smaller network input, lower precision or a quantised network",
        )

    def _chip(
        self, base: Finding, kind: Kind, title: str, percent: float | None, *, unit: str, advice: str
    ) -> Finding:
        evidence = base.evidence
        if percent is not None:
            evidence = (*evidence, f"the GPU's {unit} was busy {percent:.0f} % of the time")
        return replace(base, kind=kind, title=title, evidence=evidence, advice=advice)

    def _tight_queue(self, case: _Case, base: Finding, queue: Any, share: float) -> Finding:
        busiest = max(pace.load for pace in case.paces)
        return replace(
            base,
            kind="latency_bound",
            title=f"the queue {queue.name} is too small: the stages around it take turns instead of overlapping",
            evidence=(*base.evidence, f"both sides of {queue.name} waited {share:.0%} of the time"),
            advice=f"let the queue {queue.name} hold more, at least two batches of the next stage",
            expected_gain=max(min(1 / busiest, 2.0), 1.0) if busiest else base.expected_gain,
        )

    def _nobody_is_busy(self, case: _Case, base: Finding) -> Finding:
        busiest = max(case.paces, key=lambda pace: pace.load)
        evidence = (
            *base.evidence,
            f"no stage was busy more than {busiest.load:.0%} of the time, "
            f"and {case.report.cores_busy:.1f} of {self._cores} cores",
        )
        return replace(
            base,
            kind="latency_bound",
            title="nothing is busy: the run waits for its input, or each item for the one before it",
            evidence=evidence,
            advice="keep more items in flight: longer queues, larger batches, several inputs; a run of a "
            "few items is mostly start-up and shutdown",
            confidence="low",
        )

    def _idle_gpu(self, case: _Case, pace: Finding) -> list[Finding]:
        """Report a GPU idle because something else is slow: a symptom, beside its cause."""
        load = case.utilisation
        if (
            load is None
            or load.gpu_percent is None
            or load.gpu_percent >= self._idle
            or not case.gpu_computes
        ):
            return []
        if pace.kind in ("low_gpu_use", "gpu_bound"):
            return []
        finding = Finding(
            kind="low_gpu_use",
            stage=None,
            title=f"the GPU ran kernels only {load.gpu_percent:.0f} % of the time, because it waits for {pace.stage}",
            evidence=(f"GPU {load.gpu_percent:.0f} %",),
            advice="larger batches help once that stage is faster",
            expected_gain=1.0,
            confidence="high",
        )
        return [finding]


@dataclass(frozen=True, slots=True)
class _Case:
    """Data of a run."""

    report: PipelineReport
    paces: tuple[StagePace, ...]
    utilisation: Utilisation | None
    gpu_seconds: Mapping[str, float]
    cores: int

    @property
    def has_gpu(self) -> bool:
        return self.gpu_computes or (self.utilisation is not None and self.utilisation.limits is not None)

    @property
    def gpu_computes(self) -> bool:
        """Whether stages are known or likely to use a GPU."""
        used = None if self.utilisation is None else self.utilisation.gpu_percent
        return bool(self.gpu_seconds) or (used is not None and used > 1)

    @property
    def cores_share(self) -> float:
        return (
            max(self.report.cores_busy, sum(pace.cpu_share for pace in self.paces) * self.cores) / self.cores
        )

    @property
    def cores_of_others(self) -> float | None:
        """CPU cores kept busy by other programs; None if the system does not report it."""
        machine = self.report.machine_cores_busy
        return None if machine is None else max(machine - self.report.cores_busy, 0.0)

    def stage(self, name: str) -> StageReport:
        return next(stage for stage in self.report.stages if stage.name == name)


def _confidence(case: _Case) -> Confidence:
    """Rate confidence in the verdict: the first stage's lead over the next, and whether enough items ran."""
    savings = sorted((pace.saving for pace in case.paces), reverse=True)
    ahead = savings[0] - (savings[1] if len(savings) > 1 else 0.0)
    if case.report.items < 20 or ahead < 0.02:
        return "low"
    return "high" if ahead > 0.1 else "medium"
