"""Tests of the checklist's answers, from known measurements."""

from __future__ import annotations

from dataclasses import replace

import pytest

from measured_cells import H200, LAPTOP, VERDICT, cell_of, key_of, results_of
from scripted_soaks import MB, soak_of
from vitascope.bench.results import Cell
from vitascope.gpu.profiling.utilisation import GpuLimits, Utilisation
from vitascope.tune.checklist import Measurements, checklist_of
from vitascope.tune.system_checks import SystemCheck

LIMITS = GpuLimits(
    name="NVIDIA H200",
    memory_bytes=140 << 30,
    power_watts=700.0,
    slowdown_celsius=90.0,
    sm_clock_mhz=1980.0,
    pcie_bytes_per_second=6e10,
)
LOAD = Utilisation(
    sample_count=50,
    seconds=10.0,
    cores=16,
    process_cores=4.0,
    machine_cpu_percent=30.0,
    resident_bytes_max=2 << 30,
    gpu_percent=91.0,
    memory_used_bytes_max=20 << 30,
    temperature_celsius_max=64.0,
    limits=LIMITS,
)
FAST = cell_of(key_of(), [200.0, 202.0, 198.0, 201.0, 199.0])
PROMPT = replace(
    FAST, rows=tuple(replace(row, p50=20.0, p95=30.0) if row.name == "latency" else row for row in FAST.rows)
)
TUNED = {
    "date": "2026-11-20T10:00:00+00:00",
    "before": {"fps": 100.0},
    "after": {"fps": 170.0},
    "change": {"model.batch_size": 4},
    "file": "/home/me/tuned.yaml",
}
GOOD = Measurements(
    video="talk_sbs.mp4",
    is_synthetic=False,
    layout="side-by-side (stereo box)",
    machine=H200,
    on_gpu=True,
    precision="fp16",
    target_fps=90.0,
    max_latency_ms=50.0,
    free_running=replace(FAST, load=LOAD),
    prompt=PROMPT,
    doubled=cell_of(key_of(batch=8), [203.0, 201.0, 205.0, 202.0, 204.0]),
    suite=results_of(FAST, workload={"suite": "full", "only": "everything"}),
    suite_place="results/benchmark_results.json",
    tuned=TUNED,
    not_in_use={},
    processor_throttled=0,
    system=(SystemCheck("swap", "none"),),
    soak=soak_of(),
)


def answers(found: Measurements):
    return {item.question: item for item in checklist_of(found).items}


def answer(question_part: str, **changes):
    (item,) = [
        item for question, item in answers(replace(GOOD, **changes)).items() if question_part in question
    ]
    return item


def with_load(**changes):
    return {"free_running": replace(FAST, load=replace(LOAD, **changes))}


def test_all_is_well():
    found = checklist_of(GOOD)
    assert [item.question for item in found.failed] == []
    assert [item.question for item in found.items if item.answer != "yes"] == ["queues are short"]
    assert all(item.advice is None for item in found.items)
    assert found.to_dict()["passed"] is True
    assert found.verdict().endswith("yes, 0 no, 1 not applicable here")
    speed = answer("90 frames a second at 1920x1080")
    assert speed.figure == "200.0 fps (p5 198.2, p95 201.8, n 5), talk_sbs.mp4"


@pytest.mark.parametrize(
    ("question", "changes", "figure"),
    [
        ("comprehensive", {"suite": None}, "no results in results/benchmark_results.json"),
        ("comprehensive", {"suite": replace(GOOD.suite, finished=False)}, "not finished"),
        (
            "comprehensive",
            {"suite": replace(GOOD.suite, machine=LAPTOP)},
            "of another machine (GPU: none against",
        ),
        (
            "comprehensive",
            {"suite": replace(GOOD.suite, workload={"suite": "quick"})},
            "suite: quick; only: None",
        ),
        (
            "comprehensive",
            {"suite": replace(GOOD.suite, machine=replace(H200, versions={"vitascope": "0.0.9"}))},
            "of version 0.0.9",
        ),
        ("frames a second", {"target_fps": 250.0}, "200.0 fps"),
        ("GPU is busy", with_load(gpu_percent=55.0), "55 % on average"),
        ("a frame is through", {"max_latency_ms": 25.0}, "p95 30.0 ms"),
        (
            "real VR",
            {"free_running": replace(FAST, load=LOAD, damaged_count=3)},
            "side (stereo box), 3 damaged",
        ),
        ("does not leak", {"soak": soak_of([400 * MB + n * MB for n in range(200)])}, "keeps growing by 7"),
        ("drift", {"soak": soak_of(latency=lambda share: 0.04 + 0.04 * share)}, "latency grows by "),
        ("drift", {"soak": soak_of(rate=lambda share: 30 - 10 * share)}, "frames take longer and longer"),
        ("lost", {"soak": replace(soak_of(), dropped_count=2)}, "2 dropped, 0 missing, 0 damaged"),
        ("lost", {"soak": replace(soak_of(), damaged_count=1)}, "1 damaged"),
        ("heat", with_load(throttled_share=0.3), "slowed 30% of the time"),
        ("heat", {"processor_throttled": 7}, "throttled 7 times"),
        ("best settings", {"tuned": None}, "optimize has not run"),
        ("best settings", {"not_in_use": {"model.batch_size": 4}}, "1.70x; not in use: model.batch_size=4"),
        ("half precision", {"precision": "fp32"}, "gpu.precision is fp32"),
        ("larger batch", {"doubled": cell_of(key_of(batch=8), [300.0, 302, 301])}, "batch 8 is 1.51 times"),
        ("memory is in use", with_load(memory_used_bytes_max=139 << 30), "GPU 99%"),
        ("memory is in use", with_load(resident_bytes_max=125 << 30), "main memory 98%"),
        ("other program", with_load(machine_cpu_percent=100.0, process_cores=0.1), "100% busy"),
        ("swap", {"system": (SystemCheck("swap", "9 GiB", "fewer processes"),)}, "9 GiB"),
    ],
)
def test_what_is_wrong_is_a_no_with_its_figure_and_advice(question, changes, figure):
    item = answer(question, **changes)
    assert item.answer == "no"
    assert figure in item.figure
    assert item.advice
    found = checklist_of(replace(GOOD, **changes))
    assert [one.question for one in found.failed] == [item.question]
    assert found.verdict().endswith(f"; not so: {item.question}")
    assert found.to_dict()["passed"] is False


@pytest.mark.parametrize(
    ("question", "changes", "why"),
    [
        ("GPU is busy", {"on_gpu": False}, "no GPU is in use"),
        ("GPU is busy", with_load(gpu_percent=None), "the driver does not report"),
        ("real VR", {"is_synthetic": True}, "synthetic"),
        ("real VR", {"layout": ""}, "flat, not stereo"),
        ("does not leak", {"soak": None}, "--duration 86400"),
        ("drift", {"soak": None}, "--duration 86400"),
        ("lost", {"soak": None}, "--duration 86400"),
        (
            "does not leak",
            {"soak": replace(soak_of(), rests=(), seconds=30.0)},
            "a trend needs 64, or an hour",
        ),
        ("heat", {"on_gpu": False, "processor_throttled": None}, "does not count"),
        ("half precision", {"on_gpu": False}, "CPUs compute in fp32"),
        ("larger batch", {"doubled": None, "not_doubled": "too few frames"}, "too few frames"),
        (
            "larger batch",
            {"doubled": Cell(key=key_of(batch=8), status="skipped", reason="only 4 frames came out")},
            "only 4 frames came out",
        ),
        (
            "larger batch",
            {"doubled": cell_of(key_of(batch=8), [300.0])},
            "96 frames in batches of 8 are too few",
        ),
        (  # fewer than three batches are split in the middle
            "larger batch",
            {"doubled": replace(cell_of(key_of(batch=8), [300.0] * 6), frames=20)},
            "20 frames in batches of 8 are too few",
        ),
        (
            "larger batch",
            {"free_running": replace(cell_of(key_of(), [200.0, 201.0]), load=LOAD)},
            "96 frames in batches of 4 are too few",
        ),
        ("bottleneck", {"free_running": replace(FAST, load=LOAD, verdict=None)}, "too little ran"),
        ("preprocessing", {"free_running": replace(FAST, load=LOAD, verdict=None)}, "too little ran"),
        ("other program", with_load(machine_cpu_percent=None), "does not report"),
    ],
)
def test_what_cannot_be_told_says_why_and_fails_nothing(question, changes, why):
    item = answer(question, **changes)
    assert item.answer == "not applicable"
    assert why in item.figure
    assert item.advice is None
    assert not checklist_of(replace(GOOD, **changes)).failed


def test_a_batch_that_does_not_fit_is_no_larger_batch_to_take():
    item = answer("larger batch", doubled=Cell(key=key_of(batch=8), status="failed", reason="out of memory"))
    assert item.answer == "yes"
    assert "do not run: out of memory" in item.figure


def test_an_unsteady_gain_calls_for_nothing():
    loud = cell_of(key_of(batch=8), [100.0, 500.0, 120.0, 480.0])
    assert answer("larger batch", doubled=loud).answer == "yes"


def test_preprocessing_that_sets_the_pace():
    cell = cell_of(key_of(), [50.0, 51, 52], stages={"decode": 1.0, "preprocess": 15.0, "infer": 6.0})
    slow = replace(VERDICT, kind="cpu_bound", stage="preprocess", title="preprocess sets the pace")
    item = answer("preprocessing", free_running=replace(cell, load=LOAD, verdict=slow))
    assert item.answer == "no"
    assert item.figure == "15.00 ms a frame, of all its threads together; preprocess sets the pace"
    shared = answer("preprocessing", free_running=replace(cell, load=LOAD))  # by several threads
    assert shared.answer == "yes"
    assert VERDICT.title in shared.figure


def test_a_short_soak_says_that_the_guide_asks_for_a_day():
    assert "(the guide asks for 24 h)" in answer("does not leak").figure
    day = replace(soak_of(), seconds=90_000.0)
    assert "25.0 h and 200 passes" in answer("does not leak", soak=day).figure
    assert "asks for" not in answer("does not leak", soak=day).figure
