"""Tests of finding the stage that sets the pace: the one whose halving most cuts the simulated wall time."""

from __future__ import annotations

import time

import numpy as np
import pytest
from simulated_pipeline import SimulatedStage, gains, random_pipeline, simulate

from vitascope.gpu.pipeline.pipeline import Pipeline
from vitascope.gpu.pipeline.queues import QueueLimits
from vitascope.gpu.pipeline.stages import Batched, Group, Map, Sink, Source
from vitascope.gpu.profiling.pace import find_bottleneck, stage_paces, tight_queues

ITEMS = 160
FEW = QueueLimits(items=4)


def paces_of(outcome, cores):
    report = outcome.report
    return stage_paces(
        report.stages,
        report.queues,
        wall_seconds=report.wall_seconds,
        cores_busy=report.cores_busy,
        cores=cores,
        gpu_seconds=outcome.gpu_seconds,
    )


def test_right_in_95_of_100_random_pipelines():
    right, errors = 0, []
    for seed in range(5000, 5100):
        stages, cores = random_pipeline(np.random.default_rng(seed))
        outcome = simulate(stages, items=ITEMS, cores=cores, seed=seed)
        best = max(paces_of(outcome, cores), key=lambda pace: pace.saving)
        truth = gains(stages, outcome, items=ITEMS, cores=cores, seed=seed)
        right += truth[best.stage] >= max(truth.values()) - 1e-9
        errors.append(abs(best.gain - truth[best.stage]))
    assert right >= 95
    # The predicted gain is near the real one.
    assert np.mean(errors) < 0.1


def test_the_simulation_obeys_the_laws_of_pipelines():
    """Check that the slowest stage sets the pace, and that two stages on one core take as long as both together."""
    stages = [
        SimulatedStage("a", other_ms=2),
        SimulatedStage("b", other_ms=5),
        SimulatedStage("c", other_ms=1),
    ]
    assert simulate(stages, items=200).report.wall_seconds == pytest.approx(200 * 5e-3 + 3e-3)
    shared = [SimulatedStage("a", cpu_ms=2), SimulatedStage("b", cpu_ms=5)]
    assert simulate(shared, items=200, cores=1).report.wall_seconds == pytest.approx(200 * 7e-3)
    workers = [SimulatedStage("a", other_ms=1), SimulatedStage("b", other_ms=8, workers=4)]
    assert simulate(workers, items=200).report.wall_seconds == pytest.approx(200 * 2e-3, rel=0.03)
    batched = [SimulatedStage("a", other_ms=1), SimulatedStage("b", other_ms=16, batch=8)]
    assert simulate(batched, items=200).report.wall_seconds == pytest.approx(200 * 2e-3, rel=0.05)


def test_a_full_processor_names_the_stage_that_computes_most():
    stages = [
        SimulatedStage("decode", other_ms=9),
        SimulatedStage("light", cpu_ms=3),
        SimulatedStage("heavy", cpu_ms=8),
    ]
    outcome = simulate(stages, items=ITEMS, cores=1)
    paces = {pace.stage: pace for pace in paces_of(outcome, 1)}
    assert max(paces.values(), key=lambda pace: pace.saving).stage == "heavy"
    assert paces["heavy"].cpu_share > 0.6


def test_a_queue_that_is_too_small_is_found():
    stages = [SimulatedStage("a", other_ms=4, room=1), SimulatedStage("b", other_ms=32, batch=8)]
    report = simulate(stages, items=ITEMS).report
    ((queue, share),) = tight_queues(report.stages, report.queues, wall_seconds=report.wall_seconds)
    assert queue.name == "a > b"
    assert share > 0.2
    wide = [SimulatedStage("a", other_ms=4, room=16), SimulatedStage("b", other_ms=32, batch=8)]
    report = simulate(wide, items=ITEMS).report
    assert tight_queues(report.stages, report.queues, wall_seconds=report.wall_seconds) == []


def wait(milliseconds):
    def step(item):
        time.sleep(milliseconds / 1e3)
        return item

    return step


def run(costs_ms, *, batch=1):
    """Run a real pipeline of sleeping stages; on a busy machine each sleep takes some milliseconds longer."""
    decode, infer, post, encode = costs_ms
    middle = (
        Map("infer", wait(infer), output=FEW)
        if batch == 1
        else Group("infer", Batched(lambda items: [wait(infer)(items)][0], size=batch), output=FEW)
    )
    return Pipeline(
        [
            Source("decode", map(wait(decode), range(16)), output=FEW),
            middle,
            Map("post", wait(post), output=FEW, workers=2),
            Sink("encode", wait(encode)),
        ]
    ).run()


@pytest.mark.parametrize(
    ("costs_ms", "batch", "expected"),
    [
        ((25, 1, 1, 1), 1, "decode"),
        ((1, 25, 1, 1), 1, "infer"),
        ((1, 120, 1, 1), 4, "infer"),
        ((1, 1, 50, 1), 1, "post"),
        ((5, 1, 10, 30), 1, "encode"),
        ((20, 1, 20, 1), 1, "decode"),  # post costs the same, but has two workers
    ],
)
def test_real_pipelines(costs_ms, batch, expected):
    report = run(costs_ms, batch=batch)
    assert report.bottleneck.stage == expected
    assert 0.2 < report.bottleneck.score <= 1


def test_a_starved_queue_points_at_who_starves_it():
    report = run((25, 1, 1, 1))
    assert report.bottleneck.stage == "decode"
    assert "infer waited" in report.bottleneck.evidence


def test_nothing_has_no_bottleneck():
    assert find_bottleneck((), (), wall_seconds=0.0) is None
    assert stage_paces((), (), wall_seconds=1.0) == []
