"""Tests of all verdicts, each with figures in which only its cause is wrong."""

from __future__ import annotations

from dataclasses import replace

import pytest
from simulated_pipeline import SimulatedStage, simulate

from vitascope.gpu import BottleneckDetector
from vitascope.gpu.pipeline.report import Latency
from vitascope.gpu.profiling.utilisation import GpuLimits, Utilisation

LIMITS = GpuLimits(
    name="Test GPU",
    memory_bytes=24 << 30,
    power_watts=350.0,
    slowdown_celsius=90.0,
    sm_clock_mhz=2000.0,
    pcie_bytes_per_second=16e9,
)
QUIET = Utilisation(
    sample_count=20,
    seconds=10.0,
    cores=16,
    process_cores=1.0,
    gpu_percent=30.0,
    decoder_percent=10.0,
    encoder_percent=5.0,
    pcie_to_gpu_bytes_per_second=1e9,
    pcie_from_gpu_bytes_per_second=1e9,
    memory_used_bytes_max=8 << 30,
    temperature_celsius_max=60.0,
    sm_clock_mhz=1900.0,
    limits=LIMITS,
)
BALANCED = {"decode": 2.0, "preprocess": 2.0, "infer": 2.0, "download": 2.0, "encode": 2.0}


def report_of(**slow_ms):
    """Simulate stages of 2 ms each, except those named; only ``preprocess`` computes on the CPU."""
    stages = [
        SimulatedStage(name, cpu_ms=cost) if name == "preprocess" else SimulatedStage(name, other_ms=cost)
        for name, cost in {**BALANCED, **slow_ms}.items()
    ]
    return simulate(stages, items=200).report


def verdict_of(report, utilisation=None, **options):
    return BottleneckDetector(cores=16, **options).analyze(report, utilisation=utilisation)


def test_decode_bound():
    verdict = verdict_of(report_of(decode=8.0), replace(QUIET, decoder_percent=97.0))
    assert (verdict.main.kind, verdict.main.stage) == ("decode_bound", "decode")
    assert 1.5 < verdict.main.expected_gain <= 2.0
    assert verdict.main.confidence == "high"
    assert any("97 %" in sentence for sentence in verdict.main.evidence)
    # The idle GPU is a symptom, and listed after its cause.
    assert [finding.kind for finding in verdict.others] == ["low_gpu_use"]


def test_encode_bound():
    assert verdict_of(report_of(encode=8.0)).main.kind == "encode_bound"


def test_cpu_bound_by_one_thread():
    verdict = verdict_of(report_of(preprocess=8.0))
    assert (verdict.main.kind, verdict.main.stage) == ("cpu_bound", "preprocess")
    assert "another worker" in verdict.main.advice


def test_other_programs_that_have_the_cores_are_no_advice(monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 16)
    alone = report_of(preprocess=8.0)
    busy = replace(alone, machine_cores_busy=alone.cores_busy + 14.5)
    verdict = verdict_of(busy).main
    assert verdict.title == "other programs share the CPU with preprocess"
    assert verdict.advice == "measure again while the machine does nothing else"
    assert verdict.confidence == "low"
    assert "they kept 14.5 cores busy" in verdict.evidence
    roomy = replace(alone, machine_cores_busy=alone.cores_busy + 4)
    assert "another worker" in verdict_of(roomy).main.advice


def test_cpu_bound_by_a_full_machine():
    stages = [SimulatedStage(name, cpu_ms=cost) for name, cost in (("a", 4.0), ("b", 9.0), ("c", 3.0))]
    verdict = BottleneckDetector(cores=1).analyze(simulate(stages, items=200, cores=1).report)
    assert (verdict.main.kind, verdict.main.stage) == ("cpu_bound", "b")
    assert "all 1 cores" in verdict.main.title


def test_transfer_bound_by_copies():
    verdict = verdict_of(report_of(download=8.0), QUIET)
    assert (verdict.main.kind, verdict.main.stage) == ("transfer_bound", "download")


def test_transfer_bound_by_a_full_link():
    verdict = verdict_of(report_of(infer=8.0), replace(QUIET, pcie_from_gpu_bytes_per_second=15e9))
    assert verdict.main.kind == "transfer_bound"
    assert any("94%" in sentence for sentence in verdict.main.evidence)


def test_gpu_bound():
    busy = replace(QUIET, gpu_percent=96.0)
    verdict = verdict_of(report_of(infer=8.0), busy)
    assert (verdict.main.kind, verdict.main.stage) == ("gpu_bound", "infer")
    # A stage that waits for pictures waits for the GPU, if that is busy and the link is not.
    report = report_of(download=8.0)
    verdict = BottleneckDetector(cores=16).analyze(
        report, utilisation=busy, gpu_seconds={"infer": 1.5, "preprocess": 0.1}
    )
    assert (verdict.main.kind, verdict.main.stage) == ("gpu_bound", "infer")


def test_low_gpu_use():
    verdict = verdict_of(report_of(infer=8.0), replace(QUIET, gpu_percent=35.0))
    assert (verdict.main.kind, verdict.main.stage) == ("low_gpu_use", "infer")
    assert "larger batches" in verdict.main.advice
    assert verdict.main.expected_gain == 2.0


def test_without_a_gpu_a_network_is_the_processors():
    assert verdict_of(report_of(infer=8.0)).main.kind == "cpu_bound"


def test_latency_bound_by_a_small_queue():
    stages = [
        SimulatedStage("decode", other_ms=4.0, room=1),
        SimulatedStage("infer", other_ms=32.0, batch=8),
        SimulatedStage("encode", other_ms=1.0),
    ]
    verdict = verdict_of(simulate(stages, items=200).report)
    assert verdict.main.kind == "latency_bound"
    assert "decode > infer" in verdict.main.advice
    wider = [replace(stages[0], room=16), *stages[1:]]
    before, after = (simulate(which, items=200).report.wall_seconds for which in (stages, wider))
    assert verdict.main.expected_gain == pytest.approx(before / after, rel=0.15)


def test_latency_bound_because_nobody_is_busy():
    stages = [
        SimulatedStage("decode", other_ms=4.0, room=1, spread=2.0),
        SimulatedStage("infer", other_ms=4.0, room=1, spread=2.0),
        SimulatedStage("encode", other_ms=4.0, spread=2.0),
    ]
    verdict = verdict_of(simulate(stages, items=200, seed=3).report)
    assert verdict.main.kind in ("latency_bound", "unstable")
    assert any(finding.kind == "latency_bound" for finding in (verdict.main, *verdict.others))


def test_vram_pressure_comes_first_when_memory_runs_out():
    full = replace(QUIET, memory_used_bytes_max=int(23.5 * 2**30))
    verdict = verdict_of(report_of(encode=8.0), full)
    assert verdict.main.kind == "vram_pressure"
    assert verdict.main.urgent
    assert verdict.others[0].kind == "encode_bound"
    nearly = replace(QUIET, memory_used_bytes_max=22 * 2**30)
    verdict = verdict_of(report_of(encode=8.0), nearly)
    assert verdict.main.kind == "encode_bound"
    assert "vram_pressure" in [finding.kind for finding in verdict.others]


def test_thermal():
    hot = replace(
        QUIET, gpu_percent=97.0, throttled_share=0.8, sm_clock_mhz=800.0, temperature_celsius_max=91.0
    )
    verdict = verdict_of(report_of(infer=8.0), hot)
    assert verdict.main.kind == "thermal"
    assert verdict.main.expected_gain == pytest.approx(2.5)
    assert any("91 °C" in sentence for sentence in verdict.main.evidence)
    # A GPU that waits for others loses nothing through a low clock.
    verdict = verdict_of(report_of(encode=8.0), replace(hot, gpu_percent=20.0))
    assert verdict.main.kind == "encode_bound"


def with_spikes(report, name, *, garbage=None):
    spiky = Latency(
        count=1000,
        mean_seconds=0.010,
        p50_seconds=0.004,
        p95_seconds=0.006,
        p99_seconds=0.300,
        max_seconds=0.4,
    )
    stages = tuple(replace(stage, latency=spiky) if stage.name == name else stage for stage in report.stages)
    return replace(report, stages=stages)


def test_unstable():
    collected = replace(QUIET, gc_count=40, gc_seconds=2.0, gc_seconds_max=0.2, gpu_percent=None)
    verdict = verdict_of(with_spikes(report_of(preprocess=8.0), "preprocess"), collected)
    assert (verdict.main.kind, verdict.main.stage) == ("unstable", "preprocess")
    assert verdict.main.expected_gain == pytest.approx(2.5)
    assert any("garbage collector" in sentence for sentence in verdict.main.evidence)
    assert "gc.freeze" in verdict.main.advice


@pytest.mark.parametrize(("stage", "kind"), [("decode", "decode_bound"), ("encode", "encode_bound")])
def test_codecs_work_in_bursts_and_are_not_unstable(stage, kind):
    verdict = verdict_of(with_spikes(report_of(**{stage: 8.0}), stage))
    assert (verdict.main.kind, verdict.main.stage) == (kind, stage)
    assert "unstable" not in {one.kind for one in verdict.others}


def test_a_slow_first_call_is_not_unstable():
    report = report_of(preprocess=8.0)
    warm_up = Latency(
        count=100,
        mean_seconds=(99 * 0.004 + 0.26) / 100,
        p50_seconds=0.004,
        p95_seconds=0.005,
        p99_seconds=0.26,
        max_seconds=0.26,
    )
    stages = tuple(
        replace(stage, latency=warm_up) if stage.name == "preprocess" else stage for stage in report.stages
    )
    verdict = verdict_of(replace(report, stages=stages))
    assert [finding.kind for finding in (verdict.main, *verdict.others)] == ["cpu_bound"]


def test_roles_can_be_told():
    report = report_of(preprocess=8.0)
    assert verdict_of(report, roles={"preprocess": "transfer"}).main.kind == "transfer_bound"


def test_the_text_says_what_to_do_and_what_it_gives():
    verdict = verdict_of(report_of(decode=8.0), QUIET)
    text = verdict.text()
    assert text.startswith("decode-bound: ")
    assert "do this: " in text
    assert "expected: up to 1." in text or "expected: up to 2." in text
    assert "also: " in text
    plain = verdict.to_dict()
    assert plain["main"]["kind"] == "decode_bound"
    assert [pace["stage"] for pace in plain["paces"]] == list(BALANCED)


def test_close_stages_are_not_told_apart_with_confidence():
    assert verdict_of(report_of(decode=4.05, encode=4.0)).main.confidence == "low"


def test_bad_arguments():
    with pytest.raises(ValueError, match="a role is"):
        BottleneckDetector(roles={"a": "disk"})
    with pytest.raises(ValueError, match="thresholds"):
        BottleneckDetector(gpu_idle_percent=90, gpu_busy_percent=50)
    empty = replace(report_of(), stages=(), queues=())
    with pytest.raises(ValueError, match="nothing has run"):
        BottleneckDetector().analyze(empty)
